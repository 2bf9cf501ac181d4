//! The suite on loopback ports and the layers around them, and on ports that break its rules.

use std::collections::VecDeque;

use sinew_fabric::Waker;
use sinew_fabric::address::{Address, Peer};
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::pcap::Captured;
use sinew_fabric::port::{
    Caps, PACKET_LEN_MIN, PacketPort, PacketTx, PeerLoss, PortError, PortEvent, PortStats, TxPacket,
};
use sinew_fabric::readiness::{Alarm, Armed, Descriptor, Readiness};
use sinew_fabric::time::{Clock, ManualClock};
use sinew_fabric::trace::{TextSink, Traced};

use super::{Expectations, Fixture, run_all};
use crate::sealing::{SEAL_LEN, SealedFixture, seal};

/// Loopback ports, with a wrapper around each.
struct Loopback<W> {
    network: Network,
    config: LoopbackConfig,
    wrap: W,
}

impl<P: PacketPort, W: FnMut(LoopbackPort) -> P> Loopback<W> {
    fn new(latency_ns: u64, config: LoopbackConfig, wrap: W) -> Self {
        let network = Network::new(ManualClock::new());
        network.set_latency_ns(latency_ns);
        Self { network, config, wrap }
    }
}

impl<P: PacketPort, W: FnMut(LoopbackPort) -> P> Fixture for Loopback<W> {
    type Port = P;

    fn open(&mut self) -> P {
        (self.wrap)(self.network.port_with("", self.config).unwrap())
    }

    fn now_ns(&self) -> u64 {
        self.network.clock().now_ns()
    }

    fn expectations(&self) -> Expectations {
        Expectations { real_time: false, ..Expectations::default() }
    }

    fn absent_address(&self) -> Option<Address> {
        Some(Address::new("loopback", "nobody"))
    }
}

fn copying() -> LoopbackConfig {
    LoopbackConfig { receive_packets: 256, arena_bytes: 1 << 20, ..LoopbackConfig::default() }
}

fn holding() -> LoopbackConfig {
    LoopbackConfig { holds_shares: true, ..copying() }
}

fn lending() -> LoopbackConfig {
    LoopbackConfig { lends_tails: true, ..holding() }
}

/// Room for few packets, in bursts of one, that barely hold a header.
fn tiny() -> LoopbackConfig {
    LoopbackConfig { burst_max: 1, receive_packets: 2, packet_len_max: PACKET_LEN_MIN, ..holding() }
}

mod loopback {
    crate::port_tests!(super::Loopback::new(0, super::copying(), |port| port));
}

mod loopback_with_latency {
    crate::port_tests!(super::Loopback::new(1500, super::holding(), |port| port));
}

mod loopback_that_holds_shares {
    crate::port_tests!(super::Loopback::new(0, super::holding(), |port| port));
}

mod loopback_that_lends_tails {
    crate::port_tests!(super::Loopback::new(0, super::lending(), |port| port));
}

mod tiny_loopback {
    crate::port_tests!(super::Loopback::new(10, super::tiny(), |port| port));
}

mod faulty_without_faults {
    crate::port_tests!(super::Loopback::new(0, super::holding(), |port| super::Faulty::new(
        port,
        super::FaultConfig::NONE,
        1
    )));
}

mod traced {
    crate::port_tests!(super::Loopback::new(0, super::lending(), |port| super::Traced::new(
        port,
        super::TextSink::new(std::io::sink())
    )));
}

mod captured {
    crate::port_tests!(
        super::Loopback::new(0, super::copying(), |port| super::Captured::new(port, std::io::sink()).unwrap())
    );
}

mod sealed {
    crate::port_tests!(super::SealedFixture::new(super::Loopback::new(0, super::copying(), |port| port)));
}

mod sealed_over_lent_tails {
    crate::port_tests!(super::SealedFixture::new(super::Loopback::new(1500, super::lending(), |port| port)));
}

/// Packets as small as possible with room for a seal.
mod tiny_sealed {
    crate::port_tests!(super::SealedFixture::new(super::Loopback::new(
        10,
        super::LoopbackConfig { packet_len_max: super::PACKET_LEN_MIN + super::SEAL_LEN, ..super::tiny() },
        |port| port
    )));
}

