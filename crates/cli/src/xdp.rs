//! `sinew xdp`: measures AF_XDP ports between the ends of virtual pairs.

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;
use sinew::host::Interrupt;
use sinew::shm::Hub;
use sinew::xdp::testbed::Side;
use sinew_harness::limits::xdp::{ForwardBench, Middle, Mover, XdpEcho};
use sinew_harness::load::echo::{Answer, Shape};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::{Comparison, Figure, MeasureSides, Unit, figure, machine, units};

use crate::child::ServerProcess;
use crate::echo::{EchoPlan, Echoes};
use crate::endpoint_args::LimitArgs;
use crate::fabrics::Fabric;
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::rpc::RpcPlan;
use crate::{Outcome, Usage, output, own_pair, table};

const HELP: &str = "\
Makes pairs of virtual interfaces in network namespaces of their own, which are removed afterwards, and measures
alternately in the same run:

  rate     frames of 98 B that a frame port sends back, 64 in flight, beside a
           bare socket's
  latency  one such frame there and back, median, beside a bare socket's
  forward  IPv4 frames of 98 B that a router on two frame ports passes from one
           pair to another, 64 at a time, by the router's own time; beside a bare
           loop that writes new Ethernet addresses, on two sockets of one memory
  routing  the same by the time of sender, router and receiver together; beside
           the kernel's own routing
  rpc      calls over xdp:// with every packet a datagram of its own, 60 in
           flight, beside the same over udp://
  joined   calls over xdp:// with as many packets to a datagram as fit, 512 in
           flight, beside the same over udp://

Frames that pass a router are sent, forwarded and received by one thread, on the first processor; in the others there
is one thread at each end.

This needs root, or the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN and CAP_BPF. Nothing else on the host
is touched. To measure calls over an existing interface: sinew rpc bench rate --address xdp://INTERFACE/IP:PORT.

Examples:
  sinew xdp bench
  sinew xdp bench rate latency --seconds 5 --json
  sinew xdp bench forward routing --pin 1";

/// The commands about AF_XDP ports.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure frame ports beside bare sockets, and calls over xdp:// beside udp://
    #[command(after_help = HELP)]
    Bench(Args),
}

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Rate,
    Latency,
    Forward,
    Routing,
    Rpc,
    Joined,
}

/// Options of `sinew xdp bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Measurements to make [default: all]
    #[arg(value_enum)]
    kinds: Vec<Kind>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Length of a frame with a call of 32 bytes: headers of Ethernet, IP, UDP and the RPC layer, and 32 bytes.
const FRAME_LEN: usize = 42 + 24 + 32;
const FRAMES_IN_FLIGHT: usize = 64;
const FRAMES_BATCH: usize = 16;
const CALL_LEN: usize = 32;

/// Runs the benchmark.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let Command::Bench(args) = command;
    let setting = args.measure.setting((1, 1), false).map_err(Usage::of)?;
    let kinds = if args.kinds.is_empty() { Kind::value_variants() } else { &args.kinds };
    let thresholds = kinds.iter().try_for_each(|kind| args.measure.check_thresholds(kind.unit()));
    thresholds.map_err(Usage::of)?;
    let figures = with_progress(|progress| measure(kinds, &setting, progress))?;
    args.measure.show_all(&figures, || text_of(&figures))
}

fn measure(kinds: &[Kind], setting: &Setting, progress: &mut Progress<'_>) -> anyhow::Result<Vec<Figure>> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let measure = |kind: &Kind| {
        let figure = match kind {
            Kind::Rate | Kind::Latency => frames(*kind, setting, interrupt, progress),
            Kind::Forward | Kind::Routing => passing(*kind, setting, interrupt, progress),
            Kind::Rpc | Kind::Joined => calls(*kind, setting, interrupt, progress),
        };
        ensure!(!interrupt.is_set(), Interrupted);
        figure
    };
    kinds.iter().map(measure).collect()
}

impl Kind {
    fn unit(self) -> Unit {
        if self == Self::Latency { Unit::Ns } else { Unit::Mops }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Rate => "frames through a port and back, 64 in flight",
            Self::Latency => "a frame through a port and back",
            Self::Forward => "frames through a router, by its own time",
            Self::Routing => "frames through a router, from end to end",
            Self::Rpc => "calls over xdp, a datagram each, 60 in flight",
            Self::Joined => "calls over xdp, joined, 512 in flight",
        }
    }

    /// Calls in flight, and calls sent together.
    fn window(self) -> (usize, usize) {
        if self == Self::Joined { (512, 32) } else { (60, 3) }
    }
}

/// The port, and the bare socket.
struct Frames {
    kind: Kind,
    movers: [XdpEcho; 2],
}

impl MeasureSides for Frames {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let (window, batch) = if self.kind == Kind::Rate { (FRAMES_IN_FLIGHT, FRAMES_BATCH) } else { (1, 1) };
        let (trips, mops) = self.movers[side].measure(FRAME_LEN, window, batch, duration)?;
        Ok(match self.kind {
            Kind::Rate => (mops > 0.0).then_some(mops),
            _ => (!trips.is_empty()).then(|| trips.value_at_quantile(0.5) as f64),
        })
    }
}

