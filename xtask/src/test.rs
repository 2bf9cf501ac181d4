//! Runs the tests, and checks which of them were skipped.
//!
//! A test that lacks something prints `skipped: WHY [TEST]` on standard error and returns. A list says which tests may
//! be skipped, and where. Any other skipped test makes the run fail, so that none goes unnoticed.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::process;
use crate::programs::{self, TestProgram};

/// Path of the list, from the workspace's root.
const LIST: &str = "xtask/skipped-tests.toml";

/// Tests for the guest: the beginning of a program's name, and filters for its tests, where none means all.
type GuestTests = &'static [(&'static str, &'static str)];

/// Tests that run in the guest. Emulated processors are slow, so only these run there.
const GUEST_TESTS: GuestTests = &[
    ("ibverbs: ", ""),
    ("tests: named_ports", "a_service two_processes a_device"),
    (
        "tests: rpc_over_ibverbs",
        "calls:: handlers:: peers:: protocol:: recovery:: sessions:: unreachable:: packets_are_carried",
    ),
    ("tests: services_on_verbs", "a_device_carries"),
    ("tests: remote_memory", "by_device::"),
    ("tests: volume_processes", "over_rdma"),
    ("tests: mounted", "over_rdma"),
    ("tests: swap", "a_file_in a_served a_server the_program"),
];

/// Tests that run in the guest with `--long` only. What they try is also tried by others, by shorter ways.
const LONG_GUEST_TESTS: GuestTests = &[
    ("tests: named_ports", "a_named the_facade a_benchmark"),
    ("tests: kills", "what_was_swapped_out_to_a_volume"),
    ("tests: swap", "a_file_is a_file_that the_program"),
];

/// Time in seconds after which the guest is stopped. On a slow machine its tests have taken more than twenty minutes.
const GUEST_TIMEOUT_S: &str = "1800";

/// Programs (by the beginning of their names) whose tests start processes and threads and wait for them in real time.
/// If one of these tests fails while others run, it is run again alone; if it then passes, it is reported as
/// flaky. All other programs run in virtual time or from seeds, so their failures are always real. `lab` is counted
/// among those others, although one of its tests measures two threads.
const IN_REAL_TIME: &[&str] = &[
    "cli: ",
    "conformance: ",
    "harness: ",
    "ibverbs: ",
    "kv: door",
    "kv: hostile_clients",
    "kv: memcached",
    "shm: ",
    "tests: ",
    "udp: ",
    "xdp: ",
];
/// Most failed tests that are run again. If more fail, chance is not the cause.
const RETRIES_MAX: usize = 3;

/// Runs programs, each in its folder. Every program has four arguments: its name, folder, executable and test filters.
const RUN_ALL: &str = r#"
status=0
while [ "$#" -ge 4 ]; do
    printf '\n=== %s\n' "$1"
    began=$(date +%s)
    (cd "$2" && CARGO_MANIFEST_DIR=$2 exec "$3" $4) 2>&1 || { status=1; printf '!!! %s failed\n' "$1"; }
    took=$(($(date +%s) - began))
    [ "$took" -lt 10 ] || printf -- '--- %s: %d s\n' "$1" "$took"
    shift 4
done
exit "$status"
"#;

/// Prefix of the line that names a program before its tests.
const HEADING: &str = "=== ";
/// Prefix of the line that names a program after one of its tests failed.
const FAILURE: &str = "!!! ";
/// Text before the reason for which a test is skipped.
const SKIPPED: &str = "skipped: ";

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these crates (may be given more than once); all when none is given.
    #[arg(long)]
    package: Vec<String>,
    /// Run only the tests that need an RDMA device, in the guest, which has one.
    #[arg(long)]
    guest: bool,
    /// With `--guest`: the tests that CI leaves out.
    #[arg(long, requires = "guest")]
    long: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// Tests that may be skipped on the machine itself.
    machine: Vec<Allowed>,
    /// Tests that may be skipped in the guest.
    guest: Vec<Allowed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    /// Name of the program, as the heading above its tests has it.
    program: String,
    /// Beginning of the reason that the test prints.
    why: String,
    /// Tests of the program that may be skipped; empty for all.
    #[serde(default)]
    tests: Vec<String>,
}

/// A test that failed.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    program: String,
    test: String,
}

/// A test that was skipped.
#[derive(Debug, PartialEq, Eq)]
pub struct Skip {
    program: String,
    test: String,
    /// The reason that it gave.
    pub why: String,
}

