//! Pilaf, FaRM and DrTM-KV, measured: a client thread whose GETs are READs, the owner's thread, and bare READs beside them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::host::{HostClock, Interrupt};
use sinew::kv::one_sided::{Emulation, Hello, NoTable, OwnerConfig, Welcome};
use sinew::kv::{drtm, farm, pilaf};
use sinew::mem::SharedMemory;
use sinew::store::cuckoo::CuckooTable;
use sinew::store::hopscotch::HopscotchTable;
use sinew_harness::Measured;
use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::one_sided::{Asks, Design, Locked, OneSided, Ops, Owns, Searched, StorePlan};
use sinew_harness::load::verbs::{Carrier, Op, VerbsPlan, Work};
use sinew_harness::load::{Slice, drive};
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::workload::{KEY_LEN, Workload, fill_value, key_bytes};
use sinew_harness::{Comparison, Figure, Run, Turns, Unit, machine, units};

use super::workload::{KEYS_MAX_OF_FABRIC, WorkloadArgs, workload_json, workload_text};
use crate::measure::{MeasureArgs, with_progress};
use crate::verbs::{Bare, Carried, DeviceArgs, Job, Kind};
use crate::{Outcome, Usage};

pub const HELP: &str = "\
A table is filled that the client READs, and whose owner, another thread, makes the PUTs that it is sent. Every value is checked in full. The
limit is the rate of `sinew verbs rate --op read`, of READs as long as the first of a GET, divided by the READs that a GET took (drtm: by the
READs, WRITEs and atomics that a request took); their places are not random, as a table's are.

pilaf and farm: --emulate has no table, but READs as sigcomm14 5.1 has them: 1.6 of 32 bytes and the value for pilaf, six keys and values
for farm; each is checked to come from where it should.

drtm has a table with a lock in each record, and a client that has seen where each key is: a GET is a READ, a PUT a compare-and-swap that
locks, a WRITE, and a compare-and-swap that unlocks. A lock that is held is tried again after a while, 32 times, after which the PUT is given
up and counted. Over shared memory an atomic is the processor's own; on NICs it is what limits the design (atc16 4.3.2).

Examples:
  sinew kv bench pilaf --get 95
  sinew kv bench farm --out-of-line --emulate
  sinew kv bench drtm --get 50 --dist zipf";

/// The interrupt is looked at, and the owner looks for clients, every so many turns.
const TURNS_PER_LOOK: u32 = 1024;
/// The longest value, which a PUT carries in one request.
const VALUE_SIZE_MAX: usize = 4096;

/// Options of all these designs.
#[derive(clap::Args)]
struct StoreArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Requests under way
    #[arg(long, default_value_t = 16, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Options of `sinew kv bench pilaf`.
#[derive(clap::Args)]
pub struct PilafArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Fixed READs without a table, as in sigcomm14 5.1
    #[arg(long)]
    emulate: bool,
}

/// Options of `sinew kv bench farm`.
#[derive(clap::Args)]
pub struct FarmArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Fixed READs without a table, as in sigcomm14 5.1
    #[arg(long)]
    emulate: bool,
    /// Values lie outside the slots
    #[arg(long)]
    out_of_line: bool,
}

/// Options of `sinew kv bench drtm`.
#[derive(clap::Args)]
pub struct DrtmArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Pilaf,
    Farm {
        /// Values are in the slots.
        is_inline: bool,
    },
    Drtm,
}

impl PilafArgs {
    /// Measures and shows.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        self.store.run(Store::Pilaf, self.emulate)
    }
}

impl FarmArgs {
    /// Measures and shows.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        self.store.run(Store::Farm { is_inline: !self.out_of_line }, self.emulate)
    }
}

impl DrtmArgs {
    /// Measures and shows.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        self.store.run(Store::Drtm, false)
    }
}

impl StoreArgs {
    fn run(&self, store: Store, is_emulated: bool) -> anyhow::Result<Outcome> {
        let plan = self.plan(store, is_emulated).map_err(Usage::of)?;
        let measure =
            |progress: &mut Progress<'_>| self.device.run(Measure { plan: &plan, device: &self.device, progress });
        self.measure.show(&with_progress(measure)?)
    }

