//! Figure 11b: effect of batches and queue pairs on the rate of a core that sends datagrams.

use sinew_harness::load::verbs::{Op, TransportKind};
use sinew_harness::units::counted;

use super::profile;
use crate::experiment::{Comparison, Experiment, Row};
use crate::nics::rates;

/// Experiment for Figure 11b.
pub struct Fig11;

const NICS: [(&str, &str); 3] = [("cib", "Connect-IB"), ("cx3", "ConnectX-3"), ("cx", "ConnectX")];
const QPS: [usize; 3] = [1, 2, 4];

impl Experiment for Fig11 {
    fn id(&self) -> &'static str {
        "atc16-fig11"
    }

    fn title(&self) -> &'static str {
        "Batches and queue pairs for a core that sends datagrams"
    }

    fn source(&self) -> &'static str {
        "atc16 5.2.1, Figure 11b"
    }

    fn setup(&self) -> &'static str {
        "One thread sends datagrams of 60 bytes, whose work queue elements fill two cache lines: one by one, or in \
         batches of 16, on one queue pair or several. The paper says that with one queue pair batches lower the rate, \
         that two queue pairs double the rate of batches on all clusters, and that four multiply it by 2 to 3.2; \
         without batches, queue pairs change nothing."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut gains = Vec::new();
        for (done, (name, title)) in NICS.into_iter().enumerate() {
            progress(done as f64 / NICS.len() as f64);
            let nic = profile(name);
            let batched = rates::plan(Op::Send, TransportKind::Ud, 60, 16);
            let single = rates::plan(Op::Send, TransportKind::Ud, 60, 1);
            let rate = |plan, qps| rates::of_one_core(&nic, plan, qps);
            let of_batches = QPS.map(|qps| rate(&batched, qps));
            let mut push = |id: &str, case: &str, metric: &str, model: f64, unit| {
                let id = format!("{name}.fig11.{id}");
                rows.push(Row::model(id, metric, model, unit).case(case));
            };
            for qps in QPS {
                push(
                    &format!("single{qps}"),
                    title,
                    &format!("one by one, {}", counted(qps, "queue pair")),
                    rate(&single, qps),
                    "M/s",
                );
            }
            for (qps, mops) in QPS.into_iter().zip(of_batches) {
                let metric = format!("in batches, {}", counted(qps, "queue pair"));
                push(&format!("batch{qps}"), title, &metric, mops, "M/s");
            }
            gains.push((of_batches[1] / of_batches[0], of_batches[2] / of_batches[0]));
        }
        let cib = profile("cib");
        let of_four = || gains.iter().map(|(_, four)| *four);
        for (id, metric, paper, model) in [
            ("cib.multiq.2qp", "two queue pairs against one", 2.0, gains[0].0),
            ("cib.multiq.4qp.low", "four queue pairs against one, least gain", 2.0, of_four().fold(f64::MAX, f64::min)),
            ("cib.multiq.4qp.high", "four queue pairs against one, greatest gain", 3.2, of_four().fold(0.0, f64::max)),
        ] {
            let found = Row::model(id, metric, model, "x").case("batches of a core").published(&cib, "5.2.1", paper);
            rows.push(Row { against: Comparison::Same, ..found });
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_on_one_queue_pair_is_no_faster_and_queue_pairs_multiply_batches_alone() {
        let rows = Fig11.run(&mut |_| {});
        let of = |id: String| rows.iter().find(|row| row.id == id).unwrap().model.unwrap();
        for (name, _) in NICS {
            let single = |qps| of(format!("{name}.fig11.single{qps}"));
            let batch = |qps| of(format!("{name}.fig11.batch{qps}"));
            // "Interestingly, batching decreases core throughput if only one QP is used" (5.2.1).
            assert!(batch(1) < 1.03 * single(1), "{name}: {} in batches, {} one by one", batch(1), single(1));
            // "Batched throughput increases by ~ 2x on all clusters with 2 QPs" (5.2.1).
            assert!((1.7..2.2).contains(&(batch(2) / batch(1))), "{name}: {}", batch(2) / batch(1));
            assert!(batch(4) >= batch(2), "{name}");
        }
    }
}
