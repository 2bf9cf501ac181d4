//! What a client asks for.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::donor::PROOF_LEN;
use sinew_remote_memory::volume::DonorId;

use super::attr::{Caller, Ino, Time};
use super::limits::SECRET_LEN;
use super::page::{Extent, Pages, donor_id};

/// What the service is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Asks for a nonce; answered with [`Reply::Nonce`](super::Reply::Nonce), or [`Reply::Welcome`](super::Reply::Welcome) where no key is wanted.
    Greet,
    /// The nonce's proof.
    Prove([u8; PROOF_LEN]),
    /// Becomes a client, or is one again.
    Join(Join),
    /// A client's request.
    Ask(Envelope),
}

/// A client that begins, or goes on with a service that did not know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The number and the secret that it had.
    pub before: Option<(u64, [u8; SECRET_LEN])>,
    /// What it has open. What it may not have open any more (its files are gone, or it was dead meanwhile) is not in [`Joined::opens`](super::Joined::opens).
    pub opens: Vec<Held>,
    /// What it has locked. Locks that others have meanwhile are not in [`Joined::locks`](super::Joined::locks).
    pub locks: Vec<Lock>,
}

/// A handle that a client has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The client's own name for it: no other open one has it.
    pub handle: u64,
    /// Of which inode.
    pub ino: Ino,
    /// What for.
    pub access: Access,
}

/// What a handle is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Reading, or executing with [`Self::execute`].
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Reading in order to execute: the mode's execute bits count in place of its read bits.
    pub execute: bool,
}

/// A request with what all have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The client's number.
    pub client: u64,
    /// And its secret.
    pub secret: [u8; SECRET_LEN],
    /// Of a request that [changes](Request::changes) something: a number that the client has not used before, from 1 on. Else 0.
    pub sequence: u64,
    /// All numbers below have had their answers, as far as the client is concerned: the service forgets these.
    pub settled: u64,
    /// In whose name.
    pub caller: Caller,
    /// What to do.
    pub request: Request,
}

/// A mode's bits as a new inode gets them: the umask has been taken off already.
pub type Mode = u32;

/// What a new inode is that has neither bytes nor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// A file, without opening it.
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
    /// The service's time: whoever may write to the file may set it.
    Now,
    /// This time: only the owner may set it.
    To(Time),
}

/// Attributes to set; what is none stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<Mode>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: the file is cut off or goes on with zeros.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

/// Whether an attribute has to be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetXattr {
    /// It need not.
    Any,
    /// It must not: [`Error::Exists`](super::Error::Exists).
    Create,
    /// It must: [`Error::NoAttribute`](super::Error::NoAttribute).
    Replace,
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Others may have read locks.
    Read,
    /// Nobody else has one.
    Write,
}

/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockOwner {
    /// By `fcntl`: the client's number for the process. Its locks exclude no other ones of `fcntl` of the same owner, and they are released range by range.
    Posix(u64),
    /// By `flock`: the client's number for the open file. Its locks are of the whole file.
    Flock(u64),
}

/// A range that is locked. Locks by `fcntl` and by `flock` do not exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Of which inode.
    pub ino: Ino,
    /// Whose.
    pub owner: LockOwner,
    /// The process, which others are told.
    pub pid: u32,
    /// First byte.
    pub first: u64,
    /// Last byte; `u64::MAX` for the end of the file wherever that is.
    pub last: u64,
    /// What it allows others.
    pub kind: LockKind,
}

