//! Options of `sinew verbs`.

use anyhow::ensure;
use sinew_harness::load::verbs::{EchoForm, Op, Shape, TransportKind, VerbsPlan, Wait, WorkKind};
use sinew_harness::units::parse_size;

use super::device::{DeviceArgs, VerbsFabric};
use super::kind::Kind;
use super::limit::Meter;
use super::run::Measure;
use super::serve::parse_address;
use super::show;
use crate::measure::{MeasureArgs, with_progress};
use crate::{Outcome, Usage};

pub const BW_HELP: &str = "\
Like ib_send_bw, ib_write_bw and ib_read_bw. MB are 2^20 bytes. Over shm the limit is one thread that copies messages
of the same size into memory of the same layout; for SEND it is a bare ring, and for messages that do not fit one,
copies of memory that another core has just written. Contents are checked: messages and results of READs as they
arrive; of WRITEs the last in each place, at the end of each slice.

Examples:
  sinew verbs bw --op write --size 64K
  sinew verbs bw --op read --sizes 2..1M --json";

pub const RATE_HELP: &str = "\
Small messages, with --window in flight on each queue pair, --doorbell of them started by one doorbell, and one in
--signal signaled. Over UC and UD the receiver of SENDs and WRITEs with immediate reports to the sender how far it is,
with a SEND of a header now and then, and only messages that arrived count. Nobody reports the arrival of plain WRITEs
over UC, so those sent count. The limit is that of `bw`; for atomics it is the rate of one thread alone.

Examples:
  sinew verbs rate --op write
  sinew verbs rate --op send --transport ud --header-only
  sinew verbs rate --op write --threads 4 --inbound";

pub const LAT_HELP: &str = "\
Like ib_send_lat, ib_write_lat, ib_read_lat and ib_atomic_lat: the latency of a READ or an atomic is from its post to
its completion; that of a SEND, a WRITE or a WRITE with immediate is half of a message's round trip. Over shm a READ
reads what the server's processor has just written; its limit is a plain copy of the same bytes, which another
processor has just written. The other limits are one atomic, half a cache line's round trip between the cores (WRITE),
and half of a packet's round trip through bare rings (SEND, WRITE with immediate).

Examples:
  sinew verbs lat --op read --size 64
  sinew verbs lat --op send --transport ud --wait events";

pub const ECHO_HELP: &str = "\
A client sends a message and the server sends it back (sigcomm14 3.2.2): as WRITE and WRITE (ww), WRITE and SEND over
UD (ws), SEND and SEND (ss), WRITEs with immediate (imm). Both sides check each message: the first 32 bytes and the
last 8, a word of every 4 KB, and one message in 64 byte for byte. With one message in flight the figure is the round
trip, with more it is the rate.

Examples:
  sinew verbs echo --form ww
  sinew verbs echo --form ws --window 32 --threads 4 --inbound --json";

/// Options of every measurement.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Address of a running `sinew verbs serve` [default: the benchmark starts a server process]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    address: Option<String>,
    /// Transport of the queue pairs [default: rc]
    #[arg(long, visible_alias = "connection", value_enum, ignore_case = true)]
    transport: Option<TransportKind>,
    /// Length of a message, in bytes, at most 64M [default: 32; 8 for atomics]
    #[arg(long, allow_negative_numbers = true, value_parser = parse_size)]
    size: Option<usize>,
    /// Measure all sizes from the first to the second, in bytes, each twice the one before: 2..64K
    #[arg(long, value_name = "SIZE..SIZE", conflicts_with = "size", value_parser = parse_sizes)]
    sizes: Option<(usize, usize)>,
    /// Copy messages into the requests [default, except for `bw`: up to 220 bytes, if the device takes as many]
    #[arg(long)]
    inline: bool,
    /// Leave messages in memory, where the device reads them
    #[arg(long, conflicts_with = "inline")]
    no_inline: bool,
    /// Requests in flight on each queue pair, 1 to 16384 [default: 128]
    #[arg(long, visible_alias = "tx-depth", allow_negative_numbers = true)]
    window: Option<usize>,
    /// Signaling interval: one request in this many is signaled, at most --window [default: 64, or --window if less]
    #[arg(long, visible_alias = "cq-mod", allow_negative_numbers = true)]
    signal: Option<usize>,
    /// Queue pairs between two threads; at most 4096 on a side
    #[arg(long, visible_alias = "qp", default_value_t = 1, allow_negative_numbers = true)]
    qps: usize,
    /// Number of threads of each side, 1 to 256
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    threads: usize,
    /// Connect all client threads to one server thread
    #[arg(long, group = "shape")]
    inbound: bool,
    /// Connect one client thread to all server threads
    #[arg(long, group = "shape")]
    outbound: bool,
    /// Connect every client thread to every server thread
    #[arg(long, group = "shape")]
    all_to_all: bool,
    /// Way in which threads wait for completions [default: poll; events with --read-intr]
    #[arg(long, value_enum)]
    wait: Option<Wait>,
    /// The same as --wait events
    #[arg(long, conflicts_with = "wait")]
    events: bool,
    /// Print the table of --sizes as CSV
    #[arg(long, requires = "sizes", conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Options of measurements of one kind of request.
