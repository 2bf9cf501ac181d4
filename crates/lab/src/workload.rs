//! Workloads: groups of clients that call servers on a simulated cluster, and what comes of it.
//!
//! [`Workload::parse`] reads one, as `docs/workloads.md` says and `workloads/incast.toml` shows; [`run`] runs it, and [`html`] draws it.

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

pub use faults::{Fault, Trouble};
pub use page::html;
pub use report::{Drops, FaultReport, GroupReport, Percentiles, Queue, Report, Series};
pub use run::{RunError, run, run_on};
pub use sizes::{Curve, Sizes};

/// Switches that a warning names.
const NAMED_MAX: usize = 5;

/// Clients, whom they call, and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// From when all sessions are open until what happens is counted, in nanoseconds.
    pub warm_up_ns: u64,
    /// What is counted, in nanoseconds.
    pub duration_ns: u64,
    /// Packets that a session may have on their way.
    pub credits: u16,
    /// Calls that a session can have going on.
    pub slots: u16,
    /// Which packets are sent again when some were lost.
    pub recovery: Recovery,
    /// Whether time-outs follow the round trips.
    pub timeout: Timeout,
    /// How long they are, at least.
    pub retransmit_timeout_ns: u64,
    /// Congestion control; its rate is replaced by that of each client's link.
    pub congestion: Option<Congestion>,
    /// The clients. Each group has endpoints of its own at its servers.
    pub groups: Vec<Group>,
    /// What goes wrong on links, and when: no two on one link at a time.
    pub faults: Vec<Fault>,
}

/// Clients that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name, which no other has.
    pub name: String,
    /// Where they are.
    pub hosts: Vec<HostId>,
    /// Endpoints, each with a core, on each of these.
    pub endpoints: usize,
    /// Whom they call, each call to another, by chance. Nobody calls the host that it is on.
    pub servers: Vec<HostId>,
    /// Endpoints at each server; those of a client's host are dealt out to them.
    pub server_endpoints: usize,
    /// Bytes of a request.
    pub request: Sizes,
    /// Bytes of a response.
    pub response: Sizes,
    /// Calls that an endpoint has going on: all the time; or at most, where they come by the clock.
    pub window: usize,
    /// Calls a second of an endpoint, which come by chance whether or not others are answered (a Poisson process). A call that finds the window full waits,
    /// and its latency counts from when it came. None: each call follows another.
    pub calls_per_s: Option<f64>,
    /// From this time on calls are made; 0 is where the warm-up begins.
    pub start_ns: u64,
    /// From this time on none is begun.
    pub stop_ns: u64,
}

impl Workload {
    /// From when all sessions are open to the end.
    pub fn end_ns(&self) -> u64 {
        self.warm_up_ns + self.duration_ns
    }

    /// What makes the workload on a topology another than its author may think, and what to change.
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
            "dcqcn goes by marks, and {}{more} mark nothing: queues there hold nobody back; give them ecn = {{}} in the topology",
            named.join(", ")
        )]
    }
}
