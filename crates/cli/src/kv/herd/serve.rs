//! `sinew serve herd`: a cache over verbs.

use anyhow::ensure;
use clap::ValueEnum;
use sinew::fabric::verbs::Device;
use sinew::herd::WorkerConfig;
use sinew::host::Interrupt;
use sinew::kv::Partitions;
use sinew::kv::herd::{CacheService, ITEM_LEN_MAX, layout};
use sinew::store::cache::{Cache, CacheConfig, Put};

use sinew_harness::machine;
use sinew_harness::units::{parse_count, parse_size};
use sinew_harness::workload::{KEY_LEN, fill_value, key_bytes};

use crate::herd::{HostConfig, host};
use crate::serve::{READY, begin, print_addresses};
use crate::verbs::{DeviceArgs, Job, VerbsFabric, parse_address};
use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
HERD's cache: clients WRITE requests into the server's memory, over shared memory or an RDMA device, and are answered
with datagrams. Clients connect to HOST:PORT to be admitted. Each worker polls on a processor of its own, and naps
when no request has come for a while.

Examples:
  sinew serve herd 127.0.0.1:7200 --keys 1M
  sinew kv bench herd-opt --keys 1M --address 127.0.0.1:7200";

/// Way in which workers serve requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// A pipeline, with a doorbell for each answer (sigcomm14)
    Herd,
    /// Batches, with one doorbell each and several queue pairs (atc16)
    HerdOpt,
}

/// Options of workers, beside their schedule.
#[derive(clap::Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Number of worker threads, each with a partition of the keys, 1 to 64
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// UD queue pairs of each worker, used in turn, 1 to 64 [default: 1 with --design herd, 3 with herd-opt]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    response_qps: Option<u8>,
    /// Ring the doorbell for each answer of an executed batch instead of once; herd always does so
    #[arg(long)]
    doorbell_each: bool,
    /// Longest answer that is sent inline, in bytes; what the device allows is the most
    #[arg(long, default_value = "256", value_parser = parse_size)]
    inline: usize,
}

/// Parses the requests that a client may have in flight to each worker.
pub fn parse_window(text: &str) -> Result<usize, String> {
    let window = text.parse().ok().filter(|window: &usize| window.is_power_of_two() && *window <= WINDOW_MAX);
    window.ok_or_else(|| format!("must be a power of two up to {WINDOW_MAX}"))
}

const WINDOW_MAX: usize = 1024;
/// Keys stored between checks for an interrupt.
const KEYS_PER_CHECK: u64 = 1 << 16;
/// Default window.
pub const WINDOW: usize = 16;

impl WorkerArgs {
    /// Configuration of workers, with batches of up to `batch`.
    pub fn config(&self, schedule: Schedule, batch: usize) -> WorkerConfig {
        let config = match schedule {
            Schedule::Herd => WorkerConfig::herd(),
            Schedule::HerdOpt => WorkerConfig { batch: batch.max(2), ..WorkerConfig::herd_opt() },
        };
        WorkerConfig {
            response_queue_pairs: self.response_qps.map_or(config.response_queue_pairs, usize::from),
            doorbell_per_batch: config.doorbell_per_batch && !self.doorbell_each,
            inline_max: self.inline,
            ..config
        }
    }

    /// Arguments that give a child's workers the same options.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![format!("--workers={}", self.workers), format!("--inline={}", self.inline)];
        args.extend(self.response_qps.map(|queue_pairs| format!("--response-qps={queue_pairs}")));
        args.extend(self.doorbell_each.then(|| "--doorbell-each".to_owned()));
        args
    }
}

