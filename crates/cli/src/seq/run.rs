//! Runs a measurement of a sequencer: its server, clients, and slices of limit and measurement in turn.

use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sinew::fabric::PacketPort;
use sinew::fabric::verbs::Device;
use sinew::host::{HostClock, Interrupt, Rendezvous};
use sinew::prelude::*;
use sinew::sequencer::Client;
use sinew::sequencer::rpc::RpcClient;
use sinew::shm::ShmPort;
use sinew::udp::UdpPort;

use super::Design;
use super::drive::{Ask, Drive, Driver, Seen, Slice};
use super::limit::header_only_echo_mops;
use super::verbs::{Whom, WithClient, meet};
use crate::bench::{Judged, Kind};
use crate::child::ServerProcess;
use crate::client::{Calls, Client as EchoClient, Load, histogram};
use crate::fabrics::Fabric;
use crate::limits::{Reading, References};
use crate::machine::Pair;
use crate::others::{self, Others};
use crate::serve::LimitArgs;
use crate::tour::Row;
use crate::verbs::{Carried, DeviceArgs, Job};
use crate::{machine, units};

/// Slices of a measurement: as many of each thing, in turn.
const SLICES: u32 = 5;
/// The first is preceded by this much that does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// The longest slice of a limit, and of ranges.
const SIDE_SLICE_MAX: Duration = Duration::from_millis(300);
const YARDSTICK: Duration = Duration::from_millis(30);
/// Beyond its slice, a client thread has this long to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the calls that RPC is measured beside: those of an answer.
const ECHO_LEN: usize = 16;

/// What to measure.
pub struct Plan {
    pub design: Design,
    pub fabric: Fabric,
    pub device: DeviceArgs,
    /// A server that runs already.
    pub address: Option<String>,
    pub clients: usize,
    pub window: usize,
    pub batch: usize,
    /// Numbers that one call of those in the second row asks for; 1 leaves that out.
    pub range: u32,
    pub duration: Duration,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpu: Option<usize>,
    pub references: References,
}

impl Plan {
    /// Limits of both sides' endpoints: one session has the whole window.
    fn limits(&self) -> LimitArgs {
        let slots = (self.window as u16).next_power_of_two().min(64);
        LimitArgs { credits: Some(self.window.max(32) as u16), slots, ..LimitArgs::default() }
    }

    fn pair(&self) -> Pair {
        match (self.client_cpus.first(), self.server_cpu) {
            (Some(Some(client)), Some(server)) => Some([*client, server]),
            _ => None,
        }
    }

    /// A server of a design, unless there is one.
    fn server(&self, design: Design) -> anyhow::Result<(Option<ServerProcess>, String)> {
        if let Some(address) = &self.address {
            return Ok((None, address.clone()));
        }
        let mut args: Vec<String> = ["serve", "sequencer", "--design", design.name()].map(str::to_owned).into();
        if design == Design::Rpc {
            let limits = self.limits();
            args.push(self.fabric.fresh_address("")?);
            args.extend(["--credits".to_owned(), limits.credits().to_string()]);
            args.extend(["--slots".to_owned(), limits.slots.to_string()]);
        } else {
            args.push("127.0.0.1:0".to_owned());
            args.extend(self.device.to_args());
        }
        args.extend(self.server_cpu.iter().flat_map(|cpu| ["--pin".to_owned(), cpu.to_string()]));
        let server = ServerProcess::spawn(&args)?;
        let address = server.addresses().first().context("the server did not say where it serves")?.clone();
        Ok((Some(server), address))
    }
}

/// What came of it.
pub struct Figures {
    pub plan: Plan,
    /// Millions of calls a second of all clients, for each slice.
    pub ours: Vec<f64>,
    /// The same of calls for ranges.
    pub ranges: Vec<f64>,
    pub limits: Vec<f64>,
    pub limit_what: &'static str,
    pub latency: Histogram<u64>,
    /// Calls and numbers that were checked.
    pub calls: u64,
    pub numbers: u64,
    /// Calls without an answer, and numbers that nobody got.
    pub lost: u64,
    pub gaps: u64,
    pub yardstick: [Reading; 2],
    pub others: Others,
}

