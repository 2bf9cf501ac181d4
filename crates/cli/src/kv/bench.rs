//! `sinew kv bench`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::herd::serve::{Schedule, WINDOW, WorkerArgs};
use super::load::Load;
use super::{herd, memcached, one_sided, rpc, table};
use crate::bench::{Judged, Output};
use crate::fabrics::{self, Fabric, Purpose};
use crate::limits::References;
use crate::serve::LimitArgs;
use crate::units::{self, parse_count, parse_seconds, parse_size};
use crate::verbs::{Carried, DeviceArgs, parse_address};
use crate::workload::{Distribution, KEYS_MAX, Mix, Order, Sizes, Workload};
use crate::{Outcome, Usage, machine, output};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Design {
    /// The table alone: one thread, no network
    Table,
    /// The cache over RPC
    Rpc,
    /// HERD's cache over verbs, as sigcomm14 has it
    Herd,
    /// The same with atc16's batches, doorbells and queue pairs
    HerdOpt,
    /// Pilaf on verbs: a cuckoo table; GETs are READs of buckets and of the item
    Pilaf,
    /// FaRM's store on verbs: a hopscotch table; GETs are READs of a neighbourhood
    Farm,
    /// DrTM-KV on verbs: GETs are READs of a record, PUTs lock, update and unlock it with atomics
    Drtm,
    /// A memcached server: any, ours, or ours and memcached itself
    Memcached,
    /// A Redis server: any, or one that is started
    Redis,
}

const HELP: &str = "\
`table` fills the table of the cache and has one thread serve a trace of requests drawn ahead. Requests are served one at a
time, and in batches whose cache misses overlap. Every value that is found is copied out and checked, from 16 bytes on in full. The limit is
what the memory allows: as many pairs of random cache lines, one of the index and one of the items, read in batches of the
same size from a table as large, with nothing else done.

`rpc` starts a server process (or takes --address), fills its cache, and keeps --window requests in flight, of which --batch go out
together. Every value that comes back is checked in full. The limit is the echo of as many messages, as long as the longer of a get and its
answer, by the same RPC layer, times the keys of a get. With --rate a result is valid if the requests were answered as fast as they came.
With --peer memcached and Redis are started, too, and measured by turns, over TCP, with 8 x 128 and 16 x 64 requests in flight.

`herd` and `herd-opt` start a server process that stores all keys (or take --address HOST:PORT of `sinew serve herd`, with the same
--workers, --window, --keys and --value-size), and ask it from --threads threads with --clients clients each, whose windows are full. Every
answer is checked. The limit is the rate of `sinew verbs echo --form ws`, in turn: as many messages of an item's size that are written to a
server and sent back with nothing in between. Latencies are from the request to its answer, the wait in the window included.

`pilaf` and `farm` fill a table that the client READs over --fabric shm or ibverbs, and whose owner, another thread, makes the PUTs that
it is sent. Every value is checked in full. --emulate has no table, but READs as sigcomm14 5.1 has them: 1.6 of 32 bytes and the
value for pilaf-em, six keys and values for farm-em; each is checked to come from where it should. The limit is the rate of
`sinew verbs rate read`, of READs as long as the first of a GET, divided by the READs that a GET took; their places are not random,
as a table's are.

`drtm` has such a table with a lock in each record, and a client that has seen where each key is: a GET is a READ, a PUT a compare-and-swap
that locks, a WRITE, and a compare-and-swap that unlocks. A lock that is held is tried again after a while, 32 times, after which the PUT
is given up and counted. The limit is the rate of READs as long as a record, divided by the READs, WRITEs and atomics that a request took. Over
shared memory an atomic is the processor's own; on NICs it is what limits the design (atc16 4.3.2).

`memcached` drives a memcached server, --connect any that runs, else one of ours: --depth requests go out together on each connection,
and the next when all are answered. Every value is checked in full. With --peer memcached itself is started, too, and both are measured
by turns. Both have one thread. `redis` drives a Redis server in the same way, --connect any that runs, else one that is started.

