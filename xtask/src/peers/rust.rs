//! tonic and tarpc: small programs in `xtask/peers`, a workspace of its own.

use std::process::{Command, Stdio};

use super::contest::{Runner, Side, Unit};
use super::{Setting, figure};
use crate::process;

/// Builds the programs; an error says why that failed.
pub fn build() -> Result<(), String> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--quiet", "--manifest-path", "xtask/peers/Cargo.toml"]);
    command.env("CARGO_TARGET_DIR", target_dir());
    process::run(&mut command).map_err(|error| format!("its program does not build: {error:#}"))
}

fn target_dir() -> std::path::PathBuf {
    process::target_dir().join("peers")
}

/// Path of a program that was built.
pub fn program(name: &str) -> std::path::PathBuf {
    target_dir().join("release").join(name)
}

/// Returns both systems as sides of the same measurement.
pub fn sides(what: &'static str, args: &[&str], unit: Unit) -> Vec<Side> {
    ["tonic", "tarpc"].map(|system| side(system, what, args, unit)).into()
}

fn side(system: &'static str, what: &'static str, args: &[&str], unit: Unit) -> Side {
    let words: Vec<String> = args.iter().map(|&word| word.to_owned()).collect();
    let key = match unit {
        Unit::Nanoseconds => "p50_ns",
        Unit::MillionPerSecond => "rate_mops",
        Unit::GigabitPerSecond => "gbps",
        other => other.name(),
    };
    let measure = move |setting: &Setting| {
        let [server, client] = setting.cores;
        let mut command = Command::new(program(system));
        command.arg(what).args(&words).args(["--seconds", &setting.seconds.to_string()]);
        command.args(["--cores", &format!("{server},{client}")]).stdin(Stdio::null());
        figure(&process::output(&mut command)?, key)
    };
    Side { system, name: system.into(), counts: 1.0, measure: Runner::new(measure) }
}
