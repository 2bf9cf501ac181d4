//! Renaming.

use super::inode::Body;
use super::permission::{self, WRITE};
use super::state::{Context, Tree, check_name};
use crate::protocol::{Attr, Error, Ino, Kind, LINKS_MAX};

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// A name in a directory.
pub(super) type EntryKey<'a> = (Ino, &'a [u8]);

impl Tree {
    /// Whether a directory is `other`, or lies in it.
    fn is_descendant(&self, mut ino: Ino, other: Ino) -> bool {
        loop {
            if ino == other {
                return true;
            }
            match self.inode(ino).map(|inode| &inode.body) {
                Ok(Body::Directory(_, above)) if *above != ino => ino = *above,
                _ => return false,
            }
        }
    }

    /// Checks that an inode may be moved to another directory, in place of `old` if that is given. The `..` of a
    /// moved directory then names its new parent, and counts as a link of that parent.
    fn may_move(&self, context: Context<'_>, ino: Ino, from: Ino, to: Ino, old: Option<Ino>) -> Result<(), Error> {
        let inode = self.inode(ino)?;
        if inode.kind() != Kind::Directory || from == to {
            return Ok(());
        }
        if self.is_descendant(to, ino) {
            return Err(Error::Invalid);
        }
        let leaves_link = old.map(|old| self.inode(old)).transpose()?.is_some_and(|old| old.kind() == Kind::Directory);
        if !leaves_link && self.inode(to)?.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        permission::allows(inode, context.caller, WRITE)
    }

    /// Renames. Returns the attributes of the inode that was replaced, if there was one.
    pub(super) fn rename(
        &mut self,
        context: Context<'_>,
        from: EntryKey<'_>,
        to: EntryKey<'_>,
        flags: u32,
    ) -> Result<Option<Attr>, Error> {
        if ![0, NO_REPLACE, EXCHANGE].contains(&flags) {
            return Err(Error::Invalid);
        }
        let (ino, _) = self.may_remove(context, from.0, from.1)?;
        let (parent_inode, directory) = self.directory(to.0)?;
        permission::allows(parent_inode, context.caller, permission::EXECUTE)?;
        check_name(to.1)?;
        let Some(old) = directory.get(to.1) else {
            if flags == EXCHANGE {
                return Err(Error::NotFound);
            }
            self.may_insert(context, to.0, to.1)?;
            self.may_move(context, ino, from.0, to.0, None)?;
            self.move_name(context, ino, from, to)?;
            return Ok(None);
        };
        if flags == NO_REPLACE {
            return Err(Error::Exists);
        }
        if old == ino {
            return Ok(None);
        }
        self.may_remove(context, to.0, to.1)?;
        self.may_move(context, ino, from.0, to.0, Some(old))?;
        if flags == EXCHANGE {
            self.may_move(context, old, to.0, from.0, Some(ino))?;
            self.exchange(context, (ino, from), (old, to))?;
            return Ok(None);
        }
        match (self.inode(ino)?.kind() == Kind::Directory, &self.inode(old)?.body) {
            (true, Body::Directory(entries, _)) if !entries.is_empty() => return Err(Error::NotEmpty),
            (false, Body::Directory(..)) => return Err(Error::IsDirectory),
            (true, Body::Directory(..)) => {
                self.inode_mut(to.0)?.links -= 1;
            }
            (true, _) => return Err(Error::NotDirectory),
            (false, _) => {}
        }
        self.directory_mut(to.0)?.remove(to.1);
        let unlinked = self.remove_link(context, old)?;
        self.move_name(context, ino, from, to)?;
        Ok(Some(unlinked))
    }

    /// Renames an entry to a name that does not exist.
    fn move_name(&mut self, context: Context<'_>, ino: Ino, from: EntryKey<'_>, to: EntryKey<'_>) -> Result<(), Error> {
        self.directory_mut(from.0)?.remove(from.1);
        self.directory_mut(to.0)?.insert(to.1, ino);
        self.set_parent(context, ino, from.0, to.0)?;
        self.inode_mut(from.0)?.touch(context.now);
        if from.0 != to.0 {
            self.inode_mut(to.0)?.touch(context.now);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        context: Context<'_>,
        one: (Ino, EntryKey<'_>),
        other: (Ino, EntryKey<'_>),
    ) -> Result<(), Error> {
        let ((one, from), (other, to)) = (one, other);
        self.directory_mut(from.0)?.replace(from.1, other);
        self.directory_mut(to.0)?.replace(to.1, one);
        self.set_parent(context, one, from.0, to.0)?;
        self.set_parent(context, other, to.0, from.0)?;
        self.inode_mut(from.0)?.touch(context.now);
        if from.0 != to.0 {
            self.inode_mut(to.0)?.touch(context.now);
        }
        Ok(())
    }

    /// Updates an inode that has moved. A directory counts as a link of its parent.
    fn set_parent(&mut self, context: Context<'_>, ino: Ino, from: Ino, to: Ino) -> Result<(), Error> {
        let inode = self.inode_mut(ino)?;
        inode.ctime = context.now;
        if let Body::Directory(_, parent) = &mut inode.body {
            *parent = to;
            self.inode_mut(from)?.links -= 1;
            self.inode_mut(to)?.links += 1;
        }
        Ok(())
    }
}
