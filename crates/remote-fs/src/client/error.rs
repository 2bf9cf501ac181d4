//! Why something could not be done.

use crate::protocol::Error;

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The service does not do it.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The service does not answer.
    #[error("the service at {address} does not answer: {why}; is `sinew serve files` running there?")]
    Unreachable {
        /// Where it is looked for.
        address: String,
        /// What went wrong last.
        why: String,
    },
    /// The service has another key, or wants one.
    #[error("the service at {address} lets in only who has its key: {why}")]
    Stranger {
        /// Where it is.
        address: String,
        /// What it says.
        why: &'static str,
    },
    /// It was answered what makes no sense.
    #[error("the service's answer makes no sense")]
    Nonsense,
    /// The client was taken for dead while a request was under way: nobody knows whether it was performed.
    #[error("the service took this client for dead, and nobody knows whether it has done this")]
    Unknown,
    /// No copy of a page has what was written there.
    #[error("no copy of the data can be read, or has what was written")]
    Data,
    /// There is no memory for buffers.
    #[error("there is no memory for it here")]
    Memory,
    /// The file is not open.
    #[error("the file is not open")]
    NotOpen,
}

impl Failed {
    /// Linux' number for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(error) => error.errno(),
            Self::Unreachable { .. } | Self::Nonsense | Self::Unknown | Self::Data => 5,
            Self::Memory => 12,
            Self::Stranger { .. } => 13,
            Self::NotOpen => 9,
        }
    }
}
