//! What `sinew rpc bench` can be told.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Subcommand;
use sinew::shm::RING_PACKETS_MAX;

use super::limit::LimitMeter;
use super::result::Kind;
use super::run::Plan;
use crate::fabrics::{self, Fabric, Purpose};
use crate::limits::References;
use crate::serve::{LimitArgs, SIZE_MAX};
use crate::units::{self, parse_seconds, parse_size, parse_threshold};
use crate::{Outcome, machine, output};

/// The benchmarks.
#[derive(Subcommand)]
pub enum Command {
    /// One call at a time: how long it takes
    #[command(after_help = LATENCY_HELP)]
    Latency(Args),
    /// Many small calls in flight: how many a client core completes
    #[command(after_help = RATE_HELP)]
    Rate(LoadArgs),
    /// Large requests: bits per second
    #[command(after_help = BANDWIDTH_HELP)]
    Bandwidth(LoadArgs),
    /// The rate over many sessions against the rate over 20, in the same run
    #[command(after_help = SCALE_HELP)]
    Scale(LoadArgs),
}

const LATENCY_HELP: &str = "\
Every answer is checked in full. The limit is the same message to and fro with nothing above. Over shm and hub: through two
rings between two threads, and past 224 bytes between two bare ports, which copy it on arrival. Over udp: as one datagram
between two sockets that spin; for messages of more than 64,976 bytes there is no ratio. Over ibverbs: as one datagram between
two bare queue pairs of the device, and no ratio for more than one holds.

JSON: p50_ns, p99_ns, p999_ns, limit_p50_ns, limit_size (bytes that the limit was measured with), ratio (of ours to the
limit; 1 is the limit itself, more is slower). What could not be measured is null.

Example: sinew rpc bench latency --fabric shm --size 32 --seconds 3 --json";

const RATE_HELP: &str = "\
Calls go out --batch at a time while --window are in flight, each over a session chosen at random. Every answer is checked in
full up to 40 bytes; longer ones at their first 32 and last 8 bytes, and one in 64 byte for byte. Latencies are those of one
batch in 32, and of all from 4 KB on. The limit is the same window and batch of messages to and fro with nothing above. Over
shm and hub: through two rings, and past 224 bytes between two bare ports. Over udp: with as many to a datagram as fit, or one
where --address or --options say coalesce=off; for messages of more than 64,976 bytes there is no ratio. Over ibverbs: as one
datagram each between two bare queue pairs, and no ratio for more than one holds.

JSON: rate_mops (of one client thread), limit_mops, limit_size (bytes that the limit was measured with), ratio. What could not
be measured is null.

Example: sinew rpc bench rate --fabric udp --window 512 --batch 8 --seconds 3 --fail-if-below 5";

const BANDWIDTH_HELP: &str = "\
The server checks each request: its length, a stamp of its call in every 16 KB, a word of every 4 KB (another one each time),
and one request in 64 byte for byte. The limit is the rate at which one core copies as much memory, but 64 KB at least, that
the other has just written (shm, hub), that of UDP packets of 4 KB one way with segmentation offload (udp), or that of full datagrams between two bare queue pairs, each
answered by a short one (ibverbs).

JSON: gbps, limit_gbps, limit_size (bytes that were copied or sent at a time for the limit), ratio. What could not be measured
is null.

Example: sinew rpc bench bandwidth --fabric shm --size 8M --seconds 3";

const SCALE_HELP: &str = "\
Opens --sessions sessions, 20,000 by default, and alternates between calls over 20 of them and calls over all, chosen at
random. Unless --credits says otherwise each has as many credits as 20 sessions need for the window, so that the few are
not held back.

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
    /// Options of the fabric for addresses made here, as in `ring=4095`, `coalesce=off` or `device=rxe0`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Bytes of each request (and of each echo), at most 16M: 32, 64K, 8M
    #[arg(long, allow_negative_numbers = true, value_parser = parse_size)]
    size: Option<usize>,
    /// Sessions of each client thread [default: enough for what is in flight; 20000 for scale]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=SESSIONS_MAX))]
    sessions: Option<u32>,
    /// Client threads, and as many server threads
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Seconds of measuring; the limit takes about half as long again
    #[arg(long, default_value = "3", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Duration,
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

