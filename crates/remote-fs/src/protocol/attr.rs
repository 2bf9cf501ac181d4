//! What is known of an inode, and of a caller.

use serde::{Deserialize, Serialize};

/// An inode's number. None is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path.
    Symlink,
    /// A named pipe: its name and attributes lie here, what goes through it does not.
    Fifo,
    /// A socket, likewise.
    Socket,
    /// A character device, likewise.
    CharDevice,
    /// A block device, likewise.
    BlockDevice,
}

/// A time of the day: since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub s: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub ns: u32,
}

/// An inode's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, setuid, setgid, sticky: 07777.
    pub mode: u32,
    /// Names. 0: it is open, and has none any more.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device, its numbers as Linux writes them.
    pub rdev: u32,
    /// Bytes; of a directory, its entries; of a symbolic link, its path's bytes.
    pub size: u64,
    /// Pages that it has at the donors, counted once whatever the copies.
    pub pages: u64,
    /// Last read, as far as anybody has set it: reads do not.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// Grows with each change of the contents: of the bytes or the size of a file, of the names in a directory. A client that has data or a layout of this version has the
    /// current one.
    pub version: u64,
}

/// In whose name a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// User; 0 may do anything.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, up to [`GROUPS_MAX`](super::GROUPS_MAX).
    pub groups: Vec<u32>,
}
