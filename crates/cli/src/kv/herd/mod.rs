//! HERD's cache, measured: a server process, client threads, and the same way of messages without a cache beside it.

pub mod serve;

use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::{ClientConfig, ClientStats};
use sinew::host::{HostClock, Interrupt};
use sinew::kv::herd::{Client, Outcome, Status, layout};

use crate::bench::Judged;
use crate::child::ServerProcess;
use crate::client::histogram;
use crate::herd::{Admission, join};
use crate::limits::References;
use crate::others::{self, Others, Watch};
use crate::verbs::{Carried, DeviceArgs, Job, WrittenEcho};
use crate::workload::{KEY_LEN, Request, Workload, check_value, fill_value, key_bytes};
use crate::{machine, units};
use serve::{Schedule, WorkerArgs};

/// Slices of a measurement: as many of the limit, in turn.
const SLICES: u32 = 3;
/// The first slice is preceded by this much that does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// Requests that each thread draws ahead.
const TRACE: usize = 1 << 20;
/// Of so many answers the time of one is taken.
const SAMPLE_EVERY: u64 = 8;
/// Beyond its slice, a client thread has this long to answer; a server as long to store its keys.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interrupt is looked at every so many turns.
const TURNS_PER_LOOK: u32 = 1024;

/// What to measure.
pub struct Plan {
    pub workload: Workload,
    pub value_size: usize,
    pub duration: Duration,
    pub schedule: Schedule,
    /// Requests that are executed together at most.
    pub batch: usize,
    pub device: DeviceArgs,
    /// Requests that a client has on their way to each worker.
    pub window: usize,
    pub workers: WorkerArgs,
    /// Clients of each thread.
    pub clients: usize,
    /// Of each client thread.
    pub client_cpus: Vec<Option<usize>>,
    /// Of each worker.
    pub server_cpus: Vec<Option<usize>>,
    /// Where a server is; else one is started.
    pub address: Option<String>,
    pub references: References,
}

/// What came of a slice.
struct Slice {
    done: u64,
    misses: u64,
    wrong: u64,
    elapsed_ns: u64,
    latency: Histogram<u64>,
    stats: ClientStats,
}

/// What came of it.
pub struct Figures {
    design: &'static str,
    fabric: &'static str,
    workload: Workload,
    value_size: usize,
    window: usize,
    threads: usize,
    clients: usize,
    workers: usize,
    ours: Vec<f64>,
    limits: Vec<f64>,
    latency: Histogram<u64>,
    done: u64,
    misses: u64,
    stats: ClientStats,
    counters: Value,
    /// Whether the machine was free enough while the limit was measured,
    is_limit_valid: bool,
    /// and who else used the processors while ours was.
    others: Others,
}

impl Plan {
    fn limit(&self) -> WrittenEcho<'_> {
        WrittenEcho {
            device: &self.device,
            size: KEY_LEN + self.value_size,
            window: self.window,
            queue_pairs: self.clients,
            client_cpus: &self.client_cpus,
            server_cpu: self.server_cpus.first().copied().flatten(),
            references: &self.references,
        }
    }

    /// Whether it can be, whatever the machine.
    pub fn check(&self) -> anyhow::Result<()> {
        self.device.check()?;
        serve::check_value_size(self.value_size)?;
        serve::check_window(self.window)?;
        self.limit().check()
    }

    /// Clients in all.
    fn clients(&self) -> usize {
        self.clients * self.client_cpus.len()
    }

    fn start_server(&self) -> anyhow::Result<ServerProcess> {
        let mut args: Vec<String> = ["serve", "herd", "127.0.0.1:0"].map(str::to_owned).into();
        args.extend(self.device.to_args());
        args.extend(self.workers.to_args());
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--window", self.window.to_string());
        option("--design", name(self.schedule).to_owned());
        option("--batch", self.batch.to_string());
        option("--clients", self.clients().to_string());
        option("--keys", self.workload.keys.to_string());
        option("--value-size", self.value_size.to_string());
        for cpu in self.server_cpus.iter().flatten() {
            option("--pin", cpu.to_string());
        }
        ServerProcess::spawn(&args)
    }
}

fn name(schedule: Schedule) -> &'static str {
    match schedule {
        Schedule::Herd => "herd",
        Schedule::HerdOpt => "herd-opt",
    }
}

/// Measures.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Figures> {
    plan.device.run(Measure { plan, progress })
}

struct Measure<'a> {
    plan: &'a Plan,
    progress: &'a mut dyn FnMut(&'static str, f64),
}

