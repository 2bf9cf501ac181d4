//! A range of bytes that lies elsewhere.
//!
//! A store belongs to one thread, which submits requests, turns the store, and polls for what is finished. Requests move their buffers in, and get
//! them back when they are finished; those that have nothing to do with each other come in any order.
//!
//! What holds:
//!
//! - Requests that overlap, one of which changes something, are finished in the order in which they were submitted.
//! - A request sees all that was submitted before it: a read that overlaps earlier writes finds what they wrote, whether they are finished or not, and
//!   of overlapping writes the last stays.
//! - A write that is finished well is kept as its store promises (by so many donors, for example). One that fails leaves old or new bytes, block by
//!   block, and never others.
//! - After a [`Job::Flush`] is finished, so is every write that was submitted before it, and what such writes left has reached all places that it is to.

use sinew_fabric::Readiness;
use sinew_fabric::verbs::Slice;
use sinew_mem::{Arena, MessageBuffer};

/// Bytes of a block: what is written as a whole or not at all. Requests may begin and end anywhere; those that cover whole blocks cost less.
pub const BLOCK: usize = 4096;

/// What a store is asked to do.
#[derive(Debug)]
pub enum Job {
    /// Bytes from `at` on, as many as the target holds.
    Read {
        /// First byte.
        at: u64,
        /// Where they go: a buffer of the store's [arena](Store::arena).
        target: MessageBuffer,
    },
    /// Bytes to `at` and on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes: of a buffer of the store's [arena](Store::arena). The store gives its share up when the write is finished.
        source: Slice,
    },
    /// The bytes are not needed any more: they read as zeros, and their memory may be given to others.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Waits for what was submitted before.
    Flush,
}

impl Job {
    /// Bytes that it is about: none of a flush.
    #[expect(clippy::len_without_is_empty, reason = "bytes of a job, which is no collection")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Read { target, .. } => target.len() as u64,
            Self::Write { source, .. } => source.len as u64,
            Self::Discard { len, .. } => *len,
            Self::Flush => 0,
        }
    }
}

/// A job with its caller's name for it.
#[derive(Debug)]
pub struct Request {
    /// The caller's own.
    pub tag: u64,
    /// What to do.
    pub job: Job,
}

/// A request that is over.
#[derive(Debug)]
pub struct Finished {
    /// The request's.
    pub tag: u64,
    /// How it ended. After an error, what a read's target holds means nothing.
    pub result: Result<(), StoreError>,
    /// The target of a read.
    pub target: Option<MessageBuffer>,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It does not lie in the store.
    #[error("bytes {at} to {end} are asked for of a store of {len} bytes", end = at.saturating_add(*asked))]
    OutOfRange {
        /// First byte.
        at: u64,
        /// Bytes.
        asked: u64,
        /// Bytes of the store.
        len: u64,
    },
    /// No donor has the bytes any more.
    #[error("the bytes from {at} on are lost: {why}")]
    Lost {
        /// First byte that is.
        at: u64,
        /// What became of the copies.
        why: String,
    },
    /// There is no memory left where it has to lie.
    #[error("no room for the bytes from {at} on: {why}")]
    Full {
        /// First byte that has none.
        at: u64,
        /// Whom was asked.
        why: String,
    },
    /// Somebody else writes to the store now.
    #[error("another writer has taken the store over: {0}")]
    Fenced(String),
    /// Too few donors answer for a write to be kept as it should.
    #[error("{0}")]
    Unavailable(String),
    /// Too few donors answer to say whose the store is: another writer may have it, or nobody.
    #[error("{0}")]
    Silent(String),
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many as the store holds are on their way: turn it, and poll.
    #[error("the store has as many requests as it can have: turn it, and poll for what is finished")]
    Busy(Request),
    /// It can never be done.
    #[error("{error}")]
    Never {
        /// Why.
        #[source]
        error: StoreError,
        /// The request, with its buffers.
        request: Request,
    },
}

/// How well a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// As it should be.
    Whole,
    /// All is there, but in fewer copies than it should be.
    Degraded(String),
    /// Some bytes are lost.
    Damaged(String),
}

/// Bytes in a row of which the same holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// They take no memory, and read as zeros.
    pub is_hole: bool,
}

/// A range of bytes that lies elsewhere; see [the module](self).
pub trait Store: Readiness {
    /// Bytes of it.
    fn len(&self) -> u64;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where buffers of requests come from.
    fn arena(&self) -> &Arena;

    /// Takes a request. It may begin with the next [`Self::turn`].
    ///
    /// # Errors
    ///
    /// [`Refused`], with the request.
    fn submit(&mut self, request: Request) -> Result<(), Refused>;

    /// Does what there is to do, and returns whether there was anything. Never blocks.
    fn turn(&mut self) -> bool;

    /// Takes up to `max` requests that are over, and adds them to `finished`. Returns how many.
    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize;

    /// How many of the `len` bytes from `at` on are a hole, or are none, in a row: as many as the first of them, or fewer, and at least one. What was
    /// submitted counts. A store that does not know says that none is a hole. The range lies in the store, and `len` is not 0.
    fn extent(&self, at: u64, len: u64) -> Extent {
        let _ = at;
        Extent { len, is_hole: false }
    }

    /// How well it is.
    fn status(&self) -> Status;
}

/// Whether a job lies in a store of `len` bytes.
///
/// # Errors
///
/// [`StoreError::OutOfRange`].
pub fn check(job: &Job, len: u64) -> Result<(), StoreError> {
    let (at, asked) = match job {
        Job::Read { at, target } => (*at, target.len() as u64),
        Job::Write { at, source } => (*at, source.len as u64),
        Job::Discard { at, len } => (*at, *len),
        Job::Flush => return Ok(()),
    };
    let is_in = at.checked_add(asked).is_some_and(|end| end <= len);
    if is_in { Ok(()) } else { Err(StoreError::OutOfRange { at, asked, len }) }
}