    fn plan(&self, store: Store, is_emulated: bool) -> anyhow::Result<OneSidedPlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        self.device.check()?;
        let value_size = self.workload.value_size;
        ensure!(value_size <= VALUE_SIZE_MAX, "--value-size can be up to {VALUE_SIZE_MAX} for this design");
        let (client_cpus, server_cpus) = self.measure.places((1, 1), false)?;
        Ok(OneSidedPlan {
            store,
            is_emulated,
            workload: self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?,
            value_size,
            window: self.window.into(),
            duration: self.measure.seconds,
            client_cpu: client_cpus[0],
            server_cpu: server_cpus[0],
            references: self.measure.references()?,
        })
    }
}

/// What to measure.
#[derive(Clone)]
struct OneSidedPlan {
    store: Store,
    /// Without a table.
    is_emulated: bool,
    workload: Workload,
    value_size: usize,
    /// GETs, and PUTs, under way.
    window: usize,
    duration: Duration,
    client_cpu: Option<usize>,
    server_cpu: Option<usize>,
    references: References,
}

impl OneSidedPlan {
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

    fn store(&self) -> StorePlan {
        let owner = OwnerConfig {
            clients: 1,
            window: self.window.next_power_of_two(),
            item_len_max: KEY_LEN + self.value_size,
            seed: self.workload.seed,
        };
        StorePlan { owner, window: self.window, keys: self.workload.keys }
    }

    /// READs of the same length with nothing above.
    fn bare(&self, read_size: usize) -> VerbsPlan {
        VerbsPlan {
            window: self.window,
            // As a client does whose READs are searches: all that are due start together, and each is told.
            signal: 1,
            cpus: vec![self.server_cpu],
            ..VerbsPlan::new(Work::Load(Op::Read), Carrier::Rc, read_size)
        }
    }
}

struct Measure<'a, 'b> {
    plan: &'a OneSidedPlan,
    device: &'a DeviceArgs,
    progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = Figure;

    fn run<D: Device + 'static>(self, device: D, _: Carried) -> anyhow::Result<Figure> {
        let (items, value) = (u32::try_from(self.plan.workload.keys)?, self.plan.value_size as u32);
        let (key, seed) = (KEY_LEN as u32, self.plan.workload.seed);
        match (self.plan.store, self.plan.is_emulated) {
            (Store::Pilaf, false) => {
                let index = pilaf::layout(items, key + value, seed);
                self.with(device, Searched { index, table: move |memory| CuckooTable::new(index, memory) })
            }
            (Store::Farm { is_inline }, false) => {
                let index = farm::layout(items, key, value, is_inline, seed);
                self.with(device, Searched { index, table: move |memory| HopscotchTable::new(index, memory) })
            }
            (Store::Pilaf, true) => self.emulate(device, pilaf::emulation(items, value)),
            (Store::Farm { is_inline }, true) => self.emulate(device, farm::emulation(items, key, value, is_inline)),
            (Store::Drtm, _) => self.with(device, Locked(drtm::layout(items, key, value, seed))),
        }
    }
}

/// A client that asks to be admitted, and where it hears.
type Knock = (Hello, mpsc::Sender<anyhow::Result<Welcome>>);

/// What the owner's thread is to do.
#[derive(Default)]
struct Switches {
    /// Somebody else needs its processor.
    pause: AtomicBool,
    stop: AtomicBool,
}

/// The owner's thread. It ends when this is dropped.
struct OwnerThread {
    switches: Arc<Switches>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl OwnerThread {
    /// Ends it; why it failed, if it did.
    fn end(&mut self) -> anyhow::Result<()> {
        self.switches.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().ok().context("the owner's thread panicked")?
    }
}

impl Drop for OwnerThread {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Measure<'_, '_> {
    fn emulate<D: Device + 'static>(self, device: D, index: Emulation) -> anyhow::Result<Figure> {
        let table = move |memory: SharedMemory| {
            index.fill(&memory);
            Ok(NoTable)
        };
        self.with(device, Searched { index, table })
    }

