//! Frames on a port's interface that are not for the port, or not valid.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
use sinew_fabric::{Dropped, PacketPort, PacketRx, PacketTx, Peer, PortError, RxBurst, TxData, TxPacket};
use sinew_wire::checksum::Sum;
use sinew_wire::udp::{Endpoint, V4_HEADERS_LEN, write_headers};
use sinew_xdp::testbed::{Pair, PairOptions, Side};
use sinew_xdp::{FrameOptions, InterfaceOptions, Memory, XdpFrames, XdpPort};

mod common;

const PATIENCE: Duration = Duration::from_secs(10);

/// Receives packets until there are `count`, or patience ends.
fn collect(port: &mut XdpPort, count: usize) -> Vec<(Peer, Vec<u8>)> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while all.len() < count && began.elapsed() < PATIENCE {
        let mut burst = RxBurst::new(began.elapsed().as_nanos() as u64);
        port.split().0.receive(&mut burst);
        all.extend(burst.packets.iter().map(|packet| (packet.from, packet.head.to_vec())));
        let is_idle = burst.packets.is_empty();
        drop(burst);
        if is_idle {
            port.wait(Some(1_000_000)).unwrap();
        }
    }
    all
}

fn send(port: &mut XdpPort, to: Peer, bytes: &[u8]) {
    let (_, tx) = port.split();
    tx.push(TxPacket { to, head: bytes, data: TxData::None });
    tx.submit();
}