JSON: rate_mops (keys, of one client thread), limit_mops, ratio, p50_ns and p99_ns (for table: of one request, a batch's time, divided), for
table all of the largest batch; hit_percent; for table batches (the same for each size, with min_mops and max_mops) and gain (the largest
batch over batches of one). Of herd: rate_mops and limit_mops of all threads, valid, mean_ns, retried, server (the workers' counters).
Of pilaf, farm and drtm: read_mops, read_size, reads_per_get, reads_again; of drtm: verbs_per_request, puts, atomics_per_put, lock_conflicts
(locks that were held), put_retries, puts_contended (PUTs that were given up). Of rpc with --peer: peers (server, rate_mops, ours_over_theirs).

Examples:
  sinew kv bench --design table --keys 8M --get 95 --dist uniform --json
  sinew kv bench --design rpc --fabric udp --window 512 --batch 32
  sinew kv bench --design rpc --fabric shm --keys-per-get 8
  sinew kv bench --design rpc --fabric udp --keys-per-get 16 --peer
  sinew kv bench --design rpc --mix ycsb-a --rate 1
  sinew kv bench --design herd-opt --fabric shm --keys 8M --json
  sinew kv bench --design pilaf --fabric shm --get 95
  sinew kv bench --design farm --out-of-line --emulate
  sinew kv bench --design drtm --get 50 --dist zipf
  sinew kv bench --design memcached --peer --depth 64 --fail-if-ratio-below 1
  sinew kv bench --design memcached --connect 127.0.0.1:11211 --connections 8 --rate 0.1";

/// Measure a design of a key-value store.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What is measured
    #[arg(long, value_enum, default_value = "table")]
    design: Design,
    /// Keys there are: 8M is 8 million [default: 8M for table, else 1M]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    keys: Option<usize>,
    /// GETs among a hundred requests; the others are PUTs
    #[arg(long, default_value = "95", value_name = "PERCENT", allow_negative_numbers = true, value_parser = parse_percent)]
    get: f64,
    /// How often each key is asked for
    #[arg(long, value_enum, default_value = "uniform")]
    dist: Distribution,
    /// A mix of requests that others measure with too, in place of --get and --dist, and of --value-size where it says how long values are
    #[arg(long, value_enum, conflicts_with_all = ["get", "dist"])]
    mix: Option<Mix>,
    /// Bytes of each value
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = parse_size)]
    value_size: usize,
    /// Requests that are served or go out together; for table several sizes [default: 1,8,16,32 for table, else 16]
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    batch: Vec<u32>,
    /// Seconds of measuring (for table: each size); the limit takes as long again, at most
    #[arg(long, default_value = "2", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
    /// Processors of the client threads, then of the server threads [default: 0,1,... where there are enough]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Another seed is another trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    net: NetArgs,
    #[command(flatten)]
    memcached: MemcachedArgs,
    #[command(flatten)]
    output: Output,
}

/// Options of the designs that have clients and servers.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of designs with clients and servers")]
struct NetArgs {
    /// What carries the requests; follows from --address [default: shm]
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// A cache that runs already (see `sinew serve cache`); else one is started in a process of its own
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Options of the fabric for addresses made here, as in `ring=4095` or `coalesce=off`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Client threads, and as many server threads
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Requests in flight for each client thread [default: 128; 512 over udp]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    window: Option<u32>,
    /// Keys that one request asks for; gets that follow each other go together
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    keys_per_get: u8,
    /// Millions of requests in a second of each client thread, made by the clock whether answers come or not; latencies count from
    /// when a request should have been made [default: as many as can be]
    #[arg(long, value_name = "M/s", allow_negative_numbers = true, value_parser = parse_rate)]
    rate: Option<f64>,
    /// Leave threads where the system puts them
    #[arg(long, conflicts_with = "pin")]
    no_pin: bool,
    /// What `sinew limits --json` printed on this machine when it was quiet, to judge by whether it is quiet now
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// pilaf, farm: fixed READs without a table, as in sigcomm14 5.1
    #[arg(long)]
    emulate: bool,
    /// farm: values lie outside the slots
    #[arg(long)]
    out_of_line: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    /// HERD: clients of each thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Designs on verbs: the RDMA device, for --fabric ibverbs [default: the first that can be used]
    #[arg(long)]
    device: Option<String>,
}

