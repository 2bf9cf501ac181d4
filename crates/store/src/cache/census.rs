//! What is counted of the items that a table has, and of those that left it.

use super::FETCHED;
use super::entry::Entry;

/// The items that a table has, and those that left it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Census {
    pub items: usize,
    /// Words of them.
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

    /// Of an item that is not there any more. Those up to the version `cleared` left together.
    pub fn leave(&mut self, entry: &Entry, cleared: u64) {
        if entry.version() > cleared {
            self.items -= 1;
            self.words -= entry.room();
        }
    }

    /// Of an item that had expired, or had been cleared, when its memory was wanted.
    pub fn reclaim(&mut self, entry: &Entry) {
        self.reclaimed += 1;
        self.expired_unfetched += u64::from(entry.marks() & FETCHED == 0);
    }

    /// Of an item that made room for others.
    pub fn evict(&mut self, entry: &Entry) {
        self.evictions += 1;
        self.evicted_unfetched += u64::from(entry.marks() & FETCHED == 0);
    }
}
