//! The interface of remote stores: a range of bytes that lies elsewhere.
//!
//! A store belongs to one thread, which submits requests, turns the store, and polls for finished requests. A request
//! moves its buffers in, and they come back when it is finished. Unrelated requests finish in any order.
//!
//! Guarantees:
//!
//! - Requests that overlap, where at least one changes something, finish in the order in which they were submitted.
//! - A request sees the effect of every request submitted before it: a read that overlaps earlier writes finds their
//!   bytes, whether or not they are finished, and of overlapping writes the last one prevails.
//! - A write that succeeds is kept as its store promises (by a number of donors, for example). A write that fails
//!   leaves old or new bytes, block by block, and never any others.
//! - Once a [`Job::Flush`] is finished, so is every write submitted before it, and the writes have reached every place
//!   that is to hold them.
//!
//! A store around a store can add to it: `sinew_remote_block::LastCopy` keeps a file of the host as one more copy.
//! [`crate::RamStore`] is the baseline for other stores.

use sinew_fabric::Readiness;
use sinew_fabric::verbs::Slice;
use sinew_mem::{Arena, MessageBuffer};

/// Bytes of a block, which is written as a whole or not at all. Requests may begin and end anywhere; those that cover
/// whole blocks cost less.
pub const BLOCK: usize = 4096;

/// Operation that a request asks for.
#[derive(Debug)]
pub enum Job {
    /// Reads the bytes from `at` on, as many as the target holds.
    Read {
        /// First byte.
        at: u64,
        /// Destination of the bytes: a buffer of the store's [arena](Store::arena).
        target: MessageBuffer,
    },
    /// Writes bytes from `at` on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes, from a buffer of the store's [arena](Store::arena). The store drops its share when the write is
        /// finished.
        source: Slice,
    },
    /// Discards bytes that are no longer needed: they read as zeros, and their memory may be given to others.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Waits for every request submitted before it.
    Flush,
}

impl Job {
    /// Bytes that the job covers; 0 for a flush.
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

/// A job, with a tag of its caller's.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the caller; comes back with the finished request.
    pub tag: u64,
    /// Operation that the request asks for.
    pub job: Job,
}

/// A finished request.
#[derive(Debug)]
pub struct Finished {
    /// Tag of the request.
    pub tag: u64,
    /// How it ended. After an error, the contents of a read's target mean nothing.
    pub result: Result<(), StoreError>,
    /// The target of a read.
    pub target: Option<MessageBuffer>,
}

/// Reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The request reaches beyond the store.
    #[error("the request covers bytes {at} to {end}, but the store has {len} bytes", end = at.saturating_add(*asked))]
    OutOfRange {
        /// First byte asked for.
        at: u64,
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the store.
        len: u64,
    },
    /// No donor holds the bytes any more.
    #[error("the bytes from {at} on are lost: {why}")]
    Lost {
        /// First lost byte.
        at: u64,
        /// Fate of the copies.
        why: String,
    },
    /// No memory is left where the bytes would have to lie.
    #[error("no room for the bytes from {at} on: {why}")]
    Full {
        /// First byte without memory.
        at: u64,
        /// The donors asked.
        why: String,
    },
    /// Another writer has taken over the store.
    #[error("another writer has taken the store over: {0}")]
    Fenced(String),
    /// Too few donors answer for a write to be kept as promised.
    #[error("{0}")]
    Unavailable(String),
    /// Too few donors answer to tell who owns the store: another writer, or nobody.
    #[error("{0}")]
    NoAnswer(String),
}

/// Reason why a request was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The store holds as many requests as it can: turn it, and poll.
    #[error("the store holds as many requests as it can: turn it, and poll for what is finished")]
    Busy(Request),
    /// The request can never be done.
    #[error("{error}")]
    Never {
        /// The reason.
        #[source]
        error: StoreError,
        /// The request, with its buffers.
        request: Request,
    },
}

/// Health of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Every byte has all its copies, and, where there are donors, any one of them may fail.
    Whole,
    /// Every byte has all its copies, but if one more of the donors that vote on which copies count fails, there is no
    /// majority of them, and the store cannot be used. So it is with two donors, of which one votes.
    FewVoters(String),
    /// All bytes are there, but in fewer copies than there should be.
    Degraded(String),
    /// Some bytes are lost.
    Damaged(String),
    /// The store refuses all requests from now on, although its bytes may be whole: another writer has taken it over,
    /// or too few donors answer.
    Ended(String),
}

/// A run of bytes that are all a hole, or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Whether they take no memory, and read as zeros.
    pub is_hole: bool,
}

/// A range of bytes that lies elsewhere; see [the module](self).
pub trait Store: Readiness {
    /// Bytes of the store.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Arena from which the buffers of requests are taken.
    fn arena(&self) -> &Arena;

    /// Accepts a request, which may begin with the next [`Self::turn`].
    ///
    /// # Errors
    ///
    /// [`Refused`], which gives the request back.
    fn submit(&mut self, request: Request) -> Result<(), Refused>;

    /// Does the work that is due, and returns whether there was any. Never blocks.
    fn turn(&mut self) -> bool;

    /// Moves up to `max` finished requests to `finished`, and returns their number.
    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize;

    /// Returns how many bytes from `at` on are all a hole, or all not, and which: at least 1, at most `len`, and
    /// possibly fewer than there are. Submitted requests count. A store that does not know says that none is a hole.
    /// The range must lie in the store, and `len` must not be 0.
    fn extent(&self, at: u64, len: u64) -> Extent {
        let _ = at;
        Extent { len, is_hole: false }
    }

    /// Health of the store.
    fn status(&self) -> Status;
}

/// Pages that [`Store::extent`] looks at, at most: it must take no long time.
const EXTENT_PAGES_MAX: u64 = 1024;

/// The extent that begins at `at`, by which pages are holes.
pub(crate) fn extent_of_pages(at: u64, len: u64, is_hole: impl Fn(u64) -> bool) -> Extent {
    const PAGE: u64 = BLOCK as u64;
    let first = at / PAGE;
    let end = (at + len).div_ceil(PAGE).min(first + EXTENT_PAGES_MAX);
    let starts_hole = is_hole(first);
    let count = (first..end).take_while(|page| is_hole(*page) == starts_hole).count() as u64;
    Extent { len: len.min((first + count) * PAGE - at), is_hole: starts_hole }
}

/// Checks that a job lies within a store of `len` bytes.
///
/// # Errors
///
/// [`StoreError::OutOfRange`] if it does not.
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
