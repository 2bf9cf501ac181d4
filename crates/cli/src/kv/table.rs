//! `sinew kv bench table`: the table of the cache, without a network.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rand::RngExt;
use serde_json::json;
use sinew::host::Interrupt;
use sinew::mem::TableWords;
use sinew::store::cache::{Cache, CacheConfig, CacheStats, Key, KnownKey, Pipeline, Put};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::workload::{self, KEY_LEN, KEYS_MAX, Request, Workload, check_value, fill_value, key_bytes};
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, figure, histogram, machine, units};

use super::workload::{WorkloadArgs, workload_json, workload_text};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, output, table};

pub const HELP: &str = "\
Fills the table of the cache. Then one thread serves a trace of requests drawn in advance: one at a time, in batches
whose cache misses overlap, and in a pipeline, in which the misses of one request overlap with the service of others.
Every value found is copied out and checked, in full if 16 bytes or longer. The limit is what the memory allows: the
rate of pairs of random cache lines, one of the index and one of the items, read in the same way from a table as
large, with nothing else done.

There is a result for each batch size, and one for the pipeline, to which thresholds apply.

Example: sinew kv bench table --keys 8M --get 95 --dist uniform --json";

/// Largest batch of requests.
const BATCH_MAX: usize = 64;
/// Longest value, in bytes.
const VALUE_SIZE_MAX: usize = 4096;
/// Requests drawn in advance.
const TRACE: usize = 1 << 22;
/// Requests between readings of the clock.
const STRETCH: usize = 4096;
/// Time that the table is given, in seconds: nothing expires here.
const NOW_S: u32 = 1;
/// Words of a cache line.
const LINE: usize = 8;
/// Requests in the pipeline.
const PIPELINE: usize = 32;

/// The way in which requests are served, or pairs of lines read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// In batches of this many.
    Batch(usize),
    Pipeline,
}

impl Form {
    /// The form, for titles.
    fn text(self) -> String {
        match self {
            Self::Batch(size) => format!("batches of {size}"),
            Self::Pipeline => format!("a pipeline of {PIPELINE}"),
        }
    }

    /// Requests that are under way at a time.
    fn width(self) -> usize {
        match self {
            Self::Batch(size) => size,
            Self::Pipeline => PIPELINE,
        }
    }

    /// Number of requests between two readings of the clock.
    fn stretch(self) -> usize {
        STRETCH / self.width() * self.width()
    }
}

/// Options of `sinew kv bench table`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Sizes of the batches in which requests are served, 1 to 64, separated by commas; one result for each
    #[arg(long, value_delimiter = ',', default_value = "1,8,16,32", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u8).range(1..=BATCH_MAX as i64))]
    batch: Vec<u8>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// A measurement to make.
struct TablePlan {
    workload: Workload,
    value_size: usize,
    /// Batches in ascending order of their sizes, and the pipeline.
    forms: Vec<Form>,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<TablePlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        let value_size = self.workload.value_size;
        ensure!(value_size <= VALUE_SIZE_MAX, "--value-size can be up to {VALUE_SIZE_MAX}");
        let mut batches: Vec<usize> = self.batch.iter().map(|batch| usize::from(*batch)).collect();
        batches.sort_unstable();
        batches.dedup();
        let forms = batches.into_iter().map(Form::Batch).chain([Form::Pipeline]).collect();
        let workload = self.workload.workload(8_000_000, KEYS_MAX)?;
        Ok(TablePlan { workload, value_size, forms, setting: self.measure.setting((1, 0), false)? })
    }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let (figures, text) = with_progress(|progress| measure(&plan, progress))?;
    args.measure.show_all(&figures, || text)
}

/// A table that is served, and memory that is read, in several forms: two sides for each form.
struct TableSides<'a> {
    forms: &'a [Form],
    server: Server<'a>,
    limit: Limit,
    /// Latency of one request in ns, for each form.
    latencies: Vec<Histogram<u64>>,
}

impl MeasureSides for TableSides<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let (at, is_limit) = (side / 2, side % 2 == 1);
        let form = self.forms[at];
        Ok(Some(match is_limit {
            true => self.limit.mops(form, duration),
            false => self.server.mops(form, duration, &mut self.latencies[at])?,
        }))
    }

    fn reset_sums(&mut self) {
        self.latencies.iter_mut().for_each(Histogram::reset);
    }
}

