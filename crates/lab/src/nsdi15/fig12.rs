//! Figure 12: what pattern matching gains by walking several payloads at once, and by sorting them.

use std::time::Duration;

use sinew_harness::patterns::{Patterns, SearchMethod, Sizes};

use super::{Side, measured, pinned, processor, rates};
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Figure 12.
pub struct Fig12;

const SEED: u64 = 1;

/// Rates in Gbps, in the order of [`SearchMethod::ALL`]; none if the automata cannot be made.
fn run_of(sizes: Sizes, slice: Duration) -> [Option<f64>; SearchMethod::ALL.len()] {
    let Ok(mut patterns) = Patterns::new(sizes, SEED) else { return Default::default() };
    let of = |method| move |patterns: &mut Patterns, slice| patterns.gbps(method, slice).ok();
    let sides = SearchMethod::ALL.map(of);
    rates(&mut patterns, slice, std::array::from_fn(|at| &sides[at] as Side<'_, Patterns>))
}

impl Experiment for Fig12 {
    fn id(&self) -> &'static str {
        "nsdi15-fig12"
    }

    fn title(&self) -> &'static str {
        "Pattern matching, by one core"
    }

    fn source(&self) -> &'static str {
        "nsdi15 5, Figure 12"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on one core, without network I/O: 23,331 patterns drawn from a seed, in 450 \
         automata with some 13 states of 512 bytes for each pattern. Payloads have 64 to 1,460 bytes: nine of ten \
         consist of the words that patterns are made of, and one of 50 has a whole pattern put in. They are searched \
         one after the other; eight at once in the order in which they came; in batches of 8,192 sorted by automaton \
         and length, eight at once; and by the aho-corasick crate's DFA. Medians of seven slices of 60 ms; the hits of \
         each payload are compared."
    }

    fn remark(&self) -> &'static str {
        "The paper has Snort's rules and DARPA's traffic, which are not available here: payloads made of the same \
         words as the patterns lead deep into the automata, as that traffic would not."
    }

    fn measures_on(&self) -> Vec<usize> {
        processor().into_iter().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let [sorted, plain, interchanged, by_crate] = pinned(|| run_of(Sizes::PAPER, super::SLICE));
        progress(1.0);
        let times = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
        let gain = measured("gopt.patterns", "speed-up, sorted and several at once", times(sorted, plain), "x");
        vec![
            gain.paper("5, Figure 12", 2.4, Comparison::AtLeast),
            measured("gopt.patterns.interchanged", "speed-up, several at once", times(interchanged, plain), "x"),
            measured("gopt.patterns.vs_crate", "speed-up over the aho-corasick crate", times(sorted, by_crate), "x"),
            measured("gopt.patterns.plain", "rate, payload after payload", plain, "Gbps"),
            measured("gopt.patterns.sorted", "rate, sorted and several at once", sorted, "Gbps"),
            measured("gopt.patterns.crate", "rate of the crate", by_crate, "Gbps"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_its_rate() {
        let sizes = Sizes { patterns: 200, groups: 10, payloads: 100 };
        let found = run_of(sizes, Duration::from_millis(1));
        assert!(found.iter().all(Option::is_some), "{found:?}");
    }
}
