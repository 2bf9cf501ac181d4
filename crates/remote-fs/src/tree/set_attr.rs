//! Setting attributes.

use super::inode::Body;
use super::permission::{self, WRITE};
use super::state::{Context, Tree};
use crate::protocol::{Attr, Error, FILE_LEN_MAX, Ino, Kind, PAGE, Pages, SetAttr, SetTime, Time};

pub(super) fn check_time(time: Time) -> Result<(), Error> {
    if time.ns < 1_000_000_000 { Ok(()) } else { Err(Error::Invalid) }
}

impl Tree {
    pub(super) fn set_attr(
        &mut self,
        context: Context<'_>,
        ino: Ino,
        set: &SetAttr,
        freed: &mut Vec<Pages>,
    ) -> Result<Attr, Error> {
        self.may_set(context, ino, set)?;
        let Context { caller, now, .. } = context;
        let inode = self.inode_mut(ino)?;
        if set.uid.is_some() || set.gid.is_some() {
            permission::drop_privileges(inode, caller, true);
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
        }
        if let Some(mode) = set.mode {
            inode.mode = permission::mode_without_foreign_setgid(mode, inode.gid, caller);
        }
        let mut forgotten = 0;
        if let (Some(size), Body::File(map)) = (set.size, &mut inode.body) {
            let before = map.allocated_pages();
            if size < inode.size {
                map.cut(size, freed);
            } else if size == inode.size {
                // As other file systems do: room beyond the end goes when the length is set to what it is.
                map.forget_allocated(size.div_ceil(PAGE as u64));
            }
            forgotten = before - map.allocated_pages();
            inode.size = size;
            inode.touch(now);
            if set.mode.is_none() {
                permission::drop_privileges(inode, caller, false);
            }
        }
        let chosen = |time| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        inode.atime = set.atime.map_or(inode.atime, chosen);
        inode.mtime = set.mtime.map_or(inode.mtime, chosen);
        inode.ctime = now;
        self.allocated_pages -= forgotten;
        if set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
            self.drop_capabilities(ino);
        }
        self.attr(ino)
    }

    fn may_set(&self, Context { caller, opened, .. }: Context<'_>, ino: Ino, set: &SetAttr) -> Result<(), Error> {
        let inode = self.inode(ino)?;
        let (owns, is_root) = (permission::owns(inode, caller), permission::is_root(caller));
        let changes_owner = set.uid.is_some_and(|uid| uid != inode.uid || !owns);
        let enters_group =
            set.gid.is_some_and(|gid| !owns || !(gid == inode.gid || permission::is_in_group(caller, gid)));
        if !is_root && (changes_owner || enters_group || (set.mode.is_some() && !owns)) {
            return Err(Error::Permission);
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                SetTime::To(time) => {
                    check_time(time)?;
                    if !owns {
                        return Err(Error::Permission);
                    }
                }
                SetTime::Now if owns || opened == Some(ino) => {}
                SetTime::Now => permission::allows(inode, caller, WRITE)?,
            }
        }
        if let Some(size) = set.size {
            match inode.kind() {
                Kind::File => {}
                Kind::Directory => return Err(Error::IsDirectory),
                _ => return Err(Error::Invalid),
            }
            if opened != Some(ino) {
                permission::allows(inode, caller, WRITE)?;
            }
            if size > FILE_LEN_MAX {
                return Err(Error::FileTooBig);
            }
        }
        Ok(())
    }
}
