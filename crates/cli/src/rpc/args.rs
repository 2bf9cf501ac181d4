//! Options of `sinew rpc bench`.

use anyhow::ensure;
use clap::Subcommand;
use sinew::shm::RING_PACKETS_MAX;
use sinew_harness::units::{self, parse_size};

use super::limit::LimitMeter;
use super::plan::{Kind, RpcPlan};
use crate::endpoint_args::{LimitArgs, SIZE_MAX};
use crate::fabrics::{self, Fabric, Purpose};
use crate::measure::MeasureArgs;

/// The benchmarks.
#[derive(Subcommand)]
pub enum Command {
    /// Measure the latency of one call at a time
    #[command(after_help = LATENCY_HELP)]
    #[command(mut_arg("size", |arg| arg.help(
        "Length of each request and of its answer, in bytes, 0 to 16M [default: 32]"
    )))]
    #[command(mut_arg("sessions", |arg| arg.help("Sessions of each client thread, 1 to 65536 [default: 1]")))]
    Latency(Args),
    /// Measure the rate of small calls that a client core completes, with many in flight
    #[command(after_help = RATE_HELP)]
    #[command(mut_arg("size", |arg| arg.help(
        "Length of each request and of its answer, in bytes, 0 to 16M [default: 32]"
    )))]
    #[command(mut_arg("sessions", |arg| arg.help(
        "Sessions of each client thread, up to 65536 [default: 15; with --window at least 2 x --window / --slots]"
    )))]
    Rate(LoadArgs),
    /// Measure the bandwidth of large requests
    #[command(after_help = BANDWIDTH_HELP)]
    #[command(mut_arg("size", |arg| arg.help("Length of each request, in bytes, 1 to 16M [default: 8M]")))]
    #[command(mut_arg("sessions", |arg| arg.help(
        "Sessions of each client thread, 1 to 65536 [default: 1; with --window at least 2 x --window / --slots]"
    )))]
    #[command(mut_arg("batch", |arg| arg.help("Calls sent together, at most --window [default: 1]")))]
    #[command(mut_arg("window", |arg| arg.help("Calls in flight for each client thread, 1 to 65536 [default: 2]")))]
    Bandwidth(LoadArgs),
    /// Measure the rate over many sessions against the rate over 20, in the same run
    #[command(after_help = SCALE_HELP)]
    #[command(mut_arg("size", |arg| arg.help(
        "Length of each request and of its answer, in bytes, 0 to 16M [default: 32]"
    )))]
    #[command(mut_arg("sessions", |arg| arg.help(
        "Sessions of each client thread, 21 to 65536 [default: 20000; with --window at least 2 x --window / --slots]"
    )))]
    #[command(mut_arg("credits", |arg| arg.help(
        "Packets that each session may have in flight, 1 to 65535 [default: 2 x (--window / 20 + 1), so 8]"
    )))]
    Scale(LoadArgs),
}

const LATENCY_HELP: &str = "\
Every answer is checked in full. The limit is the round trip of the same message without the RPC layer. Over shm and
hub: through two rings between two threads, and past 224 bytes between two bare ports, which copy it on arrival. Over
udp: as one datagram between two sockets that spin; messages of more than 64,976 bytes have no ratio. Over ibverbs: as
one datagram between two bare queue pairs of the device; messages that do not fit one have no ratio.

Example: sinew rpc bench latency --fabric shm --size 32 --seconds 3 --json";

const RATE_HELP: &str = "\
--batch calls at a time are sent while --window are in flight, each over a session chosen at random. Every answer of
up to 40 bytes is checked in full; of longer ones the first 32 and last 8 bytes are checked, and one in 64 byte for
byte. Latencies are those of one batch in 32, or of all from 4 KB on. The limit is the rate of the same messages there
and back, with the same window and batch and nothing above. Over shm and hub: through two rings, and past 224 bytes
between two bare ports. Over udp: with as many to a datagram as fit, or one if --address or --options say
coalesce=off; messages of more than 64,976 bytes have no ratio. Over ibverbs: as one datagram each between two bare
queue pairs; messages that do not fit one have no ratio.

Example: sinew rpc bench rate --fabric udp --window 512 --batch 8 --seconds 3 --fail-if-below 5";

const BANDWIDTH_HELP: &str = "\
The server checks each request: its length, a stamp of its call in every 16 KB, a word of every 4 KB (another one each
time), and one request in 64 byte for byte. The limit is the rate at which one core copies memory that the other has
just written, of the same size but at least 64 KB (shm, hub), that of UDP packets of 4 KB one way with segmentation
offload (udp), or that of full datagrams between two bare queue pairs, each answered by a short one (ibverbs).

Example: sinew rpc bench bandwidth --fabric shm --size 8M --seconds 3";

const SCALE_HELP: &str = "\
Opens --sessions sessions, 20,000 by default, and alternates between calls over 20 of them and calls over all, chosen
at random. Unless --credits says otherwise, each session has as many credits as 20 sessions need for the window, so
that the few are not held back.

Example: sinew rpc bench scale --fabric shm --json";

