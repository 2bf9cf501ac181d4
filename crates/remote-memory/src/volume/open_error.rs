//! Errors of opening a volume.

/// Reason why a volume cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No donor that answers knows the volume.
    #[error("no donor that answers knows the volume {0:016x}")]
    NotFound(u64),
    /// A volume with this identity exists already.
    #[error("the volume {0:016x} exists")]
    Exists(u64),
    /// Too few voters answer.
    #[error("too few of the volume's voters answer to say which of its copies count: {0}")]
    NoMajority(String),
    /// Another writer is opening the volume at the same time.
    #[error("another writer is taking the volume over: its epoch is {held}")]
    TakenOver {
        /// Epoch of that writer.
        held: u32,
    },
    /// The volume has a writer, which is alive.
    #[error("another writer has the volume open, and is alive: end it first")]
    InUse,
    /// The volume's record cannot be parsed.
    #[error(transparent)]
    BadRecord(#[from] super::record::BadRecord),
    /// The donors have no room for the volume.
    #[error("no room for the volume: {0}")]
    Full(String),
    /// Donors failed while the volume was being opened.
    #[error("donors failed while the volume was opened: {0}")]
    Failed(String),
    /// The arguments are invalid, or the volume has no epoch left.
    #[error("{0}")]
    Invalid(&'static str),
}
