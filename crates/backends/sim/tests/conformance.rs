//! The suite of all packet ports, on simulated ones.

use sinew_conformance::ports::{Expectations, Fixture};
use sinew_fabric::{Address, Clock};
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
