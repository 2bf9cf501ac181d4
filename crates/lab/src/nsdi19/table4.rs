//! Table 4: large requests of one thread while packets are lost.

use sinew_rpc::{Config, Recovery, Timeout};
use sinew_sim::Costs;

use super::large_calls::{LargeCalls, singly};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Table 4.
pub struct Table4;

const LEN: usize = 8 << 20;
/// The row on which the cost of copying was calibrated.
const CALIBRATED: &str = "erpc.large";

/// A way to recover lost packets, with the suffix and the description of its rows.
#[derive(Clone, Copy)]
struct Mode {
    recovery: Recovery,
    timeout: Timeout,
    retransmit_timeout_ns: u64,
    suffix: &'static str,
    with: &'static str,
}

/// The paper's way: go-back-N, and a time-out of 5 ms.
const PAPERS: Mode = Mode {
    recovery: Recovery::GoBackN,
    timeout: Timeout::Fixed,
    retransmit_timeout_ns: 5_000_000,
    suffix: "",
    with: "go-back-N",
};
const SELECTIVE: Mode = Mode {
    // InfiniBand keeps the order of packets.
    recovery: Recovery::Selective { packet_threshold: 1 },
    suffix: ".selective",
    with: "selective",
    ..PAPERS
};
const ADAPTIVE: Mode = Mode {
    timeout: Timeout::Adaptive,
    retransmit_timeout_ns: 100_000,
    suffix: ".adaptive",
    with: "adaptive time-out",
    ..PAPERS
};
const BOTH: Mode = Mode {
    timeout: ADAPTIVE.timeout,
    retransmit_timeout_ns: ADAPTIVE.retransmit_timeout_ns,
    suffix: ".selective_adaptive",
    with: "both",
    ..SELECTIVE
};

/// Probability that a packet is lost, the same as text, the paper's Gbps, and milliseconds that are measured.
const LOSSES: [(f64, &str, f64, u64); 5] = [
    (1e-7, "1e-7", 73.0, 250),
    (1e-6, "1e-6", 71.0, 1_000),
    (1e-5, "1e-5", 57.0, 1_500),
    (1e-4, "1e-4", 18.0, 3_000),
    (1e-3, "1e-3", 2.5, 8_000),
];
/// Cases that the paper does not have.
const OTHERS: [(f64, &str, Mode, u64); 6] = [
    (1e-4, "1e-4", SELECTIVE, 250),
    (1e-3, "1e-3", SELECTIVE, 250),
    (1e-4, "1e-4", ADAPTIVE, 250),
    (1e-3, "1e-3", ADAPTIVE, 250),
    (1e-3, "1e-3", BOTH, 250),
    (1e-2, "1e-2", BOTH, 250),
];

impl Experiment for Table4 {
    fn id(&self) -> &'static str {
        "nsdi19-table4"
    }

    fn title(&self) -> &'static str {
        "Large requests, while packets are lost"
    }

    fn source(&self) -> &'static str {
        "nsdi19 6.4, Table 4"
    }

    fn setup(&self) -> &'static str {
        "One thread keeps one request of 8 MB in flight to another over simulated 100 Gbps InfiniBand, with 32 credits \
         and a credit return for each packet. Packets are lost with the same probability in both directions. The cost \
         of copying was calibrated on the bandwidth without losses. There is no congestion control: these round trips, \
         of 14 us, are below the 50 us from which nsdi19's acts. The more losses, the longer the run: from a quarter \
         of a second of virtual time, in which 1e-7 most likely loses none of a million packets, to eight seconds. \
         From 1e-5 on, rows rest on some fifty losses and more. The paper had go-back-N and a time-out of 5 ms; the \
         other rows have selective retransmission, a time-out that follows the round trips (at least 0.1 ms), or both."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let row = |id: String, place, case: &str, metric: String, paper, model| Row {
            against: if id == CALIBRATED { Comparison::Calibrated } else { Comparison::Same },
            id,
            place,
            case: format!("8 MB requests, {case}"),
            metric,
            paper,
            model: Some(model),
            measured: None,
            unit: "Gbps",
            missing_because: None,
        };
        let whole = Costs::default();
        let uncopied = Costs { copy_line_ns: 0, ..whole };
        let mut rows = vec![
            row(
                CALIBRATED.into(),
                Some("6.4"),
                PAPERS.with,
                "no loss".into(),
                Some(75.0),
                gbps(PAPERS, 0.0, whole, 100),
            ),
            row(
                "erpc.large.nocopy".into(),
                Some("6.4"),
                PAPERS.with,
                "no loss, server does not copy".into(),
                Some(92.0),
                gbps(PAPERS, 0.0, uncopied, 100),
            ),
        ];
        let papers = LOSSES.map(|(loss, name, gbps, ms)| (loss, name, PAPERS, Some(gbps), ms));
        let others = OTHERS.map(|(loss, name, mode, ms)| (loss, name, mode, None, ms));
        let steps = (papers.len() + others.len()) as f64;
        for (done, (loss, name, mode, paper, ms)) in papers.into_iter().chain(others).enumerate() {
            progress(done as f64 / steps);
            let id = format!("erpc.loss.{name}{}", mode.suffix);
            let metric = format!("loss {name}");
            rows.push(row(id, paper.map(|_| "Table 4"), mode.with, metric, paper, gbps(mode, loss, whole, ms)));
        }
        rows
    }
}

fn gbps(mode: Mode, loss: f64, of_server: Costs, measured_ms: u64) -> f64 {
    let config = Config {
        recovery: mode.recovery,
        timeout: mode.timeout,
        retransmit_timeout_ns: mode.retransmit_timeout_ns,
        ..singly()
    };
    LargeCalls { len: LEN, config, of_client: Costs::default(), of_server, loss, measured_ms }.gbps()
}

#[cfg(test)]
mod tests {
    use sinew_sim::Topology;

    use super::*;

    fn assert_near(found: f64, paper: f64, part: f64) {
        assert!((found / paper - 1.0).abs() < part, "{found} where the paper has {paper}");
    }

    #[test]
    fn copying_and_latencies_are_calibrated_to_one_bandwidth_and_one_latency() {
        assert_near(super::super::fig4::lone_us(Topology::cx5(), 1).unwrap(), 2.3, 0.01);
        assert_near(gbps(PAPERS, 0.0, Costs::default(), 10), 75.0, 0.03);
    }

    #[test]
    fn lost_packets_cost_time_outs_and_selective_retransmission_saves_them() {
        assert_near(gbps(PAPERS, 1e-4, Costs::default(), 400), 18.0, 0.3);
        let selective = gbps(SELECTIVE, 1e-4, Costs::default(), 50);
        assert!(selective > 60.0, "{selective}");
    }
}
