//! Figure 8: what batches cost in latency.

use sinew_harness::units::counted;

use super::profile;
use crate::experiment::{Comparison, Experiment, Row};
use crate::services::sequencer::{Design, SequencerResult, SequencerRun};

/// Experiment for Figure 8.
pub struct Fig8;

/// Clients, and calls in flight of each.
const LOADS: [(usize, usize); 6] = [(10, 1), (35, 1), (70, 1), (70, 2), (70, 4), (70, 8)];
/// Loads count as alike if their rates differ by less than this share.
const ALIKE: f64 = 0.15;

impl Experiment for Fig8 {
    fn id(&self) -> &'static str {
        "atc16-fig8"
    }

    fn title(&self) -> &'static str {
        "What batches cost in latency"
    }

    fn source(&self) -> &'static str {
        "atc16 4.2.2, Figure 8"
    }

    fn setup(&self) -> &'static str {
        "Spec-S0 on ten cores of a host with a modelled Connect-IB; its answers to a burst share a doorbell, or have \
         one each. The text says how much batches add to the latency at most (1 us); it has no figures for the curves."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let (mut rows, mut added_us) = (Vec::new(), 0.0f64);
        for (done, (clients, window)) in LOADS.into_iter().enumerate() {
            progress(done as f64 / LOADS.len() as f64);
            let [each, batched] = [false, true].map(|is_batched| run(clients, window, is_batched));
            let case = format!("{clients} clients, {} each", counted(window, "call"));
            for (suffix, how, found) in [("each", "a doorbell each", &each), ("batch", "batches", &batched)] {
                let id = format!("seq.latency.{clients}x{window}.{suffix}");
                rows.push(Row::model(format!("{id}.rate"), format!("{how}, rate"), found.mops, "M/s").case(&*case));
                rows.push(Row::model(id, format!("{how}, mean latency"), found.mean_ns / 1e3, "us").case(&*case));
            }
            if (batched.mops / each.mops - 1.0).abs() < ALIKE {
                added_us = added_us.max((batched.mean_ns - each.mean_ns) / 1e3);
            }
        }
        let metric = "what batches add to the latency at most, at like rates";
        rows.push(Row::model("seq.batch_latency", metric, added_us, "us").paper("4.2.2", 1.0, Comparison::AtMost));
        rows
    }
}

fn run(clients: usize, window: usize, is_batched: bool) -> SequencerResult {
    let design = Design::Spec { queue_pairs: 2, is_batched };
    SequencerRun { clients, window, ..SequencerRun::atc16(design, 10) }.run(&profile("cib"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_less_than_a_microsecond_and_raise_the_rate() {
        let [each, batched] = [false, true].map(|is_batched| run(70, 1, is_batched));
        assert!(batched.mean_ns - each.mean_ns < 1000.0, "{each:?} {batched:?}");
        let [each, batched] = [false, true].map(|is_batched| run(70, 8, is_batched));
        assert!(batched.mops > each.mops, "{each:?} {batched:?}");
    }
}
