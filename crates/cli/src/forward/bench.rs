//! `sinew forward bench`: forwarding without ports, with each form of lookup.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;
use sinew::fabric::MAX_BURST;
use sinew::forward::echo::Echo;
use sinew::forward::{Application, Form};
use sinew::host::Interrupt;
use sinew_harness::forwarding::{self, Pipeline};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::units::parse_count;
use sinew_harness::{Comparison, Figure, MeasureSides, Measured, Unit, figure, machine, units};

use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, output, table};

pub const HELP: &str = "\
One thread passes bursts of frames, headers and all, through an application whose table is larger than most last-level
caches. Lookups are interleaved, plain, or with group prefetching written by hand, alternately in the same run, and
the outputs are compared. One more application, echo, looks nothing up and so shows what the rest costs. There are no
ports; before each burst its frames are written anew.

  ipv4    random addresses among routes whose lengths are distributed about as
          in BGP; most lookups take one load, and those of a burst do not depend
          on each other, so a core overlaps them by itself, and the three forms
          are about equal
  ipv6    addresses of the table's random prefixes of 48 to 64 bits
  switch  stations in a cuckoo table
  names   Interests with a prefix in the table (NDN)

Thresholds apply to the interleaved form of each.

Examples:
  sinew forward bench
  sinew forward bench ipv6 names --burst 32 --json";

/// Forwarding application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Ipv4,
    Ipv6,
    Switch,
    Names,
}

impl Kind {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Default number of entries (nsdi15 4; the switch has a third of the paper's stations).
    fn entries(self) -> usize {
        match self {
            Self::Ipv4 => 527_961,
            Self::Ipv6 => 200_000,
            Self::Switch => 20_000_000,
            Self::Names => 10_000_000,
        }
    }

    fn entries_max(self) -> usize {
        match self {
            Self::Ipv4 => 2_000_000,
            Self::Ipv6 => 800_000,
            Self::Switch | Self::Names => 1 << 30,
        }
    }
}

/// Frames drawn in advance.
const FRAMES: usize = 1 << 21;

/// Options of `sinew forward bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Applications to measure [default: all]
    #[arg(value_enum)]
    kinds: Vec<Kind>,
    /// Entries of each table, as in 8M [default: ipv4 527961, ipv6 200K, switch 20M, names 10M]
    #[arg(long, value_parser = parse_count)]
    entries: Option<usize>,
    /// Frames of a burst, which are looked up together, 1 to 64
    #[arg(long, default_value_t = MAX_BURST as u8, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=MAX_BURST as i64))]
    burst: u8,
    #[command(flatten)]
    measure: MeasureArgs,
}

struct Plan {
    tables: Vec<(Kind, usize)>,
    burst: usize,
    setting: Setting,
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        self.measure.check_thresholds(Unit::Mops)?;
        let all = if self.kinds.is_empty() { Kind::value_variants() } else { &self.kinds };
        let mut tables = Vec::new();
        for kind in all {
            let entries = self.entries.unwrap_or(kind.entries());
            let (name, max) = (kind.name(), kind.entries_max());
            ensure!((1..=max).contains(&entries), "--entries of {name} can be 1 to {max}");
            tables.push((*kind, entries));
        }
        Ok(Plan { tables, burst: self.burst.into(), setting: self.measure.setting((1, 0), false)? })
    }
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let figures = with_progress(|progress| measure(&plan, progress))?;
    args.measure.show_all(&figures, || text_of(&figures))
}

/// Measures an IPv4 router for `duration`, for the tour.
pub fn for_tour(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let args: Args = crate::measure::parse_args(&["ipv4", "--entries=200000", "--no-pin"], duration)?;
    measure(&args.plan()?, progress)?.pop().context("nothing was measured")
}

fn measure(plan: &Plan, progress: &mut Progress<'_>) -> anyhow::Result<Vec<Figure>> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    machine::pin(plan.setting.client_cpus[0])?;
    let mut figures = Vec::new();
    for (kind, entries) in &plan.tables {
        progress(&format!("filling {}", kind.name()), 0.0);
        let measuring = Measuring { plan, kind: *kind, entries: *entries, interrupt };
        figures.push(match kind {
            Kind::Ipv4 => measuring.figure(forwarding::ipv4(*entries, FRAMES)?, progress),
            Kind::Ipv6 => measuring.figure(forwarding::ipv6(*entries, FRAMES)?, progress),
            Kind::Switch => measuring.figure(forwarding::switch(*entries, FRAMES)?, progress),
            Kind::Names => measuring.figure(forwarding::names(*entries, FRAMES)?, progress),
        }?);
    }
    Ok(figures)
}

struct Measuring<'a> {
    plan: &'a Plan,
    kind: Kind,
    entries: usize,
    interrupt: Interrupt,
}

const PLAIN: usize = 1;
const GROUPED: usize = 2;
const ECHO: usize = 3;

struct Sides<A> {
    pipeline: Pipeline<A>,
    echo: Pipeline<Echo>,
    /// Interleaved, plain and by hand.
    forms: [Form; ECHO],
    burst: usize,
}

impl<A: Application> MeasureSides for Sides<A> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        Ok(Some(match self.forms.get(side) {
            Some(form) => self.pipeline.mops(*form, self.burst, duration)?,
            None => self.echo.mops(Form::Plain, self.burst, duration)?,
        }))
    }
}

