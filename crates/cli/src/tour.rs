//! `sinew` alone: the tour. It calls real server processes on this machine over every fabric, and checks and measures
//! them.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sinew::fabric::PortError;
use sinew::host::Interrupt;
use sinew::prelude::*;
use sinew_harness::run::Interrupted;
use sinew_harness::service::{self, SEQUENCE_LEN, Verdict};
use sinew_harness::surroundings::{Machine, cores_text};
use sinew_harness::{Figure, figure, machine, pattern, units};

use crate::child::ServerProcess;
use crate::endpoint_args::LimitArgs;
use crate::fabrics::Fabric;
use crate::rpc::{self, Kind, RpcPlan};
use crate::verbs::{self, VerbsFabric};
use crate::{Outcome, forward, kv, memory, output, replica, seq, sim};

/// Sizes of the messages that are checked byte for byte before anything is measured.
const CHECKED_SIZES: [usize; 9] = [0, 1, 31, 32, 1_000, 4_097, 100_000, 1 << 20, 8 << 20];
/// Time for which the cores' distance is measured, to describe this machine.
const LOOK: Duration = Duration::from_millis(20);

/// Options of the tour.
#[derive(clap::Args)]
pub struct Args {
    /// Take the tour in a few seconds instead of half a minute; its figures are rougher
    #[arg(long)]
    quick: bool,
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    json: bool,
}

/// A stop of the tour: a fabric that carries calls.
struct Stop {
    name: &'static str,
    fabric: Fabric,
    /// Address where its server listens; `None` for this process.
    address: Option<String>,
    /// Whether every machine that Sinew supports has it.
    required: bool,
    remedy: &'static str,
}

/// Fabrics that carry verbs, and their names in the table.
const VERBS: [(VerbsFabric, &str); 2] =
    [(VerbsFabric::Shm, "verbs, shared memory, two processes"), (VerbsFabric::Ibverbs, "verbs, RDMA device")];

/// Starts a service, checks its answers, and measures it for the given time.
type Measure = fn(Duration, &mut dyn FnMut(&str, f64)) -> anyhow::Result<Figure>;

const SERVICES: [(&str, Measure); 7] = [
    ("cache, shared memory", |duration, progress| kv::tour::over_rpc(Fabric::Shm, duration, progress)),
    ("cache, UDP", |duration, progress| kv::tour::over_rpc(Fabric::Udp, duration, progress)),
    ("cache, memcached's protocol, TCP", kv::tour::memcached),
    ("sequencer, shared memory", seq::tour::over_shm),
    ("memory of two donors, a copy at each", memory::tour::volume),
    ("store of three members, shared memory", replica::tour::puts),
    ("router, without ports: ", forward::for_tour),
];

fn stops() -> anyhow::Result<Vec<Stop>> {
    Ok(vec![
        Stop {
            name: "shared memory, two processes",
            fabric: Fabric::Shm,
            address: Some(Fabric::Shm.fresh_address("")?),
            required: true,
            remedy: "this needs Linux with memfd and a directory of your own ($XDG_RUNTIME_DIR or /tmp)",
        },
        Stop {
            name: "shared memory, two threads",
            fabric: Fabric::Hub,
            address: None,
            required: true,
            remedy: "this needs Linux with memfd",
        },
        Stop {
            name: "UDP, IPv4",
            fabric: Fabric::Udp,
            address: Some("udp://127.0.0.1:0".to_owned()),
            required: true,
            remedy: "this needs the loopback device: ip link set lo up",
        },
        Stop {
            name: "UDP, IPv6",
            fabric: Fabric::Udp,
            address: Some("udp://[::1]:0".to_owned()),
            required: false,
            remedy: "to get it, switch IPv6 on for the loopback device: sysctl net.ipv6.conf.lo.disable_ipv6=0",
        },
    ])
}

/// Results at each place of the tour, or the reason why there are none.
struct TourResults {
    /// Latency, rate and bandwidth of each stop.
    calls: Vec<anyhow::Result<Vec<Figure>>>,
    verbs: Vec<anyhow::Result<Vec<Figure>>>,
    services: Vec<anyhow::Result<Figure>>,
    simulated: anyhow::Result<sim::tour::Outcomes>,
}

