//! Policies for when a waiting thread spins and when it sleeps.
//!
//! A sleeping thread costs a wake-up (tens of microseconds if processors idle deeply), and a spinning one costs a core.
//! How a thread divides its time between the two is a policy ([`PollPolicy`]): rdmabox's adaptive polling (IV-B,
//! Algorithm 3), the policies that it is compared with (III-B), and one of this project's own that counts time instead
//! of turns. A [`Poller`] carries out a policy and counts what it did.

/// The next step of a polling loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Poll again at once.
    Spin,
    /// Sleep until something arrives or the caller's own deadline comes: in the port's `wait`, or armed and on its
    /// descriptor.
    Block,
}

/// A policy: how long a thread polls before it sleeps.
///
/// With [`Self::Busy`], and queue pairs that complete in a few [`SharedQueues`](crate::verbs::SharedQueues), it is
/// rdmabox's shared completion queues (SCQ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollPolicy {
    /// Never sleeps: the lowest latency, one whole core.
    Busy,
    /// Sleeps after each turn that found something, whatever is left: one wake-up for at most `batch` arrivals. A batch
    /// of 1 is plain event mode; a larger one is event batch (NAPI's budget).
    Event {
        /// The most arrivals that a turn takes.
        batch: usize,
    },
    /// Polls until a turn finds nothing, then sleeps: naive hybrid polling.
    Hybrid,
    /// Sleeps after `retries_max` idle turns in a row: rdmabox's adaptive polling. Its Algorithm 3 never resets the
    /// count; here each turn that finds something does, as the paper's text has it ("stays busy polling").
    Retry {
        /// The most arrivals that a turn takes (MAX_POLL_WC).
        batch: usize,
        /// Idle turns before a sleep (MAX_RETRY).
        retries_max: u32,
    },
    /// Polls after work for as long as more work usually takes to come, but never longer than a budget. It counts time
    /// because turns take different times on different fabrics, while a wake-up does not.
    Adaptive {
        /// The longest time without work that is spent spinning, in nanoseconds.
        spin_max_ns: u64,
    },
}

impl PollPolicy {
    /// Never sleeps.
    pub const SPIN: Self = Self::Busy;
    /// Sleeps as soon as there is nothing to do: no core is burnt, but every arrival after a silence pays for a
    /// wake-up.
    pub const SLEEP: Self = Self::Hybrid;
    /// Spins up to 50 us, about what one wake-up costs.
    pub const ADAPTIVE: Self = Self::Adaptive { spin_max_ns: 50_000 };
    /// Each arrival is an event.
    pub const EVENT: Self = Self::Event { batch: 1 };
    /// The values of rdmabox's benchmark (IV-B).
    pub const RDMABOX: Self = Self::Retry { batch: 16, retries_max: 120 };

    /// The most that a turn of the loop should take. Loops that poll a completion queue obey it; an endpoint's turn
    /// takes what its port has.
    pub fn batch(self) -> usize {
        match self {
            Self::Event { batch } | Self::Retry { batch, .. } => batch.max(1),
            Self::Busy | Self::Hybrid | Self::Adaptive { .. } => usize::MAX,
        }
    }
}

impl Default for PollPolicy {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// Counters of a poller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerStats {
    /// Turns that found something.
    pub busy_turns: u64,
    /// Turns that found nothing.
    pub idle_turns: u64,
    /// Times that the step was [`Step::Block`]: requested wake-ups, which is how interrupts are counted.
    pub blocks: u64,
    /// Time of turns that found something, in nanoseconds. This and the next are by the clock of the turns: the
    /// thread's processor time, unless another program ran in its place.
    pub worked_ns: u64,
    /// Time of turns that found nothing, in nanoseconds.
    pub spun_ns: u64,
    /// Time asleep, in nanoseconds: from a [`Step::Block`] to [`Poller::woken`] or, for callers that do not call that,
    /// to the end of the next turn.
    pub slept_ns: u64,
}

impl PollerStats {
    /// Time of polling and of the work that it found, in nanoseconds: the processor time of a thread that is not
    /// preempted.
    pub fn cpu_ns(&self) -> u64 {
        self.worked_ns + self.spun_ns
    }
}

/// Decides between spinning and sleeping from what turns have found so far.
#[derive(Clone, Debug)]
pub struct Poller {
    config: PollPolicy,
    last_work_ns: u64,
    /// Moving average of the gaps between turns that found work.
    gap_ns: u64,
    /// Idle turns since the last busy one.
    retries: u32,
    /// Whether a block has already ended the current idle stretch's spinning.
    blocked: bool,
    /// Whether the last step was to sleep.
    is_asleep: bool,
    last_step_ns: Option<u64>,
    stats: PollerStats,
}

impl Poller {
    /// A poller that has seen nothing yet.
    pub fn new(config: PollPolicy) -> Self {
        Self {
            config,
            last_work_ns: 0,
            gap_ns: 0,
            retries: 0,
            blocked: false,
            is_asleep: false,
            last_step_ns: None,
            stats: PollerStats::default(),
        }
    }

    /// Counters up to the last step.
    pub fn stats(&self) -> PollerStats {
        self.stats
    }

    /// Notes that the thread slept and is awake: the next call of [`Self::step`] ends a turn that starts now.
    pub fn woken(&mut self, now_ns: u64) {
        if let Some(last_ns) = self.last_step_ns.replace(now_ns) {
            self.stats.slept_ns += now_ns.saturating_sub(last_ns);
        }
        self.is_asleep = false;
    }

