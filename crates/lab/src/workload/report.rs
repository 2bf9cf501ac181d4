//! The results of a workload.

use hdrhistogram::Histogram;

use super::faults::Fault;

/// Results of a workload. Equal seeds give equal results.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Seed of all that is random.
    pub seed: u64,
    /// Hash of the run, equal for equal runs; see [`sinew_sim::Network::trace_hash`].
    pub trace_hash: u64,
    /// Time that all sessions took to open, in ns.
    pub opened_ns: u64,
    /// Time that was not counted, in ns.
    pub warm_up_ns: u64,
    /// Time that was counted, in ns.
    pub duration_ns: u64,
    /// Packets that reached a port.
    pub delivered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Packets in which a fault flipped a bit.
    pub corrupted: u64,
    /// Packets that were marked for a long queue.
    pub marked: u64,
    /// Times that a sender was asked to pause.
    pub pauses: u64,
    /// Results of each group of clients.
    pub groups: Vec<GroupReport>,
    /// The deepest queues, the deepest first.
    pub queues: Vec<Queue>,
    /// Places where packets were lost, the most losses first.
    pub drops: Vec<Drops>,
    /// Faults of links, as in the workload.
    pub faults: Vec<FaultReport>,
    /// Values over time.
    pub series: Series,
}

/// Results of a group of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReport {
    /// Name of the group.
    pub name: String,
    /// Endpoints of the group.
    pub endpoints: usize,
    /// Sessions of these endpoints.
    pub sessions: usize,
    /// Sessions that have ended.
    pub sessions_lost: usize,
    /// Rate of data of requests and responses that arrived, in Gb/s, without headers. The share of packets that were
    /// dropped on arrival is subtracted.
    pub goodput_gbps: f64,
    /// Calls that were answered.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Retransmissions of calls' packets.
    pub retransmissions: u64,
    /// Times of calls; none if none was answered.
    pub latency: Option<Percentiles>,
    /// Round trips of packets; none if none was measured.
    pub rtt: Option<Percentiles>,
    /// Lowest, median and highest rate in Gb/s that congestion control allows the sessions, at the end.
    pub rates_gbps: Option<[f64; 3]>,
    /// Share of time that the clients' cores, and the servers' cores, worked, from 0 to 1. They poll for the rest of
    /// it.
    pub cores_at_work: [f64; 2],
}

/// Percentiles of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest time.
    pub max_ns: u64,
}

impl Percentiles {
    /// Percentiles of a histogram; none if it is empty.
    pub(super) fn of(times: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| Self { p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), max_ns: times.max() })
    }
}

/// A queue at a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// The port, by the nodes from which and to which it sends.
    pub port: String,
    /// Most bytes that waited.
    pub max_bytes: u64,
    /// Mean of the bytes that waited at the ends of the series' intervals.
    pub mean_bytes: f64,
}

/// A place where packets were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops {
    /// A switch's port, or an endpoint's receive queue.
    pub place: String,
    /// Packets lost there.
    pub packets: u64,
}

/// A fault of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    /// Its name.
    pub name: String,
    /// Its beginning, in ns since all sessions were open.
    pub start_ns: u64,
    /// Its end, in ns since all sessions were open.
    pub stop_ns: u64,
}

impl FaultReport {
    pub(super) fn of(fault: &Fault) -> Self {
        Self { name: fault.name.clone(), start_ns: fault.start_ns, stop_ns: fault.stop_ns }
    }
}

/// Values for intervals of virtual time, including the warm-up. Each list has as many entries as there are times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Ends of the intervals, in ns since all sessions were open.
    pub times_ns: Vec<u64>,
    /// Goodput of each group, in the order of [`Report::groups`].
    pub goodput_gbps: Vec<Vec<f64>>,
    /// Most bytes that waited in each interval, for the first of [`Report::queues`].
    pub queues_bytes: Vec<Vec<u64>>,
    /// Lowest, median and highest rate of each group's sessions, in Gb/s; empty without congestion control.
    pub rates_gbps: Vec<Vec<[f64; 3]>>,
}