fn socket(pair: &Pair, side: Side, ip: IpAddr) -> UdpSocket {
    let socket = pair.at(side).within(|| UdpSocket::bind((ip, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The addresses of a side, as far as the machine has them.
fn addresses(pair: &Pair, side: Side) -> Vec<IpAddr> {
    let all: [IpAddr; 2] = [pair.options().v4(side).into(), pair.options().v6(side).into()];
    all.into_iter().filter(|&ip| pair.at(side).within(|| UdpSocket::bind((ip, 0)).is_ok()).unwrap()).collect()
}

#[test]
fn kernel_sockets_and_ports_understand_each_other() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    for (a, b) in addresses(&pair, Side::A).into_iter().zip(addresses(&pair, Side::B)) {
        let socket = socket(&pair, Side::A, a);
        let mut port = common::port(&pair, Side::B, &SocketAddr::new(b, 0).to_string());
        for len in [0, 1, 33, 1000, 1400] {
            let sent: Vec<u8> = (0..len).map(|at| at as u8).collect();
            socket.send_to(&sent, port.local_addr()).unwrap();
            let got = collect(&mut port, 1);
            assert_eq!(got.len(), 1, "{len} bytes from {a}: {:?}", port.stats());
            assert_eq!(got[0].1, sent);
            send(&mut port, got[0].0, &sent);
            let mut buffer = [0; 2000];
            assert_eq!(socket.recv_from(&mut buffer).unwrap(), (len, port.local_addr()));
            assert_eq!(buffer[..len], sent);
        }
        assert_eq!(port.stats().dropped_total(), 0);
    }
}

#[test]
fn a_port_finds_a_neighbour_whom_the_kernel_does_not_know_yet() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    for (a, b) in addresses(&pair, Side::A).into_iter().zip(addresses(&pair, Side::B)) {
        let socket = socket(&pair, Side::B, b);
        let mut port = common::port(&pair, Side::A, &SocketAddr::new(a, 0).to_string());
        let address = format!("xdp://anything/{}", socket.local_addr().unwrap()).parse().unwrap();
        let to = port.resolve(&address).unwrap();
        send(&mut port, to, b"hello");
        let mut buffer = [0; 100];
        assert_eq!(socket.recv_from(&mut buffer).unwrap(), (5, port.local_addr()));
    }
}

#[test]
fn a_port_answers_for_an_address_that_the_kernel_does_not_have() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    for (a, own) in addresses(&pair, Side::A).into_iter().zip(["10.83.0.77", "fd83::77"]) {
        let own: IpAddr = own.parse().unwrap();
        let socket = socket(&pair, Side::A, a);
        let mut port = common::port(&pair, Side::B, &SocketAddr::new(own, 7000).to_string());
        // The kernel asks who has the address, and then sends.
        socket.send_to(b"ping", port.local_addr()).unwrap();
        let got = collect(&mut port, 1);
        assert_eq!(got.len(), 1, "{:?}", port.stats());
        send(&mut port, got[0].0, b"pong");
        let mut buffer = [0; 100];
        assert_eq!(socket.recv_from(&mut buffer).unwrap(), (4, port.local_addr()));
        // The port asks who has an address, and is answered by the kernel there.
        let other = self::socket(&pair, Side::A, a);
        drop(port);
        let own = match own {
            IpAddr::V4(_) => "10.83.0.78".parse().unwrap(),
            IpAddr::V6(_) => "fd83::78".parse().unwrap(),
        };
        let mut port = common::port(&pair, Side::B, &SocketAddr::new(own, 0).to_string());
        let address = format!("xdp://anything/{}", other.local_addr().unwrap()).parse().unwrap();
        let to = port.resolve(&address).unwrap();
        send(&mut port, to, b"hello");
        assert_eq!(other.recv_from(&mut buffer).unwrap(), (5, port.local_addr()));
    }
}

#[test]
fn what_a_kernel_left_unfinished_is_counted_as_that() {
    let Some(pair) = common::pair(PairOptions { finished: false, ..PairOptions::default() }) else { return };
    let a = IpAddr::from(pair.options().v4(Side::A));
    let socket = socket(&pair, Side::A, a);
    let mut port = common::port(&pair, Side::B, &format!("{}:0", pair.options().v4(Side::B)));
    socket.send_to(b"hello", port.local_addr()).unwrap();
    let began = Instant::now();
    while port.stats().dropped(Dropped::Unfinished) == 0 && began.elapsed() < PATIENCE {
        let mut burst = RxBurst::new(0);
        port.split().0.receive(&mut burst);
        assert!(burst.packets.is_empty());
        drop(burst);
        port.wait(Some(1_000_000)).unwrap();
    }
    assert_eq!(port.stats().dropped(Dropped::Unfinished), 1);
}

#[test]
fn the_command_that_has_a_kernel_finish_is_named_where_the_other_end_is_at_hand() {
    let Some(pair) = common::pair(PairOptions { finished: false, ..PairOptions::default() }) else { return };
    let at_a = |act: &dyn Fn() -> Option<String>| pair.at(Side::A).within(act).unwrap();
    let command = |name: &str| sinew_xdp::finishing_command(name).unwrap();
    assert_eq!(at_a(&|| command(Side::A.interface())), None, "the other end is in another namespace");
    assert_eq!(at_a(&|| command("lo")), None, "it is no virtual pair");
    at_a(&|| {
        common::ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
        None
    });
    assert_eq!(at_a(&|| command("near")).as_deref(), Some("ethtool -K far tx off gso off tso off"));
    assert!(pair.at(Side::A).within(|| sinew_xdp::finishing_command("nobody")).unwrap().is_err());
}

/// A frame for the port at B, from the frame port at A.
fn good_frame(from: &XdpFrames, to: &XdpPort, mac: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let from = Endpoint { mac: from.mac().0, address: "10.83.0.1".parse().unwrap(), port: 9 };
    let to = Endpoint { mac, address: to.local_addr().ip(), port: to.local_addr().port() };
    let mut frame = vec![0; V4_HEADERS_LEN];
    frame.extend(payload);
    write_headers(&mut frame, &from, &to);
    frame
}

fn mend(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = Sum::default().with(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum);
}

#[test]
fn hostile_frames_are_counted_by_reason_and_disturb_nobody() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let mut a = common::frames(&pair, Side::A);
    let mut port = common::port(&pair, Side::B, &format!("{}:7000", pair.options().v4(Side::B)));
    let good = good_frame(&a, &port, [2; 6], b"hello");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let cases: Vec<(Vec<u8>, Dropped)> = vec![
        (changed(&|frame| frame[44] ^= 1), Dropped::BadChecksum),
        (changed(&|frame| frame[24] ^= 1), Dropped::BadChecksum),
        // The first fragment of a packet.
        (
            changed(&|frame| {
                frame[20] = 0x20;
                mend(frame);
            }),
            Dropped::Fragment,
        ),
        // Longer than the frame, and shorter than its header, by the IP header's length.
        (
            changed(&|frame| {
                frame[17] = 200;
                mend(frame);
            }),
            Dropped::Malformed,
        ),
        (
            changed(&|frame| {
                frame[17] = 10;
                mend(frame);
            }),
            Dropped::Malformed,
        ),
        (changed(&|frame| frame[39] = 3), Dropped::Malformed),
        (changed(&|frame| frame[39] = 200), Dropped::Malformed),
        (changed(&|frame| frame.truncate(44)), Dropped::Malformed),
        // From a group, and from ourselves.
        (
            changed(&|frame| {
                frame[26] = 239;
                mend(frame);
            }),
            Dropped::Malformed,
        ),
        (good_frame_from_self(&port), Dropped::Malformed),
        (changed(&|frame| frame[6] |= 1), Dropped::Malformed),
    ];
    let (_, tx) = a.split();
    for (frame, _) in &cases {
        tx.push(frame, &[]);
    }
    // Not for this port: the kernel gets them.
    tx.push(&changed(&|frame| frame[37] ^= 1), &[]);
    tx.push(&changed(&|frame| frame[33] ^= 4), &[]);
    tx.push(&good[..41], &[]);
    tx.push(
        &changed(&|frame| {
            frame[21] = 1;
            mend(frame);
        }),
        &[],
    );
    tx.push(&good, &[]);
    tx.submit();
    let got = collect(&mut port, 1);
    assert_eq!(got.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), [b"hello"], "{:?}", port.stats());
    for reason in Dropped::ALL {
        let expected = cases.iter().filter(|(_, why)| *why == reason).count() as u64;
        assert_eq!(port.stats().dropped(reason), expected, "{reason:?}");
    }
}

