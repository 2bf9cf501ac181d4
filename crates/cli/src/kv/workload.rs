//! Options for the workload of the clients of all designs.

use anyhow::ensure;
use sinew_harness::units::{counted, parse_count, parse_size};
use sinew_harness::workload::{Distribution, KEYS_MAX, Order, Sizes, Workload};

/// Most keys of a store that is asked over a fabric.
pub const KEYS_MAX_OF_FABRIC: usize = 1 << 27;
/// Most requests in flight of a client thread.
pub const WINDOW_MAX: i64 = 65_536;

/// Requests that clients make.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Keys in the store: 8M is 8 million; 1 to 134217728 [default: 1M]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    keys: Option<usize>,
    /// Percentage of GETs among the requests, 0 to 100; the others are PUTs
    #[arg(long, default_value = "95", value_name = "PERCENT", allow_negative_numbers = true, value_parser = parse_percent)]
    get: f64,
    /// Distribution of requests over the keys
    #[arg(long, value_enum, default_value = "uniform")]
    dist: Distribution,
    /// Length of each value, in bytes
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = parse_size)]
    pub value_size: usize,
    /// Seed from which the trace of requests is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "must be a percentage from 0 to 100".to_owned())
}

impl WorkloadArgs {
    /// The workload, with `keys_default` keys unless told otherwise, and at most `keys_max`.
    pub fn workload(&self, keys_default: usize, keys_max: usize) -> anyhow::Result<Workload> {
        let (keys, max) = (self.keys.unwrap_or(keys_default), keys_max.min(KEYS_MAX));
        ensure!((1..=max).contains(&keys), "--keys can be from 1 to {max}");
        let (order, sizes) = (Order::Alike, Sizes::Fixed(self.value_size));
        Ok(Workload { keys, distribution: self.dist, get_percent: self.get, order, sizes, seed: self.seed })
    }
}

/// The workload in the form that results have.
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

/// The workload in words.
pub fn workload_text(workload: &Workload, key_size: usize) -> String {
    let Workload { keys, get_percent, distribution, sizes, .. } = workload;
    let (keys, dist, values) = (counted(*keys, "key"), distribution.name(), sizes.name());
    format!("{keys} of {key_size} B, values of {values}, {get_percent} % GET, {dist}")
}

/// Parses a rate in millions of requests a second.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.000_001..=1000.0).contains(rate));
    rate.ok_or_else(|| "must be millions of requests a second, from 0.000001 to 1000".to_owned())
}
