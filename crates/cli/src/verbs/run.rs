//! Runs a measurement: a server, client threads, and alternating slices of the measurement and of its limit.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sinew::fabric::verbs::Device;
use sinew::host::{HostClock, Interrupt};
use sinew_harness::crew::{BoxedMember, Crew, Member};
use sinew_harness::load::verbs::{
    ControlMessage, Findings, LinkAddress, Op, Requester, Side, TransportKind, VerbsPlan, WorkKind, check_device,
};
use sinew_harness::load::{Drive, Slice};
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::{Figure, MeasureSides, Run, histogram, machine};

use super::control::ControlConnection;
use super::device::{DeviceArgs, Job, VerbsFabric};
use super::kind::Kind;
use super::limit::Meter;
use super::show::{self, VerbsTotals};
use crate::Usage;
use crate::child::ServerProcess;

/// Measurements to make with one device and one server.
pub struct Measure<'a, 'b> {
    pub plans: &'a [(Kind, VerbsPlan)],
    /// Whether the user wants messages inline, rather than by default where the device allows it.
    pub inline_asked: bool,
    pub duration: Duration,
    pub client_cpus: &'a [Option<usize>],
    pub references: &'a References,
    pub device: &'a DeviceArgs,
    /// Address of a running server; without it, one is started.
    pub address: Option<&'a str>,
    pub progress: &'a mut Progress<'b>,
}

impl Job for Measure<'_, '_> {
    type Result = Vec<Figure>;

    fn run<D: Device + 'static>(self, device: D, fabric: VerbsFabric) -> anyhow::Result<Vec<Figure>> {
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        let inline_max = device.attributes().inline_max;
        let is_inline = |plan: &VerbsPlan| plan.inline && (self.inline_asked || plan.size <= inline_max);
        let of_device =
            |(kind, plan): &(Kind, VerbsPlan)| (*kind, VerbsPlan { inline: is_inline(plan), ..plan.clone() });
        let plans: Vec<_> = self.plans.iter().map(of_device).collect();
        plans.iter().try_for_each(|(_, plan)| check_device(plan, device.attributes())).map_err(Usage::of)?;
        let server = if self.address.is_none() { Some(start_server(self.device)?) } else { None };
        let started = server.as_ref().and_then(|server| server.addresses().first().map(String::as_str));
        let address = self.address.or(started).context("the server did not say where it serves")?;
        let mut figures = Vec::new();
        for (kind, plan) in &plans {
            let clients = &self.client_cpus[..plan.sides().0.min(self.client_cpus.len())];
            // The processors of a server elsewhere are not ours to watch.
            let servers = if server.is_some() { &plan.cpus[..] } else { &[] };
            let mut run = Run {
                duration: self.duration,
                pair: machine::pair(clients, &plan.cpus),
                pins: [clients, servers].concat(),
                servers: server.iter().map(ServerProcess::id).collect(),
                judged: 1,
                yardstick: Some((
                    if *kind == Kind::Bandwidth { Yardstick::Copy } else { Yardstick::RingRoundTrip },
                    self.references,
                )),
                interrupt,
            };
            let mut measure = || {
                let connected_clients = Clients::connect(&device, fabric, address, (*kind, plan), clients, interrupt)?;
                let meter = Meter::new(plan, *kind, fabric, run.pair);
                run.judged += usize::from(meter.is_some());
                let mut turns = VerbsSides { clients: connected_clients, meter };
                anyhow::Ok((run.measure_alternately(run.judged, &mut turns, self.progress)?, turns))
            };
            let measured = measure();
            // Ctrl-C reaches the server too, so an error about it is not the cause.
            ensure!(!interrupt.is_set(), Interrupted);
            let (measured, VerbsSides { clients: connected_clients, meter }) = measured?;
            let setup = show::Setup {
                kind: *kind,
                plan,
                fabric,
                device: &device.attributes().name,
                client_cpus: clients,
                seconds: self.duration.as_secs_f64(),
            };
            figures.push(show::figure(&setup, &measured, meter.as_ref(), connected_clients.sum));
        }
        Ok(figures)
    }
}

