//! Figures, tables and CSV of measurements.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew_harness::Measured;
use sinew_harness::load::verbs::{EchoForm, Op, VerbsPlan, WorkKind, name};
use sinew_harness::{Figure, Unit, figure, units};

use super::device::VerbsFabric;
use super::kind::Kind;
use super::limit::Meter;
use crate::{output, table};

/// Findings of all slices so far, the warm-up included.
pub struct VerbsTotals {
    /// Messages of each link.
    pub made: Vec<u64>,
    /// Requests, or echoes, that are over.
    pub done: u64,
    /// Messages lost on an unreliable transport.
    pub lost: u64,
    /// Messages, results and echoes that were checked; of WRITEs the last in each place, after each slice.
    pub checked: u64,
    /// Latency of requests in ns, without the warm-up.
    pub latency: Histogram<u64>,
}

/// Parameters of a measurement.
pub struct Setup<'a> {
    pub kind: Kind,
    pub plan: &'a VerbsPlan,
    pub fabric: VerbsFabric,
    pub device: &'a str,
    pub client_cpus: &'a [Option<usize>],
    pub seconds: f64,
}

/// The figure of a measurement.
pub fn figure(setup: &Setup<'_>, measured: &Measured, meter: Option<&Meter>, found: VerbsTotals) -> Figure {
    let Setup { kind, plan, .. } = *setup;
    let figure = measured.figure(format!("verbs {}", kind.name()), setup.title(), kind.unit(plan), 0);
    let mut figure = match meter {
        Some(meter) => figure.compared_with(measured, 1, meter.comparison, meter.what),
        None => figure,
    };
    let len = plan.message_len() as f64;
    let mops = match (figure.unit, figure.value) {
        (Unit::Gbps, Some(gbps)) => Some(gbps / (8e-3 * len)),
        (Unit::Mops, value) => value,
        _ => None,
    };
    let mb_per_s = (kind == Kind::Bandwidth).then(|| mops.unwrap_or(0.0) * 1e6 * len / f64::from(1 << 20));
    if let (Some(mb_per_s), Some(mops)) = (mb_per_s, mops) {
        let [mb_per_s, mops] = [mb_per_s, mops].map(units::figure);
        figure.lines.push(format!("{mb_per_s} MB/s, {mops} M messages/s per client thread"));
    }
    if figure.unit != Unit::Ns {
        let left = if plan.knows_arrivals() {
            ""
        } else {
            "; messages sent are counted, since nobody reports the arrival of plain WRITEs over UC"
        };
        figure.lines.push(format!("{} in flight on each queue pair{left}", plan.window));
    }
    let how = match plan.work {
        WorkKind::Load(Op::Write) => ": the last in each place, after each slice",
        WorkKind::Load(Op::WriteImm) => ": the last in each place, after each slice; the immediate of each",
        _ => "",
    };
    let lost = if found.lost > 0 { format!("; {} lost", found.lost) } else { String::new() };
    figure.lines.push(format!("{} checked{how}{lost}", found.checked));
    figure.latency = matches!(kind, Kind::Latency | Kind::Echo).then_some(found.latency);
    figure.setup = json!(plan);
    if let Value::Object(fields) = &mut figure.setup {
        fields.retain(|key, _| !["work", "fresh", "starts_together", "mix", "inbound_threads"].contains(&&key[..]));
    }
    figure.setup["op"] = setup.what().into();
    figure.setup["fabric"] = setup.fabric.name().into();
    figure.setup["device"] = setup.device.into();
    figure.setup["size"] = plan.message_len().into();
    figure.setup["seconds"] = setup.seconds.into();
    figure.setup["client_cpus"] = json!(setup.client_cpus);
    figure.details = json!({
        "messages": found.done,
        "checked": found.checked,
        "lost": found.lost,
        "counted": if plan.knows_arrivals() { "arrived" } else { "left" },
        "rate_mops": mops.map(units::rounded),
        "total_mops": mops.map(|mops| units::rounded(mops * plan.sides().0 as f64)),
        "mb_per_s": mb_per_s.map(units::rounded),
    });
    figure
}

