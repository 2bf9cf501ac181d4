//! `sinew model`: what the model of NICs and PCI Express says, without a simulation. The arithmetic is `sinew_sim::pcie` and `sinew_sim::nic`.

mod nics;
mod pcie;
mod request;
mod verbs;

use clap::Subcommand;

pub use request::nic;

use crate::{Outcome, interrupted};

/// What can be asked.
#[derive(Subcommand)]
pub enum Command {
    /// What crosses PCI Express for a request, step by step, and what the link allows
    Pcie(pcie::Args),
    /// What a processor's counters should show, so that what they show beyond that is cache misses
    Verbs(verbs::Args),
    /// The NICs that are built in: what they are like, and where each figure is from
    Nics(nics::Args),
}

/// Tells it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    interrupted::ends()?;
    match command {
        Command::Pcie(args) => pcie::run(args)?,
        Command::Verbs(args) => verbs::run(args)?,
        Command::Nics(args) => nics::run(args)?,
    }
    Ok(Outcome::Done)
}
