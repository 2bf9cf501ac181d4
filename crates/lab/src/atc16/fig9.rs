//! Figure 9: HERD's cache, with batches and without.

use sinew_sim::nic::Profile;

use super::{BEST_OF_WINDOWS, WINDOWS, baseline, batched, profile};
use crate::experiment::{Experiment, Row};
use crate::services::cache::{CacheResult, CacheRun};

/// Experiment for Figure 9.
pub struct Fig9;

const CORES: usize = 14;
/// Client threads, on eight hosts (4.3.1).
const CLIENTS: usize = 128;

/// Lines of the figure: the suffix of its rows' names, its name, whether it batches, and from the paper a core's rate,
/// the peak, and the number of cores that beat a store which clients READ.
const LINES: [(&str, &str, bool, [f64; 3]); 2] =
    [("base", "HERD", false, [6.7, 72.8, 12.0]), ("batch", "HERD, batches", true, [12.3, 98.3, 7.0])];

impl Experiment for Fig9 {
    fn id(&self) -> &'static str {
        "atc16-fig9"
    }

    fn title(&self) -> &'static str {
        "HERD's cache with 5 % PUTs, with batches and without"
    }

    fn source(&self) -> &'static str {
        "atc16 4.3.1, Figure 9"
    }

    fn setup(&self) -> &'static str {
        "128 clients on eight hosts with a modelled Connect-IB each, keys of 16 B and values of 32 B, and the real \
         cache: 4,096 keys for each worker rather than eight million, with each access to its table charged as a miss \
         of all caches, and prefetched as the code does. The highest rate of a store whose clients READ twice is \
         computed as in the paper: half of the NIC's inbound READs."
    }

    fn remark(&self) -> &'static str {
        BEST_OF_WINDOWS
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let cib = profile("cib");
        let reads = two_reads_mops(&cib);
        let mut rows = vec![Row::model("herd16.two_reads", "half of the inbound READs", reads, "M/s")];
        for (line, (suffix, name, is_batched, [core, peak, cores])) in LINES.into_iter().enumerate() {
            let mut rates = Vec::new();
            for workers in 1..=CORES {
                progress((line * CORES + workers - 1) as f64 / (LINES.len() * CORES) as f64);
                rates.push(run(is_batched, workers).mops);
            }
            let row = |what: &str, metric: &str, model, paper, unit| {
                let id = format!("herd16.{what}.{suffix}");
                Row::model(id, metric, model, unit).published(&cib, "4.3.1", paper).case(name)
            };
            rows.push(row("core", "1 core", rates[0], core, "M/s"));
            rows.push(row("peak", "at most", rates.iter().fold(0.0, |a, b| b.max(a)), peak, "M/s"));
            let beating = rates.iter().position(|rate| *rate > reads).map_or(f64::NAN, |at| at as f64 + 1.0);
            rows.push(row("cores", "cores that beat two READs", beating, cores, "cores"));
            for (at, rate) in rates.iter().enumerate().skip(1) {
                let id = format!("herd16.{suffix}.{}", at + 1);
                rows.push(Row::model(id, format!("{} cores", at + 1), *rate, "M/s").case(name));
            }
        }
        rows
    }
}

/// Most requests per second, in millions, of a store whose clients READ twice for each: half of the NIC's inbound
/// READs.
fn two_reads_mops(profile: &Profile) -> f64 {
    let units = profile.units;
    units.responders as f64 * 1e3 / (units.packet_ns + units.dma_read_ns) / 2.0
}

fn run(is_batched: bool, workers: usize) -> CacheResult {
    let worker = if is_batched { batched(CLIENTS) } else { baseline() };
    let run = CacheRun { worker, workers, hosts: 8, clients: CLIENTS, keys: 4096 * workers, ..CacheRun::sigcomm14() };
    CacheRun { measured_ns: 200_000, ..run }.best(&profile("cib"), WINDOWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_help_a_core_by_more_than_half_and_the_whole_by_less() {
        let [base, batch] = [false, true].map(|is_batched| run(is_batched, 1));
        assert!((5.5..8.0).contains(&base.mops) && batch.mops > 1.5 * base.mops, "{base:?} {batch:?}");
        assert!(base.hit_percent == 100.0 && batch.batch > 10.0 && base.batch == 1.0);
    }
}
