//! One inode in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::data::Data;
use crate::files::{Attributes, Caller, Kind};

/// Longest name, in bytes.
pub(super) const NAME_MAX: usize = 255;
/// Bytes in a block as `stat` counts them.
const STAT_BLOCK: u64 = 512;

/// Entries of a directory, in the order in which they were added.
#[derive(Default)]
pub(super) struct Directory {
    cookies: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    last: u64,
}

impl Directory {
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        Some(self.entries.get(self.cookies.get(name)?)?.1)
    }

    /// Gives a name to an inode, replacing an entry with the same name.
    pub fn insert(&mut self, name: &[u8], ino: u64) {
        let last = &mut self.last;
        let place = *self.cookies.entry(name.to_vec()).or_insert_with(|| {
            *last += 1;
            *last
        });
        self.entries.insert(place, (name.to_vec(), ino));
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<u64> {
        Some(self.entries.remove(&self.cookies.remove(name)?)?.1)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn inodes(&self) -> Vec<u64> {
        self.entries.values().map(|(_, ino)| *ino).collect()
    }

    /// The first entry after a place: its place, name and inode.
    pub fn next_after(&self, place: u64) -> Option<(u64, Vec<u8>, u64)> {
        let (place, (name, ino)) = self.entries.range(place.checked_add(1)?..).next()?;
        Some((*place, name.clone(), *ino))
    }
}

pub(super) enum Content {
    File(Arc<Data>),
    Directory(Directory),
    Link(Vec<u8>),
    Node { device: u32 },
}

pub(super) struct Node {
    ino: u64,
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// References that the kernel holds to it.
    pub lookups: u64,
    pub accessed: SystemTime,
    pub modified: SystemTime,
    pub changed: SystemTime,
    pub content: Content,
}

impl Node {
    pub fn new(ino: u64, kind: Kind, mode: u16, caller: &Caller, content: Content) -> Self {
        let now = SystemTime::now();
        let links = if kind == Kind::Directory { 2 } else { 1 };
        let (uid, gid) = (caller.uid, caller.gid);
        Self { ino, kind, mode, uid, gid, links, lookups: 0, accessed: now, modified: now, changed: now, content }
    }

    /// Records that the contents have changed.
    pub fn touch(&mut self) {
        self.modified = SystemTime::now();
        self.changed = self.modified;
    }

    /// Clears the set-id bits; that of the group only with group execution, without which it marks mandatory locking.
    pub fn drop_privileges(&mut self) {
        let group = if self.mode & 0o010 != 0 { 0o2000 } else { 0 };
        self.mode &= !(0o4000 | group);
    }

    /// Bytes of memory that it takes.
    pub fn allocated(&self) -> u64 {
        if let Content::File(data) = &self.content { data.allocated() } else { 0 }
    }

    pub fn attributes(&self) -> Attributes {
        let (size, device) = match &self.content {
            Content::File(data) => (data.len(), 0),
            Content::Directory(directory) => (directory.entries.len() as u64, 0),
            Content::Link(path) => (path.len() as u64, 0),
            Content::Node { device } => (0, *device),
        };
        Attributes {
            ino: self.ino,
            generation: 0,
            kind: self.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device,
            size,
            blocks: self.allocated() / STAT_BLOCK,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
        }
    }
}
