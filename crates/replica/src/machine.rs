//! The interface of replicated state.

use std::fmt::Debug;

/// Error for a command or query that a machine does not accept. It is refused before it enters the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{0}")]
pub struct Malformed(pub String);

/// Error for a snapshot that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot does not fit this kind of state: use the same release at all members")]
pub struct BadSnapshot;

/// State of which every member has a copy. Only commands change it, in the log's order, so [`Self::apply`] must be
/// deterministic: no clock, no randomness, and no iteration in an order that differs between processes.
pub trait StateMachine: Debug {
    /// Checks that a command has the right shape and size.
    ///
    /// # Errors
    ///
    /// [`Malformed`], which says what is wrong.
    fn check_command(&self, command: &[u8]) -> Result<(), Malformed>;

    /// As [`Self::check_command`], for queries to [`Self::read`].
    ///
    /// # Errors
    ///
    /// [`Malformed`], which says what is wrong.
    fn check_query(&self, query: &[u8]) -> Result<(), Malformed>;

    /// Runs a command, and appends its answer to `answer`. Commands that [`Self::check_command`] refuses may still
    /// come, from a log that another release wrote; they must change nothing, at any member.
    fn apply(&mut self, command: &[u8], answer: &mut Vec<u8>);

    /// Answers a query, which changes nothing. Returns whether there is an answer yet; if not, the query is repeated
    /// when commands have been applied.
    fn read(&self, query: &[u8], answer: &mut Vec<u8>) -> bool;

    /// Returns a narrower query to wait with instead of `query`, for which [`Self::read`] has just found nothing: one
    /// that skips what was searched. `None` to wait with `query` itself. Any member may be asked the new query later.
    fn resume(&self, query: &[u8]) -> Option<Vec<u8>> {
        let _ = query;
        None
    }

    /// Serialises the whole state.
    fn snapshot(&self) -> Vec<u8>;

    /// Begins to serialise the present state, and appends a first part to `bytes`. Returns whether that was all. A
    /// snapshot begun before is given up. The parts together are what [`Self::snapshot`] returns.
    ///
    /// By default, the first part is everything. Meanwhile the member serves nobody, so a machine with more than some
    /// hundred kilobytes of state should implement this and [`Self::continue_snapshot`].
    fn begin_snapshot(&mut self, bytes: &mut Vec<u8>) -> bool {
        bytes.append(&mut self.snapshot());
        true
    }

    /// Appends some `len` bytes more of the snapshot that was begun last, of the state as it was then. Commands may
    /// have been applied since. Returns whether these bytes were the last.
    fn continue_snapshot(&mut self, bytes: &mut Vec<u8>, len: usize) -> bool {
        let _ = (bytes, len);
        true
    }

    /// Checks that [`Self::restore`] would take a snapshot, which another member has sent.
    ///
    /// # Errors
    ///
    /// [`BadSnapshot`].
    fn check_snapshot(&self, snapshot: &[u8]) -> Result<(), BadSnapshot>;

    /// Replaces the state by that of a snapshot.
    ///
    /// # Errors
    ///
    /// [`BadSnapshot`]; the state is then unchanged.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), BadSnapshot>;
}
