//! The table of the cache, measured alone.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use rand::RngExt;
use serde_json::{Value, json};
use sinew::host::Interrupt;
use sinew::mem::Words;
use sinew::store::cache::{Cache, CacheConfig, CacheStats, Key, Put};

use crate::bench::Judged;
use crate::client::histogram;
use crate::others::{self, Others, Watch};
use crate::workload::{self, KEY_LEN, Request, Workload, check_value, fill_value, key_bytes};
use crate::{machine, units};

/// Requests that are served together at most.
pub const BATCH_MAX: usize = 64;
/// The longest value.
pub const VALUE_SIZE_MAX: usize = 4096;
/// Slices of a measurement: as many of the limit, in turn.
const SLICES: usize = 5;
/// Requests that are drawn ahead.
const TRACE: usize = 1 << 22;
/// Requests between looks at the clock.
const STRETCH: usize = 4096;
/// The clock that the table is handed: nothing expires here.
const NOW_S: u32 = 1;
/// Words of a cache line.
const LINE: usize = 8;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workload: Workload,
    pub value_size: usize,
    /// In ascending order.
    pub batches: Vec<usize>,
    /// Of each batch size.
    pub duration: Duration,
    pub cpu: Option<usize>,
}

/// What came of one size of batches.
struct Row {
    batch: usize,
    ours: Vec<f64>,
    limits: Vec<f64>,
    /// Of one request, in nanoseconds.
    latency: Histogram<u64>,
}

/// What came of it.
pub struct Figures {
    plan: Plan,
    rows: Vec<Row>,
    requests: u64,
    stats: CacheStats,
    /// Who else used the processor.
    others: Others,
}

/// Fills a table and measures. `progress` hears what is done, and how much of it, from 0 to 1.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&'static str, f64)) -> anyhow::Result<Figures> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    machine::pin(plan.cpu)?;
    let keys = plan.workload.keys;
    let item = 2 * 8 + KEY_LEN + plan.value_size.next_multiple_of(8);
    let mut cache = Cache::new(&CacheConfig {
        items: keys,
        // None is to be lost for want of memory.
        memory_bytes: item * keys + (1 << 20),
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
            ensure!(!interrupt.is_set(), "interrupted");
            progress("filling the table", key as f64 / keys as f64);
        }
    }
    let trace = plan.workload.trace(TRACE);
    let limit = Limit::new(keys, item)?;
    let mut rows: Vec<Row> = plan
        .batches
        .iter()
        .map(|batch| Row { batch: *batch, ours: Vec::new(), limits: Vec::new(), latency: histogram() })
        .collect();
    let mut server = Server { cache, trace: &trace, at: 0, round: 0, value, requests: 0 };
    let slice = plan.duration / SLICES as u32;
    let steps = SLICES * rows.len();
    let watch = Watch::new(others::cpus(std::iter::once(&plan.cpu)), None);
    for step in 0..steps {
        progress("measuring", step as f64 / steps as f64);
        let row = &mut rows[step % plan.batches.len()];
        row.limits.push(limit.mops(row.batch, slice));
        row.ours.push(server.mops(row.batch, slice, &mut row.latency)?);
        ensure!(!interrupt.is_set(), "interrupted");
    }
    let others = watch.end();
    Ok(Figures { plan: plan.clone(), rows, requests: server.requests, stats: server.cache.stats(), others })
}

/// Serves requests of a trace, again and again.
struct Server<'a> {
    cache: Cache,
    trace: &'a [Request],
    at: usize,
    round: u64,
    value: Vec<u8>,
    requests: u64,
}