/// Options of `--design memcached` and `redis`.
#[derive(clap::Args)]
#[command(next_help_heading = "Options of --design memcached and redis (and --keys-per-get)")]
struct MemcachedArgs {
    /// A server that runs, HOST:PORT or unix:PATH; else one is started, of memcached's protocol ours
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
    /// Start memcached, too, with one thread, and measure both by turns; for --design rpc, Redis as well
    #[arg(long, conflicts_with = "connect")]
    peer: bool,
    /// Start servers at Unix sockets rather than TCP ports
    #[arg(long, conflicts_with = "connect")]
    unix: bool,
    /// Connections of the client
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// `mg` and `ms` rather than `get` and `set`
    #[arg(long)]
    meta: bool,
}

const WINDOW_MAX: i64 = 65_536;
/// The longest value that a cache takes unless it is told otherwise.
const VALUE_SIZE_MAX: usize = 1 << 20;
const KEYS_MAX_OF_FABRIC: usize = 1 << 27;
const BATCH_MAX_OF_HERD: usize = 256;

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.000_001..=1000.0).contains(rate));
    rate.ok_or_else(|| "millions of requests in a second are needed, from 0.000001 to 1000".to_owned())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a percentage from 0 to 100 is needed".to_owned())
}

impl Args {
    fn workload(&self, keys: usize) -> anyhow::Result<Workload> {
        ensure!((1..=KEYS_MAX).contains(&keys), "--keys can be from 1 to {KEYS_MAX}");
        let (order, sizes) = (Order::Alike, Sizes::Fixed(self.value_size));
        Ok(Workload { keys, distribution: self.dist, get_percent: self.get, order, sizes, seed: self.seed })
    }

    /// What none but the designs whose GETs are READs take.
    fn check_no_read_options(&self) -> anyhow::Result<()> {
        let NetArgs { emulate, out_of_line, .. } = self.net;
        ensure!(!emulate && !out_of_line, "--emulate and --out-of-line are for --design pilaf and farm");
        Ok(())
    }

    fn table_plan(&self) -> anyhow::Result<table::Plan> {
        self.check_no_read_options()?;
        let workload = self.workload(self.keys.unwrap_or(8_000_000))?;
        ensure!(self.mix.is_none(), "--mix is for designs with clients and servers");
        ensure!(self.value_size <= table::VALUE_SIZE_MAX, "--value-size can be up to {}", table::VALUE_SIZE_MAX);
        ensure!(self.pin.len() <= 1, "--pin: the table has one thread");
        machine::check_pins(&self.pin)?;
        let mut batches: Vec<usize> = self.batch.iter().map(|batch| *batch as usize).collect();
        if batches.is_empty() {
            batches.extend([1, 8, 16, 32]);
        }
        batches.sort_unstable();
        batches.dedup();
        ensure!(batches.iter().all(|batch| *batch <= table::BATCH_MAX), "--batch can be up to {}", table::BATCH_MAX);
        Ok(table::Plan {
            workload,
            value_size: self.value_size,
            batches,
            duration: self.seconds,
            cpu: self.pin.first().or(machine::cpus().first()).copied(),
        })
    }