/// What a figure stands beside.
enum Limit<'a, 'scope> {
    None,
    Clients(&'a Side<'scope>, &'static str),
    Meter(&'a dyn Fn(Duration) -> anyhow::Result<f64>, &'static str),
}

type Order = (Ask, mpsc::Sender<anyhow::Result<Slice>>);

/// A client thread. It ends when nobody gives orders any more.
struct ClientThread<'scope> {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

/// Client threads.
struct Side<'scope> {
    threads: Vec<ClientThread<'scope>>,
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        for ClientThread { orders, thread } in &mut self.threads {
            drop(orders.take());
            let _ = thread.take().map(ScopedJoinHandle::join);
        }
    }
}

/// What a client thread's program needs: orders, and how to say that it is ready or why it is not.
struct Desk {
    orders: mpsc::Receiver<Order>,
    ready: mpsc::Sender<anyhow::Result<()>>,
    window: usize,
    batch: usize,
    interrupt: Interrupt,
}

impl Desk {
    fn obey(&self, drive: &mut dyn Drive) {
        let _ = self.ready.send(Ok(()));
        for (ask, answer) in &self.orders {
            let _ = answer.send(drive.slice(ask));
        }
    }

    fn drive<H>(&self, client: impl Client, hold: H) {
        self.obey(&mut Driver::new(client, hold, self.window, self.batch, self.interrupt));
    }
}

impl WithClient for &Desk {
    type Result = ();

    fn run<C: Client>(self, client: C, hold: Rendezvous) {
        self.drive(client, hold);
    }
}

impl<'scope> Side<'scope> {
    /// Starts a thread for each client, in which `program` makes it and obeys.
    fn start(
        plan: &Plan,
        interrupt: Interrupt,
        scope: &'scope Scope<'scope, '_>,
        program: impl Fn(&Desk) -> anyhow::Result<()> + Clone + Send + 'scope,
    ) -> anyhow::Result<Self> {
        let mut side = Self { threads: Vec::new() };
        for index in 0..plan.clients {
            let (orders, incoming) = mpsc::channel();
            let (ready, is_ready) = mpsc::channel();
            let (program, cpu) = (program.clone(), plan.client_cpus.get(index).copied().flatten());
            let desk = Desk { orders: incoming, ready, window: plan.window, batch: plan.batch, interrupt };
            let thread = scope.spawn(move || {
                if let Err(error) = machine::pin(cpu).and_then(|()| program(&desk)) {
                    let _ = desk.ready.send(Err(error));
                }
            });
            side.threads.push(ClientThread { orders: Some(orders), thread: Some(thread) });
            is_ready.recv_timeout(PATIENCE).context("a client thread ended at once, or is stuck")??;
        }
        Ok(side)
    }

    /// Has all clients do the same at once.
    fn ask(&self, ask: Ask) -> anyhow::Result<Vec<Slice>> {
        let mut pending = Vec::new();
        for ClientThread { orders, .. } in &self.threads {
            let (send, receive) = mpsc::channel();
            let orders = orders.as_ref().context("a client thread has ended")?;
            orders.send((ask, send)).ok().context("a client thread has ended")?;
            pending.push(receive);
        }
        let answer = |receive: mpsc::Receiver<anyhow::Result<Slice>>| {
            receive.recv_timeout(ask.duration + PATIENCE).context("a client thread has ended, or is stuck")?
        };
        pending.into_iter().map(answer).collect()
    }
}

fn mops(slices: &[Slice]) -> f64 {
    slices.iter().map(|slice| slice.calls as f64 * 1e3 / slice.elapsed_ns.max(1) as f64).sum()
}

/// What all slices have shown so far.
#[derive(Default)]
struct Sum {
    from: u64,
    calls: u64,
    numbers: u64,
    lost: u64,
    gaps: u64,
}

impl Sum {
    /// One slice of a sequencer: the rate, when no number was handed out twice or too low.
    fn slice(&mut self, side: &Side<'_>, duration: Duration, count: u32) -> anyhow::Result<(f64, Vec<Slice>)> {
        let slices = side.ask(Ask { duration, count, from: self.from })?;
        let mut all = Seen::new(self.from);
        for slice in &slices {
            all.add(&slice.seen)?;
            self.calls += slice.calls;
            self.lost += slice.lost;
        }
        self.numbers += all.numbers;
        // Before the first slice nobody knows where it begins.
        if self.from > 0 {
            self.gaps += all.end - self.from - all.numbers;
        }
        self.from = all.end;
        Ok((mops(&slices), slices))
    }
}

