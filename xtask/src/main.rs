//! `cargo xtask`: the project's own checks, and the measurements beside other systems.
//!
//! Every check is a function from text or metadata to findings, so that tests can hand it made-up input. What a check
//! knows about the project stands in a table at the top of its file.
#![forbid(unsafe_code)]

mod bare;
mod cost;
mod deps;
mod gcc_only;
mod guest;
mod loom;
mod metadata;
mod miri;
mod peers;
mod process;
mod programs;
mod soak;
mod swarm;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own checks and measurements.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check that dependencies between the crates point as ARCHITECTURE.md allows.
    Deps,
    /// Check the style rules that rustfmt and clippy do not cover.
    Tidy,
    /// Build from scratch with only Rust and gcc on the path, and start the program that results.
    GccOnly(gcc_only::Args),
    /// Run the tests of the crates with unsafe code or hostile input under miri, and count them.
    Miri(miri::Args),
    /// Explore the interleavings of the lock-free code with loom.
    Loom,
    /// Run the tests, and compare those that were skipped with the list of those that may be.
    Test(test::Args),
    /// Run the tests as an ordinary user on a poor machine: no IPv6, no /dev/shm, 64 KB of lockable memory, one CPU.
    Bare(bare::Args),
    /// Run a command in a virtual machine that has an RDMA device (soft-RoCE, rxe0), and return its exit status.
    Guest(guest::Args),
    /// Count the instructions of operations, and compare them with a base revision and with costs.toml.
    Cost(cost::Args),
    /// Search for bugs for longer than CI can: property tests with fresh seeds and the fuzz targets, or a test that
    /// kills processes.
    Soak(soak::Args),
    /// Search for bugs on simulated clusters, as `sinew sim swarm` does.
    Swarm(swarm::Args),
    /// Measure other systems beside this one, alternating, and print the ratios.
    Peers(peers::Args),
    /// Measure perftest and `sinew verbs` on one RDMA device, alternating, and print the ratios: in the guest, unless a
    /// device is named.
    Perftest(peers::perftest::Args),
    /// Sort more numbers than fit in memory; `peers` runs this with little memory.
    #[command(hide = true)]
    SortNumbers,
}

fn main() -> ExitCode {
    match run(&Args::parse().task) {
        Ok(code) => code,
        // Prints no backtrace, which `RUST_BACKTRACE` (set for tests) would add: a finding needs none.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Deps => deps::run(),
        Task::Tidy => tidy::run(),
        Task::GccOnly(args) => gcc_only::run(args),
        Task::Miri(args) => miri::run(args),
        Task::Loom => loom::run(),
        Task::Test(args) => test::run(args),
        Task::Bare(args) => bare::run(args),
        Task::Guest(args) => return guest::run(args),
        Task::Cost(args) => cost::run(args),
        Task::Soak(args) => soak::run(args),
        Task::Swarm(args) => swarm::run(args),
        Task::Peers(args) => peers::run(args),
        Task::Perftest(args) => return peers::perftest::run(args),
        Task::SortNumbers => peers::paging::sort::run(),
    }?;
    Ok(ExitCode::SUCCESS)
}
