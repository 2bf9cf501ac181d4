//! A workload's report as a page.

use super::report::{Percentiles, Report};
use crate::html::{PlotError, escaped, lines, page, table};

/// One HTML file with tables, and plots over virtual time, which needs nothing beside it. `what` says what was run, for its reader.
///
/// # Errors
///
/// [`PlotError`].
pub fn html(what: &str, report: &Report) -> Result<String, PlotError> {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut body = format!(
        "<p>{}. Counted: {} ms after {} ms of warm-up; all sessions were open after {:.3} ms. Seed {}, trace {:016x}. \
         {} packets arrived, {} were lost, {} corrupted.</p>",
        escaped(what),
        ms(report.duration_ns),
        ms(report.warm_up_ns),
        ms(report.opened_ns),
        report.seed,
        report.trace_hash,
        report.delivered,
        report.lost,
        report.corrupted
    );
    let us = |percentiles: Option<Percentiles>| {
        let times = percentiles.map(|it| [it.p50_ns, it.p99_ns, it.p999_ns]);
        times.map_or_else(|| vec![String::new(); 3], |times| times.map(|ns| format!("{:.1}", ns as f64 / 1e3)).to_vec())
    };
    let groups: Vec<Vec<String>> = report
        .groups
        .iter()
        .map(|group| {
            let counts = [group.calls, group.failed, group.retransmissions].map(|count| count.to_string());
            let head = [group.name.clone(), group.sessions.to_string(), format!("{:.2}", group.goodput_gbps)];
            let cores = group.cores_at_work.map(|part| format!("{:.0}", part * 100.0));
            [head.to_vec(), counts.to_vec(), us(group.latency), us(group.rtt)[..2].to_vec(), cores.to_vec()].concat()
        })
        .collect();
    body.push_str(&table(
        &[
            "clients",
            "sessions",
            "goodput, Gbps",
            "calls",
            "failed",
            "sent again",
            "latency p50, us",
            "p99",
            "p99.9",
            "round trip p50, us",
            "p99",
            "clients' cores at work, %",
            "servers'",
        ],
        &groups,
    ));
    let series = &report.series;
    let times_ms: Vec<f64> = series.times_ns.iter().map(|ns| ms(*ns)).collect();
    let names = || report.groups.iter().map(|group| group.name.clone());
    let goodput: Vec<(String, Vec<f64>)> = names().zip(series.goodput_gbps.iter().cloned()).collect();
    body.push_str("<h2>Goodput</h2>");
    body.push_str(&lines("Gbps", &times_ms, &goodput)?);

    body.push_str("<h2>Queues</h2><p>The most that waited for a port in each interval, of the deepest.</p>");
    let queues: Vec<Vec<String>> = report
        .queues
        .iter()
        .map(|queue| {
            vec![
                queue.port.clone(),
                format!("{:.1}", queue.max_bytes as f64 / 1e3),
                format!("{:.1}", queue.mean_bytes / 1e3),
            ]
        })
        .collect();
    let drawn = report.queues.iter().zip(&series.queues_bytes);
    let drawn: Vec<(String, Vec<f64>)> = drawn
        .map(|(queue, bytes)| (queue.port.clone(), bytes.iter().map(|bytes| *bytes as f64 / 1e3).collect()))
        .collect();
    body.push_str(&lines("KB", &times_ms, &drawn)?);
    body.push_str(&table(&["port", "most, KB", "mean, KB"], &queues));
    if !report.drops.is_empty() {
        let drops: Vec<Vec<String>> =
            report.drops.iter().map(|drops| vec![drops.place.clone(), drops.packets.to_string()]).collect();
        body.push_str("<h2>Lost packets</h2>");
        body.push_str(&table(&["place", "packets"], &drops));
    }
    if !series.rates_gbps.is_empty() {
        body.push_str("<h2>Rates of sessions</h2><p>As congestion control sets them.</p>");
        for (name, rates) in names().zip(&series.rates_gbps) {
            let of = |at: usize| rates.iter().map(|rates| rates[at]).collect();
            let series =
                [("lowest", 0), ("median", 1), ("highest", 2)].map(|(what, at)| (format!("{name}, {what}"), of(at)));
            body.push_str(&lines("Gbps", &times_ms, &series)?);
        }
    }
    Ok(page("A workload on a simulated cluster", &body))
}
