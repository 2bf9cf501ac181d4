//! `sinew` alone: the tour. Real server processes on this machine, called over every fabric, checked and measured.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sinew::fabric::PortError;
use sinew::host::Interrupt;
use sinew::prelude::*;

use crate::bench::{self, Figures, Kind, Plan};
use crate::child::ServerProcess;
use crate::fabrics::Fabric;
use crate::serve::LimitArgs;
use crate::service::{self, SEQUENCE_LEN, Verdict};
use crate::verbs::{self, Carried};
use crate::{Outcome, kv, machine, output, pattern, seq, sim, units};

/// Messages of these sizes are sent and checked byte for byte before anything is measured.
const CHECKED_SIZES: [usize; 9] = [0, 1, 31, 32, 1_000, 4_097, 100_000, 1 << 20, 8 << 20];
/// Parts of the progress for each stop: the checks, then three measurements.
const PARTS: u64 = 100;

/// Options of the tour.
#[derive(clap::Args)]
pub struct Args {
    /// The tour with rougher figures, in a few seconds
    #[arg(long)]
    quick: bool,
}

/// A stop of the tour.
struct Stop {
    name: &'static str,
    fabric: Fabric,
    /// Where its server listens; `None`: in this process.
    address: Option<String>,
    /// Whether every machine that Sinew supports has it.
    required: bool,
    remedy: &'static str,
}

/// What was seen of a service, for the table.
pub struct Row {
    /// What was measured.
    pub what: String,
    pub figure: String,
    pub limit: String,
    /// Whether the machine was free enough for figures to mean something.
    pub is_valid: bool,
}

/// A service: its name, and what starts it, checks its answers and measures them for a time.
type Service = (&'static str, fn(Duration) -> anyhow::Result<Row>);

const SERVICES: [Service; 4] = [
    ("cache, shared memory", kv::tour::over_shm),
    ("cache, UDP", kv::tour::over_udp),
    ("cache, memcached's protocol, TCP", kv::tour::memcached),
    ("sequencer, shared memory", seq::tour::over_shm),
];

/// What was seen at a stop.
struct Seen {
    latency: Figures,
    rate: Figures,
    bandwidth: Figures,
}

fn stops() -> anyhow::Result<Vec<Stop>> {
    Ok(vec![
        Stop {
            name: "shared memory,\ntwo processes",
            fabric: Fabric::Shm,
            address: Some(Fabric::Shm.fresh_address("")?),
            required: true,
            remedy: "it needs Linux with memfd and a directory of your own ($XDG_RUNTIME_DIR or /tmp)",
        },
        Stop {
            name: "shared memory,\ntwo threads",
            fabric: Fabric::Hub,
            address: None,
            required: true,
            remedy: "it needs Linux with memfd",
        },
        Stop {
            name: "UDP, IPv4",
            fabric: Fabric::Udp,
            address: Some("udp://127.0.0.1:0".to_owned()),
            required: true,
            remedy: "it needs the loopback device: ip link set lo up",
        },
        Stop {
            name: "UDP, IPv6",
            fabric: Fabric::Udp,
            address: Some("udp://[::1]:0".to_owned()),
            required: false,
            remedy: "to have it, switch IPv6 on for the loopback device: sysctl net.ipv6.conf.lo.disable_ipv6=0",
        },
    ])
}

/// Starts servers, calls them, measures, and shows.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let cpus = machine::cpus().len();
    let cpus = if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
    let heard = output::print(format_args!(
        "Sinew calls services that answer in microseconds. This is what it does on this machine ({cpus}).\n"
    ))?;
    if !heard {
        return Ok(Outcome::Done);
    }
    let stops = stops()?;
    let progress = Progress::new(stops.len() as u64 + 2);
    let mut seen = Vec::new();
    for stop in &stops {
        seen.push(visit(stop, args.quick, &progress));
        progress.end_of_stop();
        if interrupt.is_set() {
            progress.finish();
            bail!("interrupted");
        }
    }
    let verbs = VERBS.map(|(fabric, name)| {
        progress.say(name, "WRITE, SEND, READ, fetch-and-add");
        verbs::tour::measure(fabric, Duration::from_secs_f64(if args.quick { 0.05 } else { 0.25 }))
    });
    progress.end_of_stop();
    let services = SERVICES.map(|(name, measure)| {
        progress.say(name, "starting, checking, measuring");
        if interrupt.is_set() {
            bail!("interrupted");
        }
        let duration = Duration::from_secs_f64(if args.quick { 0.1 } else { 0.8 });
        // In a thread of its own, which may pin itself.
        let measured = std::thread::scope(|threads| threads.spawn(move || measure(duration)).join());
        measured.map_err(|_| anyhow!("it panicked"))?
    });
    progress.say("simulated cluster", "an incast");
    let simulated = sim::tour::measure(args.quick);
    progress.finish();
    ensure!(!interrupt.is_set(), "interrupted");
    output::print(show(&stops, &seen))?;
    output::print(show_verbs(&verbs))?;
    output::print(show_services(&services))?;
    match &simulated {
        Ok(simulated) => output::print(sim::tour::show(simulated))?,
        Err(error) => output::print(format_args!("simulated cluster: {}", output::describe(error)))?,
    };
    output::print(NEXT)?;
    let failed = stops.iter().zip(&seen).find(|(stop, seen)| stop.required && seen.is_err());
    if let Some((stop, Err(error))) = failed {
        bail!("{} failed: {}", one_line(stop.name), output::describe(error));
    }
    let [over_shm, _] = verbs;
    over_shm.context("verbs over shared memory failed")?;
    for ((name, _), seen) in SERVICES.iter().zip(services) {
        seen.with_context(|| format!("{name} failed"))?;
    }
    simulated.context("the simulated cluster is not as it should be")?;
    Ok(Outcome::Done)
}

