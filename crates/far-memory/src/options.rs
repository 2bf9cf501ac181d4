//! Options and statistics of far memory.

use crate::error::FarError;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Fewest local pages allowed.
pub const LOCAL_PAGES_MIN: usize = 4;

/// Most local pages allowed: a page table's entry has 31 bits for the frame.
pub const LOCAL_PAGES_MAX: usize = (1 << 31) - 1;

/// Options of far memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages in local memory, at most. From [`LOCAL_PAGES_MIN`] to [`LOCAL_PAGES_MAX`].
    pub local_pages: usize,
    /// Pages that guards may hold at once. Fewer than the local pages.
    pub pinned_pages: usize,
    /// Pages fetched ahead of a sequential reader at once, at most. No more than half of the local pages; 0: none.
    pub ahead_pages: usize,
    /// Background write-back begins when more pages than this are changed. No more than the local pages.
    pub dirty_high: usize,
    /// Background write-back ends when this many changed pages are left. No more than `dirty_high`.
    pub dirty_low: usize,
    /// Pages being written back at once, at most. At least 1.
    pub writes_max: usize,
}

impl Options {
    /// Options for a number of local pages: half of them may be pinned, an eighth of them (at most 32) are fetched
    /// ahead, and write-back begins at a quarter and ends at an eighth.
    pub fn with_local_pages(local_pages: usize) -> Self {
        let ahead_pages = (local_pages / 8).min(32);
        Self {
            local_pages,
            pinned_pages: local_pages / 2,
            ahead_pages: if ahead_pages < 2 { 0 } else { ahead_pages },
            dirty_high: local_pages / 4,
            dirty_low: local_pages / 8,
            writes_max: (local_pages / 4).clamp(1, 32),
        }
    }

    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), FarError> {
        let invalid = |what: String| Err(FarError::Options(what));
        let Self { local_pages, pinned_pages, ahead_pages, dirty_high, dirty_low, writes_max } = *self;
        if !(LOCAL_PAGES_MIN..=LOCAL_PAGES_MAX).contains(&local_pages) {
            return invalid(format!("{local_pages} local pages: there must be {LOCAL_PAGES_MIN} to {LOCAL_PAGES_MAX}"));
        }
        if pinned_pages >= local_pages {
            return invalid(format!(
                "{pinned_pages} pinned pages of {local_pages} local ones: at least one must stay unpinned"
            ));
        }
        if ahead_pages > local_pages / 2 {
            return invalid(format!("{ahead_pages} pages ahead is more than half of {local_pages} local pages"));
        }
        if dirty_low > dirty_high || dirty_high > local_pages {
            return invalid(format!(
                "dirty_high is {dirty_high} and dirty_low is {dirty_low}: dirty_low may be at most dirty_high, and dirty_high at most {local_pages}"
            ));
        }
        if writes_max == 0 {
            return invalid("writes_max is 0: nothing would be written back".into());
        }
        Ok(())
    }
}

/// Statistics of far memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Accesses to pages that were not local.
    pub missing: u64,
    /// Accesses to pages that were fetched ahead and still in flight.
    pub waited: u64,
    /// Pages fetched, including those ahead.
    pub fetched: u64,
    /// Pages requested ahead.
    pub fetched_ahead: u64,
    /// Pages fetched ahead and evicted unused.
    pub unused: u64,
    /// Fetches that failed.
    pub fetches_failed: u64,
    /// Pages written back.
    pub written: u64,
    /// Writes that failed. Their pages stayed local.
    pub writes_failed: u64,
    /// Pages evicted to make room for others.
    pub evicted: u64,
    /// Changed pages now, excluding those that are being written.
    pub dirty: usize,
    /// Pages held by guards now.
    pub pinned: usize,
    /// Pages that are local now.
    pub local: usize,
}
