//! `sinew kv bench`: a subcommand for each design.

use sinew_harness::load::memcached::Wire;

use super::herd::serve::Schedule;
use super::one_sided::Store;
use super::{herd, memcached, one_sided, rpc, table};
use crate::Outcome;

/// The designs.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure the table alone: one thread, no network
    #[command(after_help = table::HELP)]
    Table(table::Args),
    /// Measure the cache over RPC
    #[command(after_help = rpc::HELP)]
    Rpc(rpc::Args),
    /// Measure HERD's cache over verbs, as in sigcomm14
    #[command(after_help = herd::HELP)]
    Herd(herd::Args),
    /// Measure HERD's cache with atc16's batches, doorbells and queue pairs
    #[command(after_help = herd::HELP)]
    HerdOpt(herd::Args),
    /// Measure Pilaf on verbs: a cuckoo table, whose GETs READ buckets and the item
    #[command(after_help = one_sided::HELP)]
    Pilaf(one_sided::PilafArgs),
    /// Measure FaRM's store on verbs: a hopscotch table, whose GETs READ a neighbourhood
    #[command(after_help = one_sided::HELP)]
    Farm(one_sided::FarmArgs),
    /// Measure DrTM-KV on verbs: GETs READ a record; PUTs lock, update and unlock it with atomics
    #[command(after_help = one_sided::HELP)]
    Drtm(one_sided::StoreArgs),
    /// Measure a memcached server: any, sinew's, or sinew's and memcached itself
    #[command(after_help = memcached::HELP)]
    Memcached(memcached::MemcachedArgs),
    /// Measure a Redis server: any, or one that is started
    #[command(after_help = memcached::HELP)]
    Redis(memcached::ClientArgs),
}

/// Measures, and prints the result.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Table(args) => table::run(args),
        Command::Rpc(args) => rpc::run(args),
        Command::Herd(args) => herd::run(args, Schedule::Herd),
        Command::HerdOpt(args) => herd::run(args, Schedule::HerdOpt),
        Command::Pilaf(args) => args.store.run(Store::Pilaf, args.emulate),
        Command::Farm(args) => args.store.run(Store::Farm { is_inline: !args.out_of_line }, args.emulate),
        Command::Drtm(args) => args.run(Store::Drtm, false),
        Command::Memcached(args) => args.run(),
        Command::Redis(args) => args.run(Wire::Redis, 1, false),
    }
}