/// What a client asks for. Names are bytes: 1 to 255, none of them 0 or `/`, and not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Nothing: the client is alive. Answered with [`Answer::Done`](super::Answer::Done).
    Heartbeat,
    /// The client goes. Answered with `Done`.
    Leave,
    /// The donors as they are now, with [`Answer::Donors`](super::Answer::Donors).
    Donors,
    /// The inode of a name, with [`Answer::Attr`](super::Answer::Attr).
    Lookup {
        /// The directory; the caller may search it.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// An inode's attributes, with `Attr`.
    GetAttr {
        /// Which.
        ino: Ino,
    },
    /// Sets attributes; answered with `Attr`.
    SetAttr {
        /// Which.
        ino: Ino,
        /// To what.
        set: SetAttr,
        /// An open handle for writing, by which the size may be set whatever the mode says.
        handle: Option<u64>,
    },
    /// The path of a symbolic link, with [`Answer::Bytes`](super::Answer::Bytes).
    ReadLink {
        /// Which.
        ino: Ino,
    },
    /// Makes a file and opens it; answered with `Attr`. A name that is there already is [`Error::Exists`](super::Error::Exists), whatever the open was to do then.
    Create {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its mode.
        mode: Mode,
        /// The handle that it is open by.
        handle: u64,
        /// What for. It may be what the mode forbids.
        access: Access,
    },
    /// Makes a directory; answered with `Attr`.
    MakeDirectory {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its mode.
        mode: Mode,
    },
    /// Makes a file or what has attributes alone; answered with `Attr`.
    MakeNode {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its mode.
        mode: Mode,
        /// What.
        kind: NodeKind,
        /// Of a device: its numbers.
        rdev: u32,
    },
    /// Makes a symbolic link; answered with `Attr`.
    MakeSymlink {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its path: 1 to [`LINK_LEN_MAX`](super::LINK_LEN_MAX) bytes.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
    /// Gives an inode that is no directory a further name; answered with `Attr`.
    Link {
        /// Which.
        ino: Ino,
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Takes a name away from what is no directory; answered with [`Answer::Gone`](super::Answer::Gone).
    Unlink {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Takes an empty directory away; answered with `Gone`.
    RemoveDirectory {
        /// In which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Gives a name to another's inode; answered with `Gone` where the new name was another inode's, else with `Done`.
    Rename {
        /// From which directory.
        parent: Ino,
        /// The name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// To which directory.
        new_parent: Ino,
        /// The new name.
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        /// Linux' flags: 0, 1 (the new name must not be there), or 2 (both are, and are exchanged).
        flags: u32,
    },
    /// Opens a file, or a directory to read it; answered with `Attr`. A handle that the client has open already for the same is opened once.
    Open {
        /// The handle, the client's own name for it.
        handle: u64,
        /// Which.
        ino: Ino,
        /// What for.
        access: Access,
    },
    /// Closes a handle; answered with `Done`, also where it is not open. Locks stay: [`Self::Unlock`] releases them.
    Close {
        /// Which.
        handle: u64,
    },
    /// Entries of an open directory, with [`Answer::Entries`](super::Answer::Entries).
    ReadDirectory {
        /// Open by which handle.
        handle: u64,
        /// Behind which entry: its [`Entry::cookie`](super::Entry::cookie), or 0 from the first on. `.` and `..` are not among them.
        after: u64,
        /// So many at most, up to [`READDIR_MAX`](super::READDIR_MAX).
        count: u32,
    },
    /// Where pages of an open file lie, with [`Answer::Layout`](super::Answer::Layout).
    Layout {
        /// Open by which handle.
        handle: u64,
        /// First page in the file.
        at: u64,
        /// Pages.
        count: u64,
    },
    /// Where segments lie, with [`Answer::Places`](super::Answer::Places). Those that are gone are not among them.
    Places {
        /// Which, up to [`SEGMENTS_MAX`](super::SEGMENTS_MAX).
        segments: Vec<u32>,
    },
    /// Pages for this client to write to, with [`Answer::Fresh`](super::Answer::Fresh).
    Reserve {
        /// So many at most, up to [`RESERVE_PAGES_MAX`](super::RESERVE_PAGES_MAX). There may be fewer; [`Error::NoSpace`](super::Error::NoSpace) when there are none.
        pages: u32,
    },
    /// Gives reserved pages back, no write to which is under way; answered with `Done`.
    GiveBack {
        /// Which.
        pages: Vec<Pages>,
    },
    /// Makes reserved pages a file's, and ranges of it holes; answered with `Attr`. All copies of these pages have been written by then. What they replace is free.
    Commit {
        /// Open by which handle, for writing.
        handle: u64,
        /// The file goes at least to here.
        size_min: u64,
        /// When its contents changed; none: now.
        mtime: Option<Time>,
        /// Ranges of the file that become holes first, in the order of the file, and none overlap: (first page, pages).
        holes: Vec<(u64, u64)>,
        /// What its pages are then, in the order of the file, none twice.
        extents: Vec<Extent>,
    },
    /// Asked only after another request ([`Self::Heartbeat`]) was answered since the donor failed: a client that has to [join again](super::Error::Rejoin) has lost its access to all donors, and the
    /// donor is well.
    ///
    /// A donor does not answer this client for a segment, or what it says is wrong; answered with `Places`, in which it is no copy any more. The last whole copy stays, and is
    /// [`Error::Lost`](super::Error::Lost).
    Failed {
        /// Which segment.
        segment: u32,
        /// Which donor.
        #[serde(with = "donor_id")]
        donor: DonorId,
        /// In which run of it.
        incarnation: u64,
    },
    /// Memory and inodes, with [`Answer::Space`](super::Answer::Space).
    Statfs,
    /// The value of an extended attribute, with `Bytes`.
    GetXattr {
        /// Of which inode.
        ino: Ino,
        /// Its name, with its prefix.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// The names of extended attributes, each with a 0 behind it, with `Bytes`.
    ListXattr {
        /// Of which inode.
        ino: Ino,
    },
    /// Sets an extended attribute; answered with `Done`.
    SetXattr {
        /// Of which inode.
        ino: Ino,
        /// Its name: `user.`, `trusted.` and `security.` are known.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Its value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// Whether it is there already.
        how: SetXattr,
    },
    /// Removes an extended attribute; answered with `Done`.
    RemoveXattr {
        /// Of which inode.
        ino: Ino,
        /// Its name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Locks a range, instead of what the owner has locked of it; answered with `Done`, or [`Error::WouldBlock`](super::Error::WouldBlock): who wants to wait asks again.
    Lock(Lock),
    /// Which lock excludes this one, with [`Answer::Excluded`](super::Answer::Excluded).
    TestLock(Lock),
    /// Releases what an owner has locked of a range; answered with `Done`.
    Unlock {
        /// Of which inode.
        ino: Ino,
        /// Whose.
        owner: LockOwner,
        /// First byte.
        first: u64,
        /// Last byte.
        last: u64,
    },
}

impl Request {
    /// Whether it changes what the service keeps on its disk: such a request has a sequence number. What is open, locked and reserved is no such change, and these requests may be repeated as
    /// they are.
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
        )
    }
}
