//! Tests with peers that break the rules.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use sinew_conformance::unique;
use sinew_fabric::{
    Dropped, Generator, PacketPort, PacketRx, PacketTx, Peer, PeerLoss, PortEvent, RxBurst, SeededGenerator, TxData,
    TxPacket,
};
use sinew_mem::ring::{self, BOARD_BYTES, Words};
use sinew_mem::{Access, Region};

use crate::hello::{self, Hello, Message};
use crate::link::Lines;
use crate::names;
use crate::{Hub, LINKS_MAX, PACKET_LEN_MAX, ShmPort, UPKEEP_EVERY_NS};

fn server(test: &str) -> ShmPort {
    let address = format!("shm://{}?ring=10&arena=1048576", unique(&format!("hostile-{test}")));
    ShmPort::open(&address.parse().unwrap()).unwrap()
}

fn connect(server: &ShmPort) -> OwnedFd {
    let address = server.address();
    names::connect(&address.to_string(), address.rest()).unwrap().socket
}

/// Runs `count` turns of the port, with an upkeep pass in each; returns the senders and lengths of the packets.
fn turns(port: &mut ShmPort, now_ns: &mut u64, count: usize) -> Vec<(Peer, usize)> {
    let mut got = Vec::new();
    for _ in 0..count {
        *now_ns += UPKEEP_EVERY_NS;
        let mut burst = RxBurst::new(*now_ns);
        port.split().0.receive(&mut burst);
        got.extend(burst.packets.iter().map(|packet| (packet.from, packet.len())));
    }
    got
}

const LINES: Lines = Lines { to_acceptor: 64, to_initiator: 8 };
const HELLO: Hello = Hello { lines_to_acceptor: 64, lines_to_initiator: 8, arena_bytes: 65536, bit: 3 };

/// A peer made of bare memory.
struct HostilePeer {
    socket: OwnedFd,
    link: Arc<Region>,
    fds: [OwnedFd; 3],
}

impl HostilePeer {
    fn new(server: &ShmPort) -> Self {
        let (link, link_fd) = Region::shared("link", LINES.bytes(), Access::ReadWrite).unwrap();
        let (_, arena_fd) = Region::shared("arena", HELLO.arena_bytes, Access::ReadOnly).unwrap();
        let (_, board_fd) = Region::shared("board", BOARD_BYTES, Access::ReadWrite).unwrap();
        Self { socket: connect(server), link: Arc::new(link), fds: [link_fd, arena_fd, board_fd] }
    }

    fn greet(&self, hello: &Hello) {
        hello::send_hello(&self.socket, hello, self.fds.each_ref().map(AsFd::as_fd)).unwrap();
    }

    /// The words of the ring that leads to the port.
    fn ring(&self) -> Words {
        Words::of_region(&self.link, 256, ring::bytes_for(LINES.to_acceptor)).unwrap()
    }

    fn refused(&self) -> bool {
        matches!(hello::receive(&self.socket), Message::Refused)
    }
}

#[test]
fn hellos_that_make_no_sense_are_refused_and_counted() {
    let mut server = server("hello");
    let mut now_ns = 0;
    let unsealed = || {
        let fd = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        fd
    };
    let small = || Region::shared("small", 4096, Access::ReadWrite).unwrap().1;
    let read_only = || Region::shared("read-only", 1 << 20, Access::ReadOnly).unwrap().1;
    let device = || OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let write_sealed = || {
        let fd = unsealed();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
        fd
    };
    type Kind<'a> = (&'a str, &'a dyn Fn() -> OwnedFd, &'a [usize]);
    let kinds: [Kind; 5] = [
        ("unsealed", &unsealed, &[0, 1, 2]),
        ("small", &small, &[0, 1]),
        ("read-only", &read_only, &[0, 2]),
        ("device", &device, &[0, 1, 2]),
        ("write-sealed", &write_sealed, &[0, 2]),
    ];
    let mut expected = 0;
    for (kind, make, places) in kinds {
        for &place in places {
            let mut hostile = HostilePeer::new(&server);
            hostile.fds[place] = make();
            hostile.greet(&HELLO);
            turns(&mut server, &mut now_ns, 2);
            expected += 1;
            assert!(hostile.refused(), "{kind} at {place}");
            assert_eq!(server.stats().dropped(Dropped::Malformed), expected, "{kind} at {place}");
        }
    }
    for bytes in [&b"b"[..], b"hello", &[0; 40], &[255; 41], &[7; 1000]] {
        let hostile = HostilePeer::new(&server);
        rustix::net::send(&hostile.socket, bytes, rustix::net::SendFlags::empty()).unwrap();
        turns(&mut server, &mut now_ns, 2);
        expected += 1;
        assert_eq!(server.stats().dropped(Dropped::Malformed), expected, "{bytes:?}");
    }
    assert_eq!(server.turned_away(), expected);
    // Two more are turned away: one without a hello, and one whose hello suited a previous owner of the name.
    drop(HostilePeer::new(&server));
    turns(&mut server, &mut now_ns, 2);
    let hostile = HostilePeer::new(&server);
    hostile.greet(&Hello { lines_to_acceptor: 32, ..HELLO });
    turns(&mut server, &mut now_ns, 2);
    assert!(hostile.refused(), "a ring smaller than the port wants");
    assert_eq!(server.turned_away(), expected + 2);
    assert_eq!(server.stats().dropped(Dropped::Malformed), expected);
    assert_eq!(server.links().0, 0);
    let good = HostilePeer::new(&server);
    good.greet(&HELLO);
    turns(&mut server, &mut now_ns, 2);
    assert_eq!(server.links().0, 1);
}

