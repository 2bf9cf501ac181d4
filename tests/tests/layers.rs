//! Ports that the facade does not know, and layers around ports that it knows, on real fabrics.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use common::{ECHO, PATIENCE, client, config, echo, unique};
use sinew::Endpoint;
use sinew::fabric::fault::{FaultConfig, Faults, Faulty};
use sinew::fabric::layer::{Layer, Layered};
use sinew::fabric::loopback::{LoopbackConfig, Network};
use sinew::fabric::{Dropped, ManualClock, PACKET_LEN_MIN, PacketPort, Peer, PortError};
use sinew::host::HostClock;
use sinew::prelude::*;
use sinew::rpc::PacketDrop;
use sinew::shm::ShmPort;
use sinew::udp::UdpPort;
use sinew_conformance::sealing::{SEAL_LEN, Sealed, seal};

const KEY: [u64; 2] = [3, 4];
const BELOW: Faults = Faults { drop: 0.01, duplicate: 0.02, reorder: 0.01, corrupt: 0.02, ..Faults::NONE };

/// Returns a port that seals packets, above one that loses, duplicates, reorders and corrupts those that it sends.
fn sealed<P: PacketPort>(port: P, seed: u64) -> sinew::Result<Sealed<Faulty<P>>> {
    let faults = FaultConfig { tx: BELOW, rx: Faults::NONE };
    Ok(seal(Faulty::new(port, faults, seed), KEY, seed << 32)?)
}

/// Asserts that damaged packets arrived, but that the protocol saw none of them.
fn assert_undamaged(rpc: &sinew::rpc::Stats, port: &sinew::fabric::PortStats) {
    assert!(port.dropped(Dropped::BadSeal) > 0 && port.dropped(Dropped::Replayed) > 0, "{port:?}");
    let damage = [PacketDrop::WrongMagic, PacketDrop::WrongLength, PacketDrop::UnknownKind, PacketDrop::Malformed];
    assert_eq!(damage.map(|reason| rpc.dropped(reason)), [0; 4]);
}

fn eight_megabytes_pass<P: PacketPort + 'static>(
    open: impl Fn(&str) -> Result<P, PortError> + Send + Clone + 'static,
    server_at: String,
    client_at: &str,
) {
    let open_server = open.clone();
    let server = echo(config()).server().over(move || sealed(open_server(&server_at)?, 1)).start().unwrap();
    let address = server.addresses()[0].to_string();
    let nexus = Nexus::builder().config(config()).build().unwrap();
    let mut rpc = Rpc::over(&nexus, sealed(open(client_at).unwrap(), 2).unwrap()).unwrap();
    let session = rpc.connect(&address).unwrap();
    let message: Vec<u8> = (0..8 << 20).map(|at: u32| ((at * 31) >> 3) as u8).collect();
    for _ in 0..2 {
        assert!(*rpc.call(session, ECHO, &message).unwrap() == message[..]);
    }
    assert_undamaged(&rpc.stats(), &rpc.port_stats());
    drop(rpc);
    let report = server.stop().unwrap().remove(0);
    assert_eq!((report.stats.requests_handled, report.address.to_string()), (2, address));
    assert_undamaged(&report.stats, &report.port_stats);
}

#[test]
fn eight_megabytes_pass_a_layer_that_seals_over_shared_memory() {
    let open = |address: &str| ShmPort::open(&address.parse()?);
    eight_megabytes_pass(open, format!("shm://{}", unique("sealed")), "shm://");
}

#[test]
fn eight_megabytes_pass_a_layer_that_seals_over_udp() {
    let open = |address: &str| UdpPort::open(&address.parse()?);
    eight_megabytes_pass(open, "udp://127.0.0.1:0".to_owned(), "udp://127.0.0.1:0");
}

#[test]
fn a_client_without_the_layer_gets_no_session() {
    let at = format!("shm://{}", unique("sealed"));
    let server_at = at.clone();
    let open = move || Ok(seal(ShmPort::open(&server_at.parse()?)?, KEY, 1)?);
    let server = echo(config()).server().over(open).start().unwrap();
    let quick = Config { connect_timeout_ns: 50_000_000, ..config() };
    let mut rpc = Rpc::open_with(&Nexus::builder().config(quick).build().unwrap(), "shm://").unwrap();
    assert!(matches!(rpc.connect(&at), Err(Error::Connect(_))));
    drop(rpc);
    let report = server.stop().unwrap().remove(0);
    assert!(report.port_stats.dropped(Dropped::BadSeal) > 0);
    assert_eq!(report.stats.dropped_total(), 0);
}

