//! What can go wrong with a get.

use crate::reader::message::Refusal;
use crate::reader::object::ObjectError;
use crate::verbs::{PostError, Status, VerbsError};
use sinew_mem::AllocError;

/// Why a get was not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It is over a limit.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// It does not start in one of the server's regions.
    #[error("the first access is outside of what the server exposes")]
    OutOfBounds,
    /// A window of gets is under way, or ended by their deadlines and not answered yet.
    #[error("a full window of {0} gets is under way: turn the reader")]
    Full(usize),
    /// The queue pair did not take it.
    #[error(transparent)]
    Refused(PostError),
    /// The server is lost.
    #[error("the connection to {peer} is lost ({status}): join again")]
    PeerLost {
        /// Whom it was to.
        peer: String,
        /// How that was noticed.
        status: Status,
    },
}

/// Why a get found nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The bytes of an access led nowhere.
    #[error("the bytes of access {access} do not say where the next one goes")]
    NoNext {
        /// Which, from 0.
        access: u32,
    },
    /// An access was led out of the server's regions; it was not made.
    #[error("access {access} is outside of what the server exposes")]
    OutOfBounds {
        /// Which, from 0.
        access: u32,
    },
    /// The server refused what this reader takes for good.
    #[error("the server refused the get: {0}; use the same release on both sides")]
    Server(Refusal),
    /// The queue pair did not take the next access.
    #[error("an access was not taken: {0}")]
    Refused(PostError),
    /// It was not over in time.
    #[error("{peer} did not answer within {after_ns} ns")]
    Deadline {
        /// Whom it was asked.
        peer: String,
        /// After how long it was given up.
        after_ns: u64,
    },
    /// The server is dead, or the connection to it broke.
    #[error("the connection to {peer} is lost: {status}")]
    PeerLost {
        /// Whom it was asked.
        peer: String,
        /// How that was noticed.
        status: Status,
    },
}

/// Why a reader could not be had.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// What the device says.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A receive was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
}
