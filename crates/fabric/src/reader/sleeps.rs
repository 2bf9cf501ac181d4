//! Detection, from a thread's sleeps, of a program that competes for its processor: while the thread sleeps, the
//! processor is idle or runs something else.

/// The least time asleep, in nanoseconds, from which anything is concluded.
const SLEPT_MIN_NS: u64 = 50_000;
/// Least share of the time asleep, in thousandths, for which the processor is idle if no program competes for it.
const ALONE_PERMILLE: u64 = 250;
/// Greatest such share, in thousandths, if a program does compete for it. In between, nothing is concluded.
const SHARED_PERMILLE: u64 = 20;

/// Sleeps from which nothing was concluded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sleeps {
    slept_ns: u64,
    idle_ns: u64,
}

impl Sleeps {
    /// Records a sleep of the thread, during which its processor was idle for `idle_ns`. Returns whether a program
    /// competes for the processor, once there was enough sleep to tell.
    pub fn record_sleep(&mut self, slept_ns: u64, idle_ns: u64) -> Option<bool> {
        self.slept_ns = self.slept_ns.saturating_add(slept_ns);
        self.idle_ns = self.idle_ns.saturating_add(idle_ns.min(slept_ns));
        if self.slept_ns < SLEPT_MIN_NS {
            return None;
        }
        let Self { slept_ns, idle_ns } = std::mem::take(self);
        match u128::from(idle_ns) * 1000 / u128::from(slept_ns) {
            permille if permille >= u128::from(ALONE_PERMILLE) => Some(false),
            permille if permille <= u128::from(SHARED_PERMILLE) => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_is_idle_meanwhile_is_ours_and_one_that_never_is_is_shared() {
        for (idle_ns, is_shared) in
            [(10_000, Some(false)), (2_500, Some(false)), (1_000, None), (200, Some(true)), (0, Some(true))]
        {
            let mut sleeps = Sleeps::default();
            let results: Vec<_> = (0..10).map(|_| sleeps.record_sleep(10_000, idle_ns)).collect();
            assert_eq!(results, [None, None, None, None, is_shared, None, None, None, None, is_shared], "{idle_ns}");
        }
    }

    #[test]
    fn what_cannot_be_is_no_more_than_all_of_it() {
        let mut sleeps = Sleeps::default();
        assert_eq!(sleeps.record_sleep(u64::MAX, u64::MAX), Some(false));
        assert_eq!(sleeps.record_sleep(10, u64::MAX), None);
        assert_eq!(sleeps.record_sleep(u64::MAX, 0), Some(true), "ten of so many were idle");
    }
}
