//! A run of a design with its settings, in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_fabric::verbs::{
    Access, Device, Exposed, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, ThreadDomain, Transport,
};
use sinew_mem::Arena;
use sinew_sim::nic::{NicStats, NicUse};
use sinew_sim::{ActorId, Competitor, CoreShare, SimClock, SimDomain, SimExposed, SimQp, SimThread, SimVerbs};

use super::bulk::Bulk;
use super::client::{Client, Queues, RECORD, ServerAddress};
use super::design::Design;
use super::plan::{Plan, Record, Times};
use super::server::{Peer, State, Worker};
use super::workload::{CpuLoad, Goal, WorkloadKind};
use crate::nics::cluster::{Lender, NicCluster};

/// Results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Completed accesses per second, in millions.
    pub rate_mops: f64,
    /// Accesses that completed during the measurement.
    pub done: u64,
    /// Times of the accesses; `None` if none was timed.
    pub times: Option<Times>,
    /// CPU time per access of the clients' cores and of the server's, in ns, not counting polls that found nothing.
    pub cpu_ns: (f64, f64),
    /// Share of the time that the clients' cores and the server's were busy with that work, from 0 to 1.
    pub cores: (f64, f64),
    /// The NICs of the first client's host and of the server, during the measurement.
    pub nics: [(NicStats, NicUse); 2],
    /// Length of the measurement.
    pub measured_ns: u64,
    /// Whether time slices were shorter than the profile's, so that a short run could tell a rate; latencies say little
    /// then.
    pub has_short_slices: bool,
}

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Time before the measurement.
    pub warm_up_ns: u64,
    /// Time that is measured.
    pub measured_ns: u64,
}

/// Client threads of a host. With more, the host's NIC would have more connections than it has in such workloads.
const PER_HOST: usize = 8;
/// Bytes in which READs choose their places, not counting one object.
const DATA: usize = 1 << 20;
/// Time slice in a run whose rate alone counts, in ns.
pub const SHORT_SLICE_NS: u64 = 50_000;

/// The server's side of one thread.
struct Host {
    device: SimVerbs,
    domain: SimDomain,
    queues: SimThread,
    worker: Worker,
    data: Option<SimExposed>,
}

struct Builder<'a> {
    plan: &'a Rc<Plan>,
    nics: NicCluster,
    clock: SimClock,
}

fn arena(domain: &SimDomain, bytes: usize) -> Arena {
    domain.arena(bytes + (1 << 16)).expect("memory")
}

/// Bytes of an arena for `count` buffers of `len` bytes.
fn buffers_len(count: usize, len: usize) -> usize {
    count * Arena::block_len(len.max(8), len.max(8)).next_power_of_two()
}

