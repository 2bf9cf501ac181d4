//! `sinew kv bench eviction`: what a full cache keeps, by its choice of the item to evict, and beside memcached.

mod peer;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use sinew::host::Interrupt;
use sinew::store::cache::{Cache, CacheConfig, Eviction, Put};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::units::parse_size;
use sinew_harness::workload::{
    Distribution, KEY_LEN, KEYS_MAX, Mix, Order, Request, Sizes, Workload, check_value, fill_value, key_bytes,
};
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, figure, machine, units};

use peer::Peer;

use super::workload::workload_json;
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, interrupted, output, table};

pub const HELP: &str = "\
One thread sends traces of requests to a cache table that is too small for all their keys, and stores each key that was
missed. The table evicts the oldest item that was not read lately, as it does by default, or the oldest item; with
--peer, memcached with one thread gets the same traces. Hits are counted in the second half of each trace. Then both
tables alternate, to find the price of sparing what was read. Every value found is checked, in full if 16 bytes or
longer.

 zipf  keys by a Zipf law with exponent 0.99
 scan  half of the requests ask for keys that fill half of the memory, the
       others for keys that are asked for once
 etc   Facebook's ETC pool: 95 % GETs, Zipf, values of 1 to 1024 B
 sys   Facebook's SYS pool: 67 % GETs, Zipf, values of 1 to 500 B

Example: sinew kv bench eviction --peer --json";

/// Memory of the caches, in bytes. The trace takes about as much.
const MEMORY: std::ops::RangeInclusive<usize> = 1 << 20..=1 << 30;
/// Least memory, in bytes, beside memcached, which otherwise takes more than it is given: a megabyte for each of its
/// classes of items.
const MEMORY_MIN_OF_PEER: usize = 64 << 20;
/// Requests of a trace for each item that fits.
const REQUESTS_PER_ITEM: usize = 16;
/// Bytes that the table takes for an item beside its key and value.
const ITEM_HEADER: usize = 16;
/// Bytes of the table's index for an item. It has places for a quarter more items than fit, so that few buckets
/// overflow.
const INDEX_BYTES: usize = 20;
/// Longest value, in bytes: the table spares no item that is longer.
const VALUE_SIZE_MAX: usize = 4064;
/// Time that the table is given, in seconds: nothing expires here.
const NOW_S: u32 = 1;
/// Requests whose cache misses overlap.
const BATCH: usize = 16;
/// Requests between readings of the clock.
const STRETCH: usize = 256 * BATCH;
/// The table's choices: the default, and what it is compared with.
const CHOICES: [Eviction; 2] = [Eviction::OldestUnread, Eviction::Oldest];

/// Trace of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Trace {
    Zipf,
    Scan,
    Etc,
    Sys,
}

/// Options of `sinew kv bench eviction`.
#[derive(clap::Args)]
pub struct Args {
    /// Traces of requests, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "zipf,scan,etc,sys", hide_possible_values = true)]
    traces: Vec<Trace>,
    /// Memory of each cache, in bytes, 1M to 1G, and with --peer from 64M on, in whole megabytes. Its index is part of
    /// the table's memory; memcached's is not part of what it is given
    #[arg(long, default_value = "64M", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Keys of zipf, etc and sys for each item that fits, 2 to 64
    #[arg(long, default_value_t = 4, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(2..=64))]
    keys_per_item: u8,
    /// Length of each value of zipf and scan, in bytes, at most 4064
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = parse_size)]
    value_size: usize,
    /// Seed from which the traces are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Start memcached, with one thread, and send it the same traces
    #[arg(long)]
    peer: bool,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// A workload, under its name.
struct Case {
    name: &'static str,
    workload: Workload,
    /// Approximate number of items that fit.
    items: usize,
}

