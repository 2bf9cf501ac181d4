//! Table 1: rate of random accesses of one core.

use std::time::Duration;

use sinew_harness::lookups::{Chase, Lookups};

use super::{Side, beside, measured, pinned, processor, rates};
use crate::experiment::{Experiment, Row};

/// Experiment for Table 1.
pub struct Table1;

/// Length of the permutation in numbers: 1 GB.
const LEN: usize = 1 << 28;
const DEPTH: usize = 10;
/// Chains that are followed at once.
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The paper's rate of one core in M/s: eight cores have 595.
const PAPER_CORE: f64 = 595.0 / 8.0;

struct Chains {
    chase: Chase,
    starts: Vec<u32>,
}

fn run_of(len: usize, slice: Duration) -> Vec<(usize, [Option<f64>; 2])> {
    let chase = Chase::new(len, DEPTH);
    let starts = (0..1 << 16).map(|at: u64| chase.draw(at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).0).collect();
    let mut chains = Chains { chase, starts };
    let of = |batch: usize, prefetches: bool| {
        move |chains: &mut Chains, slice: Duration| {
            let began = std::time::Instant::now();
            let mut ends = [0; 64];
            let mut count = 0;
            while began.elapsed() < slice {
                for starts in chains.starts.chunks_exact(batch) {
                    chains.chase.follow_grouped(starts, &mut ends[..batch], prefetches);
                }
                std::hint::black_box(&ends);
                count += chains.starts.len() * DEPTH;
            }
            Some(count as f64 / began.elapsed().as_secs_f64() / 1e6)
        }
    };
    let one = |batch| {
        let (plain, prefetched) = (of(batch, false), of(batch, true));
        let sides: [Side<'_, Chains>; 2] = [&plain, &prefetched];
        (batch, rates(&mut chains, slice, sides))
    };
    BATCHES.map(one).into()
}

impl Experiment for Table1 {
    fn id(&self) -> &'static str {
        "nsdi15-table1"
    }

    fn title(&self) -> &'static str {
        "Random accesses of one core"
    }

    fn source(&self) -> &'static str {
        "nsdi15 2.5, Table 1"
    }

    fn setup(&self) -> &'static str {
        "Measured on this machine, on one core: B chains follow a random permutation of 1 GB, on huge pages if there \
         are any, D = 10 times each, all chains step by step. The paper's loop leaves it to the processor to overlap \
         the accesses; beside it is the same loop with a prefetch. Medians of seven slices of 60 ms."
    }

    fn measures_on(&self) -> Vec<usize> {
        processor().into_iter().collect()
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let found = pinned(|| run_of(LEN, super::SLICE));
        progress(1.0);
        let mut rows = Vec::new();
        for (batch, rates) in found {
            for (rate, (id, case)) in
                rates.into_iter().zip([("plain", "as in the paper"), ("prefetched", "prefetched")])
            {
                let row = measured(format!("gopt.random.{id}.{batch}"), format!("accesses, B = {batch}"), rate, "M/s");
                let row = row.case(case);
                // The paper's best rate is with 16 chains.
                let of_paper = (batch, id) == (16, "plain");
                rows.push(if of_paper {
                    beside(row, "Table 1", PAPER_CORE, "a core of an E5-2680 of which all eight run")
                } else {
                    row
                });
            }
        }
        rows.sort_by_key(|row| row.case.clone());
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_a_rate() {
        let found = run_of(1 << 14, Duration::from_millis(1));
        assert!(found.len() == BATCHES.len() && found.iter().all(|(_, rates)| rates.iter().all(Option::is_some)));
    }
}