impl Builder<'_> {
    /// Bytes of the memory that READs and atomics access.
    fn data_len(&self) -> usize {
        let Plan { workload, reads, .. } = &**self.plan;
        match workload.kind {
            WorkloadKind::Locks => DATA.max((workload.locks + 1) * RECORD as usize),
            _ => DATA + reads.iter().max().unwrap_or(&0),
        }
    }

    fn slot_len(&self) -> usize {
        self.plan.request(true).len.max(self.plan.request(false).len).max(8).next_multiple_of(64)
    }

    fn is_served(&self) -> bool {
        self.plan.design.is_served(&self.plan.workload)
    }

    fn host(&mut self, number: usize, threads: usize) -> Host {
        let Plan { settings, workload, .. } = &**self.plan;
        let clients = self.plan.clients();
        let own = (clients + threads - 1 - number) / threads;
        let device = self.nics.open(0);
        let domain = device.protection_domain().expect("a domain");
        let queues = domain.thread().expect("queues");
        let answers = self.plan.answers_max() + settings.batch + settings.signal;
        let pairs = if self.is_served() { settings.queue_pairs } else { 0 };
        let receives = if self.plan.is_written() { 0 } else { own.div_ceil(pairs.max(1)) * settings.window };
        let answers_per_connection = if self.plan.answers_by_datagram() { 1 } else { answers };
        let cq = queues.completion_queue(pairs * (receives + 1) + own + 16).expect("a completion queue");
        let sent_cq =
            queues.completion_queue(pairs * answers + own * answers_per_connection + 16).expect("a completion queue");
        let config = QpConfig {
            send_depth: answers,
            receive_depth: receives + 1,
            inline_max: self.plan.profile.wqe.inline_max,
            ..QpConfig::new(Transport::Ud)
        };
        let request = self.plan.request(true).len.max(self.plan.request(false).len);
        let answer = self.plan.answer(false).len;
        let arena = arena(&domain, buffers_len(pairs * receives, request) + buffers_len(2, answer));
        let mut datagrams = Vec::new();
        for _ in 0..pairs {
            let mut qp = queues.queue_pair(&config, &sent_cq, &cq).expect("a queue pair");
            qp.connect(None).expect("it is ready");
            for _ in 0..receives {
                let buffer = arena.alloc(request.max(8), request.max(8)).expect("the arena has room");
                qp.post_buffer(0, buffer).expect("there is room");
            }
            datagrams.push(qp);
        }
        let mut data = arena.alloc(answer.max(8), answer.max(8)).expect("the arena has room");
        data.resize(answer.max(8)).expect("as long as it was asked for");
        let slots = (self.is_served() && self.plan.is_written())
            .then(|| domain.expose((own * settings.window).max(1) * self.slot_len(), Access::ALL).expect("memory"));
        let exposes_data =
            matches!(self.plan.design, Design::Reads(_) | Design::Atomics(_)) || workload.bulk && number == 0;
        let exposed = exposes_data.then(|| domain.expose(self.data_len(), Access::ALL).expect("memory"));
        let worker = Worker {
            plan: Rc::clone(self.plan),
            clock: self.clock.clone(),
            slots,
            slot_len: self.slot_len(),
            number,
            peers: Vec::new(),
            datagrams,
            cq,
            sent_cq,
            buffer_len: request.max(8),
            data: data.freeze(),
            worked_ns: Rc::default(),
            state: State::default(),
        };
        Host { device, domain, queues, worker, data: exposed }
    }

    fn client(&mut self, number: usize, record: &Rc<Record>, hosts: &mut [Host]) -> ActorId {
        let threads = hosts.len();
        let host = &mut hosts[number % threads];
        let Plan { settings, profile, .. } = &**self.plan;
        let window = settings.window;
        let device = self.nics.open(1 + number / PER_HOST);
        let domain = device.protection_domain().expect("a domain");
        let queues = domain.thread().expect("queues");
        let by_datagram = self.plan.answers_by_datagram();
        let answer = self.plan.answer(false).len.max(8);
        let served = if self.is_served() { window } else { 0 };
        let depth = 2 * window + 2 * settings.signal;
        let cq = queues.completion_queue(2 * (depth + window) + 2).expect("a completion queue");
        let targets: usize = self.plan.reads.iter().map(|len| buffers_len(window, *len)).sum();
        let request = self.plan.request(true).len.max(self.plan.request(false).len);
        let bytes = targets + buffers_len(window, 8) + buffers_len(served, answer) + buffers_len(2 * depth, request);
        let arena = arena(&domain, bytes);
        let config = |transport| QpConfig {
            send_depth: depth,
            receive_depth: window,
            inline_max: profile.wqe.inline_max,
            ..QpConfig::new(transport)
        };
        let mut buffers = (0..served).map(|_| arena.alloc(answer, answer).expect("the arena has room"));
        let transport = if self.plan.design == Design::WriteSend { Transport::Uc } else { Transport::Rc };
        let mut connected = self.plan.design.is_connected().then(|| {
            let mut qp = queues.queue_pair(&config(transport), &cq, &cq).expect("a queue pair");
            let theirs = QpConfig {
                send_depth: if by_datagram { 1 } else { self.plan.answers_max() + settings.batch + settings.signal },
                receive_depth: 1,
                ..config(transport)
            };
            let mut theirs =
                host.queues.queue_pair(&theirs, &host.worker.sent_cq, &host.worker.cq).expect("a queue pair");
            qp.connect(Some(&theirs.address())).expect("a connection");
            theirs.connect(Some(&qp.address())).expect("a connection");
            (qp, theirs)
        });
        let mut datagram = (self.is_served() && (by_datagram || !self.plan.is_written())).then(|| {
            let mut qp = queues.queue_pair(&config(Transport::Ud), &cq, &cq).expect("a queue pair");
            qp.connect(None).expect("it is ready");
            qp
        });
        let receiving = if by_datagram { datagram.as_mut() } else { connected.as_mut().map(|(ours, _)| ours) };
        if let Some(qp) = receiving.filter(|_| served > 0) {
            buffers.by_ref().for_each(|buffer| qp.post_buffer(0, buffer).expect("there is room"));
        }
        drop(buffers);
        let (connected, theirs) = connected.unzip();
        let place = host.worker.peers.len();
        let address = datagram.as_ref().map(SimQp::address);
        host.worker.peers.push(Peer {
            to: address.map(|address| host.queues.destination(&address).expect("it is there")),
            connected: theirs,
            found: 0,
            answered: 0,
        });
        let pairs = &host.worker.datagrams;
        let to = (!self.plan.is_written()).then(|| pairs[place % pairs.len()].address());
        let nothing = RemoteMemory { address: 0, rkey: 0, len: 0 };
        let slots = host.worker.slots.as_ref().map_or(nothing, Exposed::remote);
        let server = ServerAddress {
            data: host.data.as_ref().map_or(nothing, Exposed::remote),
            slots: slots.at((place * window * host.worker.slot_len) as u64).unwrap_or(nothing),
            slot_len: host.worker.slot_len,
            to: to.map(|address| queues.destination(&address).expect("it is there")),
        };
        let queues = Queues { connected, datagram, cq, arena };
        let client = Client::new(self.plan, record, self.clock.clone(), number, queues, server);
        self.nics.add(&device, client)
    }

    /// Adds a client that keeps 4 MB of READs in flight. Returns the server's end of its connection, which has to stay.
    fn bulk(&mut self, host: &Host, at: usize) -> SimQp {
        let device = self.nics.open(at);
        let domain = device.protection_domain().expect("a domain");
        let queues = domain.thread().expect("queues");
        let memory = host.data.as_ref().expect("there is something to READ").remote();
        let config = QpConfig { send_depth: 4, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let cq = queues.completion_queue(8).expect("a completion queue");
        let mut qp = queues.queue_pair(&config, &cq, &cq).expect("a queue pair");
        let mut theirs = host.queues.queue_pair(&config, &host.worker.sent_cq, &host.worker.cq).expect("a queue pair");
        qp.connect(Some(&theirs.address())).expect("a connection");
        theirs.connect(Some(&qp.address())).expect("a connection");
        let arena = arena(&domain, 8 * Bulk::LEN);
        let bulk = Bulk::new(qp, cq, &arena, memory);
        self.nics.add(&device, bulk);
        theirs
    }
}

