//! `sinew serve cache`: a key-value cache over RPC, memcached's protocol, or both.

use anyhow::{Context, ensure};
use sinew::Program;
use sinew::fabric::{Clock, Generator};
use sinew::host::{HostClock, SystemEntropy};
use sinew::kv::cache::{Partition, REQUESTS, Service, VALUE_LEN_MAX as RPC_VALUE_LEN_MAX, seconds_of};
use sinew::kv::memcached::Door;
use sinew::prelude::*;
use sinew::store::cache::{CacheConfig, Eviction, VALUE_LEN_MAX, WhenFull};

use super::ADDRESS;
use super::door::{self, DoorArgs, Doors};
use crate::serve::ThreadArgs;
use sinew_harness::units::{self, parse_count, parse_size};

use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Each thread owns a part of the keys, and shares nothing. Values live in --memory. When it is full, a new value evicts
the oldest value that was not read while in the older half of the cache (with --eviction oldest: the oldest value, read
or not); with --no-evict, a value that does not fit is refused.

Examples:
  sinew serve cache                                   # at shm://cache
  sinew serve cache udp://0.0.0.0:7100 --threads 2    # 7100 and 7101
  sinew serve cache --memcached 0.0.0.0:11211         # memcached alone
  sinew serve cache shm://cache --memcached unix:/tmp/cache   # both
  sinew kv set greeting hello; sinew kv get greeting  # in another terminal";

/// Serve a key-value cache until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address to serve at: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT [default:
    /// shm://cache, or none with --memcached]
    address: Option<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Memory for the items and their index, over all threads, in bytes; each thread needs at least 1K
    #[arg(long, default_value = "256M", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Number of items to expect, from 1, for each of which the index takes 16 bytes [default: --memory / 80]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    items: Option<usize>,
    /// Longest value, in bytes: at most a thread's share of --memory, and at most 8M, or 128M for memcached clients
    /// alone [default: 1M, or a thread's share of --memory if that is less]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    value_max: Option<usize>,
    /// Value to evict when a new one does not fit
    #[arg(long, value_enum, default_value_t = EvictionArg::Unread)]
    eviction: EvictionArg,
    /// Refuse a value that does not fit, instead of evicting another
    #[arg(long, conflicts_with = "eviction")]
    no_evict: bool,
    #[command(flatten)]
    door: DoorArgs,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum EvictionArg {
    /// The oldest value that was not read while in the older half of the cache
    Unread,
    /// The oldest value, read or not
    Oldest,
}

impl From<EvictionArg> for Eviction {
    fn from(eviction: EvictionArg) -> Self {
        match eviction {
            EvictionArg::Unread => Self::OldestUnread,
            EvictionArg::Oldest => Self::Oldest,
        }
    }
}

/// Default longest value, in bytes.
const VALUE_LEN: usize = 1 << 20;
/// Bytes of the index for each item.
const INDEX_BYTES: usize = 16;
/// Least memory of a thread, in bytes.
const MEMORY_MIN: usize = 1 << 10;

impl Args {
    fn value_len_max(&self) -> usize {
        self.value_max.unwrap_or_else(|| VALUE_LEN.min(self.memory / self.threads.threads()))
    }

    /// Configuration that the threads share out among them.
    fn config(&self) -> anyhow::Result<CacheConfig> {
        let (threads, memory) = (self.threads.threads(), units::size(self.memory));
        ensure!(
            self.memory >= MEMORY_MIN * threads,
            "--memory {memory}: each thread needs at least {}, for example --memory 256M",
            units::size(MEMORY_MIN)
        );
        let (value_max, most) = (self.value_len_max(), self.memory / threads);
        ensure!(
            (1..=most).contains(&value_max),
            "--value-max {}: must be from 1 B to a thread's share of --memory, {}",
            units::size(value_max),
            units::size(most)
        );
        ensure!(value_max <= VALUE_LEN_MAX, "--value-max can be up to {}", units::size(VALUE_LEN_MAX));
        ensure!(self.items != Some(0), "--items 0: must be at least 1, the number of items to expect");
        let items = self.items.unwrap_or(self.memory / (64 + INDEX_BYTES)).max(1);
        // A cache that never evicts keeps a quarter more places in reserve.
        let index_bytes = items.saturating_mul(INDEX_BYTES + if self.no_evict { INDEX_BYTES / 4 } else { 0 });
        let memory_bytes = self.memory.saturating_sub(index_bytes);
        ensure!(
            memory_bytes >= self.memory / 8,
            "--items {items}: the index would take {} of the {memory} of --memory; give it more, or expect fewer items",
            units::size(index_bytes)
        );
        Ok(CacheConfig {
            items,
            memory_bytes,
            memory_bytes_max: self.memory.saturating_mul(MEMORY_GROWS_BY),
            value_len_max: self.value_len_max(),
            when_full: if self.no_evict { WhenFull::Refuse } else { WhenFull::Evict },
            eviction: self.eviction.into(),
            seed: 0,
            readers: false,
        })
    }
}

