//! Figure 14: atomics on a growing number of counters.

use sinew_harness::units::counted;

use super::profile;
use crate::experiment::{Experiment, Row};
use crate::nics::atomics;

/// Experiment for Figure 14.
pub struct Fig14;

const COUNTERS: [u64; 7] = [1, 4, 16, 64, 256, 1024, 4096];

impl Experiment for Fig14 {
    fn id(&self) -> &'static str {
        "atc16-fig14"
    }

    fn title(&self) -> &'static str {
        "Atomics on more and more counters"
    }

    fn source(&self) -> &'static str {
        "atc16 5.4, Figure 14"
    }

    fn setup(&self) -> &'static str {
        "64 clients on eight hosts add to counters of one host that each chooses at random, eight at a time. The rates \
         of one counter and of 4,096 are known; those between follow from the locks, which are chosen by the address."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (at, (name, title)) in [("cib", "Connect-IB"), ("cx3", "ConnectX-3")].into_iter().enumerate() {
            let nic = profile(name);
            for (step, counters) in COUNTERS.into_iter().enumerate() {
                progress((at * COUNTERS.len() + step) as f64 / (2 * COUNTERS.len()) as f64);
                let mops = atomics::rate_mops(&nic, counters, 64, 100_000);
                let paper = (name == "cx3" && counters == 1).then_some(2.7);
                let id = if paper.is_some() { "cx3.atomics".to_owned() } else { format!("{name}.fig14.z{counters}") };
                rows.push(
                    Row::model(id, counted(counters, "counter"), mops, "M/s").case(title).published(&nic, "5.4", paper),
                );
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_ib_gains_by_counters_and_connectx_3_does_not() {
        let rows = Fig14.run(&mut |_| {});
        let (cib, cx3): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.id.starts_with("cib"));
        let of = |rows: &[&Row]| rows.iter().map(|row| row.model.unwrap()).collect::<Vec<f64>>();
        let (cib, cx3) = (of(&cib), of(&cx3));
        assert!(cib.is_sorted_by(|a, b| *a <= b * 1.02), "{cib:?}");
        assert!(cib[6] > 20.0 * cib[0] && cib[2] > 5.0 * cib[0], "{cib:?}");
        // "For CX3, it remains 2.7 Mops irrespective of Z" (5.4).
        assert!(cx3.iter().all(|mops| (mops / 2.7 - 1.0).abs() < 0.05), "{cx3:?}");
    }
}
