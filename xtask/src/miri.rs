//! Runs tests under miri, counts them, and checks that every exclusion is listed with its reason.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::process;
use crate::tidy::rust_files;

/// Path of the list, from the workspace's root.
const LIST: &str = "xtask/miri-tests.toml";

/// Arguments of `cargo xtask miri`.
#[derive(clap::Args)]
pub struct Args {
    /// Succeed, with a message, if there is no nightly toolchain with miri.
    #[arg(long)]
    if_present: bool,
    /// Raise the minimums in the list to the number of tests that passed.
    #[arg(long)]
    update: bool,
    /// Only this package.
    #[arg(long)]
    package: Option<String>,
    /// Also run the programs that take many minutes.
    #[arg(long)]
    long: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    package: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: String,
    /// Tests that must pass.
    tests_min: usize,
    /// Tests left out by name.
    #[serde(default)]
    exclude: Vec<Excluded>,
    /// Files that hide tests from miri.
    #[serde(default)]
    hidden: Vec<Hidden>,
    /// Tests that must pass with `--long`, and at least `tests_min`.
    #[serde(default)]
    tests_min_long: usize,
    /// Test programs that run with `--long` only.
    #[serde(default)]
    long: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Excluded {
    test: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hidden {
    file: String,
    reason: String,
}

/// Checks the list, runs the tests and compares the numbers.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = process::workspace_root().join(LIST);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {LIST}"))?;
    let list: List = toml::from_str(&text).with_context(|| format!("{LIST} is not as expected"))?;
    let mut findings = check_sources(&list)?;
    findings.extend(list.package.iter().flat_map(check_reasons));
    if !findings.is_empty() {
        bail!("{LIST} does not match the sources:\n  {}", findings.join("\n  "));
    }
    if !process::works(process::nightly_cargo().args(["miri", "--version"])) {
        const REMEDY: &str = "rustup component add --toolchain nightly miri rust-src";
        if args.if_present {
            println!("miri: skipped: no nightly with miri ({REMEDY})");
            return Ok(());
        }
        bail!("there is no nightly toolchain with miri: {REMEDY}");
    }
    let mut updated = text;
    for listed in list.package.iter().filter(|listed| args.package.as_ref().is_none_or(|name| *name == listed.name)) {
        let passed = run_package(listed, args.long)?;
        if let Some(fall) = shortfall(listed, args.long, passed) {
            findings.push(fall);
        }
        if passed > listed.tests_min && !args.long {
            updated = with_minimum(&updated, &listed.name, passed);
        }
    }
    if !findings.is_empty() {
        bail!("{}", findings.join("\n"));
    }
    if args.update {
        std::fs::write(&path, updated).with_context(|| format!("cannot write {LIST}"))?;
    }
    Ok(())
}

fn run_package(listed: &Listed, long: bool) -> anyhow::Result<usize> {
    println!("miri: {}", listed.name);
    process::run(miri_test(&listed.name).args(["--lib", "--tests", "--no-run"]))?;
    // Miri runs all threads of a program on one core.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut programs = test_programs(&listed.name)?;
    let unknown_programs: Vec<_> =
        listed.long.iter().filter(|name| !programs.iter().any(|program| program.contains(name))).collect();
    if !unknown_programs.is_empty() {
        bail!("{}: {LIST} leaves {unknown_programs:?} for --long, but there are no such test programs", listed.name);
    }
    programs.retain(|program| long || !listed.long.iter().any(|name| program.contains(name)));
    let programs = Mutex::new(programs);
    let results = std::thread::scope(|threads| {
        let worker = || {
            let mut results = Vec::new();
            // The lock is released before the program runs.
            while let Some(program) = { programs.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
                results.push(run_program(listed, &program));
            }
            results
        };
        let workers: Vec<_> = (0..cores).map(|_| threads.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect::<Vec<_>>()
    });
    let mut passed = 0;
    let mut failures = Vec::new();
    for result in results {
        match result {
            Ok(count) => passed += count,
            Err(error) => failures.push(error.to_string()),
        }
    }
    println!("miri: {}: {passed} tests passed, at least {} wanted", listed.name, wanted(listed, long));
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(passed)
}

fn miri_test(package: &str) -> Command {
    let mut command = process::nightly_cargo();
    command.args(["miri", "test", "--package", package]);
    command.env("CARGO_TARGET_DIR", process::target_dir().join("miri"));
    // Isolation forbids reading the real clock and files; proptest does both at its start. A fixed seed is miri's own
    // default, so a failure repeats.
    let flags = std::env::var("MIRIFLAGS").unwrap_or_default();
    command.env("MIRIFLAGS", format!("{flags} -Zmiri-disable-isolation"));
    // A random case takes up to a second under miri. The first few are enough there; native runs try all.
    command.env("PROPTEST_CASES", std::env::var("PROPTEST_CASES").unwrap_or_else(|_| "4".into()));
    command
}

/// Returns cargo's arguments for each of a package's test programs.
fn test_programs(package: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let metadata = process::output(process::cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let package = metadata["packages"].as_array().and_then(|all| all.iter().find(|one| one["name"] == package));
    let targets =
        package.and_then(|package| package["targets"].as_array()).context("cargo lists what packages make")?;
    let tests =
        targets.iter().filter(|target| target["kind"][0] == "test").filter_map(|target| target["name"].as_str());
    let tests = tests.map(|name| vec!["--test".to_owned(), name.to_owned()]);
    Ok(tests.chain([vec!["--lib".to_owned()]]).collect())
}

/// Runs a test program and prints its output once it has ended; returns the number of tests that passed.
fn run_program(listed: &Listed, program: &[String]) -> anyhow::Result<usize> {
    let began = Instant::now();
    let mut command = miri_test(&listed.name);
    command.args(program).args(["--", "-Z", "unstable-options", "--report-time"]);
    for excluded in &listed.exclude {
        command.args(["--skip", &excluded.test]);
    }
    let shown = program.join(" ");
    let output = command.output().with_context(|| format!("cannot run {} {shown}", listed.name))?;
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("miri: {} {shown}: {} s\n{out}", listed.name, began.elapsed().as_secs());
    if !output.status.success() {
        bail!("{errors}\nmiri: {} {shown}: {}", listed.name, output.status);
    }
    Ok(process::tests_passed(&out))
}

/// Tests that must pass.
fn wanted(listed: &Listed, long: bool) -> usize {
    if long { listed.tests_min_long.max(listed.tests_min) } else { listed.tests_min }
}

fn shortfall(listed: &Listed, long: bool, passed: usize) -> Option<String> {
    let wanted = wanted(listed, long);
    (passed < wanted).then(|| {
        format!(
            "{}: {passed} tests passed under miri, fewer than {wanted}; if tests were removed on purpose, lower \
             tests_min in {LIST} and say why in the commit",
            listed.name
        )
    })
}

fn check_reasons(listed: &Listed) -> Vec<String> {
    let excluded = listed.exclude.iter().map(|entry| (&entry.test, &entry.reason));
    let hidden = listed.hidden.iter().map(|entry| (&entry.file, &entry.reason));
    let silent = excluded.chain(hidden).filter(|(_, reason)| reason.trim().is_empty());
    silent.map(|(what, _)| format!("{}: {what} is left out without a reason", listed.name)).collect()
}

/// Checks three things: every file of a listed package that hides tests is listed, every listed file hides some, and
/// every test that is excluded by name exists.
fn check_sources(list: &List) -> anyhow::Result<Vec<String>> {
    let root = process::workspace_root();
    let metadata = process::output(process::cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let mut findings = Vec::new();
    for listed in &list.package {
        let package = metadata["packages"].as_array().and_then(|all| all.iter().find(|one| one["name"] == listed.name));
        let manifest = package.and_then(|package| package["manifest_path"].as_str());
        let manifest = manifest.with_context(|| format!("{LIST}: there is no package {}", listed.name))?;
        let folder = Path::new(manifest).parent().context("a manifest lies in a folder")?;
        let mut hiding = Vec::new();
        let mut missing_tests: Vec<&str> = listed.exclude.iter().map(|excluded| excluded.test.as_str()).collect();
        for file in rust_files(folder)? {
            let source = std::fs::read_to_string(&file)?;
            missing_tests.retain(|test| !source.contains(&format!("fn {test}(")));
            if hides_tests(&source) {
                hiding.push(file.strip_prefix(&root)?.to_string_lossy().into_owned());
            }
        }
        findings.extend(
            missing_tests.iter().map(|test| format!("{}: {test} is excluded, but there is no such test", listed.name)),
        );
        let listed_files: Vec<&String> = listed.hidden.iter().map(|hidden| &hidden.file).collect();
        for file in hiding.iter().filter(|file| !listed_files.contains(file)) {
            findings.push(format!("{}: {file} hides tests from miri, but is not listed", listed.name));
        }
        for file in listed_files.into_iter().filter(|file| !hiding.contains(file)) {
            findings.push(format!("{}: {file} is listed, but hides no test from miri", listed.name));
        }
    }
    Ok(findings)
}

/// Whether an attribute keeps a test, or a module of tests, from miri.
fn hides_tests(source: &str) -> bool {
    let mut attributes = String::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") || line.starts_with("#![") {
            attributes.push_str(line);
            continue;
        }
        if line.starts_with("//") {
            continue;
        }
        let tests = attributes.contains("#[test]") || attributes.contains("test,") || attributes.contains("(test");
        let kept_out = attributes.contains("not(miri)") && tests;
        if kept_out || attributes.contains("cfg_attr(miri, ignore") {
            return true;
        }
        attributes.clear();
    }
    false
}

/// Returns the list with another minimum for one package.
fn with_minimum(text: &str, package: &str, minimum: usize) -> String {
    let mut here = false;
    let lines = text.lines().map(|line| {
        if let Some(name) = line.strip_prefix("name = ") {
            here = name.trim_matches('"') == package;
        }
        if here && line.starts_with("tests_min = ") { format!("tests_min = {minimum}\n") } else { format!("{line}\n") }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: [&str; 0] = [];

    #[test]
    fn a_fall_in_the_number_of_tests_is_an_error_and_a_rise_is_not() {
        let listed =
            Listed { name: "p".into(), tests_min: 3, tests_min_long: 5, exclude: vec![], hidden: vec![], long: vec![] };
        assert!(shortfall(&listed, false, 2).unwrap().contains("2 tests passed under miri, fewer than 3"));
        assert_eq!(shortfall(&listed, false, 3), None);
        assert_eq!(shortfall(&listed, false, 4), None);
        assert!(shortfall(&listed, true, 4).unwrap().contains("fewer than 5"));
        assert_eq!(shortfall(&listed, true, 5), None);
    }

    #[test]
    fn an_exclusion_without_a_reason_is_found() {
        let text = "[[package]]\nname = 'p'\ntests_min = 1\nexclude = [{ test = 't', reason = ' ' }]\n";
        let list: List = toml::from_str(text).unwrap();
        assert_eq!(check_reasons(&list.package[0]), ["p: t is left out without a reason"]);
    }

    #[test]
    fn hidden_tests_are_seen_however_they_are_hidden() {
        assert!(hides_tests("#[cfg(all(test, not(miri)))]\nmod tests {}"));
        assert!(hides_tests("#[cfg(not(miri))]\n#[test]\nfn a_b() {}"));
        assert!(hides_tests("#[test]\n// Why.\n#[cfg_attr(miri, ignore)]\nfn a_b() {}"));
        assert!(!hides_tests("#[cfg(not(miri))]\nfn map() {}\n#[cfg(test)]\nmod tests {}"));
    }

    #[test]
    fn what_the_list_says_of_the_sources_must_be_so() {
        let listed = |exclude: &str, hidden: &str| {
            let text =
                format!("[[package]]\nname = 'sinew-mem'\ntests_min = 1\nexclude = [{exclude}]\nhidden = [{hidden}]\n");
            check_sources(&toml::from_str(&text).unwrap()).unwrap()
        };
        let buffers = "{ file = 'crates/mem/src/buffer/tests.rs', reason = 'r' }";
        let all = &format!("{buffers}, {{ file = 'crates/mem/src/region.rs', reason = 'r' }}");
        let gone = "{ test = 'a_test_that_went', reason = 'r' }";
        assert_eq!(listed("", all), CLEAN);
        assert_eq!(listed(gone, all), ["sinew-mem: a_test_that_went is excluded, but there is no such test"]);
        assert_eq!(
            listed("", buffers),
            ["sinew-mem: crates/mem/src/region.rs hides tests from miri, but is not listed"]
        );
    }

    #[test]
    fn only_the_named_package_gets_another_minimum() {
        let text = "[[package]]\nname = \"a\"\ntests_min = 1\n\n[[package]]\nname = \"b\"\ntests_min = 2\n";
        assert_eq!(with_minimum(text, "b", 7), text.replace("tests_min = 2", "tests_min = 7"));
    }

    #[test]
    fn the_checked_in_list_is_complete() {
        let text = std::fs::read_to_string(process::workspace_root().join(LIST)).unwrap();
        let list: List = toml::from_str(&text).unwrap();
        assert_eq!(check_sources(&list).unwrap(), CLEAN);
        assert_eq!(list.package.iter().flat_map(check_reasons).collect::<Vec<_>>(), CLEAN);
    }
}
