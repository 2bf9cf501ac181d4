//! `sinew replica`: a replicated key-value store, from the side of who asks.

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

/// What can be done with a cluster.
#[derive(Subcommand)]
pub enum Command {
    /// Give a key a value
    Put(ask::PutArgs),
    /// Print a key's value, or those of several keys
    Get(ask::GetArgs),
    /// Take a key away
    Delete(ask::DeleteArgs),
    /// Print changes as they happen
    Watch(watch::Args),
    /// Say who leads, and how far each member is
    Status(status::Args),
    /// Take a member in, or one that has lost its memory again
    Add(change::AddArgs),
    /// Let a learner vote
    Promote(change::PromoteArgs),
    /// Let a member go
    Remove(change::RemoveArgs),
    /// Have another member lead
    Transfer(change::TransferArgs),
    /// Measure PUTs
    Bench(bench::Args),
}

/// Does it.
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