/// Fills a table and measures. `progress` is called with the current activity, and the fraction of it done, from 0 to
/// 1.
fn measure(plan: &TablePlan, progress: &mut Progress<'_>) -> anyhow::Result<(Vec<Figure>, String)> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    machine::pin(plan.setting.client_cpus[0])?;
    let keys = plan.workload.keys;
    let item = 2 * 8 + KEY_LEN + plan.value_size.next_multiple_of(8);
    let mut cache = Cache::new(&CacheConfig {
        items: keys,
        // With all items in its younger half, the log changes them in place, and evicts none.
        memory_bytes: 2 * item * keys + (1 << 20),
        value_len_max: VALUE_SIZE_MAX,
        seed: plan.workload.seed,
        ..CacheConfig::default()
    })?;
    let mut value = vec![0; plan.value_size];
    let hasher = cache.hasher().clone();
    for key in 0..keys as u64 {
        let bytes = key_bytes(key);
        fill_value(&mut value, key, 0);
        cache.put(&hasher.key(&bytes), &value, &Put::default(), NOW_S)?;
        if key % (1 << 16) == 0 {
            ensure!(!interrupt.is_set(), Interrupted);
            progress("filling the table", key as f64 / keys as f64);
        }
    }
    let trace = plan.workload.trace(TRACE);
    let (batch, pipeline) = (Vec::with_capacity(BATCH_MAX), Pipeline::default());
    let server = Server { cache, trace: &trace, at: 0, round: 0, value, requests: 0, batch, pipeline };
    let latencies = plan.forms.iter().map(|_| histogram()).collect();
    let mut turns = TableSides { forms: &plan.forms, server, limit: Limit::new(keys, item)?, latencies };
    let sides = 2 * plan.forms.len();
    let run = plan.setting.run(sides, [], None, interrupt);
    let measured = run.measure_alternately(sides, &mut turns, progress)?;
    let TableSides { server, latencies, .. } = turns;
    let stats = server.cache.stats();
    let figure = |(at, latency)| figure(plan, &measured, at, latency, &stats);
    let figures: Vec<Figure> = latencies.into_iter().enumerate().map(figure).collect();
    let text = text_of(plan, &figures, &stats);
    Ok((figures, text))
}

