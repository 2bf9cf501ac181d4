//! Tests of the loopback network.

use super::*;
use crate::port::{Dropped, PacketPort, PacketRx, PacketTx, PortEvent, RxBurst, TxData, TxPacket};
use sinew_mem::Frozen;

const HOLDING: LoopbackConfig = LoopbackConfig {
    packet_len_max: 1472,
    copy_len_max: 512,
    burst_max: 4,
    receive_packets: 8,
    lends_in_place: true,
    holds_shares: true,
    lends_tails: false,
    arena_bytes: 1 << 20,
};

fn network() -> Network {
    Network::new(ManualClock::new())
}

fn send(port: &mut LoopbackPort, to: Peer, bytes: &[u8]) {
    let (_, tx) = port.split();
    tx.push(TxPacket { to, head: bytes, data: TxData::None });
    tx.submit();
}

fn send_frozen(port: &mut LoopbackPort, to: Peer, buffer: &Frozen) {
    let (_, tx) = port.split();
    tx.push(TxPacket { to, head: &[1; 24], data: TxData::Frozen { buffer, start: 0, len: buffer.len() } });
    tx.submit();
}

fn frozen(port: &LoopbackPort, bytes: &[u8]) -> Frozen {
    let mut buffer = port.arena().alloc(bytes.len(), 1024).unwrap();
    buffer.fill(bytes).unwrap();
    buffer.freeze()
}

/// All packets that have arrived, each with its sender.
fn received(port: &mut LoopbackPort) -> Vec<(Peer, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let mut burst = RxBurst::new(0);
        port.split().0.receive(&mut burst);
        if burst.packets.is_empty() {
            return all;
        }
        for packet in &burst.packets {
            let mut bytes = packet.head.to_vec();
            if let Some(tail) = packet.tail {
                bytes.resize(packet.len(), 0);
                tail.copy_to(&mut bytes[packet.head.len()..]).unwrap();
            }
            all.push((packet.from, bytes));
        }
    }
}

#[test]
fn packets_arrive_after_the_latency_and_in_order() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    network.set_latency_ns(500);
    let to = b.peer();
    send(&mut a, to, b"one");
    network.clock().advance(100);
    network.set_latency_ns(10);
    send(&mut a, to, b"two");
    assert_eq!(network.next_arrival_ns(), Some(500));
    network.clock().advance(399);
    assert!(received(&mut b).is_empty());
    assert!(network.advance_to_next_arrival());
    assert_eq!(network.clock().now_ns(), 500);
    let from = a.peer();
    assert_eq!(received(&mut b), [(from, b"one".to_vec()), (from, b"two".to_vec())], "nothing overtakes");
    assert!(!network.advance_to_next_arrival());
}

#[test]
fn nothing_leaves_before_it_is_submitted() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let to = b.peer();
    a.split().1.push(TxPacket { to, head: b"x", data: TxData::None });
    assert!(received(&mut b).is_empty());
    assert_eq!(a.stats().tx_packets, 0);
    a.split().1.submit();
    assert_eq!(received(&mut b).len(), 1);
    assert_eq!(a.stats().tx_packets, 1);
}

#[test]
fn a_full_port_drops_and_counts_what_arrives_beyond_its_room() {
    let network = network();
    let mut a = network.port("a").unwrap();
    let mut b = network.port_with("b", HOLDING).unwrap();
    network.set_latency_ns(5);
    let to = b.peer();
    for i in 0..12u8 {
        send(&mut a, to, &[i]);
    }
    network.clock().advance(5);
    let got: Vec<u8> = received(&mut b).iter().map(|(_, bytes)| bytes[0]).collect();
    assert_eq!(got, (0..8).collect::<Vec<_>>());
    assert_eq!(b.stats().dropped(Dropped::Overflow), 4);
    assert_eq!(a.stats().tx_packets, 12, "the sender cannot know");
}

