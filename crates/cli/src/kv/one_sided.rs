//! `sinew kv bench pilaf`, `farm` and `drtm`: a client thread whose GETs are READs, the owner's thread, and bare READs
//! beside them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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
use sinew_harness::load::Slice;
use sinew_harness::load::one_sided::{Design, Locked, Ops, Owns, Searched, StorePlan};
use sinew_harness::load::store::Store as Stores;
use sinew_harness::load::verbs::{Op, TransportKind, VerbsPlan, WorkKind};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::workload::{KEY_LEN, Workload};
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Measured, Unit, machine, units};

use super::workload::{KEYS_MAX_OF_FABRIC, WorkloadArgs, workload_json, workload_text};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::verbs::{Bare, DeviceArgs, Job, Kind, VerbsFabric};
use crate::{Outcome, Usage, interrupted};

pub const HELP: &str = "\
The owner of a table, a thread, fills it and makes the PUTs that it is sent; the client, another thread, READs the
table. Every value is checked in full. The limit is the rate of bare READs, posted in lists as the client's are and as
long as the first READ of a GET, divided by the number of READs that a GET took (drtm: by the READs, WRITEs and atomics
that a request took). Unlike those of a table, the places of these READs are not random. With PUTs it is a baseline,
since they are no READs.

pilaf and farm: --emulate uses no table, but makes the READs of sigcomm14 5.1: 1.6 of 32 bytes and the value for
pilaf, six keys and values for farm; each is checked to come from the right place.

drtm has a table with a lock in each record, and a client that has seen where each key is: a GET is a READ, a PUT a
compare-and-swap that locks, a WRITE, and a compare-and-swap that unlocks. A PUT that finds the lock held retries
after a while, up to 32 times, and then gives up and is counted. Over shared memory an atomic is the processor's own;
on NICs atomics limit the design (atc16 4.3.2).

Examples:
  sinew kv bench pilaf --get 95
  sinew kv bench farm --out-of-line --emulate
  sinew kv bench drtm --get 50 --dist zipf";

/// Turns between checks for an interrupt, or, for the owner, for new clients.
const TURNS_PER_CHECK: u32 = 1024;
/// Longest value, in bytes, which a PUT carries in one request.
const VALUE_SIZE_MAX: usize = 4096;

/// Options common to these designs.
#[derive(clap::Args)]
pub struct StoreArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Requests in flight, 1 to 1024
    #[arg(long, default_value_t = 16, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Options of `sinew kv bench pilaf`.
#[derive(clap::Args)]
pub struct PilafArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Make fixed READs without a table, as in sigcomm14 5.1
    #[arg(long)]
    pub emulate: bool,
}

/// Options of `sinew kv bench farm`.
#[derive(clap::Args)]
pub struct FarmArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Make fixed READs without a table, as in sigcomm14 5.1
    #[arg(long)]
    pub emulate: bool,
    /// Keep values outside the slots of the table, so that a GET READs them separately
    #[arg(long)]
    pub out_of_line: bool,
}

/// A design of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Pilaf,
    Farm {
        /// Whether values are in the slots.
        is_inline: bool,
    },
    Drtm,
}

impl StoreArgs {
    /// Measures, and prints the result.
    pub fn run(&self, store: Store, is_emulated: bool) -> anyhow::Result<Outcome> {
        let plan = self.plan(store, is_emulated).map_err(Usage::of)?;
        self.measure.show(&with_progress(|progress| self.device.run(Measure { plan: &plan, progress }))?)
    }

    fn plan(&self, store: Store, is_emulated: bool) -> anyhow::Result<OneSidedPlan<'_>> {
        self.measure.check_thresholds(Unit::Mops)?;
        self.device.check()?;
        let value_size = self.workload.value_size;
        ensure!(value_size <= VALUE_SIZE_MAX, "--value-size can be up to {VALUE_SIZE_MAX} for this design");
        let workload = self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?;
        let (window, setting) = (self.window.into(), self.measure.setting((1, 1), false)?);
        Ok(OneSidedPlan { args: self, store, is_emulated, workload, window, setting })
    }
}

/// A measurement to make.
struct OneSidedPlan<'a> {
    args: &'a StoreArgs,
    store: Store,
    /// Whether READs are made without a table.
    is_emulated: bool,
    workload: Workload,
    /// GETs and PUTs in flight.
    window: usize,
    setting: Setting,
}

