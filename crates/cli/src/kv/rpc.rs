//! `sinew kv bench rpc`: the cache over RPC, beside calls of the same lengths without a cache.

use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::kv::cache::protocol::VALUE_AT;
use sinew::kv::cache::{ClientConfig, Connecting};
use sinew::shm::Hub;
use sinew::{Endpoint, FabricEndpoint};
use sinew_harness::load::Slice;
use sinew_harness::load::cache::{Cache, Fills, Shape};
use sinew_harness::load::echo::{self, Answer};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::workload::{KEY_LEN, Mix, Workload};
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Measured, Unit, units};

use super::client::addresses_from;
use super::memcached::peers::{self, Peer};
use super::workload::{KEYS_MAX_OF_FABRIC, WINDOW_MAX, WorkloadArgs, parse_rate, workload_json, workload_text};
use crate::child::ServerProcess;
use crate::echo::{EchoPlan, Echoes};
use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Fabric, Purpose};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, interrupted};

pub const HELP: &str = "\
Starts a server process (or uses --address), fills its cache, and keeps --window requests in flight, --batch of which
are sent together. Every value that comes back is checked in full. The baseline is the rate of calls by the same RPC
layer, times the keys that a call of the cache had. They are as long as a get, and its answer, of as many keys as a
call has on average, PUTs included: a get ends before a PUT, and each partition gets a call of its own. With --rate
(open loop), a result is valid if 95 % of the requests due were answered. --peer also starts memcached and Redis, and
measures all by turns, over TCP, with 8 x 128 and 16 x 64 requests in flight.

Examples:
  sinew kv bench rpc --fabric udp --window 512 --batch 32
  sinew kv bench rpc --keys-per-get 8
  sinew kv bench rpc --fabric udp --keys-per-get 16 --peer
  sinew kv bench rpc --mix ycsb-a --rate 1";

/// Options of `sinew kv bench rpc`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Standard mix of requests, which replaces --get and --dist, and --value-size where the mix defines the length of
    /// values
    #[arg(long, value_enum, conflicts_with_all = ["get", "dist"])]
    mix: Option<Mix>,
    /// Fabric that carries the requests [default: that of --address, else shm]
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// Address of a running `sinew serve cache` [default: the benchmark starts a server process]
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Options for the addresses that the benchmark makes, as in `ring=4095` or `coalesce=off`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Number of client threads, and of server threads, 1 to 64
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Requests in flight for each client thread, 1 to 65536 [default: 128; 512 over udp]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    window: Option<u32>,
    /// Requests sent together, at most --window [default: 16, or --window if that is less]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    batch: Option<u32>,
    /// Keys in each get, 1 to 64: that many consecutive gets are combined
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    keys_per_get: u8,
    /// Open loop: millions of requests a second of each client thread, 0.000001 to 1000, whether or not answers come,
    /// up to --window in flight; latencies count from when a request was due [default: closed loop]
    #[arg(long, value_name = "M/s", allow_negative_numbers = true, value_parser = parse_rate, conflicts_with = "peer")]
    rate: Option<f64>,
    /// Start memcached and Redis as well, and measure all three by turns
    #[arg(long, conflicts_with_all = ["mix", "threads"])]
    peer: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Longest time to fill a cache.
const FILLING: Duration = Duration::from_secs(600);
/// Longest value that a cache takes by default, in bytes.
const VALUE_SIZE_MAX: usize = 1 << 20;

