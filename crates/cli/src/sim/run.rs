//! `sinew sim run`: runs a workload on a simulated cluster.

mod csv;
mod text;

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sinew_lab::workload::{self, GroupReport, Percentiles, Report, Workload};
use sinew_sim::{CaptureConfig, FileError, HostId, Network, Topology};

use crate::infile::{bytes_of, read};
use crate::outfile::OutFile;
use sinew_harness::units;

use crate::{Outcome, Usage, output};

const HELP: &str = "\
A topology says what the cluster is made of; a workload says who calls whom, with how
much data, and what goes wrong meanwhile. Both are TOML:

  warm_up_ms = 10              # not counted
  duration_ms = 20             # counted

  [congestion]
  algorithm = \"swift\"          # or timely, dcqcn, none

  [[clients]]                  # a group of clients; there can be several
  name = \"bulk\"
  hosts = { from = \"node1\", count = 20 }
  servers = \"node0\"
  request_bytes = 1_048_576    # or { from = 32, to = 1000 },
  response_bytes = 32          # or { file = \"sizes.txt\" }, or by weights

  [[faults]]                   # here: a link that is down
  link = [\"node1\", \"tor1\"]
  from_ms = 15
  until_ms = 16

docs/workloads.md and docs/topologies.md describe all fields.
crates/lab/workloads has examples; `sinew sim topology cx4` prints a
topology to start with.

Goodput is the data of requests and responses that arrived. Cores poll whenever they
have no other work. Queues hold what waited for a link: `most` is the maximum since the warm-up, and
`mean` the mean of the samples taken since then, out of 200 in the whole run.
Equal seeds give equal results.

Examples:
  sinew sim run cx4 --workload crates/lab/workloads/incast.toml
  sinew sim run mine.toml --workload mine-too.toml --seed 7 --out mine.html
  sinew sim run cx4 --workload mine.toml --csv out.csv
  sinew sim run cx4 --workload x.toml --pcap x.pcap --pcap-host node0";

/// Options of `sinew sim run`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Topology of the cluster: a TOML file, or the name of a built-in one, cx4 or cx5
    topology: String,
    /// TOML file of the workload
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// Seed of all randomness: equal seeds have equal results
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Also write one self-contained HTML file with plots over virtual time; its former contents stay until the run
    /// ends
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write a time series as CSV, for spreadsheets and plots: a line for each of 200 intervals, the warm-up
    /// included
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also write the packets for Wireshark, each at the virtual time when it leaves its sender; 1 GB at most
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write only packets from or to this host; repeat the option for further hosts [default: all packets]
    #[arg(long, value_name = "HOST", requires = "pcap")]
    pcap_host: Vec<String>,
    /// Bytes to keep of each packet, 28 to 65535, of which 28 are made-up IPv4 and UDP headers
    #[arg(long, value_name = "BYTES", requires = "pcap", default_value = "128", value_parser = clap::value_parser!(u32).range(28..=65_535))]
    pcap_bytes: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the workload, and prints the report.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let topology = match Topology::BUILT_IN.into_iter().find(|(name, _)| *name == args.topology) {
        Some((_, text)) => Topology::parse(text)?,
        None => read(Path::new(&args.topology), |text| Ok(Topology::parse(text)?))?,
    };
    let workload = read(&args.workload, |text| Ok(workload_of(text, &args.workload, &topology)?))?;
    let captured = hosts(&args.pcap_host, &topology)?;
    let check = |path: &Option<PathBuf>| path.as_deref().map(OutFile::check).transpose();
    let files: Vec<&PathBuf> = [&args.out, &args.csv, &args.pcap].into_iter().flatten().collect();
    if let Some(both) = files.iter().enumerate().find_map(|(at, file)| files[..at].contains(file).then_some(file)) {
        return Err(Usage(format!(
            "{} would be written twice: give each of --out, --csv, --pcap its own file",
            both.display()
        ))
        .into());
    }
    let (out, csv, pcap) = (check(&args.out)?, check(&args.csv)?, check(&args.pcap)?);
    let warnings = workload.warnings(&topology);
    warnings.iter().for_each(output::complain);
    let network = Network::new(topology, args.seed)?;
    if pcap.is_some() {
        let config = CaptureConfig { kept_len_max: args.pcap_bytes as usize, ..CaptureConfig::default() };
        network.capture(&captured, config);
    }
    let report = simulate(&network, &workload, args.seed)?;
    let what = format!("{} on {}", args.workload.display(), args.topology);
    if args.json {
        output::print(json_of(&report))?;
    } else {
        output::print(text::of(&what, &report))?;
    }
    if let Some(out) = out {
        out.write(workload::html(&what, &report, &warnings).as_bytes())?;
        output::note(format_args!("the plots are in {}", out.name()));
    }
    if let Some(csv) = csv {
        csv.write(csv::of(&report).as_bytes())?;
        output::note(format_args!("the time series is in {}", csv.name()));
    }
    if let (Some(pcap), Some(capture)) = (pcap, network.take_capture()) {
        pcap.write(&capture.file)?;
        let left_out = match capture.left_out {
            0 => String::new(),
            packets => format!("; {packets} more had no room"),
        };
        let be = if capture.packets == 1 { "is" } else { "are" };
        output::note(format_args!("{} {be} in {}{left_out}", units::counted(capture.packets, "packet"), pcap.name()));
    }
    Ok(Outcome::Done)
}

fn simulate(network: &Network, workload: &Workload, seed: u64) -> anyhow::Result<Report> {
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {percent}%  {elapsed}").expect("a fixed template"));
    let result = workload::run_on(network, workload, seed, &mut |part| {
        bar.set_position((part * 1000.0) as u64);
        true
    });
    bar.finish_and_clear();
    Ok(result?)
}

/// Reads a workload, and the files that it names, which lie beside it.
fn workload_of(text: &str, path: &Path, topology: &Topology) -> Result<Workload, FileError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    Workload::parse_with(text, topology, &mut |name| {
        let bytes = bytes_of(&folder.join(name)).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|_| "this is not UTF-8 text".to_owned())
    })
}

/// Finds hosts by their names; without names, all hosts.
fn hosts(names: &[String], topology: &Topology) -> anyhow::Result<Vec<HostId>> {
    if names.is_empty() {
        return Ok((0..topology.hosts.len()).map(HostId).collect());
    }
    let find = |name: &String| {
        let found = topology.find_host(name);
        found.ok_or_else(|| {
            Usage::of(anyhow::anyhow!("--pcap-host: the topology has no host named `{}`", name.escape_debug()))
        })
    };
    names.iter().map(find).collect()
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
    let fault = |fault: &workload::FaultReport| json!({ "name": fault.name, "start_ns": fault.start_ns, "stop_ns": fault.stop_ns });
    let series = &report.series;
    let mut json = json!({
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
    });
    // Without planned faults there is nothing to report.
    if !report.faults.is_empty() {
        json["faults"] = report.faults.iter().map(fault).collect();
    }
    json
}
