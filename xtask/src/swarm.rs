//! Search for bugs on simulated clusters, by way of `sinew sim swarm` and of the random runs of replicated stores and
//! of volumes.

use std::ops::Range;

use crate::process;

/// Arguments of `cargo xtask swarm`.
#[derive(clap::Args)]
pub struct Args {
    /// Start no further cluster after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,

    /// Instead of clusters, run replicated stores with these seeds, FROM..TO: members crash, even between two disk
    /// writes, lose their disks, and freeze; disks are slow or fill up; networks are partitioned in any shape and
    /// delayed; clocks drift; members are added, promoted, removed and replaced while logs are cut and snapshots sent.
    /// Each history is checked for linearizability. Every seed is run twice: with members on a network made for this,
    /// and with real clients and operators on the simulated network.
    #[arg(long, value_name = "FROM..TO", conflicts_with = "seconds", value_parser = seeds)]
    replica: Option<Range<u64>>,

    /// Instead of clusters, run volumes with these seeds, FROM..TO: donors die and come back empty, networks are cut,
    /// writers are replaced amid their writes, and every page that is read is checked.
    #[arg(long, value_name = "FROM..TO", conflicts_with_all = ["seconds", "replica"], value_parser = seeds)]
    volumes: Option<Range<u64>>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.filter(|seeds: &Range<u64>| !seeds.is_empty()).ok_or(format!("{text}: give FROM..TO, as in 0..1000"))
}

/// Builds the program, optimised, and runs its search.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = process::cargo();
    let mut random_runs = |package, program: &[&str], facts, variable, seeds: &Range<u64>| {
        command.args(["test", "--release", "--quiet", "--package", package]).args(program);
        command.args(["--", facts, "--nocapture"]).env(variable, format!("{}..{}", seeds.start, seeds.end));
    };
    if let Some(seeds) = &args.replica {
        random_runs(
            "sinew-replica",
            &["--lib", "--test", "virtual_time"],
            "histories_are_linearizable",
            "SINEW_REPLICA_SEEDS",
            seeds,
        );
    } else if let Some(seeds) = &args.volumes {
        let program = ["--test", "volume_on_nics"];
        random_runs("sinew-remote-memory", &program, "whatever_befalls", "SINEW_VOLUME_SEEDS", seeds);
    } else {
        command.args(["run", "--release", "--quiet", "--package", "sinew-cli", "--", "sim", "swarm"]);
        command.args(["--seconds", &args.seconds.to_string()]);
    }
    process::run(&mut command)
}
