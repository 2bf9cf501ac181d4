//! The conformance suite of packet ports, on simulated ones.

use sinew_conformance::ports::{Expectations, Fixture};
use sinew_fabric::frames::MacAddress;
use sinew_fabric::frames::cable::Cable;
use sinew_fabric::{Address, Clock, PacketPort};
use sinew_sim::{HostId, Network, PortConfig, SimPort, Topology};

struct Simulated {
    network: Network,
    hosts: usize,
    opened: usize,
}

impl Simulated {
    fn new(hosts: usize) -> Self {
        let network = Network::new(Topology::star(hosts, 25.0, 200, 1500), 1).unwrap();
        Self { network, hosts, opened: 0 }
    }
}

impl Fixture for Simulated {
    type Port = SimPort;

    fn open(&mut self) -> SimPort {
        let (host, name) = (HostId(self.opened % self.hosts), format!("port{}", self.opened));
        self.opened += 1;
        let config = PortConfig { receive_packets: 256, arena_bytes: 1 << 20, ..PortConfig::default() };
        self.network.open(host, &name, config).unwrap()
    }

    fn now_ns(&self) -> u64 {
        self.network.clock().now_ns()
    }

    fn expectations(&self) -> Expectations {
        Expectations { real_time: false, reports_closed_peers: false, ..Expectations::default() }
    }

    fn absent_address(&self) -> Option<Address> {
        Some(Address::new("sim", "nobody"))
    }
}

mod hosts_at_a_switch {
    sinew_conformance::port_tests!(super::Simulated::new(8));
}

mod ports_of_one_host {
    sinew_conformance::port_tests!(super::Simulated::new(1));
}

/// Cables across the network, which carry Ethernet frames.
struct Cables(Simulated);

impl sinew_conformance::frames::Fixture for Cables {
    type Port = Cable<SimPort>;

    fn pair(&mut self) -> Option<(Self::Port, Self::Port)> {
        let (a, b) = (self.0.open(), self.0.open());
        let (to_a, to_b) = (a.address(), b.address());
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        Some((Cable::to(a, &to_b, mac(1)).unwrap(), Cable::to(b, &to_a, mac(2)).unwrap()))
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn expectations(&self) -> sinew_conformance::frames::Expectations {
        sinew_conformance::frames::Expectations { real_time: false, ..Default::default() }
    }
}

mod frames_across_a_switch {
    sinew_conformance::frame_tests!(super::Cables(super::Simulated::new(2)));
}
