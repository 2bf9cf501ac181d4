//! The `sinew` command, as a library, so that tests can build a program of their own from it.
//!
//! - `tour`: `sinew` alone.
//! - `rpc`: `sinew rpc bench`; `serve`: `sinew rpc serve`; `echo`: client threads, which other benchmarks also use as
//!   a baseline.
//! - `verbs`, `kv`, `seq`: `sinew verbs`, `sinew kv` and `sinew seq`: benchmarks, and the services that they measure.
//! - `herd`: servers and clients of calls over verbs, and how clients are admitted.
//! - `replica`: `sinew replica` and `sinew serve replica`; `xdp`: `sinew xdp`.
//! - `sim`: `sinew sim`; `lab`: `sinew lab`.
//! - `block` and `memory`: `sinew serve block`, `sinew serve memory` and `sinew memory`; `donors` and `volume`: other
//!   hosts' memory, and volumes in it; `socket_args`: addresses for clients of foreign protocols.
//! - `file_service`: `sinew serve files`; `mount`: `sinew mount`; `files`: `sinew files`; `fsck`: `sinew fsck`;
//!   `swap`: `sinew swap`; `paging`: `--for-paging`.
//! - `index`: `sinew index`; `interleave`: `sinew interleave`; `forward`: `sinew forward`.
//! - `limits`: `sinew limits`; `measure`: options that all benchmarks share, and how results are shown. The harness
//!   does the measuring.
//! - `advice`: names the command that would start a missing server.
//! - `model`: `sinew model`, which computes without measuring; `advise`: `sinew advise`.
//! - `key_form`: keys that are text or hexadecimal digits.
//! - `infile`: files that options name; `outfile`: the file of `--out`; `interrupted`: Ctrl-C, for commands without
//!   clean-up.
//! - `table`: tables that fit a terminal.
//! - `output`: the only place that writes to standard output and standard error.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod advice;
mod advise;
mod block;
mod child;
mod donors;
mod echo;
mod endpoint_args;
mod fabrics;
mod file_service;
mod files;
mod forward;
mod fsck;
mod herd;
mod index;
mod infile;
mod interleave;
mod interrupted;
mod key_form;
mod kv;
mod lab;
mod last_copy;
mod limits;
mod measure;
mod memory;
mod model;
mod mount;
mod outfile;
mod output;
mod own_pair;
mod paging;
mod reach;
mod replica;
mod rpc;
mod seq;
mod serve;
mod sim;
mod socket_args;
mod swap;
mod table;
mod tour;
mod verbs;
mod volume;
mod xdp;

use std::fmt;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sinew_harness::machine;

const AFTER_HELP: &str = "\
Examples:
  sinew                               # the tour: half a minute
  sinew rpc serve shm://test          # a test server, and its benchmark:
  sinew rpc bench latency --fabric shm --address shm://test
  sinew rpc bench rate --fabric udp   # with a server process of its own
  sinew verbs rate --op write           # into another process's memory
  sinew kv bench table                # a cache's table, on one thread
  sinew serve cache                   # a cache, and in another terminal:
  sinew kv set greeting hello; sinew kv get greeting
  sinew serve index                   # an ordered index, and elsewhere:
  sinew index put apple 3; sinew index scan --prefix a
  sinew memory bench --sizes 4K,1M    # reads another host's memory
  sinew interleave bench chase        # lookups that overlap their misses
  sinew xdp bench                     # AF_XDP, on virtual interfaces
  sinew forward bench                 # routers and switches, without ports
  sinew serve replica --help          # a store of three members
  sinew serve sequencer               # numbers; in another terminal:
  sinew seq next --count 3
  sinew sim run cx4 --workload FILE   # a workload on a simulated cluster
  sinew sim swarm --seconds 60        # hunts for bugs in virtual time
  sinew mount shm://files /mnt/files  # files in other hosts' memory
  sinew model pcie --batch 16         # what crosses PCI Express
  sinew advise cache --nic cx3        # which design suits a workload
  sinew serve memory shm://donor1 --memory 1G   # memory for others
  sinew fsck shm://donor1             # checks a volume there
  sinew memory volumes shm://donor1   # lists what has memory there
  sinew limits                        # what the machine itself allows

Sizes are in bytes and take K, M and G for powers of 1024, as in 64K; counts take
them for powers of 1000, as in 8M.

Exit status:
  0    done
  1    failed
  2    wrong usage: nothing was started
  3    a threshold (--fail-if-...) was missed
  4    thresholds were given, and the result is invalid
  5    fsck found damage; kv, index or replica found a key missing; replica found
       a key changed, or no leader
  130  interrupted by Ctrl-C before it was done (143: by SIGTERM)

