//! Advice as text for people.

use sinew_harness::units::{self, counted};
use sinew_lab::advise::{Advice, CpuLoad, Goal, Guideline, Ranking, Workload, WorkloadKind};
use sinew_sim::nic::Profile;

use crate::table;

/// Width of the text below the table, in columns.
const WIDTH: usize = table::WIDTH as usize;

/// The workload in words.
fn asked(nic: &Profile, workload: &Workload) -> String {
    let size = units::size(workload.object_bytes);
    let mut text = match workload.kind {
        WorkloadKind::Cache => format!("a cache of items of {size}, {:.0} % GETs", workload.read_share.abs() * 100.0),
        WorkloadKind::Sequencer => "a sequencer".to_owned(),
        WorkloadKind::Locks => counted(workload.locks, "lock"),
        WorkloadKind::Reads if workload.accesses == 1 => format!("single reads of {size}"),
        WorkloadKind::Reads => format!("reads of {size} after {}", counted(workload.accesses - 1, "pointer")),
    };
    if workload.kind == WorkloadKind::Reads && workload.read_share < 1.0 {
        text += &format!(", {:.0} % changes", (1.0 - workload.read_share) * 100.0);
    }
    match workload.goal {
        Goal::Latency => text += ", one operation at a time, at the lowest latency",
        Goal::Throughput => text += &format!(", at the highest throughput of {}", counted(workload.peers, "client")),
    }
    for (side, load) in [("clients", workload.client_cpu), ("the server", workload.server_cpu)] {
        if load == CpuLoad::Busy {
            text += &format!("; {side} busy");
        }
    }
    if workload.bulk {
        text += "; bulk transfers beside";
    }
    if !workload.batches {
        text += "; one request answered at a time";
    }
    format!("{} ({}): {text}", nic.name, nic.title)
}

fn row(goal: Goal, advice: &Advice) -> Vec<String> {
    let outcome = &advice.outcome;
    let time = |of: Option<u64>| of.map_or("-".to_owned(), |ns| units::time(ns as f64));
    let times = outcome.times;
    let cpu = format!("{:.0}+{:.0}", outcome.cpu_ns.0, outcome.cpu_ns.1);
    let first = match goal {
        Goal::Throughput => units::figure(outcome.rate_mops),
        Goal::Latency => time(times.map(|times| times.mean_ns)),
    };
    let (p50, p99) = (time(times.map(|times| times.p50_ns)), time(times.map(|times| times.p99_ns)));
    vec![advice.name.clone(), first, p50, p99, cpu, advice.limit.0.name().into_owned()]
}

fn text_of(guideline: &Guideline) -> String {
    format!("{} ({})", guideline.text, guideline.sections)
}

/// A sentence as a list item, wrapped to fit.
fn item(mark: &str, text: &str) -> String {
    let indent = mark.chars().count() + 1;
    units::wrapped(&format!("{mark} {text}"), WIDTH, indent)
}

/// A table with the best design first, a reason for each design, and the settings of the best.
pub fn of(nic: &Profile, workload: &Workload, Ranking { designs, is_complete }: &Ranking) -> String {
    let first = if workload.goal == Goal::Throughput { "M/s" } else { "mean" };
    let rows = designs.iter().map(|advice| row(workload.goal, advice));
    let table = table::of(&["design", first, "p50", "p99", "CPU, ns", "limit"], rows, table::FIGURES);
    let mut parts = vec![units::wrapped(&asked(nic, workload), WIDTH, 0), table];
    let why = designs.iter().map(|advice| item("-", &format!("{}: {}", advice.name, text_of(&advice.why))));
    parts.push(why.collect::<Vec<_>>().join("\n"));
    if let Some(best) = designs.first() {
        let settings = best.settings.iter().map(|guideline| item("  -", &text_of(guideline)));
        let settings = settings.collect::<Vec<_>>().join("\n");
        parts.push(format!("Recommended: {}\n{settings}", best.name));
        if !is_complete {
            let text = "Time ran out before each design had its best settings: give it more with --seconds.";
            parts.push(units::wrapped(text, WIDTH, 0));
        }
        let warnings = best.trust.warnings.iter().map(|warning| item("  -", warning));
        let level = format!("Confidence in the model: {}", best.trust.level.name());
        parts.push([level].into_iter().chain(warnings).collect::<Vec<_>>().join("\n"));
    }
    parts.push(units::wrapped(
        "CPU: time of a client's core + a server's core for an operation, without polls that find nothing.",
        WIDTH,
        0,
    ));
    parts.join("\n\n")
}
