//! `sinew kv bench herd` and `herd-opt`: HERD's cache beside the same messages without a cache.

pub mod serve;

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sinew::fabric::verbs::Device;
use sinew::herd::{ClientConfig, ClientStats, Layout};
use sinew::host::{HostClock, Interrupt};
use sinew::kv::herd::{CacheClient, layout};
use sinew_harness::load::Slice;
use sinew_harness::load::store::Store;
use sinew_harness::load::verbs::{EchoForm, EchoMix, LINKS_MAX, Op, Shape, TransportKind, VerbsPlan, WorkKind, name};
use sinew_harness::reference::Yardstick;
use sinew_harness::run::Progress;
use sinew_harness::workload::{KEY_LEN, Workload};
use sinew_harness::{Comparison, Drivers, Figure, MeasureSides, Measured, Unit, units};

use super::workload::{KEYS_MAX_OF_FABRIC, WorkloadArgs, workload_json, workload_text};
use crate::child::ServerProcess;
use crate::herd::{Admission, join};
use crate::measure::{MeasureArgs, Setting, with_progress};
use crate::verbs::{Bare, DeviceArgs, INLINE_DEFAULT, Job, Kind, VerbsFabric, parse_address};
use crate::{Outcome, Usage, interrupted};
use serve::{Schedule, WINDOW, WorkerArgs};

pub const HELP: &str = "\
Starts a server process that stores all keys (or uses --address HOST:PORT of a `sinew serve herd` with the same
--workers, --window, --keys and --value-size). --threads threads with --clients clients each keep their windows full
of requests, and check every answer. The baseline, measured by turns, is an echo without a cache: messages as long as
those of GETs and PUTs, in the same shares, are written to as many server threads by the calls of verbs that herd-opt
makes by default, and others, as long as the answers, are sent straight back. That echo is itself compared with the
rate at which one thread could make one WRITE and one SEND, as long as those of the more frequent request: both are
measured by turns, too, as `sinew verbs rate` does. Latencies run from the request to its answer, including the wait in
the window.

Examples:
  sinew kv bench herd-opt --keys 8M --json
  sinew kv bench herd --window 4 --clients 2";

/// Sides of a measurement: the cache comes first, then the echo, WRITEs and SENDs of the same messages.
const ECHO: usize = 1;
const WRITE: usize = 2;
const SEND: usize = 3;
const SIDES: usize = 4;
/// A side that is derived in each round: one WRITE and one SEND for each message.
const BOTH: usize = SIDES;
/// Requests that one doorbell starts, at most, as in `sinew verbs rate`.
const DOORBELL: usize = 16;

/// Options of `sinew kv bench herd` and `herd-opt`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Address of a running `sinew serve herd` [default: the benchmark starts a server process]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    address: Option<String>,
    /// Number of client threads, 1 to 64
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Clients of each thread, 1 to 1024
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Requests that each client has in flight to each worker: a power of two up to 1024
    #[arg(long, default_value_t = WINDOW, allow_negative_numbers = true, value_parser = serve::parse_window)]
    window: usize,
    /// Requests that a worker executes together at most, 1 to 256
    #[arg(long, default_value_t = 32, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Measures, and prints the result.
pub fn run(args: &Args, schedule: Schedule) -> anyhow::Result<Outcome> {
    let plan = args.plan(schedule).map_err(Usage::of)?;
    args.measure.show(&with_progress(|progress| args.device.run(Measure { plan: &plan, progress }))?)
}

/// A measurement to make.
struct HerdPlan<'a> {
    args: &'a Args,
    schedule: Schedule,
    workload: Workload,
    /// Setting for client threads and workers.
    setting: Setting,
}

impl Args {
    fn plan(&self, schedule: Schedule) -> anyhow::Result<HerdPlan<'_>> {
        self.measure.check_thresholds(Unit::Mops)?;
        let threads = (usize::from(self.threads), usize::from(self.workers.workers));
        let setting = Setting { is_server_elsewhere: self.address.is_some(), ..self.measure.setting(threads, false)? };
        let workload = self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?;
        let plan = HerdPlan { args: self, schedule, workload, setting };
        self.device.check()?;
        serve::check_value_size(self.workload.value_size)?;
        ensure!(
            threads.0 * threads.1 * usize::from(self.clients) <= LINKS_MAX,
            "--threads, --clients and --workers: together {LINKS_MAX} connections at most"
        );
        plan.bare().iter().try_for_each(|(_, bare)| bare.check())?;
        Ok(plan)
    }
}