fn good_frame_from_self(port: &XdpPort) -> Vec<u8> {
    let end = Endpoint { mac: [2; 6], address: port.local_addr().ip(), port: port.local_addr().port() };
    let mut frame = vec![0; V4_HEADERS_LEN];
    frame.extend(b"hello");
    write_headers(&mut frame, &end, &end);
    frame
}

#[test]
fn a_frame_is_passed_on_between_ports_of_one_memory_without_a_copy() {
    let alike = PairOptions { addresses: false, ..PairOptions::default() };
    let (Some(left), Some(right)) = (common::pair(alike), common::pair(alike)) else { return };
    let memory = Memory::new(8192, 2048).unwrap();
    let open = |pair: &Pair, side: Side| {
        let opened = pair.at(side).within(|| XdpFrames::open(side.interface(), &memory, &FrameOptions::default()));
        opened.unwrap().unwrap()
    };
    let (mut from, mut to) = (open(&left, Side::B), open(&right, Side::A));
    assert!(from.caps().forwards_in_place);
    let (mut far, mut near) = (common::frames(&right, Side::B), common::frames(&left, Side::A));
    let frame: Vec<u8> = [&[2; 12][..], &[0x88, 0xB5], &[7; 90]].concat();
    near.split().1.push(&frame, &[]);
    near.split().1.submit();
    from.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
    let mut burst = FrameBurst::new(0);
    from.split().0.receive(&mut burst);
    let free = memory.free_chunks();
    for mut frame in burst.frames.drain(..) {
        frame.bytes_mut()[20] = 9;
        to.split().1.forward(frame);
    }
    drop(burst);
    assert_eq!(memory.free_chunks(), free, "a copy takes a chunk of its own");
    to.split().1.submit();
    far.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
    let mut burst = FrameBurst::new(0);
    far.split().0.receive(&mut burst);
    let mut expected = frame.clone();
    expected[20] = 9;
    assert_eq!(burst.frames.iter().map(|frame| frame.bytes().to_vec()).collect::<Vec<_>>(), [expected]);
    drop(burst);
    // Once the ports are gone, all of it is free again.
    drop((from, to));
    assert_eq!(memory.free_chunks(), memory.chunks());
}