/// Measures `ours` and its limit, in turn.
fn alternate(
    plan: Plan,
    ours: &Side<'_>,
    limit: &Limit<'_, '_>,
    servers: [Option<&ServerProcess>; 2],
) -> anyhow::Result<Figures> {
    let slice = plan.duration / SLICES;
    let side_slice = (slice / 2).min(SIDE_SLICE_MAX);
    let pair = plan.pair();
    let yardstick = || Reading::take(Kind::Latency, Fabric::Shm, pair, &plan.references, YARDSTICK.min(slice));
    let (mut sum, mut rates, mut ranges, mut limits) = (Sum::default(), Vec::new(), Vec::new(), Vec::new());
    let (mut latency, before) = (histogram(), yardstick()?);
    // Where the sequencer is somebody else's, so is its processor.
    let is_ours = plan.address.is_none();
    let servers = servers.into_iter().flatten().filter(|_| is_ours).map(ServerProcess::id);
    let watched = plan.client_cpus.iter().chain(is_ours.then_some(&plan.server_cpu));
    let watch = others::Watch::new(others::cpus(watched), servers).allowing(&plan.references);
    let measure_limit = |duration: Duration| -> anyhow::Result<Option<f64>> {
        Ok(match limit {
            Limit::None => None,
            Limit::Meter(meter, _) => Some(meter(duration)?),
            Limit::Clients(side, _) => Some(mops(&side.ask(Ask { duration, count: 1, from: 0 })?)),
        })
    };
    sum.slice(ours, WARM_UP.min(slice) / 10, 1)?;
    sum.slice(ours, WARM_UP.min(slice), 1)?;
    measure_limit(WARM_UP.min(side_slice))?;
    let warmed_up = (sum.calls, sum.numbers);
    for _ in 0..SLICES {
        limits.extend(measure_limit(side_slice)?);
        let (rate, slices) = sum.slice(ours, slice, 1)?;
        rates.push(rate);
        for slice in slices {
            latency.add(&slice.latency)?;
        }
        if plan.range > 1 {
            ranges.push(sum.slice(ours, side_slice, plan.range)?.0);
        }
    }
    let (others, after) = (watch.end(), yardstick()?);
    let limit_what = match limit {
        Limit::None => "none",
        Limit::Clients(_, what) | Limit::Meter(_, what) => what,
    };
    Ok(Figures {
        plan,
        ours: rates,
        ranges,
        limits,
        limit_what,
        latency,
        calls: sum.calls - warmed_up.0,
        numbers: sum.numbers - warmed_up.1,
        lost: sum.lost,
        gaps: sum.gaps,
        yardstick: [before, after],
        others,
    })
}

/// Measures.
pub fn measure(plan: Plan) -> anyhow::Result<Figures> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let result = match plan.design {
        Design::Rpc => calls(plan, interrupt),
        _ => plan.device.clone().run(OnVerbs { plan, interrupt }),
    };
    // Ctrl-C reaches the server too: what is said of its going is not the cause.
    ensure!(!interrupt.is_set(), "interrupted");
    result
}

/// The sequencer over RPC beside echoes.
fn calls(plan: Plan, interrupt: Interrupt) -> anyhow::Result<Figures> {
    let (server, address) = plan.server(Design::Rpc)?;
    let limits = plan.limits();
    let echo = ServerProcess::start(&plan.fabric.fresh_address("")?, &[plan.server_cpu], &limits)?;
    let echo_address = echo.addresses().first().context("the echo server did not say where it serves")?;
    let (window, batch, fabric) = (plan.window, plan.batch, plan.fabric);
    let load = Load { size: ECHO_LEN, window, batch, sink: false };
    std::thread::scope(|scope| {
        let (limits, address) = (&limits, &address);
        let ours = Side::start(&plan, interrupt, scope, move |desk: &Desk| {
            let nexus = Nexus::builder().config(limits.config()).build()?;
            let own = fabric.client_address("").parse()?;
            match fabric {
                Fabric::Shm => desk.call(sinew::endpoint(&nexus, ShmPort::open(&own)?)?, address, window),
                Fabric::Udp => desk.call(sinew::endpoint(&nexus, UdpPort::open(&own)?)?, address, window),
                Fabric::Ibverbs => desk.call(sinew::endpoint(&nexus, sinew::ibverbs_port(&own)?)?, address, window),
                Fabric::Hub => bail!("a server of another process is not at a hub"),
            }
        })?;
        let echoes = Side::start(&plan, interrupt, scope, move |desk: &Desk| {
            let nexus = Nexus::builder().config(limits.config()).build()?;
            let own = fabric.client_address("").parse()?;
            match fabric {
                Fabric::Shm => desk.echo(sinew::endpoint(&nexus, ShmPort::open(&own)?)?, echo_address, load),
                Fabric::Udp => desk.echo(sinew::endpoint(&nexus, UdpPort::open(&own)?)?, echo_address, load),
                Fabric::Ibverbs => desk.echo(sinew::endpoint(&nexus, sinew::ibverbs_port(&own)?)?, echo_address, load),
                Fabric::Hub => bail!("a server of another process is not at a hub"),
            }
        })?;
        let limit = Limit::Clients(&echoes, "RPC echoes of 16 B, as many in flight, each checked");
        alternate(plan, &ours, &limit, [server.as_ref(), Some(&echo)])
    })
}

