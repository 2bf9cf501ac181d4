//! Table 5: an incast, with congestion control and without.

use super::{ALGORITHMS, BETTER_THAN_THE_PAPER, NO_CONTROL, Named, PAPERS_TIMELY};
use crate::experiment::{Comparison, Experiment, Row};
use crate::incast::{Incast, RATE_GBPS};

/// Experiment for Table 5.
pub struct Table5;

/// Clients; whether there is congestion control; total Gbps, and median and 99th percentile of the round trips in us.
const PAPER: [(usize, bool, [f64; 3]); 6] = [
    (20, true, [21.8, 39.0, 67.0]),
    (20, false, [23.1, 202.0, 204.0]),
    (50, true, [18.4, 34.0, 174.0]),
    (50, false, [23.0, 524.0, 524.0]),
    (100, true, [22.8, 349.0, 969.0]),
    (100, false, [23.0, 1056.0, 1060.0]),
];

impl Experiment for Table5 {
    fn id(&self) -> &'static str {
        "nsdi19-table5"
    }

    fn title(&self) -> &'static str {
        "An incast, with congestion control and without"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.5, Table 5"
    }

    fn setup(&self) -> &'static str {
        "Clients of the simulated CX4 cluster send requests of 8 MB to one server, one at a time each, with 32 \
         credits. The round trips are those that clients measure, which are one for each run of packets, not one for \
         each packet. The hundredth client shares a host."
    }

    fn remark(&self) -> &'static str {
        BETTER_THAN_THE_PAPER
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut runs = Vec::new();
        for (clients, is_controlled, paper) in PAPER {
            if is_controlled {
                let of = |(suffix, name, congestion): Named| {
                    (clients, suffix, format!("with {name}"), Some(congestion(RATE_GBPS)), Some(paper))
                };
                runs.extend(ALGORITHMS.map(of));
            } else {
                runs.push((clients, NO_CONTROL.0, NO_CONTROL.1.to_owned(), None, Some(paper)));
            }
        }
        // Cost of congestion control for a client that is alone.
        runs.extend(
            ALGORITHMS.map(|(suffix, name, congestion)| {
                (1, suffix, format!("with {name}"), Some(congestion(RATE_GBPS)), None)
            }),
        );
        let mut rows = Vec::new();
        for (done, (clients, suffix, how, congestion, paper)) in runs.iter().enumerate() {
            progress(done as f64 / runs.len() as f64);
            let found = Incast::of(*clients, *congestion).run();
            let metrics = [
                ("bw", "total bandwidth", "Gbps", Some(found.gbps)),
                ("p50", "median RTT", "us", found.rtt_p50_us),
                ("p99", "99% RTT", "us", found.rtt_p99_us),
            ];
            for (at, (metric, what, unit, model)) in metrics.into_iter().enumerate() {
                rows.push(Row {
                    id: format!("erpc.incast{clients}{suffix}.{metric}"),
                    place: paper.map(|_| "Table 5"),
                    case: format!("{clients}-way incast {how}"),
                    metric: what.to_owned(),
                    paper: paper.map(|paper| paper[at]),
                    against: if congestion.is_some() { Comparison::Other(PAPERS_TIMELY) } else { Comparison::Same },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incasts_without_congestion_control_are_the_papers_and_with_it_no_worse() {
        let rows = Table5.run(&mut |_| {});
        let of = |id: &str| {
            let row = rows.iter().find(|row| row.id == format!("erpc.incast{id}")).unwrap();
            (row.model.unwrap(), row.paper)
        };
        for (clients, is_controlled, _) in PAPER {
            for metric in ["bw", "p50", "p99"] {
                let suffix = if is_controlled { "" } else { ".nocc" };
                let (model, paper) = of(&format!("{clients}{suffix}.{metric}"));
                let ratio = model / paper.unwrap();
                let is_good = match (is_controlled, metric) {
                    (false, _) => (0.9..1.1).contains(&ratio),
                    (true, "bw") => ratio >= 0.9,
                    (true, _) => ratio <= 1.0,
                };
                assert!(is_good, "{clients}{suffix}.{metric}: {ratio}");
            }
        }
        // One configuration serves all: 100 clients find short queues, and a client that is alone has the link.
        for suffix in ["", ".swift"] {
            assert!(of(&format!("100{suffix}.p99")).0 < 300.0 && of(&format!("1{suffix}.bw")).0 > 0.9 * RATE_GBPS);
        }
    }
}