/// Runs a plan.
pub fn run(plan: &Rc<Plan>, length: Length) -> Outcome {
    let clients = plan.clients();
    let client_hosts = clients.div_ceil(PER_HOST);
    let bulk = usize::from(plan.workload.bulk);
    let nics = NicCluster::new(&plan.profile, 1 + client_hosts + bulk, 1);
    let clock = nics.clock();
    let mut builder = Builder { plan, nics, clock: clock.clone() };
    let is_served = builder.is_served();
    let threads = if is_served { plan.settings.threads.min(clients) } else { 1 };
    let mut hosts: Vec<Host> = (0..threads).map(|number| builder.host(number, threads)).collect();
    let record = Rc::new(Record::default());
    record.from_ns.set(u64::MAX);
    let core = plan.profile.core;
    let is_busy = [plan.workload.client_cpu, plan.workload.server_cpu].contains(&CpuLoad::Busy);
    let slice_ns = match plan.workload.goal {
        Goal::Throughput => SHORT_SLICE_NS.min(core.time_slice_ns),
        Goal::Latency => core.time_slice_ns,
    };
    let share = |load| CoreShare {
        interrupt_ns: core.interrupt_ns,
        competitor: (load == CpuLoad::Busy).then(|| Competitor::with_slice_ns(slice_ns)),
    };
    // Time slices of cores begin at different times, and so do clients, since their accesses would otherwise go there
    // and back in waves.
    let spread_ns = match plan.workload.goal {
        _ if is_busy => 2 * slice_ns,
        Goal::Throughput => length.warm_up_ns,
        Goal::Latency => 0,
    };
    let stagger = |nics: &mut NicCluster, count: usize| {
        let now_ns = clock.now_ns();
        nics.cluster.run_until(now_ns + spread_ns / count as u64);
    };
    let mut client_ids: Vec<ActorId> = Vec::new();
    for number in 0..clients {
        let client = builder.client(number, &record, &mut hosts);
        builder.nics.cluster.share_core(client, share(plan.workload.client_cpu));
        client_ids.push(client);
        stagger(&mut builder.nics, clients);
    }
    let _bulk = (bulk > 0).then(|| builder.bulk(&hosts[0], 1 + client_hosts));
    let Builder { mut nics, .. } = builder;
    let mut worked: Vec<Rc<Cell<u64>>> = Vec::new();
    let mut kept_alive = Vec::new();
    for Host { device, domain, queues, worker, data } in hosts {
        if is_served {
            worked.push(Rc::clone(&worker.worked_ns));
            let id = nics.add(&device, worker);
            nics.cluster.share_core(id, share(plan.workload.server_cpu));
            stagger(&mut nics, threads);
            kept_alive.push((domain, queues, data, None));
        } else {
            nics.add(&device, Lender);
            kept_alive.push((domain, queues, data, Some(worker)));
        }
    }
    let busy_times = |nics: &NicCluster| -> (u64, u64) {
        let clients = client_ids.iter().map(|client| nics.cluster.core_time(*client).worked_ns).sum();
        (clients, worked.iter().map(|worked_ns| worked_ns.get()).sum())
    };
    let from_ns = clock.now_ns() + length.warm_up_ns;
    record.from_ns.set(from_ns);
    nics.cluster.run_until(from_ns);
    let before = (busy_times(&nics), [nics.nic(1), nics.nic(0)]);
    let end_ns = from_ns + length.measured_ns;
    nics.cluster.run_until(end_ns);
    let after = (busy_times(&nics), [nics.nic(1), nics.nic(0)]);
    drop(kept_alive);
    let (done, measured_ns) = (record.done.get(), length.measured_ns);
    let per_access = |worked_ns: u64| worked_ns as f64 / done.max(1) as f64;
    let share = |worked_ns: u64, cores: usize| worked_ns as f64 / (measured_ns as f64 * cores.max(1) as f64);
    let spent = (after.0.0 - before.0.0, after.0.1 - before.0.1);
    Outcome {
        rate_mops: done as f64 * 1e3 / measured_ns as f64,
        done,
        times: record.times(),
        cpu_ns: (per_access(spent.0), per_access(spent.1)),
        cores: (share(spent.0, clients), share(spent.1, worked.len())),
        nics: [0, 1].map(|end| between(before.1[end], after.1[end], from_ns, end_ns)),
        measured_ns,
        has_short_slices: is_busy && slice_ns < core.time_slice_ns,
    }
}

/// Counters of a NIC between two moments, and its use.
fn between(before: (NicStats, NicUse), after: (NicStats, NicUse), from_ns: u64, to_ns: u64) -> (NicStats, NicUse) {
    let part = |of: fn(&NicUse) -> f64| {
        let (before, after) = (of(&before.1) * from_ns as f64, of(&after.1) * to_ns as f64);
        ((after - before) / (to_ns - from_ns) as f64).clamp(0.0, 1.0)
    };
    let usage = NicUse {
        requesters: part(|it| it.requesters),
        responders: part(|it| it.responders),
        pcie_down: part(|it| it.pcie_down),
        pcie_up: part(|it| it.pcie_up),
        transmit: part(|it| it.transmit),
        receive: part(|it| it.receive),
    };
    (after.0.since(&before.0), usage)
}
