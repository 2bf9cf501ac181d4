//! Builds the programs of the operations, and runs them under callgrind.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use super::callgrind::{self, Executed};
use super::disassembly::{self, Special, Specials};
use crate::process;

/// Function of the programs during which callgrind counts.
const STEP: &str = "counted_step";
/// Parts of the names of the C library's functions that copy and fill.
const COPIERS: [&str; 3] = ["memcpy", "memmove", "memset"];

/// Part of the names of functions that read the clock.
const CLOCK: &str = "clock_gettime";

/// Average cost of one operation, over all that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub instructions: f64,
    /// Of these, those that are locked.
    pub locked: f64,
    pub system_calls: f64,
    pub allocations: f64,
}

/// An operation at one side, counted.
#[derive(Debug)]
pub struct Measured {
    pub operation: String,
    pub side: String,
    pub cost: Cost,
    /// Operations counted.
    pub operations: u64,
    /// Instructions that they executed.
    pub executed: Vec<Executed>,
}

impl Measured {
    pub fn is(&self, operation: &str, side: &str) -> bool {
        self.operation == operation && self.side == side
    }
}

/// A line of a program's list.
#[derive(Deserialize)]
struct Listed {
    operation: String,
    side: String,
    without_copies: bool,
}

/// Line that a program prints at the end of a run.
#[derive(Deserialize)]
struct RunResult {
    operations: u64,
    allocations: u64,
}

/// The programs of the operations, one for each family.
pub struct Programs {
    executables: Vec<PathBuf>,
    /// The workspace that they were built from.
    pub root: PathBuf,
    specials: RefCell<HashMap<String, Specials>>,
}

/// Fails unless this machine has everything that counting needs.
pub fn check_tools() -> anyhow::Result<()> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("instructions are counted on x86-64 Linux only");
    }
    for (tool, package) in [("valgrind", "valgrind"), ("objdump", "binutils"), ("addr2line", "binutils")] {
        if !process::works(Command::new(tool).arg("--version")) {
            bail!("there is no {tool} here: `apt-get install {package}`");
        }
    }
    Ok(())
}

impl Programs {
    /// Builds the programs of a workspace as releases are built, for any x86-64.
    pub fn build(root: &Path, target: &Path) -> anyhow::Result<Self> {
        let mut build = process::cargo();
        build.current_dir(root).args(["build", "--release", "--locked", "--package", "sinew-cost"]);
        build.args(["--features", "callgrind", "--message-format", "json-render-diagnostics"]);
        // An empty variable still overrides the flags of a configuration file.
        build.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", "").env("CARGO_TARGET_DIR", target);
        let mut executables = executables(&process::output(&mut build)?)?;
        executables.sort();
        Ok(Self { executables, root: root.to_path_buf(), specials: RefCell::default() })
    }

    /// Counts the operations and sides for which `wanted` holds.
    pub fn measure(&self, wanted: impl Fn(&str, &str) -> bool) -> anyhow::Result<Vec<Measured>> {
        let mut measured = Vec::new();
        for executable in &self.executables {
            let list = process::output(Command::new(executable).arg("list"))?;
            for line in list.lines() {
                let listed: Listed = serde_json::from_str(line).context("a program's list is not as expected")?;
                if wanted(&listed.operation, &listed.side) {
                    let named = format!("{}, {}", listed.operation, listed.side);
                    measured.push(self.count(executable, listed).with_context(|| format!("counting {named}"))?);
                }
            }
        }
        Ok(measured)
    }

    fn count(&self, executable: &Path, listed: Listed) -> anyhow::Result<Measured> {
        let Listed { operation, side, without_copies } = listed;
        let profile = executable.with_extension(format!("{}.callgrind", std::process::id()));
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--quiet", "--dump-instr=yes", "--dump-line=yes"]);
        valgrind.args(["--compress-strings=no", "--compress-pos=no", "--collect-atstart=no"]);
        valgrind.arg(format!("--toggle-collect=*{STEP}*")).arg(format!("--callgrind-out-file={}", profile.display()));
        valgrind.arg(executable).args(["run", &operation, &side]).stdin(Stdio::null());
        // The environment lies on the stack and shifts it, so as little as possible is passed on.
        valgrind.env_clear().envs(
            std::env::vars_os().filter(|(name, _)| name == "PATH" || name.to_string_lossy().starts_with("VALGRIND")),
        );
        let report = process::output(&mut valgrind)?;
        let ran: RunResult = serde_json::from_str(&report).context("the program's report is not as expected")?;
        let written = std::fs::read_to_string(&profile).context("callgrind wrote no profile")?;
        std::fs::remove_file(&profile)?;
        let mut executed = callgrind::read(&written)?;
        executed.retain(|one| !one.function.contains(STEP));
        let mut cost = Cost { allocations: ran.allocations as f64, ..Cost::default() };
        let mut counted = Vec::with_capacity(executed.len());
        for mut one in executed {
            one.special = self.special(&one)?;
            if without_copies && (one.special == Some(Special::Copy) || is_copier(&one.function)) {
                continue;
            }
            if one.special == Some(Special::SystemCall) && one.function.contains(CLOCK) {
                // Under valgrind, reading the clock is a system call; natively, the vDSO reads it without one.
                one.special = None;
            }
            cost.instructions += one.times as f64;
            match one.special {
                Some(Special::Locked) => cost.locked += one.times as f64,
                Some(Special::SystemCall) => cost.system_calls += one.times as f64,
                _ => {}
            }
            counted.push(one);
        }
        let operations = ran.operations as f64;
        for sum in [&mut cost.instructions, &mut cost.locked, &mut cost.system_calls, &mut cost.allocations] {
            *sum /= operations;
        }
        Ok(Measured { operation, side, cost, operations: ran.operations, executed: counted })
    }

    fn special(&self, executed: &Executed) -> anyhow::Result<Option<Special>> {
        let object = &executed.place.object;
        let mut known = self.specials.borrow_mut();
        if !known.contains_key(object) {
            known.insert(object.clone(), disassembly::of(object)?);
        }
        Ok(known[object].get(&executed.place.address).copied())
    }
}

/// Returns the programs named in the JSON messages of a build.
fn executables(messages: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut executables = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo wrote a line that is not JSON")?;
        if message["reason"] == "compiler-artifact" {
            executables.extend(message["executable"].as_str().map(PathBuf::from));
        }
    }
    Ok(executables)
}

fn is_copier(function: &str) -> bool {
    COPIERS.iter().any(|name| function.contains(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_are_told_from_other_artifacts() {
        let messages = [
            json!({ "reason": "compiler-artifact", "executable": "/w/target/release/cost-ring" }).to_string(),
            json!({ "reason": "compiler-artifact", "executable": null }).to_string(),
            json!({ "reason": "build-finished" }).to_string(),
        ];
        assert_eq!(executables(&messages.join("\n")).unwrap(), [PathBuf::from("/w/target/release/cost-ring")]);
    }

    #[test]
    fn copies_of_the_c_library_are_known() {
        assert!(is_copier("__memcpy_avx_unaligned_erms") && is_copier("memset") && !is_copier("memory_of"));
    }
}
