//! Runs a benchmark: server, clients, and slices of limit and measurement in turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use sinew::fabric::{PacketPort, PortError, Waker};
use sinew::host::{HostClock, Interrupt};
use sinew::prelude::*;
use sinew::rpc::ConnectError;
use sinew::shm::{Hub, ShmPort};
use sinew::udp::UdpPort;

use super::limit::LimitMeter;
use super::result::{Figures, Kind};
use crate::child::ServerProcess;
use crate::client::{Calls, Client, Load, Slice, histogram};
use crate::fabrics::{Fabric, nth_address};
use crate::limits::{Reading, References};
use crate::others::{self, Others};
use crate::serve::LimitArgs;
use crate::{advice, machine, output, service};

/// Slices of a measurement: as many of the limit, in turn.
const SLICES: u32 = 5;
/// The first slice of each is preceded by this much that does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// The longest slice of a limit.
const LIMIT_SLICE_MAX: Duration = Duration::from_millis(300);
/// How long a yardstick, and the distance of the cores, are measured.
const YARDSTICK: Duration = Duration::from_millis(30);

/// How often a client that has nothing to do, since a limit is measured, answers a server that asks whether it is there. On a
/// starved machine that takes long.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub fabric: Fabric,
    pub duration: Duration,
    pub size: usize,
    pub window: usize,
    pub batch: usize,
    pub sessions: usize,
    pub threads: usize,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpus: Vec<Option<usize>>,
    /// A server that runs already.
    pub address: Option<String>,
    /// `?name=value...` for addresses made here.
    pub options: String,
    pub limits: LimitArgs,
    pub references: References,
}

impl Plan {
    /// Sessions that [`Kind::Scale`] compares with.
    pub const FEW_SESSIONS: usize = 20;

    /// A plan with the defaults of its kind.
    pub fn new(kind: Kind, fabric: Fabric, duration: Duration) -> Self {
        let (size, window, batch, sessions) = match kind {
            Kind::Latency => (32, 1, 1, 1),
            Kind::Rate => (32, 60, 3, Self::sessions_for(60, 8)),
            Kind::Bandwidth => (8 << 20, 2, 1, 1),
            Kind::Scale => (32, 60, 3, 20_000),
        };
        let pair = machine::default_pair();
        Self {
            kind,
            fabric,
            duration,
            size,
            window,
            batch,
            sessions,
            threads: 1,
            client_cpus: vec![pair.map(|cpus| cpus[0])],
            server_cpus: vec![pair.map(|cpus| cpus[1])],
            address: None,
            options: String::new(),
            limits: LimitArgs::default(),
            references: References::default(),
        }
    }

    /// Sessions that a window needs: calls choose theirs at random, so that some get more than their share; with twice the
    /// slots few of them wait.
    pub fn sessions_for(window: usize, slots: u16) -> usize {
        (2 * window).div_ceil(usize::from(slots.max(1))).max(1)
    }

    /// Packets that a ring has to hold for so many sessions, where no option says how many.
    pub fn ring_packets(&self) -> Option<usize> {
        let packets = self.sessions * usize::from(self.limits.credits()) + 64;
        let rings = matches!(self.fabric, Fabric::Shm | Fabric::Hub);
        (self.kind == Kind::Scale && rings && self.options.is_empty()).then_some(packets)
    }

    /// The options that addresses need for so many sessions.
    pub fn options(&self) -> String {
        match self.ring_packets() {
            Some(packets) => format!("?ring={packets}"),
            None => self.options.clone(),
        }
    }

    /// Whether a figure can be divided by a limit that was measured with messages of `limit_size` bytes.
    pub fn has_ratio(&self, limit_size: usize) -> bool {
        // Bits per second are bits per second, whatever they come in.
        self.kind == Kind::Bandwidth || self.size == limit_size
    }

