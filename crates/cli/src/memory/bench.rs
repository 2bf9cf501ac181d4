//! `sinew memory bench`: engines that go to a donor, beside copies by the same threads.

use std::any::Any;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;
use sinew::fabric::PollPolicy;
use sinew::fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew::host::{HostClock, Interrupt};
use sinew::mem::{Arena, SharedMemory};
use sinew::remote_memory::engine::{
    AdaptiveWindow, Admission, DonorQueuePairs, Engine, EngineConfig, EngineStats, Mode, RegistrationPolicy, Shared,
    SharedConfig, StaticWindow, Unlimited, VerbsPath, VerbsPathConfig,
};
use sinew::remote_memory::store::BLOCK;
use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::memory::{Copies, EnginePath, Memory, Requests, fill};
use sinew_harness::load::{Drive, Slice};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::units::parse_size;
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, histogram, units};
use std::time::Duration;

use super::polling::{self, Polled, Polling};
use super::registering::{self, Chosen, RegisterFrom};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::verbs::{DeviceArgs, Job, VerbsFabric};
use crate::{Outcome, Usage, table};

pub const HELP: &str = "\
Each thread has an engine; all share a merge queue and a window, as the threads of one user of a donor do. The donor
is this process, which lends --memory bytes of its own; over shm a read is a copy by the thread that asks. The
baseline is copies of the same bytes, between the same places and as many buffers, by the same threads, by turns in
the same run. A volume also makes checksums of its pages of 4 KB, which an engine does not. The time that they add to a
copy is measured, too.

The memory of requests is registered. With --unregistered it is not: requests up to some size are copied, and the memory
of longer ones is registered, and stays registered. That size is measured at start, unless --register-from gives it.

Threads poll for completions all the time, unless --poller says otherwise. Then they sleep after each event (event, or
event-batch, for up to 16), after a turn that finds nothing (hybrid) or after 120 of them in a row (retry, rdmabox's
adaptive polling), or 50 us after the last completion, sooner where they are rare (adaptive). With shared:M the queue pairs
of a thread complete in M queues instead of one, and the thread polls all of them without sleeping.

Contents are checked: the first word and the last of each read, and all words of one in 64; of writes, one in 64 is
read back. There is a result for each size; thresholds apply to each.

Examples:
  sinew memory bench --sizes 4K,16K,64K,256K,1M
  sinew memory bench --op write --in-flight 64 --threads 2 --mode merge
  sinew memory bench --sizes 64K,256K,1M --unregistered
  sinew memory bench --sizes 4K --order sequential --mode single \\
      --window none --json
  sinew memory bench --sizes 4K --fabric ibverbs --poller shared:2";

/// Sizes that a request can have, in bytes.
const SIZES: std::ops::RangeInclusive<usize> = 64..=16 << 20;
/// Most requests of a thread in flight, and most threads.
const WINDOW_MAX: usize = 4096;
const THREADS_MAX: usize = 64;

/// Operation of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Read
    Read,
    /// Write
    Write,
}

/// Places of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessPattern {
    /// At random
    Random,
    /// One after the other, for each thread
    Sequential,
}

/// Treatment of the requests that have gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Batching {
    /// Each is an operation with a doorbell of its own
    Single,
    /// Adjacent ones become one operation
    Merge,
    /// All operations share one doorbell
    Doorbell,
    /// Adjacent ones become one operation, and all operations share one doorbell
    Hybrid,
}

impl Batching {
    fn mode(self) -> Mode {
        match self {
            Self::Single => Mode::Single,
            Self::Merge => Mode::Merge,
            Self::Doorbell => Mode::Doorbell,
            Self::Hybrid => Mode::Hybrid,
        }
    }
}

/// Bytes that may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    None,
    Bytes(u64),
    Find,
}

impl Window {
    fn text(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Bytes(bytes) => bytes.to_string(),
            Self::Find => "find".to_owned(),
        }
    }

    fn admission(self) -> Box<dyn Admission> {
        match self {
            Self::None => Box::new(Unlimited),
            Self::Bytes(bytes) => Box::new(StaticWindow { bytes }),
            Self::Find => Box::new(AdaptiveWindow::new(1 << 20, 1 << 16, 1 << 30)),
        }
    }
}

fn parse_window(text: &str) -> Result<Window, String> {
    match text {
        "none" => Ok(Window::None),
        "find" => Ok(Window::Find),
        _ => parse_size(text)
            .map(|bytes| Window::Bytes(bytes as u64))
            .map_err(|error| format!("{error}; or `none`, or `find` for a window that adapts itself")),
    }
}

