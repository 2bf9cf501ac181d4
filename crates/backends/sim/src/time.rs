//! Virtual time.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;

/// The time of a simulation as those see it who take part: when the event that is under way happened, and what the core that
/// works on it has spent since. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    time: Rc<Time>,
    /// Nanoseconds that it gains in a second, or loses.
    drift_ppb: i64,
}

#[derive(Debug, Default)]
struct Time {
    now_ns: Cell<u64>,
    spent_ns: Cell<u64>,
    /// Whether a core is at work; else nobody spends anything.
    is_working: Cell<bool>,
}

impl SimClock {
    /// A clock of the same simulation that goes wrong by so many parts in a million: hosts' clocks do, by some tens.
    #[must_use]
    pub fn drifting(&self, parts_per_million: i32) -> Self {
        Self { time: Rc::clone(&self.time), drift_ppb: i64::from(parts_per_million) * 1000 }
    }

    /// When the event that is under way happened.
    pub(crate) fn event_ns(&self) -> u64 {
        self.time.now_ns.get()
    }

    pub(crate) fn advance_to(&self, now_ns: u64) {
        debug_assert!(now_ns >= self.time.now_ns.get(), "time never goes back");
        self.time.now_ns.set(now_ns);
    }

    /// Lets the core that is at work spend time. Outside an actor's turn nothing happens.
    #[inline]
    pub fn spend_ns(&self, ns: u64) {
        if self.time.is_working.get() {
            self.time.spent_ns.set(self.time.spent_ns.get() + ns);
        }
    }

    /// A core works; returns what it spent meanwhile, beside what it did.
    pub(crate) fn work<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        self.time.is_working.set(true);
        let done = work();
        self.time.is_working.set(false);
        (done, self.time.spent_ns.replace(0))
    }
}

impl Clock for SimClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        let now_ns = self.time.now_ns.get() + self.time.spent_ns.get();
        if self.drift_ppb == 0 {
            return now_ns;
        }
        let gained = i128::from(now_ns) * i128::from(self.drift_ppb) / 1_000_000_000;
        (i128::from(now_ns) + gained) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_drift_show_the_same_moments_differently() {
        let clock = SimClock::default();
        let (fast, slow) = (clock.drifting(100), clock.drifting(-50));
        clock.advance_to(1_000_000_000);
        assert_eq!([&clock, &fast, &slow].map(Clock::now_ns), [1_000_000_000, 1_000_100_000, 999_950_000]);
        let ((), spent_ns) = clock.work(|| fast.spend_ns(7));
        assert_eq!((spent_ns, clock.now_ns()), (7, 1_000_000_000));
    }
}
