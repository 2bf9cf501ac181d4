//! The tree itself, and what is read of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::inode::{Body, Inode};
use super::permission::{self, EXECUTE, READ, WRITE};
use crate::map::Map;
use crate::protocol::{Access, Attr, Caller, Entry, Error, Ino, Kind, LINK_LEN_MAX, NAME_LEN_MAX, Pages, Time};

/// In whose name, and when, a tree is changed.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Who.
    pub caller: &'a Caller,
    /// When.
    pub now: Time,
    /// The inode of the request's handle, which is open for writing.
    pub opened: Option<Ino>,
}

/// All names and inodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// Those without a name.
    pub(super) orphans: BTreeSet<Ino>,
    pub(super) last_ino: Ino,
    /// Bytes of all extended attributes.
    #[serde(skip)]
    pub(super) xattrs_len: u64,
    /// Names that inodes have beside their first.
    #[serde(skip)]
    pub(super) further_names: u64,
}

/// Whether it can be an entry's name.
pub(super) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_LEN_MAX {
        return Err(Error::NameTooLong);
    }
    let makes_sense = !name.is_empty() && name != b"." && name != b".." && !name.contains(&0) && !name.contains(&b'/');
    if makes_sense { Ok(()) } else { Err(Error::Invalid) }
}

pub(super) fn check_target(target: &[u8]) -> Result<(), Error> {
    if target.len() > LINK_LEN_MAX {
        return Err(Error::NameTooLong);
    }
    if target.is_empty() || target.contains(&0) { Err(Error::Invalid) } else { Ok(()) }
}

impl Tree {
    /// A root directory, which anybody may read and root may change.
    pub fn new(now: Time) -> Self {
        let body = Body::Directory(Directory::default(), Ino::ROOT);
        let root = Inode::new(body, 0o755, &Caller::default(), now);
        Self {
            inodes: [(Ino::ROOT, root)].into(),
            orphans: BTreeSet::new(),
            last_ino: Ino::ROOT,
            xattrs_len: 0,
            further_names: 0,
        }
    }

    /// Counts anew what is counted, and not stored: for a tree that was read.
    pub(crate) fn count_again(&mut self) {
        self.xattrs_len = self.inodes.values().map(|inode| inode.xattrs_len() as u64).sum();
        let files = self.inodes.values().filter(|inode| inode.kind() != Kind::Directory);
        self.further_names = files.map(|inode| u64::from(inode.links.saturating_sub(1))).sum();
    }

    /// Inodes that there are.
    pub fn len(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Names that inodes have beside their first: hard links.
    pub fn further_names(&self) -> u64 {
        self.further_names
    }

    /// Whether there are none, which is never so.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// The highest number that an inode ever had.
    pub fn last_ino(&self) -> Ino {
        self.last_ino
    }

    /// All inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode))
    }

    /// Inodes without a name.
    pub fn orphans(&self) -> impl Iterator<Item = Ino> {
        self.orphans.iter().copied()
    }

    /// An inode.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`].
    pub fn inode(&self, ino: Ino) -> Result<&Inode, Error> {
        self.inodes.get(&ino).ok_or(Error::Stale)
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Error> {
        self.inodes.get_mut(&ino).ok_or(Error::Stale)
    }

    /// An inode's attributes.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`].
    pub fn attr(&self, ino: Ino) -> Result<Attr, Error> {
        self.inode(ino).map(|inode| inode.attr(ino))
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<(&Inode, &Directory), Error> {
        let inode = self.inode(ino)?;
        match &inode.body {
            Body::Directory(directory, _) => Ok((inode, directory)),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn directory_mut(&mut self, ino: Ino) -> Result<&mut Directory, Error> {
        match &mut self.inode_mut(ino)?.body {
            Body::Directory(directory, _) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    /// A file's pages.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`]; [`Error::Invalid`] when it is no file.
    pub fn map(&self, ino: Ino) -> Result<&Map, Error> {
        match &self.inode(ino)?.body {
            Body::File(map) => Ok(map),
            _ => Err(Error::Invalid),
        }
    }

    /// Whether a directory has a name, whoever asks.
    pub fn has_name(&self, parent: Ino, name: &[u8]) -> bool {
        self.directory(parent).is_ok_and(|(_, directory)| directory.get(name).is_some())
    }

    /// The inode of a name, as the caller may find it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let (inode, directory) = self.directory(parent)?;
        permission::allows(inode, caller, EXECUTE)?;
        check_name(name)?;
        self.attr(directory.get(name).ok_or(Error::NotFound)?)
    }

    /// Whether the caller may open an inode for this.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn may_open(&self, caller: &Caller, ino: Ino, access: Access) -> Result<Attr, Error> {
        let inode = self.inode(ino)?;
        if access.write && inode.kind() == Kind::Directory {
            return Err(Error::IsDirectory);
        }
        let reads = if access.execute { EXECUTE } else { READ };
        let rights = if access.read || access.execute { reads } else { 0 } | if access.write { WRITE } else { 0 };
        permission::allows(inode, caller, rights)?;
        Ok(inode.attr(ino))
    }

    /// A symbolic link's path.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when it is none.
    pub fn read_link(&self, ino: Ino) -> Result<&[u8], Error> {
        match &self.inode(ino)?.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Error::Invalid),
        }
    }

    /// Entries of a directory behind a cookie, as long as `go_on` is told how many bytes the next one's name has, and says so; whether there are none behind; and the directory above.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`], [`Error::Stale`].
    pub fn entries(
        &self,
        ino: Ino,
        after: u64,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<(Vec<Entry>, bool, Ino), Error> {
        let inode = self.inode(ino)?;
        let Body::Directory(directory, parent) = &inode.body else { return Err(Error::NotDirectory) };
        let mut entries = Vec::new();
        for (cookie, name, ino) in directory.after(after) {
            if !go_on(name.len()) {
                return Ok((entries, false, *parent));
            }
            entries.push(Entry { name: name.to_vec(), cookie, attr: self.attr(ino)? });
        }
        Ok((entries, true, *parent))
    }

    /// Forgets an inode that has no name, and that nobody has open. Its pages are added to `freed`. Returns whether there was such an inode.
    pub fn drop_orphan(&mut self, ino: Ino, freed: &mut Vec<Pages>) -> bool {
        if !self.orphans.remove(&ino) {
            return false;
        }
        if let Some(inode) = self.inodes.remove(&ino) {
            self.xattrs_len -= inode.xattrs_len() as u64;
            if let Body::File(mut map) = inode.body {
                map.punch(0, u64::MAX, freed);
            }
        }
        true
    }
}
