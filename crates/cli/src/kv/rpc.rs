//! The cache over RPC, measured beside the echo of the same messages.

use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew::FabricEndpoint;
use sinew::host::Interrupt;
use sinew::kv::cache::protocol::VALUE_AT;
use sinew::prelude::*;
use sinew::shm::Hub;

use super::client::addresses_from;
use super::load::{Load, Loader, Loads, Slice};
use super::memcached::{Measured, Peers};
use crate::bench::{self, Judged, Kind};
use crate::child::ServerProcess;
use crate::client::{self, Calls, histogram};
use crate::fabrics::Fabric;
use crate::limits::{Reading, References};
use crate::machine::Pair;
use crate::others::{self, Others};
use crate::serve::LimitArgs;
use crate::tour::Row;
use crate::workload::{KEY_LEN, Mix, Workload};
use crate::{machine, units};

/// Slices of a measurement: as many of the limit, in turn.
const SLICES: u32 = 5;
/// What comes before them and does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// The longest slice of a limit.
const LIMIT_SLICE_MAX: Duration = Duration::from_millis(400);
/// How long a yardstick, and the distance of the cores, are measured.
const YARDSTICK: Duration = Duration::from_millis(30);
/// How often a client that has nothing to do answers a server that asks whether it is there.
const SIGN_OF_LIFE: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub fabric: Fabric,
    pub workload: Workload,
    /// Whose workload it is.
    pub mix: Option<Mix>,
    pub load: Load,
    /// Client threads, and as many server threads.
    pub threads: usize,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpus: Vec<Option<usize>>,
    /// A cache that runs already.
    pub address: Option<String>,
    /// `?name=value...` for addresses made here.
    pub options: String,
    pub duration: Duration,
    pub limits: LimitArgs,
    pub references: References,
    /// Whether memcached and Redis are measured too.
    pub has_peers: bool,
}

impl Plan {
    /// Bytes of a get, and of its answer.
    fn message_lens(&self) -> [usize; 2] {
        match self.load.keys_per_get {
            1 => [1 + KEY_LEN, VALUE_AT + self.mean_value_len()],
            keys => [2 + keys * (2 + KEY_LEN), 2 + keys * (4 + self.mean_value_len())],
        }
    }

    /// Of the values of the first keys, where they differ.
    fn mean_value_len(&self) -> usize {
        const KEYS: u64 = 10_000;
        (0..KEYS).map(|key| self.workload.sizes.of(key)).sum::<usize>().div_ceil(KEYS as usize)
    }

    /// The echo that is as long as the longer of the two.
    fn echo(&self) -> bench::Plan {
        let mut plan = bench::Plan::new(Kind::Rate, self.fabric, self.duration);
        plan.size = self.message_lens().into_iter().max().unwrap_or(0);
        plan.window = self.load.window;
        plan.batch = self.load.batch;
        plan.sessions = self.load.window.div_ceil(usize::from(self.limits.slots));
        plan.options.clone_from(&self.options);
        plan.limits = self.limits.clone();
        plan
    }

    fn pair(&self) -> Pair {
        Some([self.client_cpus[0]?, self.server_cpus[0]?])
    }
}

/// What came of it.
pub struct Figures {
    plan: Plan,
    /// Keys, in millions per second, of one client thread.
    ours: Vec<f64>,
    /// Echoes times the keys of a request.
    limits: Vec<f64>,
    latency: Histogram<u64>,
    keys: u64,
    gets: u64,
    hits: u64,
    yardstick: [Reading; 2],
    /// What memcached and Redis did in turn.
    peers: Vec<Measured>,
    /// Who else used the processors.
    others: Others,
}

/// What a client thread is told to do.
#[derive(Clone, Copy)]
enum Ask {
    Fill,
    Echo(Duration),
    Load(Duration),
}

enum Answer {
    Ready,
    Echoes(f64),
    Slice(Slice),
}

type Order = (Ask, mpsc::Sender<anyhow::Result<Answer>>);

struct ClientThread<'scope> {
    orders: mpsc::Sender<Order>,
    thread: ScopedJoinHandle<'scope, ()>,
}

/// Where the servers are.
#[derive(Clone)]
struct Places {
    cache: Vec<String>,
    echo: Vec<String>,
}

