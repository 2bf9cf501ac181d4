//! Figure 8: speed-up by the interleaver, and by group prefetching by hand.

use std::time::Duration;

use sinew_harness::lookups::{Chase, Ipv6, Numbers, TRACE};

use super::{forms, measured, pinned, processor};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Figure 8.
pub struct Fig8;

/// Sizes of the tables: numbers in the cuckoo table, numbers of the permutation and routes; and keys looked up.
#[derive(Clone, Copy)]
struct Sizes {
    numbers: usize,
    chase: usize,
    routes: usize,
    keys: usize,
}

const SIZES: Sizes = Sizes { numbers: 40_000_000, chase: 1 << 28, routes: 200_000, keys: TRACE };
const DEPTH: usize = 100;

/// Tables: name, title, and the paper's speed-up.
const TABLES: [(&str, &str, f64); 3] =
    [("cuckoo", "2-8 cuckoo table", 2.6), ("pointer", "pointer chasing, D = 100", 6.6), ("ipv6", "IPv6 lookup", 2.0)];

/// Rates for each table: plain, interleaved and grouped; none if there is no memory.
fn run_of(sizes: Sizes, slice: Duration, progress: &mut dyn FnMut(f64)) -> Vec<[Option<f64>; 3]> {
    let mut found = Vec::new();
    found.push(pinned(|| Some(forms(Numbers::new(sizes.numbers).ok()?, sizes.keys, slice))));
    progress(0.4);
    found.push(pinned(|| Some(forms(Chase::new(sizes.chase, DEPTH), sizes.keys / 8, slice))));
    progress(0.7);
    found.push(pinned(|| Some(forms(Ipv6::new(sizes.routes).ok()?, sizes.keys, slice))));
    progress(1.0);
    found.into_iter().map(Option::unwrap_or_default).collect()
}

impl Experiment for Fig8 {
    fn id(&self) -> &'static str {
        "nsdi15-fig8"
    }

    fn title(&self) -> &'static str {
        "What interleaved lookups bring"
    }

    fn source(&self) -> &'static str {
        "nsdi15 3.3.1, Figure 8"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on one core: a cuckoo table of 40 million numbers, a permutation of 1 GB, and \
         200,000 random IPv6 prefixes of 48 to 64 bits, on huge pages if there are any. Lookups are made one after the \
         other, by the interleaver, and with group prefetching by hand, 32 at once, in turn: medians of seven slices \
         of 60 ms. Every result is compared."
    }

    fn remark(&self) -> &'static str {
        "The speed-ups are for another machine: a core with a larger window overlaps more of the plain lookups by \
         itself, so there is less left to gain."
    }

    fn measures_on(&self) -> Vec<usize> {
        processor().into_iter().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = run_of(SIZES, super::SLICE, progress);
        let mut rows = Vec::new();
        for ((name, case, paper), [plain, interleaved, grouped]) in TABLES.into_iter().zip(found) {
            let times = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
            let gain = measured(format!("gopt.{name}"), "speed-up, interleaved", times(interleaved, plain), "x");
            rows.push(gain.paper("3.3.1, Figure 8", paper, Comparison::Same).case(case));
            let by_hand = format!("gopt.{name}.hand");
            rows.push(measured(by_hand, "speed-up, by hand", times(grouped, plain), "x").case(case));
            let ahead = times(grouped, interleaved).map(|times| (times - 1.0) * 100.0);
            let ahead = measured(format!("gopt.{name}.vs_hand"), "by hand, faster by", ahead, "%");
            rows.push(ahead.paper("3.3.1", 5.0, Comparison::AtMost).case(case));
            rows.push(measured(format!("gopt.{name}.plain"), "rate, plain", plain, "M/s").case(case));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_rates() {
        let sizes = Sizes { numbers: 1000, chase: 1 << 12, routes: 100, keys: 8192 };
        let found = run_of(sizes, Duration::from_millis(1), &mut |_| {});
        assert!(found.len() == TABLES.len() && found.iter().flatten().all(Option::is_some), "{found:?}");
    }
}