impl Measuring<'_> {
    fn figure<A: Application>(&self, pipeline: Pipeline<A>, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
        let (plan, bytes) = (self.plan, pipeline.table_bytes);
        ensure!(!self.interrupt.is_set(), Interrupted);
        let forms = [Form::interleaved(plan.burst)?, Form::Plain, Form::Grouped];
        let mut sides = Sides { pipeline, echo: forwarding::echo(FRAMES / 16)?, forms, burst: plan.burst };
        let run = plan.setting.run(1, [], None, self.interrupt);
        let measured = run.measure_alternately(ECHO + 1, &mut sides, progress)?;
        Ok(self.figure_of(&measured, bytes))
    }

    fn figure_of(&self, measured: &Measured, bytes: usize) -> Figure {
        let name = self.kind.name();
        let title = format!("{name}, bursts of {}", self.plan.burst);
        let figure = measured.figure("forward bench", title, Unit::Mops, 0);
        let mut figure = figure.compared_with(measured, PLAIN, Comparison::Baseline, "the plain form");
        let times = |ours, theirs| measured.median_ratio(ours, theirs).map(units::rounded);
        let mops = |side| {
            let slices = measured.slices(side);
            (!slices.is_empty()).then(|| units::rounded(units::median(&slices)))
        };
        figure.setup = json!({ "application": name, "entries": self.entries, "burst": self.plan.burst });
        figure.details = json!({
            "plain_mops": mops(PLAIN),
            "grouped_mops": mops(GROUPED),
            "echo_mops": mops(ECHO),
            "times_plain": times(0, PLAIN),
            "times_grouped": times(0, GROUPED),
            "times_echo": times(0, ECHO),
            "memory_bytes": bytes,
        });
        figure
    }
}

/// The lowest and the highest slice.
fn spread(figure: &Figure) -> String {
    let edge =
        |pick: fn(f64, f64) -> f64| figure.slices.iter().copied().reduce(pick).map(units::figure).unwrap_or_default();
    format!("{} - {}", edge(f64::min), edge(f64::max))
}

fn memory(figure: &Figure) -> String {
    units::size(figure.details["memory_bytes"].as_u64().unwrap_or(0) as usize >> 20 << 20)
}

fn detail(figure: &Figure, name: &str) -> String {
    figure.details[name].as_f64().map(units::figure).unwrap_or_default()
}

fn row(figures: &[Figure], name: &str, text: impl Fn(&Figure) -> String) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(figures.iter().map(text)).collect()
}

fn text_of(figures: &[Figure]) -> String {
    // Each application has a column, since a terminal is too narrow for a column of each of its figures.
    let rows = [
        row(figures, "table's memory", memory),
        row(figures, "plain", |figure| detail(figure, "plain_mops")),
        row(figures, "interleaved", |figure| figure.value.map(units::figure).unwrap_or_default()),
        row(figures, "interleaved, spread", spread),
        row(figures, "by hand", |figure| detail(figure, "grouped_mops")),
        row(figures, "echo", |figure| detail(figure, "echo_mops")),
        row(figures, "interleaved / plain", |figure| detail(figure, "times_plain")),
        row(figures, "interleaved / by hand", |figure| detail(figure, "times_grouped")),
    ];
    let heads = [""].into_iter().chain(figures.iter().map(|figure| figure.setup["application"].as_str().unwrap_or("")));
    let table = table::of(&heads.collect::<Vec<_>>(), rows, table::FIGURES);
    let burst = figures.first().map(|figure| figure.setup["burst"].to_string()).unwrap_or_default();
    let mut lines = vec![format!(
        "Millions of frames a second, in bursts of {burst}, without ports. The spread is from the slowest slice to the fastest. 'By hand' is group prefetching; echo looks nothing up."
    )];
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(kind: &Kind) -> Figure {
        let details = json!({
            "plain_mops": 100.0, "grouped_mops": 53.6, "echo_mops": 205.0, "times_plain": 0.82,
            "times_grouped": 0.48, "memory_bytes": 1312u64 << 20,
        });
        Figure {
            bench: "forward bench".to_owned(),
            title: kind.name(),
            value: Some(22.7),
            unit: Unit::Mops,
            slices: vec![43.1, 10.0],
            compared: None,
            latency: None,
            invalid_because: Vec::new(),
            surroundings: None,
            setup: json!({ "application": kind.name(), "burst": 64 }),
            details,
            lines: Vec::new(),
        }
    }

    #[test]
    fn a_terminal_has_room_for_each_heading_and_figure_in_one_piece() {
        let figures: Vec<Figure> = Kind::value_variants().iter().map(figure).collect();
        let text = text_of(&figures);
        let mut rows = text.lines().take_while(|line| !line.starts_with("Millions"));
        assert!(rows.all(|line| line.chars().count() <= usize::from(table::WIDTH)), "{text}");
        for kind in Kind::value_variants() {
            assert!(text.lines().next().is_some_and(|heads| heads.contains(&kind.name())), "{text}");
        }
        let four = |cell: &str| text.lines().any(|line| line.matches(cell).count() == figures.len());
        assert!(["1312 MB", "10.0 - 43.1", "22.7"].into_iter().all(four), "{text}");
        assert!(text.lines().any(|line| line.starts_with(" interleaved / by hand ")), "{text}");
    }
}
