//! Properties of the fault injector, over random faults and traffic.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;
use sinew_fabric::fault::{FaultConfig, FaultCounts, Faults, Faulty};
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{Clock, Dropped, ManualClock, PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket};

const PACKETS: usize = 300;
/// Longer than any packet is held back.
const QUIET_NS: u64 = 1_000_000;

/// A packet that cannot be mistaken for another: its number, then bytes that follow from the number.
fn packet(number: usize) -> Vec<u8> {
    let mut bytes = (number as u64).to_le_bytes().to_vec();
    bytes.extend((0..number % 90).map(|at| (number * 7 + at * 13) as u8));
    bytes
}

fn faults() -> impl Strategy<Value = Faults> {
    let chance = || 0.0..0.3f64;
    (chance(), chance(), chance(), 1..6u64, chance(), 1..50_000u64).prop_map(
        |(drop, duplicate, reorder, reorder_packets_max, delay, delay_ns_max)| Faults {
            drop,
            duplicate,
            reorder,
            reorder_packets_max,
            delay,
            delay_ns_max,
            ..Faults::NONE
        },
    )
}

struct Outcome {
    /// Packets that arrived, each with its time.
    arrived: Vec<(u64, Vec<u8>)>,
    counts: FaultCounts,
    injected: u64,
}

/// Sends [`PACKETS`] packets from a to b, of which one port is faulty, and receives until nothing more comes.
fn run(config: FaultConfig, seed: u64, faulty_sender: bool) -> Outcome {
    let network = Network::new(ManualClock::new());
    network.set_latency_ns(100);
    let (a, b) = (network.port("a").unwrap(), network.port("b").unwrap());
    let to = b.peer();
    if faulty_sender {
        let mut a = Faulty::new(a, config, seed);
        let mut b = b;
        let arrived = converse(&network, &mut a, &mut b, to);
        Outcome { arrived, counts: a.handle().counts(), injected: a.stats().dropped(Dropped::Injected) }
    } else {
        let mut a = a;
        let mut b = Faulty::new(b, config, seed);
        let arrived = converse(&network, &mut a, &mut b, to);
        Outcome { arrived, counts: b.handle().counts(), injected: b.stats().dropped(Dropped::Injected) }
    }
}

fn receive(network: &Network, port: &mut impl PacketPort, arrived: &mut Vec<(u64, Vec<u8>)>) -> bool {
    let now_ns = network.clock().now_ns();
    let mut burst = RxBurst::new(now_ns);
    port.split().0.receive(&mut burst);
    arrived.extend(burst.packets.iter().map(|packet| (now_ns, packet.head.to_vec())));
    !burst.packets.is_empty()
}

fn converse(network: &Network, a: &mut impl PacketPort, b: &mut impl PacketPort, to: Peer) -> Vec<(u64, Vec<u8>)> {
    let clock = network.clock();
    let mut arrived = Vec::new();
    for number in 0..PACKETS {
        let bytes = packet(number);
        let (head, data) = bytes.split_at(8);
        let (rx, tx) = a.split();
        rx.receive(&mut RxBurst::new(clock.now_ns()));
        tx.push(TxPacket { to, head, data: TxData::Bytes(data) });
        if number % 3 == 2 {
            tx.submit();
            clock.advance(500);
            receive(network, b, &mut arrived);
        }
    }
    let mut last_work_ns = clock.now_ns();
    while clock.now_ns() - last_work_ns < QUIET_NS {
        a.split().0.receive(&mut RxBurst::new(clock.now_ns()));
        a.split().1.submit();
        if receive(network, b, &mut arrived) {
            last_work_ns = clock.now_ns();
        } else {
            clock.advance(1000);
        }
    }
    arrived
}

#[test]
fn what_is_held_back_of_a_forgotten_peer_is_lost_in_both_directions_and_nothing_else_is() {
    for (faults, forgets) in [
        (Faults { delay: 1.0, delay_ns_max: 1_000, ..Faults::NONE }, true),
        (Faults { reorder: 1.0, reorder_ns_max: 1_000, reorder_packets_max: 100, ..Faults::NONE }, true),
        (Faults { delay: 1.0, delay_ns_max: 1_000, ..Faults::NONE }, false),
    ] {
        let network = Network::new(ManualClock::new());
        let mut port = Faulty::new(network.port("port").unwrap(), FaultConfig::both(faults), 1);
        let mut others = ["left", "stays"].map(|name| network.port(name).unwrap());
        let (own, peers) = (network.peer("port").unwrap(), [0, 1].map(|at: usize| others[at].peer()));
        for (other, peer) in others.iter_mut().zip(peers) {
            port.split().1.push(TxPacket { to: peer, head: b"to", data: TxData::None });
            other.split().1.push(TxPacket { to: own, head: b"from", data: TxData::None });
            other.split().1.submit();
        }
        port.split().1.submit();
        let mut arrived = Vec::new();
        assert!(!receive(&network, &mut port, &mut arrived));
        if forgets {
            port.forget(peers[0]);
        } else {
            // A peer that we never met.
            port.peer_left(Network::stranger(1));
        }
        network.clock().advance(2_000);
        while receive(&network, &mut port, &mut arrived) {}
        let lost = if forgets { 1 } else { 0 };
        assert_eq!((arrived.len(), port.handle().counts().dropped), (2 - lost, 2 * lost as u64));
        let of_others = others.each_mut().map(|other| receive(&network, other, &mut Vec::new()));
        assert_eq!(of_others, [!forgets, true]);
    }
}

