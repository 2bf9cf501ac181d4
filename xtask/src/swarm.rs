//! Search for bugs on simulated clusters, by way of `sinew sim swarm` and of the replicated stores' random runs.

use crate::process;

/// Arguments of `cargo xtask swarm`.
#[derive(clap::Args)]
pub struct Args {
    /// Start no further cluster after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,

    /// Instead of clusters, run replicated stores with these seeds, FROM..TO: members crash with and without a disk,
    /// networks are cut, members join and leave, and each history is checked for linearizability.
    #[arg(long, value_name = "FROM..TO", conflicts_with = "seconds", value_parser = seeds)]
    replica: Option<std::ops::Range<u64>>,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed
        .filter(|seeds: &std::ops::Range<u64>| !seeds.is_empty())
        .ok_or(format!("{text}: give FROM..TO, as in 0..1000"))
}

/// Builds the program, optimised, and runs its search.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = process::cargo();
    if let Some(seeds) = &args.replica {
        command.args(["test", "--release", "--quiet", "--package", "sinew-replica", "--lib", "--"]);
        command.args(["histories_are_linearizable", "--nocapture"]);
        command.env("SINEW_REPLICA_SEEDS", format!("{}..{}", seeds.start, seeds.end));
    } else {
        command.args(["run", "--release", "--quiet", "--package", "sinew-cli", "--", "sim", "swarm"]);
        command.args(["--seconds", &args.seconds.to_string()]);
    }
    process::run(&mut command)
}