/// Options of every benchmark. The texts of `size` and `sessions`, whose defaults differ, stand at each benchmark.
#[derive(clap::Args)]
pub struct Args {
    /// Fabric that carries the calls [default: that of --address, else shm]
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// Address of a running `sinew rpc serve` [default: the benchmark starts a server process]
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Options for the addresses that the benchmark makes, as in `ring=4095`, `coalesce=off` or `device=rxe0`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Length of each request, in bytes, at most 16M
    #[arg(long, allow_negative_numbers = true, value_parser = parse_size)]
    size: Option<usize>,
    /// Sessions of each client thread, 1 to 65536
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=SESSIONS_MAX))]
    sessions: Option<u32>,
    /// Number of client threads, and of server threads, 1 to 65535
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Options of the benchmarks that keep several calls in flight.
#[derive(clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    args: Args,
    /// Calls sent together, at most --window [default: 3, or --window if that is less]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    batch: Option<u32>,
    /// Calls in flight for each client thread, 1 to 65536 [default: 60]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    window: Option<u32>,
}

/// Most sessions that an endpoint accepts, by its configuration.
const SESSIONS_MAX: i64 = 65_536;
/// Most calls in flight, whose buffers are allocated in advance.
const WINDOW_MAX: i64 = 65_536;

impl Command {
    /// The measurement that the options ask for, and how to show it.
    pub fn plan(&self) -> anyhow::Result<(RpcPlan, MeasureArgs)> {
        let (kind, args, batch, window) = match self {
            Self::Latency(args) => (Kind::Latency, args, None, None),
            Self::Rate(load) => (Kind::Rate, &load.args, load.batch, load.window),
            Self::Bandwidth(load) => (Kind::Bandwidth, &load.args, load.batch, load.window),
            Self::Scale(load) => (Kind::Scale, &load.args, load.batch, load.window),
        };
        args.measure.check_thresholds(kind.unit())?;
        let plan = args.plan(kind, batch, window)?;
        let limit_size = LimitMeter::new(&plan).size();
        ensure!(
            !args.measure.thresholds.judge_ratio() || plan.has_ratio(limit_size),
            "--fail-if-ratio-...: there is no limit to compare with for messages of {} over {}: the longest has {}",
            units::size(plan.size),
            plan.fabric.name(),
            units::size(limit_size)
        );
        Ok((plan, args.measure.clone()))
    }
}

impl Args {
    fn plan(&self, kind: Kind, batch: Option<u32>, window: Option<u32>) -> anyhow::Result<RpcPlan> {
        let threads = usize::from(self.threads);
        let fabric = fabrics::of_clients(self.fabric, self.address.as_deref(), threads)?;
        let (client_cpus, server_cpus) = self.measure.places((threads, threads), self.address.is_some())?;
        let mut plan = RpcPlan::new(kind, fabric, self.measure.seconds);
        plan.size = self.size.unwrap_or(plan.size);
        ensure!(plan.size <= SIZE_MAX, "--size: {} is more than {}", units::size(plan.size), units::size(SIZE_MAX));
        ensure!(kind != Kind::Bandwidth || plan.size > 0, "--size 0: a bandwidth needs requests with data");
        if let Some(window) = window {
            plan.window = window as usize;
            let enough = RpcPlan::sessions_for(plan.window, self.limits.slots).min(SESSIONS_MAX as usize);
            plan.sessions = plan.sessions.max(enough);
        }
        plan.batch = batch.map_or(plan.batch.min(plan.window), |batch| batch as usize);
        ensure!(
            plan.batch <= plan.window,
            "--batch {}: exceeds the {} in flight (--window)",
            plan.batch,
            units::counted(plan.window, "call")
        );
        plan.sessions = self.sessions.map_or(plan.sessions, |sessions| sessions as usize);
        ensure!(
            kind != Kind::Scale || plan.sessions > RpcPlan::FEW_SESSIONS,
            "--sessions {}: give more than the {} that they are compared with",
            plan.sessions,
            RpcPlan::FEW_SESSIONS
        );
        (plan.threads, plan.client_cpus, plan.server_cpus) = (threads, client_cpus, server_cpus);
        plan.address.clone_from(&self.address);
        plan.options = fabrics::options_of(self.options.as_deref());
        plan.limits = self.limits.clone();
        if kind == Kind::Scale {
            // Sessions are chosen at random, so some of the few get more than their share of the window.
            let needed = u16::try_from((plan.window / RpcPlan::FEW_SESSIONS + 1) * 2).unwrap_or(u16::MAX);
            plan.limits.credits.get_or_insert(needed);
        }
        ensure!(
            plan.ring_packets().is_none_or(|packets| packets <= RING_PACKETS_MAX),
            "--sessions {} and --credits {}: no ring holds so many packets; give its size with --options ring=PACKETS",
            plan.sessions,
            plan.limits.credits()
        );
        fabrics::check(&fabric.client_address(&plan.options(), self.address.as_deref()), Purpose::CallFrom)?;
        plan.references = self.measure.references()?;
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use sinew::prelude::Config;

    #[test]
    fn the_bounds_are_those_of_endpoints() {
        assert_eq!(Config::default().sessions_max, SESSIONS_MAX as usize);
    }
}
