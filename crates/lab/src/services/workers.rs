//! HERD's workers as actors.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_herd::{Service, Worker, WorkerConfig};
use sinew_sim::{Actor, ActorState, SimClock, SimVerbs};

/// Least time between two polls of a worker that found nothing in a whole round.
const POLL_NS: u64 = 100;

/// Counts of the workers' work, shared with the experiment.
#[derive(Debug, Default)]
pub struct Serving {
    /// Requests answered.
    pub answered: Cell<u64>,
    /// Turns that answered any requests.
    pub batches: Cell<u64>,
}

/// A worker that polls on a core of its own. It wakes by itself, since a WRITE wakes only one actor, and all workers
/// look at one region.
pub struct Working<S: Service> {
    worker: Worker<SimVerbs, S>,
    clock: SimClock,
    look_ns: u64,
    /// Clients that it looks at in a turn.
    clients: usize,
    /// Clients that it has looked at since it last found a request.
    empty_polls: usize,
    serving: Rc<Serving>,
}

impl<S: Service> Working<S> {
    /// A worker with this configuration. One that answers requests singly looks at one client per turn, so that each
    /// answer leaves when it is due; others look at all.
    pub fn new(
        mut worker: Worker<SimVerbs, S>,
        config: &WorkerConfig,
        clock: SimClock,
        look_ns: u64,
        serving: &Rc<Serving>,
    ) -> Self {
        worker.process_changes();
        let all = worker.clients().max(1);
        let clients = if config.batch == 1 { 1 } else { all };
        Self { worker, clock, look_ns, clients, empty_polls: 0, serving: Rc::clone(serving) }
    }
}

impl<S: Service> Actor for Working<S> {
    fn turn(&mut self) -> ActorState {
        self.clock.spend_ns(self.look_ns * self.clients as u64);
        let answered = self.worker.turn_limited(self.clients, self.clock.now_ns()) as u64;
        if answered > 0 {
            self.serving.answered.set(self.serving.answered.get() + answered);
            self.serving.batches.set(self.serving.batches.get() + 1);
            self.empty_polls = 0;
            return ActorState::Work;
        }
        self.empty_polls += self.clients;
        if self.worker.is_pending() || self.empty_polls < self.worker.clients() {
            return ActorState::Work;
        }
        ActorState::IdleUntil(self.clock.now_ns() + POLL_NS)
    }
}