/// Starts a server process for measurements on a device like ours.
fn start_server(device: &DeviceArgs) -> anyhow::Result<ServerProcess> {
    let args = ["verbs", "serve"].into_iter().map(str::to_owned).chain(device.to_args());
    ServerProcess::spawn(&args.collect::<Vec<_>>())
}

/// Client threads, and the machine's limit beside them.
struct VerbsSides {
    clients: Clients,
    meter: Option<Meter>,
}

impl MeasureSides for VerbsSides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let (kind, plan) = (self.clients.kind, &self.clients.plan);
        let scale = if kind == Kind::Bandwidth { 8e-3 * plan.message_len() as f64 } else { 1.0 };
        if let (1, Some(meter)) = (side, &self.meter) {
            return Ok(meter.measure(duration)?.map(|limit| limit * scale));
        }
        Ok(Some(self.clients.slice(duration)? * scale))
    }

    fn reset_sums(&mut self) {
        self.clients.sum.latency.reset();
    }
}

/// Orders for a client thread. It answers with the result of its slice, and the requests that each of its links has
/// made so far.
#[derive(Clone)]
enum ClientOrder {
    Connect(Vec<LinkAddress>),
    Slice(Duration),
}

struct ClientThread<D: Device> {
    load: Requester<D, HostClock>,
    clock: HostClock,
    interrupt: Interrupt,
}

impl<D: Device> Member for ClientThread<D> {
    type Order = ClientOrder;
    type Answer = (Slice, Vec<u64>);

    fn execute(&mut self, order: ClientOrder) -> anyhow::Result<(Slice, Vec<u64>)> {
        let slice = match order {
            ClientOrder::Connect(addresses) => self.load.connect(&addresses).map(|()| Slice::new())?,
            ClientOrder::Slice(duration) => self.load.drive(&self.clock, duration, self.interrupt)?,
        };
        Ok((slice, self.load.made()))
    }
}

/// Client threads connected to a server, which checks what they write.
pub struct Clients {
    kind: Kind,
    plan: VerbsPlan,
    connection: ControlConnection,
    crew: Crew<ClientOrder, (Slice, Vec<u64>)>,
    /// Links of each thread, by their places in the plan's list.
    links: Vec<Vec<usize>>,
    sum: VerbsTotals,
}

impl Clients {
    /// Starts client threads, and connects them to the server at `address`.
    fn connect<D: Device + 'static>(
        device: &D,
        fabric: VerbsFabric,
        address: &str,
        (kind, plan): (Kind, &VerbsPlan),
        cpus: &[Option<usize>],
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let mut connection = ControlConnection::connect(address, interrupt)?;
        let (links, count) = (plan.links_of(Side::Client), plan.links().len());
        let answer = connection.ask(&ControlMessage::Begin(fabric.name().to_owned(), plan.clone()))?;
        let theirs = connection.links(answer, count)?;
        let cpus: Vec<Option<usize>> = (0..links.len()).map(|index| cpus.get(index).copied().flatten()).collect();
        let (domain, device) = (device.protection_domain()?, device.clone());
        let (own_plan, counts): (_, Vec<usize>) = (plan.clone(), links.iter().map(Vec::len).collect());
        let times = kind.is_single(plan);
        let (sender, receiver) = mpsc::channel();
        let crew = Crew::start(&cpus, move |index| {
            let (load, ours) = Requester::new(&device, &domain, &own_plan, counts[index], times, HostClock::new())?;
            sender.send(ours)?;
            Ok(Box::new(ClientThread { load, clock: HostClock::new(), interrupt }) as BoxedMember<_, _>)
        })?;
        let mut ours: Vec<_> = links.iter().flatten().zip(receiver.try_iter().flatten()).collect();
        ours.sort_unstable_by_key(|(link, _)| **link);
        let ours = ours.into_iter().map(|(_, address)| address).collect();
        let order_of =
            |index: usize| ClientOrder::Connect(links[index].iter().map(|&link| theirs[link].clone()).collect());
        crew.order_each(order_of, Duration::ZERO)?;
        connection.expect_ready(&ControlMessage::Links(ours))?;
        let sum = VerbsTotals { made: vec![0; count], done: 0, lost: 0, checked: 0, latency: histogram() };
        Ok(Self { kind, plan: plan.clone(), connection, crew, links, sum })
    }

    /// Measures one slice on all client threads, and asks the server to check it. Returns the mean figure of the
    /// threads.
    fn slice(&mut self, duration: Duration) -> anyhow::Result<f64> {
        let Self { kind, plan, connection, crew, links, sum } = self;
        connection.expect_ready(&ControlMessage::Go)?;
        let (mut rates, mut medians, mut done) = (Vec::new(), Vec::new(), 0);
        for (links, (slice, made)) in links.iter().zip(crew.order(&ClientOrder::Slice(duration), duration)?) {
            for (link, made) in links.iter().zip(made) {
                sum.made[*link] = made;
            }
            done += slice.done;
            rates.push(slice.mops());
            medians.push(slice.latency.value_at_quantile(0.5) as f64);
            let part = if kind.is_halved(plan) { 2 } else { 1 };
            for value in slice.latency.iter_recorded() {
                sum.latency.saturating_record_n((value.value_iterated_to() / part).max(1), value.count_at_value());
            }
        }
        let ControlMessage::Found(found) = connection.ask(&ControlMessage::Check(sum.made.clone()))? else {
            return Err(connection.unexpected_answer());
        };
        let lost_now = check_findings(plan, found, sum)?;
        sum.done += done;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let arrived = if plan.knows_arrivals() { 1.0 - lost_now as f64 / done.max(1) as f64 } else { 1.0 };
        sum.checked = match plan.work {
            WorkKind::Load(Op::Write | Op::WriteImm) => found.looked,
            _ => sum.checked + done.saturating_sub(lost_now),
        };
        Ok(match (kind.is_time(plan), kind.is_halved(plan)) {
            (true, true) => mean(&medians) / 2.0,
            (true, false) => mean(&medians),
            (false, _) => mean(&rates) * arrived.max(0.0),
        })
    }
}

