//! Tests of ports on real sockets of this host.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use sinew_conformance::skipped;
use sinew_fabric::{
    Address, Dropped, PacketPort, PacketRx, PacketTx, Peer, PeerLoss, PortError, PortEvent, RxBurst, TxData, TxPacket,
};
use sinew_udp::UdpPort;
use sinew_udp::frame::{BATCH_MAGIC, BATCH_VERSION};

const MODES: [&str; 3] = ["off", "gso", "on"];
/// Far longer than anything here takes, so that only a lost packet fails a test.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(text: &str) -> UdpPort {
    UdpPort::open(&text.parse().unwrap()).unwrap()
}

fn has_v6() -> bool {
    UdpSocket::bind("[::1]:0").is_ok()
}

fn hosts() -> Vec<&'static str> {
    if has_v6() {
        return vec!["127.0.0.1", "[::1]"];
    }
    skipped("no IPv6");
    vec!["127.0.0.1"]
}

fn pair(host: &str, from_mode: &str, to_mode: &str) -> (UdpPort, UdpPort, Peer) {
    let mut from = open(&format!("udp://{host}:0?coalesce={from_mode}"));
    let to = open(&format!("udp://{host}:0?coalesce={to_mode}"));
    let peer = from.resolve(&to.address()).unwrap();
    (from, to, peer)
}

fn push(port: &mut UdpPort, to: Peer, bytes: &[u8]) {
    port.split().1.push(TxPacket { to, head: bytes, data: TxData::None });
}

/// One burst, copied out.
fn take(port: &mut UdpPort, now_ns: u64) -> Vec<(Peer, Vec<u8>)> {
    let mut burst = RxBurst::new(now_ns);
    port.split().0.receive(&mut burst);
    burst.packets.iter().map(|packet| (packet.from, packet.head.to_vec())).collect()
}

/// Receives until `count` packets have come or [`PATIENCE`] has passed.
fn collect(port: &mut UdpPort, count: usize) -> Vec<(Peer, Vec<u8>)> {
    let began = Instant::now();
    let mut packets = Vec::new();
    while packets.len() < count && began.elapsed() < PATIENCE {
        let more = take(port, began.elapsed().as_nanos() as u64);
        if more.is_empty() {
            port.wait(Some(1_000_000)).unwrap();
        }
        packets.extend(more);
    }
    packets
}

fn bytes_of(packets: Vec<(Peer, Vec<u8>)>) -> Vec<Vec<u8>> {
    packets.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn packets_arrive_whole_and_in_order_between_all_modes() {
    for host in hosts() {
        for from_mode in MODES {
            for to_mode in MODES {
                let (mut from, mut to, peer) = pair(host, from_mode, to_mode);
                // Sizes that differ, repeat, fill datagrams, or are zero.
                let sizes = [56, 56, 56, 1, 0, 300, 300, 300, 299, 0, 4000, 4000, 7700, 7700, 17, 17, 17];
                let sent: Vec<Vec<u8>> =
                    sizes.iter().enumerate().map(|(index, &size)| vec![index as u8; size]).collect();
                sent.iter().for_each(|packet| push(&mut from, peer, packet));
                from.split().1.submit();
                let got = bytes_of(collect(&mut to, sent.len()));
                assert!(
                    got == sent,
                    "{host} {from_mode} to {to_mode}: {:?}",
                    got.iter().map(Vec::len).collect::<Vec<_>>()
                );
                assert_eq!(from.stats().tx_packets, sent.len() as u64);
                assert_eq!(to.stats().rx_bytes, sizes.iter().sum::<usize>() as u64);
                assert_eq!(from.stats().dropped_total() + to.stats().dropped_total(), 0);
            }
        }
    }
}

#[test]
fn answers_reach_the_sender_of_each_packet() {
    for mode in MODES {
        let mut server = open(&format!("udp://127.0.0.1:0?coalesce={mode}"));
        let mut clients: Vec<UdpPort> = (0..3).map(|_| open(&format!("udp://127.0.0.1:0?coalesce={mode}"))).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            let peer = client.resolve(&server.address()).unwrap();
            (0..4).for_each(|number| push(client, peer, &[index as u8, number]));
            client.split().1.submit();
        }
        for (from, bytes) in collect(&mut server, 12) {
            push(&mut server, from, &bytes);
        }
        server.split().1.submit();
        for (index, client) in clients.iter_mut().enumerate() {
            let expected: Vec<Vec<u8>> = (0..4).map(|number| vec![index as u8, number]).collect();
            assert_eq!(bytes_of(collect(client, 4)), expected, "{mode}");
        }
    }
}

