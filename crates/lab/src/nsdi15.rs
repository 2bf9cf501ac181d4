//! Experiments of "Raising the Bar for Using GPUs in Software Packet Processing" (nsdi15) that need neither a GPU nor a
//! network card. (Figures 2 and 3 are of a GPU alone.)

pub mod fig10;
pub mod fig11;
pub mod fig12;
pub mod fig4;
pub mod fig8;
pub mod table1;

use std::time::Duration;

use sinew_forward::Application;
use sinew_harness::forwarding::Pipeline;
use sinew_harness::lookups::{Form, Lookups, Trace};
use sinew_host::{available_cpus, pin_current_thread};

use crate::experiment::{Comparison, Row};

/// Lookups that run at once when they are interleaved or grouped.
const WIDTH: usize = 32;
/// Slices of each side; the sides take turns.
const ROUNDS: usize = 7;
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(60);

/// A side of a comparison: measures a table for a time, and returns a rate in M/s.
type Side<'a, T> = &'a dyn Fn(&mut T, Duration) -> Option<f64>;

/// Processor to measure on.
fn processor() -> Option<usize> {
    available_cpus().first().copied()
}

/// Runs a closure on a thread of its own, pinned if the system allows it.
fn pinned<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            // If it may not be pinned, it is measured all the same.
            let _ = processor().map(pin_current_thread);
            run()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Median rates of several sides of a table, which take turns.
fn rates<T, const N: usize>(table: &mut T, slice: Duration, sides: [Side<'_, T>; N]) -> [Option<f64>; N] {
    let mut slices = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (side, slices) in sides.iter().zip(&mut slices) {
            slices.extend(side(table, slice));
        }
    }
    slices.map(|mut slices| {
        slices.sort_by(f64::total_cmp);
        slices.get(slices.len() / 2).copied()
    })
}

/// Rates of lookups: plain, interleaved and grouped.
fn forms<L: Lookups>(lookups: L, keys: usize, slice: Duration) -> [Option<f64>; 3] {
    let of = |form| move |trace: &mut Trace<L>, slice| trace.mops(form, WIDTH, slice).ok();
    let [plain, interleaved, grouped] = [Form::Plain, Form::Interleaved, Form::Grouped].map(of);
    rates(&mut Trace::new(lookups, keys), slice, [&plain, &interleaved, &grouped])
}

/// Rates of frames through an application: plain, interleaved and grouped.
fn frames<A: Application>(mut pipeline: Pipeline<A>, slice: Duration) -> [Option<f64>; 3] {
    let of = |form| move |pipeline: &mut Pipeline<A>, slice| pipeline.mops(form, WIDTH, slice).ok();
    let interleaved = sinew_forward::Form::interleaved(WIDTH).unwrap_or_default();
    let [plain, interleaved, grouped] = [sinew_forward::Form::Plain, interleaved, sinew_forward::Form::Grouped].map(of);
    rates(&mut pipeline, slice, [&plain, &interleaved, &grouped])
}

/// A row with a value measured on this machine.
fn measured(id: impl Into<String>, metric: impl Into<String>, found: Option<f64>, unit: &'static str) -> Row {
    Row { measured: found, ..Row::open(id, metric, unit) }
}

/// The same row beside a paper's value for another thing.
fn beside(row: Row, place: &'static str, paper: f64, other: &'static str) -> Row {
    row.paper(place, paper, Comparison::Other(other))
}
