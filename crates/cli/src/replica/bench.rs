//! `sinew replica bench`.

use std::time::Instant;

use anyhow::ensure;
use serde_json::json;
use sinew::fabric::{Generator, SeededGenerator};
use sinew::replica::kv::Command;
use sinew::replica::wire;
use sinew_harness::units::parse_size;

use super::cluster::ClusterArgs;
use crate::{Outcome, output};

const AFTER_HELP: &str = "\
Puts keys drawn at random from --keys keys of 16 bytes (nsdi19 7.1: one million), from one client, --in-flight at a time, each counted once its answer is there.

JSON: puts, seconds, rate_per_s, p50_us, p99_us, longest_us, in_flight, value_len.

Examples:
  sinew replica bench
  sinew replica bench --in-flight 64 --seconds 10 --json";

/// Measure PUTs.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Requests at a time
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=200))]
    in_flight: u16,
    /// How long
    #[arg(long, default_value_t = 3.0, allow_negative_numbers = true)]
    seconds: f64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "64", allow_negative_numbers = true, value_parser = parse_size)]
    value_len: usize,
    /// Keys
    #[arg(long, default_value_t = 1_000_000, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Measures.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    ensure!(args.seconds > 0.0 && args.seconds <= 3600.0, "--seconds: more than none, an hour at most");
    ensure!(args.value_len <= 1 << 20, "--value-len: 1 MiB at most");
    let mut cluster = args.cluster.open()?;
    let mut random = SeededGenerator::new(1);
    let (value, mut bytes) = (vec![b'v'; args.value_len], Vec::new());
    let mut begun = vec![Instant::now(); usize::from(args.in_flight)];
    let mut times_ns: Vec<u64> = Vec::new();
    // Who leads is found out before.
    cluster.command(&Command::Put { key: b"bench", value: &value })?;
    let start = Instant::now();
    let mut put = |cluster: &mut super::cluster::Cluster, tag: usize| {
        let key = format!("{:016x}", random.next_u64() % args.keys);
        bytes.clear();
        wire::encode(&Command::Put { key: key.as_bytes(), value: &value }, &mut bytes);
        cluster.client.run(tag as u64, &bytes, cluster.timeout_ns)
    };
    for (tag, begun) in begun.iter_mut().enumerate() {
        *begun = Instant::now();
        put(&mut cluster, tag)?;
    }
    let mut under_way = usize::from(args.in_flight);
    while under_way > 0 {
        let (tag, result) = cluster.next()?;
        result?;
        let now = Instant::now();
        let at = tag as usize;
        times_ns.push((now - begun[at]).as_nanos() as u64);
        if (now - start).as_secs_f64() < args.seconds {
            begun[at] = now;
            put(&mut cluster, at)?;
        } else {
            under_way -= 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    times_ns.sort_unstable();
    let at = |part: f64| times_ns[((times_ns.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    let (p50_us, p99_us, longest_us) = (at(0.5), at(0.99), at(1.0));
    let rate_per_s = times_ns.len() as f64 / seconds;
    output::print(if args.json {
        json!({
            "puts": times_ns.len(), "seconds": seconds, "rate_per_s": rate_per_s, "p50_us": p50_us, "p99_us": p99_us,
            "longest_us": longest_us, "in_flight": args.in_flight, "value_len": args.value_len,
        })
        .to_string()
    } else {
        format!(
            "{} PUTs of 16 B + {} B, {} at a time: {rate_per_s:.0} a second; each took {p50_us:.1} us (median), {p99_us:.1} us (99 %), {longest_us:.0} us at most",
            times_ns.len(),
            args.value_len,
            args.in_flight
        )
    })?;
    Ok(Outcome::Done)
}
