//! Runs a measurement: server, client threads, and slices of limit and measurement in turn.

use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sinew::fabric::verbs::Device;
use sinew::host::Interrupt;

use super::client::{Client, Slice};
use super::control::Talk;
use super::device::{Carried, DeviceArgs, Job};
use super::limit::Meter;
use super::link::{Domain, LinkAddress, check_device};
use super::plan::{Carrier, Op, Plan, Work};
use super::result::{Figures, Kind, is_halved, is_single};
use crate::bench::Kind as RpcKind;
use crate::child::ServerProcess;
use crate::client::histogram;
use crate::fabrics::Fabric;
use crate::limits::{Reading, References};
use crate::others::{self, Others, Watch};
use crate::{Usage, machine};

/// Slices of a measurement: as many of the limit, in turn.
const SLICES: u32 = 5;
/// The first slice is preceded by this much that does not count.
const WARM_UP: Duration = Duration::from_millis(100);
/// The longest slice of a limit.
const LIMIT_SLICE_MAX: Duration = Duration::from_millis(300);
/// How long a yardstick is measured.
const YARDSTICK: Duration = Duration::from_millis(30);
/// Beyond its slice, a client thread has this long to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measurements to make with one device and one server.
pub struct Measure<'a> {
    pub plans: &'a [(Kind, Plan)],
    pub duration: Duration,
    pub client_cpus: &'a [Option<usize>],
    pub references: &'a References,
    pub device: &'a DeviceArgs,
    /// Where a server is; else one is started.
    pub address: Option<&'a str>,
}

impl Job for Measure<'_> {
    type Result = Vec<Figures>;

    fn run<D: Device>(self, device: D, carried: Carried) -> anyhow::Result<Vec<Figures>> {
        let interrupt = Interrupt::install().context("catching Ctrl-C")?;
        self.plans.iter().try_for_each(|(_, plan)| check_device(plan, device.attributes())).map_err(Usage::of)?;
        let server = match self.address {
            Some(_) => None,
            None => {
                let args = ["verbs", "serve"].into_iter().map(str::to_owned).chain(self.device.to_args());
                Some(ServerProcess::spawn(&args.collect::<Vec<_>>())?)
            }
        };
        let started = server.as_ref().and_then(|server| server.addresses().first().map(String::as_str));
        let address = self.address.or(started).context("the server did not say where it serves")?;
        let mut figures = Vec::new();
        for what in self.plans {
            let servers: &[Option<usize>] = match (&server, &what.1.cpus[..]) {
                (None, _) => &[],
                (Some(_), []) => &[None],
                (Some(_), cpus) => cpus,
            };
            let watch = Watch::new(
                others::cpus(self.client_cpus.iter().take(what.1.sides().0).chain(servers)),
                server.as_ref().map(ServerProcess::id),
            )
            .allowing(self.references);
            let one = std::thread::scope(|threads| self.one(&device, carried, address, what, interrupt, threads));
            let one = one.map(|figures| Figures { others: watch.end(), ..figures });
            // Ctrl-C reaches the server too: what is said of its going is not the cause.
            ensure!(!interrupt.is_set(), "interrupted");
            figures.push(one?);
        }
        Ok(figures)
    }
}

enum Order {
    Connect(Vec<LinkAddress>),
    Slice(Duration),
}

enum Answer {
    Addresses(Vec<LinkAddress>),
    Connected,
    Slice(Slice, Vec<u64>),
}

struct ClientThread<'scope> {
    orders: Option<mpsc::Sender<Order>>,
    answers: mpsc::Receiver<anyhow::Result<Answer>>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
    /// Its links, by their places in the plan's list.
    links: Vec<usize>,
}

impl ClientThread<'_> {
    fn order(&self, order: Order) {
        // One that has ended says why when it is asked for its answer.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    fn answer(&self, duration: Duration) -> anyhow::Result<Answer> {
        self.answers.recv_timeout(duration + PATIENCE).context("a client thread ended, or is stuck")?
    }
}

impl Drop for ClientThread<'_> {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