/// Serves, checks and measures at one stop.
fn visit(stop: &Stop, quick: bool, progress: &Progress) -> anyhow::Result<Seen> {
    let seconds = |full: f64| Duration::from_secs_f64(if quick { 0.05 } else { full });
    let plan = |kind, full| Plan::new(kind, stop.fabric, seconds(full));
    let mut plans = [plan(Kind::Latency, 1.0), plan(Kind::Rate, 1.2), plan(Kind::Bandwidth, 1.2)];
    let limits = LimitArgs::default();
    progress.say(stop.name, "starting a server");
    let server = match &stop.address {
        Some(address) => {
            reachable(address)?;
            Some(ServerProcess::start(address, &plans[0].server_cpus, &limits)?)
        }
        None => None,
    };
    progress.say(stop.name, "checking answers");
    if let Some(server) = &server {
        let address = &server.addresses()[0];
        check_answers(stop.fabric, address, &limits)?;
        plans.iter_mut().for_each(|plan| plan.address = Some(address.clone()));
    }
    progress.part();
    let [latency, rate, bandwidth] = plans.map(|plan| {
        progress.say(stop.name, &format!("measuring {}", plan.kind.name()));
        let figures = bench::measure(&plan, &mut |_| ());
        progress.part();
        figures
    });
    Ok(Seen { latency: latency?, rate: rate?, bandwidth: bandwidth? })
}

/// Whether a server could listen at an address, found out here, where the error can be told from others.
fn reachable(address: &str) -> anyhow::Result<()> {
    match Rpc::open(address) {
        Ok(_) => Ok(()),
        Err(sinew::Error::Port(PortError::System { source, .. })) => bail!("{source}"),
        Err(error) => Err(error.into()),
    }
}

/// Makes calls of many sizes, one of each kind, and looks at every byte of every answer.
fn check_answers(fabric: Fabric, address: &str, limits: &LimitArgs) -> anyhow::Result<()> {
    let nexus = Nexus::builder().config(limits.config()).build()?;
    let mut rpc = Rpc::open_with(&nexus, &fabric.client_address(""))?;
    let session = rpc.connect(address)?;
    for (sequence, size) in (1u64..).zip(CHECKED_SIZES) {
        let mut message = vec![0; SEQUENCE_LEN + size];
        message[..SEQUENCE_LEN].copy_from_slice(&sequence.to_le_bytes());
        pattern::write_body(&mut message[SEQUENCE_LEN..]);
        pattern::write_stamps(&mut message[SEQUENCE_LEN..], sequence);
        let echoed = rpc.call(session, service::ECHO, &message[SEQUENCE_LEN..])?;
        let same = echoed.len() == size && pattern::check_all(&echoed, sequence);
        ensure!(same, "an echo of {size} bytes came back changed ({} bytes)", echoed.len());
        let verdict = Verdict::read(&rpc.call(session, service::SINK, &message)?);
        let expected = Verdict { sequence, len: size as u64, good: true };
        ensure!(verdict == Some(expected), "the server saw other bytes than the {size} that were sent");
    }
    let slept = rpc.call(session, service::SLEEP, b"1")?;
    ensure!(&*slept == b"slept", "a worker answered `{slept}`");
    Ok(())
}

fn show(stops: &[Stop], seen: &[anyhow::Result<Seen>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "fabric",
        "32 B latency\np50 / p99 / p99.9",
        "32 B calls a second,\nper client core",
        "8 MB requests",
    ]);
    for (stop, seen) in stops.iter().zip(seen) {
        match seen {
            Ok(seen) => table.add_row([
                stop.name.to_owned(),
                latency_cell(&seen.latency),
                rate_cell(&seen.rate),
                bandwidth_cell(&seen.bandwidth),
            ]),
            Err(_) => table.add_row([stop.name, "not measured", "", ""]),
        };
    }
    let mut lines = vec![
        table.to_string(),
        "Every answer was checked. `limit` is the same with nothing above the raw ring or socket, in the same run."
            .to_owned(),
    ];
    for (stop, seen) in stops.iter().zip(seen) {
        match seen {
            Err(error) => {
                lines.push(format!(
                    "{} did not run: {}; {}.",
                    one_line(stop.name),
                    output::describe(error),
                    stop.remedy
                ));
            }
            Ok(seen) if machine::has_two_cpus() => lines.extend(warning(stop, seen)),
            Ok(_) => {}
        }
    }
    if !machine::has_two_cpus() {
        lines.push(
            "There is one processor: client and server take turns on it, so these figures say little.".to_owned(),
        );
    }
    lines.join("\n")
}