#[test]
fn strangers_that_say_nothing_are_bounded_and_time_out() {
    let mut server = server("silent");
    let mut now_ns = 0;
    let silent: Vec<_> = (0..70)
        .map(|_| {
            let socket = connect(&server);
            turns(&mut server, &mut now_ns, 1);
            socket
        })
        .collect();
    assert_eq!(server.turned_away(), 6, "the oldest went");
    now_ns += 2_000_000_000;
    turns(&mut server, &mut now_ns, 1);
    assert_eq!(server.turned_away(), 70);
    drop(silent);
}

#[test]
fn hostile_ring_contents_are_survived_and_cost_the_link() {
    let mut server = server("ring");
    let mut now_ns = 0;
    let mut random = SeededGenerator::new(5);
    let mut lost = 0;
    for round in 0..60 {
        let hostile = HostilePeer::new(&server);
        hostile.greet(&HELLO);
        turns(&mut server, &mut now_ns, 2);
        let ring = hostile.ring();
        let mut position = 0u64;
        for _ in 0..300 {
            let index = random.below(ring.count() as u64) as usize;
            let word = match round % 3 {
                0 => random.next_u64(),
                // Words that are nearly valid: a position, a length, a kind.
                _ => position | random.below(260) << 32 | random.below(5) << 48,
            };
            let index = if round % 3 == 2 { 16 + (position as usize % 64) * 8 } else { index };
            // SAFETY: the index lies in the ring, and the test is its only writer.
            unsafe { ring.word(index) }.store(word, Ordering::Release);
            let got = turns(&mut server, &mut now_ns, 1);
            for (_, len) in &got {
                assert!(*len <= PACKET_LEN_MAX);
                position += (*len as u64 + 8).div_ceil(64).min(4);
            }
            assert!(got.len() <= 64);
        }
        drop(hostile);
        turns(&mut server, &mut now_ns, 4);
        while let Some(PortEvent::PeerLost { .. }) = server.poll_event() {
            lost += 1;
        }
        assert_eq!(server.links().0, 0, "round {round}");
    }
    assert_eq!(lost, 60);
}

#[test]
fn descriptions_of_memory_that_is_not_there_are_dropped_and_counted() {
    let mut server = server("far");
    let mut now_ns = 0;
    let hostile = HostilePeer::new(&server);
    hostile.greet(&HELLO);
    turns(&mut server, &mut now_ns, 2);
    // SAFETY: the hostile peer is the producer of this ring.
    let mut producer = unsafe { ring::Producer::new(hostile.ring(), 64) }.unwrap();
    let end = HELLO.arena_bytes as u64;
    let bad = [(end, 1), (end - 10, 11), (u64::MAX, 100), (0, 0), (0, u32::MAX), (0, PACKET_LEN_MAX as u32 + 1)];
    for (count, (offset, len)) in bad.into_iter().enumerate() {
        producer.push_far(b"", ring::Far { offset, len }).unwrap();
        producer.submit();
        assert!(turns(&mut server, &mut now_ns, 1).is_empty());
        assert_eq!(server.stats().dropped(Dropped::Malformed), count as u64 + 1);
    }
    producer.push_far(b"", ring::Far { offset: end - 10, len: 10 }).unwrap();
    producer.submit();
    assert_eq!(turns(&mut server, &mut now_ns, 1).len(), 1);
}

