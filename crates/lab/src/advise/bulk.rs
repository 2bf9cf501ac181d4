//! A client that keeps 4 MB of READs in flight from the same server (apnet19 4.3).

use sinew_fabric::verbs::{Completion, CompletionQueue, Operation, QueuePair, RemoteMemory, Request};
use sinew_mem::{Arena, MessageBuffer};
use sinew_sim::{Actor, ActorState, SimCq, SimQp};

/// A bulk reader.
pub struct Bulk {
    qp: SimQp,
    cq: SimCq,
    targets: Vec<MessageBuffer>,
    memory: RemoteMemory,
    completions: Vec<Completion>,
}

impl Bulk {
    /// Bytes of each READ.
    pub const LEN: usize = 1 << 20;
    /// READs in flight: 4 MB in all.
    const WINDOW: usize = 4;

    /// A bulk reader over a connection, with buffers of an arena.
    pub fn new(qp: SimQp, cq: SimCq, arena: &Arena, memory: RemoteMemory) -> Self {
        let targets = (0..Self::WINDOW).map(|_| arena.alloc(Self::LEN, 4096).expect("the arena has room")).collect();
        Self { qp, cq, targets, memory, completions: Vec::new() }
    }
}

impl Actor for Bulk {
    fn turn(&mut self) -> ActorState {
        self.cq.poll(&mut self.completions, Self::WINDOW);
        for mut completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "a request failed on a modelled NIC: {}", completion.status);
            self.targets.extend(completion.buffers.pop());
        }
        let mut is_busy = false;
        while let Some(target) = self.targets.pop() {
            let remote = RemoteMemory { len: Self::LEN as u64, ..self.memory };
            self.qp.post(Request::new(0, Operation::read(target, remote))).expect("there is room");
            is_busy = true;
        }
        if is_busy { ActorState::Work } else { ActorState::Idle }
    }
}