    fn memcached_plan(&self) -> anyhow::Result<memcached::Plan> {
        let MemcachedArgs { connect, peer, unix, connections, depth, meta } = &self.memcached;
        let keys_per_get = usize::from(self.net.keys_per_get);
        let is_redis = self.design == Design::Redis;
        ensure!(self.mix.is_none(), "--mix is for --design rpc");
        ensure!(!is_redis || !(*peer || *meta), "--peer, --meta: these are memcached's");
        ensure!(!is_redis || keys_per_get == 1, "--keys-per-get: GET asks for one key");
        ensure!(*peer || !self.output.judges_ratio(), "--fail-if-ratio-...: a ratio is to memcached; add --peer");
        ensure!(!meta || keys_per_get == 1, "--meta: mg asks for one key");
        ensure!(self.value_size < VALUE_SIZE_MAX - 1024, "--value-size: memcached takes less than 1 MB");
        let cpus = machine::choose_cpus(&self.pin, self.net.no_pin, connect.is_some(), 1)?;
        Ok(memcached::Plan {
            workload: self.workload(self.keys.unwrap_or(1_000_000))?,
            load: memcached::Load {
                connections: usize::from(*connections),
                depth: usize::from(*depth),
                keys_per_get,
                wire: match (is_redis, *meta) {
                    (true, _) => memcached::Wire::Redis,
                    (false, true) => memcached::Wire::Meta,
                    (false, false) => memcached::Wire::Text,
                },
                value_size: self.value_size,
                rate: self.net.rate.map(|mops| mops * 1e6),
            },
            target: match connect {
                Some(address) => memcached::Target::Running(address.clone()),
                None if is_redis => memcached::Target::Redis { unix: *unix },
                None if *peer => memcached::Target::Both { unix: *unix },
                None => memcached::Target::Ours { unix: *unix },
            },
            duration: self.seconds,
            client_cpu: cpus.first().copied().flatten(),
            server_cpu: cpus.get(1).copied().flatten(),
        })
    }

    fn rpc_plan(&self) -> anyhow::Result<rpc::Plan> {
        self.check_no_read_options()?;
        let mut workload = self.workload(self.keys.unwrap_or(1_000_000))?;
        if let Some(mix) = self.mix {
            workload = mix.workload(workload.keys, self.value_size, self.seed);
        }
        ensure!(workload.keys <= KEYS_MAX_OF_FABRIC, "--keys can be up to {KEYS_MAX_OF_FABRIC} over a fabric");
        ensure!(self.value_size <= VALUE_SIZE_MAX, "--value-size can be up to {}", units::size(VALUE_SIZE_MAX));
        let NetArgs { address, threads, window, keys_per_get, rate, no_pin, limits, .. } = &self.net;
        let threads = usize::from(*threads);
        let has_peers = self.memcached.peer;
        ensure!(
            !has_peers || threads == 1 && self.mix.is_none() && rate.is_none(),
            "--peer: memcached and Redis are measured beside one thread, without --mix and --rate"
        );
        let fabric = self.net.fabric(threads)?;
        ensure!(fabric != Fabric::Hub, "--fabric hub: the cache is served by a process of its own");
        let window = window.unwrap_or(if fabric == Fabric::Udp { 512 } else { 128 }) as usize;
        let batch = match self.batch[..] {
            [] => 16.min(window),
            [batch] => batch as usize,
            _ => bail!("--batch: several sizes are for --design table"),
        };
        ensure!(
            batch <= window,
            "--batch {batch}: more than the {window} requests that are in flight at all (--window)"
        );
        let cpus = machine::choose_cpus(&self.pin, *no_pin, address.is_some(), threads)?;
        let options = match self.net.options.as_deref().map(|options| options.trim_start_matches('?')) {
            None | Some("") => String::new(),
            Some(options) => format!("?{options}"),
        };
        fabrics::check(&fabric.client_address(&options), Purpose::CallFrom)?;
        Ok(rpc::Plan {
            fabric,
            workload,
            mix: self.mix,
            load: Load { window, batch, keys_per_get: usize::from(*keys_per_get), rate: rate.map(|mops| mops * 1e6) },
            threads,
            client_cpus: cpus[..threads].to_vec(),
            server_cpus: cpus[threads..].to_vec(),
            address: address.clone(),
            options,
            duration: self.seconds,
            limits: limits.clone(),
            references: self.net.reference.as_deref().map(References::read).transpose()?.unwrap_or_default(),
            has_peers,
        })
    }

