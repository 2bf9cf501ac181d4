//! `sinew kv`: key-value stores, and `sinew serve cache`.

mod bench;
mod client;
mod door;
pub mod herd;
mod memcached;
mod one_sided;
mod rpc;
pub mod serve;
mod table;
pub mod tour;
mod workload;

use clap::Subcommand;

use crate::Outcome;

/// Where a cache is served, and found, when nothing is said.
const ADDRESS: &str = "shm://cache";

/// What can be done with key-value stores.
#[derive(Subcommand)]
pub enum Command {
    /// Print a value
    Get(client::GetArgs),
    /// Store a value
    Set(client::SetArgs),
    /// Forget a key
    Delete(client::DeleteArgs),
    /// Give an item another lifetime
    Touch(client::TouchArgs),
    /// Add to a number
    Incr(client::IncrArgs),
    /// Forget all keys
    Flush(client::FlushArgs),
    /// Print what a cache counted
    Stats(client::StatsArgs),
    /// Measure designs of key-value stores
    #[command(subcommand)]
    Bench(Box<bench::Command>),
}

/// Does it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Get(args) => client::get(args),
        Command::Set(args) => client::set(args),
        Command::Delete(args) => client::delete(args),
        Command::Touch(args) => client::touch(args),
        Command::Incr(args) => client::incr(args),
        Command::Flush(args) => client::flush(args),
        Command::Stats(args) => client::stats(args),
        Command::Bench(command) => bench::run(command),
    }
}
