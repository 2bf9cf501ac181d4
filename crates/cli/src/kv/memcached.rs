//! `sinew kv bench memcached` and `redis`: servers measured by a client of their protocols. The server is a running
//! one, or ours, or ours and memcached itself alternately.

pub mod peers;
pub mod servers;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sinew::host::{HostClock, Interrupt};
use sinew_harness::load::memcached::{KEY_LEN, Memcached, Shape, Wire};
use sinew_harness::load::{Drive, Slice};
use sinew_harness::run::Progress;
use sinew_harness::units::counted;
use sinew_harness::workload::Workload;
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Run, Unit, units};

use servers::{ServerPlan, Started};

use super::workload::{KEYS_MAX_OF_FABRIC, WorkloadArgs, parse_rate, workload_json, workload_text};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, interrupted, output, table};

pub const HELP: &str = "\
Starts a server, or uses a running one with --connect. On each connection --depth requests are sent together, and the
next ones once all are answered. Every value is checked. Servers started here have one thread. `memcached --peer` also
starts memcached itself, and measures both by turns.

Examples:
  sinew kv bench memcached --peer --depth 64 --fail-if-ratio-below 1
  sinew kv bench memcached --connect 127.0.0.1:11211 --connections 8
  sinew kv bench redis --depth 16";

/// Options of the clients of both protocols.
#[derive(clap::Args, Clone)]
pub struct ClientArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Address of a running server, HOST:PORT or unix:PATH [default: the benchmark starts a server]
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
    /// Start servers at Unix sockets instead of TCP ports
    #[arg(long, conflicts_with = "connect")]
    unix: bool,
    /// Number of connections of the client, 1 to 1000
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Requests in flight on each connection, 1 to 4096
    #[arg(long, default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Open loop: millions of requests a second, 0.000001 to 1000, whether or not answers come, up to --depth in flight
    /// on each connection; latencies count from when a request was due [default: closed loop]
    #[arg(long, value_name = "M/s", allow_negative_numbers = true, value_parser = parse_rate)]
    rate: Option<f64>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Options of `sinew kv bench memcached`.
#[derive(clap::Args)]
pub struct MemcachedArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Start memcached as well, with one thread, and measure both by turns
    #[arg(long, conflicts_with = "connect")]
    peer: bool,
    /// Keys in each get, 1 to 64
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, conflicts_with = "meta", value_parser = clap::value_parser!(u8).range(1..=64))]
    keys_per_get: u8,
    /// Send the meta commands `mg` and `ms` instead of `get` and `set`
    #[arg(long)]
    meta: bool,
}

impl MemcachedArgs {
    /// Measures, and prints the result.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        let wire = if self.meta { Wire::Meta } else { Wire::Text };
        self.client.run(wire, self.keys_per_get.into(), self.peer)
    }
}

impl ClientArgs {
    /// Measures, and prints the result.
    pub fn run(&self, wire: Wire, keys_per_get: usize, has_peer: bool) -> anyhow::Result<Outcome> {
        let plan = self.plan(wire, keys_per_get, has_peer).map_err(Usage::of)?;
        let figure = with_progress(|progress| measure(&plan, progress))?;
        let sides = figure.details["sides"].as_array().filter(|sides| !self.measure.json && sides.len() > 1);
        sides.map(|sides| output::print(table_of(sides))).transpose()?;
        self.measure.show(&figure)
    }

    /// The measurement that these options ask for.
    pub fn plan(&self, wire: Wire, keys_per_get: usize, has_peer: bool) -> anyhow::Result<MemcachedPlan<'_>> {
        let measure = &self.measure;
        measure.check_thresholds(Unit::Mops)?;
        ensure!(
            has_peer || !measure.thresholds.judge_ratio(),
            "--fail-if-ratio-...: the ratio compares with memcached; add --peer"
        );
        ensure!(self.workload.value_size < (1 << 20) - 1024, "--value-size: memcached takes less than 1 MB");
        Ok(MemcachedPlan {
            workload: self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?,
            shape: Shape {
                connections: self.connections.into(),
                depth: self.depth.into(),
                keys_per_get,
                wire,
                value_size: self.workload.value_size,
                rate: self.rate.map(|mops| mops * 1e6),
            },
            args: self,
            has_peer,
            setting: measure.setting((1, 1), self.connect.is_some())?,
        })
    }
}

/// A measurement to make.
pub struct MemcachedPlan<'a> {
    args: &'a ClientArgs,
    workload: Workload,
    shape: Shape,
    /// Whether memcached itself is measured too.
    has_peer: bool,
    setting: Setting,
}

/// A server, and a client thread that has stored all keys in it.
pub struct Side {
    started: Started,
    client: Drivers<Memcached<HostClock>>,
    sum: Slice,
}

impl Side {
    fn start(
        started: Started,
        shape: Shape,
        workload: &Workload,
        cpu: Option<usize>,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let (name, address, workload) = (started.name.clone(), started.address.clone(), *workload);
        let client = Drivers::start(&[cpu], interrupt, move |_| {
            let mut load = Memcached::connect(&address, shape, &workload, HostClock::new())?;
            load.fill(workload.keys as u64);
            let filled = load.drive(&HostClock::new(), Duration::ZERO, interrupt);
            filled.with_context(|| format!("filling {name} at {address}"))?;
            Ok((Box::new(load), ()))
        })?;
        Ok(Self { started, client, sum: Slice::new() })
    }

    /// Measures a slice. Returns millions of keys a second.
    pub fn slice(&mut self, duration: Duration) -> anyhow::Result<f64> {
        let slices = self.client.slices(duration, |_, _| ()).with_context(|| self.started.name.clone())?;
        slices.iter().for_each(|slice| self.sum.add(slice));
        Ok(slices.iter().map(Slice::mops).sum())
    }