impl Job for Measure<'_> {
    type Result = Figures;

    fn run<D: Device>(self, device: D, carried: Carried) -> anyhow::Result<Figures> {
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        (self.progress)("filling the cache", 0.0);
        let server = match &self.plan.address {
            Some(_) => None,
            None => Some(self.plan.start_server()?),
        };
        let started = server.as_ref().and_then(|server| server.addresses().first());
        let address = self.plan.address.as_ref().or(started).context("the server did not say where it serves")?;
        let domain = device.protection_domain()?;
        let process = server.as_ref().map(ServerProcess::id);
        let figures = std::thread::scope(|threads| {
            self.alternate(&device, &domain, carried, (address, process), interrupt, threads)
        });
        // Ctrl-C reaches the server too: what is said of its going is not the cause.
        ensure!(!interrupt.is_set(), "interrupted");
        figures
    }
}

impl Measure<'_> {
    fn alternate<'scope, D: Device>(
        self,
        device: &'scope D,
        domain: &'scope D::Domain,
        carried: Carried,
        (address, server): (&'scope str, Option<u32>),
        interrupt: Interrupt,
        threads: &'scope Scope<'scope, '_>,
    ) -> anyhow::Result<Figures>
    where
        Self: 'scope,
    {
        let Self { plan, progress } = self;
        let threads: Vec<Thread<'_>> = (0..plan.client_cpus.len())
            .map(|index| Thread::start(device, domain, plan, index, address, interrupt, threads))
            .collect();
        threads.iter().try_for_each(|thread| thread.hear(Duration::ZERO).map(|_| ()))?;
        let slice = plan.duration / SLICES;
        let limit = plan.limit();
        let mut figures = Figures {
            design: name(plan.schedule),
            fabric: carried.name(),
            workload: plan.workload,
            value_size: plan.value_size,
            window: plan.window,
            threads: threads.len(),
            clients: plan.clients(),
            workers: plan.server_cpus.len(),
            ours: Vec::new(),
            limits: Vec::new(),
            latency: histogram(),
            done: 0,
            misses: 0,
            stats: ClientStats::default(),
            counters: Value::Null,
            is_limit_valid: true,
            others: Others::default(),
        };
        let cpus = others::cpus(plan.client_cpus.iter().chain(&plan.server_cpus));
        for step in 0..SLICES {
            progress("measuring", f64::from(step) / f64::from(SLICES));
            let written = limit.measure(slice / 2)?;
            figures.limits.push(written.rate_mops);
            figures.is_limit_valid &= written.is_valid;
            measure_slice(&threads, WARM_UP.min(slice))?;
            // A server that somebody else started would count among the others.
            let watch =
                server.map(|server| Watch::new(cpus.iter().copied(), Some(server)).allowing(&self.plan.references));
            let slices = measure_slice(&threads, slice)?;
            let others = watch.map_or(Others::default(), |watch| watch.end());
            if others.share > figures.others.share {
                figures.others = others;
            }
            let mut rate_mops = 0.0;
            figures.stats = ClientStats::default();
            for slice in &slices {
                ensure!(slice.wrong == 0, "{} of {} answers were wrong", slice.wrong, slice.done);
                rate_mops += slice.done as f64 * 1e3 / slice.elapsed_ns.max(1) as f64;
                figures.latency.add(&slice.latency)?;
                figures.done += slice.done;
                figures.misses += slice.misses;
                figures.stats.retried += slice.stats.retried;
                figures.stats.late += slice.stats.late;
                figures.stats.strange += slice.stats.strange;
            }
            figures.ours.push(rate_mops);
        }
        threads.first().context("there is no client thread")?.order(Order::Counters);
        let Some(Told::Counters(counters)) = threads.first().map(|thread| thread.hear(Duration::ZERO)).transpose()?
        else {
            bail!("a client thread is confused")
        };
        figures.counters = counters;
        Ok(figures)
    }
}

