//! `sinew serve sequencer`: hands out numbers.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::ensure;
use sinew::fabric::Generator;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::sequencer::{COUNT_MAX_DEFAULT, Epoch, Sequence, rpc};

use super::ceiling_file::CeilingFile;
use super::verbs::Serving;
use super::{ADDRESS, Design};
use crate::serve::ThreadArgs;
use crate::verbs::{DeviceArgs, parse_address};
use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Every number is handed out once, and a call that begins after another one ended, at any client, gets a greater one.
When a client dies, only the numbers that were on their way to it are lost.

A restarted server begins at --first, and hands out old numbers again if that is too low. With --notes this is not
needed: a server that was shut down cleanly resumes where it was. About once a second the server notes how far it may
go, so one that was killed repeats no number, but leaves a gap. The gap is at most 65,536 numbers, or, for a server
that hands out that many a second, about two seconds' numbers at its highest rate. Each start has an epoch of its own,
which clients can compare.

Examples:
  sinew serve sequencer
  sinew serve sequencer udp://0.0.0.0:7000 --notes notes
  sinew serve sequencer shm://seq --threads 2   # at shm://seq, shm://seq.1
  sinew serve sequencer --design spec-s0 --fabric ibverbs 0.0.0.0:7100";

/// Hand out unique, increasing numbers until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address to serve at: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT; for designs on
    /// verbs HOST:PORT, the TCP address at which clients connect [default: shm://sequencer, or 127.0.0.1:0 for designs
    /// on verbs]
    address: Option<String>,
    /// Design of the sequencer; all designs but rpc are on verbs
    #[arg(long, value_enum, default_value = "rpc")]
    design: Design,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    /// First number to hand out; with --notes, the noted number if that is higher [default: 0]
    #[arg(long, allow_negative_numbers = true)]
    first: Option<u64>,
    /// Numbers that one call can ask for at most, from 1
    #[arg(long, default_value_t = COUNT_MAX_DEFAULT, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    count_max: u32,
    /// File in which the server notes how far the numbers may have gone, and from which it resumes [default: no notes]
    #[arg(long, value_name = "FILE")]
    notes: Option<PathBuf>,
}

impl Args {
    /// The numbers to hand out, and their notes.
    fn sequence(&self) -> anyhow::Result<(Arc<Sequence>, Option<Arc<CeilingFile>>)> {
        let epoch = Epoch(SystemEntropy::new()?.next_u64());
        let first = self.first.unwrap_or(0);
        let Some(path) = &self.notes else { return Ok((Arc::new(Sequence::new(first, epoch, self.count_max)), None)) };
        let (notes, noted) = CeilingFile::open(path)?;
        let notes = Arc::new(notes);
        let sequence = Sequence::with_ceiling_store(first.max(noted), epoch, self.count_max, notes.clone());
        notes.begin(&sequence)?;
        Ok((Arc::new(sequence), Some(notes)))
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    let (sequence, notes) = args.sequence()?;
    let outcome = std::thread::scope(|scope| {
        // Dropping this when the server ends, for whatever reason, ends the keeper.
        let (_keeps, ends) = mpsc::channel::<()>();
        if let Some(notes) = &notes {
            let sequence = &sequence;
            scope.spawn(move || notes.keep(sequence, &ends));
        }
        if args.design == Design::Rpc {
            return args.serve_calls(&sequence);
        }
        let address = args.address.as_deref().unwrap_or("127.0.0.1:0");
        let served =
            args.device.run(Serving { design: args.design, address, threads: &args.threads, sequence: &sequence })?;
        Ok(if served { Outcome::Done } else { Outcome::Failed })
    })?;
    if let Some(notes) = notes
        && let Err(error) = notes.close(&sequence)
    {
        // The server shut down as asked. Only its last note is missing, so the next start leaves a gap.
        output::complain(output::describe(&error));
        return Ok(Outcome::Failed);
    }
    if outcome == Outcome::Done && args.design != Design::Atomics {
        args.threads.tell_end("next", sequence.next(), format_args!("the next number is {}", sequence.next()))?;
    }
    Ok(outcome)
}

impl Args {
    /// Checks the options, as far as that is possible without examining the machine.
    fn check(&self) -> anyhow::Result<()> {
        self.device.check()?;
        if self.design == Design::Rpc {
            return self.threads.addresses(self.calls_address()).map(|_| ());
        }
        self.threads.check_pins()?;
        if let Some(address) = &self.address {
            parse_address(address).map_err(anyhow::Error::msg)?;
        }
        ensure!(
            self.notes.is_none() || self.design != Design::Atomics,
            "--notes: with --design atomics clients add to the word themselves, so nothing can be noted in advance"
        );
        Ok(())
    }

    fn calls_address(&self) -> &str {
        self.address.as_deref().unwrap_or(ADDRESS)
    }

    fn serve_calls(&self, sequence: &Arc<Sequence>) -> anyhow::Result<Outcome> {
        let threads = &self.threads;
        let start = || {
            let handler = rpc::handler(Arc::clone(sequence));
            let nexus = Nexus::builder().config(threads.config()).handle_burst(rpc::NEXT, handler).build()?;
            threads.start(nexus.server(), threads.addresses(self.calls_address())?)
        };
        let (first, epoch) = (sequence.next(), sequence.epoch());
        let advice = |address: &str| {
            format!("From {first} on, epoch {epoch}. Take numbers with: sinew seq next --address {address}")
        };
        let Some(reports) = threads.serve(start, advice)? else { return Ok(Outcome::Failed) };
        threads.print_reports(&reports)?;
        Ok(Outcome::Done)
    }
}