A server that is stopped by a signal ends with 0.";

/// Services that answer in microseconds, over shared memory, UDP, AF_XDP and RDMA devices: remote procedure calls,
/// caches, indexes, sequencers, replicated stores and remote memory. Without a command, `sinew` takes you
/// on a tour of this machine.
#[derive(Parser)]
#[command(name = "sinew", version, after_help = AFTER_HELP, max_term_width = 110, args_conflicts_with_subcommands = true)]
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
    Rpc(Box<RpcCommand>),
    /// Measure SEND, WRITE, READ and atomics
    #[command(subcommand)]
    Verbs(Box<verbs::Command>),
    /// Use a key-value cache, and measure key-value stores
    #[command(subcommand)]
    Kv(Box<kv::Command>),
    /// Use an ordered index, and measure it
    #[command(subcommand)]
    Index(Box<index::Command>),
    /// List and remove volumes in memory that other hosts lend, and measure access to it
    #[command(subcommand)]
    Memory(Box<memory::Command>),
    /// Measure lookups that overlap their cache misses
    #[command(subcommand)]
    Interleave(Box<interleave::Command>),
    /// Measure AF_XDP ports between virtual interfaces
    #[command(subcommand)]
    Xdp(Box<xdp::Command>),
    /// Forward Ethernet frames as a router, a switch or an NDN forwarder, and measure that
    #[command(subcommand)]
    Forward(Box<forward::Command>),
    /// Run a service
    #[command(subcommand)]
    Serve(Box<ServeCommand>),
    /// Swap on remote memory
    #[command(subcommand)]
    Swap(swap::Command),
    /// Measure a file system in other hosts' memory
    #[command(subcommand)]
    Files(files::Command),
    /// Mount a file system in other hosts' memory
    Mount(Box<mount::Args>),
    #[command(name = mount::WATCH, hide = true)]
    MountWatch(mount::WatchArgs),
    /// Take numbers from a sequencer, and measure sequencers
    #[command(subcommand)]
    Seq(Box<seq::Command>),
    /// Use a replicated key-value store, change its members, and measure it
    #[command(subcommand)]
    Replica(Box<replica::Command>),
    /// Run simulated clusters
    #[command(subcommand)]
    Sim(sim::Command),
    /// Repeat the experiments of published papers
    #[command(subcommand)]
    Lab(lab::Command),
    /// Compute what RDMA requests send over PCI Express, and show NIC models
    #[command(subcommand)]
    Model(model::Command),
    /// Find the design and settings that suit a workload on an RDMA NIC
    Advise(Box<advise::Args>),
    /// Check a volume or a file system in memory that other hosts lend
    Fsck(Box<fsck::Args>),
    /// Measure what the machine alone allows
    Limits(limits::Args),
}

/// The services, each with a file of its own.
#[derive(Subcommand)]
enum ServeCommand {
    /// Serve memory of this host or of donors as a block device, over NBD
    Block(block::Args),
    /// Serve a key-value cache
    Cache(kv::serve::Args),
    /// Serve a file system whose files lie in donors' memory
    Files(file_service::Args),
    /// Serve a key-value cache over verbs, as HERD does
    Herd(kv::herd::serve::Args),
    /// Serve an ordered index
    Index(index::serve::Args),
    /// Lend memory to other hosts' volumes, as a donor
    // One thread is enough for a donor: other numbers are refused.
    #[command(mut_arg("threads", |arg| arg.hide(true)))]
    Memory(memory::serve::Args),
    /// Serve as a member of a replicated key-value store
    Replica(replica::serve::Args),
    /// Hand out unique, increasing numbers
    Sequencer(seq::serve::Args),
}

#[derive(Subcommand)]
enum RpcCommand {
    /// Run a test server that echoes, checks, and reports
    Serve(serve::Args),
    /// Measure latency, rate or bandwidth, each beside the machine's own limit
    #[command(subcommand)]
    Bench(Box<rpc::Command>),
}

/// Outcome of a command, other than an error. Of several outcomes, the greatest is the one to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Done,
    /// Thresholds were given, but the result is not valid enough to judge.
    NotJudged,
    /// A threshold that the user gave was missed.
    ThresholdMissed,
    /// A check found damage, a key is missing or not as expected, or there is no leader.
    FoundWrong,
    /// The command failed, and has reported why.
    Failed,
    /// A signal ended it; this is the exit status.
    Interrupted(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::ThresholdMissed => 3,
            Outcome::NotJudged => 4,
            Outcome::FoundWrong => 5,
            Outcome::Interrupted(status) => status,
        })
    }
}

