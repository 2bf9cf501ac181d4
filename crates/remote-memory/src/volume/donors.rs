//! The interface through which a volume uses its donors.

use sinew_fabric::Readiness;
use sinew_mem::{Arena, MessageBuffer};

use super::record::DonorId;
use crate::donor::{Answer, Call, Refusal};
use crate::engine::Op;

/// Reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailed {
    /// The donor refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is not known whether the donor did it.
    #[error("it does not answer: {0}")]
    Unreachable(String),
}

/// An event at a donor.
#[derive(Debug)]
pub enum Event {
    /// An operation on its memory has finished.
    OpFinished {
        /// The tag with which it was submitted.
        tag: u64,
        /// The failure, if any. It is then not known what the operation has done, or will still do.
        error: Option<String>,
        /// The target of a read.
        target: Option<MessageBuffer>,
    },
    /// A call has finished.
    CallAnswered {
        /// The tag with which it was made.
        tag: u64,
        /// The donor's answer.
        result: Result<Answer, CallFailed>,
    },
}

/// The donors that a writer knows, each with a lane: its place among [the ids](Self::ids). Every operation and every
/// call ends with one [`Event`], in any order; a donor that stays silent is given up eventually.
///
/// Reads and writes use the access that the donor gave with its last answer to [`Call::Fence`], and fail before there
/// is one.
pub trait Donors: Readiness {
    /// Ids of the donors, at most [`DONORS_MAX`](super::DONORS_MAX); they never change.
    fn ids(&self) -> &[DonorId];

    /// Arena from which the buffers of operations are taken.
    fn arena(&self) -> &Arena;

    /// Calls a donor.
    fn call(&mut self, lane: usize, tag: u64, call: Call);

    /// Submits a read or a write of a donor's memory.
    ///
    /// # Errors
    ///
    /// The operation, if as many as allowed are unfinished; there is room again later.
    // Boxing it would allocate.
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, lane: usize, tag: u64, op: Op) -> Result<(), Op>;

    /// Does the work that is due, and returns whether there was any. Never blocks.
    fn turn(&mut self) -> bool;

    /// The time, in ns.
    fn now_ns(&self) -> u64;

    /// Appends all events that have occurred.
    fn poll(&mut self, events: &mut Vec<Event>);
}
