//! `sinew serve memory` and `sinew memory`: donors, what they lend, and the cost of going to them.
//!
//! - `serve` lends memory to other hosts.
//! - `volumes` lists who has donors' memory.
//! - `remove` gives the memory of a volume back.
//! - `bench` measures engines that go to a donor, beside copies by the same threads.
//! - `polling`: how its threads wait for completions.
//! - `registering`: the size from which memory is registered instead of copied.
//! - `tour`: a volume with two copies, at donors in processes of their own.

pub mod bench;
pub mod polling;
pub mod registering;
pub mod remove;
pub mod serve;
pub mod tour;
pub mod volumes;

use crate::Outcome;

/// The commands about other hosts' memory.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure reads and writes of a donor's memory: merged, chained and admitted
    #[command(after_help = bench::HELP)]
    Bench(Box<bench::Args>),
    /// List the volumes that have memory at donors
    Volumes(volumes::Args),
    /// Remove a volume, and give its memory back
    Remove(remove::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Volumes(args) => volumes::run(args),
        Command::Remove(args) => remove::run(args),
    }
}
