//! Errors: what went wrong, for whom, and whether numbers were taken.

use sinew_fabric::verbs::{PostError, Status, VerbsError};
use sinew_mem::AllocError;
use sinew_rpc::EnqueueError;

use crate::sequence::Epoch;

/// Reason why a server gave no numbers. None was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The call asked for no number, or for too many.
    #[error("one call can ask for 1 to {max} numbers; ask for more in several calls")]
    Count {
        /// Most numbers of one call.
        max: u32,
    },
    /// There are too few numbers left below the ceiling.
    #[error(
        "the sequencer has too few numbers left below its ceiling; if it keeps notes, its error output says why it could not note a higher one"
    )]
    Exhausted,
    /// The request could not be read.
    #[error("the sequencer did not understand the request; use the same release on both sides")]
    Malformed,
}

/// Reason why a call has no numbers. Unless stated otherwise, numbers may have been taken, and are gaps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server refused; nothing was taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server was restarted: its numbers say nothing about those of the earlier epoch.
    #[error(
        "the sequencer was restarted (epoch {found}, was {expected}): numbers may repeat; connect again to accept it"
    )]
    Restarted {
        /// Epoch of the earlier numbers.
        expected: Epoch,
        /// Epoch of this answer.
        found: Epoch,
    },
    /// No answer arrived in time.
    #[error("no answer within {waited_ns} ns: it was lost, or the sequencer is gone or overloaded")]
    NoAnswer {
        /// Time without an answer, in nanoseconds.
        waited_ns: u64,
    },
    /// The answer is malformed.
    #[error("an answer of {len} bytes is not a sequencer's; check the address")]
    BadAnswer {
        /// Length of the answer, in bytes.
        len: usize,
    },
    /// The call itself failed.
    #[error(transparent)]
    Rpc(#[from] sinew_rpc::CallError),
    /// The operation on the word failed.
    #[error("could not reach the sequencer's word: {0}")]
    Operation(Status),
}

/// Reason why a call was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The window is full.
    #[error("{window} calls are in flight already: take their answers first, or open the client with a larger window")]
    WindowFull {
        /// Calls that can be in flight.
        window: usize,
    },
    /// This design does not give that many numbers at once.
    #[error("{asked} numbers were asked for at once: this design gives 1 to {max}")]
    Count {
        /// Numbers asked for.
        asked: u32,
        /// Most numbers of one call.
        max: u32,
    },
    /// The endpoint did not accept the call.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// The queue pair did not accept the request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Reason why a client, or a server on verbs, cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An error of the device, such as a lack of queues or memory.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The queue pair is broken.
    #[error("the queue pair failed: {0}; make a new one")]
    Failed(Status),
    /// The calls to a server over HERD have failed.
    #[error(transparent)]
    Herd(#[from] sinew_herd::ClientError),
    /// The queue pair did not accept a receive or request for which it has room.
    #[error("the queue pair refused: {0}")]
    Post(#[from] PostError),
}
