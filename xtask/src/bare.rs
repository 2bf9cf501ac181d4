//! Runs the tests as an ordinary user on a poor machine.
//!
//! The test programs are built once, as usual. Then each runs with less than usual: as another user, on a network
//! without IPv6, without `/dev/shm`, with 64 KB of lockable memory and one CPU. Most of this needs root. Without root,
//! the programs run under the limits on memory and CPU only, and a message says so.
//!
//! Restricted programs share neither network nor home, so they run beside each other, each on a CPU of its own. One
//! that fails runs again by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::process;
use crate::programs::{self, TestProgram};

/// Arguments of `cargo xtask bare`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these crates (may be given more than once); all when none is given.
    #[arg(long)]
    package: Vec<String>,
}

/// User and group without rights.
const NOBODY: u32 = 65534;

/// Memory that may be locked, in KB: the default of older kernels.
const LOCKABLE_KB: u32 = 64;

/// Runs in new network and mount namespaces: turns IPv6 off, brings `lo` up, hides `/dev/shm`, drops privileges and
/// runs a program. `$0` is a script name for messages, `$1` the user's number, and the rest is the program.
const POOR_MACHINE: &str = r#"
set -eu
user=$1; shift
if [ -w /proc/sys/net/ipv6/conf/all/disable_ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; fi
ip link set lo up
if [ -d /dev/shm ]; then mount -t tmpfs -o ro,mode=000 none /dev/shm; fi
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs "$@"
"#;

/// Programs (by the beginning of their names) whose tests ask the system for memory alone, so that a poor machine makes
/// no difference to them, or which an ordinary user cannot run. They are left out, since many of them take long.
const SYSTEM_INDEPENDENT: &[&str] = &[
    "cost: ",
    "herd: ",
    // Its tests compile misuse with cargo, to see it refused.
    "interleave: ",
    "kv: random",
    "lab: ",
    // Runs in the compiler, whose libraries an ordinary user may not have.
    "macros: ",
    "remote-memory: ",
    "rpc: ",
    "sequencer: ",
    "sim: ",
    "store: ",
    "wire: ",
    // Its tests run cargo, which an ordinary user may not have.
    "xtask: ",
];
/// Exceptions to [`SYSTEM_INDEPENDENT`]: their tests also ask for file descriptors.
const ASK_FOR_DESCRIPTORS: &[&str] = &["rpc: sleeping", "rpc: handle"];

fn asks_the_system(program: &str) -> bool {
    let begins = |with: &&str| program.starts_with(with);
    ASK_FOR_DESCRIPTORS.iter().any(begins) || !SYSTEM_INDEPENDENT.iter().any(begins)
}

/// Builds the tests, then runs each program with little.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut programs = programs::build(&args.package)?;
    programs.retain(|program| asks_the_system(&program.name));
    if programs.is_empty() {
        bail!("these crates have no test programs that run here");
    }
    let is_restricted = can_restrict(&programs[0].executable);
    let mut cpus = allowed_cpus();
    if !is_restricted {
        println!(
            "bare: not root, or no right to make namespaces, or no ip or setpriv, or the build is out of an ordinary \
             user's reach: the tests run as this user, with IPv6 and /dev/shm as they are, on one CPU with \
             {LOCKABLE_KB} KB of lockable memory"
        );
        cpus.truncate(1);
    }
    let next = Mutex::new(programs.iter());
    let outcomes = Mutex::new(Outcomes::default());
    std::thread::scope(|scope| {
        let run_all = |cpu| {
            let home = Home::new(cpu)?;
            loop {
                // The lock is let go before the program runs.
                let Some(program) = next.lock().expect("no runner panics").next() else { return Ok(()) };
                let (output, result) = run_program(program, &home, cpu, is_restricted);
                outcomes.lock().expect("no runner panics").add(program, &output, result);
            }
        };
        let runners: Vec<_> =
            cpus.iter().map(|cpu| scope.spawn(move || -> anyhow::Result<()> { run_all(*cpu) })).collect();
        runners.into_iter().try_for_each(|runner| runner.join().expect("no runner panics"))
    })?;
    let Outcomes { mut passed, failed } = outcomes.into_inner().expect("no runner panics");
    let mut failed_again = Vec::new();
    for program in failed {
        let (output, result) = run_program(program, &Home::new(cpus[0])?, cpus[0], is_restricted);
        println!("{output}");
        match result {
            Ok(()) => {
                passed += process::tests_passed(&output);
                println!("!!! flaky: {} failed beside others, but passed alone", program.name);
            }
            Err(error) => failed_again.push(format!("{}: {error}", program.name)),
        }
    }
    if !failed_again.is_empty() {
        bail!("tests need more than a poor machine has:\n  {}", failed_again.join("\n  "));
    }
    println!("bare: {passed} tests passed in {} programs", programs.len());
    Ok(())
}

/// Runs a program with little, to its end; returns what it wrote.
fn run_program(program: &TestProgram, home: &Home, cpu: usize, is_restricted: bool) -> (String, anyhow::Result<()>) {
    println!("bare: {} begins", program.name);
    let began = Instant::now();
    let outcome = process::quiet(&mut restricted_command(program, &home.0, cpu, is_restricted));
    println!("bare: {} took {} s", program.name, began.elapsed().as_secs());
    outcome
}

/// Outcomes of the programs so far.
#[derive(Default)]
struct Outcomes<'a> {
    /// Number of tests that passed.
    passed: usize,
    /// Programs that failed.
    failed: Vec<&'a TestProgram>,
}

impl<'a> Outcomes<'a> {
    /// Adds a program that has ended, and prints what it wrote.
    fn add(&mut self, program: &'a TestProgram, output: &str, result: anyhow::Result<()>) {
        println!("bare: {}:\n{output}", program.name);
        match result {
            Ok(()) => self.passed += process::tests_passed(output),
            Err(_) => self.failed.push(program),
        }
    }
}

/// A home for the poor user, removed when dropped.
struct Home(PathBuf);

impl Home {
    /// A home for the programs on a CPU.
    fn new(cpu: usize) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("sinew-bare-{}-{cpu}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let home = Self(path);
        if process::is_root() {
            std::os::unix::fs::chown(&home.0, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(home)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a poor user can be set up here, and can run this program.
fn can_restrict(program: &Path) -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", POOR_MACHINE, "bare"]);
    process::is_root() && process::works(command.arg(NOBODY.to_string()).args(["test", "-x"]).arg(program))
}

fn restricted_command(program: &TestProgram, home: &Path, cpu: usize, is_restricted: bool) -> Command {
    let limits = format!("ulimit -l {LOCKABLE_KB}; exec taskset -c \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &limits, &cpu.to_string()]);
    if is_restricted {
        command.args(["unshare", "--net", "--mount", "sh", "-c", POOR_MACHINE, "bare", &NOBODY.to_string()]);
    }
    command.arg(&program.executable);
    // With one CPU, the harness would start one test thread anyway; this says so explicitly.
    command.args(["--test-threads", "1"]);
    command.current_dir(&program.folder).stdin(std::process::Stdio::null());
    for variable in ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.env_remove(variable);
    }
    command.envs([("HOME", home), ("TMPDIR", home), ("CARGO_MANIFEST_DIR", &program.folder)]);
    command
}

/// CPUs that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let mut cpus = cpus_in(list.trim());
    // A control group may allow the time of fewer.
    cpus.truncate(std::thread::available_parallelism().map_or(1, usize::from));
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// CPUs in a list such as `0-2,5`.
fn cpus_in(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus_in("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cpus_in("7"), [7]);
        assert_eq!(cpus_in(""), [0; 0]);
    }
}