    fn one_sided_plan(&self) -> anyhow::Result<one_sided::Plan> {
        let workload = self.workload(self.keys.unwrap_or(1_000_000))?;
        ensure!(workload.keys <= KEYS_MAX_OF_FABRIC, "--keys can be up to {KEYS_MAX_OF_FABRIC} over a fabric");
        let max = one_sided::VALUE_SIZE_MAX;
        ensure!(self.value_size <= max, "--value-size can be up to {max} for this design");
        let net = &self.net;
        let fabric = match net.fabric {
            None | Some(Fabric::Shm) => Carried::Shm,
            Some(Fabric::Ibverbs) => Carried::Ibverbs,
            Some(other) => bail!("--fabric {}: this design needs verbs: shm, or ibverbs", other.name()),
        };
        ensure!(net.address.is_none(), "--address: this design has its owner in the same process");
        ensure!(net.options.is_none(), "--options: verbs take none");
        ensure!(
            self.mix.is_none() && net.rate.is_none(),
            "--mix, --rate: this design is loaded with GETs and PUTs, all it can"
        );
        ensure!(net.threads == 1 && net.keys_per_get == 1, "--threads, --keys-per-get: this design has one of each");
        ensure!(self.batch.is_empty(), "--batch: what there is of --window goes out together");
        let is_farm = self.design == Design::Farm;
        ensure!(self.design != Design::Drtm || !net.emulate, "--emulate is for --design pilaf and farm");
        ensure!(is_farm || !net.out_of_line, "--out-of-line is for --design farm");
        let window = net.window.unwrap_or(16) as usize;
        ensure!(window <= one_sided::WINDOW_MAX, "--window can be up to {} for this design", one_sided::WINDOW_MAX);
        let cpus = machine::choose_cpus(&self.pin, net.no_pin, false, 1)?;
        Ok(one_sided::Plan {
            store: match self.design {
                Design::Farm => one_sided::Store::Farm { is_inline: !net.out_of_line },
                Design::Drtm => one_sided::Store::Drtm,
                _ => one_sided::Store::Pilaf,
            },
            is_emulated: net.emulate,
            fabric,
            device: net.device.clone(),
            workload,
            value_size: self.value_size,
            window,
            duration: self.seconds,
            client_cpu: cpus[0],
            server_cpu: cpus[1],
            references: net.reference.as_deref().map(References::read).transpose()?.unwrap_or_default(),
        })
    }
}

