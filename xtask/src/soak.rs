//! Searches for bugs that take longer than a commit can wait.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{process, programs, test};

/// Crates whose property tests benefit from more cases. Their tests read `PROPTEST_CASES` (as proptest itself does);
/// those with a loop of their own read `SINEW_SOAK_SECONDS`.
const PACKAGES: &[&str] = &[
    "sinew-wire",
    "sinew-mem",
    "sinew-fabric",
    "sinew-conformance",
    "sinew-shm",
    "sinew-udp",
    "sinew-xdp",
    "sinew-rpc",
    "sinew-store",
    "sinew-journal",
    "sinew-replica",
    "sinew-remote-memory",
    "sinew-remote-block",
    "sinew-remote-fs",
    "sinew-far-memory",
    "sinew-tests",
];

/// Cases of a property in the first round; each round doubles them. Proptest's own default is 256.
const FIRST_CASES: u32 = 1024;
const CASES_MAX: u32 = 1 << 20;

/// Time that a kill takes in the guest at most, and time for all else there, in seconds.
const GUEST_SECONDS_PER_KILL: u64 = 120;
const GUEST_SECONDS_MORE: u64 = 900;

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Args {
    /// Start no further round after this many seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Only these crates (may be given more than once).
    #[arg(long)]
    package: Vec<String>,
    /// Leave the fuzz targets out.
    #[arg(long)]
    no_fuzz: bool,
    #[command(flatten)]
    kill_test: KillTest,
    /// With a test that kills: number of kills, however long they take [default: as many as fit in --seconds]
    #[arg(long)]
    kills: Option<u64>,
    /// With a test that kills: seed of the random choices, as an earlier run printed it.
    #[arg(long)]
    seed: Option<u64>,
    /// With a test that kills: fabric by which donors and services are reached: shm or udp.
    #[arg(long, default_value = "shm")]
    fabric: String,
}

/// Test that kills processes, instead of the property tests and fuzz targets.
#[derive(clap::Args)]
#[group(multiple = false)]
struct KillTest {
    /// Instead, kill donors and servers of a volume, and check that everything written is there.
    #[arg(long)]
    volumes: bool,
    /// Instead, kill donors, the service and mounts of a file system, and check that everything synced is there.
    #[arg(long)]
    files: bool,
    /// Instead, kill and stop members of a replicated store, and check that what its clients saw is linearizable, and
    /// that each write ran once.
    #[arg(long)]
    replica: bool,
    /// Instead, kill the leader of a replicated store under load --kills times, and print for how long writes stalled:
    /// the median, and the longest.
    #[arg(long, conflicts_with_all = ["seconds", "seed", "fabric"], requires = "kills")]
    leaders: bool,
    /// Instead, shut down the leader of a replicated store under load --kills times, and print the same figures as for
    /// --leaders.
    #[arg(long, conflicts_with_all = ["seconds", "seed", "fabric", "leaders"], requires = "kills")]
    stopped_leaders: bool,
    /// Instead, kill donors and the service of a file system that a program's memory is swapped to, and check every
    /// page (as root).
    #[arg(long)]
    swap: bool,
    /// Instead, kill donors of a volume whose block device a program's memory is swapped to, and check every page; in
    /// the guest, whose kernel has a client for such devices.
    #[arg(long)]
    swap_device: bool,
}

impl KillTest {
    /// Program and name of the test to run.
    fn test(&self) -> Option<(&'static str, &'static str)> {
        if self.leaders {
            return Some(("replica", "the_leader_is_killed_under_load"));
        }
        if self.stopped_leaders {
            return Some(("replica", "the_leader_is_stopped_under_load"));
        }
        let test = [
            (self.volumes, "what_was_written_is_in_the_volume_whoever_is_killed"),
            (self.files, "what_was_synced_is_in_the_files_whoever_is_killed"),
            (self.replica, "a_replicated_store_is_linearizable_whichever_member_is_killed"),
            (self.swap, "what_was_swapped_out_comes_back_whichever_donor_is_killed"),
            (self.swap_device, "what_was_swapped_out_to_a_volume_comes_back_whichever_donor_is_killed"),
        ]
        .into_iter()
        .find_map(|(is_wanted, test)| is_wanted.then_some(test));
        test.map(|test| (PROGRAM, test))
    }
}