impl Args {
    /// The measurement that these options ask for.
    pub fn plan(&self) -> anyhow::Result<CachePlan<'_>> {
        self.measure.check_thresholds(Unit::Mops)?;
        let mut workload = self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?;
        if let Some(mix) = self.mix {
            workload = mix.workload(workload.keys, self.workload.value_size, workload.seed);
        }
        let value_max = units::size(VALUE_SIZE_MAX);
        ensure!(self.workload.value_size <= VALUE_SIZE_MAX, "--value-size can be up to {value_max}");
        let threads = usize::from(self.threads);
        let fabric = fabrics::of_clients(self.fabric, self.address.as_deref(), threads)?;
        ensure!(fabric != Fabric::Hub, "--fabric hub: the cache runs in a process of its own");
        let window = self.window.unwrap_or(if fabric == Fabric::Udp { 512 } else { 128 }) as usize;
        let batch = self.batch.map_or(16.min(window), |batch| batch as usize);
        ensure!(
            batch <= window,
            "--batch {batch}: exceeds the {} in flight (--window)",
            units::counted(window, "request")
        );
        let setting = self.measure.setting((threads, threads), self.address.is_some())?;
        let options = fabrics::options_of(self.options.as_deref());
        fabrics::check(&fabric.client_address(&options, self.address.as_deref()), Purpose::CallFrom)?;
        let (keys_per_get, rate) = (usize::from(self.keys_per_get), self.rate.map(|mops| mops * 1e6));
        let shape = Shape { window, batch, keys_per_get, rate };
        Ok(CachePlan { args: self, fabric, workload, shape, setting, options })
    }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    args.measure.show(&with_progress(|progress| measure(&plan, progress))?)
}

/// A measurement to make.
pub struct CachePlan<'a> {
    args: &'a Args,
    fabric: Fabric,
    workload: Workload,
    shape: Shape,
    /// Setting for as many server threads as client threads.
    setting: Setting,
    /// `?name=value...`, appended to addresses made here.
    options: String,
}

impl CachePlan<'_> {
    fn threads(&self) -> usize {
        self.setting.client_cpus.len()
    }

    /// Bytes of a get with the mean number of keys, and of its answer.
    fn message_lens(&self) -> [usize; 2] {
        match (self.shape.keys_per_get, self.mean_keys()) {
            (1, _) => [1 + KEY_LEN, VALUE_AT + self.mean_value_len()],
            (_, keys) => [2 + keys * (2 + KEY_LEN), 2 + keys * (4 + self.mean_value_len())],
        }
    }

    /// Mean number of keys of a call, PUTs included. Gets that follow one another are combined up to the next PUT, and
    /// shared out among the partitions.
    fn mean_keys(&self) -> usize {
        let (share, most) = (self.workload.get_percent / 100.0, self.shape.keys_per_get as i32);
        let combined: f64 = (0..most).map(|nth| share.powi(nth)).sum();
        let partitions = self.threads() as f64;
        let asked = partitions * (1.0 - (1.0 - 1.0 / partitions).powf(combined));
        let calls_per_key = share * asked / combined + (1.0 - share);
        calls_per_key.recip().round().max(1.0) as usize
    }

    /// Mean length of the values of the first keys, in bytes.
    fn mean_value_len(&self) -> usize {
        const KEYS: u64 = 10_000;
        (0..KEYS).map(|key| self.workload.sizes.of(key)).sum::<usize>().div_ceil(KEYS as usize)
    }

    /// Calls as long as a get and its answer.
    fn echo(&self) -> EchoPlan {
        let Shape { window, batch, .. } = self.shape;
        let [size, answer_len] = self.message_lens();
        EchoPlan {
            fabric: self.fabric,
            options: self.options.clone(),
            limits: self.args.limits.clone(),
            shape: echo::Shape { size, answer: Answer::Bytes(answer_len), window, batch },
            sessions: window.div_ceil(usize::from(self.args.limits.slots)),
        }
    }

    /// Starts a server with room for all keys.
    fn start_cache(&self) -> anyhow::Result<ServerProcess> {
        let (keys, threads) = (self.workload.keys, self.threads());
        // Includes its slot in the index.
        let item = 2 * 8 + KEY_LEN + self.mean_value_len().next_multiple_of(8) + 8 + 16;
        // Partitions differ a little in size.
        let memory = item * (keys + keys / 8) + (threads << 20);
        let mut args = vec!["serve".to_owned(), "cache".to_owned(), self.fabric.fresh_address(&self.options)?];
        args.extend(["--memory".to_owned(), memory.to_string(), "--items".to_owned(), keys.to_string()]);
        args.extend(self.args.limits.to_args(&self.setting.server_cpus));
        ServerProcess::spawn(&args)
    }
}

