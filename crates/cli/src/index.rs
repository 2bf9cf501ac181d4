//! `sinew index`: asks an ordered index, and measures one.

mod bench;
mod client;
pub mod serve;

use clap::Subcommand;

use crate::Outcome;

/// Default address of `sinew serve index` and `sinew index`.
const ADDRESS: &str = "shm://index";

/// The commands about an index.
#[derive(Subcommand)]
pub enum Command {
    #[command(flatten)]
    Ask(client::Command),
    /// Measure an index: its GETs beside echoes, or the effect of scans on them
    Bench(bench::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Ask(command) => client::run(command),
        Command::Bench(args) => bench::run(args),
    }
}