#[test]
fn packets_in_flight_take_no_room() {
    let network = network();
    let mut a = network.port("a").unwrap();
    let mut b = network.port_with("b", HOLDING).unwrap();
    network.set_latency_ns(100);
    let to = b.peer();
    let mut got = 0;
    for _ in 0..40 {
        send(&mut a, to, b"x");
        network.clock().advance(10);
        got += received(&mut b).len();
    }
    network.clock().advance(100);
    got += received(&mut b).len();
    // The last ten arrive at once, and only eight fit.
    assert_eq!((got, b.stats().dropped(Dropped::Overflow)), (40 - 1, 1));
}

#[test]
fn a_killed_port_is_lost_to_its_peers_until_revived() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let mut c = network.port("c").unwrap();
    let to = a.resolve(&b.address()).unwrap();
    send(&mut b, a.peer(), b"waiting at a stays");
    send(&mut a, to, b"waiting at b is lost");
    assert!(network.kill("b"));
    assert_eq!(a.poll_event(), Some(PortEvent::PeerLost { peer: to, loss: PeerLoss::ProcessDied }));
    assert_eq!(a.poll_event(), None);
    assert_eq!(c.poll_event(), None, "they never met");
    assert_eq!(received(&mut a).len(), 1);

    send(&mut a, to, b"x");
    assert_eq!(a.stats().dropped(Dropped::NoSuchPeer), 1);
    send(&mut b, a.peer(), b"from the dead");
    assert!(received(&mut a).is_empty());
    assert!(matches!(a.resolve(&b.address()), Err(PortError::NotFound { .. })));

    assert!(network.revive("b"));
    assert!(received(&mut b).is_empty());
    send(&mut a, to, b"y");
    assert_eq!(received(&mut b).len(), 1);
    assert!(!network.revive("b") && !network.kill("nobody"));
}

#[test]
fn a_loss_that_is_reported_of_a_living_peer_keeps_nothing_from_it() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let to = a.resolve(&b.address()).unwrap();
    assert!(network.report_loss("a", to, PeerLoss::Unreachable));
    assert!(!network.report_loss("nobody", to, PeerLoss::Unreachable));
    assert_eq!(a.poll_event(), Some(PortEvent::PeerLost { peer: to, loss: PeerLoss::Unreachable }));
    assert_eq!((a.poll_event(), b.poll_event()), (None, None));
    send(&mut a, to, b"x");
    assert_eq!(received(&mut b).len(), 1);
}

#[test]
fn a_name_is_taken_until_its_port_goes_and_the_next_holder_is_another_peer() {
    let network = network();
    let mut a = network.port("a").unwrap();
    let b = network.port("b").unwrap();
    let to = a.resolve(&b.address()).unwrap();
    assert!(matches!(network.port("b"), Err(PortError::Taken { .. })));
    drop(b);
    assert_eq!(a.poll_event(), Some(PortEvent::PeerLost { peer: to, loss: PeerLoss::Closed }));
    assert!(!network.revive("b"), "a dropped port cannot come back");
    let b = network.port("b").unwrap();
    assert_ne!(b.peer(), to);
    send(&mut a, to, b"x");
    assert_eq!(a.stats().dropped(Dropped::NoSuchPeer), 1);
}

#[test]
fn a_killed_port_does_not_come_back_to_a_name_that_was_taken() {
    let network = network();
    let _old = network.port("a").unwrap();
    network.kill("a");
    let new = network.port("a").unwrap();
    assert!(!network.revive("a"));
    assert_eq!(network.peer("a"), Some(new.peer()));
}

#[test]
fn a_forgotten_peer_is_not_missed_until_it_sends_again() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let peer = a.resolve(&b.address()).unwrap();
    a.forget(peer);
    network.kill("b");
    assert_eq!(a.poll_event(), None);
    network.revive("b");
    send(&mut b, a.peer(), b"x");
    assert_eq!(received(&mut a).len(), 1);
    network.kill("b");
    assert!(a.poll_event().is_some());
}

