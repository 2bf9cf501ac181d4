//! Attributes of an inode, and identity of a caller.

use serde::{Deserialize, Serialize};

/// Number of an inode. None is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A file with bytes.
    File,
    /// A directory of names.
    Directory,
    /// A symbolic link to a path.
    Symlink,
    /// A named pipe. Its name and attributes are stored, its traffic is not.
    Fifo,
    /// A socket, likewise.
    Socket,
    /// A character device, likewise.
    CharDevice,
    /// A block device, likewise.
    BlockDevice,
}

/// A time of day, since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub s: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub ns: u32,
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: Kind,
    /// Permission bits, setuid, setgid, sticky: 07777.
    pub mode: u32,
    /// Number of names; 0 if it is open but no longer has a name.
    pub links: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device numbers of a device, in Linux's encoding.
    pub rdev: u32,
    /// Length in bytes; for a directory, its number of entries; for a symbolic link, the length of its path.
    pub size: u64,
    /// Pages stored at the donors, and holes to which room was promised. A page counts once, whatever its copies.
    pub pages: u64,
    /// Time of last access, as last set explicitly: reads do not update it.
    pub atime: Time,
    /// Time of last change of the contents.
    pub mtime: Time,
    /// Time of last change of the contents or attributes.
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// Incremented with each change of the contents: bytes or length of a file, names in a directory. Data and layouts
    /// of the same version are current.
    pub version: u64,
}

/// Caller on whose behalf a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// User; 0 may do anything.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Supplementary groups, up to [`GROUPS_MAX`](super::GROUPS_MAX).
    pub groups: Vec<u32>,
}