/// The command line asks for something impossible on any machine. This is reported before anything is started, with
/// clap's exit status for wrong usage.
#[derive(Debug)]
struct Usage(String);

const EXIT_USAGE: u8 = 2;

impl Usage {
    /// Marks an error as wrong usage: it was found while checking what the user asked for.
    fn of(error: impl Into<anyhow::Error>) -> anyhow::Error {
        Self(output::describe(&error.into())).into()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Joins the lines of each paragraph in the command's after-help, so that clap can break them at the terminal's width;
/// otherwise they would break where the source does. Lines that begin with a space stay as they are, and so do lines
/// that follow one directly.
fn reflowed(command: clap::Command) -> clap::Command {
    let help = command.get_after_help().map(|help| {
        let mut text = String::new();
        for line in help.to_string().lines() {
            let goes_on = !line.is_empty() && !line.starts_with(' ') && !text.is_empty() && !text.ends_with('\n');
            let was_shown = text.rsplit('\n').next().is_some_and(|last| last.starts_with(' '));
            match goes_on && !was_shown {
                true => text.push(' '),
                false if text.is_empty() => {}
                false => text.push('\n'),
            }
            text.push_str(line);
        }
        text
    });
    let command = command.mut_subcommands(reflowed);
    match help {
        Some(help) => command.after_help(help),
        None => command,
    }
}

/// Runs the command with the process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&reflowed(Cli::command()).get_matches()).unwrap_or_else(|error| error.exit());
    // Must be called before any thread is pinned.
    machine::cpus();
    let result = match cli.command {
        None => tour::run(&cli.tour),
        Some(Command::Rpc(rpc)) => match *rpc {
            RpcCommand::Serve(args) => serve::run(&args),
            RpcCommand::Bench(command) => rpc::run(&command),
        },
        Some(Command::Verbs(command)) => verbs::run(&command),
        Some(Command::Kv(command)) => kv::run(&command),
        Some(Command::Index(command)) => index::run(&command),
        Some(Command::Memory(command)) => memory::run(&command),
        Some(Command::Interleave(command)) => interleave::run(&command),
        Some(Command::Xdp(command)) => xdp::run(&command),
        Some(Command::Forward(command)) => forward::run(&command),
        Some(Command::Serve(service)) => match *service {
            ServeCommand::Block(args) => block::run(&args),
            ServeCommand::Files(args) => file_service::run(&args),
            ServeCommand::Cache(args) => kv::serve::run(&args),
            ServeCommand::Herd(args) => kv::herd::serve::run(&args),
            ServeCommand::Index(args) => index::serve::run(&args),
            ServeCommand::Memory(args) => memory::serve::run(&args),
            ServeCommand::Replica(args) => replica::serve::run(&args),
            ServeCommand::Sequencer(args) => seq::serve::run(&args),
        },
        Some(Command::Swap(command)) => swap::run(&command),
        Some(Command::Files(command)) => files::run(&command),
        Some(Command::Mount(args)) => mount::run(&args),
        Some(Command::MountWatch(args)) => mount::watch(args),
        Some(Command::Replica(command)) => replica::run(&command),
        Some(Command::Seq(command)) => seq::run(&command),
        Some(Command::Sim(command)) => sim::run(&command),
        Some(Command::Lab(command)) => lab::run(&command),
        Some(Command::Model(command)) => model::run(&command),
        Some(Command::Advise(args)) => advise::run(&args),
        Some(Command::Fsck(args)) => fsck::run(&args),
        Some(Command::Limits(args)) => interrupted::exit_on_signal().and_then(|()| limits::run(&args)),
    };
    match result {
        Ok(outcome) => outcome.into(),
        // An error after a signal is due to the signal, which children and peers may have received, too.
        Err(_) if let Some(status) = interrupted::by_signal() => {
            output::complain("interrupted");
            Outcome::Interrupted(status).into()
        }
        Err(error) => {
            output::complain(output::describe(&error));
            if error.is::<Usage>() {
                output::note("For more information, try '--help'.");
                return ExitCode::from(EXIT_USAGE);
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_of_help_are_one_line_and_examples_as_they_are() {
        let help = |command: &clap::Command| command.get_after_help().unwrap().to_string();
        let text = "One\nparagraph.\n\nAnother.\n\nExamples:\n  one\n  two";
        let inner = clap::Command::new("inner").after_help(text);
        let outer = reflowed(clap::Command::new("outer").after_help(text).subcommand(inner));
        let expected = "One paragraph.\n\nAnother.\n\nExamples:\n  one\n  two";
        assert_eq!((&*help(&outer), &*help(outer.find_subcommand("inner").unwrap())), (expected, expected));
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
