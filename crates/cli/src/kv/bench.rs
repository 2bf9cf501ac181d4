//! `sinew kv bench`.

use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use super::table::{self, Plan};
use crate::bench::Output;
use crate::units::{parse_count, parse_seconds, parse_size};
use crate::workload::{Distribution, Workload};
use crate::{Outcome, Usage, machine, output};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Design {
    /// The table alone: one thread, no network
    Table,
}

const HELP: &str = "\
`table` fills the table of the cache and has one thread serve a trace of requests drawn ahead. Requests are served one at a
time, and in batches whose cache misses overlap. Every value that is found is copied out and checked, from 16 bytes on in full. The limit is
what the memory allows: as many pairs of random cache lines, one of the index and one of the items, read in batches of the
same size from a table as large, with nothing else done.

JSON: rate_mops, limit_mops, ratio, p50_ns and p99_ns (of one request: a batch's time, divided), all for the largest batch;
batches (the same for each size, with min_mops and max_mops), gain (the largest batch over batches of one), hit_percent.

Example: sinew kv bench --design table --keys 8M --get 95 --dist uniform --json";

/// Measure a design of a key-value store.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// What is measured
    #[arg(long, value_enum, default_value = "table")]
    design: Design,
    /// Keys there are: 8M is 8 million
    #[arg(long, default_value = "8M", allow_negative_numbers = true, value_parser = parse_count)]
    keys: usize,
    /// GETs among a hundred requests; the others are PUTs
    #[arg(long, default_value = "95", value_name = "PERCENT", allow_negative_numbers = true, value_parser = parse_percent)]
    get: f64,
    /// How often each key is asked for
    #[arg(long, value_enum, default_value = "uniform")]
    dist: Distribution,
    /// Bytes of each value
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = parse_size)]
    value_size: usize,
    /// Sizes of batches
    #[arg(long, default_value = "1,8,16,32", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=table::BATCH_MAX as i64))]
    batch: Vec<u32>,
    /// Seconds of measuring each size; the limit takes as long again
    #[arg(long, default_value = "2", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
    /// The processor to use [default: the first]
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    /// Another seed is another trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// The most keys that a trace can name.
const KEYS_MAX: usize = 1 << 31;

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "a percentage from 0 to 100 is needed".to_owned())
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        ensure!((1..=KEYS_MAX).contains(&self.keys), "--keys can be from 1 to {KEYS_MAX}");
        ensure!(self.value_size <= table::VALUE_SIZE_MAX, "--value-size can be up to {}", table::VALUE_SIZE_MAX);
        machine::check_pins(self.pin.as_slice())?;
        let mut batches: Vec<usize> = self.batch.iter().map(|batch| *batch as usize).collect();
        batches.sort_unstable();
        batches.dedup();
        Ok(Plan {
            workload: Workload { keys: self.keys, distribution: self.dist, get_percent: self.get, seed: self.seed },
            value_size: self.value_size,
            batches,
            duration: self.seconds,
            cpu: self.pin.or_else(|| machine::cpus().first().copied()),
        })
    }
}

/// Measures and shows.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let Design::Table = args.design;
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {percent}%").expect("a fixed template"));
    let figures = table::measure(&plan, &mut |what, part| {
        bar.set_message(what);
        bar.set_position((part * 1000.0) as u64);
    });
    bar.finish_and_clear();
    let figures = figures?;
    if args.output.json {
        output::print(figures.json())?;
    } else {
        output::print(figures.text())?;
    }
    Ok(args.output.judge(&figures.judged()))
}