fn figure(plan: &TablePlan, measured: &Measured, at: usize, latency: Histogram<u64>, stats: &CacheStats) -> Figure {
    let form = plan.forms[at];
    let title = format!("cache table, one thread, {}", form.text());
    let figure = measured.figure("kv table", title, Unit::Mops, 2 * at);
    let what = "pairs of random cache lines, read in the same way";
    let mut figure = figure.compared_with(measured, 2 * at + 1, Comparison::Limit, what);
    figure.latency = Some(latency);
    figure.setup = json!({
        "design": "table",
        "batch": if let Form::Batch(size) = form { Some(size) } else { None },
        "pipeline": if form == Form::Pipeline { Some(PIPELINE) } else { None },
        "workload": workload_json(&plan.workload, KEY_LEN),
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.details = json!({
        "hit_percent": units::rounded(hit_percent(stats)),
        "items": stats.items,
        "item_bytes": stats.item_bytes,
        "index_bytes": stats.index_bytes,
        "huge_pages_percent": machine::huge_pages_percent().map(units::rounded),
        "gain": if at > 0 && plan.forms[0] == Form::Batch(1) { measured.median_ratio(2 * at, 0).map(units::rounded) } else { None },
    });
    figure
}

fn hit_percent(stats: &CacheStats) -> f64 {
    let gets = stats.hits + stats.misses;
    if gets == 0 { 0.0 } else { stats.hits as f64 * 100.0 / gets as f64 }
}

fn text_of(plan: &TablePlan, figures: &[Figure], stats: &CacheStats) -> String {
    let heads = ["batch", "requests", "lowest .. highest", "limit", "ratio", "p50", "p99"];
    let rows = figures.iter().map(|figure| {
        let fold = |pick: fn(f64, f64) -> f64| figure.slices.iter().copied().reduce(pick).unwrap_or(0.0);
        vec![
            figure.setup["batch"].as_u64().map_or_else(|| "pipeline".to_owned(), |batch| batch.to_string()),
            figure.text(),
            format!("{} .. {}", units::figure(fold(f64::min)), units::figure(fold(f64::max))),
            figure.compared_text(),
            figure.ratio().map(units::figure).unwrap_or_default(),
            figure.percentiles_text(&[0.5]),
            figure.percentiles_text(&[0.99]),
        ]
    });
    let table = table::of(&heads, rows, table::FIGURES);
    // Whole megabytes, if there are any.
    let memory = |bytes: usize| units::size(if bytes < 1 << 20 { bytes } else { bytes >> 20 << 20 });
    let mut lines = vec![
        format!("{}; {:.1} % of the GETs hit.", workload_text(&plan.workload, KEY_LEN), hit_percent(stats)),
        format!(
            "Items take {}, their index {}{}.",
            memory(stats.item_bytes),
            memory(stats.index_bytes),
            machine::huge_pages_percent()
                .map_or_else(String::new, |huge| format!("; {huge:.0} % of all is on huge pages"))
        ),
        "The limit is pairs of random cache lines, read in the same way; p50 and p99 are for one request.".to_owned(),
    ];
    lines.extend(
        figures
            .last()
            .and_then(|figure| figure.details["gain"].as_f64())
            .map(|gain| format!("The pipeline gains {gain:.1} times over one request at a time.")),
    );
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}

/// Serves the requests of a trace, over and over.
struct Server<'a> {
    cache: Cache,
    trace: &'a [Request],
    at: usize,
    round: u64,
    value: Vec<u8>,
    requests: u64,
    /// Keys of the batch that is being served.
    batch: Vec<([u8; KEY_LEN], KnownKey)>,
    pipeline: Pipeline<Request, PIPELINE>,
}

impl Server<'_> {
    fn mops(&mut self, form: Form, duration: Duration, latency: &mut Histogram<u64>) -> anyhow::Result<f64> {
        let began = Instant::now();
        let (mut served, stretch, width) = (0, form.stretch(), form.width());
        while began.elapsed() < duration {
            if self.at + stretch > self.trace.len() {
                self.at = 0;
                self.round += 1;
            }
            let requests = &self.trace[self.at..self.at + stretch];
            self.at += stretch;
            // The first batch of a stretch is timed.
            let first = Instant::now();
            let mut good = self.serve(form, &requests[..width]);
            latency.saturating_record(first.elapsed().as_nanos() as u64 / width as u64);
            good &= match form {
                Form::Pipeline => self.serve(form, &requests[width..]),
                Form::Batch(_) => {
                    requests[width..].chunks_exact(width).fold(true, |good, batch| self.serve(form, batch) & good)
                }
            };
            ensure!(good, "the table gave a wrong value");
            served += stretch;
        }
        while let Some((known, request)) = self.pipeline.pop(&self.cache) {
            let bytes = key_bytes(request.key());
            ensure!(self.serve_one(request, &known.with_bytes(&bytes)), "the table gave a wrong value");
        }
        self.requests += served as u64;
        Ok(served as f64 / began.elapsed().as_secs_f64() / 1e6)
    }

    #[inline(always)]
    fn serve(&mut self, form: Form, requests: &[Request]) -> bool {
        match form {
            Form::Batch(_) => self.serve_batch(requests),
            Form::Pipeline => self.serve_pipelined(requests),
        }
    }

    /// Takes requests into the pipeline, and serves those that come out. Returns whether all values were right.
    fn serve_pipelined(&mut self, requests: &[Request]) -> bool {
        let mut good = true;
        for request in requests {
            let bytes = key_bytes(request.key());
            let key = self.cache.hasher().key(&bytes);
            if let Some((known, request)) = self.pipeline.push(&self.cache, &key, *request) {
                let bytes = key_bytes(request.key());
                good &= self.serve_one(request, &known.with_bytes(&bytes));
            }
        }
        good
    }

    /// Serves a batch. Returns whether all values were right.
    #[inline(always)]
    fn serve_batch(&mut self, requests: &[Request]) -> bool {
        if let [request] = requests {
            let bytes = key_bytes(request.key());
            let key = self.cache.hasher().key(&bytes);
            return self.serve_one(*request, &key);
        }
        let Self { cache, batch, .. } = self;
        batch.clear();
        for request in requests {
            let bytes = key_bytes(request.key());
            let key = cache.hasher().key(&bytes);
            cache.prefetch_bucket(&key);
            batch.push((bytes, key.known()));
        }
        for (bytes, known) in batch.iter_mut() {
            let mut key = known.with_bytes(bytes);
            cache.prefetch_item(&mut key);
            *known = key.known();
        }
        let mut good = true;
        for (at, request) in requests.iter().enumerate() {
            let (bytes, known) = self.batch[at];
            good &= self.serve_one(*request, &known.with_bytes(&bytes));
        }
        good
    }

    #[inline(always)]
    fn serve_one(&mut self, request: Request, key: &Key<'_>) -> bool {
        if request.is_get() {
            let Some(item) = self.cache.get(key, NOW_S) else { return true };
            if item.value_len() != self.value.len() {
                return false;
            }
            item.copy_to(&mut self.value);
            check_value(&self.value, request.key())
        } else {
            fill_value(&mut self.value, request.key(), self.round);
            self.cache.put(key, &self.value, &Put::default(), NOW_S).is_ok()
        }
    }
}

