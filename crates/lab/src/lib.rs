//! Experiments on simulated clusters: published figures, run again; workloads of one's own; and a hunt for bugs.
//!
//! An [`Experiment`] is one file, which says what it runs and where the paper has the figures that it is held against. A
//! [`workload`] is what users write down and run on a topology of theirs.

#![forbid(unsafe_code)]

pub mod advise;
pub mod atc16;
mod experiment;
mod html;
pub mod incast;
pub mod nics;
pub mod nsdi19;
pub mod programs;
pub mod report;
pub mod small_calls;
pub mod swarm;
pub mod workload;

pub use experiment::{Against, Error, Experiment, Row};

/// All experiments, by paper and place.
pub const EXPERIMENTS: &[&dyn Experiment] = &[
    &atc16::table4::Table4,
    &atc16::table5::Table5,
    &atc16::fig11::Fig11,
    &atc16::fig12::Fig12,
    &atc16::fig13::Fig13,
    &atc16::fig14::Fig14,
    &nsdi19::fig4::Fig4,
    &nsdi19::fig5::Fig5,
    &nsdi19::fig6::Fig6,
    &nsdi19::table3::Table3,
    &nsdi19::table4::Table4,
    &nsdi19::table5::Table5,
    &nsdi19::incast_background::IncastBackground,
];
