//! HERD's cache, measured: a server process, client threads, and the same way of messages without a cache beside it.

pub mod serve;

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sinew::fabric::verbs::Device;
use sinew::herd::{ClientConfig, ClientStats};
use sinew::host::{HostClock, Interrupt};
use sinew::kv::herd::{Client, layout};
use sinew_harness::Measured;
use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::herd::Herd;
use sinew_harness::load::verbs::{Carrier, Form, Shape, VerbsPlan, Work};
use sinew_harness::load::{Slice, drive};
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::workload::{KEY_LEN, Workload};
use sinew_harness::{Comparison, Figure, Run, Turns, Unit, machine, units};

use super::workload::{KEYS_MAX_OF_FABRIC, WorkloadArgs, workload_json, workload_text};
use crate::child::ServerProcess;
use crate::herd::{Admission, join};
use crate::measure::{MeasureArgs, with_progress};
use crate::verbs::{Bare, Carried, DeviceArgs, INLINE_DEFAULT, Job, Kind, parse_address};
use crate::{Outcome, Usage};
use serve::{Schedule, WINDOW, WorkerArgs};

pub const HELP: &str = "\
A server process is started that stores all keys (or --address HOST:PORT of `sinew serve herd` is taken, with the same --workers,
--window, --keys and --value-size), and is asked from --threads threads with --clients clients each, whose windows are full. Every answer
is checked. The baseline is the rate of `sinew verbs echo --form ws`, by turns: as many messages of an item's size that are written to
a server and sent back with nothing in between. Latencies are from the request to its answer, the wait in the window included.

Examples:
  sinew kv bench herd-opt --keys 8M --json
  sinew kv bench herd --window 4 --clients 2";

/// Options of `sinew kv bench herd` and `herd-opt`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// A server that runs already (see `sinew serve herd`); else one is started in a process of its own
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    address: Option<String>,
    /// Client threads
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Clients of each thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Requests that a client has on their way to each worker; a power of two
    #[arg(long, default_value_t = WINDOW, allow_negative_numbers = true, value_parser = serve::parse_window)]
    window: usize,
    /// Requests that are executed together at most, for herd-opt
    #[arg(long, default_value_t = 32, allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

impl Args {
    fn plan(&self, schedule: Schedule) -> anyhow::Result<HerdPlan> {
        self.measure.check_thresholds(Unit::Mops)?;
        let threads = (usize::from(self.threads), usize::from(self.workers.workers));
        let (client_cpus, server_cpus) = self.measure.places(threads, false)?;
        let plan = HerdPlan {
            workload: self.workload.workload(1_000_000, KEYS_MAX_OF_FABRIC)?,
            value_size: self.workload.value_size,
            duration: self.measure.seconds,
            schedule,
            batch: self.batch.into(),
            device: self.device.clone(),
            window: self.window,
            workers: self.workers.clone(),
            clients: self.clients.into(),
            client_cpus,
            server_cpus,
            address: self.address.clone(),
            references: self.measure.references()?,
        };
        plan.device.check()?;
        serve::check_value_size(plan.value_size)?;
        plan.bare().check()?;
        Ok(plan)
    }
}

/// Measures and shows.
pub fn run(args: &Args, schedule: Schedule) -> anyhow::Result<Outcome> {
    let plan = args.plan(schedule).map_err(Usage::of)?;
    args.measure.show(&with_progress(|progress| plan.device.run(Measure { plan: &plan, progress }))?)
}

/// What to measure.
#[derive(Clone)]
struct HerdPlan {
    workload: Workload,
    value_size: usize,
    duration: Duration,
    schedule: Schedule,
    /// Requests that are executed together at most.
    batch: usize,
    device: DeviceArgs,
    /// Requests that a client has on their way to each worker.
    window: usize,
    workers: WorkerArgs,
    /// Clients of each thread.
    clients: usize,
    /// Of each client thread.
    client_cpus: Vec<Option<usize>>,
    /// Of each worker.
    server_cpus: Vec<Option<usize>>,
    /// Where a server is; else one is started.
    address: Option<String>,
    references: References,
}

