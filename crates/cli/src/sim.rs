//! `sinew sim`: simulated clusters.

mod run;
pub mod tour;

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sinew::host::Interrupt;
use sinew_lab::swarm::{self, Failure, Report};
use sinew_sim::Topology;

use crate::{Outcome, Usage, interrupted, machine, output};
use sinew_harness::units::{counted, parse_seconds};

/// The commands about simulated clusters.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a workload on a topology: goodput, latency, queues, lost packets and rates, as tables and as plots
    Run(run::Args),
    /// Print a built-in topology, with its comments, as a start for one of your own
    Topology(TopologyArgs),
    /// Hunt for bugs of the RPC layer and of replicated stores, on clusters drawn, with their faults, from seeds
    Swarm(SwarmArgs),
    /// Run a cluster of `sinew sim swarm` again, from its seed
    Replay(ReplayArgs),
}

const TOPOLOGY_HELP: &str = "\
Without a name, lists the built-in topologies. docs/topologies.md says what each field is.

Examples:
  sinew sim topology
  sinew sim topology cx4 > mine.toml
  sinew sim run mine.toml --workload crates/lab/workloads/incast.toml";

/// Options of `sinew sim topology`.
#[derive(clap::Args)]
#[command(after_help = TOPOLOGY_HELP)]
pub struct TopologyArgs {
    /// Name of a built-in topology [default: all are listed]
    name: Option<String>,
}

const SWARM_HELP: &str = "\
Every host of a cluster serves, and calls others, while links lose, duplicate
and reorder packets or are down, and while hosts cannot reach others, one way or both,
stall, crash and come back. Then the faults end. No call may run
twice; each must complete once, with the right answer or an error; rates that
congestion control cut must recover, and credits must come back. Handlers defer calls, lanes
are closed with calls in flight, and calls are handed over as if from other threads:
calls count as abandoned if and only if nobody waits for them, and a closed lane
delivers nothing. Once all sessions are closed, none of their state may be left.
One seed in eight draws a replicated store instead: three members with disks and three
clients, amid the same faults. No term may have two leaders; answers must be
linearizable; in the end requests must be answered, and all members have the same state.
A cluster that breaks these rules ends the hunt: its seed is printed, and the
exit status is 1. Ctrl-C ends it too: what was found until then is printed, and the
exit status is 130.

Examples:
  sinew sim swarm --seconds 600
  sinew sim replay 1234";

/// Options of `sinew sim swarm`.
#[derive(clap::Args)]
#[command(after_help = SWARM_HELP)]
pub struct SwarmArgs {
    /// Seconds to hunt, 0.01 to 86400; clusters that have begun are finished
    #[arg(long, default_value = "60", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
    /// Seed of the first cluster; those that follow have the next seeds [default: a random one]
    #[arg(long)]
    first: Option<u64>,
    /// Clusters that run at a time, 1 to 1024 [default: one for each processor]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `sinew sim replay`.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// Seed of the cluster, as `sinew sim swarm` printed it
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    if !matches!(command, Command::Swarm(_)) {
        interrupted::exit_on_signal()?;
    }
    match command {
        Command::Run(args) => run::run(args),
        Command::Topology(args) => show_topology(args),
        Command::Swarm(args) => hunt(args),
        Command::Replay(args) => replay(args),
    }
}

fn show_topology(args: &TopologyArgs) -> anyhow::Result<Outcome> {
    let names = || Topology::BUILT_IN.map(|(name, _)| name);
    let Some(name) = &args.name else {
        output::print(names().join("\n"))?;
        return Ok(Outcome::Done);
    };
    let found = Topology::BUILT_IN.into_iter().find(|(built_in, _)| built_in == name);
    let (_, text) = found.ok_or_else(|| {
        Usage::of(anyhow::anyhow!("there is no topology `{name}` built in; there are {}", names().join(" and ")))
    })?;
    output::print(text.trim_end())?;
    Ok(Outcome::Done)
}

fn replay(args: &ReplayArgs) -> anyhow::Result<Outcome> {
    let bar = progress_bar(1000);
    bar.set_message(format!("seed {}", args.seed));
    let result = swarm::run_showing(args.seed, &mut |part| bar.set_position((part * 1000.0) as u64));
    bar.finish_and_clear();
    let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
    let text = match &result {
        Ok(report) => format!("seed {}: {}\ntrace {:016x}", args.seed, sentence(1, report), report.trace_hash),
        Err(failure) => failure.to_string(),
    };
    if args.json {
        output::print(json_of(&result, 1))?;
    } else {
        output::print(text)?;
    }
    Ok(outcome)
}

