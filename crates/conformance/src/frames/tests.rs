//! The suite on cables, and on wires that break its rules.

use sinew_fabric::PacketPort;
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::frames::MacAddress;
use sinew_fabric::frames::any::AnyPort;
use sinew_fabric::frames::cable::Cable;
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::time::{Clock, ManualClock};

use super::{Expectations, Fixture};

/// Cables over loopback ports, with a wrapper around each port.
struct Cables<W> {
    network: Network,
    config: LoopbackConfig,
    wrap: W,
}

impl<P: PacketPort, W: FnMut(LoopbackPort) -> P> Cables<W> {
    fn new(config: LoopbackConfig, wrap: W) -> Self {
        Self { network: Network::new(ManualClock::new()), config, wrap }
    }
}

impl<P: PacketPort, W: FnMut(LoopbackPort) -> P> Fixture for Cables<W> {
    type Port = Cable<P>;

    fn pair(&mut self) -> Option<(Self::Port, Self::Port)> {
        let [a, b] = [(); 2].map(|()| (self.wrap)(self.network.port_with("", self.config).unwrap()));
        let (to_a, to_b) = (a.address(), b.address());
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        Some((Cable::to(a, &to_b, mac(1)).unwrap(), Cable::to(b, &to_a, mac(2)).unwrap()))
    }

    fn now_ns(&self) -> u64 {
        self.network.clock().now_ns()
    }

    fn expectations(&self) -> Expectations {
        Expectations { real_time: false, ..Expectations::default() }
    }
}

fn small() -> LoopbackConfig {
    LoopbackConfig { receive_packets: 256, arena_bytes: 1 << 20, ..LoopbackConfig::default() }
}

fn lending() -> LoopbackConfig {
    LoopbackConfig { holds_shares: true, lends_tails: true, ..small() }
}

mod cables {
    crate::frame_tests!(super::Cables::new(super::small(), |port| port));
}

/// Cables behind the type that covers ports of several kinds.
struct Any<F>(F);

impl<F: Fixture<Port: 'static>> Fixture for Any<F> {
    type Port = AnyPort;

    fn pair(&mut self) -> Option<(AnyPort, AnyPort)> {
        self.0.pair().map(|(a, b)| (AnyPort::new(a), AnyPort::new(b)))
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn expectations(&self) -> Expectations {
        self.0.expectations()
    }
}

mod any_ports {
    crate::frame_tests!(super::Any(super::Cables::new(super::small(), |port| port)));
}

mod cables_with_bursts_of_one {
    crate::frame_tests!(super::Cables::new(
        super::LoopbackConfig { burst_max: 1, receive_packets: 2, ..super::lending() },
        |port| port
    ));
}

#[test]
fn an_end_that_answers_takes_the_first_that_sends_for_the_other_end() {
    use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx, LentFrame};
    let network = Network::new(ManualClock::new());
    let [a, b, stranger] = ["a", "b", "stranger"].map(|name| network.port(name).unwrap());
    let to_a = a.address();
    let mut a = Cable::to_first_sender(a, MacAddress([2, 0, 0, 0, 0, 1]));
    a.split().1.push(&[0; 14], b"to nobody");
    assert_eq!(a.stats().dropped_total(), 1);
    let mut others = [b, stranger].map(|port| Cable::to(port, &to_a, MacAddress([2, 0, 0, 0, 0, 2])).unwrap());
    for (index, text) in [(0, "first"), (1, "other"), (0, "again")] {
        let (_, tx) = others[index].split();
        tx.push(&[0; 14], text.as_bytes());
        tx.submit();
    }
    let mut burst = FrameBurst::new(0);
    a.split().0.receive(&mut burst);
    let texts: Vec<_> = burst.frames.iter().map(|frame| frame.bytes()[14..].to_vec()).collect();
    assert_eq!(texts, [b"first", b"again"]);
    drop(burst);
    assert_eq!(a.stats().dropped_total(), 2);
}

mod facts_notice {
    use super::*;

    fn faulty(faults: Faults) -> Cables<impl FnMut(LoopbackPort) -> Faulty<LoopbackPort>> {
        Cables::new(small(), move |port| Faulty::new(port, FaultConfig { tx: faults, rx: Faults::NONE }, 1))
    }

    #[test]
    #[should_panic(expected = "arrived with other contents")]
    fn corruption() {
        crate::frames::frames_of_every_length_arrive_intact(&mut faulty(Faults { corrupt: 0.02, ..Faults::NONE }));
    }

    #[test]
    #[should_panic(expected = "frame")]
    fn reordering() {
        let faults = Faults { reorder: 0.02, reorder_ns_max: 1, ..Faults::NONE };
        crate::frames::frames_arrive_in_order(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "out of order, or twice")]
    fn duplication_in_a_flood() {
        let faults = Faults { duplicate: 0.5, ..Faults::NONE };
        crate::frames::a_flood_of_frames_loses_some_and_nothing_else(&mut faulty(faults));
    }

    #[test]
    #[should_panic(expected = "frames are missing in round")]
    fn frames_that_forwarding_loses() {
        crate::frames::forwarding_for_long_uses_up_nothing(&mut faulty(Faults::loss(0.001)));
    }

    #[test]
    #[should_panic(expected = "frame")]
    fn loss() {
        crate::frames::room_for_frames_comes_back(&mut faulty(Faults::loss(0.02)));
    }
}