#[derive(clap::Args)]
pub struct OpArgs {
    /// Operation of a request
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// READs for each object, 1 to 4, one after the other; all but the last read 8 bytes (READ-Intr-2 to 4 of apnet19;
    /// 1 is a plain READ). For --op read
    #[arg(long, value_name = "READS", allow_negative_numbers = true)]
    read_intr: Option<usize>,
    /// SEND an immediate of 4 bytes without data; for --op send
    #[arg(long)]
    header_only: bool,
    #[command(flatten)]
    args: Args,
}

/// Options of measurements with many requests in flight.
#[derive(clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    op: OpArgs,
    /// Requests started by one doorbell, at most --window [default: 16, or --window if that is less]
    #[arg(long, visible_alias = "post-list", allow_negative_numbers = true)]
    doorbell: Option<usize>,
}

/// Options of echoes.
#[derive(clap::Args)]
pub struct EchoArgs {
    /// Verbs by which a message goes to the server and comes back
    #[arg(long, value_enum, default_value = "ww")]
    form: EchoForm,
    #[command(flatten)]
    args: Args,
}

/// Measurements, one for each size, and the processors of the client threads.
type Planned = (Vec<(Kind, VerbsPlan)>, Vec<Option<usize>>);

/// Longest source that is inline by default, in bytes, as in perftest for SEND and WRITE in measurements of latency.
pub const INLINE_DEFAULT: usize = 220;

/// Parses `2..64K`.
fn parse_sizes(text: &str) -> Result<(usize, usize), String> {
    let expected = || "must be two sizes, the smaller first: 2..64K".to_owned();
    let (first, last) = text.split_once("..").ok_or_else(expected)?;
    let (first, last) = (parse_size(first)?, parse_size(last)?);
    if first == 0 || first > last { Err(expected()) } else { Ok((first, last)) }
}

pub fn load(args: &LoadArgs, kind: Kind) -> anyhow::Result<Outcome> {
    let common = &args.op.args;
    let default = if kind == Kind::Rate { 16.min(common.window.unwrap_or(16).max(1)) } else { 1 };
    let doorbell = args.doorbell.unwrap_or(default);
    common.run(kind, VerbsPlan { doorbell, ..args.op.start(WorkKind::Load(args.op.op)) })
}

pub fn latency(args: &OpArgs) -> anyhow::Result<Outcome> {
    // The time of a message one way cannot be measured alone: it is half of a round trip.
    let work = match args.op {
        Op::Send => WorkKind::Echo(EchoForm::Ss),
        Op::Write => WorkKind::Echo(EchoForm::Ww),
        Op::WriteImm => WorkKind::Echo(EchoForm::Imm),
        op => WorkKind::Load(op),
    };
    args.args.run(Kind::Latency, VerbsPlan { window: 1, ..args.start(work) })
}

pub fn echo(args: &EchoArgs) -> anyhow::Result<Outcome> {
    let carrier = if args.form == EchoForm::Ss { TransportKind::Ud } else { TransportKind::Uc };
    args.args.run(Kind::Echo, VerbsPlan { window: 1, ..VerbsPlan::new(WorkKind::Echo(args.form), carrier, 32) })
}

impl OpArgs {
    fn start(&self, work: WorkKind) -> VerbsPlan {
        VerbsPlan {
            header_only: self.header_only,
            reads: self.read_intr.unwrap_or(1),
            wait: if self.read_intr.is_some() { Wait::Events } else { Wait::Poll },
            ..VerbsPlan::new(work, TransportKind::Rc, 32)
        }
    }
}