impl Args {
    fn herd_plan(&self, schedule: Schedule) -> anyhow::Result<herd::Plan> {
        let NetArgs { fabric, address, threads, window, no_pin, workers, clients, device, .. } = &self.net;
        ensure!(self.mix.is_none() && self.net.rate.is_none(), "--mix and --rate are for --design rpc");
        ensure!(self.net.keys_per_get == 1, "--keys-per-get is for --design rpc");
        self.check_no_read_options()?;
        let workload = self.workload(self.keys.unwrap_or(1_000_000))?;
        ensure!(workload.keys <= KEYS_MAX_OF_FABRIC, "--keys can be up to {KEYS_MAX_OF_FABRIC} over a fabric");
        let carried = match fabric {
            None | Some(Fabric::Shm) => Carried::Shm,
            Some(Fabric::Ibverbs) => Carried::Ibverbs,
            Some(other) => bail!("--fabric {}: HERD runs on verbs, which shm and ibverbs have", other.name()),
        };
        if let Some(address) = address {
            parse_address(address).map_err(|error| anyhow!("--address {address}: for HERD, {error}"))?;
        }
        let batch = match self.batch[..] {
            [] => 32,
            [batch] => batch as usize,
            _ => bail!("--batch: several sizes are for --design table"),
        };
        ensure!(batch <= BATCH_MAX_OF_HERD, "--batch {batch}: up to {BATCH_MAX_OF_HERD} for HERD");
        let (threads, servers) = (usize::from(*threads), usize::from(workers.workers));
        let wanted = threads + servers;
        ensure!(
            self.pin.is_empty() || self.pin.len() == wanted,
            "--pin: {wanted} processors are needed, one for each client thread and then one for each worker"
        );
        machine::check_pins(&self.pin)?;
        let all = if self.pin.is_empty() { machine::cpus() } else { &self.pin };
        let is_pinned = all.len() >= wanted && !no_pin;
        let cpus: Vec<Option<usize>> = (0..wanted).map(|nth| all.get(nth).copied().filter(|_| is_pinned)).collect();
        let plan = herd::Plan {
            workload,
            value_size: self.value_size,
            duration: self.seconds,
            schedule,
            batch,
            device: DeviceArgs { fabric: carried, device: device.clone() },
            window: window.map_or(WINDOW, |window| window as usize),
            workers: workers.clone(),
            clients: usize::from(*clients),
            client_cpus: cpus[..threads].to_vec(),
            server_cpus: cpus[threads..].to_vec(),
            address: address.clone(),
            references: self.net.reference.as_deref().map(References::read).transpose()?.unwrap_or_default(),
        };
        plan.check()?;
        Ok(plan)
    }
}

impl NetArgs {
    fn fabric(&self, threads: usize) -> anyhow::Result<Fabric> {
        let Some(address) = &self.address else { return Ok(self.fabric.unwrap_or(Fabric::Shm)) };
        let mut of_address = fabrics::check(address, Purpose::Call)?;
        for index in 1..threads {
            of_address = fabrics::check(&fabrics::nth_address(address, index)?, Purpose::Call)?;
        }
        ensure!(
            self.fabric.is_none_or(|fabric| fabric == of_address),
            "--fabric and --address {address} disagree; leave --fabric out"
        );
        Ok(of_address)
    }
}

/// Measures and shows.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {percent}%").expect("a fixed template"));
    let mut progress = |what: &'static str, part: f64| {
        bar.set_message(what);
        bar.set_position((part * 1000.0) as u64);
    };
    let shown = measure(args, &mut progress);
    bar.finish_and_clear();
    let (text, json, judged) = shown?;
    if args.output.json {
        output::print(json)?;
    } else {
        output::print(text)?;
    }
    Ok(args.output.judge(&judged))
}

/// What came of it, to read, as JSON, and to be held against thresholds.
type Shown = (String, Value, Judged);

fn measure(args: &Args, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Shown> {
    Ok(match args.design {
        Design::Table => {
            let figures = table::measure(&args.table_plan().map_err(Usage::of)?, progress)?;
            (figures.text(), figures.json(), figures.judged())
        }
        Design::Memcached | Design::Redis => {
            let figures = memcached::measure(&args.memcached_plan().map_err(Usage::of)?, progress)?;
            (figures.text(), figures.json(), figures.judged())
        }
        Design::Rpc => {
            let figures = rpc::measure(&args.rpc_plan().map_err(Usage::of)?, progress)?;
            (figures.text(), figures.json(), figures.judged())
        }
        Design::Herd | Design::HerdOpt => {
            let schedule = if args.design == Design::Herd { Schedule::Herd } else { Schedule::HerdOpt };
            let figures = herd::measure(&args.herd_plan(schedule).map_err(Usage::of)?, progress)?;
            (figures.text(), figures.json(), figures.judged())
        }
        Design::Pilaf | Design::Farm | Design::Drtm => {
            let figures = one_sided::measure(args.one_sided_plan().map_err(Usage::of)?, progress)?;
            (figures.text(), figures.json(), figures.judged())
        }
    })
}
