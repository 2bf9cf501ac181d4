//! `sinew index`: an ordered index.

mod bench;
mod client;
pub mod serve;

use clap::Subcommand;

use crate::Outcome;

/// Where `sinew serve index` serves and `sinew index` asks when no address is given.
const ADDRESS: &str = "shm://index";

/// What can be done with an index.
#[derive(Subcommand)]
pub enum Command {
    #[command(flatten)]
    Ask(client::Command),
    /// Measure an index: its GETs beside echoes, or what scans do to them
    Bench(bench::Args),
}

/// Does it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Ask(command) => client::run(command),
        Command::Bench(args) => bench::run(args),
    }
}
