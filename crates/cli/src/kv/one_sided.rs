//! Pilaf, FaRM and DrTM-KV, measured: a client thread whose GETs are READs, the owner's thread, and bare READs beside them.

mod design;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use design::{Asks, Design, Locked, Ops, Owns, Searched};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::host::{HostClock, Interrupt};
use sinew::kv::one_sided::{Emulation, Hello, NoTable, Outcome, OwnerConfig, Status, Welcome};
use sinew::kv::{drtm, farm, pilaf};
use sinew::mem::SharedMemory;
use sinew::store::cuckoo::CuckooTable;
use sinew::store::hopscotch::HopscotchTable;

use crate::bench::Judged;
use crate::client::histogram;
use crate::limits::References;
use crate::others::{self, Watch};
use crate::verbs::{Carried, DeviceArgs, Job, ReadRate};
use crate::workload::{KEY_LEN, Request, Workload, check_value, fill_value, key_bytes};
use crate::{machine, units};

/// Slices of a measurement: as many of the limit, in turn.
const SLICES: u32 = 3;
/// What comes before each and does not count.
const WARM_UP: Duration = Duration::from_millis(50);
/// Requests that are drawn ahead.
const TRACE: usize = 1 << 20;
/// Of so many answers the time of one is taken.
const SAMPLE_EVERY: u64 = 8;
/// The interrupt is looked at, and the owner looks for clients, every so many turns.
const TURNS_PER_LOOK: u32 = 1024;
/// The longest value, which a PUT carries in one request.
pub const VALUE_SIZE_MAX: usize = 4096;
/// GETs under way at most.
pub const WINDOW_MAX: usize = 1024;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Pilaf,
    Farm {
        /// Values are in the slots.
        is_inline: bool,
    },
    Drtm,
}

/// What to measure.
pub struct Plan {
    pub store: Store,
    /// Without a table.
    pub is_emulated: bool,
    pub fabric: Carried,
    /// The RDMA device, where it is not the first.
    pub device: Option<String>,
    pub workload: Workload,
    pub value_size: usize,
    /// GETs, and PUTs, under way.
    pub window: usize,
    pub duration: Duration,
    pub client_cpu: Option<usize>,
    pub server_cpu: Option<usize>,
    pub references: References,
}

impl Plan {
    fn name(&self) -> &'static str {
        match (self.store, self.is_emulated) {
            (Store::Pilaf, false) => "pilaf",
            (Store::Pilaf, true) => "pilaf-em",
            (Store::Farm { is_inline: true }, false) => "farm",
            (Store::Farm { is_inline: true }, true) => "farm-em",
            (Store::Farm { is_inline: false }, false) => "farm-var",
            (Store::Farm { is_inline: false }, true) => "farm-em-var",
            (Store::Drtm, _) => "drtm",
        }
    }

    fn owner(&self) -> OwnerConfig {
        OwnerConfig {
            clients: 1,
            window: self.window.next_power_of_two(),
            item_len_max: KEY_LEN + self.value_size,
            seed: self.workload.seed,
        }
    }
}

/// What came of it.
pub struct Figures {
    plan: Plan,
    sums: Sums,
}

/// What came of all slices.
struct Sums {
    /// Requests, in millions a second.
    ours: Vec<f64>,
    /// Bare READs.
    reads: Vec<f64>,
    /// Bytes of each.
    read_size: usize,
    latency: Histogram<u64>,
    counts: Counts,
    ops: Ops,
    /// The largest share of the processors that others used in a slice.
    others: others::Others,
    is_valid: bool,
}

/// What came of answers.
#[derive(Clone, Copy, Default)]
struct Counts {
    done: u64,
    gets: u64,
    misses: u64,
    /// PUTs that others were quicker than all the time.
    contended: u64,
    wrong: u64,
}

/// Measures. `progress` hears what is done, and how much of it, from 0 to 1.
pub fn measure(plan: Plan, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Figures> {
    let device = DeviceArgs { fabric: plan.fabric, device: plan.device.clone() };
    device.run(Measure { plan, progress, device: &device })
}

struct Measure<'a> {
    plan: Plan,
    progress: &'a mut dyn FnMut(&'static str, f64),
    device: &'a DeviceArgs,
}