#[test]
fn forwarding_one_way_for_long_uses_up_nothing() {
    let alike = PairOptions { addresses: false, ..PairOptions::default() };
    let (Some(left), Some(right)) = (common::pair(alike), common::pair(alike)) else { return };
    let memory = Memory::new(2048, 2048).unwrap();
    let options = FrameOptions {
        interface: InterfaceOptions { ring: 256, ..InterfaceOptions::default() },
        ..FrameOptions::default()
    };
    let open = |pair: &Pair, side: Side| {
        pair.at(side).within(|| XdpFrames::open(side.interface(), &memory, &options)).unwrap().unwrap()
    };
    let (mut from, mut to) = (open(&left, Side::B), open(&right, Side::A));
    let (mut far, mut near) = (common::frames(&right, Side::B), common::frames(&left, Side::A));
    let frame: Vec<u8> = [&[2; 12][..], &[0x88, 0xB5], &[7; 90]].concat();
    for round in 0..200 {
        (0..32).for_each(|_| near.split().1.push(&frame, &[]));
        near.split().1.submit();
        let (began, mut passed, mut arrived) = (Instant::now(), 0, 0);
        while arrived < 32 {
            assert!(
                began.elapsed() < PATIENCE,
                "round {round}: {passed} passed, {arrived} arrived; {} free",
                memory.free_chunks()
            );
            let mut burst = FrameBurst::new(0);
            from.split().0.receive(&mut burst);
            passed += burst.frames.len();
            burst.frames.drain(..).for_each(|frame| to.split().1.forward(frame));
            drop(burst);
            to.split().1.submit();
            let mut burst = FrameBurst::new(0);
            far.split().0.receive(&mut burst);
            arrived += burst.frames.len();
        }
    }
}

#[test]
fn a_frame_port_may_take_only_what_is_for_some_addresses() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let memory = Memory::new(4096, 2048).unwrap();
    let options = FrameOptions { only: vec!["10.83.0.99".parse().unwrap()], ..FrameOptions::default() };
    let open = || pair.at(Side::B).within(|| XdpFrames::open(Side::B.interface(), &memory, &options)).unwrap();
    let mut port = open().unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, PortError::Taken { .. }), "{error}");
    let socket = socket(&pair, Side::A, pair.options().v4(Side::A).into());
    // The kernel is unaffected: its own address answers. The other address is asked for, and the question comes to the
    // port.
    let kernel = self::socket(&pair, Side::B, pair.options().v4(Side::B).into());
    socket.send_to(b"hello", kernel.local_addr().unwrap()).unwrap();
    assert_eq!(kernel.recv_from(&mut [0; 100]).unwrap().0, 5);
    socket.send_to(b"hello", "10.83.0.99:1").unwrap();
    port.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
    let mut burst = FrameBurst::new(0);
    port.split().0.receive(&mut burst);
    assert_eq!(burst.frames.len(), 1);
    assert_eq!(burst.frames[0].bytes()[12..14], [0x08, 0x06], "ARP");
}

