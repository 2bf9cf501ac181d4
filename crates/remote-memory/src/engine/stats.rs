//! What engines did (rdmabox Table I).

use sinew_mem::atomic::{AtomicU64, Ordering};

/// Counts of all engines of one [`Shared`](super::Shared), or their difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that were submitted.
    pub reads: u64,
    /// As above.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that reads became.
    pub read_ops: u64,
    /// Operations that writes became.
    pub write_ops: u64,
    /// Requests that share their operation with others.
    pub merged: u64,
    /// Of these, requests that were copied into one buffer, or out of it.
    pub copied: u64,
    /// Operations behind the first of a doorbell.
    pub chained: u64,
    /// Doorbells.
    pub doorbells: u64,
    /// Requests that waited for an earlier one that overlaps them.
    pub ordered: u64,
    /// Times that requests were left in the queue because the window was full.
    pub held_back: u64,
    /// Requests that one turn took, at most.
    pub largest_batch: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// What one engine counts as it goes. It alone writes; others look.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub read_ops: Count,
    pub write_ops: Count,
    pub merged: Count,
    pub copied: Count,
    pub chained: Count,
    pub doorbells: Count,
}

/// A number with one writer.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Counts so many more. For the one writer.
    #[inline]
    pub fn add(&self, more: u64) {
        // Relaxed, and no read-modify-write: there is one writer, and nothing hangs on it.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    /// Counts an operation.
    #[inline]
    pub fn op(&self, is_write: bool) {
        let of_kind = if is_write { &self.write_ops } else { &self.read_ops };
        of_kind.add(1);
    }

    /// These and what else there is.
    pub fn add_to(&self, stats: EngineStats) -> EngineStats {
        EngineStats {
            read_ops: stats.read_ops + self.read_ops.get(),
            write_ops: stats.write_ops + self.write_ops.get(),
            merged: stats.merged + self.merged.get(),
            copied: stats.copied + self.copied.get(),
            chained: stats.chained + self.chained.get(),
            doorbells: stats.doorbells + self.doorbells.get(),
            ..stats
        }
    }
}
