//! Outcomes of requests and receives.

use sinew_mem::OwnedRange;

use super::request::{Destination, Scatter};
use super::types::{Opcode, QpNumber};

/// Outcome of an operation, as one of the standard statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Status {
    /// It succeeded.
    #[error("success")]
    Success,
    /// A message did not fit in the buffer that was posted for it. (Over UC and UD a device may drop such a message
    /// instead, and keep the buffer for the next.)
    #[error("local length error: the message is longer than the buffer posted for it")]
    LocalLength,
    /// The queue pair could not perform it.
    #[error("local queue pair operation error")]
    LocalQpOperation,
    /// Local memory is not registered for this.
    #[error("local protection error")]
    LocalProtection,
    /// The queue pair was in error, or reset, before the request's turn came.
    #[error("work request flushed: the queue pair is in the error state")]
    Flushed,
    /// The peer's answer was invalid.
    #[error("bad response")]
    BadResponse,
    /// Local memory may not be accessed this way.
    #[error("local access error")]
    LocalAccess,
    /// The peer cannot do this.
    #[error("remote invalid request error")]
    RemoteInvalidRequest,
    /// The remote access had a wrong key, was out of bounds or not allowed, or was to memory that is no longer
    /// registered or (where the device can know) whose owner is dead.
    #[error("remote access error: wrong key, out of bounds, not allowed, or no longer exposed")]
    RemoteAccess,
    /// The peer's device could not do it.
    #[error("remote operation error")]
    RemoteOperation,
    /// The peer did not answer: it is gone, was reset, or is in error.
    #[error("transport retry counter exceeded: the peer does not answer")]
    RetryExceeded,
    /// The peer had posted no buffer, try after try.
    #[error("receiver-not-ready retry counter exceeded: the peer has posted no receive")]
    RnrRetryExceeded,
    /// Anything else, with the device's own number.
    #[error("device error {0}")]
    Other(u32),
}

/// A message that was received, shown while it lies in its receive's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message.
    pub bytes: &'a [u8],
    /// As in [`Completion`].
    pub immediate: Option<u32>,
    /// As in [`Completion`].
    pub from: Option<Destination>,
}

/// An operation that is over.
#[derive(Debug)]
pub struct Completion {
    /// The caller's identifier of the request or receive.
    pub id: u64,
    /// The queue pair that it belonged to.
    pub qp: QpNumber,
    /// Outcome. If it is not [`Status::Success`], only `id`, `qp`, `opcode`, `buffers` and `range` mean something.
    pub status: Status,
    /// Kind of the operation.
    pub opcode: Opcode,
    /// Bytes received, read, or written by the peer.
    pub len: usize,
    /// The message's four further bytes.
    pub immediate: Option<u32>,
    /// For UD receives, the destination of an answer. Its key is the sender's where the fabric tells it, and otherwise
    /// that of the queue pair that received, so queue pairs that answer each other share one key.
    pub from: Option<Destination>,
    /// The buffers of a receive, a READ or an atomic. A receive's buffers are shortened to what arrived in them, which
    /// for a WRITE with immediate is nothing.
    pub buffers: Scatter,
    /// The memory that a request had taken in as a range.
    pub range: Option<OwnedRange>,
}

impl Status {
    /// Whether the operation succeeded.
    #[inline]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }
}