    /// The server's process, if it was started here.
    pub fn process(&self) -> Option<u32> {
        self.started.process()
    }

    /// Results at these rates.
    fn json(&self, rates: &[f64]) -> Value {
        let fold = |pick: fn(f64, f64) -> f64| units::rounded(rates.iter().copied().reduce(pick).unwrap_or(0.0));
        let latency = |quantile| self.sum.latency.value_at_quantile(quantile);
        json!({
            "server": self.started.name,
            "rate_mops": units::rounded(units::median(rates)),
            "min_mops": fold(f64::min),
            "max_mops": fold(f64::max),
            "p50_ns": latency(0.5),
            "p99_ns": latency(0.99),
            "p999_ns": latency(0.999),
            "hit_percent": units::rounded(self.sum.hit_percent()),
            "keys_checked": self.sum.done,
        })
    }
}

/// Servers that are measured alternately.
struct Sides(Vec<Side>);

impl MeasureSides for Sides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        self.0[side].slice(duration).map(Some)
    }

    fn reset_sums(&mut self) {
        self.0.iter_mut().for_each(|side| side.sum = Slice::new());
    }
}

/// Starts servers, fills them, and measures. `progress` is called with the current activity, and the fraction of it
/// done, from 0 to 1.
pub fn measure(plan: &MemcachedPlan<'_>, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    interrupted::run_interruptible(|interrupt| measure_until(plan, interrupt, progress))
}

fn measure_until(
    plan: &MemcachedPlan<'_>,
    interrupt: Interrupt,
    progress: &mut Progress<'_>,
) -> anyhow::Result<Figure> {
    let MemcachedPlan { workload, shape, setting, .. } = plan;
    let server = ServerPlan {
        keys: workload.keys,
        memory_mb: servers::memory_mb(workload.keys, shape.value_size),
        cpu: setting.server_cpus[0],
        unix: plan.args.unix,
    };
    progress("starting", 0.0);
    let mut started = vec![match &plan.args.connect {
        Some(address) => Started::elsewhere(address),
        None if shape.wire == Wire::Redis => servers::redis(&server)?,
        None => servers::ours(&server)?,
    }];
    if plan.has_peer {
        started.push(servers::memcached(&server)?);
    }
    let mut sides = Vec::new();
    for started in started {
        progress("filling", 0.0);
        sides.push(Side::start(started, *shape, workload, setting.client_cpus[0], interrupt)?);
    }
    let servers: Vec<u32> = sides.iter().filter_map(Side::process).collect();
    let run = setting.run(sides.len(), servers, None, interrupt);
    // The place of a server that was not started here is unknown, so the pair of processors does not count.
    let run = Run { pair: run.pair.filter(|_| !setting.is_server_elsewhere), ..run };
    let mut sides = Sides(sides);
    let measured = run.measure_alternately(sides.0.len(), &mut sides, progress)?;
    let Sides(sides) = sides;
    let bench = if shape.wire == Wire::Redis { "kv redis" } else { "kv memcached" };
    let title = format!("{}, {} of keys", sides[0].started.name, shape.wire.name());
    let mut figure = measured.figure(bench, title, Unit::Mops, 0);
    if plan.has_peer {
        let Started { name, command, .. } = &sides[1].started;
        figure = figure.compared_with(&measured, 1, Comparison::Peer, format!("{name}, started as `{command}`"));
    }
    let Shape { connections, depth, keys_per_get, rate, .. } = *shape;
    let asked_for = rate.map(|rate| format!(", {rate} requests/s offered")).unwrap_or_default();
    figure.lines = vec![
        workload_text(workload, KEY_LEN),
        format!(
            "{connections} x {} in flight, {} a get{asked_for}",
            counted(depth, "request"),
            counted(keys_per_get, "key")
        ),
        format!(
            "{} checked, {:.1} % of the gets hit",
            counted(sides[0].sum.done, "answer"),
            sides[0].sum.hit_percent()
        ),
    ];
    figure.setup = json!({
        "design": bench.trim_start_matches("kv "),
        "workload": workload_json(workload, KEY_LEN),
        "connections": connections,
        "depth": depth,
        "keys_per_get": keys_per_get,
        "commands": shape.wire.name(),
        "offered_mops": rate.map(|rate| units::rounded(rate / 1e6)),
        "seconds": setting.duration.as_secs_f64(),
    });
    figure.latency = Some(sides[0].sum.latency.clone());
    let hit_percent = units::rounded(sides[0].sum.hit_percent());
    figure.details = json!({
        "hit_percent": hit_percent,
        "keys_checked": sides[0].sum.done,
        "sides": (0..).zip(&sides).map(|(index, side)| side.json(&measured.slices(index))).collect::<Vec<_>>(),
    });
    Ok(figure)
}

/// Table of sides in the form of [`Side::json`].
fn table_of(sides: &[Value]) -> String {
    let heads = ["server", "keys, M/s", "lowest .. highest", "p50", "p99", "p99.9", "hits"];
    let rows = sides.iter().map(|side| {
        let number = |name: &str| side[name].as_f64().unwrap_or(0.0);
        let [rate, min, max] = ["rate_mops", "min_mops", "max_mops"].map(|name| units::figure(number(name)));
        let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|name| units::time(number(name)));
        let (name, hits) = (side["server"].as_str().unwrap_or_default(), number("hit_percent"));
        vec![name.to_owned(), rate, format!("{min} .. {max}"), p50, p99, p999, format!("{hits:.1} %")]
    });
    table::of(&heads, rows, table::FIGURES)
}