impl Case {
    /// `keys` maps the number of items that fit to the number of keys.
    fn new(
        name: &'static str,
        workload: Workload,
        memory_bytes: usize,
        keys: impl Fn(usize) -> usize,
    ) -> anyhow::Result<Self> {
        const SAMPLE: u64 = 10_000;
        let sample: usize = (0..SAMPLE).map(|key| workload.sizes.of(key).next_multiple_of(8)).sum();
        let items = memory_bytes / (INDEX_BYTES + ITEM_HEADER + KEY_LEN + sample / SAMPLE as usize);
        let case = Self { name, workload: Workload { keys: keys(items).max(1), ..workload }, items };
        // Beside a scan, every request may ask for a new key.
        let new = if case.workload.order == Order::BesideScan { case.trace_len() } else { 0 };
        let most = case.workload.keys + new;
        ensure!(
            most <= KEYS_MAX,
            "{name} would have up to {most} keys, and at most {KEYS_MAX} are possible: lower --memory or --keys-per-item"
        );
        Ok(case)
    }

    /// Requests of the trace, of which each half is a whole number of stretches.
    fn trace_len(&self) -> usize {
        (REQUESTS_PER_ITEM * self.items).next_multiple_of(2 * STRETCH)
    }
}

/// A measurement to make.
struct EvictionPlan {
    memory_bytes: usize,
    cases: Vec<Case>,
    /// Processor for memcached, if it is measured.
    peer_cpu: Option<Option<usize>>,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<EvictionPlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        ensure!(MEMORY.contains(&self.memory), "--memory can be from 1M to 1G");
        let suits_peer = self.memory >= MEMORY_MIN_OF_PEER && self.memory.is_multiple_of(1 << 20);
        ensure!(!self.peer || suits_peer, "--memory must be whole megabytes, and at least 64M, with --peer");
        ensure!(self.value_size <= VALUE_SIZE_MAX, "--value-size can be up to {VALUE_SIZE_MAX}");
        let many = |items: usize| items * usize::from(self.keys_per_item);
        let mix = |mix: Mix| mix.workload(1, self.value_size, self.seed);
        let scan = Workload {
            keys: 1,
            distribution: Distribution::Uniform,
            get_percent: 100.0,
            order: Order::BesideScan,
            sizes: Sizes::Fixed(self.value_size),
            seed: self.seed,
        };
        let case = |name, workload, keys: &dyn Fn(usize) -> usize| Case::new(name, workload, self.memory, keys);
        let case_of = |trace: &Trace| match trace {
            Trace::Zipf => case("zipf", mix(Mix::YcsbC), &many),
            Trace::Scan => case("scan", scan, &|items| items / 2),
            Trace::Etc => case("etc", mix(Mix::Etc), &many),
            Trace::Sys => case("sys", mix(Mix::Sys), &many),
        };
        // One that is named again has been measured.
        let named = self.traces.iter().enumerate().filter(|(at, trace)| !self.traces[..*at].contains(trace));
        let cases = named.map(|(_, trace)| case_of(trace)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut setting = self.measure.setting((1, usize::from(self.peer)), false)?;
        // It has ended before rates are measured.
        let peer_cpu = std::mem::take(&mut setting.server_cpus).pop().filter(|_| self.peer);
        Ok(EvictionPlan { memory_bytes: self.memory, cases, peer_cpu, setting })
    }
}

/// Measures, and prints the results.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let (figures, text) =
        with_progress(|progress| interrupted::run_interruptible(|interrupt| measure(&plan, interrupt, progress)))?;
    args.measure.show_all(&figures, || text)
}

/// GETs, and how many of them found their key.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    gets: u64,
    hits: u64,
}

impl Hits {
    fn percent(self) -> f64 {
        if self.gets == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.gets as f64 }
    }
}

/// A cache in which each missed key is stored.
trait AskedCache {
    /// Serves some requests of a trace.
    fn serve(&mut self, requests: &[Request], hits: &mut Hits) -> anyhow::Result<()>;
}

/// The table, in this process.
struct Table {
    cache: Cache,
    sizes: Sizes,
    value: Vec<u8>,
    at: usize,
}

impl Table {
    fn new(case: &Case, memory_bytes: usize, eviction: Eviction) -> anyhow::Result<Self> {
        let cache = Cache::new(&CacheConfig {
            items: case.items * 5 / 4,
            memory_bytes: memory_bytes - case.items * INDEX_BYTES,
            value_len_max: case.workload.sizes.max(),
            eviction,
            seed: case.workload.seed,
            ..CacheConfig::default()
        })?;
        Ok(Self { cache, sizes: case.workload.sizes, value: Vec::new(), at: 0 })
    }

