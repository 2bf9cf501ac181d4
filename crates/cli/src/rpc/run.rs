//! Runs a benchmark: a server, clients, and alternating slices of calls and of their limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sinew::fabric::{PacketPort, Waker};
use sinew::host::Interrupt;
use sinew::prelude::*;
use sinew::shm::Hub;
use sinew_harness::load::Slice;
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::{Comparison, Figure, MeasureSides, Run, histogram, machine, service, units};

use super::limit::LimitMeter;
use super::plan::{Kind, RpcPlan};
use crate::child::ServerProcess;
use crate::echo::Echoes;
use crate::fabrics::{Fabric, nth_address};
use crate::output;

/// The server of a benchmark. It ends when this is dropped.
enum Serving {
    Process(ServerProcess),
    Threads(ServerThreads),
    Elsewhere(Vec<String>),
}

/// Server threads of this process. They end when this is dropped.
#[derive(Default)]
struct ServerThreads {
    addresses: Vec<String>,
    stop: Arc<AtomicBool>,
    threads: Vec<(Waker, JoinHandle<()>)>,
}

impl ServerThreads {
    fn start(plan: &RpcPlan, hub: &Hub) -> anyhow::Result<Self> {
        let (mut serving, address) = (Self::default(), plan.fabric.fresh_address(&plan.options())?);
        for (index, cpu) in plan.server_cpus.iter().copied().enumerate() {
            let address = nth_address(&address, index)?;
            let port = hub.port(address.trim_start_matches("shm://"))?;
            let (waker, nexus) = (port.waker(), service::nexus(plan.limits.config())?);
            let stop = Arc::clone(&serving.stop);
            let serve = move || -> anyhow::Result<()> {
                machine::pin(cpu)?;
                let mut rpc = Rpc::from(sinew::endpoint(&nexus, port)?);
                rpc.run_until(|rpc| {
                    service::answer_reports(rpc);
                    stop.load(Ordering::Relaxed)
                })?;
                Ok(())
            };
            let thread = std::thread::spawn(move || {
                if let Err(error) = serve() {
                    output::complain(format_args!("the server thread ended: {}", output::describe(&error)));
                }
            });
            serving.threads.push((waker, thread));
            serving.addresses.push(address);
        }
        Ok(serving)
    }
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            let _ = thread.join();
        }
    }
}

impl Serving {
    /// Starts a server, unless one is already running.
    fn start(plan: &RpcPlan, hub: &Hub) -> anyhow::Result<Self> {
        if let Some(address) = &plan.address {
            let addresses = (0..plan.threads).map(|index| nth_address(address, index));
            return Ok(Self::Elsewhere(addresses.collect::<Result<_, _>>()?));
        }
        if plan.fabric == Fabric::Hub {
            return Ok(Self::Threads(ServerThreads::start(plan, hub)?));
        }
        let address = plan.fabric.fresh_address(&plan.options())?;
        Ok(Self::Process(ServerProcess::start(&address, &plan.server_cpus, &plan.limits)?))
    }

    fn addresses(&self) -> &[String] {
        match self {
            Self::Process(server) => server.addresses(),
            Self::Threads(ServerThreads { addresses, .. }) | Self::Elsewhere(addresses) => addresses,
        }
    }

    fn process(&self) -> Option<u32> {
        if let Self::Process(server) = self { Some(server.id()) } else { None }
    }
}

/// The calls, and their limit.
struct Calls<'a> {
    plan: &'a RpcPlan,
    clients: Echoes,
    meter: LimitMeter,
    sum: Slice,
}

impl Calls<'_> {
    /// Mean figure of the client threads.
    fn slices(&mut self, sessions: usize, duration: Duration, is_ours: bool) -> anyhow::Result<f64> {
        let slices = self.clients.slice(sessions, duration)?;
        let mut sum = 0.0;
        for slice in &slices {
            sum += match self.plan.kind {
                Kind::Latency => slice.latency.value_at_quantile(0.5) as f64,
                Kind::Rate | Kind::Scale => slice.mops(),
                Kind::Bandwidth => slice.mops() * 8e-3 * self.plan.size as f64,
            };
            if is_ours {
                self.sum.add(slice);
            }
        }
        Ok(sum / slices.len().max(1) as f64)
    }
}