fn times_by_number(arrived: &[(u64, Vec<u8>)]) -> HashMap<u64, u64> {
    let mut times = HashMap::new();
    for (_, bytes) in arrived {
        *times.entry(u64::from_le_bytes(bytes[..8].try_into().unwrap())).or_default() += 1;
    }
    times
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_are_never_invented_nor_changed(faults in faults(), seed: u64, sender: bool) {
        let outcome = run(FaultConfig::both(faults), seed, sender);
        for (_, bytes) in &outcome.arrived {
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            prop_assert!(number < PACKETS && *bytes == packet(number));
        }
        prop_assert_eq!(outcome.counts.corrupted, 0);
    }

    #[test]
    fn each_packet_arrives_at_most_twice_and_all_are_accounted_for(faults in faults(), seed: u64, sender: bool) {
        let outcome = run(FaultConfig::both(faults), seed, sender);
        let times = times_by_number(&outcome.arrived);
        prop_assert!(times.values().all(|&times| times <= 2));
        let doubled = times.values().filter(|&&times| times == 2).count() as u64;
        let missing = (PACKETS - times.len()) as u64;
        prop_assert_eq!((doubled, missing), (outcome.counts.duplicated, outcome.counts.dropped));
        prop_assert_eq!(outcome.injected, outcome.counts.dropped);
    }

    #[test]
    fn the_same_seed_gives_the_same_trace(faults in faults(), seed: u64, sender: bool) {
        let config = FaultConfig::both(faults);
        prop_assert_eq!(run(config, seed, sender).arrived, run(config, seed, sender).arrived);
    }

    #[test]
    fn without_delay_and_reordering_order_is_kept(drop in 0.0..0.3f64, duplicate in 0.0..0.3f64, seed: u64, sender: bool) {
        let faults = Faults { drop, duplicate, ..Faults::NONE };
        let outcome = run(FaultConfig::both(faults), seed, sender);
        let numbers: Vec<u64> =
            outcome.arrived.iter().map(|(_, bytes)| u64::from_le_bytes(bytes[..8].try_into().unwrap())).collect();
        prop_assert!(numbers.is_sorted());
    }

    #[test]
    fn corruption_changes_one_byte_and_no_length(corrupt in 0.05..0.5f64, seed: u64, sender: bool) {
        let outcome = run(FaultConfig::both(Faults { corrupt, ..Faults::NONE }), seed, sender);
        prop_assert_eq!(outcome.arrived.len(), PACKETS);
        let mut changed = 0;
        // Nothing is lost or reordered, so the position identifies the packet.
        for (number, (_, bytes)) in outcome.arrived.iter().enumerate() {
            let original = packet(number);
            prop_assert_eq!(bytes.len(), original.len());
            let differing = bytes.iter().zip(&original).filter(|(got, sent)| got != sent).count();
            prop_assert!(differing <= 1);
            changed += differing as u64;
        }
        prop_assert_eq!(changed, outcome.counts.corrupted);
        prop_assert!(changed > 0);
    }

    #[test]
    fn a_reordered_packet_is_overtaken_by_no_more_than_configured(max in 1..6u64, seed: u64, sender: bool) {
        let faults = Faults { reorder: 0.2, reorder_packets_max: max, reorder_ns_max: QUIET_NS / 2, ..Faults::NONE };
        let outcome = run(FaultConfig::both(faults), seed, sender);
        let numbers: Vec<u64> =
            outcome.arrived.iter().map(|(_, bytes)| u64::from_le_bytes(bytes[..8].try_into().unwrap())).collect();
        prop_assert_eq!(numbers.len(), PACKETS);
        for (place, number) in numbers.iter().enumerate() {
            let overtaken_by = numbers[..place].iter().filter(|&&earlier| earlier > *number).count() as u64;
            prop_assert!(overtaken_by <= max, "packet {} was overtaken by {}", number, overtaken_by);
        }
    }
}