/// A client thread.
fn work<D: Device>(
    device: &D,
    domain: &Domain<D>,
    plan: &Plan,
    (cpu, count, single): (Option<usize>, usize, bool),
    interrupt: Interrupt,
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<anyhow::Result<Answer>>,
) {
    let obey = || -> anyhow::Result<()> {
        machine::pin(cpu)?;
        let mut client = Client::new(device, domain, plan, count, interrupt)?;
        let _ = answers.send(Ok(Answer::Addresses(client.addresses()?)));
        for order in orders {
            let answer = match order {
                Order::Connect(addresses) => client.connect(&addresses).map(|()| Answer::Connected)?,
                Order::Slice(duration) => {
                    let slice = client.slice(duration, single)?;
                    Answer::Slice(slice, client.made().to_vec())
                }
            };
            let _ = answers.send(Ok(answer));
        }
        Ok(())
    };
    if let Err(error) = obey() {
        let _ = answers.send(Err(error));
    }
}

/// What all slices have found so far.
struct Sum {
    /// Of the whole run, warm-up included.
    made: Vec<u64>,
    received: u64,
    wrong: u64,
    lost: u64,
    checked: u64,
}

impl Measure<'_> {
    fn one<'scope, D: Device>(
        &self,
        device: &'scope D,
        carried: Carried,
        address: &str,
        what: &(Kind, Plan),
        interrupt: Interrupt,
        threads: &'scope Scope<'scope, '_>,
    ) -> anyhow::Result<Figures> {
        let (kind, plan) = what;
        let mut talk = Talk::with(address, interrupt)?;
        let links = plan.links();
        let told = talk.ask(&json!({ "fabric": carried.name(), "plan": plan.to_json() }))?;
        let theirs = LinkAddress::list(&told, links.len())?;
        let domain = device.protection_domain()?;
        let mut clients = Vec::new();
        for index in 0..plan.sides().0 {
            let own = (0..links.len()).filter(|&link| links[link].0 == index).collect::<Vec<_>>();
            let how = (self.client_cpus.get(index).copied().flatten(), own.len(), is_single(*kind, plan));
            let (orders, incoming) = mpsc::channel();
            let (outgoing, answers) = mpsc::channel();
            let (domain, plan) = (domain.clone(), plan.clone());
            let thread = threads.spawn(move || work(device, &domain, &plan, how, interrupt, &incoming, &outgoing));
            clients.push(ClientThread { orders: Some(orders), answers, thread: Some(thread), links: own });
        }
        let mut ours = vec![Value::Null; links.len()];
        for client in &clients {
            let Answer::Addresses(addresses) = client.answer(Duration::ZERO)? else { bail!("a thread is confused") };
            for (link, address) in client.links.iter().zip(&addresses) {
                ours[*link] = address.to_json();
            }
        }
        for client in &clients {
            client.order(Order::Connect(client.links.iter().map(|&link| theirs[link].clone()).collect()));
        }
        clients.iter().try_for_each(|client| client.answer(Duration::ZERO).map(|_| ()))?;
        let ready = talk.ask(&json!({ "links": ours }))?;
        ensure!(ready["ready"].as_bool() == Some(true), "the server said {ready} instead of `ready`");
        self.alternate(device, carried, what, &mut talk, &clients)
    }

    fn alternate<D: Device>(
        &self,
        device: &D,
        carried: Carried,
        what: &(Kind, Plan),
        talk: &mut Talk,
        clients: &[ClientThread<'_>],
    ) -> anyhow::Result<Figures> {
        let (kind, plan) = (what.0, &what.1);
        let slice = self.duration / SLICES;
        let cpus = match (self.client_cpus.first(), plan.cpus.first()) {
            (Some(Some(client)), Some(Some(server))) => Some([*client, *server]),
            _ => None,
        };
        let meter = Meter::new(plan, kind, carried, cpus);
        let rpc_kind = if kind == Kind::Bandwidth { RpcKind::Bandwidth } else { RpcKind::Latency };
        let yardstick = || Reading::take(rpc_kind, Fabric::Shm, cpus, self.references, YARDSTICK.min(slice));
        let limit_slice = (slice / 2).min(LIMIT_SLICE_MAX);
        let mut sum = Sum { made: vec![0; plan.links().len()], received: 0, wrong: 0, lost: 0, checked: 0 };
        let before = yardstick()?;
        meter.measure(limit_slice.min(WARM_UP))?;
        self.slice(what, talk, clients, WARM_UP.min(slice), &mut sum)?;
        let (mut ours, mut limits, mut latency) = (Vec::new(), Vec::new(), histogram());
        for _ in 0..SLICES {
            limits.push(meter.measure(limit_slice)?);
            let (figure, times) = self.slice(what, talk, clients, slice, &mut sum)?;
            ours.push(figure);
            latency.add(times)?;
        }
        let after = yardstick()?;
        Ok(Figures {
            plan: plan.clone(),
            kind,
            fabric: carried.name(),
            device: device.attributes().name.clone(),
            seconds: self.duration.as_secs_f64(),
            client_cpus: self.client_cpus[..plan.sides().0.min(self.client_cpus.len())].to_vec(),
            ours,
            limits,
            limit_what: meter.what(),
            latency,
            checked: sum.checked,
            lost: sum.lost,
            yardstick: [before, after],
            others: Others::default(),
        })
    }

    /// One slice on all client threads, and the server's verdict on it. The mean figure of the threads, and the latencies.
    fn slice(
        &self,
        what: &(Kind, Plan),
        talk: &mut Talk,
        clients: &[ClientThread<'_>],
        duration: Duration,
        sum: &mut Sum,
    ) -> anyhow::Result<(f64, hdrhistogram::Histogram<u64>)> {
        let (kind, plan) = (what.0, &what.1);
        talk.ask(&json!({ "go": true }))?;
        clients.iter().for_each(|client| client.order(Order::Slice(duration)));
        let (mut latency, mut rates, mut medians, mut done) = (histogram(), Vec::new(), Vec::new(), 0);
        for client in clients {
            let Answer::Slice(slice, made) = client.answer(duration)? else { bail!("a client thread is confused") };
            for (link, made) in client.links.iter().zip(made) {
                sum.made[*link] = made;
            }
            sum.wrong += slice.wrong;
            done += slice.done;
            rates.push(slice.done as f64 * 1e3 / slice.elapsed_ns.max(1) as f64);
            medians.push(slice.latency.value_at_quantile(0.5) as f64);
            if is_halved(kind, plan) {
                for value in slice.latency.iter_recorded() {
                    latency.saturating_record_n((value.value_iterated_to() / 2).max(1), value.count_at_value());
                }
            } else {
                latency.add(&slice.latency)?;
            }
        }
        let found = talk.ask(&json!({ "check": sum.made }))?;
        let count = |key: &str| found[key].as_u64().with_context(|| format!("the server's verdict has no `{key}`"));
        let made: u64 = sum.made.iter().sum();
        let (received, wrong) = (count("received")?, count("wrong")? + sum.wrong);
        let unseen =
            if plan.takes_receives() || matches!(plan.work, Work::Echo(_)) { made.saturating_sub(received) } else { 0 };
        // Of WRITEs, the last of each place can be looked at. One with immediate is missed twice.
        let (lost, looked) = (unseen.max(count("lost")?), count("looked")?);
        ensure!(looked <= made, "the server looked at {looked} messages in memory, of {made} that were written");
        ensure!(received <= made, "the server received {received} messages, of {made} that were sent");
        let unreliable = plan.carrier != Carrier::Rc;
        ensure!(
            wrong == 0,
            "{wrong} of {made} requests did not leave, or bring, what they must: the fabric corrupts data"
        );
        ensure!(lost == 0 || unreliable, "{lost} of {made} messages were lost on a reliable transport");
        let (lost_now, rate) = (lost.saturating_sub(sum.lost), rates.iter().sum::<f64>() / rates.len().max(1) as f64);
        let arrived = if plan.knows_arrivals() { 1.0 - lost_now as f64 / done.max(1) as f64 } else { 1.0 };
        (sum.received, sum.lost) = (received, lost);
        sum.checked = match plan.work {
            Work::Load(Op::Write | Op::WriteImm) => looked,
            _ => sum.checked + done.saturating_sub(lost_now),
        };
        let figure = if super::result::is_time(kind, plan) {
            let median = medians.iter().sum::<f64>() / medians.len().max(1) as f64;
            if is_halved(kind, plan) { median / 2.0 } else { median }
        } else {
            rate * arrived.max(0.0)
        };
        Ok((figure, latency))
    }
}