/// Options of the benchmarks that keep several calls in flight.
#[derive(clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    args: Args,
    /// Calls that go out together [default: 3; 1 for bandwidth]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    batch: Option<u32>,
    /// Calls in flight for each client thread [default: 60; 2 for bandwidth]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    window: Option<u32>,
}

/// What an endpoint takes, by its configuration.
const SESSIONS_MAX: i64 = 65_536;
/// Calls whose buffers are made up front.
const WINDOW_MAX: i64 = 65_536;

/// How the result is shown and judged.
#[derive(clap::Args, Clone)]
pub struct Output {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Exit with status 3 when the figure (p50_ns, rate_mops, gbps; for scale the ratio) is below this, and with 4 when the
    /// result is invalid
    #[arg(long, value_name = "FIGURE", allow_negative_numbers = true, value_parser = parse_threshold)]
    fail_if_below: Option<f64>,
    /// Exit with status 3 when the figure is above this
    #[arg(long, value_name = "FIGURE", allow_negative_numbers = true, value_parser = parse_threshold)]
    fail_if_above: Option<f64>,
    /// Exit with status 3 when the ratio of the figure to its limit is below this
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = parse_threshold)]
    fail_if_ratio_below: Option<f64>,
    /// Exit with status 3 when the ratio of the figure to its limit is above this
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = parse_threshold)]
    fail_if_ratio_above: Option<f64>,
}

impl Output {
    /// Whether a threshold is one of the ratio.
    pub fn judges_ratio(&self) -> bool {
        self.fail_if_ratio_below.is_some() || self.fail_if_ratio_above.is_some()
    }

    /// Holds several results against the thresholds, and says which they missed: one that could not be judged hides no other.
    pub fn judge_all(&self, judged: impl IntoIterator<Item = Judged>) -> Outcome {
        judged.into_iter().map(|judged| self.judge(&judged)).max().unwrap_or(Outcome::Done)
    }

    /// Holds a result against the thresholds, and says which it missed.
    ///
    /// None is missed or met by a result whose surroundings were too busy: it says little about what was measured.
    pub fn judge(&self, judged: &Judged) -> Outcome {
        let Judged { name, figure, ratio, valid } = *judged;
        let thresholds = [
            (self.fail_if_below.map(|least| (least, "below")), name, figure),
            (self.fail_if_above.map(|most| (most, "above")), name, figure),
            (self.fail_if_ratio_below.map(|least| (least, "below")), "ratio", ratio),
            (self.fail_if_ratio_above.map(|most| (most, "above")), "ratio", ratio),
        ];
        let mut outcome = Outcome::Done;
        for (threshold, name, value) in thresholds {
            let Some((threshold, side)) = threshold else { continue };
            let Some(value) = value.filter(|_| valid) else {
                output::complain(format_args!(
                    "{name} was not held against {threshold}: the result is INVALID, since the machine was too busy for it"
                ));
                return Outcome::NotJudged;
            };
            if if side == "below" { value < threshold } else { value > threshold } {
                output::complain(format_args!("{name} is {value:.3}, {side} {threshold}"));
                outcome = Outcome::ThresholdMissed;
            }
        }
        outcome
    }
}

/// What thresholds are held against.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The figure's name.
    pub name: &'static str,
    pub figure: Option<f64>,
    pub ratio: Option<f64>,
    /// Whether the machine was free enough.
    pub valid: bool,
}

impl Command {
    /// What to measure and how to show it.
    pub fn plan(&self) -> anyhow::Result<(Plan, Output)> {
        let (kind, args, batch, window) = match self {
            Self::Latency(args) => (Kind::Latency, args, None, None),
            Self::Rate(load) => (Kind::Rate, &load.args, load.batch, load.window),
            Self::Bandwidth(load) => (Kind::Bandwidth, &load.args, load.batch, load.window),
            Self::Scale(load) => (Kind::Scale, &load.args, load.batch, load.window),
        };
        let plan = args.plan(kind, batch, window)?;
        let limit_size = LimitMeter::new(&plan).size();
        ensure!(
            !args.output.judges_ratio() || plan.has_ratio(limit_size),
            "--fail-if-ratio-...: there is no limit for messages of {} over {}: {} is the most for one",
            units::size(plan.size),
            plan.fabric.name(),
            units::size(limit_size)
        );
        Ok((plan, args.output.clone()))
    }
}

