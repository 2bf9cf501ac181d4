//! What became of requests and receives.

use super::request::{Destination, Scatter};
use super::types::{Opcode, QpNumber};

/// How an operation ended: the standard statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Status {
    /// Well.
    #[error("success")]
    Success,
    /// A message did not fit in the buffer that was posted for it. (Over UC and UD a device may drop such a message instead, and
    /// keep the buffer for the next.)
    #[error("local length error: the message is longer than the buffer posted for it")]
    LocalLength,
    /// The queue pair could not do it.
    #[error("local queue pair operation error")]
    LocalQpOperation,
    /// Local memory is not registered for this.
    #[error("local protection error")]
    LocalProtection,
    /// The queue pair was in error, or reset, before the request's turn came.
    #[error("work request flushed: the queue pair is in the error state")]
    Flushed,
    /// The peer answered what makes no sense.
    #[error("bad response")]
    BadResponse,
    /// Local memory may not be accessed this way.
    #[error("local access error")]
    LocalAccess,
    /// The peer cannot do such a thing.
    #[error("remote invalid request error")]
    RemoteInvalidRequest,
    /// Wrong key, out of bounds, not allowed, no longer registered, or (where the device can know) of an owner who is dead.
    #[error("remote access error: wrong key, out of bounds, not allowed, or no longer exposed")]
    RemoteAccess,
    /// The peer's device could not do it.
    #[error("remote operation error")]
    RemoteOperation,
    /// The peer did not answer: it is gone, was reset, or is in error.
    #[error("transport retry counter exceeded: the peer does not answer")]
    RetryExceeded,
    /// The peer had posted no buffer, time and again.
    #[error("receiver-not-ready retry counter exceeded: the peer has posted no receive")]
    RnrRetryExceeded,
    /// Anything else, with the device's own number.
    #[error("device error {0}")]
    Other(u32),
}

/// One operation that is over.
#[derive(Debug)]
pub struct Completion {
    /// The request's or receive's own.
    pub id: u64,
    /// Whose it was.
    pub qp: QpNumber,
    /// How it ended. When not [`Status::Success`], only `id`, `qp`, `opcode` and `buffers` mean something.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// Bytes received, read, or written by the peer.
    pub len: usize,
    /// The message's four bytes more.
    pub immediate: Option<u32>,
    /// UD receives: whom an answer goes to. Its key is the sender's where the fabric tells it, and otherwise that of the queue
    /// pair which received, so those who answer each other share one.
    pub from: Option<Destination>,
    /// The buffers of a receive, a READ or an atomic. A receive's buffers are shortened to what arrived in them,
    /// which is nothing of a WRITE with immediate.
    pub buffers: Scatter,
}

impl Status {
    /// Whether it went well.
    #[inline]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }
}
