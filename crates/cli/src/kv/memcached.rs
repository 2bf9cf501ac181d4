//! Memcached and Redis servers, measured by a client of their protocols: one that runs already, or ours and memcached itself by
//! turns.

mod client;
mod peers;
mod servers;

use std::time::Duration;

use anyhow::{Context, ensure};
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew::host::Interrupt;

use client::{Client, KEY_LEN};
pub use client::{Load, Wire};
pub use peers::{Measured, Peers};
use servers::Server;

use crate::bench::Judged;
use crate::client::histogram;
use crate::others::{self, Others, Watch};
use crate::tour::Row;
use crate::workload::Workload;
use crate::{machine, units};

/// Slices of a measurement, of each side in turn.
const SLICES: u32 = 5;
/// What comes before them and does not count.
const WARM_UP: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workload: Workload,
    pub load: Load,
    pub target: Target,
    pub duration: Duration,
    pub client_cpu: Option<usize>,
    pub server_cpu: Option<usize>,
}

/// Whom.
#[derive(Clone, Debug)]
pub enum Target {
    /// A server that runs: `HOST:PORT` or `unix:PATH`.
    Running(String),
    /// A server of ours.
    Ours { unix: bool },
    /// One of ours, and memcached itself.
    Both { unix: bool },
    /// Redis.
    Redis { unix: bool },
}

struct Side {
    name: String,
    client: Client,
    rates: Vec<f64>,
    latency: Histogram<u64>,
    keys: u64,
    gets: u64,
    hits: u64,
    /// If it was started here; it ends with this.
    server: Option<Server>,
}

/// What came of it.
pub struct Figures {
    plan: Plan,
    sides: Vec<Side>,
    /// Who else used the processors.
    others: Others,
}

/// Starts servers, fills them, and measures. `progress` hears what is done, and how much of it, from 0 to 1.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Figures> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    progress("starting", 0.0);
    let started = match &plan.target {
        Target::Running(address) => vec![("server".to_owned(), address.clone(), None)],
        Target::Ours { unix } => vec![servers::ours(plan, *unix)?],
        Target::Both { unix } => vec![servers::ours(plan, *unix)?, servers::memcached(plan, *unix)?],
        Target::Redis { unix } => vec![servers::redis(plan, *unix)?],
    };
    machine::pin(plan.client_cpu)?;
    let mut sides = Vec::new();
    for (name, address, server) in started {
        progress("filling", 0.0);
        let mut client = Client::connect(&address, plan.load, &plan.workload, interrupt)?;
        client.fill(plan.workload.keys as u64).with_context(|| format!("filling {name} at {address}"))?;
        let (rates, latency) = (Vec::new(), histogram());
        sides.push(Side { name, client, rates, latency, keys: 0, gets: 0, hits: 0, server });
    }
    let servers = sides.iter().filter_map(|side| Some(side.server.as_ref()?.id()));
    // Where a server that was not started here runs, it is as if others did.
    let cpus = [Some(plan.client_cpu), plan.starts_servers().then_some(plan.server_cpu)];
    let watch = Watch::new(others::cpus(cpus.iter().flatten()), servers);
    let steps = SLICES as usize * sides.len();
    for step in 0..steps {
        progress("measuring", step as f64 / steps as f64);
        let at = step % sides.len();
        let side = &mut sides[at];
        if step < plan.sides() {
            side.client.run(WARM_UP)?;
        }
        let slice = side.client.run(plan.duration / SLICES).with_context(|| side.name.clone())?;
        side.rates.push(slice.mops());
        side.latency.add(&slice.latency).context("adding histograms of one kind")?;
        side.keys += slice.keys;
        side.gets += slice.gets;
        side.hits += slice.hits;
        ensure!(!interrupt.is_set(), "interrupted");
    }
    Ok(Figures { plan: plan.clone(), sides, others: watch.end() })
}

impl Plan {
    fn starts_servers(&self) -> bool {
        !matches!(self.target, Target::Running(_))
    }

    fn sides(&self) -> usize {
        if matches!(self.target, Target::Both { .. }) { 2 } else { 1 }
    }
}