/// Starts servers, calls them, measures, and prints the results.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    if !args.json && !output::print(units::wrapped(&greeting()?, output::width(), 0))? {
        return Ok(Outcome::Done);
    }
    let stops = stops()?;
    let progress = Progress::new(stops.len() + VERBS.len() + SERVICES.len() + 1);
    let seconds = |full: f64, quick: f64| Duration::from_secs_f64(if args.quick { quick } else { full });
    let step = |number: usize, name: &str| {
        progress.begin(number, name);
        if interrupt.is_set() { Err(Interrupted) } else { Ok(()) }
    };
    let mut number = 0..;
    let mut next = || number.next().unwrap_or(0);
    let mut calls = Vec::new();
    for stop in &stops {
        step(next(), stop.name)?;
        calls.push(visit(stop, args.quick, &progress));
    }
    let mut verbs = Vec::new();
    for (fabric, name) in VERBS {
        step(next(), name)?;
        verbs.push(verbs::for_tour(fabric, seconds(0.3, 0.05), &mut progress.callback()));
    }
    let mut services = Vec::new();
    for (name, measure) in SERVICES {
        step(next(), name)?;
        services.push(measure(seconds(0.8, 0.1), &mut progress.callback()));
    }
    step(next(), "simulated cluster: an incast")?;
    let simulated = sim::tour::measure(args.quick);
    progress.finish();
    ensure!(!interrupt.is_set(), Interrupted);
    let results = TourResults { calls, verbs, services, simulated };
    if args.json {
        output::print(figure::list(results.figures().map(Figure::to_json)))?;
    } else {
        output::print(results.text(&stops))?;
    }
    results.check(&stops)?;
    Ok(Outcome::Done)
}

fn greeting() -> anyhow::Result<String> {
    let Machine { cpus, clock_read_ns, copy_gbps } = Machine::this();
    let cores = cores_text(machine::core_round_trip_ns(machine::default_pair(), LOOK)?);
    Ok(format!(
        "Sinew calls services that answer in microseconds. These are its figures on this machine: {cpus} {}, {cores}, copies at {} Gbps, a \
         clock that is read in {}.",
        if cpus == 1 { "CPU" } else { "CPUs" },
        units::figure(copy_gbps),
        units::time(clock_read_ns)
    ))
}

/// Serves, checks and measures at one stop.
fn visit(stop: &Stop, quick: bool, progress: &Progress) -> anyhow::Result<Vec<Figure>> {
    let plan = |(kind, full)| RpcPlan::new(kind, stop.fabric, Duration::from_secs_f64(if quick { 0.05 } else { full }));
    let mut plans = [(Kind::Latency, 0.6), (Kind::Rate, 0.8), (Kind::Bandwidth, 1.0)].map(plan);
    let limits = LimitArgs::default();
    let server = match &stop.address {
        Some(address) => {
            reachable(address)?;
            Some(ServerProcess::start(address, &plans[0].server_cpus, &limits)?)
        }
        None => None,
    };
    if let Some(server) = &server {
        let address = &server.addresses()[0];
        check_answers(stop.fabric, address, &limits)?;
        for plan in &mut plans {
            (plan.address, plan.server) = (Some(address.clone()), Some(server.id()));
        }
    }
    plans.iter().map(|plan| rpc::measure(plan, &mut progress.callback())).collect()
}

/// Checks that a server could listen at an address. Here such an error can be told from others.
fn reachable(address: &str) -> anyhow::Result<()> {
    match Rpc::open(address) {
        Ok(_) => Ok(()),
        Err(sinew::Error::Port(PortError::System { source, .. })) => bail!("{source}"),
        Err(error) => Err(error.into()),
    }
}

/// Makes calls of many sizes, one of each kind, and checks every byte of every answer.
fn check_answers(fabric: Fabric, address: &str, limits: &LimitArgs) -> anyhow::Result<()> {
    let nexus = Nexus::builder().config(limits.config()).build()?;
    let mut rpc = Rpc::open_with(&nexus, &fabric.client_address("", Some(address)))?;
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
        ensure!(verdict == Some(expected), "the server did not receive the {size} bytes that were sent");
    }
    let slept = rpc.call(session, service::SLEEP, b"1")?;
    ensure!(&*slept == b"slept", "a worker answered `{slept}`");
    Ok(())
}

/// A table as wide as the terminal.
fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_width(output::width() as u16).set_header(heads);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    table
}

/// A figure, and below it what it is compared with.
fn cell(figure: &Figure) -> String {
    let own = match figure.unit {
        figure::Unit::Ns => figure.percentiles_text(&[0.5, 0.99]),
        _ => figure.text(),
    };
    match &figure.compared {
        Some(beside) => format!("{own}\n{} {}", beside.comparison.name(), figure.compared_text()),
        None => own,
    }
}

/// Description of what a figure is compared with.
fn comparison_text(figure: &Figure) -> String {
    figure.compared.as_ref().map_or_else(|| "alone".to_owned(), |beside| beside.what.clone())
}

