//! When a thread that waits for a port spins and when it sleeps.
//!
//! A sleeping thread costs a wake-up (tens of microseconds where processors idle deeply), a spinning one costs a core. The
//! poller spins after work for as long as more work usually takes to come, but never longer than the budget that its user
//! gave (rdmabox, adaptive polling: poll while completions keep coming, then fall back to events).

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Poll again at once.
    Spin,
    /// Sleep until something arrives or the caller's own deadline: in the port's `wait`, or armed and on its descriptor.
    Block,
}

/// How long a poller may spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// The longest time without work that is spent spinning. 0 never spins, `u64::MAX` never sleeps.
    pub spin_max_ns: u64,
}

impl PollerConfig {
    /// Never sleeps: the lowest latency, one whole core.
    pub const SPIN: Self = Self { spin_max_ns: u64::MAX };
    /// Sleeps at once: no core is burnt, every arrival pays a wake-up.
    pub const SLEEP: Self = Self { spin_max_ns: 0 };
    /// Spins up to 50 us, about what one wake-up costs.
    pub const ADAPTIVE: Self = Self { spin_max_ns: 50_000 };
}

impl Default for PollerConfig {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// Decides between spinning and sleeping from the gaps between arrivals seen so far.
#[derive(Clone, Debug)]
pub struct Poller {
    config: PollerConfig,
    last_work_ns: u64,
    /// Moving average of the gaps between turns that found work.
    gap_ns: u64,
    /// Whether the current idle stretch was ended by a block already.
    blocked: bool,
}

impl Poller {
    /// A poller that has seen nothing yet.
    pub fn new(config: PollerConfig) -> Self {
        Self { config, last_work_ns: 0, gap_ns: 0, blocked: false }
    }

    /// What to do after a turn at `now_ns` that did or did not find work.
    #[inline]
    pub fn step(&mut self, now_ns: u64, found_work: bool) -> Step {
        if self.config.spin_max_ns == u64::MAX {
            return Step::Spin;
        }
        if found_work {
            let gap = now_ns.saturating_sub(self.last_work_ns);
            // An eighth of the new gap: a burst after a long silence turns the poller to spinning within a few arrivals.
            self.gap_ns = self.gap_ns - self.gap_ns / 8 + gap.min(self.config.spin_max_ns.saturating_mul(4)) / 8;
            self.last_work_ns = now_ns;
            self.blocked = false;
            return Step::Spin;
        }
        let idle = now_ns.saturating_sub(self.last_work_ns);
        // When work usually comes later than the budget, spinning the whole budget would only burn it.
        let budget =
            if self.gap_ns > self.config.spin_max_ns { self.config.spin_max_ns / 8 } else { self.config.spin_max_ns };
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

    #[test]
    fn spins_while_work_keeps_coming_and_sleeps_after_the_budget() {
        let mut poller = Poller::new(PollerConfig { spin_max_ns: 1000 });
        assert_eq!(poller.step(10, true), Step::Spin);
        assert_eq!(poller.step(1009, false), Step::Spin);
        assert_eq!(poller.step(1010, false), Step::Block);
        assert_eq!(poller.step(1011, false), Step::Block, "a wake-up without work sleeps again");
        assert_eq!(poller.step(1012, true), Step::Spin);
    }

    #[test]
    fn spins_less_when_work_is_rare() {
        let mut poller = Poller::new(PollerConfig { spin_max_ns: 1000 });
        let mut now = 0;
        for _ in 0..50 {
            now += 100_000;
            poller.step(now, true);
        }
        assert_eq!(poller.step(now + 200, false), Step::Block);
    }

    #[test]
    fn the_extremes_never_sleep_and_never_spin() {
        let mut spin = Poller::new(PollerConfig::SPIN);
        assert_eq!(spin.step(u64::MAX, false), Step::Spin);
        let mut sleep = Poller::new(PollerConfig::SLEEP);
        assert_eq!(sleep.step(0, false), Step::Block);
    }
}
