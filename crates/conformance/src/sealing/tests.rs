//! Tests of the sealing layer.

use proptest::prelude::*;
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{ManualClock, PacketRx, RxBurst, TxData};

use super::*;
use crate::pattern;

const KEY: [u64; 2] = [7, 8];
const PACKET: usize = 200;

fn port(network: &Network, name: &str, packet_len_max: usize) -> LoopbackPort {
    network.port_with(name, LoopbackConfig { packet_len_max, ..LoopbackConfig::default() }).unwrap()
}

fn network() -> Network {
    Network::new(ManualClock::new())
}

fn sealed(network: &Network, name: &str, first: u64) -> Sealed<LoopbackPort> {
    seal(port(network, name, PACKET), KEY, first).unwrap()
}

fn send(port: &mut impl PacketPort, to: Peer, bytes: &[u8]) {
    let (head, data) = bytes.split_at(bytes.len().min(24));
    let (_, tx) = port.split();
    tx.push(TxPacket { to, head, data: TxData::Bytes(data) });
    tx.submit();
}

fn received(port: &mut impl PacketPort) -> Vec<Vec<u8>> {
    let mut burst = RxBurst::new(0);
    port.split().0.receive(&mut burst);
    burst.packets.iter().map(|packet| packet.head.to_vec()).collect()
}

#[test]
fn what_a_layer_seals_travels_masked_and_comes_out_as_it_went_in() {
    let network = network();
    let (mut a, mut b) = (sealed(&network, "a", 1), sealed(&network, "b", 1_000));
    let to = a.resolve(&b.address()).unwrap();
    network.start_tap();
    let sent: Vec<_> = [0, 1, 24, 25, 100, PACKET - SEAL_LEN].map(|len| pattern(5, len)).into();
    for bytes in &sent {
        send(&mut a, to, bytes);
    }
    assert_eq!(received(&mut b), sent);
    for (tapped, bytes) in network.take_tapped().iter().zip(&sent) {
        assert_eq!(tapped.bytes.len(), bytes.len() + SEAL_LEN);
        assert!(bytes.len() < 24 || tapped.bytes[..bytes.len()] != bytes[..]);
    }
    assert_eq!((a.stats().tx_packets, a.stats().dropped_total(), b.stats().dropped_total()), (6, 0, 0));
}

#[test]
fn a_packet_that_is_pushed_again_is_another_packet() {
    let network = network();
    let (mut a, b) = (sealed(&network, "a", 41), sealed(&network, "b", 1));
    let to = a.resolve(&b.address()).unwrap();
    network.start_tap();
    for _ in 0..3 {
        send(&mut a, to, &[6; 80]);
    }
    // To another peer, or to one that was forgotten, no number is used twice.
    send(&mut a, Network::stranger(3), &[6; 80]);
    a.forget(to);
    send(&mut a, to, &[6; 80]);
    let tapped = network.take_tapped();
    let numbers = tapped.iter().map(|packet| u64::from_le_bytes(packet.bytes[80..88].try_into().unwrap()));
    assert_eq!(numbers.collect::<Vec<_>>(), [41, 42, 43, 44, 45]);
    for (at, packet) in tapped.iter().enumerate() {
        assert!(tapped[..at].iter().all(|other| other.bytes[..80] != packet.bytes[..80]));
    }
}

#[test]
fn damaged_repeated_and_cut_packets_are_dropped_and_counted_by_reason() {
    let network = network();
    let (mut a, mut b) = (sealed(&network, "a", 1), sealed(&network, "b", 1));
    let to = a.resolve(&b.address()).unwrap();
    network.start_tap();
    send(&mut a, to, &pattern(1, 100));
    let packet = network.take_tapped().remove(0);
    assert_eq!(received(&mut b).len(), 1);
    let mut refused = |bytes: &[u8], reason| {
        let before = b.stats();
        assert!(network.inject("b", packet.from, bytes));
        assert!(received(&mut b).is_empty());
        let after = b.stats();
        assert_eq!((after.dropped(reason) - before.dropped(reason), after.rx_packets), (1, 1));
        assert_eq!(after.dropped_total() - before.dropped_total(), 1);
    };
    for at in 0..packet.bytes.len() {
        let mut changed = packet.bytes.clone();
        changed[at] ^= 0x10;
        refused(&changed, Dropped::BadSeal);
    }
    refused(&packet.bytes, Dropped::Replayed);
    for len in [0, 1, 15, 16, 23] {
        refused(&packet.bytes[..len], Dropped::Malformed);
    }
    for len in [24, 99, packet.bytes.len() - 1] {
        refused(&packet.bytes[..len], Dropped::BadSeal);
    }
    refused(&[0; SEAL_LEN], Dropped::BadSeal);
    // From another sender, and with the right key, it is no replay.
    assert!(network.inject("b", Network::stranger(1), &packet.bytes));
    assert_eq!(received(&mut b), [pattern(1, 100)]);
}