fn measure_slice(threads: &[Thread<'_>], duration: Duration) -> anyhow::Result<Vec<Slice>> {
    threads.iter().for_each(|thread| thread.order(Order::Slice(duration)));
    threads
        .iter()
        .map(|thread| match thread.hear(duration)? {
            Told::Slice(slice) => Ok(slice),
            _ => bail!("a client thread is confused"),
        })
        .collect()
}

enum Order {
    Slice(Duration),
    Counters,
}

enum Told {
    Ready,
    Slice(Slice),
    Counters(Value),
}

/// A client thread.
struct Thread<'scope> {
    orders: Option<mpsc::Sender<Order>>,
    told: mpsc::Receiver<anyhow::Result<Told>>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Thread<'scope> {
    fn start<D: Device>(
        device: &'scope D,
        domain: &'scope D::Domain,
        plan: &'scope Plan,
        index: usize,
        address: &'scope str,
        interrupt: Interrupt,
        threads: &'scope Scope<'scope, '_>,
    ) -> Self {
        let (orders, incoming) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = threads.spawn(move || {
            let obey = || -> anyhow::Result<()> {
                machine::pin(plan.client_cpus[index])?;
                let mut load = Load::new(device, domain, plan, index, address, interrupt)?;
                let _ = tell.send(Ok(Told::Ready));
                for order in incoming {
                    let told = match order {
                        Order::Slice(duration) => Told::Slice(load.slice(duration)?),
                        Order::Counters => Told::Counters(load.counters()?),
                    };
                    let _ = tell.send(Ok(told));
                }
                Ok(())
            };
            if let Err(error) = obey() {
                let _ = tell.send(Err(error));
            }
        });
        Self { orders: Some(orders), told, thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        // One that has ended says why when it is asked for its answer.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    fn hear(&self, duration: Duration) -> anyhow::Result<Told> {
        self.told.recv_timeout(duration + PATIENCE).context("a client thread ended, or is stuck")?
    }
}

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

/// A thread's clients, and what they ask.
struct Load<D: Device> {
    clients: Vec<(Client<D>, Admission)>,
    trace: Vec<Request>,
    at: usize,
    round: u64,
    value: Vec<u8>,
    clock: HostClock,
    interrupt: Interrupt,
    latency: Histogram<u64>,
    counts: Counts,
}

/// What came of answers.
#[derive(Clone, Copy, Default)]
struct Counts {
    done: u64,
    misses: u64,
    wrong: u64,
}

impl Counts {
    #[inline(always)]
    fn take(&mut self, outcome: &Outcome<'_>, value_size: usize) {
        let (key, is_get) = (outcome.tag >> 1, outcome.tag & 1 == 1);
        self.done += 1;
        match outcome.status {
            Some(Status::Found) if is_get => {
                let good = outcome.value.len() == value_size && check_value(outcome.value, key);
                self.wrong += u64::from(!good);
            }
            Some(Status::Absent) if is_get => self.misses += 1,
            Some(Status::Stored) if !is_get => {}
            _ => self.wrong += 1,
        }
    }
}

impl<D: Device> Load<D> {
    fn new(
        device: &D,
        domain: &D::Domain,
        plan: &Plan,
        index: usize,
        address: &str,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let workload = Workload { seed: plan.workload.seed.wrapping_add(index as u64), ..plan.workload };
        let config = ClientConfig::new(layout(plan.server_cpus.len(), plan.clients(), plan.window));
        let clients = (0..plan.clients)
            .map(|_| {
                let (calls, admission) = join(device, domain, &config, address)?;
                Ok((Client::new(calls), admission))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            clients,
            trace: workload.trace(TRACE),
            at: 0,
            round: 1,
            value: vec![0; plan.value_size],
            clock: HostClock::new(),
            interrupt,
            latency: histogram(),
            counts: Counts::default(),
        })
    }

    fn counters(&mut self) -> anyhow::Result<Value> {
        let (_, admission) = self.clients.first_mut().context("there is no client")?;
        admission.counters()
    }

    /// Keeps all windows full for a time, and waits for what is left.
    fn slice(&mut self, duration: Duration) -> anyhow::Result<Slice> {
        self.counts = Counts::default();
        self.latency.reset();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let (mut now_ns, mut turns) = (began_ns, 0u32);
        let idle = machine::Idle::new();
        let mut sampled = Vec::with_capacity(64);
        loop {
            let ends = now_ns >= end_ns;
            let (mut left, mut came) = (0, 0);
            for which in 0..self.clients.len() {
                let Self { clients, counts, value, .. } = self;
                let (client, _) = &mut clients[which];
                came += client.poll(now_ns, |outcome| {
                    counts.take(&outcome, value.len());
                    if counts.done.is_multiple_of(SAMPLE_EVERY) {
                        sampled.push(outcome.asked_ns);
                    }
                })?;
                if ends {
                    left += client.calls().in_flight();
                } else {
                    self.ask(which, now_ns)?;
                }
            }
            now_ns = self.clock.now_ns();
            for asked_ns in sampled.drain(..) {
                self.latency.saturating_record(now_ns.saturating_sub(asked_ns).max(1));
            }
            if ends && left == 0 {
                break;
            }
            if came == 0 {
                idle.pass();
            }
            turns = turns.wrapping_add(1);
            ensure!(!turns.is_multiple_of(TURNS_PER_LOOK) || !self.interrupt.is_set(), "interrupted");
        }
        let mut stats = ClientStats::default();
        for (client, _) in &self.clients {
            let of_one = client.calls().stats();
            stats.retried += of_one.retried;
            stats.late += of_one.late;
            stats.strange += of_one.strange;
        }
        let Counts { done, misses, wrong } = self.counts;
        let latency = self.latency.clone();
        Ok(Slice { done, misses, wrong, elapsed_ns: now_ns - began_ns, latency, stats })
    }

    /// Fills a client's window.
    #[inline(always)]
    fn ask(&mut self, which: usize, now_ns: u64) -> anyhow::Result<()> {
        let (client, _) = &mut self.clients[which];
        loop {
            let request = self.trace[self.at];
            let (key, tag) = (key_bytes(request.key()), request.key() << 1 | u64::from(request.is_get()));
            if !client.has_room(&key) {
                client.flush();
                return Ok(());
            }
            if request.is_get() {
                client.get(tag, &key, now_ns)?;
            } else {
                fill_value(&mut self.value, request.key(), self.round);
                client.put(tag, &key, &self.value, now_ns)?;
            }
            self.at += 1;
            if self.at == self.trace.len() {
                (self.at, self.round) = (0, self.round + 1);
            }
        }
    }
}

impl Figures {
    fn ratio(&self) -> Option<f64> {
        let limit = units::median(&self.limits);
        (limit > 0.0).then(|| units::median(&self.ours) / limit)
    }

    fn hit_percent(&self) -> f64 {
        let gets = self.done as f64 * self.workload.get_percent / 100.0;
        if gets > 0.0 { (100.0 - self.misses as f64 * 100.0 / gets).max(0.0) } else { 0.0 }
    }

    fn is_valid(&self) -> bool {
        self.is_limit_valid && self.others.are_few()
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        let figure = Some(units::median(&self.ours));
        Judged { name: "rate_mops", figure, ratio: self.ratio(), valid: self.is_valid() }
    }

    pub fn json(&self) -> Value {
        let quantile = |quantile| self.latency.value_at_quantile(quantile);
        json!({
            "design": self.design,
            "fabric": self.fabric,
            "rate_mops": units::rounded(units::median(&self.ours)),
            "slices_mops": self.ours.iter().copied().map(units::rounded).collect::<Vec<_>>(),
            "limit_mops": units::rounded(units::median(&self.limits)),
            "limit_slices_mops": self.limits.iter().copied().map(units::rounded).collect::<Vec<_>>(),
            "ratio": self.ratio().map(units::rounded),
            "valid": self.is_valid(),
            "others_share": self.others.share.map(units::rounded),
            "mean_ns": units::rounded(self.latency.mean()),
            "p50_ns": quantile(0.5),
            "p99_ns": quantile(0.99),
            "p999_ns": quantile(0.999),
            "keys": self.workload.keys,
            "key_size": KEY_LEN,
            "value_size": self.value_size,
            "get_percent": self.workload.get_percent,
            "dist": self.workload.distribution.name(),
            "window": self.window,
            "threads": self.threads,
            "clients": self.clients,
            "workers": self.workers,
            "requests": self.done,
            "hit_percent": units::rounded(self.hit_percent()),
            "retried": self.stats.retried,
            "late": self.stats.late,
            "strange": self.stats.strange,
            "server": self.counters,
        })
    }

    pub fn text(&self) -> String {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|at| units::time(self.latency.value_at_quantile(at) as f64));
        let valid = match self.others.complaint() {
            Some(complaint) => format!("\n  INVALID: {complaint}"),
            None if self.is_valid() => String::new(),
            None => "\n  INVALID: the machine was busy while the limit was measured".to_owned(),
        };
        let batch = match (self.counters["executed"].as_f64(), self.counters["doorbells"].as_f64()) {
            (Some(executed), Some(doorbells)) if doorbells > 0.0 => executed / doorbells,
            _ => 0.0,
        };
        format!(
            "{} over {}, items of {} B, {} keys, {} % GET, {}: {} M/s\n  {} clients in {} threads with windows of {}, {} workers\n  \
             latency: mean {}, p50 {p50}, p99 {p99}, p99.9 {p999}\n  limit: {} M/s (ratio {}): the same messages written and sent \
             back with nothing in between\n  {} answers checked, {:.1} % of the GETs hit; {} sent again; {} answers a doorbell{valid}",
            self.design,
            self.fabric,
            KEY_LEN + self.value_size,
            self.workload.keys,
            self.workload.get_percent,
            self.workload.distribution.name(),
            units::figure(units::median(&self.ours)),
            self.clients,
            self.threads,
            self.window,
            self.workers,
            units::time(self.latency.mean()),
            units::figure(units::median(&self.limits)),
            self.ratio().map(units::figure).unwrap_or_default(),
            self.done,
            self.hit_percent(),
            self.stats.retried,
            units::figure(batch),
        )
    }
}