impl HerdPlan {
    /// The same messages with nothing in between.
    fn bare(&self) -> VerbsPlan {
        let size = KEY_LEN + self.value_size;
        VerbsPlan {
            window: self.window,
            inline: size <= INLINE_DEFAULT,
            qps: self.clients,
            threads: self.client_cpus.len(),
            shape: Shape::Inbound,
            cpus: vec![self.server_cpus.first().copied().flatten()],
            ..VerbsPlan::new(Work::Echo(Form::Ws), Carrier::Uc, size)
        }
    }

    /// Clients in all.
    fn all_clients(&self) -> usize {
        self.clients * self.client_cpus.len()
    }

    fn start_server(&self) -> anyhow::Result<ServerProcess> {
        let mut args: Vec<String> = ["serve", "herd", "127.0.0.1:0"].map(str::to_owned).into();
        args.extend(self.device.to_args());
        args.extend(self.workers.to_args());
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--window", self.window.to_string());
        option("--design", name(self.schedule).to_owned());
        option("--batch", self.batch.to_string());
        option("--clients", self.all_clients().to_string());
        option("--keys", self.workload.keys.to_string());
        option("--value-size", self.value_size.to_string());
        for cpu in self.server_cpus.iter().flatten() {
            option("--pin", cpu.to_string());
        }
        ServerProcess::spawn(&args)
    }
}

fn name(schedule: Schedule) -> &'static str {
    match schedule {
        Schedule::Herd => "herd",
        Schedule::HerdOpt => "herd-opt",
    }
}

/// What a client thread is told to do.
#[derive(Clone, Copy)]
enum Ask {
    Slice(Duration),
    Counters,
}

enum Answer {
    Slice(Slice, ClientStats),
    Counters(Value),
}

struct ClientThread<D: Device> {
    load: Herd<D, HostClock>,
    /// They are clients for as long as these are there.
    admissions: Vec<Admission>,
    clock: HostClock,
    interrupt: Interrupt,
}

impl<D: Device> Member for ClientThread<D> {
    type Order = Ask;
    type Answer = Answer;

    fn obey(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        Ok(match ask {
            Ask::Slice(duration) => {
                let slice = drive(&mut self.load, &self.clock, duration, self.interrupt)?;
                Answer::Slice(slice, self.load.stats())
            }
            Ask::Counters => Answer::Counters(self.admissions.first_mut().context("there is no client")?.counters()?),
        })
    }
}

struct HerdTurns {
    clients: Crew<Ask, Answer>,
    bare: Bare,
    sum: Slice,
    stats: ClientStats,
}

impl Turns for HerdTurns {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        if side == 1 {
            return self.bare.mops(duration).map(Some);
        }
        let mut mops = 0.0;
        self.stats = ClientStats::default();
        for answer in self.clients.order(&Ask::Slice(duration), duration)? {
            let Answer::Slice(slice, stats) = answer else { bail!("a client thread is confused") };
            mops += slice.mops();
            self.sum.add(&slice);
            self.stats.retried += stats.retried;
            self.stats.late += stats.late;
            self.stats.strange += stats.strange;
        }
        Ok(Some(mops))
    }

    fn forget(&mut self) {
        self.sum = Slice::new();
    }
}

struct Measure<'a, 'b> {
    plan: &'a HerdPlan,
    progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = Figure;

    fn run<D: Device + 'static>(self, device: D, carried: Carried) -> anyhow::Result<Figure> {
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        let figure = self.measure(&device, carried, interrupt);
        // Ctrl-C reaches the server too: what is said of its going is not the cause.
        ensure!(!interrupt.is_set(), Interrupted);
        figure
    }
}