/// Options of `sinew memory bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Operation of the requests
    #[arg(long, value_enum, default_value = "read")]
    op: Op,
    /// Lengths of a request, in bytes, multiples of 64 up to 16M, separated by commas; one result for each
    #[arg(long, visible_alias = "size", value_delimiter = ',', default_value = "4K,16K,64K,256K,1M",
        allow_negative_numbers = true, value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Requests in flight of each thread, 1 to 4096
    #[arg(long, default_value_t = 32, allow_negative_numbers = true)]
    in_flight: usize,
    /// Number of threads, each with an engine, 1 to 64
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    threads: usize,
    /// Order of the places that requests read or write
    #[arg(long, value_enum, default_value = "random")]
    order: AccessPattern,
    /// Way in which requests that wait together are posted
    #[arg(long, value_enum, default_value = "hybrid")]
    mode: Batching,
    /// Bytes in flight at most, over all threads: a size such as 7M, `none` for no limit, or `find` for a limit that
    /// adapts
    #[arg(long, default_value = "7000000", value_parser = parse_window)]
    window: Window,
    /// Queue pairs of each thread, 1 to 64
    #[arg(long, visible_alias = "qps", default_value_t = 4, allow_negative_numbers = true)]
    queue_pairs: usize,
    /// Way to wait for completions: busy, event, event-batch, hybrid, retry, adaptive, or shared:M, which is busy over
    /// M completion queues of each thread
    #[arg(long, value_name = "POLICY", default_value = "busy", value_parser = polling::parse)]
    poller: Polling,
    /// Do not register the memory of requests in advance
    #[arg(long)]
    unregistered: bool,
    /// Least length in bytes that --unregistered registers instead of copying: a size, measured, never, or always
    #[arg(long, value_name = "BYTES", default_value = "measured", value_parser = registering::parse)]
    register_from: RegisterFrom,
    /// Memory of the donor, in bytes: a multiple of 4K, at least twice the longest request
    #[arg(long, default_value = "256M", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    #[command(flatten)]
    measure: MeasureArgs,
}

struct Plan {
    op: Op,
    sizes: Vec<usize>,
    in_flight: usize,
    threads: usize,
    order: AccessPattern,
    mode: Batching,
    window: Window,
    queue_pairs: usize,
    poller: Polling,
    unregistered: bool,
    register_from: RegisterFrom,
    memory: usize,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        self.device.check()?;
        self.measure.check_thresholds(Unit::Gbps)?;
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        sizes.dedup();
        for size in &sizes {
            ensure!(
                SIZES.contains(size) && size.is_multiple_of(64),
                "--sizes: {size} is not possible: a request has a multiple of 64 bytes, up to {}",
                units::size(*SIZES.end())
            );
        }
        let largest = sizes.last().copied().context("--sizes: give at least one, for example --sizes 4K")?;
        ensure!((1..=WINDOW_MAX).contains(&self.in_flight), "--in-flight can be 1 to {WINDOW_MAX}");
        ensure!((1..=THREADS_MAX).contains(&self.threads), "--threads can be 1 to {THREADS_MAX}");
        ensure!((1..=64).contains(&self.queue_pairs), "--queue-pairs can be 1 to 64");
        self.poller.check(self.queue_pairs)?;
        ensure!(
            self.memory >= 2 * largest && self.memory.is_multiple_of(4096),
            "--memory must be a multiple of 4K, and at least twice as long as a request: {} here",
            units::size(2 * largest)
        );
        Ok(Plan {
            op: self.op,
            sizes,
            in_flight: self.in_flight,
            threads: self.threads,
            order: self.order,
            mode: self.mode,
            window: self.window,
            queue_pairs: self.queue_pairs,
            poller: self.poller.clone(),
            unregistered: self.unregistered,
            register_from: self.register_from,
            memory: self.memory,
            setting: self.measure.setting((self.threads, 0), false)?,
        })
    }
}

/// Measures, and prints the results.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let (figures, chosen) = with_progress(|progress| args.device.run(Measure { plan: &plan, progress }))?;
    args.measure.show_all(&figures, || text_of(&plan, &figures, &chosen))
}