#[test]
fn faults_below_a_seal_do_not_come_above_it() {
    let network = network();
    let faults = Faults { drop: 0.1, duplicate: 0.2, corrupt: 0.2, reorder: 0.1, ..Faults::NONE };
    let faulty = Faulty::new(port(&network, "a", PACKET), FaultConfig { tx: faults, rx: Faults::NONE }, 5);
    let (mut a, mut b) = (seal(faulty, KEY, 1).unwrap(), sealed(&network, "b", 1));
    let to = a.resolve(&b.address()).unwrap();
    let mut came = Vec::new();
    for number in 0..2_000 {
        send(&mut a, to, &pattern(number, 40));
        came.extend(received(&mut b).iter().map(|bytes| {
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            assert_eq!(*bytes, pattern(number, 40));
            number
        }));
    }
    let counts = a.with_port(|faulty| faulty.handle().counts());
    let stats = b.stats();
    assert!(counts.corrupted > 200 && stats.dropped(Dropped::Replayed) > 200);
    assert_eq!(stats.dropped(Dropped::BadSeal), counts.corrupted);
    let arrived = 2_000 + counts.duplicated - counts.dropped;
    // A few packets were still held back at the end.
    assert!(stats.rx_packets + stats.dropped_total() + 5 > arrived);
    came.sort_unstable();
    assert!(came.windows(2).all(|pair| pair[0] != pair[1]), "a packet came out twice");
}

#[test]
fn a_layer_keeps_nothing_of_strangers_nor_of_the_forgotten() {
    let network = network();
    let (mut a, mut b) = (sealed(&network, "a", 1), sealed(&network, "b", 1));
    let to = a.resolve(&b.address()).unwrap();
    let peers = |port: &Sealed<LoopbackPort>| port.with_layer(|layer: &mut SealLayer| layer.peers());
    for number in 0..5_000 {
        network.inject("b", Network::stranger(number), &[9; 60]);
        received(&mut b);
    }
    assert_eq!(peers(&b), 0);
    for _ in 0..2 {
        send(&mut a, to, b"known");
        assert_eq!(received(&mut b).len(), 1);
        assert_eq!(peers(&b), 1);
        b.forget(network.peer("a").unwrap());
        assert_eq!(peers(&b), 0);
    }
}

#[test]
fn peers_that_are_never_forgotten_make_way_for_others() {
    let network = network();
    let (mut a, mut b) = (sealed(&network, "a", 1), sealed(&network, "b", 1));
    let to = a.resolve(&b.address()).unwrap();
    network.start_tap();
    send(&mut a, to, b"from many");
    let packet = network.take_tapped().remove(0).bytes;
    received(&mut b);
    let mut come_from = |number| {
        network.inject("b", Network::stranger(number), &packet);
        received(&mut b).len()
    };
    assert_eq!((0..2_000).map(&mut come_from).sum::<usize>(), 2_000);
    assert_eq!([1_999, 1_000, 0].map(&mut come_from), [0, 0, 1], "of whom it still knows, it was a replay");
    assert_eq!(b.with_layer(|layer| layer.peers()), 1_024);
    for number in 0..2_000 {
        b.peer_left(Network::stranger(number));
    }
    assert_eq!(b.with_layer(|layer| layer.peers()), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_of_strangers_come_through_a_seal(packets in prop::collection::vec((0..4u32, prop::collection::vec(any::<u8>(), 0..100)), 1..50)) {
        let network = network();
        let mut b = sealed(&network, "b", 1);
        for (number, bytes) in &packets {
            network.inject("b", Network::stranger(*number), bytes);
        }
        for _ in 0..3 {
            prop_assert!(received(&mut b).is_empty());
        }
        prop_assert_eq!(b.stats().dropped_total(), packets.len() as u64);
    }

    #[test]
    fn a_number_is_let_through_once(first in 200..300u64, numbers in prop::collection::vec(0..600u64, 1..200)) {
        let mut heard = ReplayWindow { highest: first, seen_bits: 1, last: 0 };
        let mut came = vec![first];
        for number in numbers {
            let highest = came.iter().copied().max().unwrap_or(0);
            let expected = !came.contains(&number) && number + 128 > highest;
            prop_assert_eq!(heard.accept_number(number), expected, "{}", number);
            if expected {
                came.push(number);
            }
        }
    }
}
