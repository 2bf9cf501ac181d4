//! How Sinew measures.
//!
//! A figure is compared with something: the machine's own limit, a baseline, a peer. [`run`] measures the sides
//! alternately, in slices, and observes the [surroundings]: the share of the processors that other programs used, and
//! how far apart the cores are. The result is a [`Figure`], which knows whether it is [valid](validity). It has one
//! text for people and one schema for programs.
//!
//! - [`machine`]: processors, and threads that are pinned to them; [`limits`]: what the machine achieves without
//!   Sinew on top.
//! - [`crew`]: client threads, which carry out orders together; [`load`]: their work, as state machines that their
//!   owner turns; [`drivers`]: load run by client threads.
//! - [`lookups`]: lookups in large tables on one thread, plain and interleaved; [`forwarding`]: frames through
//!   applications that do such lookups; [`patterns`]: searches in payloads.
//! - [`pattern`] and [`workload`]: contents of messages, and requests of stores' clients.
//! - [`threshold`] and [`reference`](mod@reference): the criteria by which a figure is judged.
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
pub use figure::{ComparedSide, Comparison, Figure, Unit};
pub use measured::Measured;
pub use run::{MeasureSides, Run};

use hdrhistogram::Histogram;

/// An empty histogram of nanoseconds up to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}