/// Starts servers, fills the cache, and measures. `progress` hears what is done, and how much of it, from 0 to 1.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Figures> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let echo = plan.fabric.fresh_address(&plan.options)?;
    let echo_server = ServerProcess::start(&echo, &plan.server_cpus, &plan.limits)?;
    let cache_server = if plan.address.is_none() { Some(start_cache(plan)?) } else { None };
    let cache = match (&cache_server, &plan.address) {
        (Some(server), _) => server.addresses().to_vec(),
        (None, address) => addresses_from(address.as_deref().unwrap_or_default()).take(plan.threads).collect(),
    };
    let peers = plan.has_peers.then(|| {
        progress("starting memcached and Redis", 0.0);
        Peers::start(&plan.workload, plan.mean_value_len(), plan.server_cpus[0], interrupt)
    });
    let mut peers = peers.transpose()?;
    let places = Places { cache, echo: echo_server.addresses().to_vec() };
    let result = std::thread::scope(|threads| {
        let mut clients = Vec::new();
        for index in 0..plan.threads {
            clients.push(start_client(plan, index, &places, interrupt, threads)?);
        }
        let servers = cache_server.iter().chain([&echo_server]).map(ServerProcess::id);
        let servers = servers.chain(peers.iter().flat_map(Peers::ids));
        // What a cache elsewhere uses is not known to be its own.
        let own_cpus = if plan.address.is_some() { &[] } else { &plan.server_cpus[..] };
        let watch = others::Watch::new(others::cpus(plan.client_cpus.iter().chain(own_cpus)), servers)
            .allowing(&plan.references);
        let result = alternate(plan, &clients, peers.as_mut(), progress);
        let result = result.map(|figures| Figures { others: watch.end(), ..figures });
        // The clients first, so that the servers see them leave.
        for ClientThread { orders, thread } in clients {
            drop(orders);
            let _ = thread.join();
        }
        result
    });
    // Ctrl-C reaches the servers too: what a call says of their going is not the cause.
    ensure!(!interrupt.is_set(), "interrupted");
    Ok(Figures { peers: peers.map(Peers::end).unwrap_or_default(), ..result? })
}

/// A server with room for all keys.
fn start_cache(plan: &Plan) -> anyhow::Result<ServerProcess> {
    let keys = plan.workload.keys;
    let item = 2 * 8 + KEY_LEN + plan.mean_value_len().next_multiple_of(8) + 8;
    // Partitions are not quite alike.
    let memory = item * (keys + keys / 8) + (plan.threads << 20);
    let address = plan.fabric.fresh_address(&plan.options)?;
    let mut args = ["serve", "cache", &address].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("--threads", plan.threads.to_string());
    for cpu in plan.server_cpus.iter().flatten() {
        option("--pin", cpu.to_string());
    }
    option("--memory", memory.to_string());
    option("--items", keys.to_string());
    option("--credits", plan.limits.credits().to_string());
    option("--slots", plan.limits.slots.to_string());
    option("--peer-timeout-ms", plan.limits.peer_timeout_ms.to_string());
    if plan.limits.block {
        args.push("--block".to_owned());
    }
    ServerProcess::spawn(&args)
}

