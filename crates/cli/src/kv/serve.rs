//! `sinew serve cache`.

use std::cell::RefCell;

use sinew::fabric::{Clock, Generator};
use sinew::host::{HostClock, SystemEntropy};
use sinew::kv::cache::{Partition, REQUESTS, Service};
use sinew::prelude::*;
use sinew::store::cache::{CacheConfig, VALUE_LEN_MAX, WhenFull};

use super::ADDRESS;
use crate::serve::ThreadArgs;
use crate::units::{parse_count, parse_size};
use crate::{Outcome, Usage, output, service};

const AFTER_HELP: &str = "\
Each thread owns a part of the keys, and shares nothing. Values live in --memory; the oldest make way for new ones, or, with --no-evict, what
does not fit is refused.

Examples:
  sinew serve cache                                             at shm://cache
  sinew serve cache udp://0.0.0.0:7100 --threads 2 --memory 4G  (ports 7100 and 7101)
  sinew kv set greeting hello; sinew kv get greeting            in another terminal";

/// Serve a key-value cache until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where to serve: shm://NAME, udp://HOST:PORT or ibverbs://HOST:PORT
    #[arg(default_value = ADDRESS)]
    address: String,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Bytes for the items, over all threads
    #[arg(long, default_value = "256M", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Items that are expected, which gives the size of the index, 16 bytes for each [default: one for each 64 bytes of memory]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    items: Option<usize>,
    /// Longest value, in bytes
    #[arg(long, default_value = "1M", allow_negative_numbers = true, value_parser = parse_size)]
    value_max: usize,
    /// Refuse what does not fit, rather than evict the oldest
    #[arg(long)]
    no_evict: bool,
}

/// A thread's part of the cache, and the clock by which its items end.
struct Shard {
    partition: Partition,
    clock: HostClock,
}

thread_local! {
    static SHARD: RefCell<Option<Shard>> = const { RefCell::new(None) };
}

impl Args {
    fn service(&self) -> anyhow::Result<Service> {
        Ok(Service::new(
            self.threads.threads(),
            &CacheConfig {
                items: self.items.unwrap_or(self.memory / 64).max(1),
                memory_bytes: self.memory,
                value_len_max: self.value_max,
                when_full: if self.no_evict { WhenFull::Refuse } else { WhenFull::Evict },
                seed: SystemEntropy::new()?.next_u64(),
                readers: false,
            },
        )?)
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let threads = &args.threads;
    let addresses = threads.addresses(&args.address).map_err(Usage::of)?;
    if args.value_max > VALUE_LEN_MAX {
        return Err(Usage(format!("--value-max can be up to {}", crate::units::size(VALUE_LEN_MAX))).into());
    }
    let start = || {
        let service = args.service()?;
        let config = Config { message_len_max: service.message_len_max() as u32, ..threads.config() };
        let nexus = Nexus::builder()
            .config(config)
            .handle_burst_with(REQUESTS, move || service.handler(begin_shard))
            .build()?;
        threads.start(nexus.server().on_turn(on_turn), addresses)
    };
    let advice = |address: &str| format!("Ask it with: sinew kv get KEY --address {address}");
    let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
    for report in reports.iter().filter(|_| !threads.is_child()) {
        let counters = service::counters(&report.stats, &report.port_stats, report.sessions);
        output::print(format_args!("{}: {counters}", report.address))?;
    }
    Ok(Outcome::Done)
}

fn begin_shard(partition: &Partition) {
    SHARD.set(Some(Shard { partition: partition.clone(), clock: HostClock::new() }));
}

/// Between the turns of a thread's loop.
fn on_turn(rpc: &mut Rpc) {
    while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
    SHARD.with_borrow(|shard| {
        if let Some(Shard { partition, clock }) = shard {
            // Seconds since the process began, from 1 on.
            partition.set_now_s((clock.now_ns() / 1_000_000_000) as u32 + 1);
        }
    });
}