    fn load(&self) -> Load {
        Load { size: self.size, window: self.window, batch: self.batch, sink: self.kind == Kind::Bandwidth }
    }
}

/// The server of a benchmark. Goes when it is dropped.
enum Serving {
    Process(ServerProcess),
    Threads { addresses: Vec<String>, _stop: StopThreads },
    Elsewhere(Vec<String>),
}

/// Ends server threads of this process when it is dropped.
#[derive(Default)]
struct StopThreads {
    stop: Arc<AtomicBool>,
    wakers: Vec<Waker>,
}

impl Drop for StopThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
    }
}

impl Serving {
    fn addresses(&self) -> &[String] {
        match self {
            Self::Process(server) => server.addresses(),
            Self::Threads { addresses, .. } | Self::Elsewhere(addresses) => addresses,
        }
    }

    fn process_id(&self) -> Option<u32> {
        match self {
            Self::Process(server) => Some(server.id()),
            Self::Threads { .. } | Self::Elsewhere(_) => None,
        }
    }

    /// The processors that nobody but clients and server should use: all that they may run on, of this machine as far as is known.
    fn shared_cpus(&self, plan: &Plan) -> Vec<usize> {
        let servers = match self {
            Self::Elsewhere(_) => &[],
            Self::Process(_) | Self::Threads { .. } => &plan.server_cpus[..],
        };
        others::cpus(plan.client_cpus.iter().chain(servers))
    }
}

/// What a client thread is told to do, and how it answers.
type Order = (Ask, mpsc::Sender<anyhow::Result<Answer>>);

enum Ask {
    Slice { sessions: usize, duration: Duration },
    Report,
}

enum Answer {
    Ready,
    Slice(Slice),
    Report(Value, Value),
}

struct ClientThread<'scope> {
    orders: mpsc::Sender<Order>,
    thread: ScopedJoinHandle<'scope, ()>,
}

/// Measures. `progress` hears of each part that is done, from 0 to 1.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(f64)) -> anyhow::Result<Figures> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let hub = Hub::new();
    let result = std::thread::scope(|threads| {
        let serving = serve(plan, &hub, threads)?;
        let meter = LimitMeter::new(plan);
        let mut clients = Vec::new();
        for index in 0..plan.threads {
            clients.push(start_client(plan, index, serving.addresses(), &hub, interrupt, threads)?);
        }
        let watch = others::Watch::new(serving.shared_cpus(plan), serving.process_id()).allowing(&plan.references);
        let result =
            alternate(plan, &meter, &clients, progress).map(|figures| Figures { others: watch.end(), ..figures });
        // The clients first, so that the server sees them leave.
        for ClientThread { orders, thread } in clients {
            drop(orders);
            let _ = thread.join();
        }
        drop(serving);
        result
    });
    // Ctrl-C reaches the server too: what a call says of its going is not the cause.
    ensure!(!interrupt.is_set(), "interrupted");
    result
}