#[test]
fn a_place_that_is_taken_stays_whose_it_is() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let ip = pair.options().v4(Side::B);
    let open = |place: String| {
        let address = format!("xdp://{}/{place}", Side::B.interface()).parse().unwrap();
        pair.at(Side::B).within(|| XdpPort::open(&address)).unwrap()
    };
    let socket = socket(&pair, Side::B, ip.into());
    let error = open(socket.local_addr().unwrap().to_string()).unwrap_err();
    assert!(matches!(error, PortError::Taken { .. }), "a socket's: {error}");
    let port = open(format!("{ip}:7000")).unwrap();
    assert!(matches!(open(format!("{ip}:7000")), Err(PortError::Taken { .. })), "another port's");
    assert!(pair.at(Side::B).within(|| UdpSocket::bind((ip, 7000))).unwrap().is_err(), "a port's is no socket's");
    let not_held = open("10.83.0.66:7000".to_owned()).unwrap();
    assert!(matches!(open("10.83.0.66:7000".to_owned()), Err(PortError::Taken { .. })));
    let error = open("10.83.0.66:7001".to_owned()).unwrap_err();
    assert!(matches!(error, PortError::Taken { .. }), "only one port can answer for an address: {error}");
    drop((port, not_held));
    open(format!("{ip}:7000")).unwrap();
    open("10.83.0.66:7000".to_owned()).unwrap();
}

#[test]
fn an_address_that_cannot_be_says_why() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let error = |place: &str| {
        let address = format!("xdp://{place}").parse().unwrap();
        pair.at(Side::A).within(|| XdpPort::open(&address)).unwrap().unwrap_err().to_string()
    };
    for (place, says) in [
        ("no-such-if/10.0.0.1:1", "no-such-if"),
        ("lo/10.83.0.1:1", "another interface"),
        ("veth-a/0.0.0.0:1", "not the address of one host"),
        ("veth-a/10.83.0.1:1?mode=sideways", "native"),
        ("veth-a/[fd83::77]:1?mtu=1279", "1280"),
    ] {
        assert!(error(place).contains(says), "{place}: {}", error(place));
    }
    let mut port = common::port(&pair, Side::A, "10.83.0.1:0");
    for (place, says) in [
        ("veth-a/10.83.0.1:9", "oneself"),
        ("veth-a/[fd83::2]:9", "other version"),
        ("veth-a/10.83.0.2", "whom to call"),
        ("veth-a/10.83.0.2:0", "whom to call"),
    ] {
        let error = port.resolve(&format!("xdp://{place}").parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(says), "{place}: {error}");
    }
}

#[test]
fn a_port_that_waits_for_a_neighbour_takes_a_burst_from_its_queue_and_no_more() {
    const RING: usize = 256;
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let mut a = common::frames(&pair, Side::A);
    let mut port = common::port(&pair, Side::B, &format!("10.83.0.66:7000?ring={RING}"));
    let nobody = sinew_fabric::sockets::pack("10.83.0.250:9".parse().unwrap());
    let good = good_frame(&a, &port, [2; 6], b"hello");
    for _ in 0..40 {
        (0..32).for_each(|_| a.split().1.push(&good, &[]));
        a.split().1.submit();
        send(&mut port, nobody, b"is anybody there");
    }
    let came = collect_until_quiet(&mut port);
    assert!((RING..=RING + 64).contains(&came), "{came}");
}