impl Job for Measure<'_> {
    type Result = Figures;

    fn run<D: Device>(self, device: D, _: Carried) -> anyhow::Result<Figures> {
        let (items, value) = (u32::try_from(self.plan.workload.keys)?, self.plan.value_size as u32);
        let (key, seed) = (KEY_LEN as u32, self.plan.workload.seed);
        match (self.plan.store, self.plan.is_emulated) {
            (Store::Pilaf, false) => {
                let index = pilaf::layout(items, key + value, seed);
                self.with(device, Searched { index, table: |memory| CuckooTable::new(index, memory) })
            }
            (Store::Farm { is_inline }, false) => {
                let index = farm::layout(items, key, value, is_inline, seed);
                self.with(device, Searched { index, table: |memory| HopscotchTable::new(index, memory) })
            }
            (Store::Pilaf, true) => self.emulate(device, pilaf::emulation(items, value)),
            (Store::Farm { is_inline }, true) => self.emulate(device, farm::emulation(items, key, value, is_inline)),
            (Store::Drtm, _) => self.with(device, Locked(drtm::layout(items, key, value, seed))),
        }
    }
}

/// A client that asks to be admitted, and where it hears.
type Knock = (Hello, mpsc::Sender<anyhow::Result<Welcome>>);
/// A slice to measure, and where to tell what came of it.
type Order = (Duration, mpsc::Sender<anyhow::Result<Slice>>);

/// What the owner's thread is to do.
#[derive(Default)]
struct Switches {
    /// Somebody else needs its processor.
    pause: AtomicBool,
    stop: AtomicBool,
}

/// Ends the owner's thread, however the measurement ends.
struct Stopping<'a>(&'a Switches);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

impl Measure<'_> {
    fn emulate<D: Device>(self, device: D, index: Emulation) -> anyhow::Result<Figures> {
        let table = |memory: SharedMemory| {
            index.fill(&memory);
            Ok(NoTable)
        };
        self.with(device, Searched { index, table })
    }

    fn with<D: Device>(self, device: D, design: impl Design<D>) -> anyhow::Result<Figures> {
        let Self { plan, progress, device: args } = self;
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        progress("filling the table", 0.0);
        let switches = Switches::default();
        let (knock, knocks) = mpsc::channel();
        let (orders, incoming) = mpsc::channel();
        let taken = std::thread::scope(|threads| {
            let stopping = Stopping(&switches);
            let (device, plan, design, switches) = (&device, &plan, &design, &switches);
            let owner = threads.spawn(move || own(device, plan, design, &knocks, switches, interrupt));
            let client = threads.spawn(move || ask(device, plan, design, knock, incoming, interrupt));
            let taken = alternate(plan, args, design.read_len(), &orders, switches, progress);
            drop(orders);
            let client = client.join();
            drop(stopping);
            let owner = owner.join();
            ensure!(!interrupt.is_set(), "interrupted");
            // An owner that failed is why its client did, and that is why there is nothing to show.
            owner.ok().context("the owner's thread panicked")??;
            client.ok().context("the client's thread panicked")??;
            taken
        })?;
        Ok(Figures { plan, sums: taken })
    }
}

/// Fills a table and owns it, until it is told to stop.
fn own<D: Device>(
    device: &D,
    plan: &Plan,
    design: &impl Design<D>,
    knocks: &mpsc::Receiver<Knock>,
    switches: &Switches,
    interrupt: Interrupt,
) -> anyhow::Result<()> {
    machine::pin(plan.server_cpu)?;
    let mut owner = design.owner(device, plan, |store| {
        let mut value = vec![0; plan.value_size];
        for key in 0..plan.workload.keys as u64 {
            fill_value(&mut value, key, 0);
            store(&key_bytes(key), &value)?;
            ensure!(key % (1 << 16) != 0 || !interrupt.is_set(), "interrupted");
        }
        Ok(())
    })?;
    let (clock, idle, mut turns) = (HostClock::new(), machine::Idle::new(), 0u32);
    while !switches.stop.load(Ordering::Acquire) {
        if switches.pause.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        } else if owner.turn(clock.now_ns()) == 0 {
            idle.pass();
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_LOOK) {
            owner.tend(clock.now_ns());
            if let Ok((hello, answer)) = knocks.try_recv() {
                // Whoever has gone does not hear it.
                let _ = answer.send(owner.admit(&hello));
            }
        }
    }
    Ok(())
}

