//! `sinew index bench`: GETs of an ordered index beside echoes, and the effect of scans on them, in workers and in
//! dispatch.

use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde_json::json;
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::kv::ordered::{Pipeline, PipelineConfig};
use sinew::shm::Hub;
use sinew::{Endpoint, FabricEndpoint};
use sinew_harness::load::Slice;
use sinew_harness::load::cache::Fills;
use sinew_harness::load::echo::{self, Answer};
use sinew_harness::load::index::{Index, KEY_LEN, Shape};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::units::{counted, parse_count};
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Measured, Unit};

use super::serve::Scans;
use crate::child::ServerProcess;
use crate::echo::{EchoPlan, Echoes};
use crate::endpoint_args::LimitArgs;
use crate::fabrics::{self, Fabric, Purpose};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::{Outcome, Usage, interrupted};

const HELP: &str = "\
Starts servers, each in a process of its own, and fills them with keys and values of 8 bytes (nsdi19 7.2). Every
answer is checked.

  gets   GETs of random keys, beside echoes of messages of the same length.
         The figure is GETs a second.
  scans  The same, with scans mixed in that sum their values (--scan-share of
         the requests, --scan-len keys each), at one server that scans in
         worker threads and one that scans in its own. The figure is the 99th
         percentile of the GETs with scans in workers; beside it stands the
         same with scans in the server's own threads.

Examples:
  sinew index bench gets
  sinew index bench gets --fabric udp --window 512 --batch 32
  sinew index bench scans --scan-share 0.01 --scan-len 128 --window 16";

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RequestKind {
    /// GETs beside echoes
    Gets,
    /// 99th percentile of GETs while scans run
    Scans,
}

/// Measure an ordered index.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Measurement to make
    #[arg(value_enum, value_name = "WHAT")]
    kind: RequestKind,
    /// Fabric that carries the requests; all but hub
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Options for the addresses that the benchmark makes, as in `ring=4095` or `coalesce=off`
    #[arg(long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Keys in the index, 1 to 1073741824: 1M is a million
    #[arg(long, default_value = "1M", allow_negative_numbers = true, value_parser = parse_count)]
    keys: usize,
    /// Share of the requests that are scans, 0.0001 to 0.5; only for `scans`
    #[arg(long, default_value_t = 0.01, allow_negative_numbers = true)]
    scan_share: f64,
    /// Keys in each scan, 1 to 1000000; only for `scans`
    #[arg(long, default_value_t = 128, allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    scan_len: u32,
    /// Requests in flight, 1 to 4096 [default: 64 for gets, 16 for scans]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: Option<u32>,
    /// Requests sent together, at most --window [default: 16 for gets, or --window if that is less; 1 for scans]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Longest time to fill an index.
const FILLING: Duration = Duration::from_secs(600);
/// Most keys: the workload and the checks number them with 32 bits.
const KEYS_MAX: usize = 1 << 30;
/// Memory that a server gets for each entry, in bytes.
const ENTRY_BYTES: usize = 320;

/// A measurement to make.
struct Plan<'a> {
    args: &'a Args,
    shape: Shape,
    setting: Setting,
    options: String,
}

impl Args {
    fn unit(&self) -> Unit {
        match self.kind {
            RequestKind::Gets => Unit::Mops,
            RequestKind::Scans => Unit::Ns,
        }
    }

    fn plan(&self) -> anyhow::Result<Plan<'_>> {
        self.measure.check_thresholds(self.unit())?;
        ensure!((1..=KEYS_MAX).contains(&self.keys), "--keys {}: must be from 1 to {KEYS_MAX}", self.keys);
        let scans = self.kind == RequestKind::Scans;
        ensure!(
            !scans || (0.0..=0.5).contains(&self.scan_share) && self.scan_share >= 0.0001,
            "--scan-share {}: must be from 0.0001 to 0.5",
            self.scan_share
        );
        ensure!(self.fabric != Fabric::Hub, "--fabric hub: the index runs in a process of its own");
        let window = self.window.unwrap_or(if scans { 16 } else { 64 }) as usize;
        let batch = self.batch.map_or(if scans { 1 } else { 16.min(window) }, |batch| batch as usize);
        ensure!(batch <= window, "--batch {batch}: exceeds the {} in flight (--window)", counted(window, "request"));
        let options = fabrics::options_of(self.options.as_deref());
        fabrics::check(&self.fabric.client_address(&options, None), Purpose::CallFrom)?;
        let shape = Shape {
            window,
            batch,
            keys: self.keys as u64,
            scan_share: if scans { self.scan_share } else { 0.0 },
            scan_len: self.scan_len,
        };
        Ok(Plan { args: self, shape, setting: self.measure.setting((1, 1), false)?, options })
    }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    let plan = args.plan().map_err(Usage::of)?;
    let measure =
        |progress: &mut Progress<'_>| interrupted::run_interruptible(|interrupt| plan.measure(interrupt, progress));
    args.measure.show(&with_progress(measure)?)
}

