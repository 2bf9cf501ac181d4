use proptest::prelude::*;

use super::*;
use crate::conformance::pattern;
use crate::conformance::sealing::{SEAL_LEN, SealLayer, Sealed};
use crate::fault::{FaultConfig, Faults, Faulty};
use crate::loopback::{LoopbackConfig, LoopbackPort, Network};
use crate::port::PeerLoss;
use crate::time::ManualClock;

const KEY: [u64; 2] = [7, 8];
const PACKET: usize = 200;

fn port(network: &Network, name: &str, packet_len_max: usize) -> LoopbackPort {
    network.port_with(name, LoopbackConfig { packet_len_max, ..LoopbackConfig::default() }).unwrap()
}

fn network() -> Network {
    Network::new(ManualClock::new())
}

fn sealed(network: &Network, name: &str, first: u64) -> Sealed<LoopbackPort> {
    Sealed::new(port(network, name, PACKET), KEY, first).unwrap()
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

/// Says that it adds so many bytes, and adds others; notes whom it was told to forget.
#[derive(Debug, Default)]
struct Padding {
    said: usize,
    added: usize,
    forgotten: Vec<Peer>,
}

impl Layer for Padding {
    fn overhead(&self) -> usize {
        self.said
    }

    fn forgotten(&mut self, peer: Peer) {
        self.forgotten.push(peer);
    }

    fn push(&mut self, packet: TxPacket<'_>, _: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
        let mut longer = pool.copy(packet.to, packet.head, packet.data.as_slice());
        longer.bytes.resize(longer.bytes.len() + self.added, 0xAA);
        tx.push(longer.to_transmit());
        pool.recycle(longer);
    }
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
    // To another peer, and to one that was forgotten: no number comes twice.
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
    // Of another sender, and with the right key, it is no replay.
    assert!(network.inject("b", Network::stranger(1), &packet.bytes));
    assert_eq!(received(&mut b), [pattern(1, 100)]);
}

#[test]
fn faults_below_a_seal_do_not_come_above_it() {
    let network = network();
    let faults = Faults { drop: 0.1, duplicate: 0.2, corrupt: 0.2, reorder: 0.1, ..Faults::NONE };
    let faulty = Faulty::new(port(&network, "a", PACKET), FaultConfig { tx: faults, rx: Faults::NONE }, 5);
    let (mut a, mut b) = (Sealed::new(faulty, KEY, 1).unwrap(), sealed(&network, "b", 1));
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
    // But for a few that were held back when it ended.
    assert!(stats.rx_packets + stats.dropped_total() + 5 > arrived);
    came.sort_unstable();
    assert!(came.windows(2).all(|pair| pair[0] != pair[1]), "a packet came out twice");
}

#[test]
fn a_layer_takes_its_bytes_off_every_length() {
    let network = network();
    let caps = port(&network, "plain", PACKET).caps();
    let mut outer = Sealed::new(sealed(&network, "a", 1), KEY, 1).unwrap();
    let expected = Caps {
        packet_len_max: PACKET - 48,
        overhead: 48,
        copy_len_max: caps.copy_len_max - 48,
        lends_in_place: false,
        ..caps
    };
    assert_eq!(outer.caps(), expected);
    let narrow = port(&network, "narrow", 130);
    let to = outer.resolve(&narrow.address()).unwrap();
    assert_eq!(outer.packet_len_max(to), 130 - 48);
    assert_eq!(outer.packet_len_max(Network::stranger(1)), PACKET - 48);

    // A header can be copied by every port.
    for (copy_len_max, left) in [(24 + 24, 24), (24 + 25, 25), (24 + 23, 24), (24, 24)] {
        let config = LoopbackConfig { copy_len_max, ..LoopbackConfig::default() };
        let sealed = Sealed::new(network.port_with("", config).unwrap(), KEY, 1).unwrap();
        assert_eq!(sealed.caps().copy_len_max, left);
    }
}

#[test]
fn ports_whose_packets_leave_a_layer_too_little_are_refused_at_once() {
    let network = network();
    assert!(Sealed::new(port(&network, "a", PACKET_LEN_MIN + SEAL_LEN), KEY, 1).is_ok());
    let error = Sealed::new(port(&network, "b", PACKET_LEN_MIN + SEAL_LEN - 1), KEY, 1).unwrap_err();
    let PortError::PacketsTooSmall { packet_len_max: 119, overhead: SEAL_LEN, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains("loopback://b") && error.to_string().contains("larger packets"), "{error}");
    // The second one finds too little left.
    let once = Sealed::new(port(&network, "c", PACKET_LEN_MIN + 2 * SEAL_LEN - 1), KEY, 1).unwrap();
    let error = Sealed::new(once, KEY, 1).unwrap_err();
    assert!(matches!(error, PortError::PacketsTooSmall { packet_len_max: 143, overhead: 48, .. }), "{error}");
    // No length that a layer can say does harm.
    let padding = Padding { said: usize::MAX, ..Padding::default() };
    assert!(Layered::around(port(&network, "d", PACKET), padding).is_err());
    // What adds nothing goes around any port.
    assert!(Layered::around(port(&network, "e", 30), Padding::default()).is_ok());
}

#[test]
fn packets_of_a_layer_that_adds_more_than_it_said_are_dropped_where_they_are_too_long() {
    for (added, len, arrives) in [(10, 190, true), (11, 189, true), (11, 190, false), (0, 190, true), (0, 191, false)] {
        let network = network();
        let padding = Padding { said: 10, added, ..Padding::default() };
        let mut a = Layered::around(port(&network, "a", PACKET), padding).unwrap();
        let mut b = port(&network, "b", PACKET);
        let to = b.peer();
        assert_eq!(a.packet_len_max(to), 190);
        send(&mut a, to, &vec![1; len]);
        let lens: Vec<_> = received(&mut b).iter().map(Vec::len).collect();
        assert_eq!(lens, if arrives { vec![len + added] } else { vec![] }, "{len} and {added}");
        assert_eq!(a.stats().dropped(Dropped::TooLong), u64::from(!arrives));
        assert_eq!(a.with_port(|inner| inner.stats().dropped_total()), 0, "the port inside saw it");
    }
    // Towards a peer that takes less, too.
    let network = network();
    let padding = Padding { said: 10, added: 11, ..Padding::default() };
    let mut a = Layered::around(port(&network, "a", PACKET), padding).unwrap();
    let mut narrow = port(&network, "narrow", 130);
    let to = narrow.peer();
    for len in [119, 120] {
        send(&mut a, to, &vec![1; len]);
    }
    assert_eq!(received(&mut narrow).len(), 1);
    assert_eq!(a.stats().dropped(Dropped::TooLong), 1);
    assert_eq!(a.with_port(|inner| inner.stats().dropped_total()), 0);
}

#[test]
fn every_layer_hears_of_peers_that_are_forgotten_or_gone_for_certain() {
    let network = network();
    let inner = Layered::around(port(&network, "a", PACKET), Padding::default()).unwrap();
    let mut outer = Layered::around(inner, Padding::default()).unwrap();
    let told = |outer: &Layered<Layered<LoopbackPort, Padding>, Padding>| {
        let by_inner = outer.with_port(|inner| inner.with_layer(|layer| std::mem::take(&mut layer.forgotten)));
        let by_outer = outer.with_layer(|layer| std::mem::take(&mut layer.forgotten));
        assert_eq!(by_inner, by_outer);
        by_outer
    };
    let [b, c] = ["b", "c"].map(|name| port(&network, name, PACKET));
    let peers = [&b, &c].map(|other| outer.resolve(&other.address()).unwrap());
    assert_eq!(told(&outer), []);
    outer.forget(peers[0]);
    assert_eq!(told(&outer), [peers[0]]);
    outer.peer_left(peers[1]);
    assert_eq!(told(&outer), [peers[1]]);

    // A hint is none to forget anything for.
    network.report_loss("a", peers[1], PeerLoss::Unreachable);
    assert!(matches!(outer.poll_event(), Some(PortEvent::PeerLost { loss: PeerLoss::Unreachable, .. })));
    assert_eq!(told(&outer), []);
    drop(c);
    assert!(matches!(outer.poll_event(), Some(PortEvent::PeerLost { peer, .. }) if peer == peers[1]));
    assert_eq!(told(&outer), [peers[1]]);
    assert_eq!(outer.poll_event(), None);
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
        for (stranger, bytes) in &packets {
            network.inject("b", Network::stranger(*stranger), bytes);
        }
        for _ in 0..3 {
            prop_assert!(received(&mut b).is_empty());
        }
        prop_assert_eq!(b.stats().dropped_total(), packets.len() as u64);
    }
}
