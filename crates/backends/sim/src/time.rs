//! Virtual time.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;

/// The time of a simulation as those see it who take part: when the event that is under way happened, and what the core that
/// works on it has spent since. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Rc<Time>);

#[derive(Debug, Default)]
struct Time {
    now_ns: Cell<u64>,
    spent_ns: Cell<u64>,
    /// Whether a core is at work; else nobody spends anything.
    is_working: Cell<bool>,
}

impl SimClock {
    /// When the event that is under way happened.
    pub(crate) fn event_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    pub(crate) fn advance_to(&self, now_ns: u64) {
        debug_assert!(now_ns >= self.0.now_ns.get(), "time never goes back");
        self.0.now_ns.set(now_ns);
    }

    /// Lets the core that is at work spend time. Outside an actor's turn nothing happens.
    #[inline]
    pub fn spend_ns(&self, ns: u64) {
        if self.0.is_working.get() {
            self.0.spent_ns.set(self.0.spent_ns.get() + ns);
        }
    }

    /// A core works; returns what it spent meanwhile, beside what it did.
    pub(crate) fn work<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        self.0.is_working.set(true);
        let done = work();
        self.0.is_working.set(false);
        (done, self.0.spent_ns.replace(0))
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns.get() + self.0.spent_ns.get()
    }
}