impl Args {
    fn plan(&self, kind: Kind, batch: Option<u32>, window: Option<u32>) -> anyhow::Result<Plan> {
        let fabric = self.fabric()?;
        let threads = usize::from(self.threads);
        let cpus = machine::choose_cpus(&self.pin, self.no_pin, self.address.is_some(), threads)?;
        let mut plan = Plan::new(kind, fabric, self.seconds);
        if let Some(size) = self.size {
            plan.size = size;
        }
        ensure!(plan.size <= SIZE_MAX, "--size: {} is more than {}", units::size(plan.size), units::size(SIZE_MAX));
        ensure!(kind != Kind::Bandwidth || plan.size > 0, "--size 0: nothing has no bandwidth");
        if let Some(window) = window {
            plan.window = window as usize;
            let enough = Plan::sessions_for(plan.window, self.limits.slots).min(SESSIONS_MAX as usize);
            plan.sessions = plan.sessions.max(enough);
        }
        plan.batch = batch.map_or(plan.batch.min(plan.window), |batch| batch as usize);
        ensure!(
            plan.batch <= plan.window,
            "--batch {}: more than the {} calls that are in flight at all (--window)",
            plan.batch,
            plan.window
        );
        if let Some(sessions) = self.sessions {
            plan.sessions = sessions as usize;
        }
        ensure!(
            kind != Kind::Scale || plan.sessions > Plan::FEW_SESSIONS,
            "--sessions {}: they are compared with {}, so take more",
            plan.sessions,
            Plan::FEW_SESSIONS
        );
        plan.threads = threads;
        plan.client_cpus = cpus[..threads].to_vec();
        plan.server_cpus = cpus[threads..].to_vec();
        plan.address.clone_from(&self.address);
        plan.options = match self.options.as_deref().map(|options| options.trim_start_matches('?')) {
            None | Some("") => String::new(),
            Some(options) => format!("?{options}"),
        };
        plan.limits = self.limits.clone();
        if kind == Kind::Scale {
            // Chosen at random, some of the few get more than their share of the window.
            let needed = u16::try_from((plan.window / Plan::FEW_SESSIONS + 1) * 2).unwrap_or(u16::MAX);
            plan.limits.credits.get_or_insert(needed);
        }
        ensure!(
            plan.ring_packets().is_none_or(|packets| packets <= RING_PACKETS_MAX),
            "--sessions {} and --credits {}: rings for so many packets do not exist; say how large with --options ring=PACKETS",
            plan.sessions,
            plan.limits.credits()
        );
        fabrics::check(&fabric.client_address(&plan.options()), Purpose::CallFrom)?;
        if let Some(path) = &self.reference {
            plan.references = References::read(path)?;
        }
        Ok(plan)
    }

    fn fabric(&self) -> anyhow::Result<Fabric> {
        let Some(address) = &self.address else { return Ok(self.fabric.unwrap_or(Fabric::Shm)) };
        let mut of_address = fabrics::check(address, Purpose::Call)?;
        for index in 1..usize::from(self.threads) {
            of_address = fabrics::check(&fabrics::nth_address(address, index)?, Purpose::Call)?;
        }
        ensure!(
            self.fabric.is_none_or(|fabric| fabric == of_address),
            "--fabric and --address {address} disagree; leave --fabric out"
        );
        Ok(of_address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_that_is_missed_outweighs_results_that_could_not_be_judged() {
        let limits = Output {
            json: false,
            fail_if_below: Some(5.0),
            fail_if_above: None,
            fail_if_ratio_below: None,
            fail_if_ratio_above: None,
        };
        let result = |figure: f64, valid| Judged { name: "rate_mops", figure: Some(figure), ratio: None, valid };
        let (good, bad, unknown) = (result(6.0, true), result(4.0, true), result(4.0, false));
        for (results, expected) in [
            (&[good][..], Outcome::Done),
            (&[good, unknown, good], Outcome::NotJudged),
            (&[unknown, bad, good], Outcome::ThresholdMissed),
            (&[bad, unknown], Outcome::ThresholdMissed),
        ] {
            assert_eq!(limits.judge_all(results.iter().copied()), expected);
        }
    }
    use sinew::prelude::Config;

    #[test]
    fn the_bounds_are_those_of_endpoints() {
        assert_eq!(Config::default().sessions_max, SESSIONS_MAX as usize);
    }
}
