//! What a client of a cache can meet.

use sinew_mem::AllocError;
use sinew_rpc::{CallError, ChannelError, ConnectError, EnqueueError, Rejected};
use sinew_store::cache::KEY_LEN_MAX;

use super::protocol::{KEYS_MAX, Malformed, Refusal};

/// Why a client of a cache got no answer, or none that it can use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The sessions with a partition could not be opened, or were lost before all were open.
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
    #[error("the server's answer is none: {0}")]
    BadAnswer(#[from] Malformed),
    /// As many requests are in flight as there may be.
    #[error("{window} requests are in flight already: take answers first, or open the cache with a larger window")]
    WindowFull {
        /// How many there may be.
        window: usize,
    },
    /// The key is too long for any cache.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
    /// A request for several keys is for one to 64.
    #[error("a request asks for 1 to {KEYS_MAX} keys, not for {count}")]
    Keys {
        /// How many it was for.
        count: usize,
    },
    /// Some partitions have no address.
    #[error("the cache has {partitions} partitions, each at an address of its own, and {addresses} were given")]
    Addresses {
        /// Partitions that the server has.
        partitions: usize,
        /// Addresses that were given.
        addresses: usize,
    },
    /// Two addresses lead to the same partition, or to different caches.
    #[error(
        "{address} has partition {partition} of {partitions}, which is not what is missing: give the address of each \
         partition of one cache once"
    )]
    Partition {
        /// Whose answer does not fit.
        address: String,
        /// What it says that it has.
        partition: usize,
        /// Of how many.
        partitions: usize,
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
