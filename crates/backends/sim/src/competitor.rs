//! A program that computes all the time, and competes with a thread for its core.

/// A competitor for a core. The core is shared as Linux's Completely Fair Scheduler (CFS) shares it.
///
/// The thread and the competitor each have a virtual runtime, which grows while they run. The one that runs is replaced
/// once it has run for a slice and is not behind, so a thread that always wants to run has every other slice. A sleeper
/// that is woken counts as no further behind the competitor than its credit. It runs at once if it is behind by more
/// than the wake-up granularity, and otherwise waits until it is. So a thread that mostly sleeps runs whenever it is
/// woken, and one that wants more than half of the core gets half.
///
/// The defaults are CFS's documented ones for 8 cores (the comments on `sysctl_sched_latency` and
/// `sysctl_sched_wakeup_granularity` in `kernel/sched/fair.c`), where times grow with `1 + log2(cores)`, which is 4.
/// CFS looks at its account at timer ticks; this one is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Competitor {
    /// Time for which one of the two runs before the other does, if both want to: half of `sched_latency_ns`, which is
    /// 6 ms times 4.
    pub slice_ns: u64,
    /// Cap on how far behind a sleeper is when it is woken: half of `sched_latency_ns` (`GENTLE_FAIR_SLEEPERS`). At
    /// least the granularity is used.
    pub sleeper_credit_ns: u64,
    /// Time by which a woken sleeper must be behind to replace the competitor: `sched_wakeup_granularity_ns`, which is
    /// 1 ms times 4.
    pub wakeup_granularity_ns: u64,
}

impl Default for Competitor {
    fn default() -> Self {
        Self { slice_ns: 12_000_000, sleeper_credit_ns: 12_000_000, wakeup_granularity_ns: 4_000_000 }
    }
}

impl Competitor {
    /// A competitor with slices of this length, to which the other times are in the same proportion as by default.
    pub fn with_slice_ns(slice_ns: u64) -> Self {
        Self { slice_ns, sleeper_credit_ns: slice_ns, wakeup_granularity_ns: slice_ns / 3 }
    }
}

/// Holder of the core at some time, and the time for which it keeps the core if both want it.
enum Holder {
    Ours(u64),
    Theirs(u64),
}

/// The account of a thread beside a competitor. It changes only when the thread wakes and when it goes to sleep:
/// everything in between follows from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub competitor: Competitor,
    /// Our virtual runtime less the competitor's, at the last change.
    lead_ns: i64,
    /// Time of the last change.
    since_ns: u64,
}

impl Account {
    /// The account of a thread that wants to run from now on, and has run as much as its competitor.
    pub fn new(competitor: Competitor, now_ns: u64) -> Self {
        Self { competitor, lead_ns: 0, since_ns: now_ns }
    }

    /// Time for which a thread that was woken runs before the competitor does.
    fn first_ns(&self) -> u64 {
        self.competitor.slice_ns.max(self.lead_ns.min(0).unsigned_abs())
    }

    /// The holder of the core while the thread is awake.
    fn holder(&self, now_ns: u64) -> Holder {
        let (run_ns, first_ns) = (now_ns.saturating_sub(self.since_ns), self.first_ns());
        if run_ns < first_ns {
            return Holder::Ours(first_ns - run_ns);
        }
        let slice_ns = self.competitor.slice_ns;
        let into_ns = (run_ns - first_ns) % (2 * slice_ns);
        if into_ns < slice_ns { Holder::Theirs(slice_ns - into_ns) } else { Holder::Ours(2 * slice_ns - into_ns) }
    }

    /// Returns when a thread that is awake, and wants to run from `wanted_ns` on, can run.
    #[inline]
    pub fn run_start_ns(&self, wanted_ns: u64) -> u64 {
        match self.holder(wanted_ns) {
            Holder::Ours(_) => wanted_ns,
            Holder::Theirs(left_ns) => wanted_ns + left_ns,
        }
    }

    /// Returns when work that is begun at `now_ns` and takes `spent_ns` is done.
    #[inline]
    pub fn ends_ns(&self, now_ns: u64, spent_ns: u64) -> u64 {
        let begins_ns = self.run_start_ns(now_ns);
        match self.holder(begins_ns) {
            Holder::Ours(left_ns) if spent_ns >= left_ns => {
                let slice_ns = self.competitor.slice_ns;
                begins_ns + spent_ns + (1 + (spent_ns - left_ns) / slice_ns) * slice_ns
            }
            _ => begins_ns + spent_ns,
        }
    }

    /// Puts the thread to sleep from now on.
    pub fn sleep(&mut self, now_ns: u64) {
        let slice_ns = self.competitor.slice_ns as i64;
        let (first_ns, run_ns) = (self.first_ns() as i64, now_ns.saturating_sub(self.since_ns) as i64);
        // From the competitor's first slice on, it catches up with us and falls behind in turn.
        let into_ns = if run_ns < first_ns { 0 } else { (run_ns - first_ns) % (2 * slice_ns) };
        let since_ns = if into_ns <= slice_ns { -into_ns } else { into_ns - 2 * slice_ns };
        self.lead_ns += run_ns.min(first_ns) + since_ns;
        self.since_ns = now_ns;
    }

