//! The end of section 6.5: latency-sensitive calls beside an incast.

use sinew_rpc::{Config, Congestion};
use sinew_sim::{HostId, Topology};

use super::{ALGORITHMS, BETTER_THAN_THE_PAPER, NO_CONTROL, PAPERS_TIMELY};
use crate::experiment::{Comparison, Experiment, Row};
use crate::programs::nsdi19;
use crate::workload::{self, Group, Sizes, Workload};

/// Experiment for the incast with background traffic.
pub struct IncastBackground;

const MS: u64 = 1_000_000;
/// Time before anything is counted: the first bursts of all clients have to be over.
const WARM_UP_NS: u64 = 20 * MS;
const INCAST: usize = 100;
const INCAST_LEN: usize = 8 << 20;
const BACKGROUND_LEN: usize = 64 << 10;
/// The paper's 99th percentile of the latency-sensitive calls, in us.
const PAPER_P99_US: f64 = 274.0;

impl Experiment for IncastBackground {
    fn id(&self) -> &'static str {
        "nsdi19-incast-background"
    }

    fn title(&self) -> &'static str {
        "Calls that want to be fast, beside an incast"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.5, incast with background traffic"
    }

    fn setup(&self) -> &'static str {
        "A 100-way incast of requests of 8 MB on the simulated CX4 cluster; each host but the victim also calls random \
         others, one call at a time with 64 kB each way. The paper has one thread for that at each host; here there is \
         one for calls and one for the answers to others' calls. The hundredth client of the incast shares a host. The \
         figures cover 10 ms, after 20 ms in which the first bursts pass."
    }

    fn remark(&self) -> &'static str {
        BETTER_THAN_THE_PAPER
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        let with = ALGORITHMS.map(|(suffix, name, congestion)| (suffix, format!("with {name}"), Some(congestion(1.0))));
        let without = (NO_CONTROL.0, NO_CONTROL.1.to_owned(), None);
        let runs: Vec<_> = with.into_iter().chain([without]).collect();
        for (done, (suffix, how, congestion)) in runs.iter().enumerate() {
            let workload = beside_an_incast(*congestion, WARM_UP_NS, 10 * MS);
            let report = workload::run(&Topology::cx4(), &workload, 1, &mut |part| {
                progress((done as f64 + part) / runs.len() as f64);
                true
            })
            .expect("everybody goes on");
            let [incast, background] = &report.groups[..] else { unreachable!("there are two groups") };
            let us = |ns: u64| ns as f64 / 1e3;
            let latency = background.latency;
            let paper = congestion.map(|_| PAPER_P99_US);
            for (name, what, unit, paper, model) in [
                ("p99", "64 kB calls, 99% latency", "us", paper, latency.map(|it| us(it.p99_ns))),
                ("p50", "64 kB calls, median latency", "us", None, latency.map(|it| us(it.p50_ns))),
                ("bw", "bandwidth of the incast", "Gbps", None, Some(incast.goodput_gbps)),
            ] {
                rows.push(Row {
                    id: format!("erpc.incast_bg{suffix}.{name}"),
                    place: Some("6.5"),
                    case: format!("100-way incast {how}"),
                    metric: what.to_owned(),
                    paper,
                    against: Comparison::Other(PAPERS_TIMELY),
                    model,
                    measured: None,
                    unit,
                    missing_because: None,
                });
            }
        }
        rows
    }
}

/// The incast, and the calls beside it.
fn beside_an_incast(congestion: Option<Congestion>, warm_up_ns: u64, duration_ns: u64) -> Workload {
    let hosts = Topology::cx4().hosts.len();
    let others: Vec<HostId> = (1..hosts).map(HostId).collect();
    let group = |name: &str, hosts: Vec<HostId>, servers: &[HostId], request, response| Group {
        name: name.to_owned(),
        hosts,
        endpoints: 1,
        servers: servers.to_vec(),
        server_endpoints: 1,
        request: Sizes::Fixed(request),
        response: Sizes::Fixed(response),
        window: 1,
        calls_per_s: None,
        start_ns: 0,
        stop_ns: warm_up_ns + duration_ns,
    };
    let senders = others.iter().copied().cycle().take(INCAST).collect();
    let groups = vec![
        group("incast", senders, &[HostId(0)], INCAST_LEN, 32),
        group("background", others.clone(), &others, BACKGROUND_LEN, BACKGROUND_LEN),
    ];
    let Config { credits, slots, recovery, timeout, retransmit_timeout_ns, .. } = nsdi19();
    Workload {
        warm_up_ns,
        duration_ns,
        credits,
        slots,
        recovery,
        timeout,
        retransmit_timeout_ns,
        congestion,
        groups,
        faults: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beside_an_incast_are_made_by_all_but_its_victim() {
        let workload = beside_an_incast(Some(Congestion::swift(1.0)), MS / 10, MS / 5);
        let report = workload::run(&Topology::cx4(), &workload, 1, &mut |_| true).unwrap();
        let [incast, background] = &report.groups[..] else { panic!("two groups") };
        assert_eq!(
            (incast.endpoints, incast.sessions, background.endpoints, background.sessions),
            (100, 100, 99, 99 * 98)
        );
        assert!(background.calls >= 99 && background.failed == 0, "{background:?}");
        assert!(incast.goodput_gbps > 15.0 && incast.goodput_gbps < 25.0, "{incast:?}");
    }
}
