//! Errors of gets, and of making a reader.

use crate::reader::message::Refusal;
use crate::reader::object::ObjectError;
use crate::verbs::{PostError, Status, VerbsError};
use sinew_mem::AllocError;

/// Reason why a get cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The object is over a limit.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The get does not start in one of the server's regions.
    #[error("the first access is outside the memory that the server exposes")]
    OutOfBounds,
    /// The window is full of gets that are in flight, or that ended at their deadline and are not answered yet.
    #[error("a full window of {0} gets is in flight: turn the reader")]
    Full(usize),
    /// The queue pair refused the request.
    #[error(transparent)]
    Refused(PostError),
    /// The server is lost.
    #[error("the connection to {peer} is lost ({status}): join again")]
    PeerLost {
        /// The server.
        peer: String,
        /// Status by which the loss was noticed.
        status: Status,
    },
}

/// Reason why a get found nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The bytes of an access led nowhere.
    #[error("the bytes of access {access} do not say where the next one goes")]
    NoNext {
        /// Number of that access, from 0.
        access: u32,
    },
    /// An access would have left the server's regions; it was not made.
    #[error("access {access} is outside the memory that the server exposes")]
    OutOfBounds {
        /// Number of that access, from 0.
        access: u32,
    },
    /// The server refused a get that this reader considers valid.
    #[error("the server refused the get: {0}; use the same release on both sides")]
    Server(Refusal),
    /// The queue pair refused the next access.
    #[error("an access was refused: {0}")]
    Refused(PostError),
    /// The get did not end in time.
    #[error("{peer} did not answer within {after_ns} ns")]
    Deadline {
        /// The server.
        peer: String,
        /// Time after which the get was given up, in nanoseconds.
        after_ns: u64,
    },
    /// The server is dead, or the connection to it broke.
    #[error("the connection to {peer} is lost: {status}")]
    PeerLost {
        /// The server.
        peer: String,
        /// Status by which the loss was noticed.
        status: Status,
    },
}

/// Reason why a reader cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A receive was refused.
    #[error(transparent)]
    Post(#[from] PostError),
}
