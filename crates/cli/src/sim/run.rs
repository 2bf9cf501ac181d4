//! `sinew sim run`.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sinew_lab::workload::{self, GroupReport, Percentiles, Report, Workload};
use sinew_sim::{FileError, Topology};

use crate::outfile::OutFile;
use sinew_harness::units;

use crate::{Outcome, Usage, output};

const HELP: &str = "\
A topology is a TOML file with switches, hosts and links, such as crates/backends/sim/topologies/cx4.toml and cx5.toml,
which are built in as cx4 and cx5.
A workload is a TOML file:

  warm_up_ms = 10             not counted; it begins when all sessions are open. Default: 0
  duration_ms = 20            counted
  credits = 32                packets that a session may have on their way. Default: 32
  slots = 8                   calls that a session can have going on. Default: 8
  recovery = \"selective\"      what is lost is sent again alone; or \"go-back-n\", the default: and all behind it
  timeout_us = 5000           until packets are sent again. Default: 5000
  timeout = \"fixed\"           for exactly so long; or \"adaptive\", the default: longer where round trips are

  [congestion]                default: none
  algorithm = \"swift\"         or \"timely\", \"dcqcn\" (which needs switches with ecn), \"none\"; each client's link has its own rate.
                              Parameters, if others are wanted: of swift target_us, scaling_us, step_packets, cut, cut_most;
                              of timely low_us, high_us, min_rtt_us, step_mbps, cut, newest, rate_min_mbps, and patched = false for
                              its original form;
                              of dcqcn newest, step_mbps, rate_min_mbps

  [[clients]]                 a group of clients, with endpoints of its own at its servers; there can be several
  name = \"bulk\"
  hosts = { from = \"node1\", count = 20 }        or a name, or a list of names
  endpoints = 1               on each host. Default: 1
  servers = \"node0\"           as hosts; each call goes to one of them by chance
  server_endpoints = 1        on each server. Default: 1
  request_bytes = 8388608     or { from = 32, to = 1000 }, or [{ bytes = 32, weight = 9 }, { bytes = 4096, weight = 1 }]
  response_bytes = 32         as request_bytes
  window = 1                  calls that an endpoint has going on; at most, where they come by the clock
  calls_per_s = 20000         by the clock: calls of an endpoint, at random times. Default: each follows another
  start_ms = 0                from the beginning of the warm-up. Default: 0
  stop_ms = 30                default: the end

Goodput is data of requests and responses that arrived. Cores poll whenever they are not at work. Queues are what waited for a link: `most` since the warm-up, and
`mean` of the moments since then, of 200 in all, at which everything is looked at.

Examples:
  sinew sim run cx4 --workload crates/lab/workloads/incast.toml
  sinew sim run my.toml --workload mine.toml --seed 7 --out mine.html";

/// What to run.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The topology: a TOML file, or cx4 or cx5, which are built in
    topology: String,
    /// The workload: a TOML file
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// What all chance follows from: equal seeds have equal results
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Also write one HTML file with plots over virtual time, which needs nothing beside it; what the file held before stays until then
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it, and shows.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let topology = match &*args.topology {
        "cx4" => Topology::cx4(),
        "cx5" => Topology::cx5(),
        file => read(Path::new(file), |text| Ok(Topology::parse(text)?))?,
    };
    let workload = read(&args.workload, |text| Ok(Workload::parse(text, &topology)?))?;
    let out = args.out.as_deref().map(OutFile::check).transpose()?;
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {percent}%  {elapsed}").expect("a fixed template"));
    let result = workload::run(&topology, &workload, args.seed, &mut |part| {
        bar.set_position((part * 1000.0) as u64);
        true
    });
    bar.finish_and_clear();
    let report = result?;
    let what = format!("{} on {}", args.workload.display(), args.topology);
    if args.json {
        output::print(json_of(&report))?;
    } else {
        output::print(text_of(&what, &report))?;
    }
    if let Some(out) = out {
        let html = workload::html(&what, &report).context("drawing the plots")?;
        out.write(html.as_bytes())?;
        output::note(format_args!("the plots are in {}", out.name()));
    }
    Ok(Outcome::Done)
}

/// Bytes of a file, at most: a hundred times what the largest topology that can be simulated needs.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Reads a file. What is wrong with it is wrong usage.
fn read<T>(path: &Path, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let bytes = bytes_of(path).with_context(|| format!("reading {}", path.display()));
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            FileError { line, problem: "this is no text in UTF-8".to_owned() }
        });
        text.map_err(Into::into).and_then(parse).with_context(|| path.display().to_string())
    });
    parsed.map_err(Usage::of)
}

/// What a regular file holds, which is not too large. (A FIFO would be waited for, and some devices never end.)
fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    ensure!(fs::metadata(path)?.is_file(), "it is no regular file");
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= FILE_LEN_MAX, "it has more than {} MB", FILE_LEN_MAX >> 20);
    Ok(bytes)
}