impl Desk {
    fn call<P: PacketPort>(
        &self,
        mut rpc: sinew::rpc::Rpc<P, HostClock>,
        address: &str,
        window: usize,
    ) -> anyhow::Result<()> {
        let session = rpc.connect(address)?;
        self.drive(RpcClient::new(rpc, session, window, None)?, ());
        Ok(())
    }

    fn echo<P: PacketPort>(&self, rpc: sinew::rpc::Rpc<P, HostClock>, address: &str, load: Load) -> anyhow::Result<()> {
        let client = EchoClient::connect(rpc, address, 1, self.interrupt)?;
        self.obey(&mut Echo { client, load });
        Ok(())
    }
}

/// Echoes, for comparison.
struct Echo<P: PacketPort> {
    client: EchoClient<P>,
    load: Load,
}

impl<P: PacketPort> Drive for Echo<P> {
    fn slice(&mut self, ask: Ask) -> anyhow::Result<Slice> {
        let slice = self.client.load(self.load, ask.duration)?;
        let seen = Seen::new(ask.from);
        Ok(Slice { calls: slice.calls, elapsed_ns: slice.elapsed_ns, latency: slice.latency, lost: 0, seen })
    }
}

struct OnVerbs {
    plan: Plan,
    interrupt: Interrupt,
}

impl Job for OnVerbs {
    type Result = Figures;

    fn run<D: Device>(self, device: D, carried: Carried) -> anyhow::Result<Figures> {
        let Self { plan, interrupt } = self;
        let design = plan.design;
        let (server, address) = plan.server(design)?;
        let base =
            if design == Design::HerdOpt && plan.address.is_none() { Some(plan.server(Design::Herd)?) } else { None };
        let (device, window, pair) = (&device, plan.window, plan.pair());
        let meter = |duration| header_only_echo_mops(device, pair, window, duration);
        std::thread::scope(|scope| {
            let start = |design, address: &str| {
                let address = address.to_owned();
                Side::start(&plan, interrupt, scope, move |desk: &Desk| {
                    meet(device, Whom { design, carried, address: &address, window }, desk)
                })
            };
            let ours = start(design, &address)?;
            let bases = base.as_ref().map(|(_, address)| start(Design::Herd, address)).transpose()?;
            let limit = match (design, &bases) {
                (_, Some(side)) => Limit::Clients(side, "the baseline: HERD's calls one by one"),
                (Design::SpecS0, None) => Limit::Meter(&meter, "datagrams without data, echoed, as many in flight"),
                _ => Limit::None,
            };
            alternate(plan, &ours, &limit, [server.as_ref(), base.as_ref().and_then(|(server, _)| server.as_ref())])
        })
    }
}

impl Figures {
    fn rate(&self) -> f64 {
        units::median(&self.ours)
    }

    fn limit(&self) -> Option<f64> {
        (!self.limits.is_empty()).then(|| units::median(&self.limits)).filter(|limit| *limit > 0.0)
    }

    fn ratio(&self) -> Option<f64> {
        self.limit().map(|limit| self.rate() / limit)
    }

    fn percentile_ns(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64
    }

    fn is_valid(&self) -> bool {
        self.yardstick.iter().all(Reading::is_enough) && self.others.are_few()
    }

    /// What thresholds are held against.
    pub fn judged(&self) -> Judged {
        Judged { name: "rate_mops", figure: Some(self.rate()), ratio: self.ratio(), valid: self.is_valid() }
    }

    /// What the tour shows of it.
    pub fn row(&self) -> Row {
        Row {
            what: "unique, increasing numbers".to_owned(),
            figure: format!("{} M/s", units::figure(self.rate())),
            limit: self.limit().map_or_else(
                || "not measured".to_owned(),
                |limit| format!("{} M/s: {}", units::figure(limit), self.limit_what),
            ),
            is_valid: self.is_valid(),
        }
    }