/// Compares the server's findings with the requests made. Returns the messages lost in this slice.
fn check_findings(plan: &VerbsPlan, found: Findings, sum: &mut VerbsTotals) -> anyhow::Result<u64> {
    let made: u64 = sum.made.iter().sum();
    let Findings { received, wrong, looked, lost } = found;
    let is_reported = plan.takes_receives() || matches!(plan.work, WorkKind::Echo(_));
    let unseen = if is_reported { made.saturating_sub(received) } else { 0 };
    // Only the last WRITE in each place can be checked. A lost WRITE with immediate is missed twice, so take the larger
    // count.
    let lost = unseen.max(lost);
    ensure!(looked <= made, "only {made} of the {looked} messages that the server found in memory had been written");
    ensure!(received <= made, "only {made} of the {received} messages that the server received had been sent");
    ensure!(wrong == 0, "{wrong} of {made} requests wrote or returned wrong data: the fabric corrupts data");
    let is_reliable = plan.carrier == TransportKind::Rc;
    ensure!(lost == 0 || !is_reliable, "the transport is reliable, but lost {lost} of {made} messages");
    let lost_now = lost.saturating_sub(sum.lost);
    sum.lost = lost;
    Ok(lost_now)
}

/// Client threads and a server process of their own, which services on verbs are compared with.
pub struct Bare {
    clients: Clients,
    server: ServerProcess,
}

impl Bare {
    /// Starts the server and the client threads.
    pub fn open<D: Device + 'static>(
        device: &D,
        args: &DeviceArgs,
        (kind, plan): (Kind, &VerbsPlan),
        client_cpus: &[Option<usize>],
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let server = start_server(args)?;
        let address = server.addresses().first().context("the server did not say where it serves")?;
        let clients = Clients::connect(device, args.fabric, address, (kind, plan), client_cpus, interrupt)?;
        Ok(Self { clients, server })
    }

    /// Process ID of the server.
    pub fn process(&self) -> u32 {
        self.server.id()
    }

    /// Measures a slice. Returns millions of messages a second, over all threads.
    pub fn mops(&mut self, duration: Duration) -> anyhow::Result<f64> {
        let figure = self.clients.slice(duration)?;
        let Clients { kind, plan, .. } = &self.clients;
        Ok(match kind.is_time(plan) {
            // With one message at a time the figure is the time that it takes.
            true if figure > 0.0 => 1e3 / figure,
            true => 0.0,
            false => figure * plan.sides().0 as f64,
        })
    }
}
