//! A workload's report as an HTML page.

use super::report::{GroupReport, Percentiles, Report};
use crate::html::{MarkedSpan, Panel, escaped, page, panels, paragraph, table, tiles};
use sinew_harness::units::{self, figure};

/// Most panels of a kind that are drawn, so that a page for thousands of groups stays readable.
const PANELS_MAX: usize = 24;
const TIME: &str = "time since all sessions are open, ms";

/// A self-contained HTML file with tables, and plots over virtual time. `what` says what was run, and `warnings` where
/// it may not be what its reader expects.
pub fn html(what: &str, report: &Report, warnings: &[String]) -> String {
    let mut body = front(what, report, warnings);
    let times_ms: Vec<f64> = report.series.times_ns.iter().map(|ns| ms(*ns)).collect();
    let shades = shades(report);
    let mut section = |head: &str, sentence: &str, all: Vec<Panel>| {
        if all.is_empty() {
            return;
        }
        body.push_str(&format!("<h2>{}</h2>{}", escaped(head), paragraph(sentence)));
        if all.len() > PANELS_MAX {
            body.push_str(&paragraph(&format!("The first {PANELS_MAX} of {} are drawn.", all.len())));
        }
        body.push_str(&panels(TIME, &times_ms, &all[..all.len().min(PANELS_MAX)], &shades));
    };
    section(
        "Goodput",
        "Goodput of each group of clients in each interval: data of requests and responses that arrived, without \
         headers. Each panel has a scale of its own.",
        goodput(report),
    );
    section(
        "Queues",
        "The most bytes that waited for a port in each interval, for the deepest queues: a queue that fills shows \
         where the network lacks capacity.",
        queues(report),
    );
    section(
        "Rates of sessions",
        "Rates that congestion control allows each session: the line is the median of a group's sessions, and the band \
         reaches from the lowest to the highest.",
        rates(report),
    );
    body.push_str(&tables(report));
    page("A workload on a simulated cluster", &body)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn front(what: &str, report: &Report, warnings: &[String]) -> String {
    let goodput: f64 = report.groups.iter().map(|group| group.goodput_gbps).sum();
    let (calls, failed) =
        report.groups.iter().fold((0, 0), |(calls, failed), group| (calls + group.calls, failed + group.failed));
    let mut text = paragraph(&format!(
        "{what}. Figures cover {} ms after {} ms of warm-up, which began when all sessions were open, after {:.3} ms.",
        ms(report.duration_ns),
        ms(report.warm_up_ns),
        ms(report.opened_ns)
    ));
    for warning in warnings {
        text.push_str(&format!("<p class=\"bad\">{}</p>", escaped(warning)));
    }
    text.push_str(&tiles(&[
        ("goodput of all clients", format!("{} Gbps", figure(goodput))),
        ("calls answered", calls.to_string()),
        ("calls that failed", failed.to_string()),
        ("packets lost, of those that were sent", format!("{} of {}", report.lost, report.lost + report.delivered)),
    ]));
    let Report { seed, trace_hash, corrupted, marked, pauses, .. } = report;
    text.push_str(&format!(
        "<p class=\"soft\">Seed {seed}, trace {trace_hash:016x}: equal seeds have equal traces. Packets \
         corrupted: {corrupted}; marked because of a long queue: {marked}. Senders were asked to pause {}.</p>",
        units::counted(*pauses, "time")
    ));
    let warm = if report.warm_up_ns > 0 { "<i class=\"warm\"></i>warm-up, not counted" } else { "" };
    let fault = if report.faults.is_empty() { "" } else { "<i class=\"fault\"></i>a fault on a link" };
    if !warm.is_empty() || !fault.is_empty() {
        text.push_str(&format!("<p class=\"key\">In all plots:{}{warm}{fault}</p>", " "));
    }
    for fault in &report.faults {
        let (from, to) = (ms(fault.start_ns), ms(fault.stop_ns));
        text.push_str(&format!("<p class=\"key\">{from} to {to} ms: {}</p>", escaped(&fault.name)));
    }
    text
}

fn shades(report: &Report) -> Vec<MarkedSpan> {
    let warm = MarkedSpan { name: "warm-up".to_owned(), from: 0.0, to: ms(report.warm_up_ns), is_fault: false };
    let faults = report.faults.iter().map(|fault| MarkedSpan {
        name: fault.name.clone(),
        from: ms(fault.start_ns),
        to: ms(fault.stop_ns),
        is_fault: true,
    });
    [warm].into_iter().filter(|warm| warm.to > 0.0).chain(faults).collect()
}

/// The values after the warm-up.
fn counted<'a, T>(report: &'a Report, values: &'a [T]) -> &'a [T] {
    let first = report.series.times_ns.partition_point(|time_ns| *time_ns <= report.warm_up_ns);
    values.get(first..).unwrap_or_default()
}

/// The range of values, in words, since all flat lines look alike.
fn range(values: impl Iterator<Item = f64> + Clone, unit: &str) -> String {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let [least, most] = [least.min(most), most].map(figure);
    if least == most { format!("{most} {unit} throughout") } else { format!("{least} to {most} {unit}") }
}

fn goodput(report: &Report) -> Vec<Panel> {
    let groups = report.groups.iter().zip(&report.series.goodput_gbps);
    let panel = |(group, values): (&GroupReport, &Vec<f64>)| Panel {
        name: group.name.clone(),
        unit: "Gbps",
        summary: format!(
            "{} Gbps in the mean, {}",
            figure(group.goodput_gbps),
            range(counted(report, values).iter().copied(), "Gbps")
        ),
        lines: vec![values.clone()],
    };
    groups.map(panel).collect()
}

fn queues(report: &Report) -> Vec<Panel> {
    let drawn = report.queues.iter().zip(&report.series.queues_bytes);
    let panel = |(queue, bytes): (&super::Queue, &Vec<u64>)| Panel {
        name: queue.port.clone(),
        unit: "KB that wait",
        summary: format!(
            "{} KB at most, {} in the mean",
            figure(queue.max_bytes as f64 / 1e3),
            figure(queue.mean_bytes / 1e3)
        ),
        lines: vec![bytes.iter().map(|bytes| *bytes as f64 / 1e3).collect()],
    };
    drawn.map(panel).collect()
}

fn rates(report: &Report) -> Vec<Panel> {
    let groups = report.groups.iter().zip(&report.series.rates_gbps);
    let panel = |(group, rates): (&GroupReport, &Vec<[f64; 3]>)| Panel {
        name: group.name.clone(),
        unit: "Gbps for each session",
        summary: range(counted(report, rates).iter().flatten().copied(), "Gbps"),
        lines: [0, 1, 2].map(|at| rates.iter().map(|rates| rates[at]).collect()).to_vec(),
    };
    groups.map(panel).collect()
}

fn tables(report: &Report) -> String {
    let us = |percentiles: Option<Percentiles>| {
        let times = percentiles.map(|it| [it.p50_ns, it.p99_ns, it.p999_ns]);
        times.map_or_else(|| vec![String::new(); 3], |times| times.map(|ns| figure(ns as f64 / 1e3)).to_vec())
    };
    let rows = |of: &dyn Fn(&GroupReport) -> Vec<String>| -> Vec<Vec<String>> {
        let row = |group: &GroupReport| [vec![group.name.clone()], of(group)].concat();
        report.groups.iter().map(row).collect()
    };
    let calls = rows(&|group| {
        let counts = [group.calls, group.failed, group.retransmissions, group.sessions_lost as u64];
        let head = vec![group.sessions.to_string(), figure(group.goodput_gbps)];
        [head, counts.map(|count| count.to_string()).to_vec()].concat()
    });
    let times = rows(&|group| [us(group.latency), us(group.rtt)[..2].to_vec()].concat());
    let cores = rows(&|group| group.cores_at_work.map(|part| format!("{:.0}", part * 100.0)).to_vec());
    let mut text = String::from("<h2>Figures</h2>");
    let mut part = |sentence: &str, heads: &[&str], rows: &[Vec<String>]| {
        if !rows.is_empty() {
            text.push_str(&(paragraph(sentence) + &table(heads, rows)));
        }
    };
    part(
        "What each group of clients did.",
        &["clients", "sessions", "goodput, Gbps", "calls", "failed", "sent again", "sessions lost"],
        &calls,
    );
    part(
        "Times of calls, and round trips of packets, in microseconds: half of them took no longer than p50, and 99 of \
         100 no longer than p99.",
        &["clients", "calls p50", "p99", "p99.9", "round trips p50", "p99"],
        &times,
    );
    part(
        "Share of time that cores worked, in per cent; they poll for the rest of it.",
        &["clients", "clients' cores", "servers' cores"],
        &cores,
    );
    let queues: Vec<Vec<String>> = report
        .queues
        .iter()
        .map(|queue| vec![queue.port.clone(), figure(queue.max_bytes as f64 / 1e3), figure(queue.mean_bytes / 1e3)])
        .collect();
    part("The deepest queues, in KB.", &["port", "most", "mean"], &queues);
    let drops: Vec<Vec<String>> =
        report.drops.iter().map(|drops| vec![drops.place.clone(), drops.packets.to_string()]).collect();
    part("Where packets were lost.", &["place", "packets"], &drops);
    text
}

#[cfg(test)]
mod tests {
    use sinew_sim::Topology;

    use super::*;
    use crate::workload::{Workload, run};

    const HOSTILE: &str = r#"warm_up_ms = 0.1
duration_ms = 0.3
[congestion]
algorithm = "timely"
[[clients]]
name = "<script>alert('&\"')</script>"
hosts = "node1"
servers = "node0"
request_bytes = 5000
response_bytes = 32
[[faults]]
link = ["node0", "switch"]
from_ms = 0.2
until_ms = 0.25
"#;

    #[test]
    fn a_page_has_all_plots_needs_nothing_else_and_takes_names_for_text() {
        let topology = Topology::star(2, 10.0, 100, 1500);
        let report = run(&topology, &Workload::parse(HOSTILE, &topology).unwrap(), 1, &mut |_| true).unwrap();
        let page = html("a <file>", &report, &["a <warning>".to_owned()]);
        assert_eq!(page.matches("<svg").count(), 1 + report.series.queues_bytes.len() + 1, "goodput, queues, rates");
        assert!(
            !page.contains("<script") && !page.contains("src=") && !page.contains("href=") && !page.contains("url(")
        );
        assert!(page.contains("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;"));
        assert!(page.contains("a &lt;file&gt;") && page.contains("a &lt;warning&gt;"));
        assert!(
            page.contains("0.2 to 0.25 ms: link of node0 and switch: down") && page.contains("class=\"warm\" title")
        );
        for head in ["<h2>Goodput</h2><p>", "<h2>Queues</h2><p>", "<h2>Rates of sessions</h2><p>"] {
            assert!(page.contains(head), "{head}: what a plot shows is said above it");
        }
    }

    #[test]
    fn values_that_stay_are_said_to() {
        assert_eq!(range([25.0, 25.0].into_iter(), "Gbps"), "25.0 Gbps throughout");
        assert_eq!(range([25.0, 1.0].into_iter(), "Gbps"), "1.00 to 25.0 Gbps");
        assert_eq!(range([].into_iter(), "Gbps"), "0.00 Gbps throughout");
    }
}
