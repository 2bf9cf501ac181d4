//! Windows of requests, each awaited before the next is issued (atc16 5.3.2).

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair,
    RemoteMemory, Request, Source, ThreadDomain, Transport,
};
use sinew_mem::MessageBuffer;
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimCq, SimQp};

use super::cluster::{Lender, NicCluster};

/// Rates of a run, in millions per second.
#[derive(Clone, Copy, Debug)]
pub struct WindowResult {
    /// Requests.
    pub rate_mops: f64,
    /// Work queue elements that the NIC fetched again.
    pub misses_mops: f64,
}

const POSTS_PER_TURN: usize = 4;

struct Client {
    qp: SimQp,
    cq: SimCq,
    targets: Vec<MessageBuffer>,
    completions: Vec<Completion>,
    remote: RemoteMemory,
    reads: bool,
    window: usize,
    /// Requests of the current window that are not complete, and those that are not posted yet.
    left: usize,
    to_post: usize,
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        let mut did = self.cq.poll(&mut self.completions, 64);
        for mut completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "a request failed: {}", completion.status);
            self.left -= 1;
            self.targets.extend(completion.buffers.pop());
        }
        if self.left == 0 {
            (self.left, self.to_post) = (self.window, self.window);
        }
        // Only a few are posted in a turn: a longer turn would run ahead of the other actors.
        let now = self.to_post.min(POSTS_PER_TURN);
        if now > 0 {
            for _ in 0..now {
                let remote = self.remote;
                let operation = if self.reads {
                    let target = self.targets.pop().expect("as many as the window");
                    Operation::read(target, remote)
                } else {
                    Operation::Write { source: Source::Inline(&[0; 8]), remote, immediate: None }
                };
                self.qp.post(Request::new(0, operation)).expect("there is room");
            }
            self.to_post -= now;
            did += 1;
        }
        if did > 0 { ActorState::Work } else { ActorState::Idle }
    }
}

/// Runs windows of 8-byte READs or WRITEs over RC from all cores of a host, each core to a host of its own.
pub fn run(profile: &Profile, reads: bool, window: usize) -> WindowResult {
    const WARM_UP_NS: u64 = 100_000;
    const MEASURED_NS: u64 = 300_000;
    let threads = profile.core.count;
    let mut nics = NicCluster::new(profile, 1 + threads, 1);
    let mut served = Vec::new();
    for thread in 0..threads {
        let (near, far) = (nics.open(0), nics.open(1 + thread));
        let ends = [&near, &far].map(|device| {
            let domain = device.protection_domain().expect("a domain");
            let queues = domain.thread().expect("queues");
            let config = QpConfig { send_depth: window, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
            let cq = queues.completion_queue(window + 1).expect("a queue");
            let qp = queues.queue_pair(&config, &cq, &cq).expect("a queue pair");
            (domain, cq, qp)
        });
        let [(domain, cq, mut qp), (of_far, their_cq, mut theirs)] = ends;
        qp.connect(Some(&theirs.address())).expect("a connection");
        theirs.connect(Some(&qp.address())).expect("a connection");
        let memory = of_far.expose(64, Access::ALL).expect("memory");
        let arena = domain.arena(window * 1024 + (1 << 16)).expect("an arena");
        let targets = (0..window).map(|_| arena.alloc(8, 8).expect("room")).collect();
        let remote = memory.remote().at(0).map(|remote| RemoteMemory { len: 8, ..remote }).expect("inside");
        served.push((memory, theirs, their_cq));
        nics.add(
            &near,
            Client { qp, cq, targets, completions: Vec::new(), remote, reads, window, left: 0, to_post: 0 },
        );
        nics.add(&far, Lender);
    }
    nics.cluster.run_until(WARM_UP_NS);
    let before = nics.nic(0).0;
    nics.cluster.run_until(WARM_UP_NS + MEASURED_NS);
    let did = nics.nic(0).0.since(&before);
    drop(served);
    let mops = |count: u64| count as f64 * 1e3 / MEASURED_NS as f64;
    WindowResult { rate_mops: mops(did.requests), misses_mops: mops(did.wqe_misses) }
}
