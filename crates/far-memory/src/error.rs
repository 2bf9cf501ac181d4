//! Errors of far memory.

use std::io;

use sinew_mem::AllocError;
use sinew_remote_memory::StoreError;

/// Error of an access to far memory. No error loses changes made here: a changed page stays local until the store has
/// it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarError {
    /// All copies of a page are lost.
    #[error("page {page} is lost: {source}")]
    Lost {
        /// The page, counted from the start of the store.
        page: u64,
        /// The store's account of the copies.
        #[source]
        source: StoreError,
    },
    /// A page could not be fetched. A retry may succeed.
    #[error("page {page} cannot be fetched: {source}")]
    Fetch {
        /// The page, counted from the start of the store.
        page: u64,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// Changed pages could not be written to the store. They stay local, and are retried when their room is needed or
    /// at the next flush.
    #[error(
        "{pages} changed pages cannot be written back, page {page} among them: {source}; they stay in local memory"
    )]
    WriteBack {
        /// The last page that failed, counted from the start of the store.
        page: u64,
        /// Pages whose last write failed.
        pages: usize,
        /// The store's error for that page.
        #[source]
        source: StoreError,
    },
    /// The store did not confirm that the written data has reached all its destinations.
    #[error("all pages are written, but the store did not confirm them: {0}")]
    Unconfirmed(#[source] StoreError),
    /// Guards hold as many pages as allowed.
    #[error(
        "cannot pin {asked} pages: {pinned} are pinned, and at most {max} may be; drop guards, or allow more local pages"
    )]
    TooManyPins {
        /// Pages of the range.
        asked: usize,
        /// Pages that guards hold.
        pinned: usize,
        /// Pages that guards may hold.
        max: usize,
    },
    /// The page is held by a guard, which may have been forgotten.
    #[error("a guard has page {page}: drop it first")]
    Borrowed {
        /// The page, counted from the start of the store.
        page: u64,
    },
    /// The index or range is not in the vector.
    #[error("elements {from} to {to} are not in a vector of {len}")]
    OutOfBounds {
        /// First element asked for.
        from: usize,
        /// First element after the requested ones.
        to: usize,
        /// Elements of the vector.
        len: usize,
    },
    /// The store has no free run of pages for a vector.
    #[error("no run of {pages} free pages: the longest has {free}; drop vectors, or take a larger store")]
    Full {
        /// Pages requested.
        pages: u64,
        /// Pages of the longest free run.
        free: u64,
    },
    /// Invalid options.
    #[error("{0}")]
    Options(String),
    /// The store's arena is too small for the local pages.
    #[error("no buffers for the local pages: {0}")]
    Buffers(#[from] AllocError),
    /// The handler of the mapping has stopped, so its faults are not served.
    #[error("the handler of the mapping has stopped")]
    Stopped,
    /// The system refused a resource or an operation that the handler of a mapping needs.
    #[error("cannot go on handling faults: {0}")]
    System(#[source] io::Error),
    /// The system refused to let the thread sleep.
    #[error("cannot wait for the store: {0}")]
    Sleep(#[source] io::Error),
}

impl FarError {
    /// The error of a failed fetch.
    pub(crate) fn of_fetch(page: u64, source: StoreError) -> Self {
        match source {
            StoreError::Lost { .. } => Self::Lost { page, source },
            source => Self::Fetch { page, source },
        }
    }
}