#[test]
fn a_cut_link_loses_packets_without_a_sign() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let mut c = network.port("c").unwrap();
    network.set_link("b", "a", false);
    let (to_a, to_b) = (a.peer(), b.peer());
    send(&mut a, to_b, b"x");
    send(&mut b, to_a, b"x");
    send(&mut c, to_a, b"other links hold");
    assert_eq!((received(&mut b).len(), received(&mut a).len()), (0, 1));
    assert_eq!((network.lost_on_links(), a.poll_event(), a.stats().tx_packets), (2, None, 1));
    network.set_link("a", "b", true);
    send(&mut a, to_b, b"y");
    assert_eq!(received(&mut b).len(), 1);
}

#[test]
fn strangers_can_send_and_cannot_be_answered() {
    let network = network();
    let mut a = network.port("a").unwrap();
    let unknown_peer = Network::stranger(7);
    assert!(network.inject("a", unknown_peer, b"\xff\xfe"));
    assert!(!network.inject("b", unknown_peer, b"x"));
    assert!(network.inject("a", unknown_peer, &[0; 2000]));
    assert_eq!(received(&mut a), [(unknown_peer, b"\xff\xfe".to_vec())]);
    assert_eq!(a.stats().dropped(Dropped::Malformed), 1);
    send(&mut a, unknown_peer, b"hello?");
    assert_eq!(a.stats().dropped(Dropped::NoSuchPeer), 1);
    assert!(a.describe(unknown_peer).contains("unknown"));
}

#[test]
fn the_tap_sees_lost_packets_and_shared_data() {
    let network = network();
    let mut a = network.port_with("a", HOLDING).unwrap();
    let b = network.port("b").unwrap();
    let buffer = frozen(&a, b"data");
    send(&mut a, b.peer(), b"before");
    network.start_tap();
    network.clock().advance(3);
    network.set_link("a", "b", false);
    send_frozen(&mut a, b.peer(), &buffer);
    let tapped = network.take_tapped();
    assert_eq!(tapped.len(), 1);
    assert_eq!((tapped[0].time_ns, tapped[0].from, tapped[0].to), (3, a.peer(), b.peer()));
    assert_eq!(tapped[0].bytes[24..], *b"data");
    assert!(network.take_tapped().is_empty());
}

#[test]
fn a_copying_port_keeps_no_share() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let buffer = frozen(&a, b"first");
    send_frozen(&mut a, b.peer(), &buffer);
    let mut buffer = buffer.thaw().unwrap();
    buffer.fill(b"other").unwrap();
    assert_eq!(received(&mut b)[0].1[24..], *b"first");
}

#[test]
fn a_holding_port_keeps_its_share_until_delivery() {
    let network = network();
    let mut a = network.port_with("a", HOLDING).unwrap();
    let mut b = network.port("b").unwrap();
    let buffer = frozen(&a, b"first");
    send_frozen(&mut a, b.peer(), &buffer);
    let buffer = buffer.thaw().unwrap_err();
    assert_eq!(received(&mut b)[0].1[24..], *b"first");
    assert!(buffer.thaw().is_ok());
}

#[test]
fn flush_and_reclaim_revoke_what_was_not_delivered() {
    let network = network();
    let mut a = network.port_with("a", HOLDING).unwrap();
    let mut b = network.port("b").unwrap();
    let (first, second) = (frozen(&a, b"first"), frozen(&a, b"second"));
    send_frozen(&mut a, b.peer(), &first);
    send_frozen(&mut a, b.peer(), &second);
    a.split().1.reclaim(&first);
    assert!(first.thaw().is_ok());
    let second = second.thaw().unwrap_err();
    assert_eq!(received(&mut b).iter().map(|(_, bytes)| &bytes[24..]).collect::<Vec<_>>(), [b"second"]);
    assert_eq!(b.stats().dropped(Dropped::Revoked), 1);

    send_frozen(&mut a, b.peer(), &second);
    a.split().1.flush();
    let mut second = second.thaw().unwrap();
    second.fill(b"reused").unwrap();
    assert!(received(&mut b).is_empty());
    assert_eq!(b.stats().dropped(Dropped::Revoked), 2);
}

