//! Client hosts, a host with servers, and the load that the paper puts beside them.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_fabric::verbs::{
    Access, Device, Exposed, ProtectionDomain, QpAddress, QpConfig, QueuePair, ThreadDomain, Transport,
};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, Competitor, CoreShare, SimClock, SimCq, SimDomain, SimQp, SimThread, SimVerbs};

use super::bulk::{BULK, Bulk, Transfer};
use super::client::{self, Client, Link, Tally};
use super::server::{self, ConnectedClient, SLOT, Server};
use super::ways::{AccessMethod, NamedMethod, Notice};
use crate::nics::cluster::NicCluster;

/// An experiment to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Way to fetch objects.
    pub kind: NamedMethod,
    /// Bytes of an object.
    pub len: usize,
    /// Client processes, each on a host of its own.
    pub clients: usize,
    /// Server processes, each on a core of its own of one host.
    pub servers: usize,
    /// Gets in flight of each client at each server.
    pub window: usize,
    /// Whether a program that computes competes for every core.
    pub competes: bool,
    /// Client hosts that also make transfers of 4 MB, one after the other.
    pub bulk: usize,
    /// Seed for the time at which each process begins.
    pub seed: u64,
    /// Time before the measurement.
    pub warm_up_ns: u64,
    /// Time that is measured.
    pub measured_ns: u64,
}

impl Plan {
    /// One get at a time between two hosts (4.1, Latency).
    pub fn latency(kind: NamedMethod, len: usize) -> Self {
        Self {
            kind,
            len,
            clients: 1,
            servers: 1,
            window: 1,
            competes: false,
            bulk: 0,
            seed: 1,
            warm_up_ns: 50_000,
            measured_ns: 400_000,
        }
    }

    /// Sixteen clients of eight server processes (4.1, Throughput). `window` is the window of each connection.
    pub fn throughput(kind: NamedMethod, len: usize, window: usize) -> Self {
        Self {
            clients: 16,
            servers: 8,
            window,
            warm_up_ns: 2_000_000,
            measured_ns: 2_000_000,
            ..Self::latency(kind, len)
        }
    }

    /// The same beside a program that competes for every core, measured for `slices` of its time slices.
    #[must_use]
    pub fn competing(self, slices: u64, profile: &Profile) -> Self {
        let slice_ns = profile.core.time_slice_ns;
        Self { competes: true, warm_up_ns: 2 * slice_ns, measured_ns: slices * slice_ns, ..self }
    }
}

/// Results of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunResult {
    /// Objects per second, in millions.
    pub mops: f64,
    /// Mean time of a get.
    pub mean_ns: f64,
    /// 90th percentile of the times.
    pub p90_ns: u64,
    /// Share of the time that the link from the servers' host was busy, from 0 to 1.
    pub link: f64,
    /// Rate of the bulk transfers, in Gb/s.
    pub bulk_gbps: f64,
}

/// The paper's cluster, with the longest frames that it allows.
pub fn profile() -> Profile {
    let mut profile = Profile::built_in("cx3-roce10").expect("it is built in");
    profile.link.mtu = 4096;
    profile
}

/// A queue pair that is not connected yet.
fn pair(thread: &SimThread, config: QpConfig, cq: &SimCq) -> SimQp {
    thread.queue_pair(&config, cq, cq).expect("a queue pair")
}

/// A queue pair for datagrams in both directions, and its address.
fn datagrams(thread: &SimThread, depth: usize, cq: &SimCq) -> (SimQp, QpAddress) {
    let config = QpConfig { send_depth: depth, receive_depth: depth, inline_max: 256, ..QpConfig::new(Transport::Ud) };
    let mut qp = pair(thread, config, cq);
    qp.connect(None).expect("datagrams have no peer");
    let address = qp.address();
    (qp, address)
}

/// Places of a queue pair beyond its window, for datagrams that may not have left.
const SLACK: usize = 64;

struct Run<'a> {
    plan: &'a Plan,
    profile: &'a Profile,
    nics: NicCluster,
    clock: SimClock,
    generator: SeededGenerator,
    kept_alive: Vec<Box<dyn Any>>,
}