struct Measure<'a, 'b> {
    plan: &'a Plan,
    progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = (Vec<Figure>, Chosen);

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<(Vec<Figure>, Chosen)> {
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        let plan = self.plan;
        // The donor, and its memory.
        let domain = device.protection_domain()?;
        let exposed = domain.expose(plan.memory, Access::ALL).context("exposing the donor's memory")?;
        let chosen = plan.register_from.choose(&domain)?;
        let mut figures = Vec::new();
        for size in &plan.sizes {
            fill_all(&exposed)?;
            let donor = Donor { device: &device, domain: &domain, exposed: &exposed, registering: chosen.registering };
            let mut sides = donor.threads(plan, *size, interrupt)?;
            let run = plan.setting.run(JUDGED, [], Some(Yardstick::Copy), interrupt);
            let measured = run.measure_alternately(SIDES.len(), &mut sides, self.progress)?;
            figures.push(figure(plan, fabric, *size, &measured, sides, &chosen)?);
        }
        Ok((figures, chosen))
    }
}

/// Fills each place with its own address.
pub fn fill_all(memory: &SharedMemory) -> anyhow::Result<()> {
    let mut bytes = vec![0; 1 << 20];
    for at in (0..memory.len()).step_by(bytes.len()) {
        let len = bytes.len().min(memory.len() - at);
        fill(&mut bytes[..len], at as u64);
        memory.write(at, &bytes[..len]).context("filling the donor's memory")?;
    }
    Ok(())
}

struct Donor<'a, D: Device> {
    device: &'a D,
    domain: &'a D::Domain,
    exposed: &'a <D::Domain as ProtectionDomain>::Exposed,
    registering: RegistrationPolicy,
}

impl<D: Device + 'static> Donor<'_, D> {
    /// Starts threads with an engine each.
    fn threads(&self, plan: &Plan, size: usize, interrupt: Interrupt) -> anyhow::Result<EngineSides> {
        let requests = move |seed| Requests {
            memory: plan.memory as u64,
            len: size,
            writes: plan.op == Op::Write,
            follows: plan.order == AccessPattern::Sequential,
            window: plan.in_flight,
            seed,
        };
        let config = SharedConfig { depth: (2 * plan.threads * plan.in_flight).max(64) };
        let shared = Shared::new("this process", plan.memory as u64, plan.window.admission(), config);
        let domain = self.device.protection_domain()?;
        let arenas = (0..plan.threads)
            .map(|_| domain.arena(requests(0).arena_len()).context("registering memory for requests"))
            .collect::<anyhow::Result<Vec<Arena>>>()?;
        // Memory of requests that is not registered with the path.
        let foreign = (0..if plan.unregistered { plan.threads } else { 0 })
            .map(|_| Arena::private(requests(0).arena_len()).context("reserving memory for requests"))
            .collect::<anyhow::Result<Vec<Arena>>>()?;
        let (device, donors, memory) = (self.device.clone(), self.domain.clone(), SharedMemory::clone(self.exposed));
        let (remote, of_all) = (self.exposed.remote(), shared.clone());
        let path_config = VerbsPathConfig {
            queue_pairs: plan.queue_pairs,
            completion_queues: plan.poller.completion_queues,
            poll_max: plan.poller.policy.batch().min(VerbsPathConfig::default().poll_max),
            registration: self.registering,
            ..VerbsPathConfig::default()
        };
        let engine_config = EngineConfig { mode: plan.mode.mode(), ..EngineConfig::default() };
        let policy = plan.poller.policy;
        let requests: Vec<Requests> = (0..plan.threads as u64).map(requests).collect();
        let cpus = &plan.setting.client_cpus;
        let crew = Crew::start(cpus, move |index| {
            // The first arena is the thread's own, to which it copies what is not registered.
            let mut arenas = arenas.clone();
            arenas.swap(0, index);
            let mut path = VerbsPath::new(&device, &domain, &arenas, &path_config)?;
            let lending = DonorQueuePairs::new(&device, &donors, &path.addresses())?;
            path.connect(&lending.addresses(), remote)?;
            let engine = EnginePath::new(Engine::new(&of_all, path, engine_config), policy);
            let load = Memory::new(engine, foreign.get(index).unwrap_or(&arenas[0]), requests[index])?;
            let copies = Copies::new(memory.clone(), requests[index]);
            let lending: Box<dyn Any> = Box::new(lending);
            let clock = HostClock::new();
            Ok(Box::new(Thread { load, copies, _keep: lending, clock, interrupt }) as BoxedMember<_, _>)
        })?;
        Ok(EngineSides {
            crew,
            size,
            shared,
            before: EngineStats::default(),
            sum: Slice::new(),
            checked: 0,
            polled: Vec::new(),
            polled_before: Vec::new(),
            elapsed_ns: 0,
        })
    }
}