/// Builds the tests, runs them, and checks which were skipped.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(process::workspace_root().join(LIST));
    let list: List = toml::from_str(&text.with_context(|| format!("cannot read {LIST}"))?)
        .with_context(|| format!("{LIST} is not as expected"))?;
    let mut programs = programs::build(&args.package)?;
    let guest_tests = args.guest.then_some(if args.long { LONG_GUEST_TESTS } else { GUEST_TESTS });
    if let Some(tests) = guest_tests {
        programs.retain(|program| in_guest(program, tests).is_some());
    }
    let (allowed, place) = if args.guest { (&list.guest, "the guest") } else { (&list.machine, "this machine") };
    let (output, result) = process::tee_all(&mut command(&programs, guest_tests)?);
    let failed: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix(FAILURE)).collect();
    let flaky = if result.is_err() && !args.guest { run_again(&programs, &output)? } else { Vec::new() };
    if result.is_err() && flaky.is_empty() {
        // The error leaves out the command, which is long; the output above has what matters.
        bail!("{}", if failed.is_empty() { format!("{place} could not run the tests") } else { failed.join(", ") });
    }
    if !args.guest {
        doc_tests(&args.package)?;
    }
    let skips = skips(&output);
    let unexpected: Vec<String> = skips.iter().filter(|skip| !may_skip(allowed, skip)).map(show).collect();
    if !unexpected.is_empty() {
        bail!("tests were skipped that {LIST} does not name for {place}:\n  {}", unexpected.join("\n  "));
    }
    println!(
        "\ntest: {} passed in {} programs on {place}; {} of them said that they were skipped, as {LIST} allows",
        process::tests_passed(&output),
        programs.len(),
        skips.len()
    );
    for Failure { program, test } in flaky {
        println!("!!! flaky: {program}: {test} failed beside others, but passed alone");
    }
    Ok(())
}

/// Runs failed tests again, one by one, if the machine's load may be the cause. Returns them if they were the only
/// failures and now passed, and none otherwise.
fn run_again(programs: &[TestProgram], output: &str) -> anyhow::Result<Vec<Failure>> {
    let Some(failures) = failures(output).filter(|failures| failures.len() <= RETRIES_MAX) else {
        return Ok(Vec::new());
    };
    for Failure { program: program_name, test } in &failures {
        let program = programs
            .iter()
            .find(|program| program.name == *program_name)
            .context("the output names a program that was not started")?;
        println!("\n=== again: {program_name}: {test}");
        let mut command = Command::new(&program.executable);
        command
            .args([test, "--exact", "--test-threads=2"])
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder);
        let (output_again, result) = process::tee_all(command.stdin(Stdio::null()));
        if result.is_err() || process::tests_passed(&output_again) != 1 {
            return Ok(Vec::new());
        }
    }
    Ok(failures)
}

/// Returns the tests that failed; `None` if anything else went wrong, or if one belongs to a program that does not run
/// in real time.
fn failures(output: &str) -> Option<Vec<Failure>> {
    let (mut program, mut found, mut explained) = ("", Vec::new(), true);
    for line in output.lines() {
        if let Some(name) = line.strip_prefix(HEADING) {
            (program, explained) = (name, false);
        } else if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
            if !IN_REAL_TIME.iter().any(|beginning| program.starts_with(beginning)) {
                return None;
            }
            found.push(Failure { program: program.into(), test: test.into() });
            explained = true;
        } else if line.starts_with(FAILURE) && !explained {
            return None;
        }
    }
    Some(found)
}

/// Returns filters for the tests of a program that are among these; `None` if none are.
fn in_guest(program: &TestProgram, tests: GuestTests) -> Option<&'static str> {
    tests.iter().find(|(beginning, _)| program.name.starts_with(beginning)).map(|(_, tests)| *tests)
}

/// Returns the command that runs the programs, here, or these tests of theirs in the guest.
fn command(programs: &[TestProgram], guest_tests: Option<GuestTests>) -> anyhow::Result<Command> {
    let mut command = if guest_tests.is_some() {
        let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        command.args(["guest", "--timeout-s", GUEST_TIMEOUT_S, "--", "sh"]).env("SINEW_RDMA", "1");
        command
    } else {
        Command::new("sh")
    };
    command.args(["-c", RUN_ALL, "sh"]).stdin(Stdio::null()).current_dir(process::workspace_root());
    for program in programs {
        let tests = guest_tests.and_then(|tests| in_guest(program, tests)).unwrap_or_default();
        command.arg(&program.name).arg(&program.folder).arg(&program.executable).arg(tests);
    }
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // `skipped` takes a test's name from its thread, and libtest names threads for tests only if it runs two or
        // more.
        let threads = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
        command.env("RUST_TEST_THREADS", threads.to_string());
    }
    Ok(command)
}

fn doc_tests(packages: &[String]) -> anyhow::Result<()> {
    let mut command = process::cargo();
    command.args(["test", "--doc"]).args(packages.iter().flat_map(|name| ["--package", name]));
    if packages.is_empty() {
        command.arg("--workspace");
    }
    process::run(&mut command)
}

