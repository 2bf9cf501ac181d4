//! What a volume needs of its donors.

use sinew_fabric::Readiness;
use sinew_mem::{Arena, MessageBuffer};

use super::record::DonorId;
use crate::donor::{Answer, Call, Refusal};
use crate::engine::Op;

/// Donors that a volume can have at most.
pub const DONORS_MAX: usize = 64;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailed {
    /// The donor does not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nobody knows whether it did it.
    #[error("it does not answer: {0}")]
    Unreachable(String),
}

/// News of a donor.
#[derive(Debug)]
pub enum Event {
    /// An operation on its memory is over.
    Over {
        /// As it was submitted.
        tag: u64,
        /// Why it failed, if it did: then nobody knows what it has done, or will do.
        error: Option<String>,
        /// Of a read.
        target: Option<MessageBuffer>,
    },
    /// A call is over.
    Answered {
        /// As it was made.
        tag: u64,
        /// What the donor says.
        result: Result<Answer, CallFailed>,
    },
}

/// The donors that a writer knows, each by its lane: its place among [their names](Self::ids). Every operation and every call ends with one [`Event`], in whatever
/// order; a donor that says nothing is given up at some time.
///
/// Reads and writes go with the epoch of the last [`Call::Fence`] that the donor answered, and fail before.
pub trait Donors: Readiness {
    /// Their names, up to [`DONORS_MAX`]: the same each time.
    fn ids(&self) -> &[DonorId];

    /// Where buffers of operations come from.
    fn arena(&self) -> &Arena;

    /// Asks a donor.
    fn call(&mut self, lane: usize, tag: u64, call: Call);

    /// Reads or writes a donor's memory.
    ///
    /// # Errors
    ///
    /// The operation, when there are as many as can be: later there is room again.
    // Boxing it would allocate.
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, lane: usize, tag: u64, op: Op) -> Result<(), Op>;

    /// Does what there is to do; returns whether there was anything. Never blocks.
    fn turn(&mut self) -> bool;

    /// The time.
    fn now_ns(&self) -> u64;

    /// Adds what there is to tell.
    fn poll(&mut self, events: &mut Vec<Event>);
}
