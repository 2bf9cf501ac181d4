//! HERD's workers as actors.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_herd::{Service, Worker, WorkerConfig};
use sinew_sim::{Actor, Doing, SimClock, SimVerbs};

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
    in_vain: usize,
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
        worker.hear_news();
        let all = worker.clients().max(1);
        let clients = if config.batch == 1 { 1 } else { all };
        Self { worker, clock, look_ns, clients, in_vain: 0, serving: Rc::clone(serving) }
    }
}

impl<S: Service> Actor for Working<S> {
    fn turn(&mut self) -> Doing {
        self.clock.spend_ns(self.look_ns * self.clients as u64);
        let answered = self.worker.turn_over(self.clients, self.clock.now_ns()) as u64;
        if answered > 0 {
            self.serving.answered.set(self.serving.answered.get() + answered);
            self.serving.batches.set(self.serving.batches.get() + 1);
            self.in_vain = 0;
            return Doing::Work;
        }
        self.in_vain += self.clients;
        if self.worker.is_pending() || self.in_vain < self.worker.clients() {
            return Doing::Work;
        }
        Doing::IdleUntil(self.clock.now_ns() + POLL_NS)
    }
}