/// Serve a key-value cache over verbs until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// TCP address at which clients ask to be admitted; port 0 means any free port
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:0", value_parser = parse_address)]
    at: String,
    /// Way in which workers serve requests
    #[arg(long, value_enum, default_value = "herd-opt")]
    design: Schedule,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    /// Requests that each client can have in flight to each worker: a power of two up to 1024
    #[arg(long, default_value_t = WINDOW, value_parser = parse_window)]
    window: usize,
    /// Requests that a worker executes together at most, 1 to 256; only for --design herd-opt
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    /// Clients that can be admitted at a time, 1 to 65536
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    clients: u32,
    /// Number of keys to store before serving: the keys that `sinew kv bench` asks for
    #[arg(long, default_value = "0", value_parser = parse_count)]
    keys: usize,
    /// Length of the values of these keys, in bytes, at most 1000
    #[arg(long, default_value = "32", value_parser = parse_size)]
    value_size: usize,
    /// Memory for the items of all workers, in bytes [default: 64M, or as much as --keys need]
    #[arg(long, value_parser = parse_size)]
    memory: Option<usize>,
    /// Processors to pin the workers to, in turn, separated by commas [default: workers are not pinned]
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Serve for a parent process: say `ready`, and end when standard input does
    #[arg(long, hide = true)]
    child: bool,
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    machine::check_pins(&args.pin).map_err(Usage::of)?;
    args.device.check().map_err(Usage::of)?;
    check_value_size(args.value_size).map_err(Usage::of)?;
    let served = begin(args.child, |interrupt| args.device.run(Serve { args, interrupt }))?;
    Ok(served.unwrap_or(Outcome::Failed))
}

/// Checks that values of this size fit in HERD's slots.
pub fn check_value_size(value_size: usize) -> anyhow::Result<()> {
    let max = ITEM_LEN_MAX - KEY_LEN;
    ensure!(value_size <= max, "--value-size {value_size}: HERD's slots take up to {max} beside a key of {KEY_LEN}");
    Ok(())
}

struct Serve<'a> {
    args: &'a Args,
    interrupt: Interrupt,
}

impl Job for Serve<'_> {
    type Result = Outcome;

    fn run<D: Device + 'static>(self, device: D, carried: VerbsFabric) -> anyhow::Result<Outcome> {
        let Self { args, interrupt } = self;
        let workers = usize::from(args.workers.workers);
        let cpus: Vec<_> = (0..workers).map(|index| args.pin.get(index % args.pin.len().max(1)).copied()).collect();
        let hosting = HostConfig {
            address: &args.at,
            layout: layout(workers, args.clients as usize, args.window),
            worker: args.workers.config(args.design, usize::from(args.batch)),
            cpus: &cpus,
            interrupt,
        };
        host(
            &device,
            &hosting,
            |index| make(args, index, interrupt),
            |address| {
                print_addresses(&[address.to_string()])?;
                if args.child {
                    output::print(READY)?;
                } else {
                    let fabric = carried.name();
                    output::print(format_args!(
                        "Stop with Ctrl-C. Measure with: sinew kv bench herd-opt --fabric {fabric} --address {address}"
                    ))?;
                }
                Ok(())
            },
        )?;
        Ok(Outcome::Done)
    }
}

/// Makes the partition of a worker, and fills it.
fn make(args: &Args, index: usize, interrupt: Interrupt) -> anyhow::Result<CacheService> {
    let workers = usize::from(args.workers.workers);
    let partitions = Partitions::new(workers);
    // Hashing makes partitions differ a little in size.
    let share = |all: usize| if workers == 1 { all } else { all / workers * 5 / 4 };
    let item = 2 * 8 + KEY_LEN + args.value_size.next_multiple_of(8);
    // By default, all items lie in the younger half of the log, so they are changed in place, and none is evicted.
    let memory_bytes = args.memory.map_or((2 * share(args.keys) * item).max(64 << 20), |memory| memory / workers);
    let mut cache = Cache::new(&CacheConfig {
        items: share(args.keys).max(memory_bytes / 256),
        memory_bytes: memory_bytes + (1 << 20),
        value_len_max: ITEM_LEN_MAX,
        seed: std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), index),
        ..CacheConfig::default()
    })?;
    let hasher = cache.hasher().clone();
    let mut value = vec![0; args.value_size];
    for key in 0..args.keys as u64 {
        ensure!(!key.is_multiple_of(KEYS_PER_CHECK) || !interrupt.is_set(), "interrupted");
        let bytes = key_bytes(key);
        if partitions.of(&bytes) == index {
            fill_value(&mut value, key, 0);
            cache.put(&hasher.key(&bytes), &value, &Put::default(), 1)?;
        }
    }
    Ok(CacheService::new(cache, partitions, index))
}
