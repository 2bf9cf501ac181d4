//! `sinew kv`: key-value stores.

mod bench;
mod table;

use clap::Subcommand;

use crate::Outcome;

/// What can be done with key-value stores.
#[derive(Subcommand)]
pub enum Command {
    /// Measure a design of a key-value store
    Bench(bench::Args),
}

/// Does it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(args) => bench::run(args),
    }
}
