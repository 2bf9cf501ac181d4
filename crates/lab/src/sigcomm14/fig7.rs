//! Figure 7: effect of prefetching.

use sinew_harness::units::counted;
use sinew_herd::WorkerConfig;

use super::apt;
use crate::experiment::{Experiment, Row};
use crate::services::charges::Accesses;
use crate::services::sequencer::{Design, SequencerRun};

/// Experiment for Figure 7.
pub struct Fig7;

const CORES: std::ops::RangeInclusive<usize> = 1..=6;
/// Memory accesses of each call.
const ACCESSES: [usize; 2] = [2, 8];
/// Share of the highest rate that counts as the peak.
const PEAK: f64 = 0.95;

impl Experiment for Fig7 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig7"
    }

    fn title(&self) -> &'static str {
        "Echoes with accesses to memory, prefetched or not"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 4.1.1, Figure 7"
    }

    fn setup(&self) -> &'static str {
        "51 clients on 17 hosts with a modelled ConnectX-3 each, with four calls each. Echoes are calls with answers \
         of 8 B, whose work queue elements are as long as those of 32 B, and each answer waits for two or eight lines \
         that miss all caches: prefetched when the request is found, as HERD does, at most ten at a time, or read one \
         after the other. The cores for the peak are those with 95 % of the highest rate."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut done = 0.0;
        for accesses in ACCESSES {
            for is_prefetched in [false, true] {
                let (suffix, how) =
                    if is_prefetched { ("prefetched", "prefetched") } else { ("plain", "not prefetched") };
                let case = format!("{accesses} accesses, {how}");
                let mut rates = Vec::new();
                for cores in CORES {
                    progress(done / (4.0 * 6.0));
                    done += 1.0;
                    let mops = run(accesses, is_prefetched, cores);
                    rates.push(mops);
                    let id = format!("herd14.echo.{accesses}.{suffix}.{cores}");
                    rows.push(Row::model(id, counted(cores, "core"), mops, "M/s").case(&*case));
                }
                if (accesses, is_prefetched) == (8, true) {
                    let peak = rates.iter().fold(0.0, |a: f64, b| a.max(*b));
                    let cores = rates.iter().position(|rate| *rate >= PEAK * peak).expect("one is it") as f64 + 1.0;
                    let row = Row::model("herd14.prefetch", "cores for the peak", cores, "cores").published(
                        &apt(),
                        "4.1.1",
                        5.0,
                    );
                    rows.push(row.case(&*case));
                }
            }
        }
        rows
    }
}

fn run(accesses: usize, is_prefetched: bool, workers: usize) -> f64 {
    let lines = if is_prefetched {
        Accesses { first: accesses, ..Accesses::default() }
    } else {
        Accesses { unforeseen: accesses, ..Accesses::default() }
    };
    let design = Design::Echo(WorkerConfig::herd(), lines);
    let run = SequencerRun {
        hosts: 17,
        clients: 51,
        window: 4,
        measured_ns: 500_000,
        ..SequencerRun::atc16(design, workers)
    };
    run.run(&apt()).mops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetching_hides_eight_accesses() {
        let [plain, prefetched] = [false, true].map(|is_prefetched| run(8, is_prefetched, 1));
        assert!(prefetched > 4.0 * plain, "{plain} {prefetched}");
        assert!(run(8, true, 5) > 24.0);
    }
}
