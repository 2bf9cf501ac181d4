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
    Distribution, KEY_LEN, Mix, Order, Request, Sizes, Workload, check_value, fill_value, key_bytes,
};
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, figure, machine, units};

use peer::Peer;

use super::workload::workload_json;
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, interrupted, output, table};

pub const HELP: &str = "\
One thread sends traces of requests to the table of the cache, which is too small for their keys, and stores each key
that it misses. The table evicts what was not read, as it does by default, or the oldest item; with --peer, memcached
with one thread and as much memory for items gets the same traces. Hits are counted in the second half of each trace.
Then both tables alternate, to find the price of sparing what was read. Every value found is checked.

 zipf  keys by a Zipf law with exponent 0.99
 scan  half of the requests for keys of which half would fit, the other half for keys that are asked for once
 etc   Facebook's ETC pool: 95 % GETs, Zipf, values of 1 to 1024 B
 sys   Facebook's SYS pool: 67 % GETs, Zipf, values of 1 to 500 B

Example: sinew kv bench eviction --peer --json";

/// Memory of the caches, in bytes.
const MEMORY: std::ops::RangeInclusive<usize> = 1 << 20..=1 << 34;
/// Requests of a trace for each item that fits.
const LAPS: usize = 16;
/// Bytes that the table takes for an item beside its key and value.
const ITEM_HEADER: usize = 16;
/// Time that the table is given, in seconds: nothing expires here.
const NOW_S: u32 = 1;
/// Requests whose cache misses overlap.
const BATCH: usize = 16;
/// Requests between readings of the clock.
const STRETCH: usize = 256 * BATCH;
/// The table's choices: the default, and what it is compared with.
const CHOICES: [Eviction; 2] = [Eviction::OldestUnread, Eviction::Oldest];

/// Options of `sinew kv bench eviction`.
#[derive(clap::Args)]
pub struct Args {
    /// Memory for the items of each cache, in bytes, 1M to 16G
    #[arg(long, default_value = "64M", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Keys for each item that fits, 1 to 64
    #[arg(long, default_value_t = 4, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=64))]
    keys_per_item: u8,
    /// Length of each value of zipf and scan, in bytes, at most 4096
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
    /// Items that fit, about.
    items: usize,
}

impl Case {
    /// `keys` gives the keys of the workload for the number of items that fit.
    fn new(name: &'static str, workload: Workload, memory_bytes: usize, keys: impl Fn(usize) -> usize) -> Self {
        const SAMPLE: u64 = 10_000;
        let sample: usize = (0..SAMPLE).map(|key| workload.sizes.of(key).next_multiple_of(8)).sum();
        let items = memory_bytes / (ITEM_HEADER + KEY_LEN + sample / SAMPLE as usize);
        Self { name, workload: Workload { keys: keys(items).max(1), ..workload }, items }
    }

    /// Requests of the trace, of which each half is a whole number of stretches.
    fn trace_len(&self) -> usize {
        (LAPS * self.items).next_multiple_of(2 * STRETCH)
    }
}

/// A measurement to make.
struct EvictionPlan {
    memory_bytes: usize,
    cases: Vec<Case>,
    has_peer: bool,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<EvictionPlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        ensure!(MEMORY.contains(&self.memory), "--memory can be from 1M to 16G");
        ensure!(self.value_size <= 4096, "--value-size can be up to 4096");
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
        let cases = vec![
            case("zipf", mix(Mix::YcsbC), &many),
            case("scan", scan, &|items| items / 2),
            case("etc", mix(Mix::Etc), &many),
            case("sys", mix(Mix::Sys), &many),
        ];
        let setting = self.measure.setting((1, usize::from(self.peer)), false)?;
        Ok(EvictionPlan { memory_bytes: self.memory, cases, has_peer: self.peer, setting })
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

/// A cache that is asked, and told what it missed.
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
            // As many as fit on average; the index is not to evict before the memory is full.
            items: case.items * 5 / 4,
            memory_bytes,
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
        if index % 64 == 0 {
            ensure!(!interrupt.is_set(), Interrupted);
            progress(at as f64 / trace.len() as f64);
        }
    }
    Ok(hits)
}

/// Both tables of every case: two sides for each.
struct Tables(Vec<([Table; 2], Vec<Request>)>);

impl MeasureSides for Tables {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let (tables, trace) = &mut self.0[side / 2];
        tables[side % 2].mops(trace, duration).map(Some)
    }

    fn reset_sums(&mut self) {}
}

/// Percentages of hits of a case.
struct CaseHits {
    /// In the order of [`CHOICES`].
    tables: [f64; 2],
    peer: Option<f64>,
}

