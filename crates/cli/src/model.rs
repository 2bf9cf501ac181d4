//! `sinew model`: computes what the model of NICs and PCI Express predicts, without a simulation. The arithmetic is in
//! `sinew_sim::pcie` and `sinew_sim::nic`.

mod nics;
mod pcie;
mod request;
mod verbs;

use clap::Subcommand;

pub use request::nic;

use crate::{Outcome, interrupted};

/// The commands about models.
#[derive(Subcommand)]
pub enum Command {
    /// Show what crosses PCI Express for a request, step by step, and what the link allows
    Pcie(pcie::Args),
    /// Predict a processor's PCI Express counters, so that what they show beyond that is cache misses of the NIC
    Verbs(verbs::Args),
    /// Show the built-in NICs: their parameters, and the source of each
    Nics(nics::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    interrupted::exit_on_signal()?;
    match command {
        Command::Pcie(args) => pcie::run(args)?,
        Command::Verbs(args) => verbs::run(args)?,
        Command::Nics(args) => nics::run(args)?,
    }
    Ok(Outcome::Done)
}
