//! Requests of a client.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::donor::PROOF_LEN;
use sinew_remote_memory::volume::DonorId;

use super::attr::{Caller, Ino, Time};
use super::limits::SECRET_LEN;
use super::page::{Extent, Pages, donor_id};

/// A message to the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Says which [`VERSION`](super::VERSION) of the protocol the client speaks, and asks for a nonce. Answered with
    /// [`Reply::Nonce`](super::Reply::Nonce), with [`Reply::Welcome`](super::Reply::Welcome) if the service has no key,
    /// or with [`Reply::Version`](super::Reply::Version) if it speaks another version. All versions but the first have
    /// these bytes in common: 0, and the version. A service of the first answers
    /// [`Reply::Malformed`](super::Reply::Malformed).
    Greet(u8),
    /// The proof for the nonce.
    Prove([u8; PROOF_LEN]),
    /// Joins, for the first time or again.
    Join(Join),
    /// A request of a client that has joined.
    Request(Envelope),
}

/// A request to join, from a new client or one that the service no longer knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Number and secret that the client had before.
    pub before: Option<(u64, [u8; SECRET_LEN])>,
    /// Open handles. Those that the client no longer has (the file is gone, or the client was declared dead) are
    /// missing from [`Joined::opens`](super::Joined::opens).
    pub opens: Vec<OpenFile>,
    /// Locks. Those that conflict with locks granted to others meanwhile are missing from
    /// [`Joined::locks`](super::Joined::locks).
    pub locks: Vec<Lock>,
}

/// An open handle of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Number that the client chose; no other open handle of the client has it.
    pub handle: u64,
    /// The inode.
    pub ino: Ino,
    /// Kinds of access that the handle allows.
    pub access: Access,
}

/// Kinds of access that a handle allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Reading, or executing with [`Self::execute`].
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Reading in order to execute: the mode's execute bits apply instead of its read bits.
    pub execute: bool,
}

/// A request, with the fields common to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Number of the client.
    pub client: u64,
    /// Secret of the client.
    pub secret: [u8; SECRET_LEN],
    /// Sequence number of a request that [changes](Request::changes) something, from 1 and never used before by the
    /// client; 0 for other requests.
    pub sequence: u64,
    /// The client has received the answers to all lower numbers, so the service forgets these answers.
    pub settled: u64,
    /// Epoch of the service in which the pages were [reserved](super::Reservation::epoch) that the request commits or
    /// gives back. A service of another epoch has forgotten the reservation, though it may have granted one of the same
    /// pages meanwhile, even to the same client. Other requests may have any epoch.
    pub epoch: u32,
    /// Caller on whose behalf it is made.
    pub caller: Caller,
    /// The request.
    pub request: Request,
}

/// Mode bits of a new inode, from which the umask has already been removed.
pub type Mode = u32;

/// Kind of a new inode, other than a directory or a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// A file, which is not opened.
    File,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The service's time. Any user who may write to the file may set it.
    Now,
    /// The given time. Only the owner may set it.
    To(Time),
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<Mode>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: the file is truncated, or extended with zeros.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last change of the contents.
    pub mtime: Option<SetTime>,
}

/// Whether an extended attribute must exist before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetXattr {
    /// It may exist or not.
    Any,
    /// It must not exist; if it does: [`Error::Exists`](super::Error::Exists).
    Create,
    /// It must exist; if not: [`Error::NoAttribute`](super::Error::NoAttribute).
    Replace,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Shared: others may have read locks.
    Read,
    /// Exclusive: others may have no lock.
    Write,
}

/// Owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockOwner {
    /// A process that locks by `fcntl`, by the client's number for it. Locks of one owner do not conflict, and are
    /// released range by range.
    Posix(u64),
    /// An open file that is locked by `flock`, by the client's number for it. Such locks cover the whole file.
    Flock(u64),
}

/// A lock of a range. Locks by `fcntl` and by `flock` do not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The inode.
    pub ino: Ino,
    /// Owner of the lock.
    pub owner: LockOwner,
    /// Process, which is reported to others.
    pub pid: u32,
    /// First byte.
    pub first: u64,
    /// Last byte; `u64::MAX` stands for the end of the file, wherever that is.
    pub last: u64,
    /// Kind of the lock.
    pub kind: LockKind,
}

