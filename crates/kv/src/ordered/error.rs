//! Errors of an index client.

use sinew_mem::AllocError;
use sinew_rpc::{CallError, ChannelError, ConnectError, EnqueueError, Rejected};
use sinew_store::ordered::PutError;

use super::protocol::{Malformed, Refusal};

/// Reason why a client of an index got no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The sessions could not be opened, or were lost before all were open.
    #[error(transparent)]
    Channel(ChannelError),
    /// A call got no response. The error names the peer and the cause, and says whether the request may have run.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The endpoint did not accept a call.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// There was no memory for a message buffer.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The server refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server's answer is malformed, or answers another question.
    #[error("the index's answer is malformed: {0}")]
    BadAnswer(#[from] Malformed),
    /// The window is full.
    #[error("{window} requests are in flight already: take answers first, or open the client with a larger window")]
    WindowFull {
        /// Requests that may be in flight.
        window: usize,
    },
    /// The port failed while the client waited.
    #[error("the port failed: {0}")]
    Io(#[from] std::io::Error),
}

impl From<ChannelError> for Error {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Connect(error) => Self::Connect(error),
            error => Self::Channel(error),
        }
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        Self::Enqueue(rejected.error)
    }
}

impl From<PutError> for Error {
    fn from(error: PutError) -> Self {
        Self::Refused(error.into())
    }
}
