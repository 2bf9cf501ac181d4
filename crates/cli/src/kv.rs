//! `sinew kv`: key-value stores, and `sinew serve cache`.

mod bench;
mod client;
mod door;
mod eviction;
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

/// Default address of a cache, for servers and clients.
const ADDRESS: &str = "shm://cache";

/// The commands about key-value stores.
#[derive(Subcommand)]
pub enum Command {
    #[command(flatten)]
    Client(client::Command),
    /// Measure designs of key-value stores
    #[command(subcommand)]
    Bench(Box<bench::Command>),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Client(command) => client::run(command),
        Command::Bench(command) => bench::run(command),
    }
}