/// Notes the peer that appeared last, and those that were forgotten.
#[derive(Clone, Default)]
struct RecordingLayer(Rc<RefCell<(Option<Peer>, Vec<Peer>)>>);

impl Layer for RecordingLayer {
    fn meet(&mut self, peer: Peer, _: &mut dyn FnMut() -> String) {
        self.0.borrow_mut().0 = Some(peer);
    }

    fn forgotten(&mut self, peer: Peer) {
        self.0.borrow_mut().1.push(peer);
    }
}

impl RecordingLayer {
    /// Returns the peer that appeared last, which must not have been forgotten.
    fn last_peer(&self) -> Peer {
        let (met, forgotten) = &mut *self.0.borrow_mut();
        let peer = met.take().expect("somebody is connected");
        assert!(!forgotten.contains(&peer), "it is connected");
        peer
    }

    fn wait_until_forgotten(&self, peer: Peer, turns: &mut [&mut Record]) {
        let began = Instant::now();
        while !self.0.borrow().1.contains(&peer) {
            assert!(began.elapsed() < PATIENCE, "it is kept for ever");
            turns.iter_mut().for_each(|rpc| _ = rpc.turn());
        }
    }
}

type Record = sinew::rpc::Rpc<Layered<ShmPort, RecordingLayer>, HostClock>;

/// Opens an endpoint over shared memory, with a layer that hears of its peers.
fn recorded(address: &str) -> (Record, RecordingLayer) {
    let layer = RecordingLayer::default();
    let port = Layered::wrap(ShmPort::open(&address.parse().unwrap()).unwrap(), layer.clone()).unwrap();
    (sinew::endpoint(&echo(config()), port).unwrap(), layer)
}

fn connected(client: &mut Record, server: &mut Record) -> SessionId {
    let session = client.begin_connect(&server.address()).unwrap();
    let began = Instant::now();
    while !matches!(client.poll_event(), Some(SessionEvent::Connected(id)) if id == session) {
        assert!(began.elapsed() < PATIENCE, "no session");
        client.turn();
        server.turn();
    }
    session
}

#[test]
fn a_layer_over_shared_memory_hears_that_who_came_to_us_and_whom_we_went_to_is_forgotten() {
    let (mut server, at_server) = recorded(&format!("shm://{}", unique("heard")));
    let (mut client, at_client) = recorded("shm://");
    // The client ends its session, and comes back.
    let session = connected(&mut client, &mut server);
    let peers = [&at_client, &at_server].map(RecordingLayer::last_peer);
    assert!(client.disconnect(session));
    at_client.wait_until_forgotten(peers[0], &mut [&mut client, &mut server]);
    at_server.wait_until_forgotten(peers[1], &mut [&mut client, &mut server]);
    connected(&mut client, &mut server);
    // The client goes.
    let peer = at_server.last_peer();
    drop(client);
    at_server.wait_until_forgotten(peer, &mut [&mut server]);
    // The server goes.
    let (mut client, at_client) = recorded("shm://");
    connected(&mut client, &mut server);
    let peer = at_client.last_peer();
    drop(server);
    at_client.wait_until_forgotten(peer, &mut [&mut client]);
}

#[test]
fn a_port_that_no_session_could_open_over_is_refused() {
    let network = Network::new(ManualClock::new());
    let port =
        |packet_len_max| network.port_with("", LoopbackConfig { packet_len_max, ..LoopbackConfig::default() }).unwrap();
    assert!(Rpc::over(&Nexus::client(), port(PACKET_LEN_MIN)).is_ok());
    let error = Rpc::over(&Nexus::client(), port(PACKET_LEN_MIN - 1)).err().unwrap();
    assert!(matches!(error, Error::Port(PortError::PacketsTooSmall { overhead: 0, .. })), "{error}");
    // A server reports the error that opening its port returned.
    let narrow = || {
        let network = Network::new(ManualClock::new());
        let config = LoopbackConfig { packet_len_max: PACKET_LEN_MIN + SEAL_LEN - 1, ..LoopbackConfig::default() };
        Ok(seal(network.port_with("", config)?, KEY, 1)?)
    };
    let error = echo(config()).server().over(narrow).start().err().unwrap();
    assert!(matches!(error, Error::Port(PortError::PacketsTooSmall { overhead: SEAL_LEN, .. })), "{error}");
}

