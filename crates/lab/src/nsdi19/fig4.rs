//! Figure 4: rate of small calls of one thread.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_rpc::Config;
use sinew_sim::{Cluster, HostId, Network, PortConfig, Topology};

use crate::experiment::{Comparison, Experiment, Row};
use crate::programs::{SHORT, Sender, SenderResult, Server, nsdi19, percentile, sink, start};
use crate::small_calls::SmallCalls;

/// Experiment for Figure 4.
pub struct Fig4;

const MS: u64 = 1_000_000;

/// Calls per batch, and millions of calls per second of a thread if the text has them.
const PAPER: [(usize, Option<f64>); 3] = [(3, Some(4.96)), (5, None), (11, None)];
/// Latency of a lone call between two hosts of a rack, in us (Table 2).
const LONE_US: f64 = 3.7;

impl Experiment for Fig4 {
    fn id(&self) -> &'static str {
        "nsdi19-fig4"
    }

    fn title(&self) -> &'static str {
        "Small calls of one thread"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.2, Figure 4"
    }

    fn setup(&self) -> &'static str {
        "Eleven hosts of the simulated CX4 cluster with a thread each, which keeps 60 calls of 32 B in flight, in \
         batches to random others, and answers theirs, with congestion control. The simulator's costs were calibrated \
         on the rate with batches of 3 and the latency of a lone call (Table 2): these rows show that, and nothing \
         else. The text has no figures for the other batches on CX4."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let steps = PAPER.len() + 1;
        let row = |id, place, metric, paper, model, unit| Row {
            id,
            place: Some(place),
            case: String::new(),
            metric,
            paper,
            against: Comparison::Calibrated,
            model,
            measured: None,
            unit,
            missing_because: None,
        };
        let mut rows = vec![row(
            "erpc.lat.cx4".to_owned(),
            "Table 2",
            "a lone call, median latency".to_owned(),
            Some(LONE_US),
            lone_us(Topology::cx4(), 5),
            "us",
        )];
        for (done, (batch, paper)) in PAPER.into_iter().enumerate() {
            let calls = in_batches_of(batch, 5 * MS);
            let mut part = |part| progress((1.0 + done as f64 + part) / steps as f64);
            let outcome = calls.run(Topology::cx4(), &mut part);
            let id = format!("erpc.rate.cx4{}", if batch == 3 { String::new() } else { format!(".b{batch}") });
            let metric = format!("batches of {batch}, calls of each thread");
            rows.push(row(id, "Figure 4", metric, paper, Some(calls.rate_mops(&outcome)), "M/s"));
        }
        rows
    }
}

fn in_batches_of(batch: usize, measured_ns: u64) -> SmallCalls {
    SmallCalls { nodes: 11, threads: 1, batch, window: 60, rate_gbps: Some(25.0), warm_up_ns: MS / 5, measured_ns }
}

/// Median latency in us of a client on host `from` that makes one call of 32 B at a time to the first host. (Racks take
/// the hosts in turn.)
pub(super) fn lone_us(topology: Topology, from: usize) -> Option<f64> {
    let network = Network::new(topology, 1).expect("the topology is the paper's");
    let mut cluster = Cluster::new(&network);
    let nexus = sink(Config { overcommit: true, ..nsdi19() });
    let (port, found) = (PortConfig::default(), Rc::<RefCell<SenderResult>>::default());
    start(&mut cluster, &nexus, HostId(0), "server", port, |rpc, _| Server(rpc));
    start(&mut cluster, &nexus, HostId(from), "client", port, |rpc, clock| {
        Sender::new(rpc, clock, "server", SHORT, 1, &found)
    });
    cluster.run_until(MS);
    let mut latencies_ns = std::mem::take(&mut found.borrow_mut().latencies_ns);
    latencies_ns.sort_unstable();
    percentile(&latencies_ns, 0.5).map(|ns| ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_and_latencies_are_calibrated_to_one_rate_and_one_latency() {
        let lone_us = lone_us(Topology::cx4(), 5).unwrap();
        assert!((lone_us / LONE_US - 1.0).abs() < 0.01, "{lone_us}");
        let (calls, paper) = (in_batches_of(3, MS / 2), PAPER[0].1.unwrap());
        let rate = calls.rate_mops(&calls.run(Topology::cx4(), &mut |_| ()));
        assert!((rate / paper - 1.0).abs() < 0.02, "{rate}");
    }
}