/// Memory as large as the table's, whose lines are read at random.
struct Limit {
    index: TableWords,
    items: TableWords,
    lines: Vec<[u32; 2]>,
}

impl Limit {
    fn new(keys: usize, item: usize) -> anyhow::Result<Self> {
        // The index has 16 bytes for each item.
        let lines = |bytes: usize| (bytes / 64).max(1);
        let (index_lines, item_lines) = (lines(keys * 16), lines(keys * item));
        let memory = |lines: usize| -> anyhow::Result<TableWords> {
            let words = TableWords::zeroed(lines * LINE).context("memory for the limit")?;
            (0..lines).for_each(|line| words.store(line * LINE, line as u64));
            Ok(words)
        };
        let mut random = workload::random(2);
        let mut line = |lines: usize| random.random_range(0..lines as u64) as u32;
        let lines = (0..TRACE).map(|_| [line(index_lines), line(item_lines)]).collect();
        Ok(Self { index: memory(index_lines)?, items: memory(item_lines)?, lines })
    }

    /// Reads pairs of lines for `duration`. Returns millions a second.
    fn mops(&self, form: Form, duration: Duration) -> f64 {
        let began = Instant::now();
        let (mut read, mut at, mut sum, stretch) = (0usize, 0, 0u64, form.stretch());
        while began.elapsed() < duration {
            at = if at + stretch > self.lines.len() { 0 } else { at };
            let pairs = &self.lines[at..at + stretch];
            match form {
                Form::Batch(size) => {
                    pairs.chunks_exact(size).for_each(|batch| sum = sum.wrapping_add(self.batch(batch)))
                }
                Form::Pipeline => sum = sum.wrapping_add(self.pipeline(at, pairs.len())),
            }
            at += stretch;
            read += stretch;
        }
        black_box(sum);
        read as f64 / began.elapsed().as_secs_f64() / 1e6
    }

    #[inline(always)]
    fn batch(&self, batch: &[[u32; 2]]) -> u64 {
        let [index, items] = [0, 1].map(|which| batch.iter().map(move |pair| pair[which] as usize * LINE));
        if batch.len() > 1 {
            index.clone().for_each(|line| self.index.prefetch_line(line));
            items.clone().for_each(|line| self.items.prefetch_line(line));
        }
        index.zip(items).fold(0, |sum, (index, item)| sum.wrapping_add(self.pair(index, item)))
    }

    /// Reads `count` pairs from `at` on, each after its lines were prefetched as [`Pipeline`] does.
    fn pipeline(&self, at: usize, count: usize) -> u64 {
        let line = |at: usize, which: usize| self.lines.get(at).map_or(0, |pair| pair[which] as usize * LINE);
        (at..at + count).fold(0, |sum, at| {
            self.index.prefetch_line(line(at + PIPELINE, 0));
            self.items.prefetch_line(line(at + PIPELINE / 2, 1));
            sum.wrapping_add(self.pair(line(at, 0), line(at, 1)))
        })
    }

    #[inline(always)]
    fn pair(&self, index: usize, item: usize) -> u64 {
        // The second load waits for the first, as it does in a table.
        let found = self.index.load(index);
        self.items.load(item + (found >> 63) as usize)
    }
}
