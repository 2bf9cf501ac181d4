//! A workload's report for people: tables that fit a terminal.

use sinew_lab::workload::{GroupReport, Report};

use crate::table;
use sinew_harness::units::{self, counted};

/// The whole report. `what` says what was run.
pub fn of(what: &str, report: &Report) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut parts = vec![format!(
        "{what}, seed {}:\n{} ms after {} ms of warm-up (and {:.3} ms to open all sessions)\n",
        report.seed,
        ms(report.duration_ns),
        ms(report.warm_up_ns),
        ms(report.opened_ns)
    )];
    let rows = |of: fn(&GroupReport) -> Vec<String>| report.groups.iter().map(of);
    parts.push(table::of(
        &["clients", "sessions", "goodput", "calls", "p50", "p99", "p99.9"],
        rows(calls),
        table::FIGURES,
    ));
    parts.push(String::new());
    let heads = ["clients", "RTT p50", "RTT p99", "rates, Gbps", "cores at work", "servers'"];
    parts.push(table::of(&heads, rows(times), table::FIGURES));
    parts.push(String::new());
    if !report.queues.is_empty() {
        let queue = |queue: &sinew_lab::workload::Queue| {
            vec![queue.port.clone(), bytes(queue.max_bytes as f64), bytes(queue.mean_bytes)]
        };
        parts.push(table::of(&["queue", "most", "mean"], report.queues.iter().map(queue), table::FIGURES));
        parts.push(String::new());
    }
    parts.extend(report.groups.iter().filter_map(trouble));
    let Report { delivered, lost, corrupted, marked, pauses, .. } = report;
    parts.push(format!(
        "{} arrived, {lost} {} lost, {corrupted} corrupted, {marked} marked; {}",
        counted(*delivered, "packet"),
        if *lost == 1 { "was" } else { "were" },
        counted(*pauses, "pause")
    ));
    parts.extend(report.drops.iter().map(|drops| format!("  {} lost: {}", drops.packets, drops.place)));
    let fault = |fault: &sinew_lab::workload::FaultReport| {
        format!("  {} to {} ms: {}", ms(fault.start_ns), ms(fault.stop_ns), fault.name)
    };
    parts.extend(report.faults.iter().map(fault));
    parts.push(format!("trace {:016x}", report.trace_hash));
    parts.join("\n")
}

fn calls(group: &GroupReport) -> Vec<String> {
    let goodput = format!("{} Gbps", units::figure(group.goodput_gbps));
    let latency = group.latency.map(|it| [it.p50_ns, it.p99_ns, it.p999_ns].map(time));
    let head = [group.name.clone(), group.sessions.to_string(), goodput, group.calls.to_string()];
    head.into_iter().chain(latency.unwrap_or_default()).collect()
}

fn times(group: &GroupReport) -> Vec<String> {
    let rtt = group.rtt.map(|it| [it.p50_ns, it.p99_ns].map(time)).unwrap_or_default();
    let rates = group.rates_gbps.map(|[low, _, high]| [low, high].map(units::figure).join(" to "));
    let cores = group.cores_at_work.map(|part| format!("{:.0} %", part * 100.0));
    [group.name.clone()].into_iter().chain(rtt).chain([rates.unwrap_or_default()]).chain(cores).collect()
}

/// Failures of a group, if there were any.
fn trouble(group: &GroupReport) -> Option<String> {
    let all = [
        (group.failed, "call", " failed"),
        (group.retransmissions, "retransmission", ""),
        (group.sessions_lost as u64, "session", " lost"),
    ];
    let some = all.iter().filter(|(count, ..)| *count > 0);
    let some: Vec<String> = some.map(|(count, what, how)| format!("{}{how}", counted(*count, what))).collect();
    (!some.is_empty()).then(|| format!("{}: {}", group.name, some.join(", ")))
}

fn time(ns: u64) -> String {
    units::time(ns as f64)
}

fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes:.0} B"),
        bytes if bytes < 1e6 => format!("{} KB", units::figure(bytes / 1e3)),
        bytes => format!("{} MB", units::figure(bytes / 1e6)),
    }
}