    /// Serves requests of `trace`, from the first on and over and over. Returns millions a second.
    fn mops(&mut self, trace: &[Request], duration: Duration) -> anyhow::Result<f64> {
        let (began, mut served, mut hits) = (Instant::now(), 0, Hits::default());
        while began.elapsed() < duration {
            self.at = if self.at + STRETCH > trace.len() { 0 } else { self.at };
            self.serve(&trace[self.at..self.at + STRETCH], &mut hits)?;
            (self.at, served) = (self.at + STRETCH, served + STRETCH);
        }
        Ok(served as f64 / began.elapsed().as_secs_f64() / 1e6)
    }
}

impl AskedCache for Table {
    fn serve(&mut self, requests: &[Request], hits: &mut Hits) -> anyhow::Result<()> {
        let Self { cache, sizes, value, .. } = self;
        for batch in requests.chunks(BATCH) {
            let mut bytes = [[0; KEY_LEN]; BATCH];
            for (bytes, request) in bytes.iter_mut().zip(batch) {
                *bytes = key_bytes(request.key());
            }
            let mut keys = [cache.hasher().key(&bytes[0]); BATCH];
            for (key, bytes) in keys.iter_mut().zip(&bytes[..batch.len()]) {
                *key = cache.hasher().key(bytes);
                cache.prefetch_bucket(key);
            }
            keys[..batch.len()].iter_mut().for_each(|key| cache.prefetch_item(key));
            for (request, key) in batch.iter().zip(&keys) {
                value.resize(sizes.of(request.key()), 0);
                if request.is_get() {
                    hits.gets += 1;
                    if let Some(item) = cache.get(key, NOW_S) {
                        hits.hits += 1;
                        ensure!(item.value_len() == value.len(), "the table gave a value of the wrong length");
                        item.copy_to(value);
                        ensure!(check_value(value, request.key()), "the table gave a wrong value");
                        continue;
                    }
                }
                fill_value(value, request.key(), 0);
                cache.put(key, value, &Put::default(), NOW_S)?;
            }
        }
        Ok(())
    }
}

/// Sends a trace. Returns the hits of its second half.
fn hits_of(
    cache: &mut dyn AskedCache,
    trace: &[Request],
    interrupt: Interrupt,
    progress: &mut dyn FnMut(f64),
) -> anyhow::Result<Hits> {
    let mut hits = Hits::default();
    for (index, requests) in trace.chunks(STRETCH).enumerate() {
        let at = index * STRETCH;
        if at == trace.len() / 2 {
            hits = Hits::default();
        }
        cache.serve(requests, &mut hits)?;
        ensure!(!interrupt.is_set(), Interrupted);
        if index % 64 == 0 {
            progress(at as f64 / trace.len() as f64);
        }
    }
    Ok(hits)
}

/// Both tables of a case, which are the sides.
struct Tables<'a> {
    tables: [Table; 2],
    trace: &'a [Request],
}

impl MeasureSides for Tables<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        self.tables[side].mops(self.trace, duration).map(Some)
    }

    fn reset_sums(&mut self) {}
}

/// Hits of a cache, and the items that it has in the end.
#[derive(Clone, Debug)]
struct Kept {
    name: String,
    hit_percent: f64,
    items: u64,
}

/// What was found of a case.
struct CaseResult {
    /// The tables in the order of [`CHOICES`], and memcached.
    kept: Vec<Kept>,
    measured: Measured,
}

/// Counts hits, and measures rates. `progress` is called with the current activity, and the fraction of it done, from
/// 0 to 1.
fn measure(
    plan: &EvictionPlan,
    interrupt: Interrupt,
    progress: &mut Progress<'_>,
) -> anyhow::Result<(Vec<Figure>, String)> {
    machine::pin(plan.setting.client_cpus[0])?;
    let results: Vec<CaseResult> =
        plan.cases.iter().map(|case| measure_case(plan, case, interrupt, progress)).collect::<anyhow::Result<_>>()?;
    let figures: Vec<Figure> =
        plan.cases.iter().zip(&results).map(|(case, result)| figure(plan, case, result)).collect();
    let text = text_of(plan, &figures, &results);
    Ok((figures, text))
}