impl Side {
    fn extremes(&self) -> [f64; 2] {
        let fold = |pick: fn(f64, f64) -> f64| self.rates.iter().copied().reduce(pick).unwrap_or(0.0);
        [fold(f64::min), fold(f64::max)]
    }

    fn hit_percent(&self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.gets as f64 }
    }

    fn json(&self) -> Value {
        let [min, max] = self.extremes().map(units::rounded);
        json!({
            "server": self.name,
            "rate_mops": units::rounded(units::median(&self.rates)),
            "min_mops": min,
            "max_mops": max,
            "p50_ns": self.latency.value_at_quantile(0.5),
            "p99_ns": self.latency.value_at_quantile(0.99),
            "p999_ns": self.latency.value_at_quantile(0.999),
            "hit_percent": units::rounded(self.hit_percent()),
            "keys_checked": self.keys,
        })
    }
}

impl Figures {
    /// Ours over theirs, within each repetition.
    fn ratio(&self) -> Option<f64> {
        let [ours, theirs] = &self.sides[..] else { return None };
        let ratios: Vec<f64> = ours.rates.iter().zip(&theirs.rates).map(|(ours, theirs)| ours / theirs).collect();
        Some(units::median(&ratios))
    }

    /// What the tour shows of it.
    pub fn row(&self) -> Row {
        let Plan { workload, load, .. } = &self.plan;
        let rate = self.sides.first().map_or(0.0, |side| units::median(&side.rates));
        Row {
            what: format!(
                "{} % GET, values of {}, {} in flight",
                workload.get_percent,
                units::size(load.value_size),
                load.depth
            ),
            figure: format!("{} M/s", units::figure(rate)),
            limit: "none; `sinew kv bench --design memcached --peer` has memcached beside it".to_owned(),
            is_valid: self.others.are_few(),
        }
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        let figure = self.sides.first().map(|side| units::median(&side.rates));
        Judged { name: "rate_mops", figure, ratio: self.ratio(), valid: self.others.are_few() }
    }

    pub fn json(&self) -> Value {
        let mut object = self.sides.first().map(Side::json).unwrap_or_default();
        let Plan { workload, load, .. } = &self.plan;
        let rest = json!({
            "design": if load.wire == Wire::Redis { "redis" } else { "memcached" },
            "ratio": self.ratio().map(units::rounded),
            "sides": self.sides.iter().map(Side::json).collect::<Vec<_>>(),
            "keys": workload.keys,
            "key_size": KEY_LEN,
            "value_size": load.value_size,
            "get_percent": workload.get_percent,
            "dist": workload.distribution.name(),
            "seed": workload.seed,
            "connections": load.connections,
            "depth": load.depth,
            "keys_per_get": load.keys_per_get,
            "meta": load.wire == Wire::Meta,
            "rate": load.rate,
            "others_share": self.others.share.map(units::rounded),
        });
        if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
            object.extend(rest);
        }
        object
    }

    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
            "server",
            "keys, M/s",
            "lowest .. highest",
            "p50",
            "p99",
            "p99.9",
            "hits",
        ]);
        for side in &self.sides {
            let [min, max] = side.extremes().map(units::figure);
            let time = |quantile| units::time(side.latency.value_at_quantile(quantile) as f64);
            table.add_row([
                side.name.clone(),
                units::figure(units::median(&side.rates)),
                format!("{min} .. {max}"),
                time(0.5),
                time(0.99),
                time(0.999),
                format!("{:.1} %", side.hit_percent()),
            ]);
        }
        let Plan { workload, load, .. } = &self.plan;
        let ratio = self.ratio().map(|ratio| format!("\nours over memcached: {}", units::figure(ratio)));
        let rate = load.rate.map(|rate| format!(", {rate} requests/s asked for")).unwrap_or_default();
        let complaint = self.others.complaint().map(|complaint| format!("\nINVALID: {complaint}")).unwrap_or_default();
        format!(
            "{table}\n{} keys of {KEY_LEN} B, values of {}, {} % GET, {}; {} x {} requests in flight, {} keys a get, {}{rate}{}{complaint}",
            workload.keys,
            units::size(load.value_size),
            workload.get_percent,
            workload.distribution.name(),
            load.connections,
            load.depth,
            load.keys_per_get,
            load.wire.name(),
            ratio.unwrap_or_default(),
        )
    }
}
