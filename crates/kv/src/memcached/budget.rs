//! The memory for connections, shared by all threads.

use sinew_mem::atomic::{AtomicUsize, Ordering};

/// Accounts for the bytes in the buffers of all connections: commands not yet complete, and answers not yet read.
///
/// The count is only a measure; nothing else is published with it.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    used: AtomicUsize,
}

/// Standing of a connection that asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// A connection whose client is not yet known to read.
    New,
    /// A connection whose client has read, or has sent a long value. A part of the memory is reserved for these.
    Proven,
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    /// Bytes in all.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Usage up to which a claim is granted. The rest is left for short buffers, which are taken without a claim.
    fn limit(&self, claim: Claim) -> usize {
        match claim {
            Claim::New => self.max / 2,
            Claim::Proven => self.max / 8 * 7,
        }
    }

    /// Takes `len` bytes for a connection, if they are available.
    pub(super) fn try_claim(&self, len: usize, claim: Claim) -> bool {
        let limit = self.limit(claim);
        let taken = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let sum = used.checked_add(len)?;
            (sum <= limit).then_some(sum)
        });
        taken.is_ok()
    }

    /// Accounts for a buffer that has grown or shrunk.
    #[inline]
    pub(super) fn adjust(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Bytes that connections waiting for more may hold together. If they held everything, they would wait for each
    /// other.
    pub(super) fn waiting_max(&self) -> usize {
        self.limit(Claim::New) / 4
    }

    /// Whether memory is scarce, so that even short buffers should be shorter.
    pub(super) fn is_short(&self) -> bool {
        self.used() > self.limit(Claim::New)
    }

    /// Whether memory is used up, so that even short buffers are too much.
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
        assert!(budget.try_claim(400, Claim::New) && !budget.try_claim(1, Claim::New));
        assert!(budget.try_claim(300, Claim::Proven) && !budget.try_claim(1, Claim::Proven));
        assert!(!budget.is_spent());
        budget.adjust(0, 50);
        assert!(budget.is_spent() && budget.is_short());
        budget.adjust(750, 400);
        assert_eq!((budget.used(), budget.is_short()), (400, false));
        assert!(!budget.try_claim(usize::MAX, Claim::Proven));
    }
}