/// Test program that holds most tests that kill.
const PROGRAM: &str = "kills";

/// Spends half of the time on property tests, in rounds of growing size and fresh seeds; the other half on fuzz
/// targets, where cargo-fuzz is installed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some((program, test)) = args.kill_test.test() {
        kill(args, program, test)?;
        println!("soak: nothing was lost");
        return Ok(());
    }
    let targets = if args.no_fuzz { Vec::new() } else { fuzz_targets()? };
    let share = if targets.is_empty() { args.seconds } else { args.seconds / 2 };
    property_rounds(args, Duration::from_secs(share))?;
    let seconds = (args.seconds - share).checked_div(targets.len() as u64).unwrap_or(0).max(1);
    for target in &targets {
        println!("soak: fuzz target {target} for {seconds} s");
        let mut command = process::nightly_cargo();
        command.args(["fuzz", "run", target, "--", &format!("-max_total_time={seconds}")]);
        process::run(&mut command)?;
    }
    println!("soak: nothing found");
    Ok(())
}

/// Runs a test that kills processes, for the time or number of kills that was asked for.
fn kill(args: &Args, program: &str, test: &str) -> anyhow::Result<()> {
    let mut command = if args.kill_test.swap_device { in_guest(args, program)? } else { on_this_machine(program) };
    command.args([test, "--exact", "--nocapture"]).env("SINEW_SOAK_FABRIC", &args.fabric);
    match args.kills {
        Some(kills) => command.env("SINEW_SOAK_KILLS", kills.to_string()),
        None => command.env("SINEW_SOAK_SECONDS", args.seconds.to_string()),
    };
    if let Some(seed) = args.seed {
        command.env("SINEW_SOAK_SEED", seed.to_string());
    }
    let (output, result) = process::tee_all(&mut process::with_errors_in_output(&command));
    result?;
    if let Some(skip) = test::skips(&output).first() {
        bail!("the test was skipped: {}", skip.why);
    }
    Ok(())
}

fn on_this_machine(program: &str) -> Command {
    let mut command = process::cargo();
    command.args(["test", "--release", "--locked", "--package", "sinew-tests", "--test", program, "--"]);
    command
}

/// A test program, to be run in the guest, for as long as is asked for and some minutes more.
fn in_guest(args: &Args, program: &str) -> anyhow::Result<Command> {
    let programs = programs::build(&["sinew-tests".to_owned()])?;
    let name = format!("tests: {program}");
    let program = programs.into_iter().find(|program| program.name == name).context("the build made no such test")?;
    let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
    let timeout_s = args
        .kills
        .map_or(args.seconds, |kills| kills.saturating_mul(GUEST_SECONDS_PER_KILL))
        .saturating_add(GUEST_SECONDS_MORE);
    command.args(["guest", "--timeout-s", &timeout_s.to_string(), "--"]).arg(program.executable);
    Ok(command)
}

fn property_rounds(args: &Args, time: Duration) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut cases = FIRST_CASES;
    for round in 1.. {
        let left = time.saturating_sub(started.elapsed());
        if left.is_zero() {
            break;
        }
        println!("soak: round {round}: {cases} cases a property, {} s left", left.as_secs());
        let mut command = process::cargo();
        command.args(["test", "--release"]);
        let all = || PACKAGES.iter().map(|name| (*name).to_owned()).collect();
        let packages: Vec<String> = if args.package.is_empty() { all() } else { args.package.clone() };
        command.args(packages.iter().flat_map(|name| ["--package", name]));
        command.args(["--lib", "--tests"]);
        command.env("PROPTEST_CASES", cases.to_string());
        command.env("SINEW_SOAK_SECONDS", left.as_secs().div_ceil(2).max(1).to_string());
        process::run(&mut command)?;
        cases = (cases * 2).min(CASES_MAX);
    }
    Ok(())
}

fn fuzz_targets() -> anyhow::Result<Vec<String>> {
    if !process::works(process::nightly_cargo().args(["fuzz", "--version"])) {
        println!("soak: no fuzz targets: they need a nightly toolchain and `cargo install cargo-fuzz`");
        return Ok(Vec::new());
    }
    let listed = process::output(process::nightly_cargo().args(["fuzz", "list"]))?;
    Ok(listed.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
}
