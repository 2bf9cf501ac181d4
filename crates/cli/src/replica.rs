//! `sinew replica`: client commands of a replicated key-value store.

mod ask;
mod bench;
mod change;
mod cluster;
pub mod serve;
mod status;
pub mod tour;
mod watch;

use clap::Subcommand;

use crate::Outcome;

/// The commands about a cluster.
#[derive(Subcommand)]
pub enum Command {
    /// Store a value under a key
    Put(ask::PutArgs),
    /// Print a key's value, or those of several keys
    Get(ask::GetArgs),
    /// Delete a key
    Delete(ask::DeleteArgs),
    /// Print changes as they happen
    Watch(watch::Args),
    /// Show which member leads, and how far each has got
    Status(status::Args),
    /// Add a new member, or re-add one that has lost its state
    Add(change::AddArgs),
    /// Promote a learner to a voting member
    Promote(change::PromoteArgs),
    /// Remove a member
    Remove(change::RemoveArgs),
    /// Transfer leadership to another member
    Transfer(change::TransferArgs),
    /// Measure PUTs
    Bench(bench::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Put(args) => ask::put(args),
        Command::Get(args) => ask::get(args),
        Command::Delete(args) => ask::delete(args),
        Command::Watch(args) => watch::run(args),
        Command::Status(args) => status::run(args),
        Command::Add(args) => change::add(args),
        Command::Promote(args) => change::promote(args),
        Command::Remove(args) => change::remove(args),
        Command::Transfer(args) => change::transfer(args),
        Command::Bench(args) => bench::run(args),
    }
}
