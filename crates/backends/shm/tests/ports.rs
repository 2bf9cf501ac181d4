//! Tests of ports of one process: both kinds, links between them, and the end of a port.

use sinew_conformance::unique;
use sinew_fabric::{
    Address, Dropped, PacketPort, PacketRx, PacketTx, Peer, PeerLoss, PortError, PortEvent, RxBurst, TxData, TxPacket,
};
use sinew_shm::{Hub, PACKET_LEN_MAX, ShmPort};

fn name(test: &str) -> Address {
    format!("shm://{}?arena=16777216", unique(test)).parse().unwrap()
}

fn anonymous() -> ShmPort {
    ShmPort::open(&"shm://?arena=16777216".parse().unwrap()).unwrap()
}

/// A pair of ports of each kind: the second knows the first.
fn pairs(test: &str) -> Vec<(&'static str, ShmPort, ShmPort, Peer)> {
    let hub = Hub::new();
    let in_hub = (hub.port("server?arena=16777216").unwrap(), hub.port("?arena=16777216").unwrap());
    let apart = (ShmPort::open(&name(test)).unwrap(), anonymous());
    [("hub", in_hub), ("process", apart)]
        .into_iter()
        .map(|(kind, (server, mut client))| {
            let peer = client.resolve(&server.address()).unwrap();
            (kind, server, client, peer)
        })
        .collect()
}

/// Runs a turn of the port at a time by which upkeep is due, so that nothing has to wait for it. Returns the packets.
fn turn(port: &mut ShmPort) -> Vec<(Peer, Vec<u8>)> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NOW_NS: AtomicU64 = AtomicU64::new(0);
    let mut burst = RxBurst::new(NOW_NS.fetch_add(100_000, Ordering::Relaxed));
    port.split().0.receive(&mut burst);
    let packets = burst.packets.iter().filter_map(|packet| {
        let mut bytes = packet.head.to_vec();
        if let Some(tail) = packet.tail {
            let head = bytes.len();
            bytes.resize(head + tail.len(), 0);
            tail.copy_to(&mut bytes[head..]).ok()?;
        }
        Some((packet.from, bytes))
    });
    packets.collect()
}

fn send(port: &mut ShmPort, to: Peer, head: &[u8], data: TxData<'_>) {
    let tx = port.split().1;
    tx.push(TxPacket { to, head, data });
    tx.submit();
}

fn events(port: &mut ShmPort) -> Vec<PortEvent> {
    std::iter::from_fn(|| port.poll_event()).collect()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 256) as u8).collect()
}

#[test]
fn packets_of_every_length_arrive_whole_and_in_order_and_are_answered() {
    for (kind, mut server, mut client, peer) in pairs("lengths") {
        let lens: Vec<usize> = (0..600).chain([1000, 4096, 10_000, PACKET_LEN_MAX - 1, PACKET_LEN_MAX]).collect();
        for &len in &lens {
            let bytes = pattern(len, len);
            // The kinds take turns: all head, borrowed data, frozen data of the port, frozen data of another arena.
            let head = match len % 4 {
                0 => len,
                _ => len.min(24),
            };
            let arena = if len % 4 == 3 { server.arena().clone() } else { client.arena().clone() };
            let mut buffer = arena.alloc(len - head + 3, 1 << 20).unwrap();
            buffer[3..].copy_from_slice(&bytes[head..]);
            let buffer = buffer.freeze();
            let data = match len % 4 {
                0 => TxData::None,
                1 => TxData::Bytes(&bytes[head..]),
                _ => TxData::Frozen { buffer: &buffer, start: 3, len: len - head },
            };
            send(&mut client, peer, &bytes[..head], data);
            let mut got = Vec::new();
            for _ in 0..3 {
                got.extend(turn(&mut server));
            }
            assert_eq!(got.len(), 1, "{kind} {len}");
            assert!(got[0].1 == bytes, "{kind} {len}");
            // The answer goes back over the same link.
            send(&mut server, got[0].0, &bytes[..len.min(50)], TxData::None);
            let mut back = Vec::new();
            for _ in 0..3 {
                back.extend(turn(&mut client));
            }
            assert_eq!(back, [(peer, bytes[..len.min(50)].to_vec())], "{kind} {len}");
            client.split().1.submit();
            assert!(buffer.thaw().is_ok(), "{kind} {len}: the share ends once the packet was taken");
        }
        assert_eq!(server.stats().dropped_total() + client.stats().dropped_total(), 0, "{kind}");
        assert_eq!(server.stats().rx_packets, lens.len() as u64);
    }
}

