//! `sinew advise`: which design suits a workload on a NIC. `sinew_lab::advise` decides what is tried, and how.

mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use sinew_harness::units::{self, parse_count, parse_seconds, parse_size};
use sinew_harness::{Figure, Unit, figure};
use sinew_lab::advise::{self, Advice, CpuLoad, Goal, Guideline, Ranking, Workload, WorkloadKind};
use sinew_sim::nic::Profile;

use crate::infile::read;
use crate::{Outcome, Usage, interrupted, model, output};

const HELP: &str = "\
Simulates every design from the papers that the workload allows on the modelled
NIC, in virtual time, searches their settings from coarse to fine, and ranks them
by the goal. Nothing is measured; docs/advise.md says what is simulated, and how
far to trust it.

With --workload, a file says what the options would; an option overrides the
file. A file:

  kind = \"cache\"             # or sequencer, locks, reads
  object_bytes = 48
  read_share = 0.95
  goal = \"throughput\"        # or latency
  server_cpu = \"busy\"

Examples:
  sinew advise cache --nic cx3
  sinew advise cache --nic cib --object 32 --read-share 1
  sinew advise reads --nic cx3-roce10 --accesses 2 --no-batches
  sinew advise locks --nic cib --server-cpu busy
  sinew advise --workload mine.toml --nic mine-too.toml --json";

/// Kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// GETs and PUTs of items by key
    Cache,
    /// The next number of one counter
    Sequencer,
    /// Locks, acquired and released, one of many at a time
    Locks,
    /// An object at a known address, or at the end of a chain of pointers
    Reads,
}

/// Figure that ranks the designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GoalArg {
    /// Mean latency of a client that has one operation in flight at a time
    Latency,
    /// Operations a second, over all clients
    Throughput,
}

/// Other load on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadArg {
    /// None
    Idle,
    /// A program computes all the time on each core
    Busy,
}

/// The workload, and the NIC.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Kind of workload
    #[arg(value_enum, ignore_case = true, required_unless_present = "workload", conflicts_with = "workload")]
    kind: Option<KindArg>,
    /// NIC of all hosts: a name from `sinew model nics`, or a TOML file
    #[arg(long, value_name = "NIC|FILE")]
    nic: String,
    /// Read the workload from a TOML file
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Size of an object, in bytes, 1 to 1M, or of a cache's item with its 16-byte key, from 17; always 8 for
    /// sequencers and locks [default: 48 for a cache, 64 for reads]
    #[arg(long, alias = "object-bytes", value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    object: Option<usize>,
    /// Memory accesses of an operation, each of which needs the result of the one before, 1 to 8 (a cache: 1 or 2); 1
    /// if the address is known [default: 2 for a cache, else 1]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    accesses: Option<usize>,
    /// Share of operations that change nothing, 0 to 1 [default: 0.95 for a cache, else 1]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    read_share: Option<f64>,
    /// Number of client threads, on other hosts, 1 to 10000 [default: 64]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    peers: Option<usize>,
    /// Number of locks, one in each record of 4 KB, 1 to 65536 [default: 4096]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_count)]
    locks: Option<usize>,
    /// Other load on the clients' processors [default: idle]
    #[arg(long, value_enum, ignore_case = true)]
    client_cpu: Option<LoadArg>,
    /// Other load on the server's processors [default: idle]
    #[arg(long, value_enum, ignore_case = true)]
    server_cpu: Option<LoadArg>,
    /// Figure that ranks the designs [default: latency for reads, else throughput]
    #[arg(long, value_enum, ignore_case = true)]
    goal: Option<GoalArg>,
    /// Assume that others READ megabytes at a time from the same server
    #[arg(long)]
    bulk: bool,
    /// Have the server take and answer one request at a time, never a batch
    #[arg(long)]
    no_batches: bool,
    /// Seconds after which the search for better settings ends, 0.01 to 86400
    #[arg(long, default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn workload(&self) -> anyhow::Result<Workload> {
        let mut workload = match (&self.workload, self.kind) {
            (Some(path), _) => read(path, |text| Ok(Workload::parse(text)?))?,
            (None, kind) => Workload::of(match kind.expect("clap asks for it") {
                KindArg::Cache => WorkloadKind::Cache,
                KindArg::Sequencer => WorkloadKind::Sequencer,
                KindArg::Locks => WorkloadKind::Locks,
                KindArg::Reads => WorkloadKind::Reads,
            }),
        };
        let load = |load| match load {
            LoadArg::Idle => CpuLoad::Idle,
            LoadArg::Busy => CpuLoad::Busy,
        };
        fn set<T>(field: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *field = given;
            }
        }
        set(&mut workload.object_bytes, self.object);
        set(&mut workload.accesses, self.accesses);
        set(&mut workload.read_share, self.read_share);
        set(&mut workload.peers, self.peers);
        set(&mut workload.locks, self.locks);
        set(&mut workload.client_cpu, self.client_cpu.map(load));
        set(&mut workload.server_cpu, self.server_cpu.map(load));
        let goal = self.goal.map(|goal| if goal == GoalArg::Latency { Goal::Latency } else { Goal::Throughput });
        set(&mut workload.goal, goal);
        workload.bulk |= self.bulk;
        workload.batches &= !self.no_batches;
        match workload.problem() {
            Some((field, problem)) => {
                let option = if field == "object_bytes" { "object".to_owned() } else { field.replace('_', "-") };
                let example = match field {
                    "object_bytes" => "--object 64",
                    "accesses" => "--accesses 2",
                    "read_share" => "--read-share 0.95",
                    "peers" => "--peers 64",
                    _ => "--locks 4096",
                };
                let of = workload.kind.name();
                let text = match problem.contains("means nothing") || workload.kind == WorkloadKind::Sequencer {
                    true => format!("--{option}: {problem}"),
                    false => format!("--{option}: {problem} for {of}, as in {example}"),
                };
                Err(Usage(text).into())
            }
            None => Ok(workload),
        }
    }
}

