//! The lock-free code under loom, which tries the interleavings that a test run on real cores does not meet.

use anyhow::ensure;

use crate::metadata::{Metadata, Package};
use crate::process;

/// Most preemptions of threads in one interleaving. Known bugs need two; three keeps the run within minutes. Set
/// `LOOM_MAX_PREEMPTIONS` for more.
const PREEMPTIONS_MAX: &str = "3";

/// Runs the test files with `loom` in their name (`tests/ring_loom.rs`) of every crate that depends on loom; each such
/// crate must have some. Other tests cannot run in this build: loom's atomics work only inside its models.
pub fn run() -> anyhow::Result<()> {
    let metadata = Metadata::of_workspace()?;
    let mut packages = metadata.members().filter(|package| package.dependencies.iter().any(|used| used.name == "loom"));
    let first = packages.next();
    ensure!(first.is_some(), "no crate of the workspace depends on loom, so nothing checks the lock-free code");
    for package in first.into_iter().chain(packages) {
        let files: Vec<&str> = loom_tests(package).collect();
        ensure!(!files.is_empty(), "{} depends on loom, but no test file has `loom` in its name", package.name);
        let mut command = process::cargo();
        command.args(["test", "--release", "--package", &package.name]);
        command.args(files.iter().flat_map(|file| ["--test", file]));
        command.env("CARGO_TARGET_DIR", process::target_dir().join("loom"));
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command.env("RUSTFLAGS", format!("{flags} --cfg loom"));
        if std::env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
            command.env("LOOM_MAX_PREEMPTIONS", PREEMPTIONS_MAX);
        }
        let passed = process::tests_passed(&process::tee(&mut command)?);
        ensure!(passed > 0, "{}: no test ran under loom", package.name);
        println!("loom: {}: {passed} tests passed", package.name);
    }
    Ok(())
}

fn loom_tests(package: &Package) -> impl Iterator<Item = &str> {
    let tests = package.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test"));
    tests.map(|target| target.name.as_str()).filter(|name| name.contains("loom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_files_named_for_loom_run_under_it() {
        let targets = serde_json::json!([
            { "name": "ring_loom", "kind": ["test"] },
            { "name": "ring", "kind": ["test"] },
            { "name": "loom", "kind": ["lib"] },
        ]);
        let package = serde_json::json!({ "id": "m", "name": "m", "version": "1.0.0", "targets": targets });
        let package: Package = serde_json::from_value(package).unwrap();
        assert_eq!(loom_tests(&package).collect::<Vec<_>>(), ["ring_loom"]);
    }
}
