//! The conformance suite of packet ports, run on this port in each of its modes.

use std::net::UdpSocket;
use std::time::Instant;

use sinew_conformance::ports::{self, Expectations, Fixture};
use sinew_conformance::sealing::SealedFixture;
use sinew_conformance::skipped;
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::{Address, Armed, PacketPort, PacketRx, PacketTx, Readiness, RxBurst, TxData, TxPacket};
use sinew_udp::UdpPort;

struct Udp {
    host: &'static str,
    coalesce: &'static str,
    began: Instant,
}

impl Udp {
    fn new(host: &'static str, coalesce: &'static str) -> Self {
        Self { host, coalesce, began: Instant::now() }
    }

    /// IPv6 where the host has it; otherwise the suite runs once more on IPv4.
    fn v6(coalesce: &'static str) -> Self {
        if UdpSocket::bind("[::1]:0").is_ok() {
            return Self::new("[::1]", coalesce);
        }
        skipped("no IPv6");
        Self::new("127.0.0.1", coalesce)
    }
}

impl Fixture for Udp {
    type Port = UdpPort;

    fn open(&mut self) -> UdpPort {
        let address = format!("udp://{}:0?coalesce={}", self.host, self.coalesce);
        UdpPort::open(&address.parse().expect("an address")).expect("a port on the loopback device")
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        // A socket closes silently; only sending to it shows that nobody listens any more.
        Expectations { reports_closed_peers: false, ..Expectations::default() }
    }
}

mod ipv4_off {
    sinew_conformance::port_tests!(super::Udp::new("127.0.0.1", "off"));
}
mod ipv4_segments {
    sinew_conformance::port_tests!(super::Udp::new("127.0.0.1", "gso"));
}
mod ipv4_frames {
    sinew_conformance::port_tests!(super::Udp::new("127.0.0.1", "on"));
}
mod ipv4_sealed {
    sinew_conformance::port_tests!(super::SealedFixture::new(super::Udp::new("127.0.0.1", "on")));
}
mod ipv6_off {
    sinew_conformance::port_tests!(super::Udp::v6("off"));
}
mod ipv6_segments {
    sinew_conformance::port_tests!(super::Udp::v6("gso"));
}
mod ipv6_frames {
    sinew_conformance::port_tests!(super::Udp::v6("on"));
}

/// A port behind a layer, which passes on the port's readiness; some layers lose packets.
struct Layered<W> {
    udp: Udp,
    wrap: W,
    lossy: bool,
}

impl<P: PacketPort, W: Fn(UdpPort) -> P> Layered<W> {
    fn new(wrap: W, lossy: bool) -> Self {
        Self { udp: Udp::new("127.0.0.1", "on"), wrap, lossy }
    }
}

impl<P: PacketPort, W: Fn(UdpPort) -> P> Fixture for Layered<W> {
    type Port = P;

    fn open(&mut self) -> P {
        (self.wrap)(self.udp.open())
    }

    fn now_ns(&self) -> u64 {
        self.udp.now_ns()
    }

    fn expectations(&self) -> Expectations {
        let patience_ns = if self.lossy { 1_000_000_000 } else { self.udp.expectations().patience_ns };
        Expectations { lossy: self.lossy, patience_ns, ..self.udp.expectations() }
    }
}

fn with_faults(tx: f64, rx: f64) -> impl Fn(UdpPort) -> Faulty<UdpPort> {
    move |port| Faulty::new(port, FaultConfig { tx: Faults::loss(tx), rx: Faults::loss(rx) }, 1)
}

mod behind_a_layer {
    sinew_conformance::port_tests!(super::Layered::new(super::with_faults(0.0, 0.0), false));
}
mod traced {
    sinew_conformance::port_tests!(super::Layered::new(|port| Traced::new(port, TextSink::new(sink())), false));
    use sinew_fabric::trace::{TextSink, Traced};
    use std::io::sink;
}
mod captured {
    sinew_conformance::port_tests!(super::Layered::new(|port| Captured::new(port, sink()).unwrap(), false));
    use sinew_fabric::pcap::Captured;
    use std::io::sink;
}

/// The suite's facts about sleeping also hold where packets are lost, outbound or inbound.
#[test]
fn packets_that_are_not_lost_end_sleeps_and_leave_before_them() {
    for (tx, rx) in [(0.2, 0.0), (0.0, 0.2)] {
        let mut fixture = Layered::new(with_faults(tx, rx), true);
        ports::an_armed_port_is_readable_once_a_packet_comes(&mut fixture);
        ports::a_packet_just_before_arming_is_not_slept_through(&mut fixture);
        ports::arming_submits_what_is_held_back(&mut fixture);
    }
}

#[test]
fn one_does_not_sleep_through_what_a_layer_holds_back() {
    let mut udp = Udp::new("127.0.0.1", "on");
    let delay_ns = 50_000_000;
    let rx = Faults { delay: 1.0, delay_ns_max: delay_ns, ..Faults::NONE };
    let (mut from, mut to) = (udp.open(), Faulty::new(udp.open(), FaultConfig { rx, ..FaultConfig::NONE }, 1));
    let peer = from.resolve(&to.address()).unwrap();
    from.split().1.push(TxPacket { to: peer, head: b"late", data: TxData::None });
    from.split().1.submit();
    assert!(to.descriptor().unwrap().wait(None).unwrap());
    let mut now_ns = udp.now_ns();
    to.split().0.receive(&mut RxBurst::new(now_ns));
    let Armed::Sleep { until_ns: Some(until_ns) } = to.arm(now_ns).unwrap() else { panic!("it is held back") };
    assert!((now_ns + 1..=now_ns + delay_ns).contains(&until_ns));
    now_ns = until_ns;
    assert_eq!(to.arm(now_ns).unwrap(), Armed::Ready);
    let mut burst = RxBurst::new(now_ns);
    to.split().0.receive(&mut burst);
    assert_eq!(burst.packets.len(), 1);
}

#[test]
fn ports_of_a_fixture_have_addresses_of_their_own() {
    let mut fixture = Udp::new("127.0.0.1", "on");
    let (one, other) = (fixture.open(), fixture.open());
    let addresses: [Address; 2] = [one.address(), other.address()];
    assert_ne!(addresses[0], addresses[1]);
}