#[test]
fn a_server_has_addresses_and_ports_of_its_own_side_by_side() {
    let (own, known) = (format!("shm://{}", unique("own")), format!("shm://{}", unique("known")));
    let at = own.clone();
    let server = echo(config()).server().over(move || Ok(ShmPort::open(&at.parse()?)?)).at(&known);
    let server = server.over_on_cpu(|| Ok(UdpPort::open(&"udp://127.0.0.1:0".parse()?)?), 0).start().unwrap();
    let addresses: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(addresses[..2], [own, known]);
    for address in &addresses {
        let mut rpc = client(address);
        let session = rpc.connect(address).unwrap();
        assert_eq!(rpc.call(session, ECHO, "over any port").unwrap().to_string(), "over any port");
    }
    server.stop().unwrap();
}

/// Does what a client library does, with whatever endpoint it is given.
fn use_endpoint(endpoint: &mut (impl Endpoint + ?Sized), address: &str) {
    let session = endpoint.connect(address).unwrap();
    assert_eq!(*endpoint.call(session, ECHO, b"at once").unwrap(), *b"at once");
    endpoint.prefetch_session(session);
    let calls = [0u64, 1].map(|tag| {
        let (mut request, response) = (endpoint.alloc(5).unwrap(), endpoint.alloc(5).unwrap());
        request.fill(b"later").unwrap();
        endpoint.enqueue_request(session, ECHO, request, response, tag.into()).unwrap()
    });
    assert!(endpoint.cancel(calls[1]));
    let mut completions = Vec::new();
    while completions.len() < 2 {
        endpoint.turn_or_wait().unwrap();
        completions.extend(std::iter::from_fn(|| endpoint.poll_completion()));
    }
    completions.sort_by_key(|completion| completion.tag);
    assert_eq!((&completions[0].response[..], completions[1].result.is_err()), (&b"later"[..], true));
    endpoint.waker().wake();
    endpoint.wait(Some(60_000_000_000)).unwrap();
    assert!(endpoint.disconnect(session) && endpoint.address().scheme() == "udp");
    while !matches!(endpoint.poll_event(), Some(SessionEvent::Disconnected(id)) if id == session) {
        endpoint.turn();
    }
    let again = endpoint.begin_connect(&address.parse().unwrap()).unwrap();
    while !matches!(endpoint.poll_event(), Some(SessionEvent::Connected(id)) if id == again) {
        endpoint.turn();
    }
    assert_eq!((endpoint.sessions(), endpoint.stats().calls_completed), (1, 2));
    assert!(endpoint.port_stats().tx_packets > 0 && endpoint.config().slots > 0);
}

#[test]
fn a_library_takes_any_endpoint() {
    let server = echo(config()).server().at("udp://127.0.0.1:0").start().unwrap();
    let address = server.addresses()[0].to_string();
    let nexus = Nexus::builder().config(config()).build().unwrap();
    let port = || UdpPort::open(&"udp://".parse().unwrap()).unwrap();

    use_endpoint(&mut client("udp://"), &address);
    use_endpoint(&mut Rpc::over(&nexus, port()).unwrap(), &address);
    use_endpoint(&mut sinew::endpoint(&nexus, port()).unwrap(), &address);
    let mut boxed: Box<dyn Endpoint> = Box::new(client("udp://"));
    use_endpoint(&mut *boxed, &address);
    drop(boxed);
    let mut boxed: Box<dyn Endpoint> = Box::new(sinew::endpoint(&nexus, port()).unwrap());
    use_endpoint(&mut &mut boxed, &address);
    drop(boxed);
    server.stop().unwrap();
}
