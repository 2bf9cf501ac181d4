//! What a client of an index can meet.

use sinew_mem::AllocError;
use sinew_rpc::{CallError, ChannelError, ConnectError, EnqueueError, Rejected};
use sinew_store::ordered::PutError;

use super::protocol::{Malformed, Refusal};

/// Why a client of an index got no answer, or none that it can use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The sessions could not be opened, or were lost before all were open.
    #[error(transparent)]
    Channel(ChannelError),
    /// A call got no response. Says which peer, why, and whether the request may have run.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A call was not taken.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// No message buffer.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The server did not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server answered something else than what was asked.
    #[error("the index's answer makes no sense: {0}")]
    BadAnswer(#[from] Malformed),
    /// As many requests are in flight as there may be.
    #[error("{window} requests are in flight already: take answers first, or open the client with a larger window")]
    WindowFull {
        /// How many there may be.
        window: usize,
    },
    /// The port failed while we waited.
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
