//! What `sinew rpc bench` can be told.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Subcommand;
use sinew::fabric::Address;

use super::result::{Figures, Kind};
use super::run::Plan;
use crate::fabrics::Fabric;
use crate::limits::References;
use crate::machine;
use crate::serve::LimitArgs;
use crate::units::parse_size;

/// The benchmarks.
#[derive(Subcommand)]
pub enum Command {
    /// One call at a time: how long it takes
    #[command(after_help = LATENCY_HELP)]
    Latency(Args),
    /// Many small calls in flight: how many a client core completes
    #[command(after_help = RATE_HELP)]
    Rate(Args),
    /// Large requests: bits per second
    #[command(after_help = BANDWIDTH_HELP)]
    Bandwidth(Args),
    /// The rate over many sessions against the rate over 20, in the same run
    #[command(after_help = SCALE_HELP)]
    Scale(Args),
}

const LATENCY_HELP: &str = "\
Every answer is checked in full. The limit is the same packet to and fro with nothing above: over two rings between two
threads (shm, hub), or over two UDP sockets that spin (udp).

JSON: p50_ns, p99_ns, p999_ns, limit_p50_ns, ratio (of ours to the limit; 1 is the limit itself, more is slower).

Example: sinew rpc bench latency --fabric shm --size 32 --seconds 3 --json";

const RATE_HELP: &str = "\
Calls go out --batch at a time while --window are in flight, each over a session chosen at random. Every answer is checked in
full up to 40 bytes; longer ones at their first 32 and last 8 bytes, and one in 64 byte for byte. The limit is the same
window and batch of packets to and fro with nothing above: through two rings (shm, hub), or through UDP with as many packets
to a datagram as fit, or with one where the address says coalesce=off (udp). Latencies are those of one batch in 32.

JSON: rate_mops (of one client thread), limit_mops, ratio.

Example: sinew rpc bench rate --fabric udp --window 512 --batch 8 --seconds 3 --fail-if-below 5";

const BANDWIDTH_HELP: &str = "\
The server checks each request: its length, a stamp of its call in every 16 KB, a word of every 4 KB (another one each time),
and one request in 64 byte for byte. The limit is the rate at which one core copies memory that the other has just written
(shm, hub), or that of UDP packets one way with segmentation offload (udp).

JSON: gbps, limit_gbps, ratio.

Example: sinew rpc bench bandwidth --fabric shm --size 8M --seconds 3";

const SCALE_HELP: &str = "\
Opens --sessions sessions of one credit each, 20,000 by default, and alternates between calls over 20 of them and calls over
all, chosen at random.

JSON: rate_mops (over all), limit_mops (over 20), ratio.

Example: sinew rpc bench scale --fabric shm --json";

/// Options of every benchmark.
#[derive(clap::Args)]
pub struct Args {
    /// What carries the calls; follows from --address
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// A server that runs already (see `sinew rpc serve`); else one is started in a process of its own
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Options of the fabric for addresses made here, as in `ring=4095` or `coalesce=off`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Bytes of each request (and of each echo): 32, 64K, 8M
    #[arg(long, value_parser = parse_size)]
    size: Option<usize>,
    /// Calls that go out together [default: 3; 1 for bandwidth]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Calls in flight for each client thread [default: 60; 2 for bandwidth]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Sessions of each client thread [default: enough for the window; 20000 for scale]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    sessions: Option<u32>,
    /// Client threads, and as many server threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Seconds of measuring; the limit takes about half as long again
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Processors of the client threads, then of the server threads [default: 0,1,... where there are enough]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Leave threads where the system puts them
    #[arg(long, conflicts_with = "pin")]
    no_pin: bool,
    /// What `sinew limits --json` printed on this machine when it was quiet, to judge by whether it is quiet now
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    output: Output,
}

/// How the result is shown and judged.
#[derive(clap::Args, Clone)]
pub struct Output {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Exit with status 3 when the figure (p50_ns, rate_mops, gbps; for scale the ratio) is below this
    #[arg(long, value_name = "FIGURE")]
    fail_if_below: Option<f64>,
    /// Exit with status 3 when the figure is above this
    #[arg(long, value_name = "FIGURE")]
    fail_if_above: Option<f64>,
}