impl TourResults {
    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.calls.iter().chain(&self.verbs).flatten().flatten().chain(self.services.iter().flatten())
    }

    /// The tables, their meaning, and what went wrong.
    fn text(&self, stops: &[Stop]) -> String {
        let mut calls = table(&["calls over", "32 B: p50 / p99", "32 B, of one client core", "8 MB"]);
        for (stop, seen) in stops.iter().zip(&self.calls) {
            let cells =
                seen.as_ref().map_or_else(|_| vec!["not measured".to_owned()], |seen| seen.iter().map(cell).collect());
            calls.add_row([stop.name.to_owned()].into_iter().chain(cells));
        }
        let mut others = table(&["more", "", "beside"]);
        for ((_, name), seen) in VERBS.iter().zip(&self.verbs) {
            for figure in seen.iter().flatten() {
                others.add_row([format!("{name}: {}", figure.title), cell(figure), comparison_text(figure)]);
            }
        }
        for ((name, _), seen) in SERVICES.iter().zip(&self.services) {
            if let Ok(figure) = seen {
                let what =
                    if figure.unit == figure::Unit::Mops { String::new() } else { format!(": {}", figure.title) };
                others.add_row([format!("{name}{what}"), cell(figure), comparison_text(figure)]);
            }
        }
        let mut lines = vec![MEANING.to_owned()];
        let names = stops.iter().map(|stop| stop.name).chain(VERBS.iter().map(|(_, name)| *name));
        for (name, error) in names
            .zip(self.calls.iter().chain(&self.verbs))
            .filter_map(|(name, seen)| Some((name, seen.as_ref().err()?)))
        {
            let remedy = stops.iter().find(|stop| stop.name == name).map(|stop| format!("; {}", stop.remedy));
            lines.push(format!("{name} did not run: {}{}", output::describe(error), remedy.unwrap_or_default()));
        }
        for ((name, _), seen) in SERVICES.iter().zip(&self.services) {
            lines.extend(seen.as_ref().err().map(|error| format!("{name} did not run: {}", output::describe(error))));
        }
        lines.extend(self.complaints());
        let lines: Vec<String> = lines.iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
        let simulated = match &self.simulated {
            Ok(simulated) => sim::tour::show(simulated),
            Err(error) => format!("simulated cluster: {}", output::describe(error)),
        };
        format!("{calls}\n{others}\n{}\n{simulated}\n{NEXT}", lines.join("\n"))
    }

    /// Reasons that disturbed figures, each once, with the number of figures that it spoilt.
    fn complaints(&self) -> Vec<String> {
        if !machine::has_two_cpus() {
            return vec![
                "This machine has one processor: client and server take turns on it, so these figures say little."
                    .to_owned(),
            ];
        }
        figure::complaints(self.figures())
    }

    /// Fails if something that every machine has did not work.
    fn check(self, stops: &[Stop]) -> anyhow::Result<()> {
        for (stop, seen) in stops.iter().zip(self.calls) {
            if stop.required {
                seen.with_context(|| format!("{} failed", stop.name))?;
            }
        }
        for ((fabric, name), seen) in VERBS.into_iter().zip(self.verbs) {
            if fabric == VerbsFabric::Shm {
                seen.with_context(|| format!("{name} failed"))?;
            }
        }
        for ((name, _), seen) in SERVICES.iter().zip(self.services) {
            seen.with_context(|| format!("{name} failed"))?;
        }
        self.simulated.context("the simulated cluster failed its checks")?;
        Ok(())
    }
}

const MEANING: &str = "Every answer, value and number was checked. A limit is what this machine allows for the same bytes without Sinew; \
                       a baseline is another way to do the same, which Sinew may beat.";

const NEXT: &str = "
Next:
  sinew rpc serve shm://test         a server of your own; in another terminal
  sinew rpc bench latency --address shm://test
  sinew verbs rate --op write        WRITEs into another process's memory
  sinew serve cache                  a key-value cache; in another terminal
  sinew kv set greeting hello; sinew kv get greeting
  sinew memory bench                 reads of another host's memory
  sinew forward bench                routers and switches, without ports
  sinew serve cache --memcached 127.0.0.1:11211      for memcached's clients
  sinew sim run cx4 --workload crates/lab/workloads/incast.toml
                                     a workload on a simulated cluster
  sinew sim swarm --seconds 60       hunts for bugs on clusters drawn by chance
  sinew lab report --out lab.html    published figures, run again
  sinew limits                       what this machine allows
  README.md                          a service of your own in thirty lines";

/// Progress bar on a terminal; hidden elsewhere.
struct Progress {
    bar: ProgressBar,
}

/// Length of the bar for each place.
const PARTS: u64 = 100;

impl Progress {
    fn new(places: usize) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(places as u64 * PARTS)
        } else {
            ProgressBar::hidden()
        };
        bar.set_style(
            ProgressStyle::with_template("{bar:24} {percent:>3} %  {prefix}: {msg}").expect("a fixed template"),
        );
        Self { bar }
    }

    fn begin(&self, number: usize, name: &str) {
        self.bar.set_prefix(name.to_owned());
        self.bar.set_message("starting, checking");
        self.bar.set_position(number as u64 * PARTS);
    }

    /// Callback for the progress of a measurement.
    fn callback(&self) -> impl FnMut(&str, f64) + '_ {
        |what, _| self.bar.set_message(what.to_owned())
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
