//! Errors of a cache client.

use sinew_mem::AllocError;
use sinew_rpc::{CallError, ChannelError, ConnectError, EnqueueError, Rejected};
use sinew_store::cache::KEY_LEN_MAX;

use super::protocol::{KEYS_MAX, Malformed, Refusal};

/// Reason why a client of a cache got no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The sessions with a partition could not be opened, or were lost before all were open.
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
    #[error("the server's answer is malformed: {0}")]
    BadAnswer(#[from] Malformed),
    /// The window is full.
    #[error("{window} requests are in flight already: take answers first, or open the cache with a larger window")]
    WindowFull {
        /// Requests that may be in flight.
        window: usize,
    },
    /// The key is longer than any cache accepts.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len: usize,
    },
    /// A request for several keys had none, or more than [`KEYS_MAX`].
    #[error("a request asks for 1 to {KEYS_MAX} keys, not for {count}")]
    Keys {
        /// Keys in the request.
        count: usize,
    },
    /// Fewer addresses were given than there are partitions.
    #[error("the cache has {partitions} partitions, each at an address of its own, and {addresses} were given")]
    Addresses {
        /// Partitions that the server has.
        partitions: usize,
        /// Addresses given.
        addresses: usize,
    },
    /// Two addresses lead to the same partition, or to different caches.
    #[error(
        "{address} has partition {partition} of {partitions}, which does not fit the others: give the address of each \
         partition of one cache once"
    )]
    Partition {
        /// Address whose answer does not fit.
        address: String,
        /// Partition that it says it owns.
        partition: usize,
        /// Partitions that it says there are.
        partitions: usize,
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