/// The client's thread: measures slices as it is told.
fn ask<D: Device>(
    device: &D,
    plan: &Plan,
    design: &impl Design<D>,
    knock: mpsc::Sender<Knock>,
    orders: mpsc::Receiver<Order>,
    interrupt: Interrupt,
) -> anyhow::Result<()> {
    machine::pin(plan.client_cpu)?;
    let client = design.client(device, plan, |hello| {
        let (answer, welcome) = mpsc::channel();
        knock.send((hello, answer)).ok().context("the owner has gone")?;
        welcome.recv().context("the owner has gone")?
    })?;
    let mut load = Load {
        client,
        trace: plan.workload.trace(TRACE),
        at: 0,
        round: 1,
        value: vec![0; plan.value_size],
        is_emulated: plan.is_emulated,
        clock: HostClock::new(),
        interrupt,
    };
    if plan.store == Store::Drtm {
        load.learn(plan.workload.keys as u64)?;
    }
    for (duration, tell) in orders {
        let _ = tell.send(load.slice(duration));
    }
    Ok(())
}

/// Slices of bare READs and of ours, in turn.
fn alternate(
    plan: &Plan,
    device: &DeviceArgs,
    read_size: usize,
    orders: &mpsc::Sender<Order>,
    switches: &Switches,
    progress: &mut dyn FnMut(&'static str, f64),
) -> anyhow::Result<Sums> {
    let slice = |duration| {
        let (tell, told) = mpsc::channel();
        orders.send((duration, tell)).ok().context("the client's thread has ended")?;
        told.recv().context("the client's thread has ended")?
    };
    let bare = ReadRate {
        device,
        size: read_size,
        window: plan.window,
        client_cpu: plan.client_cpu,
        server_cpu: plan.server_cpu,
        references: &plan.references,
    };
    let mut sums = Sums {
        ours: Vec::new(),
        reads: Vec::new(),
        read_size,
        latency: histogram(),
        counts: Counts::default(),
        ops: Ops::default(),
        others: others::Others::default(),
        is_valid: true,
    };
    let length = plan.duration / SLICES;
    // Fills caches and the table, if that is not done yet.
    slice(WARM_UP)?;
    for step in 0..SLICES {
        progress("measuring", f64::from(step) / f64::from(SLICES));
        switches.pause.store(true, Ordering::Release);
        let (rate_mops, is_valid) = bare.measure(length / 2)?;
        switches.pause.store(false, Ordering::Release);
        sums.reads.push(rate_mops);
        slice(WARM_UP.min(length))?;
        let watch = Watch::new(others::cpus([plan.client_cpu, plan.server_cpu].iter()), []);
        let came = slice(length)?;
        let others = watch.end();
        ensure!(came.counts.wrong == 0, "{} of {} answers were wrong", came.counts.wrong, came.counts.done);
        sums.is_valid &= is_valid && others.are_few();
        sums.others.share = sums.others.share.into_iter().chain(others.share).reduce(f64::max);
        sums.ours.push(came.counts.done as f64 * 1e3 / came.elapsed_ns.max(1) as f64);
        sums.latency.add(&came.latency)?;
        let (all, one) = (&mut sums.counts, &came.counts);
        (all.done, all.gets, all.misses) = (all.done + one.done, all.gets + one.gets, all.misses + one.misses);
        all.contended += one.contended;
        sums.ops = sums.ops.plus(came.ops);
    }
    Ok(sums)
}

/// What came of a slice.
struct Slice {
    counts: Counts,
    ops: Ops,
    elapsed_ns: u64,
    latency: Histogram<u64>,
}

/// A client, and what it asks.
struct Load<C: Asks> {
    client: C,
    trace: Vec<Request>,
    at: usize,
    /// Differs from round to round of the trace, so that values do.
    round: u64,
    value: Vec<u8>,
    is_emulated: bool,
    clock: HostClock,
    interrupt: Interrupt,
}

impl<C: Asks> Load<C> {
    /// Keeps the window full for a time, and waits for what is left.
    fn slice(&mut self, duration: Duration) -> anyhow::Result<Slice> {
        let before = self.client.ops();
        let (mut counts, mut latency) = (Counts::default(), histogram());
        let mut sampled = Vec::with_capacity(64);
        let idle = machine::Idle::new();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let (mut now_ns, mut turns) = (began_ns, 0u32);
        loop {
            let ends = now_ns >= end_ns;
            if !ends {
                self.ask(now_ns)?;
            }
            let (value_size, is_emulated) = (self.value.len(), self.is_emulated);
            let came = self.client.poll(now_ns, |outcome| {
                counts.take(&outcome, value_size, is_emulated);
                if counts.done.is_multiple_of(SAMPLE_EVERY) {
                    sampled.push(outcome.asked_ns);
                }
            })?;
            now_ns = self.clock.now_ns();
            for asked_ns in sampled.drain(..) {
                latency.saturating_record(now_ns.saturating_sub(asked_ns).max(1));
            }
            if ends && self.client.in_flight() == 0 {
                break;
            }
            if came == 0 {
                idle.pass();
            }
            turns = turns.wrapping_add(1);
            ensure!(!turns.is_multiple_of(TURNS_PER_LOOK) || !self.interrupt.is_set(), "interrupted");
        }
        let ops = self.client.ops().since(before);
        Ok(Slice { counts, ops, elapsed_ns: now_ns - began_ns, latency })
    }

    /// Asks for each key once, so that the client knows where all of them are, as atc16 has it.
    fn learn(&mut self, keys: u64) -> anyhow::Result<()> {
        let mut key = 0;
        while key < keys || self.client.in_flight() > 0 {
            while key < keys && self.client.has_room(true) {
                self.client.get(0, &key_bytes(key), self.clock.now_ns())?;
                key += 1;
            }
            self.client.flush();
            self.client.poll(self.clock.now_ns(), |_| ())?;
            ensure!(!key.is_multiple_of(TURNS_PER_LOOK.into()) || !self.interrupt.is_set(), "interrupted");
        }
        Ok(())
    }

    /// Asks until there is no room for the next request.
    #[inline(always)]
    fn ask(&mut self, now_ns: u64) -> anyhow::Result<()> {
        loop {
            let request = self.trace[self.at];
            let (key, is_get) = (request.key(), request.is_get());
            let tag = key << 1 | u64::from(is_get);
            if !self.client.has_room(is_get) {
                break;
            }
            if is_get {
                self.client.get(tag, &key_bytes(key), now_ns)?;
            } else {
                fill_value(&mut self.value, key, self.round);
                self.client.put(tag, &key_bytes(key), &self.value, now_ns)?;
            }
            self.at += 1;
            if self.at == self.trace.len() {
                self.at = 0;
                self.round += 1;
            }
        }
        self.client.flush();
        Ok(())
    }
}

impl Counts {
    #[inline(always)]
    fn take(&mut self, outcome: &Outcome<'_>, value_size: usize, is_emulated: bool) {
        let (key, is_get) = (outcome.tag >> 1, outcome.tag & 1 == 1);
        self.done += 1;
        self.gets += u64::from(is_get);
        match outcome.status {
            // An emulation's READs were checked to come from where they should; there is nothing else in them.
            Some(Status::Found) if is_get && is_emulated => {}
            Some(Status::Found) if is_get => {
                let good = outcome.value.len() == value_size && check_value(outcome.value, key);
                self.wrong += u64::from(!good);
            }
            Some(Status::Absent) if is_get => self.misses += 1,
            Some(Status::Stored) if !is_get => {}
            Some(Status::Contended) if !is_get => self.contended += 1,
            _ => self.wrong += 1,
        }
    }
}

impl Figures {
    fn rate(&self) -> f64 {
        units::median(&self.sums.ours)
    }

    /// READs of a GET.
    fn reads_per_get(&self) -> f64 {
        let Ops { reads, gets, .. } = self.sums.ops;
        if gets == 0 { 0.0 } else { reads as f64 / gets as f64 }
    }

    /// READs, WRITEs and atomics of a request.
    fn verbs_per_request(&self) -> f64 {
        let Ops { done, reads, writes, atomics, .. } = self.sums.ops;
        (reads + writes + atomics) as f64 / done.max(1) as f64
    }

    fn is_drtm(&self) -> bool {
        self.plan.store == Store::Drtm
    }

    /// What bare READs would allow, if all requests were GETs; or, where PUTs are one-sided too, if all that requests take were READs.
    fn limit(&self) -> Option<f64> {
        let each = if self.is_drtm() { self.verbs_per_request() } else { self.reads_per_get() };
        let limit = units::median(&self.sums.reads) / each;
        Some(limit).filter(|limit| limit.is_finite() && *limit > 0.0)
    }

    fn ratio(&self) -> Option<f64> {
        self.limit().map(|limit| self.rate() / limit)
    }

    fn hit_percent(&self) -> f64 {
        let Counts { gets, misses, .. } = self.sums.counts;
        if gets == 0 { 0.0 } else { (gets - misses) as f64 * 100.0 / gets as f64 }
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        Judged { name: "rate_mops", figure: Some(self.rate()), ratio: self.ratio(), valid: self.sums.is_valid }
    }

    pub fn json(&self) -> Value {
        let Self { plan, sums } = self;
        let Ops { done, gets, atomics, conflicts, retries, .. } = sums.ops;
        let puts = done - gets;
        let list = |values: &[f64]| values.iter().copied().map(units::rounded).collect::<Vec<_>>();
        let mut json = json!({
            "design": plan.name(),
            "fabric": plan.fabric.name(),
            "rate_mops": units::rounded(self.rate()),
            "limit_mops": self.limit().map(units::rounded),
            "ratio": self.ratio().map(units::rounded),
            "p50_ns": sums.latency.value_at_quantile(0.5),
            "p99_ns": sums.latency.value_at_quantile(0.99),
            "p999_ns": sums.latency.value_at_quantile(0.999),
            "read_mops": units::rounded(units::median(&sums.reads)),
            "read_size": sums.read_size,
            "reads_per_get": units::rounded(self.reads_per_get()),
            "reads_again": sums.ops.again,
            "keys": plan.workload.keys,
            "key_size": KEY_LEN,
            "value_size": plan.value_size,
            "get_percent": plan.workload.get_percent,
            "dist": plan.workload.distribution.name(),
            "seed": plan.workload.seed,
            "window": plan.window,
            "hit_percent": units::rounded(self.hit_percent()),
            "answers_checked": sums.counts.done,
            "slices": { "ours": list(&sums.ours), "reads": list(&sums.reads) },
            "others_share": sums.others.share.map(units::rounded),
            "limit_valid": sums.is_valid,
        });
        if self.is_drtm() {
            json["verbs_per_request"] = units::rounded(self.verbs_per_request()).into();
            json["puts"] = puts.into();
            json["atomics_per_put"] = units::rounded(atomics as f64 / puts.max(1) as f64).into();
            json["lock_conflicts"] = conflicts.into();
            json["put_retries"] = retries.into();
            json["puts_contended"] = sums.counts.contended.into();
        }
        json
    }

    pub fn text(&self) -> String {
        let Self { plan, sums } = self;
        let percentiles =
            [0.5, 0.99, 0.999].map(|quantile| units::time(sums.latency.value_at_quantile(quantile) as f64));
        let limit = match (self.limit(), self.ratio()) {
            (Some(limit), Some(ratio)) => format!("{} M/s (ratio {})", units::figure(limit), units::figure(ratio)),
            _ => "not measured".to_owned(),
        };
        let valid = match sums.others.complaint() {
            Some(complaint) => format!("\n  INVALID: {complaint}"),
            None if sums.is_valid => String::new(),
            None => {
                "\n  INVALID: the machine was busy, or is slower than the one that the references come from".to_owned()
            }
        };
        let (each, locks) = if self.is_drtm() {
            let Ops { done, gets, conflicts, retries, .. } = sums.ops;
            let each = format!("{} READs, WRITEs and atomics of a request", units::figure(self.verbs_per_request()));
            let contended = sums.counts.contended;
            let locks = format!(
                "\n  {} PUTs found {conflicts} locks held, tried again {retries} times, and {contended} gave up",
                done - gets
            );
            (each, locks)
        } else {
            (format!("{} READs of a GET", units::figure(self.reads_per_get())), String::new())
        };
        format!(
            "{} over {}, {} keys of {KEY_LEN} B, values of {}, {} % GET, {}: {} M requests/s\n  \
             limit, {} READs/s of {} divided by {each}: {limit}; latency p50 {}, p99 {}, p99.9 {}\n  \
             {} in flight; {} answers checked, {:.1} % of the gets hit, {} READs made again{locks}{valid}",
            plan.name(),
            plan.fabric.name(),
            plan.workload.keys,
            units::size(plan.value_size),
            plan.workload.get_percent,
            plan.workload.distribution.name(),
            units::figure(self.rate()),
            format_args!("{} M", units::figure(units::median(&sums.reads))),
            units::size(sums.read_size),
            percentiles[0],
            percentiles[1],
            percentiles[2],
            plan.window,
            sums.counts.done,
            self.hit_percent(),
            sums.ops.again,
        )
    }
}
