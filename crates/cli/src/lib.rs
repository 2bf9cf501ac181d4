//! The `sinew` command, as a library, so that tests can build a program of their own from it.
//!
//! - `tour`: `sinew` alone.
//! - `serve`: `sinew rpc serve`, and `service`, what it serves.
//! - `bench`: `sinew rpc bench`; its `client` uses the public interface only.
//! - `limits`: `sinew limits`, and what the benchmarks are measured beside.
#![forbid(unsafe_code)]

mod bench;
mod child;
mod client;
mod fabrics;
mod limits;
mod machine;
mod pattern;
mod serve;
mod service;
mod tour;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What the process returns when a threshold was missed.
const EXIT_THRESHOLD: u8 = 3;

const AFTER_HELP: &str = "\
Examples:
  sinew                                          the tour: real servers and clients on this machine, in half a minute
  sinew rpc serve shm://test                     a test server; another terminal can bench it:
  sinew rpc bench latency --fabric shm --address shm://test
  sinew rpc bench rate --fabric udp --json       starts a server process of its own
  sinew limits                                   what the machine itself allows

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a threshold (--fail-if-below, --fail-if-above) was missed.";

/// Services that answer in microseconds: RPC over shared memory and UDP. Alone, it takes you on a tour of this machine.
#[derive(Parser)]
#[command(name = "sinew", version, after_help = AFTER_HELP, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    tour: tour::Args,
}

#[derive(Subcommand)]
enum Command {
    /// Serve and measure remote procedure calls
    #[command(subcommand)]
    Rpc(RpcCommand),
    /// Measure what the machine alone allows
    Limits(limits::Args),
}

#[derive(Subcommand)]
enum RpcCommand {
    /// Run a test server that echoes, checks, and reports
    Serve(serve::Args),
    /// Measure latency, rate or bandwidth, each beside the machine's own limit
    #[command(subcommand)]
    Bench(bench::Command),
}

/// How a command ended, other than by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// A threshold that the user gave was missed.
    ThresholdMissed,
}

/// Runs the command with the process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Before any thread is pinned.
    machine::cpus();
    let result = match cli.command {
        None => tour::run(&cli.tour),
        Some(Command::Rpc(RpcCommand::Serve(args))) => serve::run(&args),
        Some(Command::Rpc(RpcCommand::Bench(command))) => bench::run(&command),
        Some(Command::Limits(args)) => limits::run(&args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::ThresholdMissed) => ExitCode::from(EXIT_THRESHOLD),
        Err(error) => {
            eprintln!("sinew: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