#[test]
fn a_packet_beyond_the_limit_is_dropped_and_counted() {
    for (kind, mut server, mut client, peer) in pairs("long") {
        send(&mut client, peer, b"head", TxData::Bytes(&vec![0; PACKET_LEN_MAX - 3]));
        assert_eq!(client.stats().dropped(Dropped::TooLong), 1, "{kind}");
        assert!(turn(&mut server).is_empty());
    }
}

#[test]
fn a_full_ring_drops_and_counts_and_goes_on_once_there_is_room() {
    for (kind, mut server, mut client, peer) in pairs("full") {
        let per_peer = server.caps().receive_packets_per_peer;
        for _ in 0..per_peer {
            client.split().1.push(TxPacket { to: peer, head: &[1; 248], data: TxData::None });
        }
        client.split().1.submit();
        assert_eq!(client.stats().dropped_total(), 0, "{kind}: the promised packets all fit");
        for _ in 0..4 * per_peer {
            client.split().1.push(TxPacket { to: peer, head: &[2; 200], data: TxData::None });
        }
        assert!(client.stats().dropped(Dropped::Full) > 0, "{kind}");
        let mut got = 0;
        for _ in 0..per_peer {
            got += turn(&mut server).len();
        }
        assert_eq!(got as u64, client.stats().tx_packets, "{kind}");
        send(&mut client, peer, b"again", TxData::None);
        assert_eq!(turn(&mut server).len(), 1, "{kind}");
    }
}

#[test]
fn flush_revokes_what_was_not_taken_and_frees_the_buffer() {
    for (kind, mut server, mut client, peer) in pairs("flush") {
        turn(&mut server);
        let mut buffer = client.arena().alloc(10_000, 10_000).unwrap();
        buffer[..].fill(1);
        let mut kept = client.arena().alloc(1000, 1000).unwrap();
        kept[..].fill(9);
        let (buffer, kept) = (buffer.freeze(), kept.freeze());
        send(&mut client, peer, b"one", TxData::Frozen { buffer: &buffer, start: 0, len: 10_000 });
        send(&mut client, peer, b"two", TxData::Frozen { buffer: &kept, start: 0, len: 1000 });
        let buffer = buffer.thaw().unwrap_err();
        client.split().1.reclaim(&buffer);
        let mut buffer = buffer.thaw().expect("the share has ended");
        buffer[..].fill(2);
        let got = turn(&mut server);
        assert_eq!(got.len(), 1, "{kind}: only the packet of the other buffer is delivered");
        assert!(got[0].1.starts_with(b"two") && got[0].1[3..].iter().all(|&byte| byte == 9));
        assert_eq!(server.stats().dropped(Dropped::Revoked), 1, "{kind}");
        send(&mut client, peer, b"three", TxData::Frozen { buffer: &kept, start: 0, len: 1000 });
        client.split().1.flush();
        assert!(kept.thaw().is_ok());
        assert!(turn(&mut server).is_empty());
    }
}

#[test]
fn a_packet_revoked_while_it_is_lent_says_so_after_the_copy() {
    for (kind, mut server, mut client, peer) in pairs("lent") {
        let mut buffer = client.arena().alloc(5000, 5000).unwrap();
        buffer[..].fill(1);
        let buffer = buffer.freeze();
        send(&mut client, peer, b"head", TxData::Frozen { buffer: &buffer, start: 0, len: 5000 });
        let mut burst = RxBurst::new(1 << 50);
        server.split().0.receive(&mut burst);
        let tail = burst.packets[0].tail.unwrap();
        let mut copy = vec![0; 5000];
        assert!(tail.copy_to(&mut copy).is_ok() && copy.iter().all(|&byte| byte == 1), "{kind}");
        client.split().1.flush();
        buffer.thaw().unwrap()[..].fill(2);
        assert!(tail.copy_to(&mut copy).is_err(), "{kind}");
    }
}

