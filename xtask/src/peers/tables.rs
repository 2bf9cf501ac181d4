//! Tables in memory beside DPDK's (Debian: libdpdk-dev), with the same routes, keys and lookups, on one core.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::contest::{Contest, Peer, Runner, Side, Unit};
use super::{Setting, figure};
use crate::process;

/// DPDK as a peer.
pub const PEER: Peer = ("dpdk", build);

const SOURCE: &str = "xtask/peers/dpdk/tables.c";
/// Lookups at once.
const WIDTH: &str = "32";

fn program() -> PathBuf {
    process::target_dir().join("peers/dpdk-tables")
}

/// Compiles the program that measures DPDK; an error says why that failed.
fn build() -> Result<(), String> {
    let flags = |kind: &str| process::output(Command::new("pkg-config").args([kind, "libdpdk"]).stderr(Stdio::null()));
    let remedy = || "there is no DPDK to compile with: apt-get install libdpdk-dev".to_owned();
    let (compiling, linking) = (flags("--cflags").map_err(|_| remedy())?, flags("--libs").map_err(|_| remedy())?);
    let made = std::fs::create_dir_all(process::target_dir().join("peers"));
    made.map_err(|error| format!("the target directory cannot be written: {error}"))?;
    let mut command = Command::new("cc");
    command.current_dir(process::workspace_root()).args(["-O3", "-march=native"]).args(compiling.split_whitespace());
    command.arg(SOURCE).arg("-o").arg(program()).args(linking.split_whitespace());
    process::run(&mut command).map_err(|error| format!("its program does not compile: {error:#}"))
}

/// Contests between tables.
pub fn contests() -> Vec<Contest> {
    let contest = |what: &str, table: &'static str, entries: &'static str, form: &'static str, peer: Side| Contest {
        title: format!("tables, {what}"),
        unit: Unit::MillionPerSecond,
        ours: ours(table, entries, form),
        peers: vec![peer],
    };
    let (interleaved, plain) = ("/results/0/figure", "/results/0/details/plain_mops");
    let (v4, v6, numbers) = ("500000", "200000", "8000000");
    vec![
        contest("500 k routes of IPv4, 32 at once", "ipv4", v4, interleaved, dpdk("rte_lpm bulk", "lpm", v4, WIDTH)),
        contest("200 k routes of IPv6, 32 at once", "ipv6", v6, interleaved, dpdk("rte_lpm6 bulk", "lpm6", v6, WIDTH)),
        contest("8 M numbers, one by one", "cuckoo", numbers, plain, dpdk("rte_hash", "hash", numbers, "1")),
        contest(
            "8 M numbers, 32 at once",
            "cuckoo",
            numbers,
            interleaved,
            dpdk("rte_hash bulk", "hash", numbers, WIDTH),
        ),
    ]
}

/// Our side. `sinew interleave bench` measures all its forms in turn; `form` is the JSON pointer to the figure that
/// counts.
fn ours(table: &'static str, entries: &'static str, form: &'static str) -> Side {
    let measure = move |setting: &Setting| {
        let mut command = Command::new(process::target_dir().join("release/sinew"));
        command.args(["interleave", "bench", table, "--entries", entries, "--width", WIDTH, "--json"]);
        command.args(["--pin", &setting.cores[1].to_string(), "--seconds", &setting.seconds.to_string()]);
        let output = process::output(command.stdin(Stdio::null()))?;
        let results: serde_json::Value = serde_json::from_str(&output)?;
        let found = results.pointer(form).and_then(serde_json::Value::as_f64);
        found.with_context(|| format!("no figure at {form} in: {output}"))
    };
    Side { system: "sinew", name: "sinew".into(), counts: 1.0, measure: Runner::new(measure) }
}

fn dpdk(name: &str, table: &'static str, entries: &'static str, width: &'static str) -> Side {
    let measure = move |setting: &Setting| {
        let mut command = Command::new(program());
        command.args([table, entries, width, &setting.seconds.to_string(), &setting.cores[1].to_string()]);
        figure(&process::output(command.stdin(Stdio::null()))?, "mops")
    };
    Side { system: PEER.0, name: name.into(), counts: 1.0, measure: Runner::new(measure) }
}