impl Run<'_> {
    /// Time at which a process begins: any point of the competing program's slices, if there is one.
    fn begins_ns(&mut self) -> u64 {
        if self.plan.competes { self.generator.below(2 * self.profile.core.time_slice_ns) } else { 0 }
    }

    fn add(&mut self, device: &SimVerbs, actor: impl Actor + 'static) {
        let core = self.profile.core;
        let share = CoreShare {
            interrupt_ns: core.interrupt_ns,
            competitor: self.plan.competes.then(|| Competitor::with_slice_ns(core.time_slice_ns)),
        };
        let actor = self.nics.add(device, actor);
        self.nics.cluster.share_core(actor, share);
    }

    /// Adds transfers of 4 MB, one after the other, between a client's host and the servers'.
    fn add_bulk(&mut self, host: usize, moved: &Rc<RefCell<u64>>) {
        // Transfers go in the objects' direction: READs compete with READs, and answers with WRITEs from the servers'
        // host.
        let reads = matches!(self.plan.kind.method, AccessMethod::Read { .. });
        let (near, far) = if reads { (host, 0) } else { (0, host) };
        let ends = [near, far].map(|host| {
            let device = self.nics.open(host);
            let domain = device.protection_domain().expect("a domain");
            let thread = domain.thread().expect("queues");
            let cq = thread.completion_queue(8).expect("a queue");
            let config = QpConfig { send_depth: 2, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
            let qp = pair(&thread, config, &cq);
            (device, domain, cq, qp)
        });
        let [(device, domain, cq, mut qp), (far_device, far_domain, far_cq, mut far_qp)] = ends;
        qp.connect(Some(&far_qp.address())).expect("a connection");
        far_qp.connect(Some(&qp.address())).expect("a connection");
        let memory = far_domain.expose(BULK, Access::ALL).expect("memory");
        let remote = memory.remote();
        let arena = domain.arena(BULK + (1 << 21)).expect("an arena");
        let buffer = arena.alloc(BULK, BULK).expect("room");
        self.kept_alive.push(Box::new((far_device, far_domain, far_cq, far_qp, memory)));
        let transfer = if reads { Transfer::Read(Some(buffer)) } else { Transfer::Write(buffer.freeze()) };
        let bulk = Bulk::new(qp, cq, remote, transfer, Rc::clone(moved));
        let actor = self.nics.add(&device, bulk);
        let interrupt_ns = self.profile.core.interrupt_ns;
        self.nics.cluster.share_core(actor, CoreShare { interrupt_ns, competitor: None });
    }
}

/// A client's end, before its servers know it.
struct Near {
    device: SimVerbs,
    domain: SimDomain,
    thread: SimThread,
    cq: SimCq,
    datagrams: Option<(SimQp, QpAddress)>,
    links: Vec<Link>,
}

/// Runs a plan on hosts with NICs of a profile.
pub fn run(profile: &Profile, plan: &Plan) -> RunResult {
    let nics = NicCluster::new(profile, 1 + plan.clients, plan.seed);
    let clock = nics.clock();
    let generator = SeededGenerator::new(plan.seed);
    let mut run = Run { plan, profile, nics, clock, generator, kept_alive: Vec::new() };
    let reads = matches!(plan.kind.method, AccessMethod::Read { .. });
    let requests_in_flight = plan.window * plan.servers;
    let connected = QpConfig {
        send_depth: plan.window + SLACK,
        receive_depth: 1,
        inline_max: 256,
        ..QpConfig::new(if reads { Transport::Rc } else { Transport::Uc })
    };
    let mut clients: Vec<Near> = (0..plan.clients)
        .map(|client| {
            let device = run.nics.open(1 + client);
            let domain = device.protection_domain().expect("a domain");
            let thread = domain.thread().expect("queues");
            let depth = plan.servers * (plan.window + SLACK + 1) + 2 * (requests_in_flight + SLACK);
            let cq = thread.completion_queue(depth).expect("a queue");
            let datagrams = (!reads).then(|| datagrams(&thread, requests_in_flight + SLACK, &cq));
            Near { device, domain, thread, cq, datagrams, links: Vec::new() }
        })
        .collect();
    for _ in 0..plan.servers {
        serve(&mut run, &mut clients, connected);
    }
    let tally = Rc::new(RefCell::new(Tally::new(plan.warm_up_ns)));
    for near in clients {
        let Near { device, domain, thread, cq, datagrams, links } = near;
        let arena = domain.arena(requests_in_flight * (plan.len.max(64) + 512) * 2 + (1 << 20)).expect("an arena");
        let len = plan.len.max(8);
        let targets = (0..requests_in_flight).map(|_| arena.alloc(len, len).expect("room")).collect();
        let parts = client::Parts {
            kind: plan.kind,
            len: plan.len,
            window: plan.window,
            links,
            datagrams: datagrams.map(|(qp, _)| qp),
            cq,
            targets,
            clock: run.clock.clone(),
            arm_ns: profile.core.doorbell_ns,
            begins_ns: run.begins_ns(),
            tally: Rc::clone(&tally),
        };
        run.kept_alive.push(Box::new(thread));
        run.add(&device, Client::new(parts));
    }
    let moved = Rc::new(RefCell::new(0));
    (0..plan.bulk).for_each(|client| run.add_bulk(1 + client, &moved));
    let mut nics = run.nics;
    nics.cluster.run_until(plan.warm_up_ns);
    let busy_ns = |nics: &NicCluster, now_ns: u64| nics.nic(0).1.transmit * now_ns as f64;
    let before = (busy_ns(&nics, plan.warm_up_ns), *moved.borrow());
    let end_ns = plan.warm_up_ns + plan.measured_ns;
    nics.cluster.run_until(end_ns);
    let tally = tally.borrow();
    let measured_ns = plan.measured_ns as f64;
    RunResult {
        mops: tally.done as f64 * 1e3 / measured_ns,
        mean_ns: tally.latency.mean(),
        p90_ns: tally.latency.value_at_quantile(0.9),
        link: (busy_ns(&nics, end_ns) - before.0) / measured_ns,
        bulk_gbps: (*moved.borrow() - before.1) as f64 * 8.0 / measured_ns,
    }
}

