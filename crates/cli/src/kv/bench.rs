//! `sinew kv bench`: a subcommand for each design.

use sinew_harness::load::memcached::Wire;

use super::herd::serve::Schedule;
use super::one_sided::Store;
use super::{eviction, herd, memcached, one_sided, rpc, table};
use crate::Outcome;

/// The designs.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure the table alone: one thread, no network
    #[command(after_help = table::HELP)]
    #[command(mut_arg("keys", |arg| arg.help("Keys in the store: 8M is 8 million; 1 to 1073741824 [default: 8M]")))]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 4096")))]
    #[command(mut_arg("pin", |arg| arg.help("Processor to pin the measuring thread to [default: the first one]")))]
    Table(table::Args),
    /// Count the hits of a full cache, by its choice of the item to evict
    #[command(after_help = eviction::HELP)]
    #[command(mut_arg("pin", |arg| arg.help(
        "Processors to pin to: that of the measuring thread, and with --peer that of memcached [default: the first ones]"
    )))]
    Eviction(eviction::Args),
    /// Measure the cache over RPC
    #[command(after_help = rpc::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 1M")))]
    Rpc(rpc::Args),
    /// Measure HERD's cache over verbs, as in sigcomm14
    #[command(after_help = herd::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 1000")))]
    #[command(mut_arg("response_qps", |arg| arg.help(
        "UD queue pairs of each worker, used in turn, 1 to 64 [default: 1]"
    )))]
    #[command(mut_arg("batch", |arg| arg.hide(true)), mut_arg("doorbell_each", |arg| arg.hide(true)))]
    Herd(herd::Args),
    /// Measure HERD's cache with atc16's batches, doorbells and queue pairs
    #[command(after_help = herd::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 1000")))]
    #[command(mut_arg("response_qps", |arg| arg.help(
        "UD queue pairs of each worker, used in turn, 1 to 64 [default: 3]"
    )))]
    HerdOpt(herd::Args),
    /// Measure Pilaf on verbs: a cuckoo table, whose GETs READ buckets and the item
    #[command(after_help = one_sided::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 4096")))]
    Pilaf(one_sided::PilafArgs),
    /// Measure FaRM's store on verbs: a hopscotch table, whose GETs READ a neighbourhood
    #[command(after_help = one_sided::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 4096")))]
    Farm(one_sided::FarmArgs),
    /// Measure DrTM-KV on verbs: GETs READ a record; PUTs lock, update and unlock it with atomics
    #[command(after_help = one_sided::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, at most 4096")))]
    Drtm(one_sided::StoreArgs),
    /// Measure a memcached server: a running one, Sinew's, or Sinew's beside memcached itself
    #[command(after_help = memcached::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, less than 1023K")))]
    Memcached(memcached::MemcachedArgs),
    /// Measure a Redis server: a running one, or one that the benchmark starts
    #[command(after_help = memcached::HELP)]
    #[command(mut_arg("value_size", |arg| arg.help("Length of each value, in bytes, less than 1023K")))]
    Redis(memcached::ClientArgs),
}

/// Measures, and prints the result.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Table(args) => table::run(args),
        Command::Eviction(args) => eviction::run(args),
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
