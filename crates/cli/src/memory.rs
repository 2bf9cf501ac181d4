//! `sinew serve memory` and `sinew memory`: donors, and what going to them comes to.
//!
//! - `reach` has the options that donors and those who use them have in common.
//! - `serve` gives memory to others.
//! - `bench` measures engines that go to a donor, beside copies by the same threads.
//! - `registering`: from which size on memory is registered instead of copied.
//! - `tour`: a volume with two copies at donors in processes of their own.

pub mod bench;
pub mod reach;
pub mod registering;
pub mod serve;
pub mod tour;

use crate::Outcome;

/// What there is to do with memory that lies elsewhere.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure reads and writes of a donor's memory: merged, chained and admitted
    #[command(after_help = bench::HELP)]
    Bench(bench::Args),
}

/// Does what was asked for.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Bench(args) => bench::run(args),
    }
}
