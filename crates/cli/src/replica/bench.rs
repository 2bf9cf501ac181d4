//! `sinew replica bench`: the rate and latency of PUTs.

use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use sinew::host::{HostClock, Interrupt};
use sinew::replica::kv::VALUE_LEN_MAX;
use sinew_harness::load::Drive;
use sinew_harness::load::replica::{Replica, Shape};
use sinew_harness::units::{counted, parse_seconds, parse_size};

use super::cluster::{Cluster, ClusterArgs};
use crate::{Outcome, output};

const AFTER_HELP: &str = "\
One client PUTs keys drawn at random from --keys keys of 16 bytes (nsdi19 7.1: one million), --in-flight at a time.
Each PUT counts once it is answered.

--json prints puts, seconds, rate_per_s, p50_us, p99_us, longest_us, in_flight and value_len.

Examples:
  sinew replica bench
  sinew replica bench --in-flight 64 --seconds 10 --json";

/// Measure PUTs.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// PUTs in flight, 1 to 200
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=200))]
    in_flight: u16,
    /// Seconds to measure, 0.01 to 86400
    #[arg(long, default_value = "3", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
    /// Length of each value, in bytes, up to 1M
    #[arg(long, value_name = "BYTES", default_value = "64", allow_negative_numbers = true, value_parser = parse_value_len)]
    value_len: usize,
    /// Number of keys to draw from, from 1
    #[arg(long, default_value_t = 1_000_000, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_value_len(text: &str) -> Result<usize, String> {
    let len = parse_size(text)?;
    if len <= VALUE_LEN_MAX { Ok(len) } else { Err(format!("must be {VALUE_LEN_MAX} bytes at most")) }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let Cluster { client, timeout_ns } = args.cluster.open()?;
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let shape = Shape { window: usize::from(args.in_flight), keys: args.keys, value_len: args.value_len, timeout_ns };
    let clock = HostClock::new();
    let mut load = Replica::new(client, clock.clone(), shape, 1);
    let slice = load.drive(&clock, args.seconds, interrupt)?;
    Cluster { client: load.into_client(), timeout_ns }.close();
    let (puts, seconds) = (slice.done, slice.elapsed_ns as f64 / 1e9);
    let at = |part: f64| slice.latency.value_at_quantile(part) as f64 / 1e3;
    let (p50_us, p99_us, longest_us) = (at(0.5), at(0.99), at(1.0));
    let rate_per_s = puts as f64 / seconds;
    output::print(if args.json {
        json!({
            "puts": puts, "seconds": seconds, "rate_per_s": rate_per_s, "p50_us": p50_us, "p99_us": p99_us,
            "longest_us": longest_us, "in_flight": args.in_flight, "value_len": args.value_len,
        })
        .to_string()
    } else {
        format!(
            "{} of 16 B + {} B, {} at a time: {rate_per_s:.0} a second; each took {p50_us:.1} us (median), {p99_us:.1} us (99 %), {longest_us:.0} us at most",
            counted(puts, "PUT"),
            args.value_len,
            args.in_flight
        )
    })?;
    Ok(Outcome::Done)
}