impl Output {
    /// What to say about thresholds that were missed.
    pub fn thresholds_missed(&self, figures: &Figures) -> Vec<String> {
        let (name, figure) = figures.judged();
        let below = self.fail_if_below.filter(|&limit| figure < limit);
        let above = self.fail_if_above.filter(|&limit| figure > limit);
        let below = below.map(|limit| format!("{name} is {figure:.3}, below {limit}"));
        below.into_iter().chain(above.map(|limit| format!("{name} is {figure:.3}, above {limit}"))).collect()
    }
}

impl Command {
    /// What to measure and how to show it.
    pub fn plan(&self) -> anyhow::Result<(Plan, Output)> {
        let (kind, args) = match self {
            Self::Latency(args) => (Kind::Latency, args),
            Self::Rate(args) => (Kind::Rate, args),
            Self::Bandwidth(args) => (Kind::Bandwidth, args),
            Self::Scale(args) => (Kind::Scale, args),
        };
        Ok((args.plan(kind)?, args.output.clone()))
    }
}

impl Args {
    fn plan(&self, kind: Kind) -> anyhow::Result<Plan> {
        let fabric = self.fabric()?;
        let duration = Duration::try_from_secs_f64(self.seconds).context("--seconds")?;
        ensure!(duration >= Duration::from_millis(10), "--seconds: at least 0.01");
        let threads = usize::from(self.threads);
        let cpus = self.cpus(threads)?;
        let mut plan = Plan::new(kind, fabric, duration);
        if let Some(size) = self.size {
            plan.size = size;
        }
        if let Some(window) = self.window {
            plan.window = window as usize;
            plan.sessions = plan.sessions.max(Plan::sessions_for(plan.window, self.limits.slots));
        }
        plan.batch = self.batch.map_or(plan.batch, |batch| batch as usize).min(plan.window);
        if let Some(sessions) = self.sessions {
            plan.sessions = sessions as usize;
        }
        plan.threads = threads;
        plan.client_cpus = cpus[..threads].to_vec();
        plan.server_cpus = cpus[threads..].to_vec();
        plan.address.clone_from(&self.address);
        plan.options =
            self.options.as_ref().map_or(String::new(), |options| format!("?{}", options.trim_start_matches('?')));
        plan.limits = self.limits.clone();
        if let Some(path) = &self.reference {
            plan.references = References::read(path)?;
        }
        if kind == Kind::Scale {
            plan.limits.credits = 1;
        }
        let most = sinew::prelude::Config::default().message_len_max as usize - 64;
        ensure!(plan.size <= most, "--size: at most {most} bytes");
        Ok(plan)
    }

    fn fabric(&self) -> anyhow::Result<Fabric> {
        let Some(address) = &self.address else { return Ok(self.fabric.unwrap_or(Fabric::Shm)) };
        let parsed: Address = address.parse()?;
        let of_address = Fabric::of(&parsed).with_context(|| format!("--address {address}: use shm:// or udp://"))?;
        ensure!(
            self.fabric.is_none_or(|fabric| fabric == of_address),
            "--fabric and --address {address} disagree; leave --fabric out"
        );
        Ok(of_address)
    }

    /// For each client thread, then for each server thread.
    fn cpus(&self, threads: usize) -> anyhow::Result<Vec<Option<usize>>> {
        let wanted = 2 * threads;
        if !self.pin.is_empty() {
            ensure!(
                self.pin.len() == wanted || (self.address.is_some() && self.pin.len() == threads),
                "--pin: {wanted} processors are needed, one for each client thread and then one for each server thread"
            );
            return Ok(self.pin.iter().copied().map(Some).chain(std::iter::repeat(None)).take(wanted).collect());
        }
        let available = machine::cpus().to_vec();
        if self.no_pin || available.len() < wanted || !machine::has_two_cpus() {
            return Ok(vec![None; wanted]);
        }
        Ok(available.into_iter().map(Some).take(wanted).collect())
    }
}
