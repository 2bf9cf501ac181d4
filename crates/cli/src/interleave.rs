//! `sinew interleave`: measures lookups that overlap their cache misses.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;
use sinew::host::Interrupt;
use sinew_harness::lookups::{
    Chase, Form, Ipv4, Ipv6, Lookups, Mica, Names, Numbers, RandomLines, TRACE, Trace, WIDTH_MAX,
};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::units::parse_count;
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, figure, machine, units};

use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, output, table};

const HELP: &str = "\
One thread looks up keys drawn in advance: interleaved, plain, and with group prefetching written by hand, by turns in
the same run; every result is compared. Beside them stand random cache lines, prefetched and read as many at a time,
in as much memory as the table takes: the rate of accesses that the machine allows.

  chase   chains of 100 dependent accesses in a permutation; the figure counts
          accesses
  cuckoo  numbers in a 2-8 cuckoo table
  ipv4    random addresses in a DIR-24-8 table (64 MB, which a large cache may
          hold)
  ipv6    addresses of the table's random prefixes of 48 to 64 bits
  names   names with a prefix in the table (NDN)
  mica    GETs of the cache's table, 16 B keys and 32 B values

Interleaving pays where tables are larger than the last-level cache: choose --entries so that they are. Thresholds
apply to the interleaved form of each table.

Examples:
  sinew interleave bench
  sinew interleave bench chase cuckoo --width 16 --json";

/// The commands about interleaved lookups.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure lookups: interleaved, plain, and with group prefetching by hand
    #[command(after_help = HELP)]
    #[command(mut_arg("pin", |arg| arg.help("Processor to pin the measuring thread to [default: the first one]")))]
    Bench(Args),
}

/// Table to look up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    Chase,
    Cuckoo,
    Ipv4,
    Ipv6,
    Names,
    Mica,
}

impl Table {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Default number of entries, more than the caches of most machines hold.
    fn entries(self) -> usize {
        match self {
            Self::Chase => 1 << 28,
            Self::Cuckoo => 40_000_000,
            Self::Ipv4 => 500_000,
            Self::Ipv6 => 200_000,
            Self::Names => 10_000_000,
            Self::Mica => 8_000_000,
        }
    }

    fn entries_max(self) -> usize {
        match self {
            Self::Chase => 1 << 32,
            Self::Ipv4 => 2_000_000,
            Self::Ipv6 => 800_000,
            Self::Cuckoo | Self::Names | Self::Mica => 1 << 30,
        }
    }
}

/// Dependent accesses of a chain.
const DEPTH: usize = 100;
/// Chains drawn in advance: fewer than keys, since each is long.
const CHAINS: usize = TRACE / 8;

/// Options of `sinew interleave bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Tables to look up in [default: all]
    #[arg(value_enum)]
    tables: Vec<Table>,
    /// Entries of each table, as in 8M; for chase, numbers of 4 bytes, rounded up to a power of two [default: chase
    /// 268435456, cuckoo 40M, ipv4 500K, ipv6 200K, names 10M, mica 8M]
    #[arg(long, value_parser = parse_count)]
    entries: Option<usize>,
    /// Lookups in flight at a time, 1 to 64
    #[arg(long, default_value = "32", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=WIDTH_MAX as i64))]
    width: u8,
    #[command(flatten)]
    measure: MeasureArgs,
}

struct Plan {
    tables: Vec<(Table, usize)>,
    width: usize,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        self.measure.check_thresholds(Unit::Mops)?;
        let mut tables = Vec::new();
        let all = if self.tables.is_empty() { Table::value_variants() } else { &self.tables };
        for table in all {
            let entries = self.entries.unwrap_or(table.entries());
            let (name, max) = (table.name(), table.entries_max());
            ensure!((1..=max).contains(&entries), "--entries of {name} can be 1 to {max}");
            let entries = if *table == Table::Chase { entries.next_power_of_two() } else { entries };
            tables.push((*table, entries));
        }
        Ok(Plan { tables, width: self.width.into(), setting: self.measure.setting((1, 0), false)? })
    }
}

/// Runs the benchmark.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let Command::Bench(args) = command;
    let plan = args.plan().map_err(Usage::of)?;
    let figures = with_progress(|progress| measure(&plan, progress))?;
    args.measure.show_all(&figures, || text_of(&figures))
}