/// Returns the skipped tests that an output names.
pub fn skips(output: &str) -> Vec<Skip> {
    let mut program = "";
    let mut skips = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix(HEADING) {
            program = name;
        } else if let Some((_, skipped)) = line.split_once(SKIPPED) {
            let named = skipped.strip_suffix(']').and_then(|skipped| skipped.rsplit_once(" ["));
            let (why, test) = named.unwrap_or((skipped, "a test without a name"));
            skips.push(Skip { program: program.into(), test: test.into(), why: why.into() });
        }
    }
    skips
}

fn may_skip(allowed: &[Allowed], skip: &Skip) -> bool {
    allowed.iter().any(|entry| {
        entry.program == skip.program
            && skip.why.starts_with(&entry.why)
            && (entry.tests.is_empty() || entry.tests.contains(&skip.test))
    })
}

fn show(skip: &Skip) -> String {
    format!("{}: {}: {}", skip.program, skip.test, skip.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\n=== shm: verbs\nrunning 1 test\ntest a ... ok\n\
        \n=== ibverbs: verbs\nskipped: no device: no [such] thing [a_b]\ntest m::c ... skipped: no gcc [m::c]\nok\nskipped: why\n";

    fn skip(test: &str, why: &str) -> Skip {
        Skip { program: "ibverbs: verbs".into(), test: test.into(), why: why.into() }
    }

    #[test]
    fn skipped_tests_are_found_with_their_programs_and_reasons() {
        let unnamed = skip("a test without a name", "why");
        let expected = [skip("a_b", "no device: no [such] thing"), skip("m::c", "no gcc"), unnamed];
        assert_eq!(skips(OUTPUT), expected);
    }

    #[test]
    fn a_skip_needs_its_program_its_reason_and_its_name_on_the_list() {
        let list = "guest = []\n[[machine]]\nprogram = 'ibverbs: verbs'\nwhy = 'no device'\n\
            [[machine]]\nprogram = 'ibverbs: verbs'\nwhy = 'no gcc'\ntests = ['m::c']\n";
        let List { machine, guest } = toml::from_str(list).unwrap();
        let allowed = |skip: &Skip| (may_skip(&machine, skip), may_skip(&guest, skip));
        assert_eq!(allowed(&skip("any", "no device: none")), (true, false));
        assert_eq!(allowed(&skip("any", "no gcc")), (false, false));
        assert_eq!(allowed(&skip("m::c", "no gcc")), (true, false));
        let elsewhere = Skip { program: "shm: verbs".into(), ..skip("any", "no device") };
        assert_eq!(allowed(&elsewhere), (false, false));
    }

    #[test]
    fn all_programs_run_and_a_failure_is_told() {
        let program = |name: &str, executable: &str| TestProgram {
            executable: executable.into(),
            folder: "/".into(),
            name: name.into(),
        };
        let programs = [program("a: a", "/bin/false"), program("b: it's b", "/bin/pwd")];
        let (output, result) = process::tee_all(&mut command(&programs, None).unwrap());
        assert!(result.is_err());
        assert_eq!(output, "\n=== a: a\n!!! a: a failed\n\n=== b: it's b\n/\n");
    }

    #[test]
    fn only_tests_in_real_time_are_run_again_and_only_when_they_are_all_that_failed() {
        let failure = |program: &str, test: &str| Failure { program: program.into(), test: test.into() };
        let shm = "\n=== shm: ports\ntest a ... ok\ntest m::b ... FAILED\n!!! shm: ports failed\n";
        let ok = "\n=== rpc: calls\ntest a ... ok\n";
        assert_eq!(failures(&format!("{ok}{shm}{ok}")), Some(vec![failure("shm: ports", "m::b")]));
        let seeded = "\n=== rpc: random\ntest a ... FAILED\n!!! rpc: random failed\n";
        assert_eq!(failures(&format!("{shm}{seeded}")), None);
        let crashed = "\n=== udp: port\ntest a ... ok\n!!! udp: port failed\n";
        assert_eq!(failures(&format!("{shm}{crashed}")), None);
    }

    #[test]
    fn what_passes_when_run_again_is_flaky_and_what_fails_again_failed() {
        let own = std::env::current_exe().unwrap();
        let programs =
            [TestProgram { executable: own.to_str().unwrap().into(), folder: "/".into(), name: "shm: x".into() }];
        let output = |test: &str| format!("\n=== shm: x\ntest {test} ... FAILED\n!!! shm: x failed\n");
        let passes = "test::tests::in_the_guest_nothing_may_be_skipped";
        assert_eq!(run_again(&programs, &output(passes)).unwrap().len(), 1);
        assert_eq!(run_again(&programs, &output("test::tests::no_such_test")).unwrap(), []);
        assert_eq!(run_again(&programs, &output(passes).repeat(4)).unwrap(), []);
    }

    #[test]
    fn in_the_guest_nothing_may_be_skipped() {
        let text = std::fs::read_to_string(process::workspace_root().join(LIST)).unwrap();
        let list: List = toml::from_str(&text).unwrap();
        assert!(list.guest.is_empty());
    }
}