/// Driver of a thread, whose sleeps Ctrl-C ends.
fn boxed<E: Endpoint + 'static>(
    rpc: E,
    shape: Shape,
    workload: &Workload,
    addresses: Vec<String>,
    interrupt: Interrupt,
) -> anyhow::Result<(Box<dyn Fills>, WakeOnInterrupt)> {
    let wake = interrupt.wake_on_interrupt(rpc.waker());
    let window = Cache::<E, HostClock>::window_for(shape, addresses.len());
    let pipeline = Connecting::begin(rpc, addresses, ClientConfig { window, ..ClientConfig::default() })?.wait()?;
    Ok((Box::new(Cache::new(pipeline, HostClock::new(), shape, workload)), wake))
}

/// The cache, echoes, and peers, which take turns.
struct CacheSides<'a> {
    plan: &'a CachePlan<'a>,
    loaders: Drivers<dyn Fills>,
    echoes: Echoes,
    peers: Vec<Peer>,
    sum: Slice,
    /// Keys of each call to the cache, in its last slice.
    keys_per_call: f64,
}

impl MeasureSides for CacheSides<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let threads = self.plan.threads() as f64;
        let rate = match side {
            0 => {
                let slices = self.loaders.slices(duration, |_, _| ())?;
                slices.iter().for_each(|slice| self.sum.add(slice));
                let total = |of: fn(&Slice) -> u64| slices.iter().map(of).sum::<u64>();
                let (keys, calls) = (total(|slice| slice.done), total(|slice| slice.calls));
                self.keys_per_call = if calls == 0 { 1.0 } else { keys as f64 / calls as f64 };
                slices.iter().map(Slice::mops).sum::<f64>() / threads
            }
            1 => {
                let slices = self.echoes.slice(self.plan.echo().sessions, duration)?;
                slices.iter().map(Slice::mops).sum::<f64>() * self.keys_per_call / threads
            }
            peer => self.peers[peer - 2].1.slice(duration)?,
        };
        Ok(Some(rate))
    }

    fn reset_sums(&mut self) {
        self.sum = Slice::new();
    }
}

/// Starts servers, fills the cache, and measures. `progress` is called with the current activity, and the fraction of
/// it done, from 0 to 1.
pub fn measure(plan: &CachePlan<'_>, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    interrupted::run_interruptible(|interrupt| measure_until(plan, interrupt, progress))
}

fn measure_until(plan: &CachePlan<'_>, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let Setting { client_cpus, server_cpus, .. } = &plan.setting;
    let echo_server = ServerProcess::start(&plan.fabric.fresh_address(&plan.options)?, server_cpus, &plan.args.limits)?;
    let cache_server = if plan.args.address.is_none() { Some(plan.start_cache()?) } else { None };
    let addresses = match (&cache_server, &plan.args.address) {
        (Some(server), _) => server.addresses().to_vec(),
        (None, address) => addresses_from(address.as_deref().unwrap_or_default()).take(plan.threads()).collect(),
    };
    let mut peers = Vec::new();
    if plan.args.peer {
        progress("starting memcached and Redis", 0.0);
        peers = peers::start(&plan.workload, plan.mean_value_len(), client_cpus[0], server_cpus[0], interrupt)?;
    }
    let (fabric, limits, options) = (plan.fabric, plan.args.limits.clone(), plan.options.clone());
    let (shape, workload) = (plan.shape, plan.workload);
    let loaders = Drivers::start(client_cpus, interrupt, move |index| {
        let workload = Workload { seed: workload.seed + index as u64, ..workload };
        let addresses = addresses.clone();
        match fabrics::open(fabric, &limits, &options, &addresses[0], &Hub::new())? {
            FabricEndpoint::Shm(rpc) => boxed(rpc, shape, &workload, addresses, interrupt),
            FabricEndpoint::Udp(rpc) => boxed(rpc, shape, &workload, addresses, interrupt),
            FabricEndpoint::Ibverbs(rpc) => boxed(rpc, shape, &workload, addresses, interrupt),
            FabricEndpoint::Xdp(rpc) => boxed(rpc, shape, &workload, addresses, interrupt),
            FabricEndpoint::Other(rpc) => boxed(rpc, shape, &workload, addresses, interrupt),
        }
    })?;
    let echoes = Echoes::start(&plan.echo(), client_cpus, echo_server.addresses(), &Hub::new(), interrupt)?;
    let mut turns = CacheSides { plan, loaders, echoes, peers, sum: Slice::new(), keys_per_call: 1.0 };
    progress("filling the cache", 0.0);
    let (keys, threads) = (plan.workload.keys, plan.threads());
    let share = move |index: usize| (keys * index / threads) as u64;
    turns.loaders.each(FILLING, move |index, cache| {
        cache.fill(share(index)..share(index + 1));
        cache.drive(&HostClock::new(), Duration::ZERO, interrupt)
    })?;
    let peer_ids = turns.peers.iter().filter_map(|(_, side)| side.process());
    let servers: Vec<u32> = cache_server.iter().chain([&echo_server]).map(ServerProcess::id).chain(peer_ids).collect();
    let is_udp = plan.fabric == Fabric::Udp;
    let yardstick = if is_udp { Yardstick::UdpRoundTrip } else { Yardstick::RingRoundTrip };
    let run = plan.setting.run(2, servers, Some(yardstick), interrupt);
    let sides = 2 + turns.peers.len();
    let measured = run.measure_alternately(sides, &mut turns, progress)?;
    Ok(figure(plan, &measured, turns.sum, turns.peers))
}