fn measure(plan: &Plan, progress: &mut Progress<'_>) -> anyhow::Result<Vec<Figure>> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    machine::pin(plan.setting.client_cpus[0])?;
    let mut figures = Vec::new();
    for (table, entries) in &plan.tables {
        progress(&format!("filling {}", table.name()), 0.0);
        let measuring = Measuring { plan, table: *table, entries: *entries, interrupt };
        figures.push(match table {
            Table::Chase => measuring.figure(Chase::new(*entries, DEPTH), CHAINS, progress),
            Table::Cuckoo => measuring.figure(Numbers::new(*entries)?, TRACE, progress),
            Table::Ipv4 => measuring.figure(Ipv4::new(*entries)?, TRACE, progress),
            Table::Ipv6 => measuring.figure(Ipv6::new(*entries)?, TRACE, progress),
            Table::Names => measuring.figure(Names::new(*entries)?, TRACE, progress),
            Table::Mica => measuring.figure(Mica::new(*entries)?, TRACE, progress),
        }?);
    }
    Ok(figures)
}

struct Measuring<'a> {
    plan: &'a Plan,
    table: Table,
    entries: usize,
    interrupt: Interrupt,
}

/// Index of the last side, random lines; the forms come before it, in their order.
const LINES: usize = Form::ALL.len();
const PLAIN: usize = 1;
const GROUPED: usize = 2;

struct Sides<L: Lookups> {
    trace: Trace<L>,
    lines: RandomLines,
    width: usize,
}

impl<L: Lookups> MeasureSides for Sides<L> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        Ok(Some(match Form::ALL.get(side) {
            Some(form) => self.trace.mops(*form, self.width, duration)?,
            None => self.lines.mops(self.width, duration),
        }))
    }
}

impl Measuring<'_> {
    fn figure<L: Lookups>(&self, lookups: L, keys: usize, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
        let (plan, bytes) = (self.plan, lookups.bytes());
        ensure!(!self.interrupt.is_set(), Interrupted);
        let lines = RandomLines::new(bytes)?;
        ensure!(!self.interrupt.is_set(), Interrupted);
        let mut sides = Sides { trace: Trace::new(lookups, keys), lines, width: plan.width };
        let run = plan.setting.run(1, [], None, self.interrupt);
        let measured = run.measure_alternately(LINES + 1, &mut sides, progress)?;
        Ok(self.figure_of(&measured, bytes))
    }

    fn figure_of(&self, measured: &Measured, bytes: usize) -> Figure {
        let name = self.table.name();
        let title = format!("{name}, {} at once", self.plan.width);
        let figure = measured.figure("interleave bench", title, Unit::Mops, 0);
        let mut figure = figure.compared_with(measured, PLAIN, Comparison::Baseline, "the plain form");
        let times = |ours, theirs| measured.median_ratio(ours, theirs).map(units::rounded);
        let mops = |side| {
            let slices = measured.slices(side);
            (!slices.is_empty()).then(|| units::rounded(units::median(&slices)))
        };
        figure.setup = json!({ "table": name, "entries": self.entries, "width": self.plan.width });
        figure.details = json!({
            "plain_mops": mops(PLAIN),
            "grouped_mops": mops(GROUPED),
            "lines_mops": mops(LINES),
            "times_plain": times(0, PLAIN),
            "times_grouped": times(0, GROUPED),
            "grouped_times_lines": times(GROUPED, LINES),
            "memory_bytes": bytes,
        });
        figure
    }
}

fn text_of(figures: &[Figure]) -> String {
    let heads = ["table", "memory", "plain", "interleaved", "by hand", "lines", "x plain", "x by hand"];
    let rows = figures.iter().map(|figure| {
        let detail = |name: &str| figure.details[name].as_f64().map(units::figure).unwrap_or_default();
        vec![
            figure.setup["table"].as_str().unwrap_or_default().to_owned(),
            units::size(figure.details["memory_bytes"].as_u64().unwrap_or(0) as usize >> 20 << 20),
            detail("plain_mops"),
            figure.value.map(units::figure).unwrap_or_default(),
            detail("grouped_mops"),
            detail("lines_mops"),
            detail("times_plain"),
            detail("times_grouped"),
        ]
    });
    let table = table::of(&heads, rows, table::FIGURES);
    let width = figures.first().map(|figure| figure.setup["width"].to_string()).unwrap_or_default();
    let mut lines = vec![format!(
        "Millions of lookups (chase: accesses) a second, {width} at once. 'By hand' is group prefetching; 'lines' are random cache lines in as much memory."
    )];
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}
