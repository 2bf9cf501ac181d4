//! An actor that polls completion queues by a policy, and handles completions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::verbs::{Completion, CompletionQueue, SharedQueues};
use sinew_fabric::{Clock, PollPolicy, Poller, PollerStats, Step};
use sinew_sim::nic::Core;
use sinew_sim::{Actor, ActorState, SimClock, SimCq};

/// Time of a turn of the loop in a kernel, beside the look itself: an estimate for a lock that keeps interrupts out, an
/// indirect call, and the loop.
pub const TURN_NS: u64 = 40;

/// A core that an application's thread and a watcher share.
#[derive(Debug, Default)]
pub struct SharedCore {
    /// Time until which the application computes. A watcher that never sleeps gives way to it: a thread that has slept
    /// goes before one that has not.
    pub computes_until_ns: Cell<u64>,
    /// Time that interrupts and their handling took from the application, for which it has not made up yet.
    pub taken_ns: Cell<u64>,
}

/// Parts that a watcher is made of.
pub struct Parts {
    /// The polling policy.
    pub config: PollPolicy,
    /// The completion queues that it polls.
    pub cqs: SharedQueues<SimCq>,
    /// The clock.
    pub clock: SimClock,
    /// Costs of its core.
    pub core: Core,
    /// Time to handle a completion.
    pub handle_ns: u64,
    /// Its core, if an application computes on it, too.
    pub shared: Option<Rc<SharedCore>>,
    /// Called with the request's number of each completion.
    pub on_completion: Box<dyn FnMut(u64)>,
}

/// Actor that polls completion queues.
pub struct Watcher {
    parts: Parts,
    poller: Poller,
    completions: Vec<Completion>,
    /// Time since which it sleeps, if it does.
    asleep_ns: Option<u64>,
    stats: Rc<RefCell<PollerStats>>,
}

impl Watcher {
    /// A watcher by a policy, and the statistics that it keeps.
    pub fn new(parts: Parts) -> (Self, Rc<RefCell<PollerStats>>) {
        let stats = Rc::new(RefCell::new(PollerStats::default()));
        let poller = Poller::new(parts.config);
        (Self { parts, poller, completions: Vec::new(), asleep_ns: None, stats: Rc::clone(&stats) }, stats)
    }

    fn is_scheduled(&self) -> bool {
        self.parts.config != PollPolicy::Busy
    }
}

impl Actor for Watcher {
    fn turn(&mut self) -> ActorState {
        let Parts { config, cqs, clock, core, handle_ns, shared, on_completion } = &mut self.parts;
        let begun_ns = clock.now_ns();
        let asleep_ns = self.asleep_ns.take();
        if let Some(asleep_ns) = asleep_ns {
            // Completions that were left in the queue interrupt as soon as an interrupt is requested.
            clock.spend_ns(core.interrupt_ns.saturating_sub(begun_ns - asleep_ns));
            self.poller.woken(clock.now_ns());
        } else if let Some(shared) = shared
            && *config == PollPolicy::Busy
            && shared.computes_until_ns.get() > begun_ns
        {
            return ActorState::IdleUntil(shared.computes_until_ns.get());
        }
        let found = cqs.poll(&mut self.completions, config.batch().min(64));
        clock.spend_ns(TURN_NS);
        for completion in self.completions.drain(..) {
            assert!(completion.status.is_success(), "a request failed: {}", completion.status);
            clock.spend_ns(*handle_ns);
            on_completion(completion.id);
        }
        let step = self.poller.step(clock.now_ns(), found > 0);
        if step == Step::Block {
            clock.spend_ns(core.doorbell_ns);
            self.asleep_ns = Some(clock.now_ns());
        }
        if let Some(shared) = shared
            && shared.computes_until_ns.get() > begun_ns
        {
            // An interrupt came before the turn, or in it.
            let interrupt_ns = asleep_ns.map_or(0, |asleep_ns| core.interrupt_ns.min(begun_ns - asleep_ns));
            let took_ns = clock.now_ns() - begun_ns + interrupt_ns;
            shared.taken_ns.set(shared.taken_ns.get() + took_ns);
        }
        *self.stats.borrow_mut() = self.poller.stats();
        match step {
            Step::Block => ActorState::Asleep,
            Step::Spin if found > 0 || self.is_scheduled() => ActorState::Work,
            Step::Spin => ActorState::Idle,
        }
    }
}
