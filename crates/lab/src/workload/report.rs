//! What came of a workload.

use hdrhistogram::Histogram;

use super::faults::Fault;

/// What came of a workload. Equal seeds have equal ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What all chance follows from.
    pub seed: u64,
    /// Equal for equal runs, see [`sinew_sim::Network::trace_hash`].
    pub trace_hash: u64,
    /// How long all sessions took to open, in nanoseconds.
    pub opened_ns: u64,
    /// What was not counted, in nanoseconds.
    pub warm_up_ns: u64,
    /// What was counted, in nanoseconds.
    pub duration_ns: u64,
    /// Packets that reached a port.
    pub delivered: u64,
    /// Packets that did not.
    pub lost: u64,
    /// Packets of which a fault flipped a bit.
    pub corrupted: u64,
    /// Packets that were marked for a long queue.
    pub marked: u64,
    /// Times that a sender was asked to pause.
    pub pauses: u64,
    /// Of each group of clients.
    pub groups: Vec<GroupReport>,
    /// The deepest queues, the deepest first.
    pub queues: Vec<Queue>,
    /// Where packets were lost, most first.
    pub drops: Vec<Drops>,
    /// What went wrong on links, as the workload says.
    pub faults: Vec<FaultReport>,
    /// What happened when.
    pub series: Series,
}

/// What a group of clients found.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReport {
    /// Its name.
    pub name: String,
    /// Its endpoints.
    pub endpoints: usize,
    /// Their sessions.
    pub sessions: usize,
    /// Sessions that are gone.
    pub sessions_lost: usize,
    /// Data of requests and responses that arrived, without headers; what came in vain is taken off by number of packets.
    pub goodput_gbps: f64,
    /// Calls that were answered.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Times that packets of calls were sent again.
    pub retransmissions: u64,
    /// How long calls took.
    pub latency: Option<Percentiles>,
    /// Round trips of packets, where clients measure them.
    pub rtt: Option<Percentiles>,
    /// The lowest, the median and the highest rate that congestion control lets sessions have, at the end.
    pub rates_gbps: Option<[f64; 3]>,
    /// How much of their time the cores of clients, and those of servers, did anything: 0 to 1. They poll for the rest of it.
    pub cores_at_work: [f64; 2],
}

/// Of many times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// The median.
    pub p50_ns: u64,
    /// 99 % are no longer.
    pub p99_ns: u64,
    /// 99.9 % are no longer.
    pub p999_ns: u64,
    /// None is longer.
    pub max_ns: u64,
}

impl Percentiles {
    /// None of nothing.
    pub(super) fn of(times: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| Self { p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), max_ns: times.max() })
    }
}

/// What waited for a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// The port: from where to where.
    pub port: String,
    /// The most bytes that waited.
    pub max_bytes: u64,
    /// The mean of what waited at the ends of the series' intervals, in bytes.
    pub mean_bytes: f64,
}

/// A place where packets were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops {
    /// A switch's port, or an endpoint's receive queue.
    pub place: String,
    /// So many.
    pub packets: u64,
}

/// A time in which something went wrong on links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    /// What.
    pub name: String,
    /// When it began, in nanoseconds from when all sessions were open.
    pub start_ns: u64,
    /// When it was over.
    pub stop_ns: u64,
}

impl FaultReport {
    pub(super) fn of(fault: &Fault) -> Self {
        Self { name: fault.name.clone(), start_ns: fault.start_ns, stop_ns: fault.stop_ns }
    }
}

/// What happened in intervals of virtual time, the warm-up included. Each list has as many entries as there are times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// The ends of the intervals, from when all sessions were open, in nanoseconds.
    pub times_ns: Vec<u64>,
    /// Of each group, by its place in [`Report::groups`].
    pub goodput_gbps: Vec<Vec<f64>>,
    /// The most bytes that waited, of the first of [`Report::queues`].
    pub queues_bytes: Vec<Vec<u64>>,
    /// The lowest, the median and the highest rate of each group's sessions; empty without congestion control.
    pub rates_gbps: Vec<Vec<[f64; 3]>>,
}
