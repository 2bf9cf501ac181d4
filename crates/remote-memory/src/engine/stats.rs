//! Counters of engines (rdmabox Table I).

use sinew_mem::atomic::{AtomicU64, Ordering};

/// Counters of all engines of one [`Shared`](super::Shared), or their difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Reads submitted.
    pub reads: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Bytes of all these reads and writes.
    pub bytes: u64,
    /// Operations that reads became.
    pub read_ops: u64,
    /// Operations that writes became.
    pub write_ops: u64,
    /// Requests that shared an operation with others.
    pub merged: u64,
    /// Requests copied into a registered buffer, or out of one.
    pub copied: u64,
    /// Operations that shared the doorbell of an earlier one.
    pub chained: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Requests that waited for an earlier, overlapping one.
    pub ordered: u64,
    /// Times that requests were left in the queue because the window was full.
    pub held_back: u64,
    /// Most requests that one turn took.
    pub largest_batch: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// Counters that one engine updates as it goes. Only that engine writes them; others read.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub read_ops: Count,
    pub write_ops: Count,
    pub merged: Count,
    pub copied: Count,
    pub chained: Count,
    pub doorbells: Count,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds `more`. Only the one writer may call it.
    #[inline]
    pub fn add(&self, more: u64) {
        // Relaxed, and no read-modify-write: there is one writer, and no other data depends on it.
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

    /// Returns `stats` with these added.
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
