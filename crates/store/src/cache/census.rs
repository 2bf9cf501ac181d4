//! Counters of the items in a table, and of those that left it.

use super::FETCHED;
use super::entry::Entry;

/// Counters of the items in a table, and of those that left it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Census {
    pub items: usize,
    /// Words of all items.
    pub words: usize,
    pub evictions: u64,
    pub evicted_unfetched: u64,
    pub spared: u64,
    pub reclaimed: u64,
    pub expired_unfetched: u64,
}

impl Census {
    pub fn enter(&mut self, entry: &Entry) {
        self.items += 1;
        self.words += entry.room();
    }

    /// Counts an item that is no longer there. Those up to version `cleared` were subtracted when the table was
    /// cleared.
    pub fn leave(&mut self, entry: &Entry, cleared: u64) {
        if entry.version() > cleared {
            self.items -= 1;
            self.words -= entry.room();
        }
    }

    /// Counts an item that had expired, or had been cleared, when it was found.
    pub fn reclaim(&mut self, entry: &Entry) {
        self.reclaimed += 1;
        self.expired_unfetched += u64::from(entry.marks() & FETCHED == 0);
    }

    /// Counts an item that was evicted.
    pub fn evict(&mut self, entry: &Entry) {
        self.evictions += 1;
        self.evicted_unfetched += u64::from(entry.marks() & FETCHED == 0);
    }
}
