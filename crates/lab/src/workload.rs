//! Workloads: groups of clients that call servers on a simulated cluster, and the results.
//!
//! [`Workload::parse`] reads a workload as `docs/workloads.md` describes it and `workloads/incast.toml` shows it;
//! [`run`] runs it, and [`html`] draws its report.

mod client;
mod congestion;
mod faults;
mod file;
mod page;
pub(crate) mod place;
mod report;
mod run;
mod sizes;

use sinew_rpc::{Algorithm, Congestion, Recovery, Timeout};
use sinew_sim::{HostId, Topology};

pub use faults::{Fault, FaultKind};
pub use page::html;
pub use report::{Drops, FaultReport, GroupReport, Percentiles, Queue, Report, Series};
pub use run::{RunError, run, run_on};
pub use sizes::{Curve, Sizes};

/// Most switches that a warning names.
const NAMED_MAX: usize = 5;

/// A workload: clients, the servers that they call, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Time from when all sessions are open until counting begins, in ns.
    pub warm_up_ns: u64,
    /// Time that is counted, in ns.
    pub duration_ns: u64,
    /// Packets that a session may have in flight.
    pub credits: u16,
    /// Calls that a session may have in flight.
    pub slots: u16,
    /// Choice of the packets that are retransmitted after a loss.
    pub recovery: Recovery,
    /// Whether time-outs follow the round trips.
    pub timeout: Timeout,
    /// Retransmission time-out, in ns; the least one, if time-outs follow the round trips.
    pub retransmit_timeout_ns: u64,
    /// Congestion control. Its rate is replaced by that of each client's link.
    pub congestion: Option<Congestion>,
    /// The clients. Each group has endpoints of its own at its servers.
    pub groups: Vec<Group>,
    /// Faults of links, no two of them on one link at a time.
    pub faults: Vec<Fault>,
}

/// A group of clients that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its unique name.
    pub name: String,
    /// Hosts of the clients.
    pub hosts: Vec<HostId>,
    /// Endpoints on each of these hosts, each with a core.
    pub endpoints: usize,
    /// Hosts of the servers. Each call goes to one at random, never to the host that it comes from.
    pub servers: Vec<HostId>,
    /// Endpoints on each server; the endpoints of a client's host are dealt out to them.
    pub server_endpoints: usize,
    /// Length of a request, in bytes.
    pub request: Sizes,
    /// Length of a response, in bytes.
    pub response: Sizes,
    /// Calls in flight of an endpoint: always this many; at most, if `calls_per_s` is set.
    pub window: usize,
    /// Calls per second of an endpoint, which arrive at random whether or not others are answered (a Poisson process).
    /// A call that finds the window full waits, and its latency counts from its arrival. If none, each call follows an
    /// answer.
    pub calls_per_s: Option<f64>,
    /// Time from which on calls are made, in ns; 0 is the beginning of the warm-up.
    pub start_ns: u64,
    /// Time from which on no call is begun, in ns.
    pub stop_ns: u64,
}

impl Workload {
    /// Time from when all sessions are open to the end, in ns.
    pub fn end_ns(&self) -> u64 {
        self.warm_up_ns + self.duration_ns
    }

    /// Warnings where the workload on this topology may not be what its author expects, with what to change.
    pub fn warnings(&self, topology: &Topology) -> Vec<String> {
        let goes_by_marks = matches!(self.congestion, Some(Congestion { algorithm: Algorithm::Dcqcn(_), .. }));
        let silent: Vec<&str> =
            topology.switches.iter().filter(|switch| switch.ecn.is_none()).map(|switch| &*switch.name).collect();
        if !goes_by_marks || silent.is_empty() {
            return Vec::new();
        }
        let (named, more) = silent.split_at(silent.len().min(NAMED_MAX));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        vec![format!(
            "dcqcn goes by marks, and {}{more} mark nothing: queues there slow no sender down; give them ecn = {{}} in \
             the topology",
            named.join(", ")
        )]
    }
}