fn frames(kind: Kind, setting: &Setting, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let cpus = machine::pair(&setting.client_cpus, &setting.server_cpus);
    let start = |mover| XdpEcho::start(mover, cpus).with_context(needed);
    let mut sides = Frames { kind, movers: [start(Mover::Port)?, start(Mover::Bare)?] };
    let measured = setting.run(2, [], None, interrupt).measure_alternately(2, &mut sides, progress)?;
    let figure = measured.figure("xdp bench", kind.title(), kind.unit(), 0);
    let mut figure = figure.compared_with(&measured, 1, Comparison::Limit, "a bare AF_XDP socket");
    figure.setup = json!({ "kind": name(kind), "frame_len": FRAME_LEN });
    Ok(figure)
}

/// A router, and what it is compared with.
struct ForwardSides {
    kind: Kind,
    sides: [ForwardBench; 2],
}

impl MeasureSides for ForwardSides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let passed = self.sides[side].measure(duration)?;
        Ok(Some(if self.kind == Kind::Forward { passed.between } else { passed.end_to_end }))
    }
}

fn passing(kind: Kind, setting: &Setting, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let (other, comparison, beside) = match kind {
        Kind::Forward => (Middle::Bare, Comparison::Limit, "a bare AF_XDP loop"),
        _ => (Middle::Kernel, Comparison::Baseline, "the kernel's routing"),
    };
    let start = |middle| ForwardBench::start(middle, FRAME_LEN, setting.client_cpus[0]).with_context(needed);
    let mut sides = ForwardSides { kind, sides: [start(Middle::Router)?, start(other)?] };
    let alone = Setting { server_cpus: Vec::new(), ..setting.clone() };
    let measured = alone.run(2, [], None, interrupt).measure_alternately(2, &mut sides, progress)?;
    let figure = measured.figure("xdp bench", kind.title(), kind.unit(), 0);
    let mut figure = figure.compared_with(&measured, 1, comparison, beside);
    figure.setup = json!({ "kind": name(kind), "frame_len": FRAME_LEN });
    Ok(figure)
}

fn calls(kind: Kind, setting: &Setting, interrupt: Interrupt, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let options = if kind == Kind::Joined { "" } else { "?coalesce=off" };
    let (window, batch) = kind.window();
    let limits = LimitArgs { credits: Some(window as u16), slots: 64, ..LimitArgs::default() };
    let sessions = RpcPlan::sessions_for(window, limits.slots);
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for fabric in [Fabric::Xdp, Fabric::Udp] {
        let address = match fabric {
            Fabric::Xdp => own_pair::server_address().with_context(needed)?,
            _ => {
                let pair = own_pair::pair().with_context(needed)?;
                format!("udp://{}:0", pair.options().v4(Side::B))
            }
        };
        let server = ServerProcess::start(&format!("{address}{options}"), &setting.server_cpus, &limits)?;
        let plan = EchoPlan {
            fabric,
            options: options.to_owned(),
            limits: limits.clone(),
            shape: Shape { size: CALL_LEN, answer: Answer::Echo, window, batch },
            sessions,
        };
        clients.push(Echoes::start(&plan, &setting.client_cpus, server.addresses(), &Hub::new(), interrupt)?);
        servers.push(server);
    }
    let fabrics = clients.try_into().map_err(|_| anyhow::anyhow!("two fabrics are compared"))?;
    let ids: Vec<u32> = servers.iter().map(ServerProcess::id).collect();
    let mut sides = Calls { fabrics, sessions };
    let measured = setting.run(2, ids, None, interrupt).measure_alternately(2, &mut sides, progress)?;
    let figure = measured.figure("xdp bench", kind.title(), kind.unit(), 0);
    let mut figure = figure.compared_with(&measured, 1, Comparison::Baseline, "the same over udp, on a second pair");
    figure.setup = json!({ "kind": name(kind), "size": CALL_LEN, "window": window, "batch": batch });
    Ok(figure)
}

/// Calls over two fabrics, over all sessions of each.
struct Calls {
    fabrics: [Echoes; 2],
    sessions: usize,
}

impl MeasureSides for Calls {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let slices = self.fabrics[side].slice(self.sessions, duration)?;
        let mops: f64 = slices.iter().map(|slice| slice.mops()).sum();
        Ok((mops > 0.0).then_some(mops))
    }
}

fn needed() -> String {
    "measuring AF_XDP between virtual interfaces needs root, and a kernel with veth and AF_XDP".to_owned()
}

fn name(kind: Kind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn text_of(figures: &[Figure]) -> String {
    let rows = figures.iter().map(|figure| {
        let beside = figure.compared.as_ref();
        let text = |value: Option<f64>| value.map(|value| figure.unit.text(value)).unwrap_or_default();
        vec![
            figure.title.clone(),
            text(figure.value),
            text(beside.and_then(|beside| beside.value)),
            figure.ratio().map(units::figure).unwrap_or_default(),
            beside.map(|beside| beside.what.clone()).unwrap_or_default(),
        ]
    });
    let table = table::of(&["what", "ours", "beside", "ratio", "which is"], rows, table::FIGURES);
    let lines: Vec<String> =
        figure::complaints(figures).iter().map(|line| units::wrapped(line, output::width(), 2)).collect();
    if lines.is_empty() { table } else { format!("{table}\n{}", lines.join("\n")) }
}
