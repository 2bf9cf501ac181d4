//! Atomics on randomly chosen counters (atc16 5.4).

use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair,
    RemoteMemory, Request, ThreadDomain, Transport,
};
use sinew_mem::MessageBuffer;
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimCq, SimQp};

use super::cluster::{Lender, NicCluster};

/// Requests in flight of each client.
const WINDOW: usize = 8;

struct Client {
    qp: SimQp,
    cq: SimCq,
    targets: Vec<MessageBuffer>,
    completions: Vec<Completion>,
    counters: RemoteMemory,
    count: u64,
    generator: SeededGenerator,
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        self.cq.poll(&mut self.completions, WINDOW);
        for mut completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "an atomic failed: {}", completion.status);
            self.targets.extend(completion.buffers.pop());
        }
        let mut is_busy = false;
        while let Some(target) = self.targets.pop() {
            let counter = self.generator.below(self.count);
            let remote = self.counters.at(8 * counter).expect("inside the array");
            self.qp.post(Request::new(0, Operation::FetchAdd { target, remote, add: 1 })).expect("there is room");
            is_busy = true;
        }
        if is_busy { ActorState::Work } else { ActorState::Idle }
    }
}

/// Atomics per second, in millions, that clients on eight hosts make on `counters` counters of one host.
pub fn rate_mops(profile: &Profile, counters: u64, clients: usize, measured_ns: u64) -> f64 {
    const HOSTS: usize = 8;
    const WARM_UP_NS: u64 = 50_000;
    let mut nics = NicCluster::new(profile, 1 + HOSTS, 1);
    let server = nics.open(0);
    let domain = server.protection_domain().expect("a domain");
    let memory = Rc::new(domain.expose(8 * counters as usize, Access::ALL).expect("memory"));
    let thread = domain.thread().expect("queues");
    let mut served = Vec::new();
    for client in 0..clients {
        let device = nics.open(1 + client % HOSTS);
        let ours = device.protection_domain().expect("a domain");
        let arena = ours.arena(1 << 16).expect("an arena");
        let queues = ours.thread().expect("queues");
        let config = QpConfig { send_depth: WINDOW, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let cq = queues.completion_queue(WINDOW + 1).expect("a queue");
        let mut qp = queues.queue_pair(&config, &cq, &cq).expect("a queue pair");
        let their_cq = thread.completion_queue(WINDOW + 1).expect("a queue");
        let mut theirs = thread.queue_pair(&config, &their_cq, &their_cq).expect("a queue pair");
        qp.connect(Some(&theirs.address())).expect("a connection");
        theirs.connect(Some(&qp.address())).expect("a connection");
        served.push((theirs, their_cq));
        let targets = (0..WINDOW).map(|_| arena.alloc(8, 8).expect("room")).collect();
        let generator = SeededGenerator::new(client as u64 + 1);
        let (completions, counters_at, count) = (Vec::new(), memory.remote(), counters);
        nics.add(&device, Client { qp, cq, targets, completions, counters: counters_at, count, generator });
    }
    nics.add(&server, Lender);
    nics.cluster.run_until(WARM_UP_NS);
    let before = nics.nic(0).0.requests_received;
    nics.cluster.run_until(WARM_UP_NS + measured_ns);
    let done = nics.nic(0).0.requests_received - before;
    drop(served);
    done as f64 * 1e3 / measured_ns as f64
}
