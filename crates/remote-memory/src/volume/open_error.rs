//! Errors of opening a volume.

/// The end of a message with a reason, which may be unknown.
fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

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
    #[error("too few of the volume's voters answer to say which of its copies count{}", because(.0))]
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
    #[error("no room for the volume{}", because(.0))]
    Full(String),
    /// Some donors do not answer, and may keep a record of the volume, or some of its memory.
    #[error("the volume is removed only when all donors that are named answer{}", because(.0))]
    Unanswered(String),
    /// Donors failed while the volume was being opened.
    #[error("donors failed while the volume was opened{}", because(.0))]
    Failed(String),
    /// The arguments are invalid, or the volume has no epoch left.
    #[error("{0}")]
    Invalid(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_reason_ends_without_a_colon() {
        let of = |why: &str| OpenError::NoMajority(why.into()).to_string();
        assert!(of("").ends_with("copies count") && of("donor 1: it is down").ends_with("count: donor 1: it is down"));
    }
}