/// What carries verbs, and its name in the table.
const VERBS: [(Carried, &str); 2] =
    [(Carried::Shm, "verbs, shared memory,\ntwo processes"), (Carried::Ibverbs, "verbs, RDMA device")];

fn show_verbs(seen: &[anyhow::Result<Vec<verbs::Figures>>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["fabric", "operation", "p50 / p99, or rate", "limit"]);
    let mut lines = Vec::new();
    for ((_, name), seen) in VERBS.iter().zip(seen) {
        match seen {
            Ok(seen) => {
                let column =
                    |cell: &dyn Fn(&verbs::Figures) -> String| seen.iter().map(cell).collect::<Vec<_>>().join("\n");
                table.add_row([
                    (*name).to_owned(),
                    column(&verbs::Figures::title),
                    column(&verbs::Figures::figure_text),
                    column(&verbs::Figures::limit_text),
                ]);
            }
            Err(error) => {
                table.add_row([name, "not measured", "", ""]);
                lines.push(format!("{} did not run: {}", one_line(name), output::describe(error)));
            }
        }
    }
    let is_busy = seen.iter().flatten().flatten().any(|figures| !figures.is_valid());
    if is_busy && machine::has_two_cpus() {
        lines.push("verbs: the machine was busy (or is slow), so the figures mean little.".to_owned());
    }
    lines.insert(0, "What each left or brought was checked.".to_owned());
    lines.insert(0, table.to_string());
    lines.join("\n")
}

fn show_services(seen: &[anyhow::Result<Row>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["service", "measured", "figure", "limit"]);
    let mut lines = Vec::new();
    for ((name, _), seen) in SERVICES.iter().zip(seen) {
        match seen {
            Ok(Row { what, figure, limit, .. }) => table.add_row([name, what.as_str(), figure, limit]),
            Err(error) => {
                lines.push(format!("{name} did not run: {}", output::describe(error)));
                table.add_row([name, "not measured", "", ""])
            }
        };
    }
    let is_busy = seen.iter().flatten().any(|row| !row.is_valid);
    if is_busy && machine::has_two_cpus() {
        lines.push("services: the machine was busy (or is slow), so the figures mean little.".to_owned());
    }
    lines.insert(0, "Every value and every number was checked.".to_owned());
    lines.insert(0, table.to_string());
    lines.join("\n")
}

const NEXT: &str = "
Next:
  sinew rpc serve shm://test          a server of your own, then in another terminal
  sinew rpc bench latency --address shm://test
  sinew rpc bench rate --fabric udp --window 512 --batch 8
  sinew verbs rate --op write         WRITEs into another process's memory
  sinew serve cache                   a key-value cache (--memcached ADDR for memcached's clients), then in another terminal
  sinew kv set greeting hello; sinew kv get greeting
  sinew sim run cx4 --workload crates/lab/workloads/incast.toml    a workload on a simulated cluster
  sinew limits                        what this machine allows
  README.md                           a service of your own in thirty lines";

fn warning(stop: &Stop, seen: &Seen) -> Option<String> {
    let invalid: Vec<&str> = [&seen.latency, &seen.rate, &seen.bandwidth]
        .into_iter()
        .filter(|figures| !figures.limit_valid())
        .map(|figures| figures.plan.kind.name())
        .collect();
    let what = (!invalid.is_empty()).then(|| invalid.join(", "))?;
    Some(format!("{}: the machine was busy (or is slow), so what it says of {what} means little.", one_line(stop.name)))
}

fn one_line(name: &str) -> String {
    name.replace('\n', " ")
}

fn latency_cell(figures: &Figures) -> String {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| units::time(figures.percentile_ns(quantile)));
    format!("{p50} / {p99} / {p999}\nlimit {}", figures.limit_text())
}

fn rate_cell(figures: &Figures) -> String {
    format!("{} M/s\nlimit {}", units::figure(figures.figure()), figures.limit_text())
}

fn bandwidth_cell(figures: &Figures) -> String {
    format!("{} Gbps\nlimit {}", units::figure(figures.figure()), figures.limit_text())
}

/// A bar on a terminal, lines elsewhere.
struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(stops: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(stops * PARTS);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar }
    }

    fn say(&self, name: &str, what: &str) {
        let message = format!("{}: {what}", one_line(name));
        match &self.bar {
            Some(bar) => bar.set_message(message),
            None => output::note(message),
        }
    }

    fn part(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(PARTS / 4);
        }
    }

    /// Whatever was left out counts as done.
    fn end_of_stop(&self) {
        if let Some(bar) = &self.bar {
            bar.set_position(bar.position().next_multiple_of(PARTS));
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
