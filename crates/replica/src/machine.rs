//! What is replicated.

use std::fmt::Debug;

/// A command or query that a machine does not take. It is refused before it enters the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{0}")]
pub struct Malformed(pub String);

/// A snapshot that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot is none of this kind of state: use the same release at all members")]
pub struct BadSnapshot;

/// State that every member has a copy of. It is changed by commands alone, in the log's order, so [`Self::apply`] must be deterministic: no clock, no
/// randomness, no iteration in an order that differs between processes.
pub trait StateMachine: Debug {
    /// Whether a command has the right shape and size.
    ///
    /// # Errors
    ///
    /// [`Malformed`] says what is wrong with it.
    fn check_command(&self, command: &[u8]) -> Result<(), Malformed>;

    /// As [`Self::check_command`], for what [`Self::read`] takes.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    fn check_query(&self, query: &[u8]) -> Result<(), Malformed>;

    /// Runs a command, and appends its answer to `answer`. Commands that [`Self::check_command`] refuses can come, from a log that another release
    /// wrote; they change nothing, at any member.
    fn apply(&mut self, command: &[u8], answer: &mut Vec<u8>);

    /// Answers a query, which changes nothing. Says whether there is an answer yet: one that has none is asked again when commands have been applied.
    fn read(&self, query: &[u8], answer: &mut Vec<u8>) -> bool;

    /// All of the state, as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Takes the place of the state.
    ///
    /// # Errors
    ///
    /// [`BadSnapshot`]; the state is as it was then.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), BadSnapshot>;
}
