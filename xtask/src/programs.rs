//! Test programs that a build makes.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::process;

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    pub executable: PathBuf,
    /// Folder of its crate, in which it must run.
    pub folder: PathBuf,
    /// Name of its crate's folder, then its target: `mem: sinew_mem`.
    pub name: String,
}

/// Builds the tests of these packages, or of all when none is named.
pub fn build(packages: &[String]) -> anyhow::Result<Vec<TestProgram>> {
    let mut build = process::cargo();
    build.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    if packages.is_empty() {
        build.arg("--workspace");
    }
    build.args(packages.iter().flat_map(|name| ["--package", name]));
    let programs = test_programs(&process::output(&mut build)?)?;
    if programs.is_empty() {
        bail!("the build made no test programs");
    }
    Ok(programs)
}

/// Returns the test programs named in the JSON messages of a build.
fn test_programs(messages: &str) -> anyhow::Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo wrote a line that is not JSON")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let (Some(executable), Some(manifest)) = (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let folder = Path::new(manifest).parent().context("a manifest lies in a folder")?.to_path_buf();
        let crate_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        programs.push(TestProgram { executable: executable.into(), folder, name: format!("{crate_name}: {target}") });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_of_tests_are_told_from_other_artifacts() {
        let message = |test: bool, executable: Value| {
            json!({
                "reason": "compiler-artifact", "manifest_path": "/w/crates/mem/Cargo.toml",
                "target": { "name": "sinew_mem" }, "profile": { "test": test }, "executable": executable,
            })
            .to_string()
        };
        let messages = [
            message(true, json!("/w/target/debug/deps/sinew_mem-1")),
            message(false, json!("/w/target/debug/sinew")),
            message(true, Value::Null),
            json!({ "reason": "build-finished" }).to_string(),
        ];
        let expected = TestProgram {
            executable: "/w/target/debug/deps/sinew_mem-1".into(),
            folder: "/w/crates/mem".into(),
            name: "mem: sinew_mem".into(),
        };
        assert_eq!(test_programs(&messages.join("\n")).unwrap(), [expected]);
    }
}