#[test]
fn probabilities_are_kept_and_directions_are_separate() {
    let loss = FaultConfig { tx: Faults::loss(0.3), rx: Faults::NONE };
    let sent = run(loss, 1, true);
    assert!((60..=120).contains(&sent.counts.dropped), "{:?}", sent.counts);
    // The same faults on the side that only receives do nothing.
    assert_eq!(run(loss, 1, false).arrived.len(), PACKETS);
    assert_eq!(run(FaultConfig { tx: Faults::NONE, rx: Faults::loss(1.0) }, 1, false).arrived.len(), 0);
}

#[test]
fn other_seeds_give_other_faults() {
    let config = FaultConfig::both(Faults::loss(0.3));
    assert_ne!(run(config, 1, true).arrived, run(config, 2, true).arrived);
}

fn two_ports() -> (Network, Faulty<LoopbackPort>, LoopbackPort) {
    let network = Network::new(ManualClock::new());
    let config = LoopbackConfig { holds_shares: true, ..LoopbackConfig::default() };
    let a = Faulty::new(network.port_with("a", config).unwrap(), FaultConfig::NONE, 1);
    let b = network.port("b").unwrap();
    (network, a, b)
}

#[test]
fn a_handle_breaks_and_heals_the_port_while_it_runs() {
    let (network, mut a, mut b) = two_ports();
    let (to, handle) = (b.peer(), a.handle());
    let got = RefCell::new(Vec::new());
    let mut send = |byte: u8| {
        a.split().1.push(TxPacket { to, head: &[byte], data: TxData::None });
        a.split().1.submit();
        receive(&network, &mut b, &mut got.borrow_mut());
    };
    send(0);
    handle.set(FaultConfig::both(Faults::loss(1.0)));
    send(1);
    handle.heal();
    send(2);
    let bytes: Vec<u8> = got.borrow().iter().map(|(_, bytes)| bytes[0]).collect();
    assert_eq!((bytes, handle.counts().dropped), (vec![0, 2], 1));
}

#[test]
fn a_wait_does_not_sleep_through_a_delayed_packet() {
    let (network, mut a, mut b) = two_ports();
    a.handle().set(FaultConfig::both(Faults { delay: 1.0, delay_ns_max: 5000, ..Faults::NONE }));
    let to = b.peer();
    a.split().0.receive(&mut RxBurst::new(0));
    a.split().1.push(TxPacket { to, head: b"late", data: TxData::None });
    a.split().1.submit();
    let mut got = Vec::new();
    assert!(!receive(&network, &mut b, &mut got));
    a.wait(Some(1_000_000_000)).unwrap();
    let now_ns = network.clock().now_ns();
    assert!((1..=5000).contains(&now_ns), "woke at {now_ns}");
    // When received at its time, the packet is sent on and submitted without a further call.
    a.split().0.receive(&mut RxBurst::new(now_ns));
    assert!(receive(&network, &mut b, &mut got));
}

#[test]
fn a_delayed_packet_pins_no_buffer_and_keeps_its_bytes() {
    let (network, mut a, mut b) = two_ports();
    a.handle().set(FaultConfig::both(Faults { delay: 1.0, delay_ns_max: 5000, ..Faults::NONE }));
    let mut buffer = a.arena().alloc(5, 100).unwrap();
    buffer.fill(b"first").unwrap();
    let buffer = buffer.freeze();
    let data = TxData::Frozen { buffer: &buffer, start: 0, len: 5 };
    a.split().1.push(TxPacket { to: b.peer(), head: &[0; 24], data });
    a.split().1.submit();
    a.split().1.flush();
    buffer.thaw().unwrap().fill(b"other").unwrap();
    network.clock().advance(5000);
    a.split().0.receive(&mut RxBurst::new(5000));
    let mut got = Vec::new();
    receive(&network, &mut b, &mut got);
    assert_eq!(got[0].1[24..], *b"first");
}

#[test]
fn without_faults_a_share_reaches_the_port_uncopied() {
    let (_network, mut a, b) = two_ports();
    let buffer = a.arena().alloc(5, 100).unwrap().freeze();
    let data = TxData::Frozen { buffer: &buffer, start: 0, len: 5 };
    a.split().1.push(TxPacket { to: b.peer(), head: &[0; 24], data });
    a.split().1.submit();
    let buffer = buffer.thaw().expect_err("the port below holds its share");
    a.split().1.flush();
    assert!(buffer.thaw().is_ok());
}
