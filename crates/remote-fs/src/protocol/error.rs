//! Reasons for refusing a request.

use serde::{Deserialize, Serialize};

/// Reason why the service refused a request. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such name, or the inode concerned no longer has one.
    #[error("there is no such file or directory")]
    NotFound,
    /// The inode is gone.
    #[error("the file is gone")]
    Stale,
    /// The name is taken.
    #[error("there is a file of that name already")]
    Exists,
    /// The operation needs a directory.
    #[error("this is not a directory")]
    NotDirectory,
    /// The operation needs something other than a directory.
    #[error("this is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The mode bits forbid it.
    #[error("the file's mode does not allow it")]
    Access,
    /// Only the owner or root may do this.
    #[error("only the owner or root may do this")]
    Permission,
    /// The name is too long.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// The request is not valid.
    #[error("the request is invalid")]
    Invalid,
    /// There is no memory left at the donors, or no room on the service's disk.
    #[error("there is no room left")]
    NoSpace,
    /// The file would be longer than files can be.
    #[error("the file would be too long")]
    FileTooBig,
    /// The inode has as many names as it can have.
    #[error("the file has too many names")]
    TooManyLinks,
    /// There is no extended attribute with this name.
    #[error("there is no such attribute")]
    NoAttribute,
    /// The extended attributes of the inode would be too long.
    #[error("the attributes are too long")]
    AttributesTooBig,
    /// Another lock conflicts: ask again later.
    #[error("another lock excludes this one")]
    WouldBlock,
    /// This kind of file has no such operation.
    #[error("this kind of file does not support it")]
    NotSupported,
    /// The client has as many open handles, locked ranges, reserved pages or requests in flight as one client can have.
    #[error("the client has as much of this as one client can have")]
    TooMany,
    /// The client does not have the file open in a way that allows this.
    #[error("the file is not open for this")]
    BadHandle,
    /// The extents are not pages that this client has reserved.
    #[error("these pages are not reserved by this client")]
    NotReserved,
    /// The pages of the file are not those that [`Extent::replaces`](super::Extent::replaces) names, since another
    /// client has committed. Read them and merge again.
    #[error("the file's pages have changed meanwhile")]
    PagesChanged,
    /// The segment's copies are not those that were written to ([`Extent::generation`](super::Extent::generation)). Ask
    /// for [`Request::Placements`](super::Request::Placements), write to the copies that lack the pages, and commit
    /// again.
    #[error("the copies of the segment have changed meanwhile")]
    CopiesChanged,
    /// No copy of a segment is left.
    #[error("no copy of the data is left")]
    Lost,
    /// The service does not know the client, or has restarted: join again.
    #[error("the service has restarted, or declared the client dead: join again")]
    Rejoin,
    /// The service's disk has failed, so only requests that change nothing are performed.
    #[error("the service's disk has failed; nothing can be changed")]
    ReadOnly,
    /// The service is starting, and waits for clients to report their locks, or for a donor that it has not reached
    /// yet: ask again soon.
    #[error("the service is starting, and waits for other clients or a donor: ask again soon")]
    Grace,
    /// The client no longer waits for the answer to this sequence number: it was answered, or the client gave up.
    #[error("the request has been answered before, or given up")]
    AlreadyAnswered,
    /// Pages that were reserved only to replace others were to be committed where the file has none any more. Reserve
    /// others, and write them there.
    #[error("the file lost its pages meanwhile, which were to be replaced")]
    NothingReplaced,
    /// The owner of the lock would wait for a lock that is released only after it has released one of its own.
    #[error("waiting for this lock would never end: its holder waits for a lock of the same owner")]
    Deadlock,
}

impl Error {
    /// Linux's number for the error. Errors that clients handle have one, too, for when they cannot.
    pub fn errno(self) -> i32 {
        match self {
            Self::Permission => 1,
            Self::NotFound => 2,
            Self::Lost
            | Self::CopiesChanged
            | Self::PagesChanged
            | Self::NothingReplaced
            | Self::NotReserved
            | Self::Rejoin
            | Self::AlreadyAnswered => 5,
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
            Self::Deadlock => 35,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::NoAttribute => 61,
            Self::NotSupported => 95,
            Self::Stale => 116,
        }
    }
}
