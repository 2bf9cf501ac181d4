//! The suite on the ports of this crate.

use super::{Expectations, Fixture};
use crate::address::{Address, Peer};
use crate::fault::{FaultConfig, Faults, Faulty};
use crate::loopback::{LoopbackConfig, LoopbackPort, Network};
use crate::pcap::Captured;
use crate::port::{Caps, PacketPort, PeerLoss, PortError, PortEvent, PortStats, Waker};
use crate::time::{Clock, ManualClock};
use crate::trace::{TextSink, Traced};

/// Loopback ports, with something around each.
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
    LoopbackConfig { burst_max: 1, receive_packets: 2, packet_len_max: 90, ..holding() }
}

mod loopback {
    crate::conformance_tests!(super::Loopback::new(0, super::copying(), |port| port));
}

mod loopback_with_latency {
    crate::conformance_tests!(super::Loopback::new(1500, super::holding(), |port| port));
}

mod loopback_that_holds_shares {
    crate::conformance_tests!(super::Loopback::new(0, super::holding(), |port| port));
}

mod loopback_that_lends_tails {
    crate::conformance_tests!(super::Loopback::new(0, super::lending(), |port| port));
}

mod tiny_loopback {
    crate::conformance_tests!(super::Loopback::new(10, super::tiny(), |port| port));
}

mod faulty_without_faults {
    crate::conformance_tests!(super::Loopback::new(0, super::holding(), |port| super::Faulty::new(
        port,
        super::FaultConfig::NONE,
        1
    )));
}

mod traced {
    crate::conformance_tests!(super::Loopback::new(0, super::lending(), |port| super::Traced::new(
        port,
        super::TextSink::new(std::io::sink())
    )));
}

mod captured {
    crate::conformance_tests!(super::Loopback::new(0, super::copying(), |port| super::Captured::new(
        port,
        std::io::sink()
    )
    .unwrap()));
}

#[test]
fn wrappers_stack() {
    super::run_all(&mut Loopback::new(700, lending(), |port| {
        let captured = Captured::new(port, std::io::sink()).unwrap();
        Traced::new(Faulty::new(captured, FaultConfig::NONE, 7), TextSink::new(std::io::sink()))
    }));
}

/// The suite can fail: each fault makes the fact fail that forbids it.
mod facts_notice {
    use super::*;

    fn faulty(rx: Faults) -> impl Fixture {
        let config = FaultConfig { rx, ..FaultConfig::NONE };
        Loopback::new(0, holding(), move |port| Faulty::new(port, config, 3))
    }

    /// A port that is sure of nothing.
    struct Doubting(LoopbackPort);

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
        crate::conformance::a_closed_peer_is_reported(&mut Loopback::new(0, copying(), Doubting));
    }

    #[test]
    #[should_panic(expected = "arrived with other contents")]
    fn corruption() {
        let faults = Faults { corrupt: 0.02, ..Faults::NONE };
        crate::conformance::packets_of_every_length_arrive_intact(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn reordering() {
        let faults = Faults { reorder: 0.02, reorder_ns_max: 1, ..Faults::NONE };
        crate::conformance::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn duplication() {
        let faults = Faults { duplicate: 0.02, ..Faults::NONE };
        crate::conformance::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "packet")]
    fn loss() {
        let faults = Faults::loss(0.02);
        crate::conformance::packets_of_one_sender_arrive_in_order(&mut faulty(faults));
    }
}
