//! Virtual time.

use sinew_fabric::Clock;
use sinew_mem::atomic::plain::{Arc, AtomicU32, AtomicU64, Ordering};

/// The time of a simulation as those see it who take part: when the event that is under way happened, and what the core that
/// works on it has spent since. Clones show the same time.
///
/// Handlers and worker jobs may keep one, since it is `Send` and `Sync`. Only the cluster's own thread is in virtual time: another thread reads
/// some recent time, and what it spends is charged to whoever works at that moment, or to nobody.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    time: Arc<Time>,
    /// Nanoseconds that it gains in a second, or loses.
    drift_ppb: i64,
}

/// Written by the cluster's thread alone, as a rule: the atomics order nothing, and are loads and stores like others.
#[derive(Debug)]
struct Time {
    now_ns: AtomicU64,
    spent_ns: AtomicU64,
    /// Which core is at work. Where none is, nobody spends anything.
    at_work: AtomicU32,
}

impl Default for Time {
    fn default() -> Self {
        Self { now_ns: AtomicU64::new(0), spent_ns: AtomicU64::new(0), at_work: AtomicU32::new(NO_CORE) }
    }
}

/// No core is at work.
pub(crate) const NO_CORE: u32 = u32::MAX;
/// The core of a worker is at work; else it is that of the actor with this number.
pub(crate) const WORKER_CORE: u32 = u32::MAX - 1;

impl SimClock {
    /// A clock of the same simulation that goes wrong by so many parts in a million: hosts' clocks do, by some tens.
    #[must_use]
    pub fn drifting(&self, parts_per_million: i32) -> Self {
        Self { time: Arc::clone(&self.time), drift_ppb: i64::from(parts_per_million) * 1000 }
    }

    /// When the event that is under way happened.
    pub(crate) fn event_ns(&self) -> u64 {
        self.time.now_ns.load(Ordering::Relaxed)
    }

    /// The time that the core at work has come to, whatever this clock shows.
    #[inline]
    pub(crate) fn core_ns(&self) -> u64 {
        self.event_ns() + self.time.spent_ns.load(Ordering::Relaxed)
    }

    /// Which core is at work, or [`NO_CORE`].
    pub(crate) fn at_work(&self) -> u32 {
        self.time.at_work.load(Ordering::Relaxed)
    }

    pub(crate) fn advance_to(&self, now_ns: u64) {
        debug_assert!(now_ns >= self.event_ns(), "time never goes back");
        self.time.now_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Lets the core that is at work spend time. Outside actors' turns and workers' jobs nothing happens.
    #[inline]
    pub fn spend_ns(&self, ns: u64) {
        if self.at_work() != NO_CORE {
            self.time.spent_ns.store(self.time.spent_ns.load(Ordering::Relaxed) + ns, Ordering::Relaxed);
        }
    }

    /// From now on no core is at work: one may have panicked.
    pub(crate) fn rest(&self) {
        self.time.at_work.store(NO_CORE, Ordering::Relaxed);
        self.time.spent_ns.store(0, Ordering::Relaxed);
    }

    /// A core works; returns what it spent meanwhile, beside what it did.
    pub(crate) fn work<T>(&self, core: u32, work: impl FnOnce() -> T) -> (T, u64) {
        self.time.at_work.store(core, Ordering::Relaxed);
        let done = work();
        let spent_ns = self.time.spent_ns.load(Ordering::Relaxed);
        self.rest();
        (done, spent_ns)
    }
}

impl Clock for SimClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        let now_ns = self.core_ns();
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
        let ((), spent_ns) = clock.work(0, || fast.spend_ns(7));
        assert_eq!((spent_ns, clock.now_ns()), (7, 1_000_000_000));
    }
}
