//! `sinew serve memory` and `sinew memory`: donors, and the cost of going to them.
//!
//! - `reach` has the options that donors and their users share.
//! - `serve` lends memory to other hosts.
//! - `bench` measures engines that go to a donor, beside copies by the same threads.
//! - `polling`: how its threads wait for completions.
//! - `registering`: the size from which memory is registered instead of copied.
//! - `tour`: a volume with two copies, at donors in processes of their own.

pub mod bench;
pub mod polling;
pub mod reach;
pub mod registering;
pub mod serve;
pub mod tour;

use crate::Outcome;

/// The commands about other hosts' memory.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure reads and writes of a donor's memory: merged, chained and admitted
    #[command(after_help = bench::HELP)]
    Bench(bench::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(args) => bench::run(args),
    }
}
