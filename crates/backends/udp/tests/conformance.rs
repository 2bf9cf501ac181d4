//! The facts that hold for every packet port, for this one in each of its modes.

use std::net::UdpSocket;
use std::time::Instant;

use sinew_fabric::conformance::{Expectations, Fixture, skipped};
use sinew_fabric::{Address, PacketPort};
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

    /// IPv6 where there is some; else the suite runs once more on IPv4.
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
        // A socket closes without a word; only sending to it shows that nobody listens any more.
        Expectations { reports_closed_peers: false, ..Expectations::default() }
    }
}

mod ipv4_off {
    sinew_fabric::conformance_tests!(super::Udp::new("127.0.0.1", "off"));
}
mod ipv4_segments {
    sinew_fabric::conformance_tests!(super::Udp::new("127.0.0.1", "gso"));
}
mod ipv4_frames {
    sinew_fabric::conformance_tests!(super::Udp::new("127.0.0.1", "on"));
}
mod ipv6_off {
    sinew_fabric::conformance_tests!(super::Udp::v6("off"));
}
mod ipv6_segments {
    sinew_fabric::conformance_tests!(super::Udp::v6("gso"));
}
mod ipv6_frames {
    sinew_fabric::conformance_tests!(super::Udp::v6("on"));
}

#[test]
fn ports_of_a_fixture_have_addresses_of_their_own() {
    let mut fixture = Udp::new("127.0.0.1", "on");
    let (one, other) = (fixture.open(), fixture.open());
    let addresses: [Address; 2] = [one.address(), other.address()];
    assert_ne!(addresses[0], addresses[1]);
}
