//! `sinew seq`: sequencers.

mod bench;
mod ceiling_file;
mod limit;
mod next;
mod run;
pub mod serve;
pub mod tour;
mod verbs;

use clap::{Subcommand, ValueEnum};
use sinew::sequencer::Epoch;

use crate::Outcome;

/// Default address of `sinew serve sequencer` and `sinew seq next`.
const ADDRESS: &str = "shm://sequencer";

/// Design of a sequencer: the way in which numbers are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Design {
    /// Remote procedure calls, on any fabric: the design for everyday use
    Rpc,
    /// Datagrams without data, and speculation (atc16)
    SpecS0,
    /// Fetch-and-add in the server's memory
    Atomics,
    /// HERD's calls, one at a time (the baseline of atc16)
    Herd,
    /// HERD's calls in batches, answered over several queue pairs
    HerdOpt,
}

impl Design {
    /// Name on the command line.
    pub fn name(self) -> String {
        sinew_harness::load::verbs::name(self)
    }

    /// Whether one call can ask for several numbers.
    pub fn has_ranges(self) -> bool {
        matches!(self, Self::Rpc | Self::Atomics)
    }
}

/// The commands about sequencers.
#[derive(Subcommand)]
pub enum Command {
    /// Take the next number, or several
    Next(next::Args),
    /// Measure a design of a sequencer beside its limit
    Bench(bench::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Next(args) => next::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// Parses an epoch in the form in which it is shown.
fn parse_epoch(text: &str) -> Result<Epoch, String> {
    let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let epoch = u64::from_str_radix(text, 16).ok().filter(|_| is_plain);
    epoch.map(Epoch).ok_or_else(|| "an epoch is 16 hexadecimal digits, as the server and --json show it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_read_as_it_is_shown() {
        for epoch in [Epoch(0), Epoch(u64::MAX), Epoch(0x1234)] {
            assert_eq!(parse_epoch(&epoch.to_string()), Ok(epoch));
        }
        for text in ["", "1", "x000000000000000", "+000000000000000", "00000000000000000"] {
            assert!(parse_epoch(text).is_err(), "{text}");
        }
    }
}
