//! Errors of a client.

use crate::protocol::Error;

/// Error of an operation on files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The service refused the request.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The service does not answer.
    #[error("the service at {address} does not answer: {why}; is `sinew serve files` running there?")]
    Unreachable {
        /// Address of the service.
        address: String,
        /// The last error.
        why: String,
    },
    /// The service has another key, or requires one.
    #[error("the service at {address} only admits clients that have its key: {why}")]
    NotAdmitted {
        /// Address of the service.
        address: String,
        /// What to do about the key, or what is wrong with it.
        why: &'static str,
    },
    /// The service speaks another version of the protocol.
    #[error(
        "the service at {address} speaks version {theirs} of the protocol of files, and this program version {ours}: \
         use the same release on both sides"
    )]
    Version {
        /// Address of the service.
        address: String,
        /// The service's version.
        theirs: u8,
        /// This program's [version](crate::protocol::VERSION).
        ours: u8,
    },
    /// The service sent an answer that does not fit the request.
    #[error("the service's answer does not fit the request: use the same release on both sides")]
    UnexpectedAnswer,
    /// The client was declared dead while a request was in progress, so its outcome is unknown.
    #[error("the service declared this client dead, and it is unknown whether the request was performed")]
    OutcomeUnknown,
    /// No copy of a page has the bytes that were written.
    #[error("no copy of the data can be read, or has what was written")]
    Unreadable,
    /// There is no memory for buffers.
    #[error("this client has no memory left for buffers")]
    NoMemory,
    /// The file is not open.
    #[error("the file is not open")]
    NotOpen,
}

impl ClientError {
    /// Linux's number for the error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(error) => error.errno(),
            Self::Unreachable { .. } | Self::UnexpectedAnswer | Self::OutcomeUnknown | Self::Unreadable => 5,
            Self::NoMemory => 12,
            Self::NotAdmitted { .. } => 13,
            Self::NotOpen => 9,
            Self::Version { .. } => 93,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_another_version_is_named_with_both_versions() {
        let error = ClientError::Version { address: "udp://h:1".into(), theirs: 1, ours: 2 };
        let text = "the service at udp://h:1 speaks version 1 of the protocol of files, and this program version 2: \
                    use the same release on both sides";
        assert_eq!((error.to_string().as_str(), error.errno()), (text, 93));
    }
}
