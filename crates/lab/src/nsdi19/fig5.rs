//! Figure 5: small calls on a hundred nodes, with a growing number of threads.

use sinew_harness::units::counted;
use sinew_sim::Topology;

use crate::experiment::{Comparison, Experiment, Row};
use crate::small_calls::{Outcome, SmallCalls};

/// Experiment for Figure 5.
pub struct Fig5;

const MS: u64 = 1_000_000;
const NODES: usize = 100;

/// A value of the paper, for a number of threads per node.
struct Published {
    threads: usize,
    id: &'static str,
    value: f64,
}

const PAPER: [Published; 5] = [
    Published { threads: 1, id: "erpc.node1.p50", value: 12.7 },
    Published { threads: 10, id: "erpc.node10", value: 12.3 },
    Published { threads: 10, id: "erpc.node10.sessions", value: 19_980.0 },
    Published { threads: 10, id: "erpc.node10.p9999", value: 700.0 },
    Published { threads: 10, id: "erpc.node10.retransmissions", value: 1_700.0 },
];

/// Threads per node, and milliseconds that are counted.
const RUNS: [(usize, u64); 3] = [(1, 5), (2, 5), (10, 20)];

impl Experiment for Fig5 {
    fn id(&self) -> &'static str {
        "nsdi19-fig5"
    }

    fn title(&self) -> &'static str {
        "Small calls on a hundred nodes"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.3, Figure 5"
    }

    fn setup(&self) -> &'static str {
        "All hundred hosts of the simulated CX4 cluster, with one to ten threads each. Every thread has a session to \
         every other one, keeps 20 batches of three calls of 32 B in flight on random sessions, and answers others' \
         calls, with congestion control. The paper's figures for the 99.99th percentile and for retransmissions are \
         upper bounds. Latencies count from the beginning of a batch."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        // A run takes as long as its packets take to simulate.
        let weight = |(threads, measured_ms): (usize, u64)| threads as f64 * (measured_ms as f64 + threads as f64);
        let all: f64 = RUNS.into_iter().map(weight).sum();
        let (mut rows, mut done) = (Vec::new(), 0.0);
        for run in RUNS {
            let (threads, measured_ms) = run;
            let calls = SmallCalls {
                nodes: NODES,
                threads,
                batch: 3,
                window: 60,
                rate_gbps: Some(25.0),
                warm_up_ns: MS,
                measured_ns: measured_ms * MS,
            };
            let outcome = calls.run(Topology::cx4(), &mut |part| progress((done + part * weight(run)) / all));
            done += weight(run);
            rows.extend(rows_of(&calls, &outcome));
        }
        rows
    }
}

fn rows_of(calls: &SmallCalls, outcome: &Outcome) -> Vec<Row> {
    let threads = calls.threads;
    let us = |part: f64| outcome.latencies_ns.value_at_quantile(part) as f64 / 1e3;
    let per_node_s = NODES as f64 * calls.measured_ns as f64 / 1e9;
    let metrics = [
        ("", "calls of each node", calls.rate_mops(outcome), "M/s"),
        (".p50", "median latency", us(0.5), "us"),
        (".p99", "99% latency", us(0.99), "us"),
        (".p9999", "99.99% latency", us(0.9999), "us"),
        (".sessions", "sessions of each node", outcome.sessions_per_node, "sessions"),
        (".retransmissions", "packets sent again by each node", outcome.retransmissions as f64 / per_node_s, "/s"),
        (".failed", "calls that failed", outcome.failed as f64, "calls"),
        (".packets", "packets that arrived", outcome.delivered as f64 / 1e6, "M"),
    ];
    let rows = metrics.into_iter().map(|(suffix, what, model, unit)| {
        let id = format!("erpc.node{threads}{suffix}");
        let paper = PAPER.iter().find(|published| published.threads == threads && published.id == id);
        Row {
            place: Some("6.3, Figure 5"),
            case: format!("{} a node", counted(threads, "thread")),
            metric: what.to_owned(),
            paper: paper.map(|published| published.value),
            against: match suffix {
                ".p9999" | ".retransmissions" => Comparison::AtMost,
                ".sessions" => Comparison::Calibrated,
                _ => Comparison::Same,
            },
            model: Some(model),
            measured: None,
            unit,
            id,
            missing_because: None,
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_small_cluster_share_their_link_and_lose_nothing() {
        let calls = SmallCalls {
            nodes: 6,
            threads: 4,
            batch: 3,
            window: 60,
            rate_gbps: Some(25.0),
            warm_up_ns: MS / 10,
            measured_ns: MS / 2,
        };
        let run = || calls.run(Topology::cx4(), &mut |_| ());
        let outcome = run();
        // A packet has 122 bytes on the link, and a node sends two for each of its calls, except for calls within the
        // node.
        let (rate, limit) = (calls.rate_mops(&outcome), 25e3 / 8.0 / 122.0 / 2.0 * 23.0 / 20.0);
        assert!((0.95..1.02).contains(&(rate / limit)), "{rate} of {limit}");
        assert_eq!((outcome.failed, outcome.retransmissions), (0, 0));
        assert_eq!(outcome.sessions_per_node, 2.0 * 4.0 * 23.0);
        assert!(outcome.delivered >= 2 * outcome.calls - 2 * 24 * 60, "{outcome:?}");
        assert_eq!(outcome.latencies_ns, run().latencies_ns, "equal seeds make equal runs");
    }
}
