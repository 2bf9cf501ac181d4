//! The tree itself, and how it is read.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::inode::{Body, Inode};
use super::permission::{self, EXECUTE, READ, WRITE};
use crate::map::Map;
use crate::protocol::{Access, Attr, Caller, Entry, Error, Ino, Kind, LINK_LEN_MAX, NAME_LEN_MAX, Pages, Time};

/// Circumstances of a change: caller, time and open inode.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Caller on whose behalf the change is made.
    pub caller: &'a Caller,
    /// Time of the change.
    pub now: Time,
    /// Inode of the request's handle, if that is open for writing.
    pub opened: Option<Ino>,
}

/// All names and inodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub(super) inodes: BTreeMap<Ino, Inode>,
    /// Inodes without a name.
    pub(super) orphans: BTreeSet<Ino>,
    pub(super) last_ino: Ino,
    /// Bytes of all extended attributes, names and values.
    #[serde(skip)]
    pub(super) xattrs_len: u64,
    /// Names of files beyond the first of each.
    #[serde(skip)]
    pub(super) extra_links: u64,
    /// Pages of all files that are holes to which room was promised.
    #[serde(skip)]
    pub(super) allocated_pages: u64,
}

/// Checks that a name is valid for an entry.
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
    /// A tree with a root directory that every user may read and root may change.
    pub fn new(now: Time) -> Self {
        let body = Body::Directory(Directory::default(), Ino::ROOT);
        let root = Inode::new(body, 0o755, &Caller::default(), now);
        Self {
            inodes: [(Ino::ROOT, root)].into(),
            orphans: BTreeSet::new(),
            last_ino: Ino::ROOT,
            xattrs_len: 0,
            extra_links: 0,
            allocated_pages: 0,
        }
    }

    /// Recomputes the counts that are not stored, after a tree was read.
    pub(crate) fn recount(&mut self) {
        self.xattrs_len = self.inodes.values().map(|inode| inode.xattrs_len() as u64).sum();
        let files = self.inodes.values().filter(|inode| inode.kind() != Kind::Directory);
        self.extra_links = files.map(|inode| u64::from(inode.links.saturating_sub(1))).sum();
        self.allocated_pages = self.inodes.values().map(Inode::allocated_pages).sum();
    }

    /// Number of inodes.
    pub fn len(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Number of names of files beyond the first of each: hard links.
    pub fn extra_links(&self) -> u64 {
        self.extra_links
    }

    /// Pages of all files that are holes to which room was promised.
    pub fn allocated_pages(&self) -> u64 {
        self.allocated_pages
    }

    /// Whether there are no inodes, which is never so.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Highest number that an inode ever had.
    pub fn last_ino(&self) -> Ino {
        self.last_ino
    }

    /// Iterates over all inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode))
    }

    /// Iterates over the inodes from this one on.
    pub fn inodes_from(&self, ino: Ino) -> impl Iterator<Item = (Ino, &Inode)> {
        self.inodes.range(ino..).map(|(ino, inode)| (*ino, inode))
    }

    /// Iterates over the inodes without a name.
    pub fn orphans(&self) -> impl Iterator<Item = Ino> {
        self.orphans.iter().copied()
    }

    /// Returns an inode.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] when there is none with this number.
    pub fn inode(&self, ino: Ino) -> Result<&Inode, Error> {
        self.inodes.get(&ino).ok_or(Error::Stale)
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Error> {
        self.inodes.get_mut(&ino).ok_or(Error::Stale)
    }

    /// Returns an inode's attributes.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] when there is none with this number.
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

    /// Returns a file's pages.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`]; [`Error::Invalid`] when it is not a file.
    pub fn map(&self, ino: Ino) -> Result<&Map, Error> {
        match &self.inode(ino)?.body {
            Body::File(map) => Ok(map),
            _ => Err(Error::Invalid),
        }
    }

    /// Whether a directory has a name, regardless of permissions.
    pub fn has_name(&self, parent: Ino, name: &[u8]) -> bool {
        self.directory(parent).is_ok_and(|(_, directory)| directory.get(name).is_some())
    }

    /// Looks up a name on behalf of a caller.
    ///
    /// # Errors
    ///
    /// The reason why the caller does not find it.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let (inode, directory) = self.directory(parent)?;
        permission::allows(inode, caller, EXECUTE)?;
        check_name(name)?;
        self.attr(directory.get(name).ok_or(Error::NotFound)?)
    }

    /// Checks that the caller may open an inode for this access. Returns its attributes.
    ///
    /// # Errors
    ///
    /// The reason why the caller may not.
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

    /// Returns a symbolic link's path.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`]; [`Error::Invalid`] when it is not a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<&[u8], Error> {
        match &self.inode(ino)?.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Error::Invalid),
        }
    }

    /// Returns the entries of a directory after a cookie, whether these are the last ones, and the parent directory.
    /// `go_on` is given the length of each entry's name in bytes, and stops the listing by returning false.
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

    /// Drops an inode that has no name and is not open. Its pages are added to `freed`. Returns whether there was such
    /// an inode.
    pub fn drop_orphan(&mut self, ino: Ino, freed: &mut Vec<Pages>) -> bool {
        if !self.orphans.remove(&ino) {
            return false;
        }
        if let Some(inode) = self.inodes.remove(&ino) {
            self.xattrs_len -= inode.xattrs_len() as u64;
            self.allocated_pages -= inode.allocated_pages();
            if let Body::File(mut map) = inode.body {
                map.punch(0, u64::MAX, freed);
            }
        }
        true
    }
}
