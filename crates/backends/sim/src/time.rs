//! The clock of virtual time.

use sinew_fabric::Clock;
use sinew_mem::atomic::plain::{Arc, AtomicU32, AtomicU64, Ordering};

/// The time of a simulation as its participants see it: the time of the current event, plus what the core that works on
/// it has spent since. Clones show the same time.
///
/// Handlers and worker jobs may keep one, since it is `Send` and `Sync`. Only the cluster's own thread is in virtual
/// time: another thread reads some recent time, and what it spends is charged to the core that happens to be at work,
/// or to none.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    time: Arc<Time>,
    /// Nanoseconds that it gains per second, or loses if negative.
    drift_ppb: i64,
}

/// Normally written only by the cluster's thread. All accesses are relaxed: the atomics order nothing, and cost no more
/// than plain loads and stores.
#[derive(Debug)]
struct Time {
    now_ns: AtomicU64,
    spent_ns: AtomicU64,
    /// The core at work. While none is, no time can be spent.
    at_work: AtomicU32,
}

impl Default for Time {
    fn default() -> Self {
        Self { now_ns: AtomicU64::new(0), spent_ns: AtomicU64::new(0), at_work: AtomicU32::new(NO_CORE) }
    }
}

/// No core is at work.
pub(crate) const NO_CORE: u32 = u32::MAX;
/// A worker's core is at work. Any other number is an actor's.
pub(crate) const WORKER_CORE: u32 = u32::MAX - 1;

impl SimClock {
    /// A clock of the same simulation that runs fast by `parts_per_million`, or slow if negative. Real hosts' clocks
    /// drift by some tens.
    #[must_use]
    pub fn drifting(&self, parts_per_million: i32) -> Self {
        Self { time: Arc::clone(&self.time), drift_ppb: i64::from(parts_per_million) * 1000 }
    }

    /// The simulation's time at which this clock will show `shown_ns`, as [`ActorState`](crate::ActorState) takes it.
    pub fn to_simulation_ns(&self, shown_ns: u64) -> u64 {
        let rate = 1_000_000_000 + i128::from(self.drift_ppb);
        let exact = i128::from(shown_ns) * 1_000_000_000 / rate.max(1);
        // Rounded up: at a nanosecond too early, the clock would not show it yet.
        u64::try_from(exact + i128::from(self.drift_ppb != 0)).unwrap_or(u64::MAX)
    }

    /// Time of the current event.
    pub(crate) fn event_ns(&self) -> u64 {
        self.time.now_ns.load(Ordering::Relaxed)
    }

    /// The time that the core at work has reached, without drift.
    #[inline]
    pub(crate) fn core_ns(&self) -> u64 {
        self.event_ns() + self.time.spent_ns.load(Ordering::Relaxed)
    }

    /// The core at work, or [`NO_CORE`].
    pub(crate) fn at_work(&self) -> u32 {
        self.time.at_work.load(Ordering::Relaxed)
    }

    pub(crate) fn advance_to(&self, now_ns: u64) {
        debug_assert!(now_ns >= self.event_ns(), "time never goes back");
        self.time.now_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Charges nanoseconds to the core at work. Outside actors' turns and workers' jobs it does nothing.
    #[inline]
    pub fn spend_ns(&self, ns: u64) {
        if self.at_work() != NO_CORE {
            self.time.spent_ns.store(self.time.spent_ns.load(Ordering::Relaxed) + ns, Ordering::Relaxed);
        }
    }

    /// Leaves no core at work, also after a panic in one.
    pub(crate) fn pass_spent_time(&self) {
        self.time.at_work.store(NO_CORE, Ordering::Relaxed);
        self.time.spent_ns.store(0, Ordering::Relaxed);
    }

    /// Runs `work` on a core; returns its result, and the time that it spent.
    pub(crate) fn work<T>(&self, core: u32, work: impl FnOnce() -> T) -> (T, u64) {
        self.time.at_work.store(core, Ordering::Relaxed);
        let done = work();
        let spent_ns = self.time.spent_ns.load(Ordering::Relaxed);
        self.pass_spent_time();
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

    #[test]
    fn a_clock_that_drifts_knows_when_it_will_show_a_time() {
        let time = SimClock::default();
        for drift in [0, 10_000, -10_000, 1_000_000, -600_000, 7, -13] {
            let clock = time.drifting(drift);
            for shown_ns in [0, 1, 999_999_937, 5_000_000_011, 86_400_000_000_000] {
                let due_ns = clock.to_simulation_ns(shown_ns);
                let shows = |now_ns| {
                    let time = Time { now_ns: AtomicU64::new(now_ns), ..Time::default() };
                    SimClock { time: Arc::new(time), ..clock.clone() }.now_ns()
                };
                assert!(shows(due_ns) >= shown_ns, "{drift} ppm, {shown_ns} ns");
                assert!(due_ns < 3 || shows(due_ns - 3) <= shown_ns, "{drift} ppm, {shown_ns} ns");
            }
            assert_eq!(clock.to_simulation_ns(u64::MAX) < u64::MAX, drift > 0, "{drift} ppm");
        }
    }
}
