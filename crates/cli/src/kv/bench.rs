//! `sinew kv bench`: a subcommand for each design.

use anyhow::ensure;
use sinew_harness::units::{parse_count, parse_size};
use sinew_harness::workload::{Distribution, KEYS_MAX, Order, Sizes, Workload};

use super::herd::serve::Schedule;
use super::{herd, memcached, one_sided, rpc, table};
use crate::Outcome;

/// Keys of a store that is asked over a fabric.
pub const KEYS_MAX_OF_FABRIC: usize = 1 << 27;
/// Requests in flight of a client thread at most.
pub const WINDOW_MAX: i64 = 65_536;

/// The designs.
#[derive(clap::Subcommand)]
pub enum Command {
    /// The table alone: one thread, no network
    #[command(after_help = table::HELP)]
    Table(table::Args),
    /// The cache over RPC
    #[command(after_help = rpc::HELP)]
    Rpc(rpc::Args),
    /// HERD's cache over verbs, as sigcomm14 has it
    #[command(after_help = herd::HELP)]
    Herd(herd::Args),
    /// The same with atc16's batches, doorbells and queue pairs
    #[command(after_help = herd::HELP)]
    HerdOpt(herd::Args),
    /// Pilaf on verbs: a cuckoo table; GETs are READs of buckets and of the item
    #[command(after_help = one_sided::HELP)]
    Pilaf(one_sided::PilafArgs),
    /// FaRM's store on verbs: a hopscotch table; GETs are READs of a neighbourhood
    #[command(after_help = one_sided::HELP)]
    Farm(one_sided::FarmArgs),
    /// DrTM-KV on verbs: GETs are READs of a record, PUTs lock, update and unlock it with atomics
    #[command(after_help = one_sided::HELP)]
    Drtm(one_sided::DrtmArgs),
    /// A memcached server: any, ours, or ours and memcached itself
    #[command(after_help = memcached::HELP)]
    Memcached(memcached::MemcachedArgs),
    /// A Redis server: any, or one that is started
    #[command(after_help = memcached::HELP)]
    Redis(memcached::RedisArgs),
}

/// Measures and shows.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Table(args) => table::run(args),
        Command::Rpc(args) => rpc::run(args),
        Command::Herd(args) => herd::run(args, Schedule::Herd),
        Command::HerdOpt(args) => herd::run(args, Schedule::HerdOpt),
        Command::Pilaf(args) => args.run(),
        Command::Farm(args) => args.run(),
        Command::Drtm(args) => args.run(),
        Command::Memcached(args) => args.run(),
        Command::Redis(args) => args.run(),
    }
}

/// What clients ask for.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Keys there are: 8M is 8 million [default: 8M for table, else 1M]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    keys: Option<usize>,
    /// GETs among a hundred requests; the others are PUTs
    #[arg(long, default_value = "95", value_name = "PERCENT", allow_negative_numbers = true, value_parser = parse_percent)]
    get: f64,
    /// How often each key is asked for
    #[arg(long, value_enum, default_value = "uniform")]
    dist: Distribution,
    /// Bytes of each value
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = parse_size)]
    pub value_size: usize,
    /// Another seed is another trace
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a percentage from 0 to 100 is needed".to_owned())
}

impl WorkloadArgs {
    /// The workload, of up to `keys_max` keys.
    pub fn workload(&self, keys_default: usize, keys_max: usize) -> anyhow::Result<Workload> {
        let (keys, max) = (self.keys.unwrap_or(keys_default), keys_max.min(KEYS_MAX));
        ensure!((1..=max).contains(&keys), "--keys can be from 1 to {max}");
        let (order, sizes) = (Order::Alike, Sizes::Fixed(self.value_size));
        Ok(Workload { keys, distribution: self.dist, get_percent: self.get, order, sizes, seed: self.seed })
    }
}

/// A workload as results tell it.
pub fn workload_json(workload: &Workload, key_size: usize) -> serde_json::Value {
    serde_json::json!({
        "keys": workload.keys,
        "key_size": key_size,
        "values": workload.sizes.name(),
        "get_percent": workload.get_percent,
        "dist": workload.distribution.name(),
        "seed": workload.seed,
    })
}

/// A workload in words.
pub fn workload_text(workload: &Workload, key_size: usize) -> String {
    let Workload { keys, get_percent, distribution, sizes, .. } = workload;
    let (dist, values) = (distribution.name(), sizes.name());
    format!("{keys} keys of {key_size} B, values of {values}, {get_percent} % GET, {dist}")
}
