//! What can go wrong with far memory.

use std::io;

use sinew_mem::AllocError;
use sinew_remote_memory::StoreError;

/// Why an access to far memory failed. Nothing that was written is lost by any of these: a page that was changed stays local until its store has it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarError {
    /// All copies of a page are lost.
    #[error("page {page} is lost: {source}")]
    Lost {
        /// The page, from the start of the store.
        page: u64,
        /// What became of the copies.
        #[source]
        source: StoreError,
    },
    /// A page could not be fetched; another try may succeed.
    #[error("page {page} cannot be fetched: {source}")]
    Fetch {
        /// The page, from the start of the store.
        page: u64,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// Changed pages could not be written to the store. They stay local, and are tried again when the room is needed or at the next flush.
    #[error(
        "{pages} changed pages cannot be written back, page {page} among them: {source}; they stay in local memory"
    )]
    WriteBack {
        /// The last one that failed, from the start of the store.
        page: u64,
        /// Pages that wait to be written again.
        pages: usize,
        /// Why that one did.
        #[source]
        source: StoreError,
    },
    /// The store did not confirm that what was written has reached all places that it is to.
    #[error("all pages are written, but the store did not confirm them: {0}")]
    Unconfirmed(#[source] StoreError),
    /// Guards hold as many pages as they may.
    #[error(
        "{asked} pages are to be pinned beside {pinned} that are, of {max} that may be: drop guards, or allow more local pages"
    )]
    TooManyPins {
        /// Pages of the range.
        asked: usize,
        /// Pages that guards hold.
        pinned: usize,
        /// Pages that they may hold.
        max: usize,
    },
    /// A guard that was never dropped has the page.
    #[error("a guard has page {page}: drop it first")]
    Borrowed {
        /// The page, from the start of the store.
        page: u64,
    },
    /// An index or a range that is not in the vector.
    #[error("elements {from} to {to} are not in a vector of {len}")]
    OutOfBounds {
        /// First element asked for.
        from: usize,
        /// The first that is not.
        to: usize,
        /// Elements of the vector.
        len: usize,
    },
    /// The store has no room for a vector.
    #[error("no {pages} pages in a row are free: the longest run has {free}; drop vectors, or take a larger store")]
    Full {
        /// Pages asked for.
        pages: u64,
        /// Pages of the longest free run.
        free: u64,
    },
    /// Options that cannot be had.
    #[error("{0}")]
    Options(String),
    /// The store's arena is too small for the local pages.
    #[error("no buffers for the local pages: {0}")]
    Buffers(#[from] AllocError),
    /// Nobody handles the faults of a mapping any more.
    #[error("the handler of the mapping has stopped")]
    Stopped,
    /// The system refused what the handler of a mapping needs.
    #[error("cannot go on handling faults: {0}")]
    System(#[source] io::Error),
    /// The system refused to let the thread sleep.
    #[error("cannot wait for the store: {0}")]
    Sleep(#[source] io::Error),
}

impl FarError {
    /// The error of a fetch.
    pub(crate) fn of_fetch(page: u64, source: StoreError) -> Self {
        match source {
            StoreError::Lost { .. } => Self::Lost { page, source },
            source => Self::Fetch { page, source },
        }
    }
}
