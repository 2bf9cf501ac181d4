//! Figure 13: rates by number of the server's cores.

use sinew_harness::units::counted;

use super::{SETUP, apt, herd};
use crate::experiment::{Comparison, Experiment, Row};
use crate::services::cache::CacheRun;

/// Experiment for Figure 13.
pub struct Fig13;

const CORES: usize = 7;

impl Experiment for Fig13 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig13"
    }

    fn title(&self) -> &'static str {
        "HERD by the server's cores"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 5.6 and 5.7, Figure 13"
    }

    fn setup(&self) -> &'static str {
        SETUP
    }

    fn remark(&self) -> &'static str {
        "PUTs of the emulated designs, which are in the figure, too, are not run: here one worker serves them, as HERD's calls."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rates = Vec::new();
        let mut rows = Vec::new();
        for cores in 1..=CORES {
            progress((cores - 1) as f64 / CORES as f64);
            let mops = run(cores);
            rates.push(mops);
            let metric = counted(cores, "core");
            rows.push(match cores {
                1 => Row::model("herd14.core", metric, mops, "M/s").published(&apt(), "5.7", 6.3),
                _ => Row::model(format!("herd14.cores.{cores}"), metric, mops, "M/s"),
            });
        }
        rows.push(Row::model("herd14.core_of6", "6 cores, each of them", rates[5] / 6.0, "M/s").published(
            &apt(),
            "5.7",
            4.32,
        ));
        let peak = rates.iter().fold(0.0, |a: f64, b| a.max(*b));
        let share = rates[4] / peak * 100.0;
        rows.push(Row::model("herd14.cores95", "5 cores, of the most", share, "%").paper(
            "5.6",
            95.0,
            Comparison::AtLeast,
        ));
        rows
    }
}

fn run(workers: usize) -> f64 {
    herd(CacheRun { workers, keys: 4096 * workers, ..CacheRun::sigcomm14() }).mops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_cores_are_enough_and_share_what_the_nic_takes() {
        let [one, five, six] = [1, 5, 6].map(run);
        assert!((5.0..7.0).contains(&one) && five > 0.95 * six && six < 5.0 * one, "{one} {five} {six}");
    }
}
