//! Why a request was not performed.

use serde::{Deserialize, Serialize};

/// Why the service did not do what it was asked for. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such name, or no such attribute's file any more.
    #[error("there is no such file or directory")]
    NotFound,
    /// The inode is gone.
    #[error("the file is gone")]
    Stale,
    /// The name is taken.
    #[error("there is a file of that name already")]
    Exists,
    /// A directory is wanted.
    #[error("this is no directory")]
    NotDirectory,
    /// Something else than a directory is wanted.
    #[error("this is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The mode bits do not allow it.
    #[error("the file's mode does not allow it")]
    Access,
    /// Only the owner may, or root.
    #[error("only the owner or root may do this")]
    Permission,
    /// The name is too long.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// It makes no sense.
    #[error("the request makes no sense")]
    Invalid,
    /// There is no memory left at the donors, or no room on the service's disk.
    #[error("there is no room left")]
    NoSpace,
    /// The file would be longer than files can be.
    #[error("the file would be too long")]
    FileTooBig,
    /// The inode has as many names as it can.
    #[error("the file has too many names")]
    TooManyLinks,
    /// No extended attribute of that name.
    #[error("there is no such attribute")]
    NoAttribute,
    /// The attributes of the inode would be too long.
    #[error("the attributes are too long")]
    AttributesTooBig,
    /// Somebody has a lock that excludes this one: ask again later.
    #[error("another lock excludes this one")]
    WouldBlock,
    /// This kind of file has no such operation.
    #[error("this kind of file does not support it")]
    NotSupported,
    /// The client has as many handles open, ranges locked, pages reserved or requests under way as one client can.
    #[error("the client has as much of this as one client can have")]
    TooMany,
    /// The file is not open by this client in a way that allows it.
    #[error("the file is not open for this")]
    BadHandle,
    /// The extents are not of pages that this client has reserved.
    #[error("these pages are not reserved by this client")]
    NotReserved,
    /// The pages of the file are not those that [`Extent::replaces`](super::Extent::replaces) names: somebody else has committed. Read them and merge again.
    #[error("the file's pages have changed meanwhile")]
    Changed,
    /// A segment's copies are not those that were written to ([`Extent::generation`](super::Extent::generation)). Ask for [`Request::Places`](super::Request::Places), write to the copies that lack the
    /// pages, and commit again.
    #[error("the copies of the segment have changed meanwhile")]
    Copies,
    /// No copy of a segment is left.
    #[error("no copy of the data is left")]
    Lost,
    /// The service does not know the client, or has started again: join again.
    #[error("the service has started again or took the client for dead: join again")]
    Rejoin,
    /// The service's disk has failed: it answers requests that change nothing.
    #[error("the service's disk has failed; nothing can be changed")]
    ReadOnly,
    /// The service is starting, and waits for clients to tell what they have locked, or for a donor that it has not reached yet: ask again soon.
    #[error("the service is starting, and waits for other clients or a donor: ask again soon")]
    Grace,
    /// A sequence number for whose answer the client does not wait any more: it had it, or has given up.
    #[error("the request has been answered before, or given up")]
    Settled,
}

impl Error {
    /// Linux' number for it. Those that a client handles by itself have the number for the case that it cannot.
    pub fn errno(self) -> i32 {
        match self {
            Self::Permission => 1,
            Self::NotFound => 2,
            Self::Lost | Self::Copies | Self::Changed | Self::NotReserved | Self::Rejoin | Self::Settled => 5,
            Self::BadHandle => 9,
            Self::WouldBlock | Self::Grace => 11,
            Self::Access => 13,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::Invalid => 22,
            Self::TooMany => 23,
            Self::FileTooBig => 27,
            Self::NoSpace | Self::AttributesTooBig => 28,
            Self::ReadOnly => 30,
            Self::TooManyLinks => 31,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::NoAttribute => 61,
            Self::NotSupported => 95,
            Self::Stale => 116,
        }
    }
}
