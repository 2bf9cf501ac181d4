//! Errors of opening a volume.

/// Reason why a volume cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No donor knows it.
    #[error("no donor that answers knows the volume {0:016x}")]
    NotFound(u64),
    /// It exists already.
    #[error("the volume {0:016x} exists")]
    Exists(u64),
    /// Too few voters answer.
    #[error("too few of the volume's voters answer to say which of its copies count: {0}")]
    NoMajority(String),
    /// Another writer is opening it, too.
    #[error("another writer is taking the volume over: its epoch is {held}")]
    TakenOver {
        /// Epoch of that writer.
        held: u32,
    },
    /// Its writer is alive.
    #[error("another writer has the volume open, and is alive: end it first")]
    InUse,
    /// Its record cannot be parsed.
    #[error(transparent)]
    BadRecord(#[from] super::record::BadRecord),
    /// There is no room for it.
    #[error("no room for the volume: {0}")]
    Full(String),
    /// Donors failed while it was opened.
    #[error("donors failed while the volume was opened: {0}")]
    Failed(String),
    /// It is impossible.
    #[error("{0}")]
    Invalid(&'static str),
}