fn text_of(what: &str, report: &Report) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "clients",
        "sessions",
        "goodput",
        "calls",
        "latency\np50 / p99 / p99.9",
        "round trips\np50 / p99",
        "rates at the end\nlowest to highest",
        "cores at work\nclients / servers",
    ]);
    for group in &report.groups {
        let latency = times(group.latency.map(|it| vec![it.p50_ns, it.p99_ns, it.p999_ns]));
        let rates = group.rates_gbps.map(|[low, _, high]| [low, high].map(units::figure).join(" to ") + " Gbps");
        table.add_row([
            group.name.clone(),
            group.sessions.to_string(),
            format!("{} Gbps", units::figure(group.goodput_gbps)),
            calls(group),
            latency,
            times(group.rtt.map(|it| vec![it.p50_ns, it.p99_ns])),
            rates.unwrap_or_default(),
            group.cores_at_work.map(|part| format!("{:.0} %", part * 100.0)).join(" / "),
        ]);
    }
    let mut queues = Table::new();
    queues.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["queue", "most", "mean"]);
    for queue in &report.queues {
        let [most, mean] = [queue.max_bytes as f64, queue.mean_bytes].map(bytes);
        queues.add_row([queue.port.clone(), most, mean]);
    }
    let mut lines = vec![
        format!(
            "{what}, seed {}: {} ms after {} ms of warm-up (and {:.3} ms to open all sessions)",
            report.seed,
            ms(report.duration_ns),
            ms(report.warm_up_ns),
            ms(report.opened_ns)
        ),
        table.to_string(),
    ];
    if !report.queues.is_empty() {
        lines.push(queues.to_string());
    }
    let Report { delivered, lost, corrupted, marked, pauses, .. } = report;
    lines.push(format!(
        "{delivered} packets arrived, {lost} were lost, {corrupted} corrupted, {marked} marked; {pauses} pauses"
    ));
    lines.extend(report.drops.iter().map(|drops| format!("  {} lost: {}", drops.packets, drops.place)));
    lines.push(format!("trace {:016x}", report.trace_hash));
    lines.join("\n")
}

fn calls(group: &GroupReport) -> String {
    let more = [
        (group.failed, "failed"),
        (group.retransmissions, "times sent again"),
        (group.sessions_lost as u64, "sessions lost"),
    ];
    let more = more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("\n{count} {what}"));
    group.calls.to_string() + &more.collect::<String>()
}

fn times(times_ns: Option<Vec<u64>>) -> String {
    let text = |times: Vec<u64>| times.into_iter().map(|ns| units::time(ns as f64)).collect::<Vec<_>>().join(" / ");
    times_ns.map_or_else(|| "none".to_owned(), text)
}

fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes < 1e3 => format!("{bytes:.0} B"),
        bytes if bytes < 1e6 => format!("{} KB", units::figure(bytes / 1e3)),
        bytes => format!("{} MB", units::figure(bytes / 1e6)),
    }
}

fn json_of(report: &Report) -> Value {
    let rounded = |values: &[f64]| values.iter().map(|value| units::rounded(*value)).collect::<Vec<_>>();
    let percentiles = |it: Option<Percentiles>| {
        it.map(|it| json!({ "p50_ns": it.p50_ns, "p99_ns": it.p99_ns, "p999_ns": it.p999_ns, "max_ns": it.max_ns }))
    };
    let group = |group: &GroupReport| {
        json!({
            "name": group.name,
            "endpoints": group.endpoints,
            "sessions": group.sessions,
            "sessions_lost": group.sessions_lost,
            "goodput_gbps": units::rounded(group.goodput_gbps),
            "calls": group.calls,
            "failed": group.failed,
            "retransmissions": group.retransmissions,
            "latency": percentiles(group.latency),
            "rtt": percentiles(group.rtt),
            "rates_gbps": group.rates_gbps.map(|rates| rounded(&rates)),
            "cores_at_work": {
                "clients": units::rounded(group.cores_at_work[0]),
                "servers": units::rounded(group.cores_at_work[1]),
            },
        })
    };
    let queues = report.queues.iter().map(|queue| {
        json!({ "port": queue.port, "max_bytes": queue.max_bytes, "mean_bytes": units::rounded(queue.mean_bytes) })
    });
    let series = &report.series;
    json!({
        "seed": report.seed,
        "trace": format!("{:016x}", report.trace_hash),
        "opened_ns": report.opened_ns,
        "warm_up_ns": report.warm_up_ns,
        "duration_ns": report.duration_ns,
        "delivered": report.delivered,
        "lost": report.lost,
        "corrupted": report.corrupted,
        "marked": report.marked,
        "pauses": report.pauses,
        "groups": report.groups.iter().map(group).collect::<Vec<_>>(),
        "queues": queues.collect::<Vec<_>>(),
        "drops": report.drops.iter().map(|it| json!({ "place": it.place, "packets": it.packets })).collect::<Vec<_>>(),
        "series": {
            "times_ns": series.times_ns,
            "goodput_gbps": series.goodput_gbps.iter().map(|values| rounded(values)).collect::<Vec<_>>(),
            "queues_bytes": series.queues_bytes,
            "rates_gbps": series.rates_gbps.iter().map(|group| group.iter().map(|rates| rounded(rates)).collect()).collect::<Vec<Vec<_>>>(),
        },
    })
}