#[test]
fn wrappers_stack() {
    let mut opened = 0;
    run_all(&mut Loopback::new(700, lending(), |port| {
        opened += 1;
        let captured = Captured::new(port, std::io::sink()).unwrap();
        let sealed = seal(captured, [3, 4], opened << 32).unwrap();
        let twice = seal(Faulty::new(sealed, FaultConfig::NONE, 7), [5, 6], opened << 32).unwrap();
        assert_eq!(twice.caps().overhead, 2 * SEAL_LEN);
        Traced::new(twice, TextSink::new(std::io::sink()))
    }));
}

/// The suite can fail: each fault makes the fact fail that forbids it.
mod facts_notice {
    use super::*;

    fn faulty(rx: Faults) -> impl Fixture {
        let config = FaultConfig { rx, ..FaultConfig::NONE };
        Loopback::new(0, holding(), move |port| Faulty::new(port, config, 3))
    }

    /// A port that is sure of no loss.
    struct Doubting(LoopbackPort);

    impl Readiness for Doubting {
        fn descriptor(&self) -> Option<Descriptor> {
            self.0.descriptor()
        }
    }

    impl PacketPort for Doubting {
        type Rx = <LoopbackPort as PacketPort>::Rx;
        type Tx = <LoopbackPort as PacketPort>::Tx;

        fn caps(&self) -> Caps {
            self.0.caps()
        }

        fn address(&self) -> Address {
            self.0.address()
        }

        fn arena(&self) -> &sinew_mem::Arena {
            self.0.arena()
        }

        fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
            self.0.resolve(address)
        }

        fn describe(&self, peer: Peer) -> String {
            self.0.describe(peer)
        }

        fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
            self.0.split()
        }

        fn poll_event(&mut self) -> Option<PortEvent> {
            let PortEvent::PeerLost { peer, .. } = self.0.poll_event()?;
            Some(PortEvent::PeerLost { peer, loss: PeerLoss::Unreachable })
        }

        fn waker(&self) -> Waker {
            self.0.waker()
        }

        fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
            self.0.wait(timeout_ns)
        }

        fn stats(&self) -> PortStats {
            self.0.stats()
        }
    }

    #[test]
    #[should_panic(expected = "the port knows that the peer closed, and says Unreachable")]
    fn doubt_where_there_is_none() {
        crate::ports::a_closed_peer_is_reported(&mut Loopback::new(0, copying(), Doubting));
    }

    /// A port with a descriptor that nothing sets off. The function is its answer when armed.
    struct Careless<P>(P, Alarm, fn(&Alarm) -> Armed);

    impl<P> Readiness for Careless<P> {
        fn descriptor(&self) -> Option<Descriptor> {
            Some(self.1.descriptor())
        }

        fn arm(&mut self, _: u64) -> std::io::Result<Armed> {
            Ok(self.2(&self.1))
        }

        fn disarm(&mut self) -> bool {
            self.1.clear()
        }
    }

    impl<P: PacketPort> PacketPort for Careless<P> {
        type Rx = P::Rx;
        type Tx = P::Tx;

        fn caps(&self) -> Caps {
            self.0.caps()
        }

        fn address(&self) -> Address {
            self.0.address()
        }

        fn arena(&self) -> &sinew_mem::Arena {
            self.0.arena()
        }

        fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
            self.0.resolve(address)
        }

        fn describe(&self, peer: Peer) -> String {
            self.0.describe(peer)
        }

        fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
            self.0.split()
        }

        fn poll_event(&mut self) -> Option<PortEvent> {
            self.0.poll_event()
        }

        fn waker(&self) -> Waker {
            self.1.waker()
        }

        fn stats(&self) -> PortStats {
            self.0.stats()
        }
    }

    /// Loopback ports with such descriptors: packets arrive without setting them off. Some packets are lost, with the
    /// given probability.
    struct Impatient<L> {
        network: Network,
        arms: fn(&Alarm) -> Armed,
        loss: f64,
        layer: fn() -> L,
    }

    fn impatient(arms: fn(&Alarm) -> Armed, loss: f64) -> Impatient<Nothing> {
        Impatient { network: Network::new(ManualClock::new()), arms, loss, layer: || Nothing }
    }

    struct Nothing;

    impl Layer for Nothing {}

    /// A layer that holds back the facts' packets until somebody receives, without saying so.
    #[derive(Default)]
    struct Secretive(Vec<OwnedPacket>);

    impl Layer for Secretive {
        fn push(&mut self, packet: TxPacket<'_>, _: u64, tx: &mut dyn PacketTx, pool: &mut Pool) {
            if packet.len() == 64 {
                self.0.push(pool.copy(packet.to, packet.head, packet.data.as_slice()));
            } else {
                tx.push(packet);
            }
        }

        fn advance(&mut self, _: u64, tx: &mut dyn PacketTx, _: &mut VecDeque<OwnedPacket>, _: &mut Pool) -> bool {
            self.0.drain(..).inspect(|packet| tx.push(packet.to_transmit())).count() > 0
        }
    }

    impl<L: Layer> Fixture for Impatient<L> {
        type Port = Layered<Careless<Faulty<LoopbackPort>>, L>;

        fn open(&mut self) -> Self::Port {
            let config = FaultConfig { rx: Faults::loss(self.loss), ..FaultConfig::NONE };
            let port = Faulty::new(self.network.port_with("", copying()).unwrap(), config, 5);
            Layered::wrap(Careless(port, Alarm::new().unwrap(), self.arms), (self.layer)()).unwrap()
        }

        fn now_ns(&self) -> u64 {
            // Time passes only when the clock is read.
            self.network.clock().advance(1_000);
            self.network.clock().now_ns()
        }

        fn expectations(&self) -> Expectations {
            let lossy = self.loss > 0.0;
            Expectations { lossy, real_time: false, patience_ns: 100_000, ..Expectations::default() }
        }
    }

    const SLEEP: Armed = Armed::Sleep { until_ns: None };
    const LOSS: f64 = 0.3;

    fn blindly(alarm: &Alarm) -> Armed {
        if alarm.set() { SLEEP } else { Armed::Ready }
    }

    #[test]
    #[should_panic(expected = "packet 0 woke nobody")]
    fn a_dark_descriptor() {
        crate::ports::an_armed_port_is_readable_once_a_packet_comes(&mut impatient(blindly, 0.0));
    }

    #[test]
    #[should_panic(expected = "woke nobody")]
    fn a_dark_descriptor_where_packets_are_lost() {
        crate::ports::an_armed_port_is_readable_once_a_packet_comes(&mut impatient(blindly, LOSS));
    }

    #[test]
    #[should_panic(expected = "a packet was slept through")]
    fn a_missing_look() {
        crate::ports::a_packet_just_before_arming_is_not_slept_through(&mut impatient(blindly, 0.0));
    }

    #[test]
    #[should_panic(expected = "a packet was slept through")]
    fn a_missing_look_where_packets_are_lost() {
        crate::ports::a_packet_just_before_arming_is_not_slept_through(&mut impatient(blindly, LOSS));
    }

    fn secretive(loss: f64) -> Impatient<Secretive> {
        Impatient { network: Network::new(ManualClock::new()), arms: blindly, loss, layer: Secretive::default }
    }

    #[test]
    #[should_panic(expected = "of 1 packets of round 0 none arrived")]
    fn what_is_held_back_while_one_sleeps() {
        crate::ports::arming_submits_what_is_held_back(&mut secretive(0.0));
    }

    #[test]
    #[should_panic(expected = "of 20 packets of round 0 none arrived")]
    fn what_is_held_back_while_one_sleeps_where_packets_are_lost() {
        crate::ports::arming_submits_what_is_held_back(&mut secretive(LOSS));
    }

    #[test]
    #[should_panic(expected = "an early wake-up was lost")]
    fn a_forgotten_wake_up() {
        let forgetful = |alarm: &Alarm| {
            while !alarm.set() {}
            SLEEP
        };
        crate::ports::a_waker_makes_an_armed_port_readable(&mut impatient(forgetful, 0.0));
    }

    #[test]
    #[should_panic(expected = "says for ever that something has")]
    fn endless_readiness() {
        crate::ports::a_waker_makes_an_armed_port_readable(&mut impatient(|_| Armed::Ready, 0.0));
    }

    #[test]
    #[should_panic(expected = "arrived with other contents")]
    fn corruption() {
        let faults = Faults { corrupt: 0.02, ..Faults::NONE };
        crate::ports::packets_of_every_length_arrive_intact(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn reordering() {
        let faults = Faults { reorder: 0.02, reorder_ns_max: 1, ..Faults::NONE };
        crate::ports::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn duplication() {
        let faults = Faults { duplicate: 0.02, ..Faults::NONE };
        crate::ports::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn loss() {
        let faults = Faults::loss(0.02);
        crate::ports::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }
}
