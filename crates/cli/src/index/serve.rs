//! `sinew serve index`: an ordered index in this process's memory.

use anyhow::ensure;
use clap::ValueEnum;
use sinew::kv::ordered::{POINTS, RANGES, Service, VALUE_LEN_MAX};
use sinew::prelude::*;
use sinew_harness::units::{self, counted, parse_size};

use super::ADDRESS;
use crate::serve::ThreadArgs;
use crate::{Outcome, Usage};

const AFTER_HELP: &str = "\
All threads serve the same keys. GETs, PUTs and DELETEs run in the server's threads; scans and sums run in worker
threads, so that a long one does not delay the requests that arrive meanwhile. The entries live in memory and are lost
when the server ends.

Examples:
  sinew serve index                                   # at shm://index
  sinew serve index udp://0.0.0.0:7300 --threads 2    # 7300 and 7301
  sinew serve index --workers 1 --memory 4G
  sinew index put apple 3; sinew index scan --prefix a    # elsewhere";

/// Serve an ordered index until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address to serve at: shm://NAME, udp://HOST:PORT, ibverbs://HOST:PORT or xdp://INTERFACE/IP:PORT
    #[arg(default_value = ADDRESS)]
    address: String,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Memory for keys and values, in bytes; each entry takes 120 bytes more than its key and value, and a short one
    /// 290 (key and value, each rounded up to 8, have up to 48). PUTs beyond it are refused, and deletions make room.
    /// Values that were replaced or deleted are not counted, and are freed later; the table of short entries keeps its
    /// memory
    #[arg(long, default_value = "1G", allow_negative_numbers = true, value_parser = parse_size)]
    memory: usize,
    /// Longest value, in bytes, 1 to 8M
    #[arg(long, default_value = "1M", value_name = "BYTES", allow_negative_numbers = true, value_parser = parse_size)]
    value_max: usize,
    /// Threads that run scans and sums
    #[arg(long, value_enum, default_value_t = Scans::Workers)]
    scans: Scans,
    /// Number of worker threads, 1 to 1024 [default: one for each processor]
    #[arg(long, allow_negative_numbers = true, conflicts_with = "scans",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

/// Threads that run scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scans {
    /// Worker threads
    Workers,
    /// The server's own threads, between the other requests
    Dispatch,
}

impl Scans {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Dispatch => "dispatch",
        }
    }
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        let (value_max, most) = (units::size(self.value_max), units::size(VALUE_LEN_MAX));
        ensure!((1..=VALUE_LEN_MAX).contains(&self.value_max), "--value-max {value_max}: must be from 1 B to {most}");
        Ok(())
    }
}

/// Serves until a signal, or, as a child, until standard input ends.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.check().map_err(Usage::of)?;
    let threads = &args.threads;
    let addresses = threads.addresses(&args.address).map_err(Usage::of)?;
    let service = Service::new(args.memory as u64, args.value_max);
    let start = || {
        let mut config = threads.config();
        config.message_len_max = config.message_len_max.max(service.message_len_max() as u32);
        let builder = Nexus::builder().config(config).handle_burst(POINTS, service.points());
        let mut builder = match args.scans {
            Scans::Workers => builder.handle_worker(RANGES, service.ranges()),
            Scans::Dispatch => builder.handle(RANGES, service.ranges_in_dispatch()),
        };
        if let Some(workers) = args.workers {
            builder = builder.worker_threads(usize::from(workers));
        }
        threads.start(builder.build()?.server(), addresses)
    };
    let then = |address: &str| format!("Store with: sinew index put apple 3 --address {address}");
    let Some(reports) = threads.serve(start, then)? else { return Ok(Outcome::Failed) };
    let stats = service.index().stats();
    let (entries, used) = (counted(stats.entries, "entry"), units::amount(stats.used_bytes));
    threads.tell_end("entries", stats.entries, format_args!("{entries}, {used}"))?;
    threads.print_reports(&reports)?;
    Ok(Outcome::Done)
}