#[test]
fn a_receiver_that_lies_about_what_it_took_loses_the_link() {
    let mut server = server("head");
    let mut now_ns = 0;
    let hostile = HostilePeer::new(&server);
    hostile.greet(&HELLO);
    // SAFETY: the hostile peer is the producer of this ring.
    let mut producer = unsafe { ring::Producer::new(hostile.ring(), 64) }.unwrap();
    producer.push(b"hello", b"").unwrap();
    producer.submit();
    let peer = turns(&mut server, &mut now_ns, 2)[0].0;
    let offset = 256 + ring::bytes_for(LINES.to_acceptor);
    let back = Words::of_region(&hostile.link, offset, ring::bytes_for(LINES.to_initiator)).unwrap();
    // SAFETY: the first word of the ring is the position given back.
    unsafe { back.word(0) }.store(1 << 50, Ordering::Release);
    for _ in 0..20 {
        server.split().1.push(TxPacket { to: peer, head: b"x", data: TxData::None });
    }
    server.split().1.submit();
    assert!(server.stats().dropped(Dropped::Full) > 0);
    turns(&mut server, &mut now_ns, 2);
    assert_eq!(server.poll_event(), Some(PortEvent::PeerLost { peer, loss: PeerLoss::Closed }));
}

#[test]
fn whoever_breaks_the_rules_of_a_link_is_cut_off_for_certain() {
    let welcome = |hostile: &HostilePeer| {
        let [_, arena, board] = hostile.fds.each_ref().map(AsFd::as_fd);
        hello::send_welcome(&hostile.socket, &HELLO, [arena, board]).unwrap();
    };
    let malformed = |hostile: &HostilePeer| {
        rustix::net::send(&hostile.socket, b"hello", rustix::net::SendFlags::empty()).unwrap();
    };
    let again = |hostile: &HostilePeer| hostile.greet(&HELLO);
    for (index, breaks) in [&welcome as &dyn Fn(&HostilePeer), &malformed, &again].into_iter().enumerate() {
        let mut server = server("breaker");
        let mut now_ns = 0;
        let hostile = HostilePeer::new(&server);
        hostile.greet(&HELLO);
        turns(&mut server, &mut now_ns, 2);
        assert_eq!(server.links().0, 1);
        breaks(&hostile);
        turns(&mut server, &mut now_ns, 2);
        let Some(PortEvent::PeerLost { loss, .. }) = server.poll_event() else { panic!("{index}") };
        assert_eq!((loss, server.poll_event(), server.links().0), (PeerLoss::Closed, None, 0), "{index}");
        assert_eq!(server.stats().dropped(Dropped::Malformed), 1, "{index}");
    }
}

#[test]
fn a_port_that_has_no_link_left_refuses() {
    let hub = Hub::new();
    let in_hub = (hub.port("full?arena=1048576").unwrap(), hub.port("?arena=1048576").unwrap());
    let apart = (server("full"), ShmPort::open(&"shm://?arena=1048576".parse().unwrap()).unwrap());
    for (kind, (mut server, mut client)) in [("hub", in_hub), ("process", apart)] {
        let mut now_ns = 0;
        server.split().0.links.resize_with(LINKS_MAX, || None);
        let peer = client.resolve(&server.address()).unwrap();
        turns(&mut server, &mut now_ns, 2);
        turns(&mut client, &mut now_ns, 2);
        assert_eq!(client.poll_event(), Some(PortEvent::PeerLost { peer, loss: PeerLoss::Refused }), "{kind}");
        assert_eq!((client.links().0, server.links().0), (0, 0), "{kind}");
    }
}

#[test]
fn a_closed_peer_that_goes_on_sending_is_not_listened_to_for_ever() {
    let mut server = server("zombie");
    let mut now_ns = 0;
    let hostile = HostilePeer::new(&server);
    hostile.greet(&HELLO);
    turns(&mut server, &mut now_ns, 2);
    rustix::net::shutdown(&hostile.socket, rustix::net::Shutdown::Both).unwrap();
    // SAFETY: the hostile peer is the producer of this ring.
    let mut producer = unsafe { ring::Producer::new(hostile.ring(), 64) }.unwrap();
    let mut sent = 0;
    while server.links().0 > 0 {
        if producer.push(b"more", b"").is_ok() {
            sent += 1;
        }
        producer.submit();
        turns(&mut server, &mut now_ns, 1);
        assert!(sent < 500);
    }
}

#[test]
fn a_link_may_be_found_empty_any_number_of_times() {
    let hub = Hub::new();
    let mut server = hub.port("server").unwrap();
    let mut clients = [hub.port("?").unwrap(), hub.port("?").unwrap()];
    let peers = clients.each_mut().map(|client| client.resolve(&server.address()).unwrap());
    let mut now_ns = 0;
    turns(&mut server, &mut now_ns, 2);
    for link in server.split().0.links.iter_mut().flatten() {
        link.empty_polls = u32::MAX;
    }
    assert_eq!(turns(&mut server, &mut now_ns, 2), []);
    let (_, tx) = clients[0].split();
    tx.push(TxPacket { to: peers[0], head: b"heard", data: TxData::None });
    tx.submit();
    assert_eq!(turns(&mut server, &mut now_ns, 2).len(), 1);
}
