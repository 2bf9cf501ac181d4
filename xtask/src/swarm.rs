//! The hunt on simulated clusters, from the command that has it.

use crate::process;

/// How long.
#[derive(clap::Args)]
pub struct Args {
    /// When to begin no further cluster.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Builds the command, optimised, and lets it hunt.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = process::cargo();
    command.args(["run", "--release", "--quiet", "--package", "sinew-cli", "--", "sim", "swarm"]);
    command.args(["--seconds", &args.seconds.to_string()]);
    process::run(&mut command)
}
