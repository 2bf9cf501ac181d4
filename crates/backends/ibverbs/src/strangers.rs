//! The share of a thread's time that goes to strangers: senders of datagrams for whom nobody here asked for a
//! destination. Answering a datagram makes the kernel resolve its sender's address, whatever address the sender chose;
//! while the kernel does so, the thread's sessions stand still.

/// The share, in the long run: one in this many parts of the time.
const PART: u64 = 11;
/// Nanoseconds that may be taken at once after a quiet time: enough for a thousand strangers that are easily found.
const AT_ONCE_NS: u64 = 10_000_000;

/// The state of the share. One lookup may take more than is left; then none may begin for correspondingly longer.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// When all time taken so far is paid for.
    paid_ns: u64,
}

impl Share {
    /// Whether a lookup may begin.
    pub fn is_left(&self, now_ns: u64) -> bool {
        self.paid_ns <= now_ns.saturating_add(AT_ONCE_NS * (PART - 1))
    }

    /// Charges a lookup to the share.
    pub fn take(&mut self, began_ns: u64, ended_ns: u64) {
        let took_ns = ended_ns.saturating_sub(began_ns);
        self.paid_ns = self.paid_ns.max(ended_ns).saturating_add(took_ns.saturating_mul(PART - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_look_is_followed_by_ten_times_as_long_without() {
        let mut share = Share::default();
        let (look_ns, now_ns) = (1_000_000_000, 5_000_000_000);
        share.take(now_ns, now_ns + look_ns);
        let again_ns = now_ns + look_ns + 10 * look_ns - 10 * AT_ONCE_NS;
        assert!(!share.is_left(again_ns - 1) && share.is_left(again_ns));
    }

    #[test]
    fn short_looks_do_not_wait_until_they_are_too_many() {
        let mut share = Share::default();
        let (look_ns, mut now_ns) = (5_000, 1);
        let mut looks = 0;
        while share.is_left(now_ns) {
            share.take(now_ns, now_ns + look_ns);
            now_ns += look_ns;
            looks += 1;
        }
        assert!((1_000..10_000).contains(&looks), "{looks}");
    }
}
