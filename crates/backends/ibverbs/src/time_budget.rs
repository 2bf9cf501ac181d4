//! The budget of a thread's time for unknown senders: peers whose datagrams arrive although nobody here has asked for a
//! route to them. Answering a datagram makes the kernel resolve its sender's address, whatever address the sender
//! chose; while the kernel does so, the thread's sessions stand still.

/// The budget, in the long run: one in this many parts of the time.
const BUDGET_DIVISOR: u64 = 11;
/// Nanoseconds that may be taken at once after a quiet time: enough for a thousand senders that are easily found.
const BURST_NS: u64 = 10_000_000;

/// The state of the budget. One lookup may take more than is left; then none may begin for correspondingly longer.
#[derive(Debug, Default)]
pub(crate) struct TimeBudget {
    /// When all time taken so far is paid for.
    paid_ns: u64,
}

impl TimeBudget {
    /// Whether a lookup may begin.
    pub fn may_begin(&self, now_ns: u64) -> bool {
        self.paid_ns <= now_ns.saturating_add(BURST_NS * (BUDGET_DIVISOR - 1))
    }

    /// Charges a lookup to the budget.
    pub fn charge(&mut self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        self.paid_ns = self.paid_ns.max(ended_ns).saturating_add(took_ns.saturating_mul(BUDGET_DIVISOR - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_look_is_followed_by_ten_times_as_long_without() {
        let mut budget = TimeBudget::default();
        let (look_ns, now_ns) = (1_000_000_000, 5_000_000_000);
        budget.charge(now_ns, now_ns + look_ns);
        let again_ns = now_ns + look_ns + 10 * look_ns - 10 * BURST_NS;
        assert!(!budget.may_begin(again_ns - 1) && budget.may_begin(again_ns));
    }

    #[test]
    fn short_looks_do_not_wait_until_they_are_too_many() {
        let mut budget = TimeBudget::default();
        let (look_ns, mut now_ns) = (5_000, 1);
        let mut looks = 0;
        while budget.may_begin(now_ns) {
            budget.charge(now_ns, now_ns + look_ns);
            now_ns += look_ns;
            looks += 1;
        }
        assert!((1_000..10_000).contains(&looks), "{looks}");
    }
}