    /// What must be said of a design.
    fn remark(&self) -> Option<&'static str> {
        let shm = self.plan.fabric == Fabric::Shm;
        (shm && self.plan.design == Design::Atomics).then_some(
            "over shared memory the atomic is the processor's own: there is no NIC that locks the word for as long as PCIe takes, which makes \
             this design the slowest on NICs (atc16 4.2.3)",
        )
    }

    /// One JSON object.
    pub fn to_json(&self) -> Value {
        let plan = &self.plan;
        let list = |values: &[f64]| values.iter().copied().map(units::rounded).collect::<Vec<_>>();
        let ranges = (!self.ranges.is_empty()).then(|| {
            let rate = units::median(&self.ranges);
            json!({ "count": plan.range, "rate_mops": units::rounded(rate), "numbers_mops": units::rounded(rate * f64::from(plan.range)) })
        });
        let [before, after] = &self.yardstick;
        json!({
            "bench": "seq",
            "design": plan.design.name(),
            "fabric": plan.fabric.name(),
            "clients": plan.clients,
            "window": plan.window,
            "batch": plan.batch,
            "seconds": plan.duration.as_secs_f64(),
            "client_cpus": plan.client_cpus,
            "server_cpu": plan.server_cpu,
            "rate_mops": units::rounded(self.rate()),
            "p50_ns": self.percentile_ns(0.5),
            "p99_ns": self.percentile_ns(0.99),
            "p999_ns": self.percentile_ns(0.999),
            "limit_mops": self.limit().map(units::rounded),
            "limit_what": self.limit_what,
            "ratio": self.ratio().map(units::rounded),
            "ranges": ranges,
            "calls_checked": self.calls,
            "numbers_checked": self.numbers,
            "lost": self.lost,
            "gaps": self.gaps,
            "remark": self.remark(),
            "slices": { "ours": list(&self.ours), "limit": list(&self.limits), "ranges": list(&self.ranges) },
            "cores": {
                "before": machine::distance(before.cores_ns),
                "before_ns": before.cores_ns.map(units::rounded),
                "after": machine::distance(after.cores_ns),
                "after_ns": after.cores_ns.map(units::rounded),
            },
            "others": self.others.share.map(units::rounded),
            "limit_valid": self.is_valid(),
        })
    }

    /// A few lines to read.
    pub fn to_text(&self) -> String {
        let plan = &self.plan;
        let [p50, p99] = [0.5, 0.99].map(|quantile| units::time(self.percentile_ns(quantile)));
        let clients = if plan.clients > 1 { format!("{} clients, ", plan.clients) } else { String::new() };
        let mut text = format!(
            "sequencer {} over {}, {clients}{} in flight in batches of {}: {} M numbers/s, one a call",
            plan.design.name(),
            plan.fabric.name(),
            plan.window,
            plan.batch,
            units::figure(self.rate())
        );
        let limit = match (self.limit(), self.ratio()) {
            (Some(limit), Some(ratio)) => {
                format!("{} M/s (ratio {}): {}", units::figure(limit), units::figure(ratio), self.limit_what)
            }
            _ => "none".to_owned(),
        };
        text += &format!("\n  limit: {limit}\n  latency p50 {p50}, p99 {p99}");
        if !self.ranges.is_empty() {
            let rate = units::median(&self.ranges);
            let numbers = rate * f64::from(plan.range);
            text += &format!(
                "\n  in ranges of {}: {} M calls/s, {} M numbers/s",
                plan.range,
                units::figure(rate),
                units::figure(numbers)
            );
        }
        let (calls, numbers) = (self.calls, self.numbers);
        text += &format!(
            "\n  {calls} calls and {numbers} numbers checked: each once, and in order; {} calls lost, {} numbers in gaps",
            self.lost, self.gaps
        );
        if let Some(remark) = self.remark() {
            text += &format!("\n  {remark}");
        }
        if let Some(complaint) = self.others.complaint() {
            text += &format!("\n  INVALID: {complaint}");
        } else if !self.is_valid() {
            let [before, after] = &self.yardstick;
            text += &format!(
                "\n  INVALID: the machine was busy, or is slower than the one that the references come from (see --reference): {} was {} \
                 before and {} after, where {} is expected",
                before.name(),
                units::figure(before.value),
                units::figure(after.value),
                units::figure(before.reference)
            );
        }
        text
    }
}