impl Setup<'_> {
    /// Operation of the requests, as on the command line.
    fn what(&self) -> String {
        match self.plan.work {
            WorkKind::Load(op) => name(op),
            // Operations whose latency is half of this echo.
            WorkKind::Echo(EchoForm::Ww | EchoForm::Ws) if self.kind == Kind::Latency => name(Op::Write),
            WorkKind::Echo(EchoForm::Ss) if self.kind == Kind::Latency => name(Op::Send),
            WorkKind::Echo(EchoForm::Imm) if self.kind == Kind::Latency => name(Op::WriteImm),
            WorkKind::Echo(form) => name(form),
        }
    }

    fn title(&self) -> String {
        let (kind, plan) = (self.kind.name(), self.plan);
        let objects = if plan.reads > 1 { format!("objects of {} READs", plan.reads) } else { self.what() };
        let shape = match plan.sides() {
            (1, 1) => String::new(),
            (clients, servers) => format!(", {} to {servers}", units::counted(clients, "client thread")),
        };
        let size = units::size(plan.message_len());
        format!("{kind} of {objects} on {} over {}, {size}{shape}", name(plan.carrier), self.fabric.name())
    }
}

/// A column of a table of several sizes: its head on the screen, its name in CSV, and its value as shown and as a plain
/// number.
type Column = (&'static str, &'static str, fn(&Figure) -> (String, String));

fn number(value: Option<f64>) -> (String, String) {
    value.map_or_else(Default::default, |value| (units::figure(value), units::rounded(value).to_string()))
}

fn whole(value: &Value) -> (String, String) {
    (value.to_string(), value.to_string())
}

fn percentile(figure: &Figure, quantile: f64) -> (String, String) {
    let value = figure.percentile_ns(quantile);
    value.map_or_else(Default::default, |ns| (units::time(ns), ns.to_string()))
}

const RATES: [Column; 2] = [
    ("Mmsg/s", "mops", |figure| number(figure.details["rate_mops"].as_f64())),
    ("messages", "messages", |figure| whole(&figure.details["messages"])),
];
const BANDWIDTHS: [Column; 4] = [
    ("MB/s", "mb_per_s", |figure| number(figure.details["mb_per_s"].as_f64())),
    ("Gbps", "gbps", |figure| number(figure.value)),
    RATES[0],
    RATES[1],
];
const TIMES: [Column; 5] = [
    ("min", "min_ns", |figure| percentile(figure, 0.0)),
    ("typical", "p50_ns", |figure| percentile(figure, 0.5)),
    ("p99", "p99_ns", |figure| percentile(figure, 0.99)),
    ("p99.9", "p999_ns", |figure| percentile(figure, 0.999)),
    ("max", "max_ns", |figure| percentile(figure, 1.0)),
];

fn columns(figures: &[Figure]) -> Vec<Column> {
    let (own, limit) = match figures.first().map(|figure| figure.unit) {
        Some(Unit::Ns) => (&TIMES[..], "limit_ns"),
        Some(Unit::Gbps) => (&BANDWIDTHS[..], "limit_gbps"),
        _ => (&RATES[..], "limit_mops"),
    };
    let size: Column = ("#bytes", "bytes", |figure| whole(&figure.setup["size"]));
    let judged: [Column; 3] = [
        ("limit", limit, |figure| {
            let value = figure.compared.as_ref().and_then(|beside| beside.value);
            (value.map_or_else(|| "-".to_owned(), |_| figure.compared_text()), number(value).1)
        }),
        ("ratio", "ratio", |figure| number(figure.ratio())),
        ("valid", "valid", |figure| {
            let text = if figure.is_valid() { "yes" } else { "NO" };
            (text.to_owned(), figure.is_valid().to_string())
        }),
    ];
    [&[size], own, &judged].concat()
}

/// Several sizes as a table like perftest's.
pub fn table(figures: &[Figure]) -> String {
    let columns = columns(figures);
    let heads: Vec<&str> = columns.iter().map(|(head, ..)| *head).collect();
    let rows = figures.iter().map(|figure| columns.iter().map(|(.., value)| value(figure).0).collect());
    let table = table::of(&heads, rows, table::FIGURES);
    let Some(first) = figures.first() else { return table };
    let size = first.setup["size"].as_u64().map(|size| format!(", {}", units::size(size as usize))).unwrap_or_default();
    let mut lines = vec![first.title.replacen(&size, "", 1)];
    lines
        .extend(first.compared.as_ref().map(|beside| format!("limit: {} ({})", beside.what, beside.comparison.name())));
    lines.extend(figure::complaints(figures));
    let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    format!("{table}\n{}", lines.join("\n"))
}

/// Several sizes as CSV: plain numbers in the units that the heads name.
pub fn csv(figures: &[Figure]) -> String {
    let columns = columns(figures);
    let head = columns.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(",");
    let row = |figure: &Figure| columns.iter().map(|(.., value)| value(figure).1).collect::<Vec<_>>().join(",");
    std::iter::once(head).chain(figures.iter().map(row)).collect::<Vec<_>>().join("\n")
}