#[derive(Clone, Copy)]
enum EngineOrder {
    Engine(Duration),
    Copies(Duration),
    SummedCopies(Duration),
}

/// What is measured by turns: the engine, copies, and copies with checksums of their pages.
const SIDES: [fn(Duration) -> EngineOrder; 3] = [EngineOrder::Engine, EngineOrder::Copies, EngineOrder::SummedCopies];
/// The first of them, on which the result depends.
const JUDGED: usize = 2;

/// A thread with its engine, and the same requests as plain copies.
struct Thread<D: Device> {
    load: Memory<EnginePath<VerbsPath<D>>>,
    copies: Copies,
    /// The donor's end of its queue pairs.
    _keep: Box<dyn Any>,
    clock: HostClock,
    interrupt: Interrupt,
}

/// A thread's result of a slice.
struct ThreadResult {
    slice: Slice,
    /// Requests whose bytes were checked, over the whole run.
    checked: u64,
    /// What its polling came to, over the whole run.
    polled: Polled,
}

impl<D: Device> Member for Thread<D> {
    type Order = EngineOrder;
    type Answer = ThreadResult;

    fn execute(&mut self, order: EngineOrder) -> anyhow::Result<ThreadResult> {
        self.copies.sum_pages(matches!(order, EngineOrder::SummedCopies(_)));
        let slice = match order {
            EngineOrder::Engine(duration) => self.load.drive(&self.clock, duration, self.interrupt)?,
            EngineOrder::Copies(duration) | EngineOrder::SummedCopies(duration) => {
                self.copies.drive(&self.clock, duration, self.interrupt)?
            }
        };
        let path = self.load.path();
        let polled = Polled { stats: path.poller_stats(), completions: path.engine.path().completions().collect() };
        Ok(ThreadResult { slice, checked: self.load.checked(), polled })
    }
}

struct EngineSides {
    crew: Crew<EngineOrder, ThreadResult>,
    size: usize,
    shared: sinew::mem::atomic::Arc<Shared>,
    /// Counters of the engines at the start of the measurement, after the warm-up.
    before: EngineStats,
    sum: Slice,
    checked: u64,
    /// What each thread's polling came to, up to the last slice, and up to the start of the measurement.
    polled: Vec<Polled>,
    polled_before: Vec<Polled>,
    /// Time of the engines' slices since the start of the measurement, of all threads together.
    elapsed_ns: u64,
}

impl EngineSides {
    /// What all threads' polling came to since the start of the measurement.
    fn polled(&self) -> Polled {
        let mut all = Polled::default();
        for (nth, thread) in self.polled.iter().enumerate() {
            all.add(&thread.since(self.polled_before.get(nth).unwrap_or(&Polled::default())));
        }
        all
    }
}

impl MeasureSides for EngineSides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let threads = self.crew.order(&SIDES[side](duration), duration)?;
        // Sum over all threads.
        let mops: f64 = threads.iter().map(|thread| thread.slice.mops()).sum();
        if side == 0 {
            self.checked = threads.iter().map(|thread| thread.checked).sum();
            for thread in &threads {
                self.sum.add(&thread.slice);
                self.elapsed_ns += thread.slice.elapsed_ns;
            }
            self.polled = threads.into_iter().map(|thread| thread.polled).collect();
        }
        Ok(Some(mops * self.size as f64 * 8e-3))
    }

    fn reset_sums(&mut self) {
        self.before = self.shared.stats();
        self.sum = Slice { latency: histogram(), ..Slice::new() };
        (self.polled_before, self.elapsed_ns) = (self.polled.clone(), 0);
    }
}