impl Server<'_> {
    fn mops(&mut self, batch: usize, duration: Duration, latency: &mut Histogram<u64>) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut served = 0;
        while began.elapsed() < duration {
            let stretch = STRETCH / batch * batch;
            if self.at + stretch > self.trace.len() {
                self.at = 0;
                self.round += 1;
            }
            let requests = &self.trace[self.at..self.at + stretch];
            self.at += stretch;
            // The first batch of a stretch is timed.
            let first = Instant::now();
            let mut good = self.serve(&requests[..batch]);
            latency.saturating_record(first.elapsed().as_nanos() as u64 / batch as u64);
            for batch in requests[batch..].chunks_exact(batch) {
                good &= self.serve(batch);
            }
            ensure!(good, "the table gave a wrong value");
            served += stretch;
        }
        self.requests += served as u64;
        Ok(served as f64 / began.elapsed().as_secs_f64() / 1e6)
    }

    /// Serves a batch; returns whether all values were right.
    #[inline(always)]
    fn serve(&mut self, requests: &[Request]) -> bool {
        if let [request] = requests {
            let bytes = key_bytes(request.key());
            let key = self.cache.hasher().key(&bytes);
            return self.serve_one(*request, &key);
        }
        let mut bytes = [[0; KEY_LEN]; BATCH_MAX];
        for (bytes, request) in bytes.iter_mut().zip(requests) {
            *bytes = key_bytes(request.key());
        }
        let mut keys = [self.cache.hasher().key(&bytes[0]); BATCH_MAX];
        let (bytes, keys) = (&bytes[..requests.len()], &mut keys[..requests.len()]);
        for (key, bytes) in keys.iter_mut().zip(bytes) {
            *key = self.cache.hasher().key(bytes);
            self.cache.prefetch_bucket(key);
        }
        for key in keys.iter_mut() {
            self.cache.prefetch_item(key);
        }
        let mut good = true;
        for (key, request) in keys.iter().zip(requests) {
            good &= self.serve_one(*request, key);
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

/// Memory as large as the table's, of which lines are read at random.
struct Limit {
    index: Words,
    items: Words,
    lines: Vec<[u32; 2]>,
}

impl Limit {
    fn new(keys: usize, item: usize) -> anyhow::Result<Self> {
        // The index has 16 bytes for each item.
        let lines = |bytes: usize| (bytes / 64).max(1);
        let (index_lines, item_lines) = (lines(keys * 16), lines(keys * item));
        let memory = |lines: usize| -> anyhow::Result<Words> {
            let words = Words::zeroed(lines * LINE).context("memory for the limit")?;
            (0..lines).for_each(|line| words.store(line * LINE, line as u64));
            Ok(words)
        };
        let mut random = workload::random(2);
        let mut line = |lines: usize| random.random_range(0..lines as u64) as u32;
        let lines = (0..TRACE).map(|_| [line(index_lines), line(item_lines)]).collect();
        Ok(Self { index: memory(index_lines)?, items: memory(item_lines)?, lines })
    }

    /// Pairs of lines that are read, in millions per second.
    fn mops(&self, batch: usize, duration: Duration) -> f64 {
        let began = Instant::now();
        let (mut read, mut at, mut sum) = (0usize, 0, 0u64);
        while began.elapsed() < duration {
            let stretch = STRETCH / batch * batch;
            at = if at + stretch > self.lines.len() { 0 } else { at };
            for batch in self.lines[at..at + stretch].chunks_exact(batch) {
                let [index, items] = [0, 1].map(|which| batch.iter().map(move |pair| pair[which] as usize * LINE));
                if batch.len() > 1 {
                    index.clone().for_each(|line| self.index.prefetch_line(line));
                    items.clone().for_each(|line| self.items.prefetch_line(line));
                }
                for (index, item) in index.zip(items) {
                    // The second waits for the first, as it does in a table.
                    let found = self.index.load(index);
                    sum = sum.wrapping_add(self.items.load(item + (found >> 63) as usize));
                }
            }
            at += stretch;
            read += stretch;
        }
        black_box(sum);
        read as f64 / began.elapsed().as_secs_f64() / 1e6
    }
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        let limit = units::median(&self.limits);
        (limit > 0.0).then(|| units::median(&self.ours) / limit)
    }

    fn extremes(&self) -> [f64; 2] {
        let fold = |pick: fn(f64, f64) -> f64| self.ours.iter().copied().reduce(pick).unwrap_or(0.0);
        [fold(f64::min), fold(f64::max)]
    }

    fn json(&self) -> Value {
        let [min, max] = self.extremes().map(units::rounded);
        json!({
            "batch": self.batch,
            "rate_mops": units::rounded(units::median(&self.ours)),
            "min_mops": min,
            "max_mops": max,
            "limit_mops": units::rounded(units::median(&self.limits)),
            "ratio": self.ratio().map(units::rounded),
            "p50_ns": self.latency.value_at_quantile(0.5),
            "p99_ns": self.latency.value_at_quantile(0.99),
        })
    }
}

impl Figures {
    fn largest(&self) -> Option<&Row> {
        self.rows.last()
    }

    /// The largest batch over batches of one.
    fn gain(&self) -> Option<f64> {
        let [first, last] = [self.rows.first()?, self.largest()?];
        let single = units::median(&first.ours);
        (first.batch == 1 && last.batch > 1 && single > 0.0).then(|| units::median(&last.ours) / single)
    }

    fn hit_percent(&self) -> f64 {
        let gets = self.stats.hits + self.stats.misses;
        if gets == 0 { 0.0 } else { self.stats.hits as f64 * 100.0 / gets as f64 }
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        let figure = self.largest().map(|row| units::median(&row.ours));
        Judged { name: "rate_mops", figure, ratio: self.largest().and_then(Row::ratio), valid: self.others.are_few() }
    }

    pub fn json(&self) -> Value {
        let mut object = self.largest().map(Row::json).unwrap_or_default();
        let workload = &self.plan.workload;
        let rest = json!({
            "design": "table",
            "keys": workload.keys,
            "key_size": KEY_LEN,
            "value_size": self.plan.value_size,
            "get_percent": workload.get_percent,
            "dist": workload.distribution.name(),
            "seed": workload.seed,
            "others_share": self.others.share.map(units::rounded),
            "limit_valid": self.others.are_few(),
            "batches": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "gain": self.gain().map(units::rounded),
            "hit_percent": units::rounded(self.hit_percent()),
            "requests": self.requests,
            "items": self.stats.items,
            "item_bytes": self.stats.used_bytes,
            "index_bytes": self.stats.index_bytes,
        });
        if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
            object.extend(rest);
        }
        object
    }

    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
            "batch",
            "requests, M/s",
            "lowest .. highest",
            "limit, M/s",
            "ratio",
            "p50",
            "p99",
        ]);
        for row in &self.rows {
            let [min, max] = row.extremes().map(units::figure);
            table.add_row([
                row.batch.to_string(),
                units::figure(units::median(&row.ours)),
                format!("{min} .. {max}"),
                units::figure(units::median(&row.limits)),
                row.ratio().map(units::figure).unwrap_or_default(),
                units::time(row.latency.value_at_quantile(0.5) as f64),
                units::time(row.latency.value_at_quantile(0.99) as f64),
            ]);
        }
        let workload = &self.plan.workload;
        let mut text = format!(
            "{table}\n{} keys of {KEY_LEN} B, values of {}, {} % GET, {}; {:.1} % of the GETs hit. Items take {}, their index {}.",
            workload.keys,
            units::size(self.plan.value_size),
            workload.get_percent,
            workload.distribution.name(),
            self.hit_percent(),
            units::size(self.stats.used_bytes >> 20 << 20),
            units::size(self.stats.index_bytes >> 20 << 20),
        );
        if let Some(complaint) = self.others.complaint() {
            let _ = write!(text, "\nINVALID: {complaint}");
        }
        if let Some(gain) = self.gain() {
            let _ = write!(text, "\nBatches gain {gain:.1} times.");
        }
        text
    }
}
