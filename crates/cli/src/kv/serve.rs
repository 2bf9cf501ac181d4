//! `sinew serve cache`.

use anyhow::Context;
use sinew::Program;
use sinew::fabric::{Clock, Generator};
use sinew::host::{HostClock, SystemEntropy};
use sinew::kv::cache::{Partition, REQUESTS, Service, seconds_of};
use sinew::kv::memcached::Door;
use sinew::prelude::*;
use sinew::store::cache::{CacheConfig, VALUE_LEN_MAX, WhenFull};

use super::ADDRESS;
use super::door::{self, Doors};
use crate::serve::ThreadArgs;
use sinew_harness::units::{parse_count, parse_size};

use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Each thread owns a part of the keys, and shares nothing. Values live in --memory; the oldest make way for new ones, or, with --no-evict, what
does not fit is refused.

Examples:
  sinew serve cache                                             at shm://cache
  sinew serve cache udp://0.0.0.0:7100 --threads 2 --memory 4G  (ports 7100 and 7101)
  sinew serve cache --memcached 0.0.0.0:11211                   memcached clients alone
  sinew serve cache shm://cache --memcached unix:/tmp/cache     both
  sinew kv set greeting hello; sinew kv get greeting            in another terminal";

/// Serve a key-value cache until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where to serve: shm://NAME, udp://HOST:PORT or ibverbs://HOST:PORT [default: shm://cache, or nowhere with --memcached]
    address: Option<String>,
    /// Serve memcached clients here, too, or alone: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    memcached: Option<String>,
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
    if let (None, Some(memcached)) = (&args.address, &args.memcached) {
        return door::serve_alone(memcached, threads, args.value_max, || args.service());
    }
    let addresses = threads.addresses(args.address.as_deref().unwrap_or(ADDRESS)).map_err(Usage::of)?;
    if args.value_max > VALUE_LEN_MAX {
        return Err(Usage(format!("--value-max can be up to {}", sinew_harness::units::size(VALUE_LEN_MAX))).into());
    }
    let start = || {
        let service = args.service()?;
        let doors = match &args.memcached {
            Some(address) => {
                let doors = Doors::open(address, threads.threads(), args.value_max)?;
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
    threads.tell_reports(&reports)?;
    Ok(Outcome::Done)
}

/// A thread's program: it owns a part of the cache, which the endpoint's handler and the door for memcached clients share.
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
        self.partition.set_now_s(seconds_of(self.clock.now_ns()));
        if let Some(door) = &mut self.door {
            busy |= door::turn_beside(door, &self.partition);
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
