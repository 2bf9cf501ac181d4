//! Figure 4: the work that the paper offloads, done by a core: chains of dependent accesses and chains of hashes.

use std::time::Duration;

use sinew_harness::lookups::{Chase, Form, Hashes, Lookups, Trace};

use super::{beside, measured, pinned, processor, rates};
use crate::experiment::{Experiment, Row};

/// Experiment for Figure 4.
pub struct Fig4;

/// Length of the permutation in numbers: 1 GB.
const LEN: usize = 1 << 28;
/// Headers of a batch.
const HEADERS: usize = 8192;
const DEPTHS: [usize; 8] = [1, 2, 3, 4, 6, 8, 10, 12];

/// Rates in millions of headers per second: plain, as in the paper (all chains step by step), and interleaved.
fn headers<L: Lookups>(lookups: L, slice: Duration) -> [Option<f64>; 3] {
    let weight = lookups.weight() as f64;
    let of = |form, width| move |trace: &mut Trace<L>, slice| trace.mops(form, width, slice).ok();
    let [plain, steps, interleaved] =
        [(Form::Plain, 1), (Form::Grouped, super::WIDTH), (Form::Interleaved, super::WIDTH)]
            .map(|(form, width)| of(form, width));
    let rates = rates(&mut Trace::new(lookups, 16 * HEADERS), slice, [&plain, &steps, &interleaved]);
    rates.map(|rate| rate.map(|rate| rate / weight))
}

/// Rates for each depth: with accesses, and with hashes.
type DepthRates = Vec<(usize, [Option<f64>; 3], [Option<f64>; 3])>;

fn run_of(len: usize, slice: Duration) -> DepthRates {
    let one = |depth| (depth, headers(Chase::new(len, depth), slice), headers(Hashes::new(depth), slice));
    DEPTHS.map(one).into()
}

impl Experiment for Fig4 {
    fn id(&self) -> &'static str {
        "nsdi15-fig4"
    }

    fn title(&self) -> &'static str {
        "Chains of accesses, and of hashes, by one core"
    }

    fn source(&self) -> &'static str {
        "nsdi15 2.6, Figure 4"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on one core: each of many headers follows a random permutation of 1 GB D times, or \
         is hashed D times in sequence (CityHash32 of 4 bytes). Headers are processed one after the other; 32 at once, \
         step by step (with a prefetch for accesses); and, for accesses, interleaved. Medians of seven slices of 60 \
         ms. The GPU's lines are not run."
    }

    fn remark(&self) -> &'static str {
        "The paper plots these lines and prints no figures for them, except that three hashes take some 40 ns on one \
         of its cores."
    }

    fn measures_on(&self) -> Vec<usize> {
        processor().into_iter().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = pinned(|| run_of(LEN, super::SLICE));
        progress(1.0);
        let mut rows = Vec::new();
        let cases = [("plain", "one after the other"), ("steps", "step by step"), ("interleaved", "interleaved")];
        for (at, (id, how)) in cases.into_iter().enumerate() {
            for (depth, accesses, hashes) in &found {
                let of = |what: &str, rate| {
                    let row = measured(
                        format!("gopt.fig4.{what}.{id}.{depth}"),
                        format!("headers, D = {depth}"),
                        rate,
                        "M/s",
                    );
                    row.case(format!("{what}, {how}"))
                };
                rows.push(of("accesses", accesses[at]));
                if id != "interleaved" {
                    rows.push(of("hashes", hashes[at]));
                }
            }
        }
        rows.sort_by_key(|row| row.case.clone());
        let three = found.iter().find(|(depth, ..)| *depth == 3).and_then(|(.., hashes)| hashes[0]);
        let row = measured("gopt.fig4.hash.3", "time of three hashes", three.map(|mops| 1e3 / mops), "ns");
        rows.push(beside(row, "2.6.2", 40.0, "a core of an E5-2680, length of the input not said"));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_depth_has_its_rates() {
        let found = run_of(1 << 12, Duration::from_millis(1));
        assert!(found.iter().all(|(_, accesses, hashes)| accesses.iter().chain(hashes).all(Option::is_some)));
    }
}
