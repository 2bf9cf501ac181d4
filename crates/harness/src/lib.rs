//! How Sinew measures.
//!
//! A figure is measured beside something: the machine's own limit, a baseline, a rival. [`run`] measures the sides by turns, in slices, and
//! looks meanwhile at the [surroundings]: what others used of the processors, and how far apart the cores are. What came of it is a
//! [`Figure`], which knows whether it can be [believed](validity), and is told in one way to people and in one schema to programs.
//!
//! - [`machine`]: processors, and threads that are pinned to them; [`limits`]: what the machine allows with nothing above.
//! - [`crew`]: client threads, which obey orders; [`load`]: what they do, as state machines that are turned by their owner;
//!   [`drivers`]: both together.
//! - [`lookups`]: lookups in large tables on one thread, plain and interleaved; [`forwarding`]: frames through applications that look up in them;
//!   [`patterns`]: payloads that are searched.
//! - [`pattern`] and [`workload`]: what messages hold, and what clients of stores ask for.
//! - [`threshold`] and [`reference`](mod@reference): what a figure is held against.
#![forbid(unsafe_code)]

pub mod crew;
pub mod drivers;
pub mod figure;
pub mod forwarding;
pub mod limits;
pub mod load;
pub mod lookups;
pub mod machine;
pub mod measured;
pub mod others;
pub mod pattern;
pub mod patterns;
pub mod reference;
pub mod run;
pub mod service;
pub mod surroundings;
pub mod threshold;
pub mod units;
pub mod validity;
pub mod workload;

pub use drivers::Drivers;
pub use figure::{Beside, Comparison, Figure, Unit};
pub use measured::Measured;
pub use run::{Run, Turns};

use hdrhistogram::Histogram;

/// A histogram of nanoseconds up to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}