impl HerdPlan<'_> {
    /// Bytes of the messages of GETs that hit and of PUTs, there and back, and their shares.
    fn mix(&self) -> EchoMix {
        let value_size = self.args.workload.value_size;
        let lens = |there, back| [Layout::request_bytes(there), Layout::answer_bytes(back)];
        let puts = (1.0 - self.workload.get_percent / 100.0) * f64::from(EchoMix::PARTS);
        EchoMix {
            first: lens(KEY_LEN, value_size),
            second: lens(KEY_LEN + value_size, 0),
            second_parts: (puts.round() as u32).min(EchoMix::PARTS),
        }
    }

    /// The same messages without a cache: echoed, only written, and only sent. They are the sides from [`ECHO`] on.
    fn bare(&self) -> [(Kind, VerbsPlan); 3] {
        let (mix, window) = (self.mix(), self.args.window);
        let plan = |work, carrier, size| VerbsPlan {
            window,
            qps: self.args.clients.into(),
            threads: self.setting.client_cpus.len(),
            inbound_threads: self.setting.server_cpus.len(),
            shape: Shape::Inbound,
            cpus: self.setting.server_cpus.clone(),
            ..VerbsPlan::new(work, carrier, size)
        };
        let rate = |op, carrier, size| {
            let plan = plan(WorkKind::Load(op), carrier, size);
            let (inline, doorbell) = (size <= INLINE_DEFAULT, window.min(DOORBELL));
            (Kind::Rate, VerbsPlan { inline, doorbell, signal: plan.signal.min(window), ..plan })
        };
        let echo = plan(WorkKind::Echo(EchoForm::Ws), TransportKind::Uc, mix.size());
        let [there, back] = if mix.second_parts > EchoMix::PARTS / 2 { mix.second } else { mix.first };
        [
            (Kind::Echo, VerbsPlan { mix: Some(mix), ..echo }),
            rate(Op::Write, TransportKind::Uc, there),
            rate(Op::Send, TransportKind::Ud, back),
        ]
    }

    /// Clients over all threads.
    fn all_clients(&self) -> usize {
        usize::from(self.args.clients) * self.setting.client_cpus.len()
    }

    fn start_server(&self) -> anyhow::Result<ServerProcess> {
        let (args, design) = (self.args, name(self.schedule));
        let (window, batch, value_size) = (args.window, args.batch, args.workload.value_size);
        let (clients, keys) = (self.all_clients(), self.workload.keys);
        let words = format!(
            "serve herd 127.0.0.1:0 --design {design} --window {window} --batch {batch} --clients {clients} --keys {keys} \
             --value-size {value_size}"
        );
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        words.extend(args.device.to_args());
        words.extend(args.workers.to_args());
        for cpu in self.setting.server_cpus.iter().flatten() {
            words.extend(["--pin".to_owned(), cpu.to_string()]);
        }
        ServerProcess::spawn(&words)
    }
}

struct HerdSides<D: Device> {
    clients: Drivers<Store<CacheClient<D>, HostClock>>,
    /// By side, from [`ECHO`] on.
    bare: Vec<Bare>,
    sum: Slice,
}

impl<D: Device + 'static> MeasureSides for HerdSides<D> {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        if let Some(bare) = side.checked_sub(ECHO).and_then(|at| self.bare.get_mut(at)) {
            return bare.mops(duration).map(Some);
        }
        let slices = self.clients.slices(duration, |_, _| ())?;
        slices.iter().for_each(|slice| self.sum.add(slice));
        Ok(Some(slices.iter().map(Slice::mops).sum()))
    }

    fn reset_sums(&mut self) {
        self.sum = Slice::new();
    }
}

struct Measure<'a, 'b> {
    plan: &'a HerdPlan<'a>,
    progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = Figure;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Figure> {
        interrupted::run_interruptible(|interrupt| measure(self.plan, &device, fabric, self.progress, interrupt))
    }
}

