//! Adding and removing names.

use super::inode::{Body, Inode};
use super::permission::{self, EXECUTE, SETGID, WRITE};
use super::state::{Context, Tree, check_name, check_target};
use crate::protocol::{Attr, Error, Ino, Kind, LINKS_MAX, NodeKind};

impl Tree {
    /// Checks that the caller may make this entry.
    pub(super) fn may_insert(&self, context: Context<'_>, parent: Ino, name: &[u8]) -> Result<(), Error> {
        let (inode, directory) = self.directory(parent)?;
        permission::allows(inode, context.caller, EXECUTE)?;
        check_name(name)?;
        if directory.get(name).is_some() {
            return Err(Error::Exists);
        }
        if inode.links == 0 {
            return Err(Error::NotFound);
        }
        permission::allows(inode, context.caller, WRITE)
    }

    fn insert_new(
        &mut self,
        context: Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        body: Body,
    ) -> Result<Attr, Error> {
        self.may_insert(context, parent, name)?;
        let Context { caller, now, .. } = context;
        let is_directory = matches!(body, Body::Directory(..));
        let parent_inode = self.inode_mut(parent)?;
        if is_directory && parent_inode.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        parent_inode.touch(now);
        parent_inode.links += u32::from(is_directory);
        let mut inode = Inode::new(body, mode, caller, now);
        if parent_inode.mode & SETGID != 0 {
            inode.gid = parent_inode.gid;
            inode.mode |= if is_directory { SETGID } else { 0 };
        }
        if !is_directory {
            inode.mode = permission::mode_without_foreign_setgid(inode.mode, inode.gid, caller);
        }
        self.last_ino.0 += 1;
        let ino = self.last_ino;
        let attr = inode.attr(ino);
        self.inodes.insert(ino, inode);
        self.directory_mut(parent)?.insert(name, ino);
        Ok(attr)
    }

    pub(super) fn make_directory(
        &mut self,
        context: Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Attr, Error> {
        self.insert_new(context, parent, name, mode, Body::Directory(Default::default(), parent))
    }

    pub(super) fn make_node(
        &mut self,
        context: Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        (kind, rdev): (NodeKind, u32),
    ) -> Result<Attr, Error> {
        let body = Body::of_node(kind);
        let is_device = body.is_device();
        if is_device && !permission::is_root(context.caller) {
            return Err(Error::Permission);
        }
        let attr = self.insert_new(context, parent, name, mode, body)?;
        if is_device {
            self.inode_mut(attr.ino)?.rdev = rdev;
        }
        self.attr(attr.ino)
    }

    pub(super) fn make_symlink(
        &mut self,
        context: Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr, Error> {
        check_target(target)?;
        self.insert_new(context, parent, name, 0o777, Body::Symlink(target.to_vec().into()))
    }

    pub(super) fn link(&mut self, context: Context<'_>, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let inode = self.inode(ino)?;
        if inode.kind() == Kind::Directory {
            return Err(Error::Permission);
        }
        if inode.links == 0 {
            return Err(Error::NotFound);
        }
        if inode.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        self.may_insert(context, parent, name)?;
        let inode = self.inode_mut(ino)?;
        inode.links += 1;
        inode.ctime = context.now;
        self.extra_links += 1;
        self.directory_mut(parent)?.insert(name, ino);
        self.inode_mut(parent)?.touch(context.now);
        self.attr(ino)
    }

    /// Checks that the caller may remove this entry. Returns its inode.
    pub(super) fn may_remove(&self, context: Context<'_>, parent: Ino, name: &[u8]) -> Result<(Ino, &Inode), Error> {
        let (parent_inode, directory) = self.directory(parent)?;
        permission::allows(parent_inode, context.caller, EXECUTE)?;
        check_name(name)?;
        let ino = directory.get(name).ok_or(Error::NotFound)?;
        let inode = self.inode(ino)?;
        permission::may_remove(parent_inode, inode, context.caller)?;
        Ok((ino, inode))
    }

    pub(super) fn unlink(&mut self, context: Context<'_>, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let (ino, inode) = self.may_remove(context, parent, name)?;
        if inode.kind() == Kind::Directory {
            return Err(Error::IsDirectory);
        }
        self.directory_mut(parent)?.remove(name);
        self.inode_mut(parent)?.touch(context.now);
        self.remove_link(context, ino)
    }

    pub(super) fn remove_directory(&mut self, context: Context<'_>, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let (ino, _) = self.may_remove(context, parent, name)?;
        if !self.directory(ino)?.1.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.directory_mut(parent)?.remove(name);
        let parent_inode = self.inode_mut(parent)?;
        parent_inode.touch(context.now);
        parent_inode.links -= 1;
        self.remove_link(context, ino)
    }

    /// Records that an inode lost a name, possibly its last.
    pub(super) fn remove_link(&mut self, context: Context<'_>, ino: Ino) -> Result<Attr, Error> {
        let inode = self.inode_mut(ino)?;
        inode.ctime = context.now;
        let is_file = inode.kind() != Kind::Directory;
        inode.links = if is_file { inode.links.saturating_sub(1) } else { 0 };
        if inode.links > 0 {
            self.extra_links = self.extra_links.saturating_sub(1);
        } else {
            self.orphans.insert(ino);
        }
        self.attr(ino)
    }
}