    fn with<D: Device + 'static>(self, device: D, design: impl Design<D> + 'static) -> anyhow::Result<Figure> {
        let mut this = self;
        let plan = this.plan;
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        (this.progress)("filling the table", 0.0);
        let (design, switches, (knock, knocks)) = (Arc::new(design), Arc::<Switches>::default(), mpsc::channel());
        let owner = {
            let (device, plan, design, switches) =
                (device.clone(), plan.clone(), Arc::clone(&design), Arc::clone(&switches));
            std::thread::spawn(move || own(&device, &plan, &*design, &knocks, &switches, interrupt))
        };
        let mut owner = OwnerThread { switches: Arc::clone(&switches), thread: Some(owner) };
        let measured = this.measure(&device, &design, knock, &switches, interrupt);
        let ended = owner.end();
        ensure!(!interrupt.is_set(), Interrupted);
        // An owner that failed is why its client did.
        ended?;
        measured
    }

    /// Measures as soon as the owner, on its own thread, has filled the table.
    fn measure<D: Device + 'static>(
        &mut self,
        device: &D,
        design: &Arc<impl Design<D> + 'static>,
        knock: mpsc::Sender<Knock>,
        switches: &Switches,
        interrupt: Interrupt,
    ) -> anyhow::Result<Figure> {
        let plan = self.plan;
        let (of_thread, of_device, of_design) = (plan.clone(), device.clone(), Arc::clone(design));
        let client = Crew::start(&[plan.client_cpu], move |_| {
            let plan = &of_thread;
            let client = of_design.client(&of_device, &plan.store(), |hello| {
                let (answer, welcome) = mpsc::channel();
                knock.send((hello, answer)).ok().context("the owner has gone")?;
                welcome.recv().context("the owner has gone")?
            })?;
            let learns = if plan.store == Store::Drtm { plan.workload.keys as u64 } else { 0 };
            let load = OneSided::new(client, HostClock::new(), &plan.workload, plan.is_emulated, learns);
            Ok(Box::new(ClientThread { load, clock: HostClock::new(), interrupt }) as BoxedMember<_, _>)
        })?;
        let read_size = design.read_len();
        let bare = Bare::open(device, self.device, (Kind::Rate, &plan.bare(read_size)), &[plan.client_cpu], interrupt)?;
        let is_drtm = plan.store == Store::Drtm;
        // Without GETs there are no READs, unless PUTs are one-sided too.
        let sides = if is_drtm || plan.workload.get_percent > 0.0 { 2 } else { 1 };
        let run = Run {
            duration: plan.duration,
            pair: machine::pair(&[plan.client_cpu], &[plan.server_cpu]),
            pins: vec![plan.client_cpu, plan.server_cpu],
            servers: vec![bare.process()],
            judged: sides,
            yardstick: Some((Yardstick::RingRoundTrip, &plan.references)),
            interrupt,
        };
        let mut turns =
            StoreTurns { client, bare, switches, is_drtm, each: 1.0, sum: Slice::new(), ops: Vec::new(), contended: 0 };
        let measured = run.alternate(sides, &mut turns, self.progress)?;
        Ok(figure(plan, self.device.fabric, &measured, turns, read_size))
    }
}