fn alternate(
    plan: &Plan,
    meter: &LimitMeter,
    clients: &[ClientThread<'_>],
    progress: &mut dyn FnMut(f64),
) -> anyhow::Result<Figures> {
    let slice = plan.duration / SLICES;
    let limit_slice = (slice / 2).min(LIMIT_SLICE_MAX);
    let yardstick = || Reading::take(plan.kind, plan.fabric, meter.cpus(), &plan.references, YARDSTICK.min(slice));
    let limit_size = meter.size();
    let before = yardstick()?;
    let (mut ours, mut limits, mut latency, mut calls) = (Vec::new(), Vec::new(), histogram(), 0);
    let warm_up = WARM_UP.min(slice);
    if plan.kind != Kind::Scale {
        meter.measure(warm_up / 2)?;
    }
    for answer in ask_all(clients, || Ask::Slice { sessions: plan.sessions, duration: warm_up })? {
        if let Answer::Slice(slice) = answer {
            calls += slice.calls;
        }
    }
    for index in 0..SLICES {
        if plan.kind == Kind::Scale {
            let few = ask_all(clients, || Ask::Slice { sessions: Plan::FEW_SESSIONS, duration: slice })?;
            limits.push(rate_of(plan, few, &mut histogram(), &mut calls)?);
        } else {
            limits.push(meter.measure(limit_slice)?);
        }
        let answers = ask_all(clients, || Ask::Slice { sessions: plan.sessions, duration: slice })?;
        ours.push(rate_of(plan, answers, &mut latency, &mut calls)?);
        progress(f64::from(index + 1) / f64::from(SLICES));
    }
    let after = yardstick()?;
    let (server, client) = match ask_all(&clients[..1], || Ask::Report)?.pop() {
        Some(Answer::Report(server, client)) => (server, client),
        _ => (Value::Null, Value::Null),
    };
    let yardstick = [before, after];
    let others = Others::default();
    Ok(Figures { plan: plan.clone(), ours, limits, limit_size, latency, calls, yardstick, others, server, client })
}

/// The mean figure of the client threads.
fn rate_of(
    plan: &Plan,
    answers: Vec<Answer>,
    latency: &mut hdrhistogram::Histogram<u64>,
    calls: &mut u64,
) -> anyhow::Result<f64> {
    let (mut sum, count) = (0.0, answers.len());
    for answer in answers {
        let Answer::Slice(slice) = answer else { continue };
        *calls += slice.calls;
        latency.add(&slice.latency)?;
        sum += match plan.kind {
            Kind::Latency => slice.latency.value_at_quantile(0.5) as f64,
            Kind::Rate | Kind::Scale => slice.mops(),
            Kind::Bandwidth => slice.mops() * 8e-3 * plan.size as f64,
        };
    }
    Ok(sum / count.max(1) as f64)
}

/// Has all client threads do the same at once.
fn ask_all(clients: &[ClientThread<'_>], ask: impl Fn() -> Ask) -> anyhow::Result<Vec<Answer>> {
    let mut pending = Vec::new();
    for client in clients {
        let (send, receive) = mpsc::channel();
        client.orders.send((ask(), send)).ok().context("a client thread has ended")?;
        pending.push(receive);
    }
    pending.into_iter().map(|receive| receive.recv().context("a client thread has ended")?).collect()
}

/// Starts the server, unless there is one.
fn serve<'scope>(plan: &Plan, hub: &Hub, threads: &'scope Scope<'scope, '_>) -> anyhow::Result<Serving> {
    if let Some(address) = &plan.address {
        let addresses = (0..plan.threads).map(|index| nth_address(address, index)).collect::<Result<_, _>>()?;
        return Ok(Serving::Elsewhere(addresses));
    }
    let address = plan.fabric.fresh_address(&plan.options())?;
    if plan.fabric != Fabric::Hub {
        return Ok(Serving::Process(ServerProcess::start(&address, &plan.server_cpus, &plan.limits)?));
    }
    let mut stop = StopThreads::default();
    let mut addresses = Vec::new();
    for index in 0..plan.threads {
        let address = nth_address(&address, index)?;
        let port = hub.port(address.trim_start_matches("shm://"))?;
        stop.wakers.push(port.waker());
        let (nexus, cpu) = (service::nexus(plan.limits.config())?, plan.server_cpus[index]);
        let stopping = Arc::clone(&stop.stop);
        threads.spawn(move || {
            let serve = || -> anyhow::Result<()> {
                machine::pin(cpu)?;
                let mut rpc = Rpc::from(sinew::endpoint(&nexus, port)?);
                rpc.run_until(|rpc| {
                    service::answer_reports(rpc);
                    stopping.load(Ordering::Relaxed)
                })?;
                Ok(())
            };
            if let Err(error) = serve() {
                output::complain(format_args!("the server thread ended: {}", output::describe(&error)));
            }
        });
        addresses.push(address);
    }
    Ok(Serving::Threads { addresses, _stop: stop })
}

fn start_client<'scope>(
    plan: &Plan,
    index: usize,
    addresses: &[String],
    hub: &Hub,
    interrupt: Interrupt,
    threads: &'scope Scope<'scope, '_>,
) -> anyhow::Result<ClientThread<'scope>> {
    let (orders, incoming) = mpsc::channel::<Order>();
    let (ready, is_ready) = mpsc::channel();
    let (hub, cpu, address) = (hub.clone(), plan.client_cpus[index], addresses[index].clone());
    let own_plan = plan.clone();
    let thread = threads.spawn(move || {
        let opened = machine::pin(cpu).and_then(|()| open(&own_plan, &hub, &address, interrupt));
        let mut client = match opened {
            Ok(client) => client,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let _ = ready.send(Ok(Answer::Ready));
        loop {
            match incoming.recv_timeout(SIGN_OF_LIFE) {
                Ok((ask, answer)) => drop(answer.send(obey(&own_plan, &mut *client, &ask))),
                Err(mpsc::RecvTimeoutError::Timeout) => client.keep_alive(),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    match is_ready.recv().context("a client thread ended at once")? {
        Ok(_) => Ok(ClientThread { orders, thread }),
        // The first thread's address was good: this is a server with fewer threads than we.
        Err(error) if index > 0 && is_nobody_there(&error) => bail!(
            "--threads {} needs a server with as many, and nobody is at {}: start it as `sinew rpc serve {} --threads {}`",
            plan.threads,
            addresses[index],
            addresses[0],
            plan.threads
        ),
        Err(error) => Err(advice::serve_there(error, "sinew rpc serve", &addresses[index])),
    }
}

fn is_nobody_there(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            ConnectError::Port(PortError::NotFound { .. })
                | ConnectError::Failed { cause: Cause::PeerUnreachable | Cause::PeerClosed | Cause::PeerDied, .. }
                | ConnectError::TimedOut { .. }
        )
    )
}

fn obey(plan: &Plan, client: &mut dyn Calls, ask: &Ask) -> anyhow::Result<Answer> {
    match *ask {
        Ask::Slice { sessions, duration } => {
            client.use_sessions(sessions);
            Ok(Answer::Slice(match plan.kind {
                Kind::Latency => client.latency(plan.size, duration)?,
                _ => client.load(plan.load(), duration)?,
            }))
        }
        Ask::Report => client.report().map(|(server, client)| Answer::Report(server, client)),
    }
}

/// Opens a client on the plan's fabric.
pub fn open(plan: &Plan, hub: &Hub, address: &str, interrupt: Interrupt) -> anyhow::Result<Box<dyn Calls>> {
    let nexus = Nexus::builder().config(plan.limits.config()).build()?;
    let own = plan.fabric.client_address(&plan.options());
    Ok(match plan.fabric {
        Fabric::Shm => {
            let rpc: sinew::rpc::Rpc<ShmPort, HostClock> = sinew::endpoint(&nexus, ShmPort::open(&own.parse()?)?)?;
            Box::new(Client::connect(rpc, address, plan.sessions, interrupt)?)
        }
        Fabric::Hub => {
            let rpc = sinew::endpoint(&nexus, hub.port(own.trim_start_matches("shm://"))?)?;
            Box::new(Client::connect(rpc, address, plan.sessions, interrupt)?)
        }
        Fabric::Udp => {
            let rpc = sinew::endpoint(&nexus, UdpPort::open(&own.parse()?)?)?;
            Box::new(Client::connect(rpc, address, plan.sessions, interrupt)?)
        }
        Fabric::Ibverbs => {
            let rpc = sinew::endpoint(&nexus, sinew::ibverbs_port(&own.parse()?)?)?;
            Box::new(Client::connect(rpc, address, plan.sessions, interrupt)?)
        }
    })
}
