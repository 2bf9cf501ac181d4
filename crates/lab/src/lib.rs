//! Experiments on simulated clusters: published figures reproduced, workloads of your own, and a hunt for bugs.
//!
//! An [`Experiment`] is one file, which says what it runs and where in the paper the values are that it is compared
//! with. A [`workload`] is written by a user, and run on a topology that the user chooses.

#![forbid(unsafe_code)]

pub mod advise;
pub mod apnet19;
pub mod atc16;
mod experiment;
mod html;
pub mod incast;
pub mod nics;
pub mod nsdi15;
pub mod nsdi19;
pub mod programs;
pub mod rdmabox;
pub mod report;
pub mod services;
pub mod sigcomm14;
pub mod small_calls;
pub mod swarm;
pub mod workload;

pub use experiment::{Comparison, Error, Experiment, Row};

/// All experiments, by paper and place.
pub const EXPERIMENTS: &[&dyn Experiment] = &[
    &apnet19::fig1::Fig1,
    &apnet19::fig2::Fig2,
    &apnet19::fig3::Fig3,
    &apnet19::fig4::Fig4,
    &apnet19::fig5::Fig5,
    &apnet19::reader::AdaptiveReader,
    &apnet19::share::FairShare,
    &rdmabox::fig1::Fig1,
    &rdmabox::fig2::Fig2,
    &rdmabox::table1::Table1,
    &rdmabox::fig5::Fig5,
    &rdmabox::fig6::Fig6,
    &rdmabox::fig6::Fig7,
    &rdmabox::fig8::Fig8,
    &rdmabox::fig9::Fig9,
    &rdmabox::measured::FIG10,
    &rdmabox::measured::FIG11,
    &rdmabox::measured::FIG12,
    &nsdi15::table1::Table1,
    &nsdi15::fig4::Fig4,
    &nsdi15::fig8::Fig8,
    &nsdi15::fig10::Fig10,
    &nsdi15::fig11::Fig11,
    &nsdi15::fig12::Fig12,
    &nsdi19::fig1::Fig1,
    &nsdi19::fig4::Fig4,
    &nsdi19::fig5::Fig5,
    &nsdi19::fig6::Fig6,
    &nsdi19::table3::Table3,
    &nsdi19::table4::Table4,
    &nsdi19::table5::Table5,
    &nsdi19::table6::Table6,
    &nsdi19::incast_background::IncastBackground,
    &nsdi19::modelled_nics::ModelledNics,
    &nsdi19::masstree::Masstree,
    &atc16::table1::Table1,
    &atc16::fig2b::Fig2b,
    &atc16::table3::Table3,
    &atc16::table4::Table4,
    &atc16::table5::Table5,
    &atc16::fig8::Fig8,
    &atc16::fig9::Fig9,
    &atc16::fig10::Fig10,
    &atc16::fig11::Fig11,
    &atc16::fig12::Fig12,
    &atc16::fig13::Fig13,
    &atc16::fig14::Fig14,
    &sigcomm14::fig2::Fig2,
    &sigcomm14::fig3::Fig3,
    &sigcomm14::fig5::Fig5,
    &sigcomm14::fig6::Fig6,
    &sigcomm14::fig7::Fig7,
    &sigcomm14::fig9::Fig9,
    &sigcomm14::fig10::Fig10,
    &sigcomm14::fig11::Fig11,
    &sigcomm14::fig12::Fig12,
    &sigcomm14::fig13::Fig13,
    &sigcomm14::fig14::Fig14,
];
