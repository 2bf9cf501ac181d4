//! Figure 6: bandwidth of large requests.

use sinew_rpc::Config;
use sinew_sim::Costs;

use super::large_calls::{LargeCalls, singly};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Figure 6.
pub struct Fig6;

/// Length in bytes from which section 6.4 states a share of the bandwidth of RDMA writes.
const LARGE: usize = 32 << 10;
/// Least value of that share, in percent.
const PAPER_PERCENT: f64 = 70.0;
/// Lengths of requests, in bytes.
const LENS: [usize; 8] = [512, 2 << 10, 8 << 10, LARGE, 128 << 10, 512 << 10, 2 << 20, 8 << 20];
/// More credits than any message needs.
const WRITE_CREDITS: u16 = 4_096;

impl Experiment for Fig6 {
    fn id(&self) -> &'static str {
        "nsdi19-fig6"
    }

    fn title(&self) -> &'static str {
        "Large requests of one thread"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.4, Figure 6"
    }

    fn setup(&self) -> &'static str {
        "One thread keeps one request in flight to another over simulated 100 Gbps InfiniBand, with 32 credits and a \
         credit return for each packet, and is answered with 32 B. Beside it is what the same wires carry if nothing \
         costs any core's time and nothing waits for credits: one RDMA write at a time could do no better. The text \
         has no figures for single lengths, but says that requests from 32 kB on have at least 70 % of the bandwidth \
         of RDMA writes: the last row has the smallest of those shares."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let row = |id, case, metric: &str, paper, model, unit| Row {
            id,
            place: Some("Figure 6"),
            case,
            metric: metric.to_owned(),
            paper,
            against: Comparison::AtLeast,
            model: Some(model),
            measured: None,
            unit,
            missing_because: None,
        };
        let mut rows = Vec::new();
        let mut least_percent = f64::INFINITY;
        for (done, len) in LENS.into_iter().enumerate() {
            progress(done as f64 / LENS.len() as f64);
            let (requests, writes) = (requests_gbps(len), writes_gbps(len));
            if len >= LARGE {
                least_percent = least_percent.min(100.0 * requests / writes);
            }
            let name = name(len);
            let id = |what| format!("erpc.large.{what}.{}", name.replace(' ', ""));
            rows.push(row(id("bw"), format!("{name} at a time"), "requests", None, requests, "Gbps"));
            rows.push(row(id("write"), format!("{name} at a time"), "what the wires carry", None, writes, "Gbps"));
        }
        let (id, case) = ("erpc.large.vs_write".to_owned(), "32 kB and more".to_owned());
        rows.push(row(id, case, "least share of the wires", Some(PAPER_PERCENT), least_percent, "%"));
        rows
    }
}

fn name(len: usize) -> String {
    match len {
        0..1_024 => format!("{len} B"),
        1_024..0x10_0000 => format!("{} kB", len >> 10),
        _ => format!("{} MB", len >> 20),
    }
}

fn requests_gbps(len: usize) -> f64 {
    let usual = Costs::default();
    LargeCalls { len, config: singly(), of_client: usual, of_server: usual, loss: 0.0, measured_ms: 10 }.gbps()
}

fn writes_gbps(len: usize) -> f64 {
    let config = Config { credits: WRITE_CREDITS, overcommit: true, ..Config::default() };
    LargeCalls { len, config, of_client: Costs::FREE, of_server: Costs::FREE, loss: 0.0, measured_ms: 10 }.gbps()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_fill_the_more_of_the_link_the_larger_they_are() {
        let [small, large] = [512, LARGE].map(|len| (requests_gbps(len), writes_gbps(len)));
        assert!(10.0 * small.0 < large.0 && small.0 < small.1 && large.0 < large.1, "{small:?} {large:?}");
    }
}
