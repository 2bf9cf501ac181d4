//! Figure 14: load of the cores under skew.

use sinew_harness::workload::Distribution;

use super::{SETUP, apt, herd};
use crate::experiment::{Experiment, Row};
use crate::services::cache::{CacheResult, CacheRun};

/// Experiment for Figure 14.
pub struct Fig14;

/// Number of keys. The fewer there are, the larger is the most popular key's share of requests; the paper has 480
/// million.
const KEYS: usize = 1_000_000;

impl Experiment for Fig14 {
    fn id(&self) -> &'static str {
        "sigcomm14-fig14"
    }

    fn title(&self) -> &'static str {
        "HERD's cores under skew"
    }

    fn source(&self) -> &'static str {
        "sigcomm14 5.7, Figure 14"
    }

    fn setup(&self) -> &'static str {
        SETUP
    }

    fn remark(&self) -> &'static str {
        "There are a million keys rather than 480 million, with a Zipf exponent of 0.99: the most popular key has a \
         larger share of requests than in the paper. Accesses to popular keys are charged as cache misses, too."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut ratio = 0.0;
        for (nth, (distribution, name)) in
            [(Distribution::Uniform, "uniform"), (Distribution::Zipf, "Zipf .99")].into_iter().enumerate()
        {
            progress(nth as f64 / 2.0);
            let found = run(distribution, KEYS);
            rows.push(
                Row::model(format!("herd14.skew.{}", distribution.name()), "all cores", found.mops, "M/s").case(name),
            );
            let all: u64 = found.answered.iter().sum();
            for (core, answered) in found.answered.iter().enumerate() {
                let mops = found.mops * *answered as f64 / all as f64;
                let id = format!("herd14.skew.{}.{core}", distribution.name());
                rows.push(Row::model(id, format!("core {}", core + 1), mops, "M/s").case(name));
            }
            ratio = spread(&found);
        }
        let metric = "the most loaded core's load over the least loaded's";
        rows.push(Row::model("herd14.skew", metric, ratio, "x").published(&apt(), "5.7", 1.5).case("Zipf .99"));
        rows
    }
}

fn run(distribution: Distribution, keys: usize) -> CacheResult {
    herd(CacheRun { distribution, keys, ..CacheRun::sigcomm14() })
}

fn spread(found: &CacheResult) -> f64 {
    let most = found.answered.iter().max().copied().unwrap_or(0);
    let least = found.answered.iter().min().copied().unwrap_or(0);
    most as f64 / least.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_loads_cores_unevenly_and_costs_little() {
        let [uniform, zipf] = [Distribution::Uniform, Distribution::Zipf].map(|distribution| run(distribution, 20_000));
        // With so few keys, the most popular one has a tenth of the requests.
        assert!(zipf.mops > 0.9 * uniform.mops, "{} {}", zipf.mops, uniform.mops);
        assert!(spread(&uniform) < 1.1 && spread(&zipf) > 1.2, "{uniform:?} {zipf:?}");
    }
}