impl OneSidedPlan<'_> {
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

    fn store(&self, interrupt: Interrupt) -> StorePlan {
        let owner = OwnerConfig {
            clients: 1,
            window: self.window.next_power_of_two(),
            item_len_max: KEY_LEN + self.args.workload.value_size,
            seed: self.workload.seed,
        };
        StorePlan { owner, window: self.window, keys: self.workload.keys, interrupt: Some(interrupt) }
    }

    /// Bare READs of the same length, posted as the READs of a client's searches are: all that are due start together,
    /// and those that the device performs at once need no completion.
    fn bare(&self, read_size: usize) -> VerbsPlan {
        VerbsPlan {
            window: self.window,
            signal: 1,
            starts_together: true,
            cpus: self.setting.server_cpus.clone(),
            ..VerbsPlan::new(WorkKind::Load(Op::Read), TransportKind::Rc, read_size)
        }
    }
}

struct Measure<'a, 'b> {
    plan: &'a OneSidedPlan<'a>,
    progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = Figure;

    fn run<D: Device + 'static>(self, device: D, _: VerbsFabric) -> anyhow::Result<Figure> {
        let (items, value) = (u32::try_from(self.plan.workload.keys)?, self.plan.args.workload.value_size as u32);
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

/// A client that asks to be admitted, and the channel for the answer.
type Knock = (Hello, mpsc::Sender<anyhow::Result<Welcome>>);

impl Measure<'_, '_> {
    fn emulate<D: Device + 'static>(self, device: D, index: Emulation) -> anyhow::Result<Figure> {
        let table = move |memory: SharedMemory| {
            index.fill(&memory);
            Ok(NoTable)
        };
        self.with(device, Searched { index, table })
    }

    fn with<D: Device + 'static>(mut self, device: D, design: impl Design<D>) -> anyhow::Result<Figure> {
        (self.progress)("filling the table", 0.0);
        let (plan, is_paused, (knock, knocks)) = (self.plan, AtomicBool::new(false), mpsc::channel());
        interrupted::run_interruptible(|interrupt| {
            std::thread::scope(|threads| {
                let (device, is_paused, store, of_owner) = (&device, &is_paused, plan.store(interrupt), design.clone());
                let owner = threads.spawn(move || {
                    machine::pin(plan.setting.server_cpus[0])?;
                    own(of_owner.owner(device, &store)?, &knocks, is_paused)
                });
                // Dropping `knock` ends the owner.
                let measured = self.measure(device, design, knock, is_paused, interrupt);
                // If the owner failed, that is why its client did.
                owner.join().ok().context("the owner's thread panicked")??;
                measured
            })
        })
    }

    /// Measures once the owner, on its own thread, has filled the table.
    fn measure<D: Device + 'static, S: Design<D>>(
        &mut self,
        device: &D,
        design: S,
        knock: mpsc::Sender<Knock>,
        is_paused: &AtomicBool,
        interrupt: Interrupt,
    ) -> anyhow::Result<Figure> {
        let (plan, read_size) = (self.plan, design.read_len());
        let OneSidedPlan { workload, is_emulated, setting, .. } = plan;
        let is_drtm = plan.store == Store::Drtm;
        let (store, workload, is_emulated, of_thread) =
            (plan.store(interrupt), *workload, *is_emulated, device.clone());
        let client = Drivers::start(&setting.client_cpus, interrupt, move |_| {
            let client = design.client(&of_thread, &store, |hello| {
                let (answer, welcome) = mpsc::channel();
                knock.send((hello, answer)).ok().context("the owner has ended")?;
                welcome.recv().context("the owner has ended")?
            })?;
            let learns = if is_drtm { workload.keys as u64 } else { 0 };
            // Kept as long as the client: when it is dropped, the owner knows that the client has left.
            let knock = knock.clone();
            Ok((Box::new(Stores::new(vec![client], HostClock::new(), &workload, is_emulated, learns)), knock))
        })?;
        let reads = plan.bare(read_size);
        let bare = Bare::open(device, &plan.args.device, (Kind::Rate, &reads), &setting.client_cpus, interrupt)?;
        // Without GETs there are no READs, unless PUTs are one-sided too.
        let sides = if is_drtm || workload.get_percent > 0.0 { 2 } else { 1 };
        let run = setting.run(sides, [bare.process()], Some(Yardstick::RingRoundTrip), interrupt);
        let [begun, before, now] = [Ops::default(); 3];
        let mut turns = StoreSides::<D, S> { client, bare, is_paused, is_drtm, begun, before, now, sum: Slice::new() };
        let measured = run.measure_alternately(sides, &mut turns, self.progress)?;
        let StoreSides { sum, begun, now, .. } = turns;
        Ok(figure(plan, &measured, sum, now.since(begun), read_size))
    }
}

