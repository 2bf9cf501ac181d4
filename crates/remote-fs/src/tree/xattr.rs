//! Extended attributes.

use serde_bytes::Bytes;

use super::inode::Inode;
use super::permission::{self, READ, STICKY, WRITE};
use super::state::{Context, Tree};
use crate::protocol::{Caller, Error, Ino, Kind, NAME_LEN_MAX, SetXattr, XATTR_VALUE_MAX, XATTRS_LEN_MAX};

/// Capabilities of a program that any user executes from the file. A write to the file removes them.
const CAPABILITIES: &[u8] = b"security.capability";

/// Class of an attribute's name, which decides who may see and set it.
enum Class {
    User,
    Trusted,
    Security,
}

fn class_of(name: &[u8]) -> Result<Class, Error> {
    if name.len() > NAME_LEN_MAX {
        return Err(Error::NameTooLong);
    }
    if name.contains(&0) {
        return Err(Error::Invalid);
    }
    let known = [(&b"user."[..], Class::User), (b"trusted.", Class::Trusted), (b"security.", Class::Security)];
    let found = known.into_iter().find(|(prefix, _)| name.starts_with(prefix)).ok_or(Error::NotSupported)?;
    if name.len() > found.0.len() { Ok(found.1) } else { Err(Error::Invalid) }
}

fn may_get(inode: &Inode, caller: &Caller, name: &[u8]) -> Result<(), Error> {
    match class_of(name)? {
        Class::User if !matches!(inode.kind(), Kind::File | Kind::Directory) => Err(Error::NoAttribute),
        Class::User => permission::allows(inode, caller, READ),
        Class::Trusted if !permission::is_root(caller) => Err(Error::NoAttribute),
        Class::Trusted | Class::Security => Ok(()),
    }
}

fn may_set(inode: &Inode, caller: &Caller, name: &[u8]) -> Result<(), Error> {
    match class_of(name)? {
        Class::User if !matches!(inode.kind(), Kind::File | Kind::Directory) => Err(Error::Permission),
        // Everybody may write to a sticky directory, but only its owner may label it.
        Class::User
            if inode.kind() == Kind::Directory && inode.mode & STICKY != 0 && !permission::owns(inode, caller) =>
        {
            Err(Error::Permission)
        }
        Class::User => permission::allows(inode, caller, WRITE),
        Class::Trusted | Class::Security if !permission::is_root(caller) => Err(Error::Permission),
        Class::Trusted | Class::Security => Ok(()),
    }
}

impl Tree {
    /// Returns the value of an attribute.
    ///
    /// # Errors
    ///
    /// The reason why the caller does not get it.
    pub fn xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<&[u8], Error> {
        let inode = self.inode(ino)?;
        may_get(inode, caller, name)?;
        inode.xattrs.get(Bytes::new(name)).map(|value| &value[..]).ok_or(Error::NoAttribute)
    }

    /// Returns the names of the attributes that the caller may see, each followed by a 0.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] when there is no such inode.
    pub fn xattr_names(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>, Error> {
        let inode = self.inode(ino)?;
        let is_seen = |name: &&serde_bytes::ByteBuf| permission::is_root(caller) || !name.starts_with(b"trusted.");
        Ok(inode.xattrs.keys().filter(is_seen).flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(super) fn set_xattr(
        &mut self,
        context: Context<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let inode = self.inode_mut(ino)?;
        may_set(inode, context.caller, name)?;
        let before = inode.xattrs_len();
        let old = inode.xattrs.get(Bytes::new(name)).map(|value| value.len());
        match (how, old) {
            (SetXattr::Create, Some(_)) => return Err(Error::Exists),
            (SetXattr::Replace, None) => return Err(Error::NoAttribute),
            _ => {}
        }
        let len = before - old.map_or(0, |old| old + name.len()) + name.len() + value.len();
        if value.len() > XATTR_VALUE_MAX || len > XATTRS_LEN_MAX {
            return Err(Error::AttributesTooBig);
        }
        inode.xattrs.insert(name.to_vec().into(), value.to_vec().into());
        inode.ctime = context.now;
        self.xattrs_len = self.xattrs_len - before as u64 + len as u64;
        Ok(())
    }

    /// Bytes of all extended attributes of all inodes, names and values.
    pub fn xattrs_len(&self) -> u64 {
        self.xattrs_len
    }

    /// Bytes that all extended attributes would have, names and values, if this one were set.
    pub fn xattrs_len_with(&self, ino: Ino, name: &[u8], value: &[u8]) -> u64 {
        let old = self.inode(ino).ok().and_then(|inode| inode.xattrs.get(Bytes::new(name)));
        let old = old.map_or(0, |old| name.len() + old.len());
        self.xattrs_len - old as u64 + (name.len() + value.len()) as u64
    }

    /// Removes a file's capabilities, after a write or a change of owner.
    pub(super) fn drop_capabilities(&mut self, ino: Ino) {
        let removed = self.inodes.get_mut(&ino).and_then(|inode| inode.xattrs.remove(Bytes::new(CAPABILITIES)));
        if let Some(value) = removed {
            self.xattrs_len -= (CAPABILITIES.len() + value.len()) as u64;
        }
    }

    pub(super) fn remove_xattr(&mut self, context: Context<'_>, ino: Ino, name: &[u8]) -> Result<(), Error> {
        let inode = self.inode_mut(ino)?;
        may_set(inode, context.caller, name)?;
        let value = inode.xattrs.remove(Bytes::new(name)).ok_or(Error::NoAttribute)?;
        inode.ctime = context.now;
        self.xattrs_len -= (name.len() + value.len()) as u64;
        Ok(())
    }
}
