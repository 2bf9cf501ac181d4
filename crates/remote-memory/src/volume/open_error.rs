//! Why a volume cannot be opened.

/// Why a volume cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nobody has it.
    #[error("no donor that answers knows the volume {0:016x}")]
    NotFound(u64),
    /// It is there already.
    #[error("the volume {0:016x} exists")]
    Exists(u64),
    /// Too few voters answer.
    #[error("too few of the volume's voters answer to say which of its copies count: {0}")]
    NoMajority(String),
    /// Somebody else opens it, too.
    #[error("another writer is taking the volume over: its epoch is {held}")]
    Taken {
        /// That writer's epoch.
        held: u32,
    },
    /// Its writer lives.
    #[error("another writer has the volume open, and is alive: end it first")]
    InUse,
    /// Its record makes no sense.
    #[error(transparent)]
    BadRecord(#[from] super::record::BadRecord),
    /// There is no room for it.
    #[error("no room for the volume: {0}")]
    Full(String),
    /// Donors failed meanwhile.
    #[error("donors failed while the volume was opened: {0}")]
    Failed(String),
    /// It can never be.
    #[error("{0}")]
    Never(&'static str),
}