/// Owns a table until no client can come any more.
fn own(mut owner: impl Owns, knocks: &mpsc::Receiver<Knock>, is_paused: &AtomicBool) -> anyhow::Result<()> {
    let (clock, idle, mut turns) = (HostClock::new(), machine::Idle::new(), 0u32);
    loop {
        if is_paused.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        } else if owner.turn(clock.now_ns()) == 0 {
            idle.pass();
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_CHECK) {
            owner.tend(clock.now_ns());
            match knocks.try_recv() {
                // A client that has gone does not hear the answer.
                Ok((hello, answer)) => drop(answer.send(owner.admit(&hello))),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }
}

struct StoreSides<'a, D: Device, S: Design<D>> {
    client: Drivers<Stores<S::Client, HostClock>>,
    bare: Bare,
    /// True while the bare READs need the owner's processor.
    is_paused: &'a AtomicBool,
    is_drtm: bool,
    /// Operations done before the first slice that counts, before the last slice, and in all.
    begun: Ops,
    before: Ops,
    now: Ops,
    sum: Slice,
}

impl<D: Device, S: Design<D>> MeasureSides for StoreSides<'_, D, S> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        if side == 1 {
            self.is_paused.store(true, Ordering::Release);
            let mops = self.bare.mops(duration);
            self.is_paused.store(false, Ordering::Release);
            return Ok(Some(mops? / each(&self.now.since(self.before), self.is_drtm)));
        }
        let slice = self.client.slices(duration, |_, _| ())?.remove(0);
        let ops = |_, stores: &mut Stores<S::Client, HostClock>| {
            Ok(Ops { puts_given_up: stores.contended(), ..S::ops(&stores.clients()[0]) })
        };
        self.before = std::mem::replace(&mut self.now, self.client.each(Duration::ZERO, ops)?.remove(0));
        self.sum.add(&slice);
        Ok(Some(slice.mops()))
    }

    fn reset_sums(&mut self) {
        (self.sum, self.begun) = (Slice::new(), self.now);
    }
}

/// READs of a GET, or, where PUTs are one-sided too, READs, WRITEs and atomics of a request.
fn each(ops: &Ops, is_drtm: bool) -> f64 {
    let Ops { gets, done, reads, writes, atomics, .. } = *ops;
    let (verbs, requests) = if is_drtm { (reads + writes + atomics, done) } else { (reads, gets) };
    if requests == 0 || verbs == 0 { 1.0 } else { verbs as f64 / requests as f64 }
}

fn figure(plan: &OneSidedPlan<'_>, measured: &Measured, sum: Slice, all: Ops, read_size: usize) -> Figure {
    let fabric = plan.args.device.fabric;
    let is_drtm = plan.store == Store::Drtm;
    let title = format!("{} over {}, requests", plan.name(), fabric.name());
    let mut figure = measured.figure(format!("kv {}", plan.name()), title, Unit::Mops, 0);
    let each_text = units::figure(each(&all, is_drtm));
    let per = if is_drtm { "READs, WRITEs and atomics of a request" } else { "READs of a GET" };
    let what = format!("READs of {} divided by the {each_text} {per}", units::size(read_size));
    let puts = all.done - all.gets;
    if is_drtm || all.gets > 0 {
        // PUTs take other operations than READs, or, made by the owner, none of the client's.
        let comparison = if puts == 0 { Comparison::Limit } else { Comparison::Baseline };
        figure = figure.compared_with(measured, 1, comparison, what);
    }
    figure.lines = vec![
        workload_text(&plan.workload, KEY_LEN),
        format!(
            "{} in flight; {} checked, {:.1} % of the gets hit, {} repeated",
            plan.window,
            units::counted(sum.done, "answer"),
            sum.hit_percent(),
            units::counted(all.repeated_reads, "READ")
        ),
    ];
    figure.details = json!({
        "read_size": read_size,
        "reads_per_get": units::rounded(each(&all, false)),
        "reads_again": all.repeated_reads,
        "hit_percent": units::rounded(sum.hit_percent()),
        "answers_checked": sum.done,
    });
    if is_drtm {
        let Ops { conflicts, retries, atomics, puts_given_up, .. } = all;
        figure.lines.push(format!(
            "{} found {} held and retried {}; {puts_given_up} gave up",
            units::counted(puts, "PUT"),
            units::counted(conflicts, "lock"),
            units::counted(retries, "time")
        ));
        let more = json!({
            "verbs_per_request": units::rounded(each(&all, true)),
            "puts": puts,
            "atomics_per_put": units::rounded(atomics as f64 / puts.max(1) as f64),
            "lock_conflicts": conflicts,
            "put_retries": retries,
            "puts_contended": puts_given_up,
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
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.latency = Some(sum.latency);
    figure
}