impl MeasureSides for Calls<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        Ok(Some(match (side, self.plan.kind) {
            (0, _) => self.slices(self.plan.sessions, duration, true)?,
            (_, Kind::Scale) => self.slices(RpcPlan::FEW_SESSIONS, duration, false)?,
            _ => self.meter.measure(duration)?,
        }))
    }

    fn reset_sums(&mut self) {
        self.sum.latency.reset();
    }
}

/// Measures. `progress` is called with the current activity, and the fraction of it done.
pub fn measure(plan: &RpcPlan, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let result = measure_until(plan, interrupt, progress);
    // Ctrl-C reaches the server too, so an error of a call about it is not the cause.
    ensure!(!interrupt.is_set(), Interrupted);
    result
}

fn measure_until(plan: &RpcPlan, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let hub = Hub::new();
    let serving = Serving::start(plan, &hub)?;
    let clients = Echoes::start(&plan.clients(), &plan.client_cpus, serving.addresses(), &hub, interrupt);
    let mut calls = Calls {
        plan,
        clients: clients?,
        meter: LimitMeter::new(plan),
        sum: Slice { latency: histogram(), ..Slice::new() },
    };
    let is_elsewhere = matches!(serving, Serving::Elsewhere(_)) && plan.server.is_none();
    let servers = if is_elsewhere { &[] } else { &plan.server_cpus[..] };
    let run = Run {
        duration: plan.duration,
        pair: calls.meter.cpus(),
        pins: [&plan.client_cpus, servers].concat(),
        servers: serving.process().or(plan.server).into_iter().collect(),
        judged: 2,
        yardstick: Some((plan.yardstick(), &plan.references)),
        interrupt,
    };
    let measured = run.measure_alternately(2, &mut calls, progress)?;
    let [server, client] = calls.clients.report()?;
    let Calls { meter, sum, .. } = calls;
    let comparison = if plan.kind == Kind::Scale { Comparison::Baseline } else { Comparison::Limit };
    let figure = measured.figure(format!("rpc {}", plan.kind.name()), title(plan), plan.kind.unit(), 0);
    let mut figure = figure.compared_with(&measured, 1, comparison, meter.what());
    if let Some(beside) = &mut figure.compared {
        beside.has_ratio = plan.has_ratio(meter.size());
        if !beside.has_ratio {
            beside.what += &format!(", of {}, the longest that it can be measured with", units::size(meter.size()));
        }
    }
    figure.latency = Some(sum.latency);
    let resent = client["retransmissions"].as_u64().unwrap_or(0);
    figure.lines.push(format!("{} checked, {resent} retransmitted", units::counted(sum.done, "answer")));
    figure.setup = setup(plan);
    figure.details = json!({
        "calls_checked": sum.done, "limit_size": meter.size(), "server": server, "client": client,
        "total": figure.value.map(|value| units::rounded(value * plan.threads as f64)),
    });
    Ok(figure)
}

fn title(plan: &RpcPlan) -> String {
    let RpcPlan { kind, window, batch, sessions, threads, .. } = plan;
    let what = format!("{} over {}, {}", kind.name(), plan.fabric.name(), units::size(plan.size));
    let each = if *threads > 1 { format!(", each of {threads} threads") } else { String::new() };
    match kind {
        Kind::Latency | Kind::Bandwidth => format!("{what}{each}"),
        Kind::Rate => format!("{what}, {window} in flight in batches of {batch}{each}"),
        Kind::Scale => format!("{what}, {}{each}", units::counted(*sessions, "session")),
    }
}

fn setup(plan: &RpcPlan) -> Value {
    json!({
        "fabric": plan.fabric.name(),
        "size": plan.size,
        "batch": plan.batch,
        "window": plan.window,
        "sessions": plan.sessions,
        "credits": plan.limits.credits(),
        "threads": plan.threads,
        "seconds": plan.duration.as_secs_f64(),
        "client_cpus": plan.client_cpus,
        "server_cpus": plan.server_cpus,
    })
}
