//! Large requests from one thread to another over 100 Gbps InfiniBand (nsdi19 6.4).

use std::cell::RefCell;
use std::rc::Rc;

use sinew_rpc::{Config, Tuning};
use sinew_sim::{Cluster, Costs, HostId, LinkFaults, LinkId, Network, PortConfig, Topology};

use crate::programs::{Sender, SenderResult, Server, nsdi19, sink, start};

const MS: u64 = 1_000_000;
/// Time before packets are lost, in which the session opens and the first request leaves.
const WARM_UP_NS: u64 = 2 * MS;

/// Configuration as published: one credit return per packet (5.1).
pub fn singly() -> Config {
    Config { tuning: Tuning { cumulative_credits: false, ..Tuning::default() }, ..nsdi19() }
}

/// A client that makes one large request at a time.
pub struct LargeCalls {
    /// Bytes of each request.
    pub len: usize,
    pub config: Config,
    pub of_client: Costs,
    pub of_server: Costs,
    /// Probability that a packet is lost.
    pub loss: f64,
    pub measured_ms: u64,
}

impl LargeCalls {
    /// Runs it. Returns the rate of requests in Gb/s.
    pub fn gbps(self) -> f64 {
        let network = Network::new(Topology::cx5(), 1).expect("the topology is the paper's");
        let mut cluster = Cluster::new(&network);
        let nexus = sink(self.config);
        let port = PortConfig::default();
        let [of_server, of_client] = [self.of_server, self.of_client].map(|costs| PortConfig { costs, ..port });
        start(&mut cluster, &nexus, HostId(0), "server", of_server, |rpc, _| Server(rpc));
        let found = Rc::<RefCell<SenderResult>>::default();
        start(&mut cluster, &nexus, HostId(1), "client", of_client, |rpc, clock| {
            Sender::new(rpc, clock, "server", self.len, 1, &found)
        });
        cluster.run_until(WARM_UP_NS);
        // All packets of both hosts pass over the client's link.
        (0..2).for_each(|direction| network.set_faults(LinkId(1), direction, LinkFaults::losing(self.loss)));
        // The measured time begins and ends when a request completes.
        let next_end_ns = |cluster: &mut Cluster| {
            let calls = found.borrow().calls;
            while found.borrow().calls == calls {
                cluster.run_until(network.now_ns() + MS / 100);
            }
            (found.borrow().calls, network.now_ns())
        };
        let (calls_before, from_ns) = next_end_ns(&mut cluster);
        cluster.run_until(from_ns + self.measured_ms * MS);
        let (calls, to_ns) = next_end_ns(&mut cluster);
        ((calls - calls_before) as usize * self.len * 8) as f64 / (to_ns - from_ns) as f64
    }
}