#[test]
fn a_port_that_goes_is_seen_after_its_packets_and_old_peers_meet_nobody() {
    for (kind, mut server, mut client, peer) in pairs("close") {
        turn(&mut server);
        send(&mut client, peer, b"last words", TxData::None);
        drop(client);
        let got = turn(&mut server);
        assert_eq!(got.len(), 1, "{kind}");
        let from = got[0].0;
        turn(&mut server);
        assert_eq!(events(&mut server), [PortEvent::PeerLost { peer: from, loss: PeerLoss::Closed }], "{kind}");
        send(&mut server, from, b"anyone?", TxData::None);
        assert_eq!(server.stats().dropped(Dropped::NoSuchPeer), 1, "{kind}");
        assert_eq!(server.links().0, 0);
    }
}

#[test]
fn a_peer_that_went_before_it_was_let_in_is_told_apart_from_one_that_breaks_the_rules() {
    for (kind, mut server, mut client, peer) in pairs("early") {
        let buffer = client.arena().alloc(1000, 1000).unwrap().freeze();
        send(&mut client, peer, b"lent", TxData::Frozen { buffer: &buffer, start: 0, len: 1000 });
        send(&mut client, peer, b"last words", TxData::None);
        drop(client);
        let got: Vec<_> = (0..3).flat_map(|_| turn(&mut server)).collect();
        assert_eq!(got.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>(), [b"last words"], "{kind}");
        assert_eq!(events(&mut server), [PortEvent::PeerLost { peer: got[0].0, loss: PeerLoss::Closed }], "{kind}");
        assert_eq!(server.stats().dropped(Dropped::Revoked), 1, "{kind}: its buffer ended with it");
        assert_eq!(server.stats().dropped_total(), 1, "{kind}");
        assert_eq!((server.links().0, server.turned_away()), (0, 0), "{kind}");
    }
}

#[test]
fn a_server_that_goes_is_seen_by_its_client() {
    for (kind, mut server, mut client, peer) in pairs("server-close") {
        let address = server.address();
        for accepted in [true, false] {
            if accepted {
                turn(&mut server);
                turn(&mut client);
            }
        }
        drop(server);
        turn(&mut client);
        turn(&mut client);
        assert_eq!(events(&mut client), [PortEvent::PeerLost { peer, loss: PeerLoss::Closed }], "{kind}");
        assert!(matches!(client.resolve(&address), Err(PortError::NotFound { .. })), "{kind}");
    }
}

#[test]
fn a_server_that_goes_before_it_answered_is_seen_by_its_client() {
    for (kind, server, mut client, peer) in pairs("unanswered") {
        drop(server);
        turn(&mut client);
        turn(&mut client);
        assert_eq!(events(&mut client), [PortEvent::PeerLost { peer, loss: PeerLoss::Closed }], "{kind}");
    }
}

#[test]
fn resolving_a_name_again_gives_the_same_peer_and_a_new_one_after_a_restart() {
    for (kind, mut server, mut client, peer) in pairs("again") {
        turn(&mut server);
        assert_eq!(client.resolve(&server.address()).unwrap(), peer, "{kind}");
        if kind == "process" {
            let address = server.address();
            assert!(matches!(ShmPort::open(&address), Err(PortError::Taken { .. })));
            drop(server);
            let mut server = ShmPort::open(&address).unwrap();
            let other = client.resolve(&server.address()).unwrap();
            assert_ne!(other, peer);
            send(&mut client, other, b"hello", TxData::None);
            assert_eq!(turn(&mut server).len(), 1);
        }
    }
}

#[test]
fn a_port_can_talk_to_itself() {
    let mut port = ShmPort::open(&name("self")).unwrap();
    let peer = port.resolve(&port.address()).unwrap();
    send(&mut port, peer, b"echo", TxData::None);
    let got = turn(&mut port);
    assert_eq!(got[0].1, b"echo");
    send(&mut port, got[0].0, b"ohce", TxData::None);
    assert_eq!(turn(&mut port), [(peer, b"ohce".to_vec())]);
}

