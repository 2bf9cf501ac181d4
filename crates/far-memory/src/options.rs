//! What an owner of far memory decides, and what far memory tells of itself.

use crate::error::FarError;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Local pages, at least.
pub const LOCAL_PAGES_MIN: usize = 4;

/// Local pages, at most: a page table's entry has so many bits for them.
pub const LOCAL_PAGES_MAX: usize = (1 << 31) - 1;

/// What an owner of far memory decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages in local memory, at most: [`LOCAL_PAGES_MIN`] at least.
    pub local_pages: usize,
    /// Pages that guards may hold at a time. No more than all local pages but one.
    pub pinned_pages: usize,
    /// Pages that are fetched ahead of a sequential reader at a time, at most; 0: none.
    pub ahead_pages: usize,
    /// From more changed pages than these on, some are written back in the background.
    pub dirty_high: usize,
    /// Until so many are left.
    pub dirty_low: usize,
    /// Pages that are being written back at a time, at most.
    pub writes: usize,
}

impl Options {
    /// What suits so many local pages: half of them may be pinned, up to 32 (at most an eighth of them) are fetched ahead, and writing back begins at a
    /// quarter and ends at an eighth.
    pub fn with_local_pages(local_pages: usize) -> Self {
        let ahead_pages = (local_pages / 8).min(32);
        Self {
            local_pages,
            pinned_pages: local_pages / 2,
            ahead_pages: if ahead_pages < 2 { 0 } else { ahead_pages },
            dirty_high: local_pages / 4,
            dirty_low: local_pages / 8,
            writes: (local_pages / 4).clamp(1, 32),
        }
    }

    /// Whether they can be had.
    pub(crate) fn check(&self) -> Result<(), FarError> {
        let wrong = |what: String| Err(FarError::Options(what));
        let Self { local_pages, pinned_pages, ahead_pages, dirty_high, dirty_low, writes } = *self;
        if !(LOCAL_PAGES_MIN..=LOCAL_PAGES_MAX).contains(&local_pages) {
            return wrong(format!("{local_pages} local pages: from {LOCAL_PAGES_MIN} to {LOCAL_PAGES_MAX} work"));
        }
        if pinned_pages >= local_pages {
            return wrong(format!("{pinned_pages} of {local_pages} local pages to pin: one at least stays free"));
        }
        if ahead_pages > local_pages / 2 {
            return wrong(format!("{ahead_pages} pages ahead is more than half of {local_pages} local pages"));
        }
        if dirty_low > dirty_high || dirty_high > local_pages {
            return wrong(format!(
                "writing back from {dirty_high} changed pages to {dirty_low}: the first is the higher, and no more than {local_pages}"
            ));
        }
        if writes == 0 {
            return wrong("no pages to be written at a time: nothing would be written back".into());
        }
        Ok(())
    }
}

/// What far memory has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that were asked for and not here.
    pub missing: u64,
    /// Pages that were asked for and still on their way, fetched ahead.
    pub late: u64,
    /// Pages that were fetched, the ones ahead among them.
    pub fetched: u64,
    /// Pages that were fetched ahead.
    pub fetched_ahead: u64,
    /// Pages that were fetched ahead and went unused.
    pub unused: u64,
    /// Fetches that failed.
    pub fetches_failed: u64,
    /// Pages that were written back.
    pub written: u64,
    /// Writes that failed; their pages stayed.
    pub writes_failed: u64,
    /// Pages that gave their place to others.
    pub evicted: u64,
    /// Changed pages now, those that are being written not among them.
    pub dirty: usize,
    /// Pages that guards hold now.
    pub pinned: usize,
    /// Pages here now.
    pub local: usize,
}