/// Adds a server process for all clients.
fn serve(run: &mut Run<'_>, clients: &mut [Near], connected: QpConfig) {
    let Plan { kind, len, window, .. } = *run.plan;
    let device = run.nics.open(0);
    let domain = device.protection_domain().expect("a domain");
    let thread = domain.thread().expect("queues");
    let slots = clients.len() * window * SLOT;
    let memory =
        domain.expose(if kind.method == AccessMethod::WriteSend { slots } else { len }, Access::ALL).expect("memory");
    let arena = domain.arena(clients.len() * window * 1024 + (1 << 20)).expect("an arena");
    let requests = clients.len() * window + SLACK;
    let cq = thread.completion_queue(2 * (requests + 256)).expect("a queue");
    // The process learns nothing from the server's ends of the clients' connections.
    let silent = thread.completion_queue(clients.len() * (connected.send_depth + 1)).expect("a queue");
    let mut ours = (!matches!(kind.method, AccessMethod::Read { .. })).then(|| datagrams(&thread, requests + 128, &cq));
    let mut served_clients = Vec::new();
    for (at, client) in clients.iter_mut().enumerate() {
        let first = at * window * SLOT;
        let mut remote = memory.remote();
        if kind.method == AccessMethod::WriteSend {
            remote = remote.at(first as u64).expect("inside");
        }
        let qp = (kind.method != AccessMethod::SendSend).then(|| {
            let mut near = pair(&client.thread, connected, &client.cq);
            let mut far = pair(&thread, connected, &silent);
            near.connect(Some(&far.address())).expect("a connection");
            far.connect(Some(&near.address())).expect("a connection");
            run.kept_alive.push(Box::new(far));
            near
        });
        let to = ours.as_ref().map(|(_, address)| client.thread.destination(address).expect("a way"));
        if let Some((_, address)) = &client.datagrams {
            let to = thread.destination(address).expect("a way");
            served_clients.push(ConnectedClient { to, slots: (first, window) });
        }
        client.links.push(Link::new(qp, remote, to));
    }
    if let Some((qp, _)) = &mut ours
        && kind.method == AccessMethod::SendSend
    {
        for _ in 0..requests {
            qp.post_buffer(0, arena.alloc(64, 64).expect("room")).expect("there is room");
        }
    }
    let mut object = domain.arena(1 << 16).expect("an arena").alloc(len, len).expect("room");
    object.fill(&vec![7; len]).expect("it has room");
    run.kept_alive.push(Box::new((silent, thread)));
    let parts = server::Parts {
        memory,
        clients: served_clients,
        datagrams: ours.map(|(qp, _)| qp),
        cq,
        object: object.freeze(),
        is_inline: len <= run.profile.wqe.inline_max,
        sleeps: kind.notice == Notice::Interrupts,
        clock: run.clock.clone(),
        core: run.profile.core,
        begins_ns: run.begins_ns(),
    };
    run.add(&device, Server::new(parts));
}