fn measure_case(
    plan: &EvictionPlan,
    case: &Case,
    interrupt: Interrupt,
    progress: &mut Progress<'_>,
) -> anyhow::Result<CaseResult> {
    progress(&format!("{}: drawing", case.name), 0.0);
    let trace = case.workload.trace(case.trace_len());
    let mut both = Vec::new();
    let mut kept = Vec::new();
    for eviction in CHOICES {
        let what = format!("{}: {}", case.name, name(eviction));
        let mut table = Table::new(case, plan.memory_bytes, eviction)?;
        let hits = hits_of(&mut table, &trace, interrupt, &mut |part| progress(&what, part))?;
        let items = table.cache.stats().items as u64;
        kept.push(Kept { name: name(eviction).to_owned(), hit_percent: hits.percent(), items });
        both.push(table);
    }
    if let Some(cpu) = plan.peer_cpu {
        let what = format!("{}: memcached", case.name);
        let mut peer = Peer::start(case.workload.sizes, plan.memory_bytes, cpu)?;
        let hits = hits_of(&mut peer, &trace, interrupt, &mut |part| progress(&what, part))
            .with_context(|| peer.name().to_owned())?;
        let items = peer.items().with_context(|| peer.name().to_owned())?;
        kept.push(Kept { name: peer.name().to_owned(), hit_percent: hits.percent(), items });
    }
    let tables = <[Table; 2]>::try_from(both).ok().context("there are two choices")?;
    let run = plan.setting.run(2, [], None, interrupt);
    let measured = run.measure_alternately(2, &mut Tables { tables, trace: &trace }, progress)?;
    Ok(CaseResult { kept, measured })
}

fn name(eviction: Eviction) -> &'static str {
    match eviction {
        Eviction::Oldest => "evicts oldest",
        Eviction::OldestUnread => "spares read",
    }
}

fn figure(plan: &EvictionPlan, case: &Case, result: &CaseResult) -> Figure {
    let title = format!("full cache table, one thread, {}", case.name);
    let figure = result.measured.figure("kv eviction", title, Unit::Mops, 0);
    let what = "the same table, which evicts the oldest item";
    let mut figure = figure.compared_with(&result.measured, 1, Comparison::Baseline, what);
    figure.setup = json!({
        "design": "table",
        "case": case.name,
        "memory_bytes": plan.memory_bytes,
        "workload": workload_json(&case.workload, KEY_LEN),
        "requests": case.trace_len(),
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    let kept = |kept: &Kept| json!({ "server": kept.name, "hit_percent": units::rounded(kept.hit_percent), "items": kept.items });
    figure.details = json!({ "sides": result.kept.iter().map(kept).collect::<Vec<_>>() });
    figure
}

fn text_of(plan: &EvictionPlan, figures: &[Figure], results: &[CaseResult]) -> String {
    let mut heads = vec!["hits:", "spares read", "evicts oldest"];
    heads.extend(plan.peer_cpu.map(|_| "memcached"));
    heads.extend(["spares read, M/s", "evicts oldest, M/s", "ratio"]);
    let rows = plan.cases.iter().zip(figures).zip(results).map(|((case, figure), result)| {
        let mut row = vec![case.name.to_owned()];
        row.extend(result.kept.iter().map(|kept| format!("{:.1} %", kept.hit_percent)));
        let rates = [0, 1].map(|side| units::figure(units::median(&result.measured.slices(side))));
        row.extend(rates.into_iter().chain([figure.ratio().map(units::figure).unwrap_or_default()]));
        row
    });
    let table = table::of(&heads, rows, table::FIGURES);
    let memory = units::size(plan.memory_bytes);
    let mut lines = vec![format!(
        "Each cache has {memory}. Hits are those of the second half of a trace. The rates are requests a second, with \
         the PUTs of what was missed; their ratio is the price of sparing what was read."
    )];
    let peer = results.first().and_then(|result| result.kept.get(CHOICES.len()));
    lines.extend(peer.map(|peer| {
        format!(
            "The peer is {}, with one thread: of {} it keeps {}, the table {}.",
            peer.name,
            plan.cases[0].name,
            units::counted(peer.items, "item"),
            results[0].kept[0].items
        )
    }));
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}