    /// The next step, after a turn at `now_ns` that did or did not find work.
    #[inline]
    pub fn step(&mut self, now_ns: u64, found_work: bool) -> Step {
        self.count_time(now_ns, found_work);
        let step = match self.config {
            PollPolicy::Busy => return Step::Spin,
            PollPolicy::Hybrid => {
                if found_work {
                    Step::Spin
                } else {
                    Step::Block
                }
            }
            PollPolicy::Event { .. } => Step::Block,
            PollPolicy::Retry { retries_max, .. } => self.step_by_turns(found_work, retries_max),
            PollPolicy::Adaptive { spin_max_ns } => self.step_by_time(now_ns, found_work, spin_max_ns),
        };
        self.is_asleep = step == Step::Block;
        self.stats.blocks += u64::from(self.is_asleep);
        step
    }

    #[inline]
    fn count_time(&mut self, now_ns: u64, found_work: bool) {
        let took_ns = self.last_step_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        self.last_step_ns = Some(now_ns);
        let stats = &mut self.stats;
        if found_work {
            stats.busy_turns += 1;
        } else {
            stats.idle_turns += 1;
        }
        let counted = match (self.is_asleep, found_work) {
            (true, _) => &mut stats.slept_ns,
            (false, true) => &mut stats.worked_ns,
            (false, false) => &mut stats.spun_ns,
        };
        *counted += took_ns;
    }

    #[inline]
    fn step_by_turns(&mut self, found_work: bool, retries_max: u32) -> Step {
        if found_work {
            self.retries = 0;
            return Step::Spin;
        }
        if self.retries >= retries_max {
            // A thread woken for nothing sleeps again at once.
            return Step::Block;
        }
        self.retries += 1;
        Step::Spin
    }

    #[inline]
    fn step_by_time(&mut self, now_ns: u64, found_work: bool, spin_max_ns: u64) -> Step {
        if found_work {
            let gap = now_ns.saturating_sub(self.last_work_ns);
            // An eighth of the new gap: a burst after a long silence brings the poller back to spinning within a few
            // arrivals.
            self.gap_ns = self.gap_ns - self.gap_ns / 8 + gap.min(spin_max_ns.saturating_mul(4)) / 8;
            self.last_work_ns = now_ns;
            self.blocked = false;
            return Step::Spin;
        }
        let idle = now_ns.saturating_sub(self.last_work_ns);
        // If work usually comes later than the budget, spinning for the whole budget would only burn it.
        let budget = if self.gap_ns > spin_max_ns { spin_max_ns / 8 } else { spin_max_ns };
        if idle < budget && !self.blocked {
            Step::Spin
        } else {
            self.blocked = true;
            Step::Block
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Step::{Block, Spin};

    #[test]
    fn spins_while_work_keeps_coming_and_sleeps_after_the_budget() {
        let mut poller = Poller::new(PollPolicy::Adaptive { spin_max_ns: 1000 });
        assert_eq!(poller.step(10, true), Spin);
        assert_eq!(poller.step(1009, false), Spin);
        assert_eq!(poller.step(1010, false), Block);
        assert_eq!(poller.step(1011, false), Block, "a wake-up without work sleeps again");
        assert_eq!(poller.step(1012, true), Spin);
    }

    #[test]
    fn spins_less_when_work_is_rare() {
        let mut poller = Poller::new(PollPolicy::Adaptive { spin_max_ns: 1000 });
        let mut now = 0;
        for _ in 0..50 {
            now += 100_000;
            poller.step(now, true);
        }
        assert_eq!(poller.step(now + 200, false), Block);
    }

    /// Steps of each policy after turns that did and did not find something.
    fn steps(config: PollPolicy, found: [bool; 6]) -> [Step; 6] {
        let (mut poller, mut now_ns) = (Poller::new(config), 0);
        found.map(|found| {
            now_ns += 100;
            poller.step(now_ns, found)
        })
    }

    #[test]
    fn each_policy_sleeps_when_its_rule_says() {
        let found = [true, false, true, false, false, false];
        for (config, expected) in [
            (PollPolicy::Busy, [Spin; 6]),
            (PollPolicy::Event { batch: 4 }, [Block; 6]),
            (PollPolicy::Hybrid, [Spin, Block, Spin, Block, Block, Block]),
            (PollPolicy::Retry { batch: 4, retries_max: 2 }, [Spin, Spin, Spin, Spin, Spin, Block]),
            (PollPolicy::Retry { batch: 4, retries_max: 0 }, [Spin, Block, Spin, Block, Block, Block]),
            (PollPolicy::Adaptive { spin_max_ns: 0 }, [Spin, Block, Spin, Block, Block, Block]),
            (PollPolicy::Adaptive { spin_max_ns: 250 }, [Spin, Spin, Spin, Spin, Spin, Block]),
        ] {
            assert_eq!(steps(config, found), expected, "{config:?}");
        }
    }

    #[test]
    fn batches_are_those_of_policies_that_have_any() {
        let batches = [PollPolicy::EVENT, PollPolicy::RDMABOX, PollPolicy::Event { batch: 0 }, PollPolicy::SPIN];
        assert_eq!(batches.map(PollPolicy::batch), [1, 16, 1, usize::MAX]);
    }

    #[test]
    fn all_time_is_work_or_spinning_or_sleep() {
        let mut poller = Poller::new(PollPolicy::SLEEP);
        poller.step(1000, true);
        poller.step(1010, true);
        assert_eq!(poller.step(1013, false), Block);
        poller.woken(1513);
        poller.step(1520, true);
        assert_eq!(poller.step(1522, false), Block);
        // If the caller does not report when it woke up, the turn counts as sleep.
        poller.step(1922, true);
        let stats = poller.stats();
        assert_eq!((stats.worked_ns, stats.spun_ns, stats.slept_ns), (10 + 7, 3 + 2, 500 + 400));
        assert_eq!((stats.busy_turns, stats.idle_turns, stats.blocks, stats.cpu_ns()), (4, 2, 2, 22));
    }
}
