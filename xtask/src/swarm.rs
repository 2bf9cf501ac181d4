//! Search for bugs on simulated clusters, by way of `sinew sim swarm`.

use crate::process;

/// Arguments of `cargo xtask swarm`.
#[derive(clap::Args)]
pub struct Args {
    /// Start no further cluster after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Builds the command, optimised, and runs its search.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = process::cargo();
    command.args(["run", "--release", "--quiet", "--package", "sinew-cli", "--", "sim", "swarm"]);
    command.args(["--seconds", &args.seconds.to_string()]);
    process::run(&mut command)
}
