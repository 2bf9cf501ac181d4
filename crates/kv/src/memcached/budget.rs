//! The memory of connections, which all threads share.

use sinew_mem::atomic::{AtomicUsize, Ordering};

/// Bytes that the buffers of all connections may take: what clients have not sent to the end, and what they have not read.
///
/// It is only a measure, with which nothing else is published.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    used: AtomicUsize,
}

/// Who wants memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// A connection of which nobody knows whether its client reads.
    New,
    /// A connection whose client has read, or has sent a long value. A part of the memory is kept for those.
    Proven,
}

impl Budget {
    /// Of so many bytes.
    pub fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    /// Bytes there are.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes up to which it is given to whoever asks: what is beyond is for short buffers, which nobody asks for.
    fn limit(&self, claim: Claim) -> usize {
        match claim {
            Claim::New => self.max / 2,
            Claim::Proven => self.max / 8 * 7,
        }
    }

    /// Takes `len` bytes for a connection, if there is so much.
    pub(super) fn try_take(&self, len: usize, claim: Claim) -> bool {
        let limit = self.limit(claim);
        let taken = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let sum = used.checked_add(len)?;
            (sum <= limit).then_some(sum)
        });
        taken.is_ok()
    }

    /// Counts a buffer that has grown or shrunk.
    #[inline]
    pub(super) fn change(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// What connections may have together that wait for more: if they had all that there is, they would wait for each other.
    pub(super) fn waiting_max(&self) -> usize {
        self.limit(Claim::New) / 4
    }

    /// Whether short buffers are to be shorter still.
    pub(super) fn is_short(&self) -> bool {
        self.used() > self.limit(Claim::New)
    }

    /// Whether even short buffers are more than there is room for.
    pub(super) fn is_spent(&self) -> bool {
        self.used() > self.limit(Claim::Proven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_kept_for_connections_that_have_moved() {
        let budget = Budget::new(800);
        assert!(budget.try_take(400, Claim::New) && !budget.try_take(1, Claim::New));
        assert!(budget.try_take(300, Claim::Proven) && !budget.try_take(1, Claim::Proven));
        assert!(!budget.is_spent());
        budget.change(0, 50);
        assert!(budget.is_spent() && budget.is_short());
        budget.change(750, 400);
        assert_eq!((budget.used(), budget.is_short()), (400, false));
        assert!(!budget.try_take(usize::MAX, Claim::Proven));
    }
}
