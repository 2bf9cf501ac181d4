//! What can go wrong, for whom, and what was or was not handed out.

use sinew_fabric::verbs::{PostError, Status, VerbsError};
use sinew_mem::AllocError;
use sinew_rpc::EnqueueError;

use crate::sequence::Epoch;

/// Why a server gave no numbers. None was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not as many at once.
    #[error("one call can ask for 1 to {max} numbers; ask for more in several calls")]
    Count {
        /// What the server allows.
        max: u32,
    },
    /// There are none left below the ceiling.
    #[error(
        "the sequencer has too few numbers left below its ceiling; if it keeps notes, its complaints say why it could not note a higher one"
    )]
    Exhausted,
    /// The request was none.
    #[error("the sequencer did not understand the request; use the same release on both sides")]
    Malformed,
}

/// Why a call has no numbers. Unless it says otherwise, numbers may have been taken, and are gaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server refused; nothing was taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server is another than it was: its numbers say nothing about those of the earlier one.
    #[error(
        "the sequencer started anew (epoch {found}, was {expected}): numbers may repeat; connect anew to accept it"
    )]
    Restarted {
        /// Of the numbers before.
        expected: Epoch,
        /// Of this answer.
        found: Epoch,
    },
    /// No answer came in the time.
    #[error("no answer within {waited_ns} ns: it was lost, or the sequencer is gone or overloaded")]
    NoAnswer {
        /// How long nothing came.
        waited_ns: u64,
    },
    /// The answer makes no sense.
    #[error("an answer of {len} bytes is none of a sequencer; look at the address")]
    BadAnswer {
        /// Its length.
        len: usize,
    },
    /// The call itself failed.
    #[error(transparent)]
    Rpc(#[from] sinew_rpc::CallError),
    /// The operation failed.
    #[error("the sequencer's word was not reached: {0}")]
    Operation(Status),
}

/// Why a call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// As many calls as can be are in flight.
    #[error("{window} calls are in flight already: take their answers first, or open the client with a larger window")]
    WindowFull {
        /// The limit.
        window: usize,
    },
    /// This design does not give out as many at once.
    #[error("{asked} numbers were asked for at once: this design gives 1 to {max}")]
    Count {
        /// How many were asked for.
        asked: u32,
        /// How many can be.
        max: u32,
    },
    /// The endpoint did not take the call.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// The queue pair did not take the request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// No memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why a client, or a server on verbs, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A queue or memory could not be had.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The queue pair is broken.
    #[error("the queue pair failed: {0}; make it anew")]
    Failed(Status),
    /// The way to a server of HERD's calls is gone.
    #[error(transparent)]
    Herd(#[from] sinew_herd::ClientError),
    /// The queue pair did not take a receive or request that it has room for.
    #[error("the queue pair refused: {0}")]
    Post(#[from] PostError),
}
