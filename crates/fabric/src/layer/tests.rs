//! Tests of layered ports: lengths, and peers that are forgotten.

use super::*;
use crate::loopback::{LoopbackConfig, LoopbackPort, Network};
use crate::port::PeerLoss;
use crate::time::ManualClock;

const PACKET: usize = 200;
/// Bytes that [`padded`] adds to each packet.
const PAD_LEN: usize = 24;

fn port(network: &Network, name: &str, packet_len_max: usize) -> LoopbackPort {
    network.port_with(name, LoopbackConfig { packet_len_max, ..LoopbackConfig::default() }).unwrap()
}

fn network() -> Network {
    Network::new(ManualClock::new())
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

/// A layer that claims to add some number of bytes and adds another; it records the peers that it was told to forget.
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

fn padded<P: PacketPort>(port: P) -> Result<Layered<P, Padding>, PortError> {
    Layered::wrap(port, Padding { said: PAD_LEN, added: PAD_LEN, ..Padding::default() })
}

#[test]
fn a_layer_takes_its_bytes_off_every_length() {
    let network = network();
    let caps = port(&network, "plain", PACKET).caps();
    let mut outer = padded(padded(port(&network, "a", PACKET)).unwrap()).unwrap();
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

    // Every port can copy a header.
    for (copy_len_max, left) in [(24 + 24, 24), (24 + 25, 25), (24 + 23, 24), (24, 24)] {
        let config = LoopbackConfig { copy_len_max, ..LoopbackConfig::default() };
        let padded = padded(network.port_with("", config).unwrap()).unwrap();
        assert_eq!(padded.caps().copy_len_max, left);
    }
}

#[test]
fn ports_whose_packets_leave_a_layer_too_little_are_refused_at_once() {
    let network = network();
    assert!(padded(port(&network, "a", PACKET_LEN_MIN + PAD_LEN)).is_ok());
    let error = padded(port(&network, "b", PACKET_LEN_MIN + PAD_LEN - 1)).unwrap_err();
    let PortError::PacketsTooSmall { packet_len_max: 119, overhead: PAD_LEN, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains("loopback://b") && error.to_string().contains("larger packets"), "{error}");
    // The second layer finds too little left.
    let once = padded(port(&network, "c", PACKET_LEN_MIN + 2 * PAD_LEN - 1)).unwrap();
    let error = padded(once).unwrap_err();
    assert!(matches!(error, PortError::PacketsTooSmall { packet_len_max: 143, overhead: 48, .. }), "{error}");
    // No overhead that a layer can claim does harm.
    let padding = Padding { said: usize::MAX, ..Padding::default() };
    assert!(Layered::wrap(port(&network, "d", PACKET), padding).is_err());
    // A layer that adds nothing fits around any port.
    assert!(Layered::wrap(port(&network, "e", 30), Padding::default()).is_ok());
}

#[test]
fn packets_of_a_layer_that_adds_more_than_it_said_are_dropped_where_they_are_too_long() {
    for (added, len, arrives) in [(10, 190, true), (11, 189, true), (11, 190, false), (0, 190, true), (0, 191, false)] {
        let network = network();
        let padding = Padding { said: 10, added, ..Padding::default() };
        let mut a = Layered::wrap(port(&network, "a", PACKET), padding).unwrap();
        let mut b = port(&network, "b", PACKET);
        let to = b.peer();
        assert_eq!(a.packet_len_max(to), 190);
        send(&mut a, to, &vec![1; len]);
        let lens: Vec<_> = received(&mut b).iter().map(Vec::len).collect();
        assert_eq!(lens, if arrives { vec![len + added] } else { vec![] }, "{len} and {added}");
        assert_eq!(a.stats().dropped(Dropped::TooLong), u64::from(!arrives));
        assert_eq!(a.with_port(|inner| inner.stats().dropped_total()), 0, "the port inside saw it");
    }
    // The same towards a peer that takes shorter packets.
    let network = network();
    let padding = Padding { said: 10, added: 11, ..Padding::default() };
    let mut a = Layered::wrap(port(&network, "a", PACKET), padding).unwrap();
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
    let inner = Layered::wrap(port(&network, "a", PACKET), Padding::default()).unwrap();
    let mut outer = Layered::wrap(inner, Padding::default()).unwrap();
    let forgotten_peers = |outer: &Layered<Layered<LoopbackPort, Padding>, Padding>| {
        let by_inner = outer.with_port(|inner| inner.with_layer(|layer| std::mem::take(&mut layer.forgotten)));
        let by_outer = outer.with_layer(|layer| std::mem::take(&mut layer.forgotten));
        assert_eq!(by_inner, by_outer);
        by_outer
    };
    let [b, c] = ["b", "c"].map(|name| port(&network, name, PACKET));
    let peers = [&b, &c].map(|other| outer.resolve(&other.address()).unwrap());
    assert_eq!(forgotten_peers(&outer), []);
    outer.forget(peers[0]);
    assert_eq!(forgotten_peers(&outer), [peers[0]]);
    outer.peer_left(peers[1]);
    assert_eq!(forgotten_peers(&outer), [peers[1]]);

    // A hint is no reason to forget anything.
    network.report_loss("a", peers[1], PeerLoss::Unreachable);
    assert!(matches!(outer.poll_event(), Some(PortEvent::PeerLost { loss: PeerLoss::Unreachable, .. })));
    assert_eq!(forgotten_peers(&outer), []);
    drop(c);
    assert!(matches!(outer.poll_event(), Some(PortEvent::PeerLost { peer, .. }) if peer == peers[1]));
    assert_eq!(forgotten_peers(&outer), [peers[1]]);
    assert_eq!(outer.poll_event(), None);
}