#[test]
fn a_packet_that_looks_like_a_batch_arrives_as_it_was() {
    for mode in MODES {
        let (mut from, mut to, peer) = pair("127.0.0.1", mode, "on");
        let tricky = [vec![BATCH_MAGIC], vec![BATCH_MAGIC, BATCH_VERSION, 1, 0, 9], vec![BATCH_MAGIC; 100]];
        for packet in &tricky {
            push(&mut from, peer, packet);
            from.split().1.submit();
        }
        tricky.iter().for_each(|packet| push(&mut from, peer, packet));
        from.split().1.submit();
        let got = bytes_of(collect(&mut to, 6));
        assert_eq!(got, [tricky.clone(), tricky].concat(), "{mode}");
    }
}

#[test]
fn shared_buffers_travel_without_their_neighbours_and_are_free_after_submit() {
    for mode in MODES {
        let (mut from, mut to, peer) = pair("127.0.0.1", mode, mode);
        let mut buffer = from.arena().alloc(30_000, 4_000).unwrap();
        buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 100) as u8);
        let frozen = buffer.freeze();
        let mut expected = Vec::new();
        for (start, len) in [(0, 7000), (100, 50), (7000, 7000), (14_000, 1025), (29_000, 1000), (5, 0)] {
            let head = [start as u8; 24];
            from.split().1.push(TxPacket {
                to: peer,
                head: &head,
                data: TxData::Frozen { buffer: &frozen, start, len },
            });
            expected.push([&head[..], &frozen[start..start + len]].concat());
        }
        let own = [9; 40];
        from.split().1.push(TxPacket { to: peer, head: &own, data: TxData::Bytes(&own) });
        expected.push(vec![9; 80]);
        from.split().1.flush();
        assert!(frozen.thaw().is_ok(), "no share outlives the call");
        assert!(bytes_of(collect(&mut to, expected.len())) == expected, "{mode}");
    }
}

#[test]
fn more_packets_than_a_burst_are_lent_over_several() {
    for mode in MODES {
        let (mut from, mut to, peer) = pair("127.0.0.1", mode, mode);
        for number in 0..300u16 {
            push(&mut from, peer, &number.to_le_bytes());
        }
        from.split().1.submit();
        let expected: Vec<Vec<u8>> = (0..300u16).map(|number| number.to_le_bytes().to_vec()).collect();
        assert_eq!(bytes_of(collect(&mut to, 300)), expected, "{mode}");
    }
}

#[test]
fn malformed_datagrams_are_counted_and_harm_nobody() {
    let mut port = open("udp://127.0.0.1:0");
    let unknown_peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = port.local_addr();
    let bad: [&[u8]; 6] = [
        &[BATCH_MAGIC],
        &[BATCH_MAGIC, 9],
        &[BATCH_MAGIC, BATCH_VERSION],
        &[BATCH_MAGIC, BATCH_VERSION, 0, 0],
        &[BATCH_MAGIC, BATCH_VERSION, 5, 0, 1],
        &[0xE2; 40_000],
    ];
    bad.iter().for_each(|bytes| assert_eq!(unknown_peer.send_to(bytes, to).unwrap(), bytes.len()));
    unknown_peer.send_to(b"good", to).unwrap();
    assert_eq!(bytes_of(collect(&mut port, 1)), [b"good".to_vec()]);
    assert_eq!(port.stats().dropped(Dropped::Malformed), bad.len() as u64);
    assert_eq!(port.stats().rx_packets, 1);
}

#[test]
fn a_packet_over_the_limit_is_counted_and_not_sent() {
    let (mut from, mut to, peer) = pair("127.0.0.1", "on", "on");
    let limit = from.caps().packet_len_max;
    push(&mut from, peer, &vec![1; limit + 1]);
    push(&mut from, peer, &vec![2; limit]);
    from.split().1.submit();
    assert_eq!(bytes_of(collect(&mut to, 1)), [vec![2; limit]]);
    assert_eq!(from.stats().dropped(Dropped::TooLong), 1);
}

#[test]
fn a_peer_where_nobody_listens_is_reported_once() {
    // The wildcard's socket may be an IPv6 one, which receives IPv4 errors too; the other is an IPv4 one.
    reports_a_refusal_once(open("udp://127.0.0.1:0"));
    reports_a_refusal_once(open("udp://"));
}

