//! Incasts on nsdi19's CX4 cluster: many clients send to one server as fast as they may.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_rpc::{Config, Congestion};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, Topology};
use sinew_wire::HEADER_LEN;

use crate::programs::{Endpoint, Sender, SenderResult, measuring, nsdi19, percentile, sink, start, turn};

/// Rate of the cluster's links to hosts, in Gb/s.
pub const RATE_GBPS: f64 = 25.0;

/// An incast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incast {
    /// Clients that send, each one request at a time.
    pub clients: usize,
    /// Bytes of a request.
    pub len: usize,
    /// Congestion control at the clients; none if they only measure round trips.
    pub congestion: Option<Congestion>,
    /// Virtual time before anything is counted, in ns.
    pub warm_up_ns: u64,
    /// Virtual time that is counted, in ns.
    pub measured_ns: u64,
}

/// Result of an incast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Rate of data that reached the server, in Gb/s.
    pub gbps: f64,
    /// Median of the round trips that clients measured; none if none was measured.
    pub rtt_p50_us: Option<f64>,
    /// 99th percentile of the round trips.
    pub rtt_p99_us: Option<f64>,
}

/// The server, which answers calls.
struct Victim {
    rpc: Endpoint,
    /// Packets that were dropped: duplicates, and packets out of order.
    refused: Rc<Cell<u64>>,
}

impl Actor for Victim {
    fn turn(&mut self) -> ActorState {
        let doing = turn(&mut self.rpc);
        self.refused.set(self.rpc.stats().dropped_total());
        doing
    }
}

impl Incast {
    /// An incast of `clients` clients that send requests of 8 MB, counted for 40 ms once the first bursts are over.
    pub fn of(clients: usize, congestion: Option<Congestion>) -> Self {
        const MS: u64 = 1_000_000;
        Self { clients, len: 8 << 20, congestion, warm_up_ns: 40 * MS, measured_ns: 40 * MS }
    }

    /// Runs the incast.
    pub fn run(&self) -> Outcome {
        let topology = Topology::cx4();
        let others = topology.hosts.len() - 1;
        let network = Network::new(topology, 1).expect("the topology is the paper's");
        let mut cluster = Cluster::new(&network);
        let congestion = self.congestion.unwrap_or(measuring(RATE_GBPS));
        let congestion = Some(Congestion { rtts_kept: 64, ..congestion });
        let config = Config { overcommit: true, congestion, ..nsdi19() };
        let nexus = sink(config);
        let port = PortConfig::default();
        let refused = Rc::<Cell<u64>>::default();
        let counted = Rc::clone(&refused);
        // There is room for a request of each client: one without room is refused and retransmitted again and again.
        let roomy = PortConfig { arena_bytes: port.arena_bytes.max(2 * self.clients * self.len), ..port };
        start(&mut cluster, &nexus, HostId(0), "victim", roomy, |rpc, _| Victim { rpc, refused: counted });
        let found = Rc::<RefCell<SenderResult>>::default();
        for client in 0..self.clients {
            let host = HostId(1 + client % others);
            start(&mut cluster, &nexus, host, &format!("client{client}"), port, |rpc, clock| {
                Sender::new(rpc, clock, "victim", self.len, 1, &found)
            });
        }
        cluster.run_until(self.warm_up_ns);
        found.borrow_mut().clear();
        // Packets that reach the server and are new to it; all of their bytes but the headers are data.
        let received = || {
            let stats = network.port_stats("victim").unwrap_or_default();
            (stats.rx_packets, stats.rx_bytes, refused.get())
        };
        let before = received();
        cluster.run_until(self.warm_up_ns + self.measured_ns);
        let after = received();
        let packets = after.0 - before.0;
        let new_share = 1.0 - (after.2 - before.2) as f64 / packets.max(1) as f64;
        let data = (after.1 - before.1 - HEADER_LEN as u64 * packets) as f64 * new_share;
        let mut rtts_ns = std::mem::take(&mut found.borrow_mut().rtts_ns);
        rtts_ns.sort_unstable();
        let us = |part| percentile(&rtts_ns, part).map(|ns| ns as f64 / 1e3);
        Outcome { gbps: data * 8.0 / self.measured_ns as f64, rtt_p50_us: us(0.5), rtt_p99_us: us(0.99) }
    }
}