fn figure(
    plan: &Plan,
    fabric: VerbsFabric,
    size: usize,
    measured: &Measured,
    sides: EngineSides,
    chosen: &Chosen,
) -> anyhow::Result<Figure> {
    let op = plan.op.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let (mode, order) = (plan.mode.mode(), plan.order == AccessPattern::Sequential);
    let title =
        format!("{op}s of {} by an engine over {}, {} in flight", units::size(size), fabric.name(), plan.in_flight);
    let figure = measured.figure("memory bench", title, Unit::Gbps, 0);
    let mut figure =
        figure.compared_with(measured, 1, Comparison::Baseline, "copies of the same bytes by the same threads");
    let stats = sides.shared.stats();
    let since = |of: fn(&EngineStats) -> u64| of(&stats).saturating_sub(of(&sides.before));
    let requests = since(|stats| stats.reads + stats.writes).max(1) as f64;
    // Copies take so much longer with checksums.
    let checksum_percent = measured
        .median_ratio(1, 2)
        .filter(|_| size.is_multiple_of(BLOCK))
        .map(|ratio| units::rounded(100.0 * (ratio - 1.0)));
    let each = |count: u64| units::rounded(count as f64 / requests);
    ensure!(stats.failed == 0, "{} failed", units::counted(stats.failed, "request"));
    figure.setup = json!({
        "op": op,
        "size": size,
        "fabric": fabric.name(),
        "in_flight": plan.in_flight,
        "threads": plan.threads,
        "order": if order { "sequential" } else { "random" },
        "mode": format!("{mode:?}").to_lowercase(),
        "window": plan.window.text(),
        "queue_pairs": plan.queue_pairs,
        "poller": plan.poller.setup(),
        "unregistered": plan.unregistered,
        "registering": chosen.details(),
        "memory": plan.memory,
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.details = json!({
        "rate_mops": figure.value.map(|gbps| units::rounded(gbps / (8e-3 * size as f64))),
        "requests": sides.sum.done,
        "checked": sides.checked,
        "operations_per_request": each(since(|stats| stats.read_ops + stats.write_ops)),
        "doorbells_per_request": each(since(|stats| stats.doorbells)),
        "merged_percent": units::rounded(100.0 * since(|stats| stats.merged) as f64 / requests),
        "copied_percent": units::rounded(100.0 * since(|stats| stats.copied) as f64 / requests),
        "checksum_percent": checksum_percent,
        "held_back": since(|stats| stats.held_back),
        "window_bytes": sides.shared.window_bytes().min(1 << 53),
        "polling": plan.poller.details(&sides.polled(), requests, sides.elapsed_ns),
    });
    Ok(figure)
}

fn text_of(plan: &Plan, figures: &[Figure], chosen: &Chosen) -> String {
    let heads = ["size", "engine", "lowest .. highest", "copies", "ratio", "ops", "doorbells"];
    let rows = figures.iter().map(|figure| {
        let fold = |pick: fn(f64, f64) -> f64| figure.slices.iter().copied().reduce(pick).unwrap_or(0.0);
        let of = |key: &str| figure.details[key].as_f64().map(units::figure).unwrap_or_default();
        vec![
            units::size(figure.setup["size"].as_u64().unwrap_or_default() as usize),
            figure.text(),
            format!("{} .. {}", units::figure(fold(f64::min)), units::figure(fold(f64::max))),
            figure.compared_text(),
            figure.ratio().map(units::figure).unwrap_or_default(),
            of("operations_per_request"),
            of("doorbells_per_request"),
        ]
    });
    let table = table::of(&heads, rows, table::FIGURES);
    let threads = if plan.threads == 1 { "one thread".to_owned() } else { format!("{} threads", plan.threads) };
    let mut lines = vec![
        format!(
            "{}s by {threads}, {} in flight, mode {}, window {}: the engine beside copies of the same bytes by the same threads; \
             operations and doorbells are for each request.",
            if plan.op == Op::Read { "Read" } else { "Write" },
            plan.in_flight,
            plan.mode.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
            plan.window.text()
        ),
        table,
        chosen.sentence(),
    ];
    let prices = figures.iter().filter_map(|figure| {
        let size = units::size(figure.setup["size"].as_u64()? as usize);
        Some(format!("{size} {:+.0} %", figure.details["checksum_percent"].as_f64()?))
    });
    let prices = prices.collect::<Vec<_>>().join(", ");
    if !prices.is_empty() {
        lines.push(format!("Time that the checksums of a volume's pages add to a copy: {prices}."));
    }
    if plan.poller.policy != PollPolicy::Busy || plan.poller.completion_queues > 1 {
        let sentences = figures.iter().map(|figure| {
            let size = units::size(figure.setup["size"].as_u64().unwrap_or_default() as usize);
            format!("{size}: {}", plan.poller.sentence(&figure.details["polling"]))
        });
        lines.extend(sentences);
    }
    let complaints = figures.iter().flat_map(|figure| {
        let size = units::size(figure.setup["size"].as_u64().unwrap_or_default() as usize);
        figure.invalid_because.iter().map(move |why| format!("{size}: invalid: {why}"))
    });
    lines.extend(complaints);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_bytes_or_none_or_found() {
        assert_eq!(parse_window("none"), Ok(Window::None));
        assert_eq!(parse_window("find"), Ok(Window::Find));
        assert_eq!(parse_window("64K"), Ok(Window::Bytes(65536)));
        assert!(parse_window("some").unwrap_err().contains("find"));
    }
}