impl Plan<'_> {
    fn start_index(&self, scans: Scans) -> anyhow::Result<ServerProcess> {
        let memory = self.args.keys * ENTRY_BYTES + (1 << 20);
        let mut args = vec!["serve".to_owned(), "index".to_owned(), self.args.fabric.fresh_address(&self.options)?];
        args.extend(["--memory".to_owned(), memory.to_string()]);
        match scans {
            Scans::Workers => args.extend(["--workers".to_owned(), "1".to_owned()]),
            Scans::Dispatch => args.extend(["--scans".to_owned(), scans.name().to_owned()]),
        }
        args.extend(self.args.limits.to_args(&self.setting.server_cpus));
        ServerProcess::spawn(&args)
    }

    /// Echoes as long as the longer of a GET and its answer.
    fn echo(&self) -> EchoPlan {
        let Shape { window, batch, .. } = self.shape;
        EchoPlan {
            fabric: self.args.fabric,
            options: self.options.clone(),
            limits: self.args.limits.clone(),
            shape: echo::Shape { size: 1 + KEY_LEN, answer: Answer::Echo, window, batch },
            sessions: window.div_ceil(usize::from(self.args.limits.slots)),
        }
    }

    /// Starts client threads of an index, and fills it.
    fn load(&self, address: &str, interrupt: Interrupt) -> anyhow::Result<Drivers<dyn Fills>> {
        let (fabric, limits, options) = (self.args.fabric, self.args.limits.clone(), self.options.clone());
        let (shape, address) = (self.shape, address.to_owned());
        let loaders = Drivers::start(&self.setting.client_cpus, interrupt, move |_| {
            match fabrics::open(fabric, &limits, &options, &address, &Hub::new())? {
                FabricEndpoint::Shm(rpc) => boxed(rpc, shape, &address, interrupt),
                FabricEndpoint::Udp(rpc) => boxed(rpc, shape, &address, interrupt),
                FabricEndpoint::Ibverbs(rpc) => boxed(rpc, shape, &address, interrupt),
                FabricEndpoint::Xdp(rpc) => boxed(rpc, shape, &address, interrupt),
                FabricEndpoint::Other(rpc) => boxed(rpc, shape, &address, interrupt),
            }
        })?;
        loaders.each(FILLING, move |_, index| {
            index.fill(0..shape.keys);
            index.drive(&HostClock::new(), Duration::ZERO, interrupt)
        })?;
        Ok(loaders)
    }

    fn measure(&self, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
        progress("filling the index", 0.0);
        let index = self.start_index(Scans::Workers)?;
        let loaders = self.load(&index.addresses()[0], interrupt)?;
        let (baseline, server) = match self.args.kind {
            RequestKind::Gets => {
                let address = self.args.fabric.fresh_address(&self.options)?;
                let server = ServerProcess::start(&address, &self.setting.server_cpus, &self.args.limits)?;
                let (plan, cpus) = (self.echo(), &self.setting.client_cpus);
                (Baseline::Echoes(Echoes::start(&plan, cpus, server.addresses(), &Hub::new(), interrupt)?), server)
            }
            RequestKind::Scans => {
                progress("filling the other index", 0.0);
                let server = self.start_index(Scans::Dispatch)?;
                (Baseline::Dispatch(self.load(&server.addresses()[0], interrupt)?), server)
            }
        };
        let mut turns = IndexSides { plan: self, loaders, baseline, sums: [Slice::new(), Slice::new()] };
        let is_udp = self.args.fabric == Fabric::Udp;
        let yardstick = if is_udp { Yardstick::UdpRoundTrip } else { Yardstick::RingRoundTrip };
        let run = self.setting.run(2, vec![index.id(), server.id()], Some(yardstick), interrupt);
        let measured = run.measure_alternately(2, &mut turns, progress)?;
        Ok(self.figure(&measured, turns.sums))
    }

    fn figure(&self, measured: &Measured, [ours, theirs]: [Slice; 2]) -> Figure {
        let (fabric, Shape { window, batch, keys, scan_len, scan_share }) = (self.args.fabric.name(), self.shape);
        let keys_text = counted(keys, "key");
        let in_flight = format!("{keys_text} of {KEY_LEN} B, {window} in flight in batches of {batch}");
        let mut figure = match self.args.kind {
            RequestKind::Gets => {
                let title = format!("GETs of an ordered index over {fabric}");
                let figure = measured.figure("index gets", title, Unit::Mops, 0);
                let mut figure = figure.compared_with(measured, 1, Comparison::Baseline, "echoes of the same messages");
                figure.lines = vec![in_flight, format!("{} checked", counted(ours.done, "answer"))];
                figure
            }
            RequestKind::Scans => {
                let title = format!("99th percentile of GETs of an ordered index over {fabric}, scans in a worker");
                let figure = measured.figure("index scans", title, Unit::Ns, 0);
                let mut figure =
                    figure.compared_with(measured, 1, Comparison::Baseline, "the same with scans in dispatch");
                let percent = scan_share * 100.0;
                figure.lines = vec![
                    format!("{in_flight}, {percent} % of the requests sums over {}", counted(scan_len, "key")),
                    format!("{} and {} answers checked", ours.done, theirs.done),
                ];
                figure
            }
        };
        figure.setup = json!({
            "what": self.args.kind.to_possible_value().map(|value| value.get_name().to_owned()),
            "fabric": fabric,
            "keys": keys,
            "window": window,
            "batch": batch,
            "scan_share": scan_share,
            "scan_len": scan_len,
            "seconds": self.setting.duration.as_secs_f64(),
        });
        figure.details = json!({ "answers_checked": ours.done + theirs.done });
        figure.latency = Some(ours.latency);
        figure
    }
}