impl Measure<'_, '_> {
    fn measure<D: Device + 'static>(
        self,
        device: &D,
        carried: Carried,
        interrupt: Interrupt,
    ) -> anyhow::Result<Figure> {
        let Self { plan, progress } = self;
        progress("filling the cache", 0.0);
        let server = if plan.address.is_none() { Some(plan.start_server()?) } else { None };
        let started = server.as_ref().and_then(|server| server.addresses().first());
        let address = plan.address.as_ref().or(started).context("the server did not say where it serves")?.clone();
        let (of_thread, of_device, domain) = (plan.clone(), device.clone(), device.protection_domain()?);
        let clients = Crew::start(&plan.client_cpus, move |index| {
            let (plan, workload) = (&of_thread, of_thread.workload);
            let config = ClientConfig::new(layout(plan.server_cpus.len(), plan.all_clients(), plan.window));
            let joined = (0..plan.clients).map(|_| join(&of_device, &domain, &config, &address));
            let (clients, admissions): (Vec<_>, Vec<_>) = joined
                .collect::<anyhow::Result<Vec<_>>>()?
                .into_iter()
                .map(|(calls, admission)| (Client::new(calls), admission))
                .unzip();
            let workload = Workload { seed: workload.seed.wrapping_add(index as u64), ..workload };
            let load = Herd::new(clients, HostClock::new(), &workload);
            Ok(Box::new(ClientThread { load, admissions, clock: HostClock::new(), interrupt }) as BoxedMember<_, _>)
        })?;
        let bare = Bare::open(device, &plan.device, (Kind::Echo, &plan.bare()), &plan.client_cpus, interrupt)?;
        // A server that somebody else started would count among the others.
        let own_cpus = if server.is_some() { &plan.server_cpus[..] } else { &[] };
        let run = Run {
            duration: plan.duration,
            pair: machine::pair(&plan.client_cpus, &plan.server_cpus),
            pins: [&plan.client_cpus, own_cpus].concat(),
            servers: server.iter().map(ServerProcess::id).chain([bare.process()]).collect(),
            judged: 2,
            yardstick: Some((Yardstick::RingRoundTrip, &plan.references)),
            interrupt,
        };
        let mut turns = HerdTurns { clients, bare, sum: Slice::new(), stats: ClientStats::default() };
        let measured = run.alternate(2, &mut turns, progress)?;
        let Answer::Counters(counters) = turns.clients.order_first(Ask::Counters)? else {
            bail!("a client thread is confused")
        };
        Ok(figure(plan, carried, &measured, turns, counters))
    }
}

fn figure(plan: &HerdPlan, carried: Carried, measured: &Measured, turns: HerdTurns, counters: Value) -> Figure {
    let HerdTurns { sum, stats, .. } = turns;
    let (design, all) = (name(plan.schedule), plan.all_clients());
    let title = format!("{design} over {}, items of {} B", carried.name(), KEY_LEN + plan.value_size);
    let figure = measured.figure(format!("kv {design}"), title, Unit::Mops, 0);
    let what = "the same messages written and sent back with nothing in between";
    let mut figure = figure.beside(measured, 1, Comparison::Baseline, what);
    let batch = match (counters["executed"].as_f64(), counters["doorbells"].as_f64()) {
        (Some(executed), Some(doorbells)) if doorbells > 0.0 => executed / doorbells,
        _ => 0.0,
    };
    figure.lines = vec![
        workload_text(&plan.workload, KEY_LEN),
        format!(
            "{all} clients in {} threads with windows of {}, {} workers",
            plan.client_cpus.len(),
            plan.window,
            plan.server_cpus.len()
        ),
        format!(
            "{} answers checked, {:.1} % of the GETs hit; {} sent again; {} answers a doorbell",
            sum.done,
            sum.hit_percent(),
            stats.retried,
            units::figure(batch)
        ),
    ];
    figure.setup = json!({
        "design": design,
        "fabric": carried.name(),
        "workload": workload_json(&plan.workload, KEY_LEN),
        "window": plan.window,
        "threads": plan.client_cpus.len(),
        "clients": all,
        "workers": plan.server_cpus.len(),
        "seconds": plan.duration.as_secs_f64(),
    });
    figure.details = json!({
        "requests": sum.done,
        "hit_percent": units::rounded(sum.hit_percent()),
        "retried": stats.retried,
        "late": stats.late,
        "strange": stats.strange,
        "server": counters,
    });
    figure.latency = Some(sum.latency);
    figure
}