impl Args {
    /// Completes a plan from the options, and measures it.
    fn run(&self, kind: Kind, start: VerbsPlan) -> anyhow::Result<Outcome> {
        let (plans, client_cpus) = self.plan(kind, start).map_err(Usage::of)?;
        let references = self.measure.references().map_err(Usage::of)?;
        let figures = with_progress(|progress| {
            self.device.run(Measure {
                plans: &plans,
                inline_asked: self.inline,
                duration: self.measure.seconds,
                client_cpus: &client_cpus,
                references: &references,
                device: &self.device,
                address: self.address.as_deref(),
                progress,
            })
        })?;
        match &figures[..] {
            [one] if self.sizes.is_none() => self.measure.show(one),
            all if self.csv => self.measure.show_all(all, || show::csv(all)),
            all => self.measure.show_all(all, || show::table(all)),
        }
    }

    fn plan(&self, kind: Kind, start: VerbsPlan) -> anyhow::Result<Planned> {
        self.device.check()?;
        let (work, header_only, is_shm) = (start.work, start.header_only, self.device.fabric == VerbsFabric::Shm);
        let has_source =
            matches!(work, WorkKind::Echo(_) | WorkKind::Load(Op::Send | Op::Write | Op::WriteImm)) && !header_only;
        if kind == Kind::Latency {
            ensure!(
                self.window.is_none_or(|window| window == 1),
                "--window: a latency is that of one request at a time"
            );
            ensure!(
                (self.threads, self.qps, self.shape()) == (1, 1, Shape::Pairs),
                "--threads, --qps, --inbound, --outbound, --all-to-all: a latency is that of one queue pair; see `sinew verbs echo`"
            );
            let told_to_wait = self.events || self.wait.is_some_and(|wait| wait != Wait::Poll);
            ensure!(
                !told_to_wait || matches!(work, WorkKind::Echo(_)) || !is_shm,
                "--wait, --events: over shm the client itself carries out such a request, so nothing waits; these options apply to \
                 --op send and write-imm, and to --fabric ibverbs"
            );
            ensure!(!self.no_inline || has_source, "--no-inline: this request has no bytes to copy into it");
        }
        ensure!(!self.inline || !header_only, "--inline: with --header-only there are no bytes to copy");
        ensure!(!header_only || self.sizes.is_none(), "--header-only has no --sizes");
        let default = match (kind, start.is_atomic()) {
            (_, true) => 8,
            (Kind::Bandwidth, _) => 64 << 10,
            _ => start.size,
        };
        let (first, last) = self.sizes.unwrap_or([self.size.unwrap_or(default); 2].into());
        let plan = VerbsPlan {
            window: self.window.unwrap_or(start.window),
            carrier: self.transport.unwrap_or(start.carrier),
            fresh: kind == Kind::Latency && work == WorkKind::Load(Op::Read) && is_shm && start.reads == 1,
            qps: self.qps,
            threads: self.threads,
            shape: self.shape(),
            wait: self.wait.unwrap_or(if self.events { Wait::Events } else { start.wait }),
            ..start
        };
        let of_size = |size| {
            let is_default = kind != Kind::Bandwidth && !self.no_inline && size <= INLINE_DEFAULT;
            let inline = self.inline || (is_default && has_source);
            let signal = self.signal.unwrap_or(match work {
                WorkKind::Echo(_) => VerbsPlan::echo_signal(size, inline),
                WorkKind::Load(_) => plan.window.clamp(1, 64),
            });
            VerbsPlan { size, inline, signal, ..plan.clone() }
        };
        let larger = |size: &usize| size.checked_mul(2).filter(|size| (1..=last).contains(size));
        let plans: Vec<VerbsPlan> = std::iter::successors(Some(first), larger).map(of_size).collect();
        for plan in &plans {
            ensure!(kind != Kind::Bandwidth || plan.message_len() > 0, "a bandwidth needs messages with data");
            plan.check()?;
            ensure!(
                !self.measure.thresholds.judge_ratio() || Meter::new(plan, kind, self.device.fabric, None).is_some(),
                "--fail-if-ratio-...: there is no limit beside this measurement"
            );
        }
        self.measure.check_thresholds(kind.unit(&plan))?;
        let (client_cpus, cpus) = self.measure.places(plan.sides(), false)?;
        let placed = |plan| (kind, VerbsPlan { cpus: cpus.clone(), ..plan });
        Ok((plans.into_iter().map(placed).collect(), client_cpus))
    }

    fn shape(&self) -> Shape {
        match (self.inbound, self.outbound, self.all_to_all) {
            (true, ..) => Shape::Inbound,
            (_, true, _) => Shape::Outbound,
            (.., true) => Shape::All,
            _ => Shape::Pairs,
        }
    }
}