fn reports_a_refusal_once(mut port: UdpPort) {
    // The socket is closed at once, so nobody has this port for the moment.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = port.resolve(&Address::new("udp", &gone.to_string())).unwrap();
    let mut listener = open("udp://127.0.0.1:0");
    let alive = port.resolve(&listener.address()).unwrap();
    for round in 0..5u8 {
        push(&mut port, peer, b"anyone?");
        push(&mut port, alive, &[round]);
        port.split().1.submit();
    }
    assert!(take(&mut port, 0).is_empty());
    assert_eq!(port.poll_event(), Some(PortEvent::PeerLost { peer, loss: PeerLoss::Unreachable }));
    assert_eq!(port.poll_event(), None, "five refusals are one event");
    assert_eq!(bytes_of(collect(&mut listener, 5)).len(), 5, "packets to other peers were sent all the same");
}

#[test]
fn a_refusal_ends_a_wait_and_does_not_keep_the_socket_ready() {
    let mut port = open("udp://127.0.0.1:0");
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = port.resolve(&Address::new("udp", &gone.to_string())).unwrap();
    push(&mut port, peer, b"anyone?");
    port.split().1.submit();
    port.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
    assert!(port.poll_event().is_some());
    let began = Instant::now();
    port.wait(Some(30_000_000)).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(30), "no error was left that could end the wait early");
}

#[test]
fn a_waker_ends_the_current_wait_or_the_next() {
    let mut port = open("udp://127.0.0.1:0");
    let waker = port.waker();
    waker.wake();
    waker.wake();
    port.wait(None).unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
        waker
    });
    port.wait(None).unwrap();
    let waker = other.join().unwrap();
    drop(port);
    waker.wake();
}

#[test]
fn a_wait_ends_with_a_packet_and_at_its_deadline() {
    let (mut from, mut to, peer) = pair("127.0.0.1", "on", "on");
    let began = Instant::now();
    to.wait(Some(20_000_000)).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20));
    (0..100u8).for_each(|number| push(&mut from, peer, &[number]));
    from.split().1.submit();
    to.wait(None).unwrap();
    assert_eq!(take(&mut to, 0).len(), 64);
    // The kernel has no more packets; the port does.
    to.wait(None).unwrap();
    assert_eq!(collect(&mut to, 36).len(), 36);
}

#[test]
fn the_whole_capacity_can_wait_and_a_flood_beyond_it_is_counted() {
    for (mode, size) in [("off", 3648), ("off", 56), ("on", 3648), ("on", 1400), ("gso", 1400)] {
        let mut to = open("udp://127.0.0.1:0?rcvbuf=425984");
        let mut from = open(&format!("udp://127.0.0.1:0?coalesce={mode}"));
        let peer = from.resolve(&to.address()).unwrap();
        let capacity = to.caps().receive_packets;
        for round in 0..3 {
            (0..capacity).for_each(|_| push(&mut from, peer, &vec![round; size]));
            from.split().1.submit();
            assert_eq!(collect(&mut to, capacity).len(), capacity, "{mode} {size}");
        }
        assert_eq!(to.stats().dropped(Dropped::Overflow), 0);
        let flood = 4_000;
        for _ in 0..flood {
            push(&mut from, peer, &vec![7; size]);
            from.split().1.submit();
        }
        // The count comes with a packet that was queued after the loss, so all that wait must be taken first.
        let mut got = 0;
        loop {
            let burst = take(&mut to, 0);
            if burst.is_empty() {
                break;
            }
            got += burst.len();
        }
        push(&mut from, peer, b"after");
        from.split().1.submit();
        assert_eq!(bytes_of(collect(&mut to, 1)), [b"after".to_vec()]);
        assert_eq!(got as u64 + to.stats().dropped(Dropped::Overflow), flood, "{mode} {size}");
    }
}

#[test]
fn a_taken_address_is_named() {
    let first = open("udp://127.0.0.1:0");
    let error = UdpPort::open(&first.address()).unwrap_err();
    assert!(matches!(error, PortError::Taken { .. }), "{error}");
    assert!(error.to_string().contains(&first.local_addr().to_string()));
}