fn alternate(
    plan: &Plan,
    clients: &[ClientThread<'_>],
    mut peers: Option<&mut Peers>,
    progress: &mut dyn FnMut(&'static str, f64),
) -> anyhow::Result<Figures> {
    if peers.is_some() {
        // This thread drives them while the clients sleep.
        machine::pin(plan.client_cpus[0])?;
    }
    progress("filling the cache", 0.0);
    ask_all(clients, Ask::Fill)?;
    let slice = plan.duration / SLICES;
    let yardstick =
        || Reading::take(Kind::Rate, plan.fabric, plan.pair(), &plan.references, YARDSTICK.min(plan.duration));
    let before = yardstick()?;
    let warm_up = WARM_UP.min(slice);
    ask_all(clients, Ask::Echo(warm_up))?;
    ask_all(clients, Ask::Load(warm_up))?;
    let (mut ours, mut limits, mut latency) = (Vec::new(), Vec::new(), histogram());
    let [mut keys, mut gets, mut hits] = [0; 3];
    for index in 0..SLICES {
        progress("measuring", f64::from(index) / f64::from(SLICES));
        let (mut echoes, mut rate) = (0.0, 0.0);
        for answer in ask_all(clients, Ask::Echo((slice / 2).min(LIMIT_SLICE_MAX)))? {
            if let Answer::Echoes(mops) = answer {
                echoes += mops;
            }
        }
        for answer in ask_all(clients, Ask::Load(slice))? {
            let Answer::Slice(slice) = answer else { continue };
            rate += slice.mops();
            latency.add(&slice.latency)?;
            (keys, gets, hits) = (keys + slice.keys, gets + slice.gets, hits + slice.hits);
        }
        if let Some(peers) = &mut peers {
            peers.run(slice)?;
        }
        let threads = clients.len().max(1) as f64;
        limits.push(echoes * plan.load.keys_per_get as f64 / threads);
        ours.push(rate / threads);
    }
    let yardstick = [before, yardstick()?];
    let (others, peers) = (Others::default(), Vec::new());
    Ok(Figures { plan: plan.clone(), ours, limits, latency, keys, gets, hits, yardstick, peers, others })
}

/// Has all client threads do the same at once.
fn ask_all(clients: &[ClientThread<'_>], ask: Ask) -> anyhow::Result<Vec<Answer>> {
    let mut pending = Vec::new();
    for client in clients {
        let (send, receive) = mpsc::channel();
        client.orders.send((ask, send)).ok().context("a client thread has ended")?;
        pending.push(receive);
    }
    pending.into_iter().map(|receive| receive.recv().context("a client thread has ended")?).collect()
}

fn start_client<'scope>(
    plan: &Plan,
    index: usize,
    places: &Places,
    interrupt: Interrupt,
    threads: &'scope Scope<'scope, '_>,
) -> anyhow::Result<ClientThread<'scope>> {
    let (orders, incoming) = mpsc::channel::<Order>();
    let (ready, is_ready) = mpsc::channel();
    let (plan, places) = (plan.clone(), places.clone());
    let thread = threads.spawn(move || {
        let open = || -> anyhow::Result<_> {
            machine::pin(plan.client_cpus[index])?;
            let echo = bench::open(&plan.echo(), &Hub::new(), &places.echo[index], interrupt)?;
            Ok((echo, open_loader(&plan, index, places.cache.clone(), interrupt)?))
        };
        let (mut echo, mut loader) = match open() {
            Ok(opened) => opened,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(()));
        loop {
            match incoming.recv_timeout(SIGN_OF_LIFE) {
                Ok((ask, answer)) => drop(answer.send(obey(&plan, index, &mut *echo, &mut *loader, ask))),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            echo.keep_alive();
            loader.keep_alive();
        }
    });
    is_ready.recv().context("a client thread ended at once")??;
    Ok(ClientThread { orders, thread })
}

fn obey(plan: &Plan, index: usize, echo: &mut dyn Calls, loader: &mut dyn Loads, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Fill => {
            let share = |index: usize| (plan.workload.keys * index / plan.threads) as u64;
            loader.fill(share(index), share(index + 1))?;
            Ok(Answer::Ready)
        }
        Ask::Echo(duration) => {
            let bench::Plan { size, window, batch, .. } = plan.echo();
            Ok(Answer::Echoes(echo.load(client::Load { size, window, batch, sink: false }, duration)?.mops()))
        }
        Ask::Load(duration) => Ok(Answer::Slice(loader.load(duration)?)),
    }
}

fn open_loader(
    plan: &Plan,
    index: usize,
    addresses: Vec<String>,
    interrupt: Interrupt,
) -> anyhow::Result<Box<dyn Loads>> {
    let nexus = Nexus::builder().config(plan.limits.config()).build()?;
    let rpc = Rpc::open_with(&nexus, &plan.fabric.client_address(&plan.options))?;
    let workload = Workload { seed: plan.workload.seed + index as u64, ..plan.workload };
    let load = plan.load;
    Ok(match rpc.into_endpoint() {
        FabricEndpoint::Shm(rpc) => Box::new(Loader::connect(rpc, addresses, load, &workload, interrupt)?),
        FabricEndpoint::Udp(rpc) => Box::new(Loader::connect(rpc, addresses, load, &workload, interrupt)?),
        FabricEndpoint::Ibverbs(rpc) => Box::new(Loader::connect(rpc, addresses, load, &workload, interrupt)?),
        FabricEndpoint::Other(rpc) => Box::new(Loader::connect(rpc, addresses, load, &workload, interrupt)?),
    })
}

impl Figures {
    fn rate(&self) -> f64 {
        units::median(&self.ours)
    }

    fn limit(&self) -> Option<f64> {
        Some(units::median(&self.limits)).filter(|limit| *limit > 0.0)
    }

    fn ratio(&self) -> Option<f64> {
        self.limit().map(|limit| self.rate() / limit)
    }

    fn is_valid(&self) -> bool {
        // Requests that came by the clock were answered as fast as they came, else their times only say how long it was tried.
        let kept_up = self.plan.load.rate.is_none_or(|rate| self.rate() * 1e6 >= 0.95 * rate);
        self.limit().is_some() && kept_up && self.yardstick.iter().all(Reading::is_enough) && self.others.are_few()
    }

    fn hit_percent(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.gets as f64 }
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        Judged { name: "rate_mops", figure: Some(self.rate()), ratio: self.ratio(), valid: self.is_valid() }
    }

    /// What the tour shows of it.
    pub fn row(&self) -> Row {
        let workload = &self.plan.workload;
        Row {
            what: format!("{} % GET, values of {}", workload.get_percent, workload.sizes.name()),
            figure: format!("{} M/s", units::figure(self.rate())),
            limit: self.limit().map_or_else(
                || "not measured".to_owned(),
                |limit| format!("{} M/s: echoes of the same messages", units::figure(limit)),
            ),
            is_valid: self.is_valid(),
        }
    }

    pub fn json(&self) -> Value {
        let Plan { fabric, workload, load, threads, .. } = &self.plan;
        let list = |values: &[f64]| values.iter().copied().map(units::rounded).collect::<Vec<_>>();
        let [before, after] = &self.yardstick;
        json!({
            "design": "rpc",
            "fabric": fabric.name(),
            "rate_mops": units::rounded(self.rate()),
            "limit_mops": self.limit().map(units::rounded),
            "ratio": self.ratio().map(units::rounded),
            "total_mops": units::rounded(self.rate() * *threads as f64),
            "p50_ns": self.latency.value_at_quantile(0.5),
            "p99_ns": self.latency.value_at_quantile(0.99),
            "p999_ns": self.latency.value_at_quantile(0.999),
            "keys": workload.keys,
            "key_size": KEY_LEN,
            "value_size": self.plan.mean_value_len(),
            "values": workload.sizes.name(),
            "mix": self.plan.mix.map(Mix::name),
            "offered_mops": load.rate.map(|rate| units::rounded(rate / 1e6)),
            "get_percent": workload.get_percent,
            "dist": workload.distribution.name(),
            "seed": workload.seed,
            "threads": threads,
            "window": load.window,
            "batch": load.batch,
            "keys_per_get": load.keys_per_get,
            "hit_percent": units::rounded(self.hit_percent()),
            "keys_checked": self.keys,
            "slices": { "ours": list(&self.ours), "limit": list(&self.limits) },
            "cores": {
                "before": machine::distance(before.cores_ns),
                "before_ns": before.cores_ns.map(units::rounded),
                "after": machine::distance(after.cores_ns),
                "after_ns": after.cores_ns.map(units::rounded),
            },
            "yardstick": {
                "what": before.name(),
                "before": units::rounded(before.value),
                "after": units::rounded(after.value),
                "reference": units::rounded(before.reference),
            },
            "peers": self.peers.iter().map(|peer| peer.json(&self.ours)).collect::<Vec<_>>(),
            "others_share": self.others.share.map(units::rounded),
            "limit_valid": self.is_valid(),
        })
    }

    pub fn text(&self) -> String {
        let Plan { fabric, workload, load, threads, .. } = &self.plan;
        let percentiles =
            [0.5, 0.99, 0.999].map(|quantile| units::time(self.latency.value_at_quantile(quantile) as f64));
        let mut several = match load.keys_per_get {
            1 => String::new(),
            keys => format!(", {keys} keys to a get"),
        };
        if let Some(rate) = load.rate {
            several += &format!(", {} M requests/s by the clock", units::figure(rate / 1e6));
        }
        let limit = match (self.limit(), self.ratio()) {
            (Some(limit), Some(ratio)) => format!("{} M/s (ratio {})", units::figure(limit), units::figure(ratio)),
            _ => "not measured".to_owned(),
        };
        let peers: String = self.peers.iter().map(|peer| format!("\n  {}", peer.text(&self.ours))).collect();
        let valid = match self.others.complaint() {
            Some(complaint) => format!("\n  INVALID: {complaint}"),
            None if self.is_valid() => String::new(),
            None => {
                "\n  INVALID: the machine was busy, or is slower than the one that the references come from".to_owned()
            }
        };
        format!(
            "cache over rpc over {}, {} keys of {KEY_LEN} B, values of {}, {} % GET, {}: {} M keys/s per client core ({threads})\n  \
             limit, echoes of the same messages: {limit}; latency p50 {}, p99 {}, p99.9 {}\n  \
             {} in flight in batches of {}{several}; {} answers checked, {:.1} % of the gets hit{peers}{valid}",
            fabric.name(),
            workload.keys,
            workload.sizes.name(),
            workload.get_percent,
            workload.distribution.name(),
            units::figure(self.rate()),
            percentiles[0],
            percentiles[1],
            percentiles[2],
            load.window,
            load.batch,
            self.keys,
            self.hit_percent(),
        )
    }
}