#[test]
fn a_killed_or_dropped_sender_lets_go_of_its_shares() {
    let network = network();
    let mut a = network.port_with("a", HOLDING).unwrap();
    let b = network.port("b").unwrap();
    let buffer = frozen(&a, b"first");
    send_frozen(&mut a, b.peer(), &buffer);
    network.kill("a");
    let buffer = buffer.thaw().unwrap().freeze();
    a.split().1.push(TxPacket { to: b.peer(), head: b"", data: TxData::Frozen { buffer: &buffer, start: 0, len: 3 } });
    drop(a);
    assert!(buffer.thaw().is_ok());
}

#[test]
fn a_lent_tail_pins_the_share_and_fails_once_revoked() {
    let network = network();
    let mut a = network.port_with("a", HOLDING).unwrap();
    let mut b = network.port_with("b", LoopbackConfig { lends_tails: true, ..HOLDING }).unwrap();
    let buffer = frozen(&a, b"first");
    send_frozen(&mut a, b.peer(), &buffer);
    let mut burst = RxBurst::new(0);
    let (rx, _) = b.split();
    rx.receive(&mut burst);
    assert_eq!((burst.packets[0].head.len(), burst.packets[0].len()), (24, 29));
    let tail = burst.packets[0].tail.unwrap();
    let mut copy = [0; 5];
    tail.copy_to(&mut copy).unwrap();
    assert_eq!(&copy, b"first");
    let buffer = buffer.thaw().unwrap_err();
    a.split().1.flush();
    let buffer = buffer.thaw().unwrap().freeze();
    assert!(tail.copy_to(&mut copy).is_err());
    drop(burst);

    // Given back without a revocation, the share ends with the burst.
    send_frozen(&mut a, b.peer(), &buffer);
    assert_eq!(received(&mut b)[0].1[24..], *b"first");
    assert!(buffer.thaw().is_ok());
}

#[test]
fn waiting_moves_the_clock_to_the_next_arrival_or_the_deadline() {
    let network = network();
    let (mut a, mut b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let clock = network.clock().clone();
    network.set_latency_ns(50);
    send(&mut a, b.peer(), b"x");
    b.wait(Some(20)).unwrap();
    assert_eq!(clock.now_ns(), 20);
    b.wait(Some(1000)).unwrap();
    assert_eq!(clock.now_ns(), 50);
    b.wait(Some(1000)).unwrap();
    assert_eq!(clock.now_ns(), 50, "a packet is there");
    a.wait(Some(1000)).unwrap();
    assert_eq!(clock.now_ns(), 1050, "somebody else's packet keeps nobody awake");
    received(&mut b);
    b.waker().wake();
    b.wait(None).unwrap();
    b.wait(None).unwrap();
    assert_eq!(clock.now_ns(), 1050, "woken, then nothing to wait for");
}

#[test]
fn an_event_ends_a_wait() {
    let network = network();
    let mut a = network.port("a").unwrap();
    let b = network.port("b").unwrap();
    a.resolve(&b.address()).unwrap();
    drop(b);
    a.wait(Some(10)).unwrap();
    assert_eq!(network.clock().now_ns(), 0);
}

#[test]
fn ports_without_a_name_get_one_each() {
    let network = network();
    let _taken = network.port("port-1").unwrap();
    let (a, b) = (network.port("").unwrap(), network.port("").unwrap());
    assert_ne!(a.address(), b.address());
    assert!(network.peer(a.address().rest()).is_some());
    let no_bursts = LoopbackConfig { burst_max: 0, ..HOLDING };
    assert!(matches!(network.port_with("x", no_bursts), Err(PortError::Limit { .. })));
}
