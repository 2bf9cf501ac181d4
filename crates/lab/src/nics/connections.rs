//! READs on randomly chosen connections (nsdi19 4.1.2).

use sinew_fabric::SeededGenerator;
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair,
    RemoteMemory, Request, ThreadDomain, Transport,
};
use sinew_mem::MessageBuffer;
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimCq, SimQp};

use super::cluster::{Lender, NicCluster};

/// READs in flight of each thread.
const WINDOW: usize = 32;
/// Most READs in flight on a connection; chance hardly ever puts more on one.
const DEPTH: usize = 8;
/// Hosts that are read from.
const ASKED: usize = 4;

struct Client {
    /// Connections, each with the memory that it reads and its READs in flight.
    connections: Vec<(SimQp, RemoteMemory, usize)>,
    cq: SimCq,
    targets: Vec<MessageBuffer>,
    completions: Vec<Completion>,
    generator: SeededGenerator,
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        let mut did = self.cq.poll(&mut self.completions, WINDOW);
        for mut completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "a READ failed: {}", completion.status);
            self.connections[completion.id as usize].2 -= 1;
            self.targets.extend(completion.buffers.pop());
        }
        // Only one is posted in a turn: a longer turn would run ahead of the other actors.
        if let Some(target) = self.targets.pop() {
            did += 1;
            let index = self.generator.below(self.connections.len() as u64) as usize;
            let (qp, remote, reads) = &mut self.connections[index];
            if *reads < DEPTH {
                *reads += 1;
                let operation = Operation::read(target, *remote);
                qp.post(Request::new(index as u64, operation)).expect("there is room");
            } else {
                self.targets.push(target);
            }
        }
        if did > 0 { ActorState::Work } else { ActorState::Idle }
    }
}

/// READs of 16 bytes per second, in millions, that the threads of one host make on `connections` connections to others.
pub fn read_mops(profile: &Profile, connections: usize) -> f64 {
    const WARM_UP_NS: u64 = 100_000;
    const MEASURED_NS: u64 = 200_000;
    let threads = profile.core.count.min(connections);
    let mut nics = NicCluster::new(profile, 1 + ASKED, 1);
    let mut lenders = Vec::new();
    for host in 0..ASKED {
        let device = nics.open(1 + host);
        let domain = device.protection_domain().expect("a domain");
        let memory = domain.expose(4096, Access::READ).expect("memory");
        let queues = domain.thread().expect("queues");
        nics.add(&device, Lender);
        lenders.push((memory, queues, Vec::new()));
    }
    let config = QpConfig { send_depth: DEPTH, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
    for thread in 0..threads {
        let device = nics.open(0);
        let domain = device.protection_domain().expect("a domain");
        let queues = domain.thread().expect("queues");
        let count = connections / threads + usize::from(thread < connections % threads);
        let cq = queues.completion_queue(count * (DEPTH + 1)).expect("a queue");
        let arena = domain.arena(1 << 18).expect("an arena");
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let mut qp = queues.queue_pair(&config, &cq, &cq).expect("a queue pair");
            let (memory, lender, served) = &mut lenders[(thread + index) % ASKED];
            let their_cq = lender.completion_queue(DEPTH + 1).expect("a queue");
            let mut theirs = lender.queue_pair(&config, &their_cq, &their_cq).expect("a queue pair");
            qp.connect(Some(&theirs.address())).expect("a connection");
            theirs.connect(Some(&qp.address())).expect("a connection");
            served.push((theirs, their_cq));
            let remote = RemoteMemory { len: 16, ..memory.remote() };
            connections.push((qp, remote, 0));
        }
        let targets = (0..WINDOW).map(|_| arena.alloc(16, 16).expect("room")).collect();
        let generator = SeededGenerator::new(thread as u64 + 1);
        nics.add(&device, Client { connections, cq, targets, completions: Vec::new(), generator });
    }
    nics.cluster.run_until(WARM_UP_NS);
    let before = nics.nic(0).0.requests;
    nics.cluster.run_until(WARM_UP_NS + MEASURED_NS);
    (nics.nic(0).0.requests - before) as f64 * 1e3 / MEASURED_NS as f64
}