fn figure(plan: &CachePlan<'_>, measured: &Measured, sum: Slice, peers: Vec<Peer>) -> Figure {
    let Shape { window, batch, keys_per_get, rate } = plan.shape;
    let title = format!("cache over RPC over {}, keys asked for or stored, each client thread", plan.fabric.name());
    let figure = measured.figure("kv rpc", title, Unit::Mops, 0);
    let keys_per_call = sum.done as f64 / sum.calls.max(1) as f64;
    let times = if keys_per_get > 1 {
        format!(", times the {} keys of a call", units::figure(keys_per_call))
    } else {
        String::new()
    };
    let what = format!("calls as long as a get and its answer{times}");
    let mut figure = figure.compared_with(measured, 1, Comparison::Baseline, what);
    if let (Some(rate), Some(value)) = (rate, figure.value)
        // Otherwise the latencies of its requests only show how long the overload lasted.
        && value * 1e6 < 0.95 * rate
    {
        let [came, answered] = [rate / 1e6, value].map(units::figure);
        figure.invalid_because.push(format!("{came} M requests/s came, and {answered} M/s were answered"));
    }
    let open_loop =
        rate.map_or_else(String::new, |rate| format!(", open loop of {} M requests/s", units::figure(rate / 1e6)));
    let several = if keys_per_get > 1 { format!(", {keys_per_get} keys to a get") } else { String::new() };
    figure.lines = vec![
        workload_text(&plan.workload, KEY_LEN),
        format!("{window} in flight in batches of {batch}{several}{open_loop}"),
        format!("{} checked, {:.1} % of the gets hit", units::counted(sum.done, "answer"), sum.hit_percent()),
    ];
    let peers = peers::results(peers, measured, 2);
    figure.lines.extend(peers.iter().map(|peer| peer.text.clone()));
    figure.setup = json!({
        "design": "rpc",
        "fabric": plan.fabric.name(),
        "workload": workload_json(&plan.workload, KEY_LEN),
        "mix": plan.args.mix.map(Mix::name),
        "offered_mops": rate.map(|rate| units::rounded(rate / 1e6)),
        "threads": plan.threads(),
        "window": window,
        "batch": batch,
        "keys_per_get": keys_per_get,
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.details = json!({
        "total_mops": figure.value.map(|value| units::rounded(value * plan.threads() as f64)),
        "hit_percent": units::rounded(sum.hit_percent()),
        "keys_checked": sum.done,
        "keys_per_call": units::rounded(keys_per_call),
        "peers": peers.into_iter().map(|peer| peer.json).collect::<Vec<Value>>(),
    });
    figure.latency = Some(sum.latency);
    figure
}