/// Factor by which `cache_memlimit` can raise the memory.
const MEMORY_GROWS_BY: usize = 16;

fn service(threads: usize, config: &CacheConfig) -> anyhow::Result<Service> {
    Ok(Service::new(threads, &CacheConfig { seed: SystemEntropy::new()?.next_u64(), ..config.clone() })?)
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let threads = &args.threads;
    let config = args.config().map_err(Usage::of)?;
    let door_config = args.door.config(args.value_len_max(), !args.no_evict).map_err(Usage::of)?;
    if let (None, Some(memcached)) = (&args.address, args.door.address()) {
        return door::serve_alone(memcached, threads, door_config, || service(threads.threads(), &config));
    }
    let addresses = threads.addresses(args.address.as_deref().unwrap_or(ADDRESS)).map_err(Usage::of)?;
    if args.value_len_max() > RPC_VALUE_LEN_MAX {
        let (max, address) = (units::size(RPC_VALUE_LEN_MAX), &addresses[0]);
        let text = format!("--value-max can be up to {max} at {address}: longer ones need memcached clients alone");
        return Err(Usage(text).into());
    }
    let start = || {
        let service = service(threads.threads(), &config)?;
        let doors = match args.door.address() {
            Some(address) => {
                let doors = Doors::open(address, threads.threads(), door_config.clone())?;
                output::note(format_args!("memcached clients: {}", doors.address()));
                Some(doors)
            }
            None => None,
        };
        let config = Config { message_len_max: service.message_len_max() as u32, ..threads.config() };
        let nexus = Nexus::builder().config(config).build()?;
        let server = nexus.server().program(move |endpoint, rpc| Part::new(&service, doors.as_ref(), endpoint, rpc));
        threads.start(server, addresses)
    };
    let advice = |address: &str| format!("Ask it with: sinew kv get KEY --address {address}");
    let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
    threads.print_reports(&reports)?;
    Ok(Outcome::Done)
}

/// Program of a thread: it owns a part of the cache, which the endpoint's handler and the door for memcached clients
/// share.
struct Part {
    partition: Partition,
    door: Option<Door>,
    clock: HostClock,
}

impl Part {
    fn new(service: &Service, doors: Option<&Doors>, endpoint: &EndpointInfo, rpc: &mut Rpc) -> anyhow::Result<Self> {
        let partition = service.claim(endpoint.index).context("more threads than partitions")?;
        rpc.handle_burst(REQUESTS, partition.handler())?;
        let door = doors.and_then(|doors| doors.take(&partition));
        Ok(Self { partition, door, clock: HostClock::new() })
    }
}

impl Program for Part {
    type Error = anyhow::Error;

    fn turn(&mut self, rpc: &mut Rpc) -> anyhow::Result<Flow> {
        let mut busy = rpc.turn();
        while rpc.poll_completion().is_some() || rpc.poll_event().is_some() {}
        let now_ns = self.clock.now_ns();
        self.partition.set_now_s(seconds_of(now_ns));
        if let Some(door) = &mut self.door {
            busy |= door::turn_beside(door, &self.partition, now_ns);
        }
        Ok(busy.into())
    }

    fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> sinew::Result<()> {
        match &mut self.door {
            None => rpc.rest(busy, timeout_ns),
            Some(door) => rpc.rest_beside(busy, &mut [door], timeout_ns),
        }
    }
}