/// Fills a table and owns it, until it is told to stop.
fn own<D: Device>(
    device: &D,
    plan: &OneSidedPlan,
    design: &impl Design<D>,
    knocks: &mpsc::Receiver<Knock>,
    switches: &Switches,
    interrupt: Interrupt,
) -> anyhow::Result<()> {
    machine::pin(plan.server_cpu)?;
    let mut owner = design.owner(device, &plan.store(), |store| {
        let mut value = vec![0; plan.value_size];
        for key in 0..plan.workload.keys as u64 {
            fill_value(&mut value, key, 0);
            store(&key_bytes(key), &value)?;
            ensure!(key % (1 << 16) != 0 || !interrupt.is_set(), Interrupted);
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

struct ClientThread<A: Asks> {
    load: OneSided<A, HostClock>,
    clock: HostClock,
    interrupt: Interrupt,
}

impl<A: Asks> Member for ClientThread<A> {
    type Order = Duration;
    type Answer = (Slice, Ops, u64);

    fn obey(&mut self, duration: Duration) -> anyhow::Result<Self::Answer> {
        let slice = drive(&mut self.load, &self.clock, duration, self.interrupt)?;
        let (ops, contended) = self.load.ops();
        Ok((slice, ops, contended))
    }
}

struct StoreTurns<'a> {
    client: Crew<Duration, (Slice, Ops, u64)>,
    bare: Bare,
    switches: &'a Switches,
    is_drtm: bool,
    /// READs of a GET; of drtm READs, WRITEs and atomics of a request: as many as the last slice took.
    each: f64,
    sum: Slice,
    ops: Vec<Ops>,
    contended: u64,
}

impl Turns for StoreTurns<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        if side == 1 {
            self.switches.pause.store(true, Ordering::Release);
            let mops = self.bare.mops(duration);
            self.switches.pause.store(false, Ordering::Release);
            return Ok(Some(mops? / self.each));
        }
        let (slice, ops, contended) = self.client.order(&duration, duration)?.remove(0);
        self.each = each(&ops, self.is_drtm);
        self.sum.add(&slice);
        self.ops.push(ops);
        self.contended += contended;
        Ok(Some(slice.mops()))
    }

    fn forget(&mut self) {
        (self.sum, self.contended) = (Slice::new(), 0);
        self.ops.clear();
    }
}

/// READs of a GET, or, where PUTs are one-sided too, READs, WRITEs and atomics of a request.
fn each(ops: &Ops, is_drtm: bool) -> f64 {
    let Ops { gets, done, reads, writes, atomics, .. } = *ops;
    let (verbs, requests) = if is_drtm { (reads + writes + atomics, done) } else { (reads, gets) };
    if requests == 0 || verbs == 0 { 1.0 } else { verbs as f64 / requests as f64 }
}

fn figure(
    plan: &OneSidedPlan,
    fabric: Carried,
    measured: &Measured,
    turns: StoreTurns<'_>,
    read_size: usize,
) -> Figure {
    let StoreTurns { sum, ops, contended, is_drtm, .. } = turns;
    let total = |of: fn(&Ops) -> u64| ops.iter().map(of).sum::<u64>();
    let all = Ops {
        gets: total(|ops| ops.gets),
        done: total(|ops| ops.done),
        reads: total(|ops| ops.reads),
        again: total(|ops| ops.again),
        writes: total(|ops| ops.writes),
        atomics: total(|ops| ops.atomics),
        conflicts: total(|ops| ops.conflicts),
        retries: total(|ops| ops.retries),
    };
    let title = format!("{} over {}, requests", plan.name(), fabric.name());
    let mut figure = measured.figure(format!("kv {}", plan.name()), title, Unit::Mops, 0);
    let each_text = units::figure(each(&all, is_drtm));
    let per = if is_drtm { "READs, WRITEs and atomics of a request" } else { "READs of a GET" };
    let what = format!("READs of {} divided by the {each_text} {per}", units::size(read_size));
    let puts = all.done - all.gets;
    if is_drtm || all.gets > 0 {
        // PUTs that the owner makes take no READs.
        let comparison = if is_drtm || puts == 0 { Comparison::Limit } else { Comparison::Baseline };
        figure = figure.beside(measured, 1, comparison, what);
    }
    figure.lines = vec![
        workload_text(&plan.workload, KEY_LEN),
        format!(
            "{} in flight; {} answers checked, {:.1} % of the gets hit, {} READs made again",
            plan.window,
            sum.done,
            sum.hit_percent(),
            all.again
        ),
    ];
    figure.details = json!({
        "read_size": read_size,
        "reads_per_get": units::rounded(each(&all, false)),
        "reads_again": all.again,
        "hit_percent": units::rounded(sum.hit_percent()),
        "answers_checked": sum.done,
    });
    if is_drtm {
        let Ops { conflicts, retries, atomics, .. } = all;
        figure.lines.push(format!(
            "{puts} PUTs found {conflicts} locks held, tried again {retries} times, and {contended} gave up"
        ));
        let more = json!({
            "verbs_per_request": units::rounded(each(&all, true)),
            "puts": puts,
            "atomics_per_put": units::rounded(atomics as f64 / puts.max(1) as f64),
            "lock_conflicts": conflicts,
            "put_retries": retries,
            "puts_contended": contended,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            figure.details[key] = value.clone();
        }
    }
    figure.setup = json!({
        "design": plan.name(),
        "fabric": fabric.name(),
        "workload": workload_json(&plan.workload, KEY_LEN),
        "window": plan.window,
        "seconds": plan.duration.as_secs_f64(),
    });
    figure.latency = Some(sum.latency);
    figure
}