/// Driver of a thread, whose sleeps Ctrl-C ends.
fn boxed<E: Endpoint + 'static>(
    rpc: E,
    shape: Shape,
    address: &str,
    interrupt: Interrupt,
) -> anyhow::Result<(Box<dyn Fills>, WakeOnInterrupt)> {
    let wake = interrupt.wake_on_interrupt(rpc.waker());
    let config = PipelineConfig { window: shape.window, ..PipelineConfig::default() };
    let pipeline = Pipeline::connect(rpc, address, config)?;
    Ok((Box::new(Index::new(pipeline, HostClock::new(), shape, 1)), wake))
}

/// Comparison for the index.
enum Baseline {
    Echoes(Echoes),
    /// An index that scans in dispatch.
    Dispatch(Drivers<dyn Fills>),
}

struct IndexSides<'a> {
    plan: &'a Plan<'a>,
    loaders: Drivers<dyn Fills>,
    baseline: Baseline,
    sums: [Slice; 2],
}

impl MeasureSides for IndexSides<'_> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let slices = match (side, &self.baseline) {
            (0, _) => self.loaders.slices(duration, |_, _| ())?,
            (_, Baseline::Echoes(echoes)) => echoes.slice(self.plan.echo().sessions, duration)?,
            (_, Baseline::Dispatch(loaders)) => loaders.slices(duration, |_, _| ())?,
        };
        let mut sum = Slice::new();
        slices.iter().for_each(|slice| sum.add(slice));
        self.sums[side.min(1)].add(&sum);
        Ok(Some(match self.plan.args.kind {
            RequestKind::Gets => slices.iter().map(Slice::mops).sum(),
            RequestKind::Scans => sum.latency.value_at_quantile(0.99) as f64,
        }))
    }

    fn reset_sums(&mut self) {
        self.sums = [Slice::new(), Slice::new()];
    }
}