#[test]
fn a_hub_port_hears_itself_without_upkeep_and_can_leave_itself() {
    let hub = Hub::new();
    let mut port = hub.port("self?arena=1048576").unwrap();
    let client = |port: &ShmPort| {
        let mut client = hub.port("?arena=1048576").unwrap();
        client.resolve(&port.address()).unwrap();
        client
    };
    // Two links have gone: their indices are reused from the last, so the accepting side comes before the other.
    drop([client(&port), client(&port)]);
    turn(&mut port);
    assert_eq!(events(&mut port).len(), 2);
    let there = port.resolve(&port.address()).unwrap();
    send(&mut port, there, b"who am I", TxData::None);
    let here = [turn(&mut port), turn(&mut port)].concat()[0].0;
    assert!(here.0[0] < there.0[0], "{here:?} {there:?}");
    // There are so many other links that both sides are no longer polled.
    let others: Vec<_> = (0..20).map(|_| client(&port)).collect();
    let quietly = |port: &mut ShmPort| {
        let mut burst = RxBurst::new(u64::MAX);
        port.split().0.receive(&mut burst);
        burst.packets.iter().map(|packet| (packet.from, packet.head.to_vec())).collect::<Vec<_>>()
    };
    for _ in 0..4000 {
        assert!(quietly(&mut port).is_empty());
    }
    assert!(port.links().1 <= 8);
    for (to, from) in [(there, here), (here, there)] {
        send(&mut port, to, b"hello", TxData::None);
        assert_eq!(quietly(&mut port), [(from, b"hello".to_vec())], "to {to:?}");
    }
    port.forget(there);
    turn(&mut port);
    assert_eq!(events(&mut port), [PortEvent::PeerLost { peer: here, loss: PeerLoss::Closed }]);
    assert_eq!(port.links().0, others.len());
}

#[test]
fn forgetting_a_peer_closes_the_link_for_both() {
    for (kind, mut server, mut client, peer) in pairs("forget") {
        turn(&mut server);
        turn(&mut client);
        client.forget(peer);
        assert_eq!(client.links().0, 0, "{kind}");
        assert!(events(&mut client).is_empty());
        turn(&mut server);
        assert!(matches!(events(&mut server)[..], [PortEvent::PeerLost { loss: PeerLoss::Closed, .. }]), "{kind}");
        send(&mut client, peer, b"?", TxData::None);
        assert_eq!(client.stats().dropped(Dropped::NoSuchPeer), 1, "{kind}");
        assert_ne!(client.resolve(&server.address()).unwrap(), peer);
    }
}

#[test]
fn idle_senders_are_not_polled() {
    let hub = Hub::new();
    let mut server = hub.port("server").unwrap();
    let mut clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = hub.port("?ring=8&arena=1048576").unwrap();
            let peer = client.resolve(&server.address()).unwrap();
            (client, peer)
        })
        .collect();
    for (client, peer) in &mut clients {
        send(client, *peer, b"x", TxData::None);
    }
    let mut got = 0;
    // More than three times the empty polls after which a link is no longer polled.
    for _ in 0..4000 {
        got += turn(&mut server).len();
    }
    assert_eq!(got, 200);
    assert_eq!(server.links().0, 200);
    assert!(server.links().1 <= 8, "{:?} links are polled", server.links());
    // Each of them is still heard at once, without a check of the sockets.
    for (client, peer) in &mut clients {
        turn(client);
        send(client, *peer, b"y", TxData::None);
        let mut burst = RxBurst::new(u64::MAX);
        server.split().0.receive(&mut burst);
        assert_eq!(burst.packets.len(), 1);
    }
}

#[test]
fn malformed_names_and_addresses_are_refused() {
    for text in ["udp://x", "shm://a/b", "shm://.", "shm://x?ring=0", "shm://x?mtu=9"] {
        assert!(ShmPort::open(&text.parse().unwrap()).is_err(), "{text}");
    }
    let error = ShmPort::open(&"shm://a/b".parse().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("`shm://a/b`: the name has characters other than"), "{error}");
    let mut port = anonymous();
    assert!(port.resolve(&"shm://".parse().unwrap()).is_err());
    let missing = port.resolve(&"shm://no-such-port-here".parse().unwrap()).unwrap_err();
    assert!(missing.to_string().contains("looked in /"), "{missing}");
}

