//! The lock-free code under loom, which tries the interleavings that a test run on real cores does not meet.

use anyhow::bail;

use crate::metadata::Metadata;
use crate::process;

/// Threads taken off a core in the middle of their work, at most, in one interleaving. Known bugs need two; three keeps
/// the run within minutes. Set `LOOM_MAX_PREEMPTIONS` for more.
const PREEMPTIONS_MAX: &str = "3";

/// Runs the tests named `loom` of every crate that depends on loom; each such crate must have some.
pub fn run() -> anyhow::Result<()> {
    let metadata = Metadata::of_workspace()?;
    let packages = metadata.members().filter(|package| package.dependencies.iter().any(|used| used.name == "loom"));
    let mut any = false;
    for package in packages {
        any = true;
        let mut command = process::cargo();
        command.args(["test", "--release", "--package", &package.name, "--lib", "--tests", "--", "loom"]);
        command.env("CARGO_TARGET_DIR", process::target_dir().join("loom"));
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{flags} --cfg loom"));
        if std::env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
            command.env("LOOM_MAX_PREEMPTIONS", PREEMPTIONS_MAX);
        }
        let passed = process::tests_passed(&process::tee(&mut command)?);
        if passed == 0 {
            bail!("{} depends on loom and no test with `loom` in its path ran", package.name);
        }
        println!("loom: {}: {passed} tests passed", package.name);
    }
    if !any {
        bail!("no crate of the workspace depends on loom: who checks the lock-free code?");
    }
    Ok(())
}