#[test]
fn addresses_that_cannot_be_say_what_to_write() {
    for text in ["udp://127.0.0.1:70000", "udp://127.0.0.1:http", "shm://x", "udp://127.0.0.1:1?coalesce=perhaps"] {
        let error = UdpPort::open(&text.parse().unwrap()).unwrap_err();
        assert!(matches!(error, PortError::Address(_)), "{text}: {error}");
    }
    // No host has a documentation address.
    let error = UdpPort::open(&"udp://192.0.2.77:0".parse().unwrap()).unwrap_err();
    assert!(matches!(error, PortError::Unavailable { .. }), "{error}");
    let mut port = open("udp://127.0.0.1:0");
    for text in ["udp://127.0.0.1", "udp://127.0.0.1:0", "udp://"] {
        assert!(matches!(port.resolve(&text.parse().unwrap()), Err(PortError::Address(_))), "{text}");
    }
    assert!(port.resolve(&"udp://[::1]:9".parse().unwrap()).is_err(), "IPv6 from an IPv4 socket");
}

#[test]
fn the_open_port_reaches_every_loopback_address_there_is() {
    let mut any = open("udp://");
    for host in hosts() {
        let mut server = open(&format!("udp://{host}:0"));
        let peer = any.resolve(&server.address()).unwrap();
        push(&mut any, peer, b"ping");
        any.split().1.submit();
        let (from, bytes) = collect(&mut server, 1).remove(0);
        push(&mut server, from, &bytes);
        server.split().1.submit();
        assert_eq!(collect(&mut any, 1), [(peer, b"ping".to_vec())], "{host}");
        assert!(any.describe(peer).starts_with(&format!("udp://{host}:")));
    }
    // The open port is also reached at the address that it shows.
    let mut client = open("udp://127.0.0.1:0");
    let peer = client.resolve(&any.address()).unwrap();
    push(&mut client, peer, b"hello");
    client.split().1.submit();
    assert_eq!(bytes_of(collect(&mut any, 1)), [b"hello".to_vec()]);
}

#[test]
fn names_are_looked_up() {
    let server = open("udp://127.0.0.1:0");
    let mut client = open("udp://127.0.0.1:0");
    let address = Address::new("udp", &format!("localhost:{}", server.local_addr().port()));
    assert_eq!(client.resolve(&address).unwrap(), client.resolve(&server.address()).unwrap());
    let error = client.resolve(&"udp://no-such-host.invalid:9".parse().unwrap()).unwrap_err();
    assert!(matches!(error, PortError::UnknownHost { .. }) && error.to_string().contains("`no-such-host"), "{error}");
}

#[test]
fn a_host_that_is_unknown_cannot_be_served_on_and_is_named() {
    let error = UdpPort::open(&"udp://no-such-host.invalid:9".parse().unwrap()).err().unwrap().to_string();
    assert!(error.contains("no host `no-such-host.invalid`") && !error.contains("start one"), "{error}");
}

#[test]
fn an_address_to_call_has_a_port_and_the_error_says_how_to_write_it() {
    let mut port = open("udp://127.0.0.1:0");
    for (address, says) in [
        ("udp://localhost", "it has no port; write udp://HOST:PORT"),
        ("udp://::1:7000", "brackets"),
        ("udp://localhost:0", "port 0"),
        ("udp://localhost:70000", "`70000` is no port"),
        ("shm://localhost", "is an address of the fabric `shm`, and this endpoint is on `udp`"),
    ] {
        let error = port.resolve(&address.parse().unwrap()).unwrap_err();
        assert!(matches!(error, PortError::Address(_)), "{address}: {error}");
        assert!(error.to_string().contains(says) && error.to_string().contains(address), "{error}");
    }
}

#[test]
fn a_peer_of_another_port_kind_is_dropped_and_counted() {
    let mut port = open("udp://127.0.0.1:0");
    push(&mut port, Peer([1, 2, 3]), b"lost");
    port.split().1.submit();
    assert_eq!(port.stats().dropped(Dropped::NoSuchPeer), 1);
    assert!(port.describe(Peer([1, 2, 3])).starts_with("udp://?"));
}

#[test]
fn packets_within_the_host_may_be_as_long_as_the_port_takes() {
    let (from, to, peer) = pair("127.0.0.1", "on", "on");
    assert!(from.packet_len_max(peer) <= to.caps().packet_len_max);
    let narrow = open("udp://127.0.0.1:0?packet=600");
    assert_eq!((narrow.caps().packet_len_max, narrow.packet_len_max(peer)), (600, 600));
}