/// Blocks of a kilobyte that the port's arena has room for now.
fn room(port: &ShmPort) -> usize {
    let blocks: Vec<_> = std::iter::from_fn(|| port.arena().alloc(960, 960).ok()).collect();
    blocks.len()
}

#[test]
fn a_peer_that_takes_nothing_costs_no_more_than_its_links_copies_and_delays_nobody() {
    const COPIES: usize = 32;
    for kind in ["hub", "process"] {
        let hub = Hub::new();
        let open = |address: &Address| match kind {
            "hub" => hub.port(&format!("{}?arena=1048576", address.rest())).unwrap(),
            _ => ShmPort::open(&format!("shm://{}?arena=1048576", address.rest()).parse().unwrap()).unwrap(),
        };
        let mut server = open(&Address::new("shm", &unique("copies")));
        let room_at_first = room(&server);
        let mut clients = [0, 1].map(|_| {
            let mut client = open(&Address::new("shm", ""));
            let peer = client.resolve(&server.address()).unwrap();
            send(&mut client, peer, b"hello", TxData::None);
            let from = turn(&mut server)[0].0;
            turn(&mut client);
            (client, from)
        });
        let share = |server: &ShmPort, seed: usize| {
            let mut buffer = server.arena().alloc(500, 500).unwrap();
            buffer.copy_from_slice(&pattern(500, seed));
            buffer.freeze()
        };
        // Packets of both forms are copied, to the peer that takes nothing for as long as it has room for copies.
        let idle = clients[0].1;
        for number in 0..2 * COPIES {
            let buffer = share(&server, number);
            let data = TxData::Frozen { buffer: &buffer, start: 0, len: 500 };
            send(&mut server, idle, b"head", data);
            assert_eq!(buffer.thaw().is_ok(), number < COPIES, "{kind}: {number}");
        }
        let honest = clients[1].1;
        for number in 0..10 * COPIES {
            let buffer = share(&server, number);
            let bytes = pattern(500, number + 1);
            send(&mut server, honest, b"", TxData::Frozen { buffer: &buffer, start: 0, len: 500 });
            send(&mut server, honest, b"", TxData::Bytes(&bytes));
            assert!(buffer.thaw().is_ok(), "{kind}: {number}");
            let got = turn(&mut clients[1].0);
            assert!(got.into_iter().map(|(_, bytes)| bytes).eq([pattern(500, number), bytes]), "{kind}: {number}");
        }
        // It gets everything all the same, and its link's buffers go with it.
        let taken: Vec<_> = (0..3).flat_map(|_| turn(&mut clients[0].0)).collect();
        assert_eq!(taken.len(), 2 * COPIES, "{kind}");
        for (number, (_, bytes)) in taken.iter().enumerate() {
            assert_eq!(bytes[4..], pattern(500, number), "{kind}");
        }
        let room_beside = room(&server);
        drop(clients);
        for _ in 0..4 {
            turn(&mut server);
            events(&mut server);
        }
        server.split().1.submit();
        assert!(room_beside < room_at_first, "{kind}");
        assert_eq!((server.links().0, room(&server)), (0, room_at_first), "{kind}");
    }
}

#[test]
fn a_forgotten_peers_link_stays_until_the_peer_has_taken_its_copies() {
    for (kind, mut server, mut client, peer) in pairs("forget-copies") {
        turn(&mut server);
        turn(&mut client);
        send(&mut client, peer, b"", TxData::Bytes(&pattern(500, 1)));
        client.forget(peer);
        assert_eq!(client.links().0, 1, "{kind}");
        assert_eq!(turn(&mut server).len(), 1, "{kind}");
        turn(&mut server);
        assert!(events(&mut client).is_empty());
        assert_eq!(client.links().0, 0, "{kind}");
    }
}