/// Counts hits, and measures rates. `progress` is called with the current activity, and the fraction of it done, from
/// 0 to 1.
fn measure(
    plan: &EvictionPlan,
    interrupt: Interrupt,
    progress: &mut Progress<'_>,
) -> anyhow::Result<(Vec<Figure>, String)> {
    let setting = &plan.setting;
    let (mut hits, mut tables, mut peer_name) = (Vec::new(), Vec::new(), None);
    for case in &plan.cases {
        let trace = case.workload.trace(case.trace_len());
        let mut of_case = CaseHits { tables: [0.0; 2], peer: None };
        let mut both = Vec::new();
        if plan.has_peer {
            let what = format!("{}: memcached", case.name);
            let mut peer = Peer::start(case.workload.sizes, plan.memory_bytes, setting.server_cpus[0])?;
            let found = hits_of(&mut peer, &trace, interrupt, &mut |part| progress(&what, part))
                .with_context(|| peer.name().to_owned())?;
            of_case.peer = Some(found.percent());
            peer_name = Some(peer.name().to_owned());
        }
        machine::pin(setting.client_cpus[0])?;
        for (eviction, percent) in CHOICES.into_iter().zip(&mut of_case.tables) {
            let what = format!("{}: {}", case.name, name(eviction));
            let mut table = Table::new(case, plan.memory_bytes, eviction)?;
            *percent = hits_of(&mut table, &trace, interrupt, &mut |part| progress(&what, part))?.percent();
            both.push(table);
        }
        let both = <[Table; 2]>::try_from(both).ok().context("there are two choices")?;
        hits.push(of_case);
        tables.push((both, trace));
    }
    let sides = 2 * tables.len();
    let run = setting.run(sides, [], None, interrupt);
    let measured = run.measure_alternately(sides, &mut Tables(tables), progress)?;
    let figures: Vec<Figure> =
        (0..).zip(&hits).map(|(at, hits)| figure(plan, &measured, at, hits, peer_name.as_deref())).collect();
    let text = text_of(plan, &figures, &hits, peer_name.as_deref());
    Ok((figures, text))
}

fn name(eviction: Eviction) -> &'static str {
    match eviction {
        Eviction::Oldest => "the oldest goes",
        Eviction::OldestUnread => "what was read stays",
    }
}

fn figure(plan: &EvictionPlan, measured: &Measured, at: usize, hits: &CaseHits, peer: Option<&str>) -> Figure {
    let case = &plan.cases[at];
    let title = format!("full cache table, one thread, {}", case.name);
    let figure = measured.figure("kv eviction", title, Unit::Mops, 2 * at);
    let what = "the same table, which evicts the oldest item";
    let mut figure = figure.compared_with(measured, 2 * at + 1, Comparison::Baseline, what);
    figure.setup = json!({
        "design": "table",
        "case": case.name,
        "memory_bytes": plan.memory_bytes,
        "workload": workload_json(&case.workload, KEY_LEN),
        "requests": case.trace_len(),
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.details = json!({
        "hit_percent": units::rounded(hits.tables[0]),
        "hit_percent_of_oldest": units::rounded(hits.tables[1]),
        "hit_percent_of_peer": hits.peer.map(units::rounded),
        "peer": peer,
    });
    figure
}

fn text_of(plan: &EvictionPlan, figures: &[Figure], hits: &[CaseHits], peer: Option<&str>) -> String {
    let mut heads = vec!["trace", "read stays: hits", "oldest goes: hits", "read stays", "oldest goes", "ratio"];
    if peer.is_some() {
        heads.insert(3, "memcached: hits");
    }
    let percent = |percent: f64| format!("{percent:.1} %");
    let rows = plan.cases.iter().zip(figures).zip(hits).map(|((case, figure), hits)| {
        let mut row = vec![case.name.to_owned()];
        row.extend(hits.tables.into_iter().chain(hits.peer).map(percent));
        let ratio = figure.ratio().map(units::figure).unwrap_or_default();
        row.extend([figure.text(), figure.compared_text(), ratio]);
        row
    });
    let table = table::of(&heads, rows, table::FIGURES);
    let memory = units::size(plan.memory_bytes);
    let mut lines = vec![format!(
        "Each cache has {memory} for items. Hits are those of the second half of a trace. The rates are requests a \
         second, with the PUTs of what was missed; their ratio is the price of sparing what was read."
    )];
    lines.extend(peer.map(|peer| format!("The peer is {peer}, with one thread.")));
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}