    /// Our lead after sleep.
    fn slept_ns(&self, now_ns: u64) -> i64 {
        let Competitor { sleeper_credit_ns, wakeup_granularity_ns, .. } = self.competitor;
        let credit_ns = sleeper_credit_ns.max(wakeup_granularity_ns) as i64;
        (self.lead_ns - now_ns.saturating_sub(self.since_ns) as i64).max(-credit_ns)
    }

    /// Returns when a sleeper that is woken at `woken_ns` runs.
    #[inline]
    pub fn replaces_ns(&self, woken_ns: u64) -> u64 {
        let wait_ns = self.slept_ns(woken_ns) + self.competitor.wakeup_granularity_ns as i64;
        woken_ns + wait_ns.max(0) as u64
    }

    /// Makes a sleeper run from now on.
    pub fn wake(&mut self, now_ns: u64) {
        (self.lead_ns, self.since_ns) = (self.slept_ns(now_ns), now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPETITOR: Competitor = Competitor { slice_ns: 1000, sleeper_credit_ns: 1000, wakeup_granularity_ns: 300 };

    #[test]
    fn whoever_always_wants_to_run_has_every_other_slice() {
        let account = Account::new(COMPETITOR, 0);
        for (wanted_ns, runs_ns) in [(0, 0), (999, 999), (1000, 2000), (1999, 2000), (2500, 2500), (3001, 4000)] {
            assert_eq!(account.run_start_ns(wanted_ns), runs_ns, "{wanted_ns}");
        }
        // Work that does not fit in a slice goes on in the next.
        for (begins_ns, spent_ns, ends_ns) in [(0, 999, 999), (900, 200, 2100), (2000, 2500, 6500)] {
            assert_eq!(account.ends_ns(begins_ns, spent_ns), ends_ns, "{spent_ns} from {begins_ns}");
        }
    }

    #[test]
    fn the_lead_over_the_competitor_follows_the_slices() {
        for (run_ns, lead_ns) in [(0, 0), (400, 400), (1000, 1000), (1600, 400), (2000, 0), (2500, 500), (3000, 1000)] {
            let mut account = Account::new(COMPETITOR, 5);
            account.sleep(5 + run_ns);
            assert_eq!(account.lead_ns, lead_ns, "{run_ns}");
        }
    }

    /// Works and sleeps in turn. Returns the thread's share of the time, and its longest wait after it was woken, in
    /// the second half.
    fn by_turns(worked_ns: u64, slept_ns: u64) -> (f64, u64) {
        const ROUNDS: u64 = 1000;
        let mut account = Account::new(COMPETITOR, 0);
        let (mut now_ns, mut waited_ns, mut half_ns) = (0, 0, 0);
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                (half_ns, waited_ns) = (now_ns, 0);
            }
            now_ns = account.ends_ns(now_ns, worked_ns);
            account.sleep(now_ns);
            let woken_ns = now_ns + slept_ns;
            now_ns = account.replaces_ns(woken_ns);
            waited_ns = waited_ns.max(now_ns - woken_ns);
            account.wake(now_ns);
        }
        (worked_ns as f64 * (ROUNDS / 2) as f64 / (now_ns - half_ns) as f64, waited_ns)
    }

    #[test]
    fn who_uses_more_than_half_of_a_core_between_sleeps_is_held_to_half() {
        for (worked_ns, slept_ns) in [(9, 1), (60, 40), (700, 100), (5000, 10)] {
            let (part, _) = by_turns(worked_ns, slept_ns);
            assert!((0.49..0.51).contains(&part), "{worked_ns} {slept_ns}: {part}");
        }
    }

    #[test]
    fn who_sleeps_mostly_runs_at_once() {
        for (worked_ns, slept_ns) in [(1, 9), (40, 60), (400, 500), (990, 100_000)] {
            let (part, waited_ns) = by_turns(worked_ns, slept_ns);
            assert_eq!(waited_ns, 0, "{worked_ns} {slept_ns}");
            assert!((part - worked_ns as f64 / (worked_ns + slept_ns) as f64).abs() < 1e-9, "{part}");
        }
    }

    #[test]
    fn sleep_saves_up_no_more_than_the_credit() {
        let mut account = Account::new(COMPETITOR, 0);
        account.sleep(0);
        account.wake(1_000_000);
        account.sleep(1_000_000);
        assert_eq!(account.lead_ns, -1000);
        // A thread that has run lately waits until the competitor is ahead by the granularity.
        account.wake(1_000_000);
        account.sleep(1_000_900);
        assert_eq!(account.replaces_ns(1_000_950), 1_001_100);
        assert_eq!(account.replaces_ns(1_001_200), 1_001_200);
    }

    #[test]
    fn the_defaults_are_in_the_proportion_that_other_slices_have() {
        let default = Competitor::default();
        assert_eq!(Competitor::with_slice_ns(default.slice_ns), default);
    }
}
