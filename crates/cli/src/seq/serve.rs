//! `sinew serve sequencer`.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use sinew::fabric::Generator;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::sequencer::{COUNT_MAX_DEFAULT, Epoch, Sequence, rpc};

use super::ADDRESS;
use super::notes::Notes;
use crate::serve::ThreadArgs;
use crate::{Outcome, Usage, output};

const AFTER_HELP: &str = "\
Every number is handed out once, and a call that begins after another was over, at whichever client, gets a greater one. A client that dies
loses the numbers that were on their way to it, and nobody else's.

A server that is started anew begins at --first, which hands out old numbers again if it is too low. With --notes it need not be said: the
server notes ahead how far it may go, and the next start begins there. What a killed server had noted and not handed out is a gap (up to
1,099,511,627,776 numbers); one that is stopped in order leaves none. Each start has an epoch of its own, which clients can compare.

Examples:
  sinew serve sequencer
  sinew serve sequencer udp://0.0.0.0:7000 --notes /var/lib/sequencer/notes
  sinew serve sequencer shm://seq --threads 2 --first 1000000     (at shm://seq and shm://seq.1, one sequence)";

/// Hand out unique, increasing numbers until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where to serve: shm://NAME, udp://HOST:PORT or ibverbs://HOST:PORT
    #[arg(default_value = ADDRESS)]
    address: String,
    #[command(flatten)]
    threads: ThreadArgs,
    /// The first number; with --notes, no lower than what is noted [default: 0]
    #[arg(long, allow_negative_numbers = true)]
    first: Option<u64>,
    /// Numbers that one call may ask for
    #[arg(long, default_value_t = COUNT_MAX_DEFAULT, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    count_max: u32,
    /// Note here how far the numbers may have gone, and begin there
    #[arg(long, value_name = "FILE")]
    notes: Option<PathBuf>,
}

impl Args {
    /// The numbers to hand out, and their notes.
    fn sequence(&self) -> anyhow::Result<(Arc<Sequence>, Option<Notes>)> {
        let epoch = Epoch(SystemEntropy::new()?.next_u64());
        let first = self.first.unwrap_or(0);
        let Some(path) = &self.notes else { return Ok((Arc::new(Sequence::new(first, epoch, self.count_max)), None)) };
        let (notes, noted) = Notes::open(path)?;
        let sequence = Sequence::from_notes(first.max(noted), epoch, self.count_max);
        notes.raise(&sequence)?;
        Ok((Arc::new(sequence), Some(notes)))
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let threads = &args.threads;
    let addresses = threads.addresses(&args.address).map_err(Usage::of)?;
    let (sequence, notes) = args.sequence()?;
    let served = std::thread::scope(|scope| {
        let (keeps, ends) = mpsc::channel::<()>();
        if let Some(notes) = &notes {
            let sequence = &sequence;
            scope.spawn(move || notes.keep(sequence, &ends));
        }
        let start = || {
            let handler = rpc::handler(Arc::clone(&sequence));
            let nexus = Nexus::builder().config(threads.config()).handle_burst(rpc::NEXT, handler).build()?;
            threads.start(nexus.server(), addresses)
        };
        let (first, epoch) = (sequence.next(), sequence.epoch());
        let advice = |address: &str| {
            format!("From {first} on, epoch {epoch}. Take numbers with: sinew seq next --address {address}")
        };
        let served = threads.serve(start, advice);
        drop(keeps);
        served
    })?;
    if let Some(notes) = notes {
        notes.close(&sequence)?;
    }
    if served.is_some() && !threads.is_child() {
        output::print(format_args!("the next number is {}", sequence.next()))?;
    }
    Ok(if served.is_some() { Outcome::Done } else { Outcome::Failed })
}
