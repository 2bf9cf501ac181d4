//! `sinew forward`: forwards frames as a router, a switch or an NDN forwarder, and measures forwarding without ports.

mod bench;
mod counter_report;
mod patterns;
mod ports;
mod reload;
mod run;

use clap::ValueEnum;
use sinew::fabric::MAX_BURST;
use sinew::forward::Form;

pub use bench::for_tour;

use crate::Outcome;

/// The commands about forwarders.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Forward frames between interfaces until Ctrl-C
    #[command(after_help = run::HELP)]
    Run(run::Args),
    /// Measure forwarding with its three forms of lookup, without ports
    #[command(after_help = bench::HELP)]
    #[command(mut_arg("pin", |arg| arg.help("Processor to pin the measuring thread to [default: the first one]")))]
    Bench(bench::Args),
    /// Measure how fast patterns are found in payloads
    #[command(after_help = patterns::HELP)]
    #[command(mut_arg("pin", |arg| arg.help("Processor to pin the measuring thread to [default: the first one]")))]
    Patterns(patterns::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Patterns(args) => patterns::run(args),
    }
}

/// Form in which keys are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormName {
    /// One after the other
    Plain,
    /// Many at a time, by the interleaver
    Interleaved,
    /// Many at a time, with group prefetching written by hand
    Grouped,
}

impl FormName {
    fn form(self) -> Form {
        match self {
            Self::Plain => Form::Plain,
            Self::Interleaved => Form::interleaved(MAX_BURST).unwrap_or_default(),
            Self::Grouped => Form::Grouped,
        }
    }
}
