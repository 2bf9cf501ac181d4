//! Inodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use crate::map::Map;
use crate::protocol::{Attr, Caller, Ino, Kind, NodeKind, Time};

/// Contents of an inode, besides its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// The pages of a file.
    File(Map),
    /// The entries of a directory, and its parent directory.
    Directory(Directory, Ino),
    /// The path of a symbolic link.
    Symlink(serde_bytes::ByteBuf),
    /// None: a special file.
    Node(Node),
}

/// Kind of a special file, which has attributes and no contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Node {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Body {
    /// The body of a new node.
    pub(super) fn of_node(kind: NodeKind) -> Self {
        match kind {
            NodeKind::File => Self::File(Map::default()),
            NodeKind::Fifo => Self::Node(Node::Fifo),
            NodeKind::Socket => Self::Node(Node::Socket),
            NodeKind::CharDevice => Self::Node(Node::CharDevice),
            NodeKind::BlockDevice => Self::Node(Node::BlockDevice),
        }
    }

    pub(super) fn is_device(&self) -> bool {
        matches!(self, Self::Node(Node::CharDevice | Node::BlockDevice))
    }

    fn kind(&self) -> Kind {
        match self {
            Self::File(_) => Kind::File,
            Self::Directory(..) => Kind::Directory,
            Self::Symlink(_) => Kind::Symlink,
            Self::Node(Node::Fifo) => Kind::Fifo,
            Self::Node(Node::Socket) => Kind::Socket,
            Self::Node(Node::CharDevice) => Kind::CharDevice,
            Self::Node(Node::BlockDevice) => Kind::BlockDevice,
        }
    }
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    /// Length of a file, in bytes.
    pub(super) size: u64,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) btime: Time,
    pub(super) version: u64,
    pub(super) xattrs: BTreeMap<serde_bytes::ByteBuf, serde_bytes::ByteBuf>,
    pub(super) body: Body,
}

impl Inode {
    pub(super) fn new(body: Body, mode: u32, caller: &Caller, now: Time) -> Self {
        let is_directory = matches!(body, Body::Directory(..));
        Self {
            mode: mode & 0o7777,
            // A directory counts its name and its own `.`.
            links: if is_directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            version: 0,
            xattrs: BTreeMap::new(),
            body,
        }
    }

    /// Kind of the inode.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// Contents of the inode.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Number of names; for a directory, as Linux counts them.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// Attributes of the inode.
    pub fn attr(&self, ino: Ino) -> Attr {
        let (size, pages) = match &self.body {
            Body::File(map) => (self.size, map.pages() + map.allocated_pages()),
            Body::Directory(directory, _) => (directory.len(), 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Node(_) => (0, 0),
        };
        Attr {
            ino,
            kind: self.kind(),
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            pages,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            version: self.version,
        }
    }

    /// Holes of a file to which room was promised.
    pub(super) fn allocated_pages(&self) -> u64 {
        if let Body::File(map) = &self.body { map.allocated_pages() } else { 0 }
    }

    /// Bytes of its extended attributes, names and values.
    pub(super) fn xattrs_len(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Records a change of the contents.
    pub(super) fn touch(&mut self, now: Time) {
        self.version += 1;
        (self.mtime, self.ctime) = (now, now);
    }
}