/// A request. Names are bytes: 1 to 255, none of them 0 or `/`, and not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Does nothing except show that the client is alive. Answered with [`Answer::Done`](super::Answer::Done).
    Heartbeat,
    /// Leaves the file system. Answered with `Done`.
    Leave,
    /// Asks for the donors as they are now. Answered with [`Answer::Donors`](super::Answer::Donors).
    Donors,
    /// Looks up a name. Answered with [`Answer::Attr`](super::Answer::Attr).
    Lookup {
        /// The directory, which the caller must be allowed to search.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Asks for an inode's attributes. Answered with `Attr`.
    GetAttr {
        /// The inode.
        ino: Ino,
    },
    /// Sets attributes. Answered with `Attr`.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// The attributes.
        set: SetAttr,
        /// A handle open for writing, through which the length may be set whatever the mode says.
        handle: Option<u64>,
    },
    /// Asks for the target of a symbolic link. Answered with [`Answer::Bytes`](super::Answer::Bytes).
    ReadLink {
        /// The inode.
        ino: Ino,
    },
    /// Makes a file and opens it. Answered with `Attr`, or with [`Error::Exists`](super::Error::Exists) if the name
    /// exists, whatever the open was to do in that case.
    Create {
        /// The directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Mode of the file.
        mode: Mode,
        /// Handle by which it is opened.
        handle: u64,
        /// Access for which it is opened, which the mode may forbid.
        access: Access,
    },
    /// Makes a directory. Answered with `Attr`.
    MakeDirectory {
        /// The parent directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Mode of the directory.
        mode: Mode,
    },
    /// Makes a file or a special file without opening it. Answered with `Attr`.
    MakeNode {
        /// The directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Mode of the inode.
        mode: Mode,
        /// Kind of the inode.
        kind: NodeKind,
        /// Device numbers of a device.
        rdev: u32,
    },
    /// Makes a symbolic link. Answered with `Attr`.
    MakeSymlink {
        /// The directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The path, of 1 to [`LINK_LEN_MAX`](super::LINK_LEN_MAX) bytes.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Gives an inode other than a directory another name. Answered with `Attr`.
    Link {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Removes a name of anything but a directory. Answered with [`Answer::Unlinked`](super::Answer::Unlinked).
    Unlink {
        /// The directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Removes an empty directory. Answered with `Unlinked`.
    RemoveDirectory {
        /// The parent directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Renames an inode. Answered with `Unlinked` if the new name belonged to another inode, otherwise with `Done`.
    Rename {
        /// The old directory.
        parent: Ino,
        /// The old name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The new directory.
        new_parent: Ino,
        /// The new name.
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        /// Linux's flags: 0, 1 (the new name must not exist), or 2 (both exist, and are exchanged).
        flags: u32,
    },
    /// Opens a file, or a directory for reading. Answered with `Attr`. Opening a handle again for the same has no
    /// further effect.
    Open {
        /// The handle, a number that the client chose.
        handle: u64,
        /// The inode.
        ino: Ino,
        /// Access for which it is opened.
        access: Access,
    },
    /// Closes a handle. Answered with `Done`, even if it is not open. Locks stay: [`Self::Unlock`] releases them.
    Close {
        /// The handle.
        handle: u64,
    },
    /// Asks for entries of an open directory. Answered with [`Answer::Entries`](super::Answer::Entries).
    ReadDirectory {
        /// Handle of the directory.
        handle: u64,
        /// [`Entry::cookie`](super::Entry::cookie) of the entry after which to begin, or 0. `.` and `..` are not
        /// included.
        after: u64,
        /// Most entries to return, up to [`READDIR_MAX`](super::READDIR_MAX).
        count: u32,
    },
    /// Asks for the places of pages of an open file. Answered with [`Answer::Layout`](super::Answer::Layout).
    Layout {
        /// Handle of the file.
        handle: u64,
        /// First page in the file.
        at: u64,
        /// Number of pages.
        count: u64,
    },
    /// Asks for the places of segments. Answered with [`Answer::Placements`](super::Answer::Placements), without
    /// segments that are gone.
    Placements {
        /// The segments, up to [`SEGMENTS_MAX`](super::SEGMENTS_MAX).
        segments: Vec<u32>,
    },
    /// Reserves pages for this client to write to. Answered with [`Answer::Reserved`](super::Answer::Reserved).
    Reserve {
        /// Most pages to reserve, up to [`RESERVE_PAGES_MAX`](super::RESERVE_PAGES_MAX). There may be fewer; none if
        /// there may be some soon, or [`Error::NoSpace`](super::Error::NoSpace) if there are none.
        pages: u32,
    },
    /// Gives back reserved pages, to which no write is in flight. Answered with `Done`.
    GiveBack {
        /// The pages.
        pages: Vec<Pages>,
    },
    /// Makes reserved pages part of a file, and ranges of it holes. Answered with `Attr`. All copies of these pages
    /// must have been written before. The pages that they replace become free.
    Commit {
        /// Handle of the file, open for writing.
        handle: u64,
        /// Length that the file has at least after this.
        size_min: u64,
        /// Time of the change of the contents; `None`: now.
        mtime: Option<Time>,
        /// Ranges that become holes first, in the order of the file and without overlaps: (first page, pages).
        holes: Vec<(u64, u64)>,
        /// The new pages, in the order of the file and without overlaps.
        extents: Vec<Extent>,
    },
    /// Reports that a donor does not answer this client for a segment, or that its copy is wrong. Answered with
    /// `Placements`, in which it is no longer a copy. The last whole copy stays; reporting it fails with
    /// [`Error::Lost`](super::Error::Lost).
    ///
    /// Send this only after another request ([`Self::Heartbeat`]) was answered since the donor failed: a client that
    /// must [join again](super::Error::Rejoin) has lost its access to all donors, and the donor is well.
    ReportFailed {
        /// The segment.
        segment: u32,
        /// The donor.
        #[serde(with = "donor_id")]
        donor: DonorId,
        /// The run of the donor.
        incarnation: u64,
    },
    /// Asks for the room for pages and inodes. Answered with [`Answer::Space`](super::Answer::Space).
    Statfs,
    /// Asks for the value of an extended attribute. Answered with `Bytes`.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// Name of the attribute, with its prefix.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Asks for the names of extended attributes, each followed by a 0. Answered with `Bytes`.
    ListXattr {
        /// The inode.
        ino: Ino,
    },
    /// Sets an extended attribute. Answered with `Done`.
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Name of the attribute. The prefixes `user.`, `trusted.` and `security.` are known.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Value of the attribute.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// Whether it must exist already.
        how: SetXattr,
    },
    /// Removes an extended attribute. Answered with `Done`.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Name of the attribute.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Locks a range, replacing the owner's locks in it. Answered with `Done`, or
    /// [`Error::WouldBlock`](super::Error::WouldBlock): a client that wants to wait asks again.
    Lock {
        /// The lock.
        lock: Lock,
        /// Whether its owner waits until it has the lock. If it waits for itself in the end, by `fcntl`, the request is
        /// refused with [`Error::Deadlock`](super::Error::Deadlock). From an answer `WouldBlock` on, the owner
        /// counts as waiting until it has the lock, is refused it for another reason that lies in the locks (not
        /// because of [`Error::Grace`](super::Error::Grace), say), the file is gone, or it has not asked for
        /// [`LOCK_WAIT_NS`](super::LOCK_WAIT_NS). A client that gives up says so by asking once more, without waiting.
        waits: bool,
    },
    /// Asks for a lock that conflicts with this one. Answered with
    /// [`Answer::LockConflict`](super::Answer::LockConflict).
    TestLock(Lock),
    /// Releases an owner's locks in a range. Answered with `Done`.
    Unlock {
        /// The inode.
        ino: Ino,
        /// Owner of the locks.
        owner: LockOwner,
        /// First byte.
        first: u64,
        /// Last byte.
        last: u64,
    },
    /// Promises room to all pages of a range of a file, so that no later write there meets a lack of it. Pages that the
    /// file lacks stay holes. Answered with `Attr`, or with [`Error::NoSpace`](super::Error::NoSpace) if there is not
    /// enough room; nothing is promised then. The promise of a page ends when it becomes a hole by
    /// [`Self::Commit`], or is truncated.
    Allocate {
        /// Handle of the file, open for writing.
        handle: u64,
        /// First page in the file, which may lie beyond its end.
        at: u64,
        /// Number of pages.
        count: u64,
        /// Part of the range that becomes a hole first, and keeps its room: first page, number of pages.
        hole: Option<(u64, u64)>,
        /// Length that the file has at least after this.
        size_min: u64,
        /// Time of the change; `None`: now.
        mtime: Option<Time>,
    },
    /// Reserves pages for this client to write to, to replace pages that a file has, or that room was promised to. It
    /// is granted also if there is no room for more. Answered with `Reserved`, or with
    /// [`Error::NoSpace`](super::Error::NoSpace) if some page of the range is a hole without such a promise. A commit
    /// of the granted pages to such a hole fails with [`Error::NothingReplaced`](super::Error::NothingReplaced).
    ReserveOverwrite {
        /// Handle of the file, open for writing.
        handle: u64,
        /// First page in the file.
        at: u64,
        /// Number of pages, up to [`RESERVE_PAGES_MAX`](super::RESERVE_PAGES_MAX).
        count: u32,
        /// Most pages to reserve, up to `count`; 0 only has the range checked.
        pages: u32,
        /// Whether to wait for a moment while other clients write to all that there are. The answer may have none even
        /// so.
        waits: bool,
    },
}

impl Request {
    /// Whether the request changes what the service stores on its disk, and so has a sequence number. Open handles,
    /// locks and reservations are not stored there, and requests that change only them may be repeated.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::SetAttr { .. }
                | Self::Create { .. }
                | Self::MakeDirectory { .. }
                | Self::MakeNode { .. }
                | Self::MakeSymlink { .. }
                | Self::Link { .. }
                | Self::Unlink { .. }
                | Self::RemoveDirectory { .. }
                | Self::Rename { .. }
                | Self::Commit { .. }
                | Self::SetXattr { .. }
                | Self::RemoveXattr { .. }
                | Self::Allocate { .. }
        )
    }
}