/// A seed that differs each time, and is short enough to be typed.
fn any_seed() -> u64 {
    RandomState::new().hash_one(()) >> 32
}

/// Results of all threads together.
#[derive(Default)]
struct HuntResult {
    clusters: u64,
    sum: Report,
    failure: Option<Failure>,
}

fn progress_bar(len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {msg}").expect("a fixed template"));
    bar
}

/// Hunts, and prints the results, after an interrupt, too.
fn hunt(args: &SwarmArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let first = args.first.unwrap_or_else(any_seed);
    let threads = args.threads.map_or(machine::cpus().len(), usize::from);
    let (next, found) = (AtomicU64::new(first), Mutex::new(HuntResult::default()));
    let bar = progress_bar(args.seconds.as_millis() as u64);
    let began = Instant::now();
    let is_over = || {
        let failed = found.lock().is_ok_and(|found| found.failure.is_some());
        failed || interrupt.is_set() || began.elapsed() >= args.seconds
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over() {
                    let result = swarm::run(next.fetch_add(1, Ordering::Relaxed));
                    let Ok(mut found) = found.lock() else { return };
                    found.record(result);
                    bar.set_message(format!("{} from seed {first} on", counted(found.clusters, "cluster")));
                    bar.set_position(began.elapsed().as_millis() as u64);
                }
            });
        }
    });
    bar.finish_and_clear();
    let HuntResult { clusters, sum, failure } = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let result = failure.map_or(Ok(sum), Err);
    let outcome = match &result {
        Err(_) => Outcome::Failed,
        Ok(_) if interrupt.is_set() => {
            output::complain("interrupted");
            Outcome::Interrupted(interrupted::status(interrupt))
        }
        Ok(_) => Outcome::Done,
    };
    if args.json {
        let mut json = json_of(&result, clusters);
        json["first_seed"] = first.into();
        output::print(json)?;
    } else {
        output::print(match &result {
            Ok(report) => format!("seeds {first} to {}: {}", first + clusters.max(1) - 1, sentence(clusters, report)),
            Err(failure) => failure.to_string(),
        })?;
    }
    Ok(outcome)
}

impl HuntResult {
    fn record(&mut self, result: Result<Report, Failure>) {
        self.clusters += 1;
        match result {
            Ok(report) => {
                self.sum.hosts += report.hosts;
                self.sum.answered += report.answered;
                self.sum.failed += report.failed;
                self.sum.delivered += report.delivered;
                self.sum.lost += report.lost;
                self.sum.crashes += report.crashes;
                self.sum.kept += report.kept;
                self.sum.abandoned += report.abandoned;
                self.sum.silenced += report.silenced;
            }
            // The first failure is the one to report.
            Err(failure) => _ = self.failure.get_or_insert(failure),
        }
    }
}

fn sentence(clusters: u64, report: &Report) -> String {
    let Report { hosts, answered, failed, delivered, lost, crashes, .. } = report;
    let what = if clusters == 1 { "a cluster".to_owned() } else { format!("{clusters} clusters") };
    format!(
        "{what} with {}, of which {crashes} crashed; {} answered and {failed} failed as the rules allow; {} arrived \
         and {lost} {} lost; nothing was wrong",
        counted(*hosts, "host"),
        counted(*answered, "call"),
        counted(*delivered, "packet"),
        if *lost == 1 { "was" } else { "were" }
    )
}

fn json_of(result: &Result<Report, Failure>, clusters: u64) -> Value {
    match result {
        Ok(report) => json!({
            "ok": true,
            "clusters": clusters,
            "hosts": report.hosts,
            "crashes": report.crashes,
            "kept": report.kept,
            "abandoned": report.abandoned,
            "silenced": report.silenced,
            "answered": report.answered,
            "failed": report.failed,
            "delivered": report.delivered,
            "lost": report.lost,
            "trace": (clusters == 1).then(|| format!("{:016x}", report.trace_hash)),
        }),
        Err(failure) => json!({
            "ok": false,
            "clusters": clusters,
            "seed": failure.seed,
            "time_ns": failure.time_ns,
            "what": failure.what,
            "again": failure.replay_command(),
            "scenario": failure.scenario,
        }),
    }
}
