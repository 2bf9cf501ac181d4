//! Transfers of 4 MB, one after the other (apnet19 4.3).

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::verbs::{Completion, CompletionQueue, Operation, QueuePair, RemoteMemory, Request, Source};
use sinew_mem::{Frozen, MessageBuffer};
use sinew_sim::{Actor, ActorState, SimCq, SimQp};

/// Bytes of a transfer.
pub const BULK: usize = 4 << 20;

/// Direction of a transfer.
pub enum Transfer {
    /// By READ into this buffer, which is none while a READ has it.
    Read(Option<MessageBuffer>),
    /// By WRITE from this buffer.
    Write(Frozen),
}

/// A process that makes transfers.
pub struct Bulk {
    qp: SimQp,
    cq: SimCq,
    remote: RemoteMemory,
    transfer: Transfer,
    completions: Vec<Completion>,
    is_moving: bool,
    /// Bytes moved by all such processes.
    moved: Rc<RefCell<u64>>,
}

impl Bulk {
    /// A process that has moved nothing yet.
    pub fn new(qp: SimQp, cq: SimCq, remote: RemoteMemory, transfer: Transfer, moved: Rc<RefCell<u64>>) -> Self {
        Self { qp, cq, remote, transfer, completions: Vec::new(), is_moving: false, moved }
    }
}

impl Actor for Bulk {
    fn turn(&mut self) -> ActorState {
        self.cq.poll(&mut self.completions, 1);
        for mut completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "a transfer failed: {}", completion.status);
            *self.moved.borrow_mut() += BULK as u64;
            self.is_moving = false;
            if let Transfer::Read(target) = &mut self.transfer {
                *target = completion.buffers.pop();
            }
        }
        if self.is_moving {
            return ActorState::Asleep;
        }
        let remote = self.remote;
        let operation = match &mut self.transfer {
            Transfer::Read(target) => Operation::Read { target: target.take().into_iter().collect(), remote },
            Transfer::Write(source) => {
                Operation::Write { source: Source::from(source.clone()), remote, immediate: None }
            }
        };
        self.qp.post(Request::new(0, operation)).expect("there is room");
        self.is_moving = true;
        ActorState::Work
    }
}