/// Receives until no packets come; returns how many came.
fn collect_until_quiet(port: &mut XdpPort) -> usize {
    let (mut count, mut quiet) = (0, 0);
    while quiet < 5 {
        let mut burst = RxBurst::new(0);
        port.split().0.receive(&mut burst);
        let here = burst.packets.len();
        drop(burst);
        (count, quiet) = (count + here, if here == 0 { quiet + 1 } else { 0 });
        if here == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    count
}

#[test]
fn what_is_for_a_neighbour_that_never_answers_is_given_up_after_three_seconds() {
    let Some(pair) = common::pair(PairOptions { addresses: false, ..PairOptions::default() }) else { return };
    let mut a = common::frames(&pair, Side::A);
    let mut port = common::port(&pair, Side::B, "10.83.0.66:7000");
    send(&mut port, sinew_fabric::sockets::pack("10.83.0.250:9".parse().unwrap()), b"is anybody there");
    let mut questions = 0;
    for ms in 0..3100 {
        let mut burst = RxBurst::new(ms * 1_000_000);
        port.split().0.receive(&mut burst);
        drop(burst);
        assert_eq!(port.stats().dropped(Dropped::NoSuchPeer), u64::from(ms >= 3023), "after {ms} ms");
        let mut burst = FrameBurst::new(0);
        a.split().0.receive(&mut burst);
        questions += burst.frames.iter().filter(|frame| frame.bytes()[12..14] == [0x08, 0x06]).count();
    }
    assert!((1..=12).contains(&questions), "{questions} questions");
}

/// The frames that a port at B sent lately, as the frame port at A received them: the number of ARP frames, and the
/// Ethernet addresses that datagrams went to.
fn seen(port: &mut XdpFrames) -> (usize, Vec<MacAddress>) {
    let mut burst = FrameBurst::new(0);
    port.split().0.receive(&mut burst);
    let is_arp = |bytes: &[u8]| bytes[12..14] == [0x08, 0x06];
    let (arp, datagrams): (Vec<_>, Vec<_>) = burst.frames.iter().partition(|frame| is_arp(frame.bytes()));
    let to = |bytes: &[u8]| MacAddress(bytes[..6].try_into().unwrap());
    (arp.len(), datagrams.iter().map(|frame| to(frame.bytes())).collect())
}

/// Answers a question of the port at B: 10.83.0.250 has this Ethernet address.
fn answer(a: &mut XdpFrames, own: [u8; 6], mac: [u8; 6]) {
    let head = [&own[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac, &[10, 83, 0, 250], &own, &[10, 83, 0, 66]];
    a.split().1.push(&head.concat(), &[0; 18]);
    a.split().1.submit();
}

/// Sends a packet at a given time, and does what is due then.
fn send_at(port: &mut XdpPort, to: Peer, ms: u64) {
    let mut burst = RxBurst::new(ms * 1_000_000);
    port.split().0.receive(&mut burst);
    drop(burst);
    send(port, to, b"hello");
    // Due work is done at the next turn at the latest.
    let mut burst = RxBurst::new(ms * 1_000_000);
    port.split().0.receive(&mut burst);
}

const FIRST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SECOND: [u8; 6] = [2, 0, 0, 0, 0, 2];

#[test]
fn a_neighbour_that_gets_another_ethernet_address_is_found_again() {
    let Some(pair) = common::pair(PairOptions { addresses: false, ..PairOptions::default() }) else { return };
    let mut a = common::frames(&pair, Side::A);
    let mut port = common::port(&pair, Side::B, "10.83.0.66:7000");
    let to = sinew_fabric::sockets::pack("10.83.0.250:9".parse().unwrap());
    let own = pair.at(Side::B).within(|| common::mac(Side::B)).unwrap();
    send_at(&mut port, to, 10);
    assert_eq!(seen(&mut a), (1, vec![]));
    answer(&mut a, own, FIRST);
    send_at(&mut port, to, 11);
    assert_eq!(seen(&mut a), (0, vec![MacAddress(FIRST); 2]));
    send_at(&mut port, to, 5_012);
    assert_eq!(seen(&mut a), (1, vec![MacAddress(FIRST)]), "it is asked for, and used meanwhile");
    answer(&mut a, own, SECOND);
    send_at(&mut port, to, 5_013);
    assert_eq!(seen(&mut a), (0, vec![MacAddress(SECOND)]));
    // The neighbour is gone: after three questions, nothing more is sent there.
    for (ms, sent) in [(10_100, 1), (11_100, 1), (12_100, 1), (13_100, 0)] {
        send_at(&mut port, to, ms);
        let (arp, to) = seen(&mut a);
        assert!(arp >= 1 && to.len() == sent, "after {ms} ms: {arp} questions, {to:?}");
    }
    answer(&mut a, own, FIRST);
    send_at(&mut port, to, 13_101);
    assert_eq!(seen(&mut a), (0, vec![MacAddress(FIRST); 2]), "and is found again");
}

#[test]
fn a_gateway_that_gets_another_ethernet_address_is_found_again_by_all_behind_it() {
    let Some(pair) = common::pair(PairOptions { addresses: false, ..PairOptions::default() }) else { return };
    let mut a = common::frames(&pair, Side::A);
    let mut port = common::port(&pair, Side::B, "10.83.0.66:7000?gateway=10.83.0.250");
    let [one, other] = ["10.99.0.9:9", "10.99.0.10:9"].map(|to| sinew_fabric::sockets::pack(to.parse().unwrap()));
    let own = pair.at(Side::B).within(|| common::mac(Side::B)).unwrap();
    send_at(&mut port, one, 10);
    assert_eq!(seen(&mut a), (1, vec![]));
    answer(&mut a, own, FIRST);
    send_at(&mut port, one, 12);
    send_at(&mut port, other, 13);
    send_at(&mut port, other, 15);
    assert_eq!(seen(&mut a), (0, vec![MacAddress(FIRST); 4]), "it is asked for once");
    send_at(&mut port, one, 5_100);
    assert_eq!(seen(&mut a), (1, vec![MacAddress(FIRST)]), "it is asked for again, and used meanwhile");
    answer(&mut a, own, SECOND);
    send_at(&mut port, one, 5_101);
    send_at(&mut port, other, 5_101);
    assert_eq!(seen(&mut a), (0, vec![MacAddress(SECOND); 2]));
}

#[test]
fn what_the_kernel_hears_of_a_neighbour_is_read_again() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let (a, b) = (pair.options().v4(Side::A), pair.options().v4(Side::B));
    let socket = socket(&pair, Side::A, a.into());
    let mut port = common::port(&pair, Side::B, &format!("{b}:0"));
    let to = sinew_fabric::sockets::pack(socket.local_addr().unwrap());
    let (mut buffer, began) = ([0; 100], Instant::now());
    // The kernel's answer takes a while, so wait for it.
    let mut arrives = |ms: u64, sleep_ms: u64| {
        let mut burst = RxBurst::new(ms * 1_000_000);
        port.split().0.receive(&mut burst);
        drop(burst);
        send(&mut port, to, b"hello");
        socket.set_read_timeout(Some(Duration::from_millis(sleep_ms))).unwrap();
        socket.recv_from(&mut buffer).is_ok()
    };
    while !arrives(1, 20) {
        assert!(began.elapsed() < PATIENCE);
    }
    // Drain the packets that waited for the kernel's answer.
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while socket.recv_from(&mut [0; 100]).is_ok() {}
    pair.at(Side::A)
        .within(|| common::ip(&["link", "set", Side::A.interface(), "address", "02:00:00:00:00:77"]))
        .unwrap();
    assert!(!arrives(2, 20), "it is not heard of yet");
    let known = ["neigh", "replace", &a.to_string(), "lladdr", "02:00:00:00:00:77", "dev", Side::B.interface()];
    pair.at(Side::B).within(|| common::ip(&known)).unwrap();
    // The first packet makes the port ask the kernel, and the second goes where the kernel says.
    arrives(5_002, 20);
    assert!(arrives(5_003, 1_000));
}

#[test]
fn there_is_memory_for_eight_ports_at_every_queue() {
    let Some(pair) = common::pair(PairOptions { queues: 8, ..PairOptions::default() }) else { return };
    let ports: Vec<_> = (0..8).map(|_| common::port(&pair, Side::A, "10.83.0.1:0?ring=64")).collect();
    assert_eq!(ports[0].granted().queues, 8);
}
