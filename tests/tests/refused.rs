//! A host reports that nobody listens at a UDP peer's address. That may change the next moment, and anybody can forge
//! it. So a peer that answers keeps its sessions.

mod common;

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use common::{ECHO, PATIENCE, config, echo};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use sinew::prelude::*;
use sinew_conformance::skipped;

/// Longest absence of a peer for which these tests prove anything: half of the time that it has to answer.
const A_MOMENT: Duration = Duration::from_millis(50);

fn endpoint() -> Rpc {
    // No peer is given up for its silence here.
    let config = Config { peer_timeout_ns: PATIENCE.as_nanos() as u64, ..config() };
    Rpc::open_with(&echo(config), "udp://127.0.0.1:0").unwrap()
}

fn socket_of(rpc: &Rpc) -> SocketAddrV4 {
    rpc.address().rest().parse().unwrap()
}

/// A relay to a server, which can be shut and opened again.
struct Relay {
    at: SocketAddr,
    door: Option<UdpSocket>,
    back: UdpSocket,
    server: SocketAddr,
    client: Option<SocketAddr>,
}

fn bind(at: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Datagrams that have arrived, each with its sender.
fn datagrams(socket: &UdpSocket) -> impl Iterator<Item = (Vec<u8>, SocketAddr)> {
    std::iter::from_fn(move || {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((len, from)) => return Some((buffer[..len].to_vec(), from)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The error belongs to an earlier packet.
                Err(_) => {}
            }
        }
    })
}

impl Relay {
    fn to(server: &Rpc) -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        let (door, back) = (bind(any), bind(any));
        Self {
            at: door.local_addr().unwrap(),
            door: Some(door),
            back,
            server: SocketAddr::V4(socket_of(server)),
            client: None,
        }
    }

    fn turn(&mut self) {
        let Some(door) = &self.door else { return };
        for (bytes, from) in datagrams(door) {
            self.client = Some(from);
            let _ = self.back.send_to(&bytes, self.server);
        }
        for (bytes, _) in datagrams(&self.back) {
            let _ = self.client.map(|client| door.send_to(&bytes, client));
        }
    }

    fn shut(&mut self) {
        self.door = None;
    }

    fn open(&mut self) {
        self.door = Some(bind(self.at));
    }
}

/// Connects to `address`, while `turn` turns everything in between.
fn open_session(client: &mut Rpc, address: &str, mut turn: impl FnMut()) -> SessionId {
    let session = client.begin_connect(address).unwrap();
    let began = Instant::now();
    loop {
        client.turn();
        turn();
        match client.poll_event() {
            Some(SessionEvent::Connected(id)) if id == session => return session,
            Some(other) => panic!("{other:?}"),
            None => assert!(began.elapsed() < PATIENCE, "no session"),
        }
    }
}

fn begin_call(client: &mut Rpc, session: SessionId, tag: u64) {
    let (mut request, response) = (client.alloc(4).unwrap(), client.alloc(64).unwrap());
    request.fill(b"here").unwrap();
    client.enqueue_request(session, ECHO, request, response, tag).unwrap();
}

fn end_call(client: &mut Rpc, mut turn: impl FnMut()) -> Completion {
    let began = Instant::now();
    loop {
        client.turn();
        turn();
        if let Some(over) = client.poll_completion() {
            return over;
        }
        assert!(began.elapsed() < PATIENCE, "a call hangs");
    }
}

/// The relay is shut, so that the system itself refuses the client's packets, and opened again before long. The server
/// notices nothing. Calls in flight are answered.
#[test]
fn a_server_whose_host_refused_packets_for_a_moment_keeps_its_sessions() {
    for _ in 0..20 {
        let (mut server, mut client) = (endpoint(), endpoint());
        let mut relay = Relay::to(&server);
        let address = format!("udp://{}", relay.at);
        let session = open_session(&mut client, &address, || {
            relay.turn();
            server.turn();
        });
        let shut = Instant::now();
        relay.shut();
        begin_call(&mut client, session, 1);
        for _ in 0..5 {
            client.turn();
            server.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        relay.open();
        if shut.elapsed() > A_MOMENT {
            // The machine was so busy that the server was away for as long as a dead one.
            continue;
        }
        let over = end_call(&mut client, || {
            relay.turn();
            server.turn();
        });
        assert_eq!(over.result, Ok(()));
        assert!(client.poll_event().is_none());
        assert_eq!((client.sessions(), server.sessions()), (1, 1));
        return;
    }
    eprintln!("this machine is too busy for this test");
}

/// The relay stays shut, and the client knows long before the peer time-out.
#[test]
fn a_server_whose_host_goes_on_refusing_packets_is_given_up_soon() {
    let (mut server, mut client) = (endpoint(), endpoint());
    let mut relay = Relay::to(&server);
    let address = format!("udp://{}", relay.at);
    let session = open_session(&mut client, &address, || {
        relay.turn();
        server.turn();
    });
    relay.shut();
    let began = Instant::now();
    begin_call(&mut client, session, 1);
    let over = end_call(&mut client, || {});
    assert_eq!(over.result.unwrap_err().cause, Cause::PeerUnreachable);
    assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
}

/// Builds a host's message to the sender of a packet for a UDP port where nobody listens (RFC 792): the reason, and the
/// header of that packet.
fn port_unreachable(sender: SocketAddrV4, receiver: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    // The IP header: version and length, 36 bytes in all, no fragment, 64 hops, UDP.
    message.extend([0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend(sender.ip().octets().into_iter().chain(receiver.ip().octets()));
    // Ports, length, checksum.
    message.extend(sender.port().to_be_bytes().into_iter().chain(receiver.port().to_be_bytes()).chain([0, 16, 0, 0]));
    let words = message.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    message[2..4].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
    message
}

/// Somebody tells client and server again and again that the other is gone.
#[test]
fn forged_refusals_end_no_session() {
    let Ok(forger) = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)) else {
        return skipped("raw sockets are for root");
    };
    let (mut server, mut client) = (endpoint(), endpoint());
    let [of_client, of_server] = [&client, &server].map(socket_of);
    let address = server.address().to_string();
    let session = open_session(&mut client, &address, || {
        server.turn();
    });
    for round in 0..50 {
        for (observer, other) in [(of_client, of_server), (of_server, of_client)] {
            let message = port_unreachable(observer, other);
            if let Err(error) = sendto(&forger, &message, SendFlags::empty(), &SocketAddrV4::new(*observer.ip(), 0)) {
                return skipped(format_args!("raw sockets send no such message here: {error}"));
            }
        }
        begin_call(&mut client, session, round);
        let over = end_call(&mut client, || {
            server.turn();
        });
        assert_eq!(over.result, Ok(()), "{round}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(client.poll_event().is_none());
    assert_eq!((client.sessions(), server.sessions()), (1, 1));
}