fn measure<D: Device + 'static>(
    plan: &HerdPlan<'_>,
    device: &D,
    fabric: VerbsFabric,
    progress: &mut Progress<'_>,
    interrupt: Interrupt,
) -> anyhow::Result<Figure> {
    progress("filling the cache", 0.0);
    let (args, workload) = (plan.args, plan.workload);
    let server = if args.address.is_none() { Some(plan.start_server()?) } else { None };
    let address = match (&server, &args.address) {
        (Some(server), _) => server.address()?,
        (None, address) => address.as_deref().unwrap_or_default(),
    };
    let (of_thread, domain, count) = (device.clone(), device.protection_domain()?, args.clients);
    let layout = layout(plan.setting.server_cpus.len(), plan.all_clients(), args.window);
    // The admissions keep the clients admitted.
    let ((admit, admissions), address) = (mpsc::channel(), address.to_owned());
    let clients = Drivers::start(&plan.setting.client_cpus, interrupt, move |index| {
        let join = |_| {
            let (calls, admission) = join(&of_thread, &domain, &ClientConfig::new(layout), &address)?;
            let _ = admit.send(admission);
            Ok(CacheClient::new(calls))
        };
        let clients = (0..count).map(join).collect::<anyhow::Result<Vec<_>>>()?;
        let workload = Workload { seed: workload.seed.wrapping_add(index as u64), ..workload };
        Ok((Box::new(Store::new(clients, HostClock::new(), &workload, false, 0)), ()))
    })?;
    let mut admissions: Vec<Admission> = admissions.try_iter().collect();
    let open = |(kind, bare): &_| Bare::open(device, &args.device, (*kind, bare), &plan.setting.client_cpus, interrupt);
    let bare = plan.bare().iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let servers = server.iter().map(ServerProcess::id).chain(bare.iter().map(Bare::process));
    let run = plan.setting.run(2, servers, Some(Yardstick::RingRoundTrip), interrupt);
    let mut turns = HerdSides { clients, bare, sum: Slice::new() };
    let mut measured = run.measure_alternately(SIDES, &mut turns, progress)?;
    for round in &mut measured.rounds {
        let both = round.values[WRITE].zip(round.values[SEND]).map(|(write, send)| 1.0 / (1.0 / write + 1.0 / send));
        round.values.push(both);
    }
    let of_each = |_, store: &mut Store<CacheClient<D>, _>| {
        Ok(store.clients().iter().map(|client| *client.calls().stats()).collect::<Vec<_>>())
    };
    let stats = turns.clients.each(Duration::ZERO, of_each)?.concat();
    let counters = admissions.first_mut().context("there is no client")?.counters()?;
    Ok(figure(plan, fabric, &measured, turns.sum, &stats, counters))
}

fn figure(
    plan: &HerdPlan<'_>,
    fabric: VerbsFabric,
    measured: &Measured,
    sum: Slice,
    stats: &[ClientStats],
    counters: Value,
) -> Figure {
    let total = |of: fn(&ClientStats) -> u64| stats.iter().map(of).sum::<u64>();
    let (design, all) = (name(plan.schedule), plan.all_clients());
    let title = format!("{design} over {}, items of {} B", fabric.name(), KEY_LEN + plan.args.workload.value_size);
    let figure = measured.figure(format!("kv {design}"), title, Unit::Mops, 0);
    let what = "messages as long, written and answered without a cache";
    let mut figure = figure.compared_with(measured, ECHO, Comparison::Baseline, what);
    let median = |side| Some(measured.slices(side)).filter(|slices| !slices.is_empty()).map(|all| units::median(&all));
    let [echo, write, send, both] = [ECHO, WRITE, SEND, BOTH].map(median);
    let echo_ratio = measured.median_ratio(ECHO, BOTH);
    let text = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| Unit::Mops.text(rate));
    let batch = match (counters["executed"].as_f64(), counters["doorbells"].as_f64()) {
        (Some(executed), Some(doorbells)) if doorbells > 0.0 => executed / doorbells,
        _ => 0.0,
    };
    figure.lines = vec![
        workload_text(&plan.workload, KEY_LEN),
        format!(
            "{} in {} with windows of {}, {}",
            units::counted(all, "client"),
            units::counted(plan.setting.client_cpus.len(), "thread"),
            plan.args.window,
            units::counted(plan.setting.server_cpus.len(), "worker")
        ),
        format!(
            "{} checked, {:.1} % of the GETs hit; {} retransmitted; {} answers a doorbell",
            units::counted(sum.done, "answer"),
            sum.hit_percent(),
            total(|stats| stats.retried),
            units::figure(batch)
        ),
        format!("WRITEs alone {}", text(write)),
        format!("SENDs alone {}", text(send)),
        format!(
            "echo {}, {} of {}, which is one WRITE and one SEND each",
            text(echo),
            echo_ratio.map_or_else(|| "-".to_owned(), units::figure),
            text(both)
        ),
    ];
    figure.setup = json!({
        "design": design,
        "fabric": fabric.name(),
        "workload": workload_json(&plan.workload, KEY_LEN),
        "window": plan.args.window,
        "threads": plan.setting.client_cpus.len(),
        "clients": all,
        "workers": plan.setting.server_cpus.len(),
        "seconds": plan.setting.duration.as_secs_f64(),
    });
    figure.details = json!({
        "requests": sum.done,
        "hit_percent": units::rounded(sum.hit_percent()),
        "retried": total(|stats| stats.retried),
        "late": total(|stats| stats.late),
        "strange": total(|stats| stats.unexpected),
        "echo_mops": echo.map(units::rounded),
        "write_mops": write.map(units::rounded),
        "send_mops": send.map(units::rounded),
        "write_and_send_mops": both.map(units::rounded),
        "ratio_to_echo": measured.median_ratio(0, ECHO).map(units::rounded),
        "echo_ratio_to_write_and_send": echo_ratio.map(units::rounded),
        "server": counters,
    });
    figure.latency = Some(sum.latency);
    figure
}