/// Searches, and prints the ranking.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    interrupted::exit_on_signal()?;
    let nic = model::nic(&args.nic)?;
    let workload = args.workload()?;
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{msg:24} {wide_bar} {percent}%").expect("a fixed template"));
    bar.set_message(format!("{} on {}", workload.kind.name(), nic.name));
    let began = Instant::now();
    let all = advise::advise(&nic, &workload, &mut |part| {
        bar.set_position((part * 1000.0) as u64);
        began.elapsed() < args.seconds
    });
    bar.finish_and_clear();
    ensure!(
        !all.designs.is_empty(),
        "no operation finished within a simulated time that should suffice for the workload: check the times and rates of {}",
        nic.name
    );
    if args.json {
        let Ranking { designs, is_complete } = &all;
        let results = designs.iter().enumerate();
        let results = results.map(|(at, advice)| result_of(&nic, &workload, *is_complete, at, advice).to_json());
        output::print(figure::list(results))?;
    } else {
        output::print(text::of(&nic, &workload, &all))?;
    }
    Ok(Outcome::Done)
}

fn setup(nic: &Profile, workload: &Workload) -> Value {
    let Workload {
        kind,
        object_bytes,
        accesses,
        read_share,
        peers,
        locks,
        client_cpu,
        server_cpu,
        goal,
        bulk,
        batches,
    } = workload;
    json!({
        "nic": nic.name,
        "kind": kind.name(),
        "object_bytes": object_bytes,
        "accesses": accesses,
        "read_share": read_share,
        "peers": peers,
        "locks": (*kind == WorkloadKind::Locks).then_some(locks),
        "client_cpu": client_cpu.name(),
        "server_cpu": server_cpu.name(),
        "goal": goal.name(),
        "bulk": bulk,
        "batches": batches,
    })
}

/// A design, in the schema of all results.
fn result_of(nic: &Profile, workload: &Workload, is_complete: bool, at: usize, advice: &Advice) -> Figure {
    let outcome = &advice.outcome;
    let (value, unit) = match workload.goal {
        Goal::Throughput => (Some(outcome.rate_mops), Unit::Mops),
        Goal::Latency => (outcome.times.map(|times| times.mean_ns as f64), Unit::Ns),
    };
    Figure {
        bench: "advise".to_owned(),
        title: advice.name.clone(),
        value,
        unit,
        slices: Vec::new(),
        compared: None,
        latency: None,
        invalid_because: Vec::new(),
        surroundings: None,
        setup: setup(nic, workload),
        details: details(is_complete, at, advice),
        lines: Vec::new(),
    }
}

fn details(is_complete: bool, at: usize, advice: &Advice) -> Value {
    let (outcome, settings) = (&advice.outcome, &advice.plan.settings);
    let guideline_json = |guideline: &Guideline| json!({ "text": guideline.text, "sections": guideline.sections });
    let mut all = Map::new();
    let mut put = |key: &str, value: Value| all.insert(key.to_owned(), value);
    put("is_complete", is_complete.into());
    put("rank", (at + 1).into());
    put("name", advice.name.clone().into());
    put("reads", json!(advice.plan.reads));
    put("rate_mops", units::rounded(outcome.rate_mops).into());
    put("mean_ns", json!(outcome.times.map(|times| times.mean_ns)));
    put("p50_ns", json!(outcome.times.map(|times| times.p50_ns)));
    put("p99_ns", json!(outcome.times.map(|times| times.p99_ns)));
    put("client_cpu_ns", units::rounded(outcome.cpu_ns.0).into());
    put("server_cpu_ns", units::rounded(outcome.cpu_ns.1).into());
    put("limit", advice.limit.0.name().as_ref().into());
    put("limit_share", units::rounded(advice.limit.1).into());
    put(
        "settings",
        json!({
            "window": settings.window,
            "batch": settings.batch,
            "queue_pairs": settings.queue_pairs,
            "inline": settings.inline,
            "signal": settings.signal,
            "client_wait": settings.client_wait.name(),
            "server_wait": settings.server_wait.name(),
            "threads": settings.threads,
            "mtu": settings.mtu,
        }),
    );
    put("why", guideline_json(&advice.why));
    put("guidelines", Value::Array(advice.settings.iter().map(guideline_json).collect()));
    put("confidence", advice.trust.level.name().into());
    put("warnings", json!(advice.trust.warnings));
    Value::Object(all)
}
