//! Permission checks.

use super::inode::Inode;
use crate::protocol::{Caller, Error, Kind};

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

pub(super) const SETUID: u32 = 0o4000;
pub(super) const SETGID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

pub(super) fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

pub(super) fn is_in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

pub(super) fn owns(inode: &Inode, caller: &Caller) -> bool {
    is_root(caller) || caller.uid == inode.uid
}

/// Checks that the mode gives the caller all of these rights. Only one class of bits applies: the owner's, else the
/// group's, else the others'.
pub(super) fn allows(inode: &Inode, caller: &Caller, rights: u32) -> Result<(), Error> {
    let granted = if is_root(caller) {
        // Root may execute a file that anybody may execute.
        let executes = inode.kind() == Kind::Directory || inode.mode & 0o111 != 0;
        READ | WRITE | if executes { EXECUTE } else { 0 }
    } else if caller.uid == inode.uid {
        inode.mode >> 6
    } else if is_in_group(caller, inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if rights & !granted == 0 { Ok(()) } else { Err(Error::Access) }
}

/// Checks that the caller may remove a name of `inode` from `directory`. From a sticky directory only the owner of
/// either may.
pub(super) fn may_remove(directory: &Inode, inode: &Inode, caller: &Caller) -> Result<(), Error> {
    allows(directory, caller, WRITE | EXECUTE)?;
    if directory.mode & STICKY == 0 || owns(directory, caller) || caller.uid == inode.uid {
        return Ok(());
    }
    Err(Error::Permission)
}

/// Clears the set-id bits, as a write or a change of owner must. With `always` this applies to root as well.
pub(super) fn drop_privileges(inode: &mut Inode, caller: &Caller, always: bool) {
    if inode.kind() == Kind::Directory || (is_root(caller) && !always) {
        return;
    }
    inode.mode &= !SETUID;
    if inode.mode & GROUP_EXECUTE != 0 {
        inode.mode &= !SETGID;
    }
}

/// The mode that this caller can give an inode of this group: only a member may set its set-group-id bit.
pub(super) fn mode_without_foreign_setgid(mode: u32, gid: u32, caller: &Caller) -> u32 {
    let mode = mode & 0o7777;
    if is_root(caller) || is_in_group(caller, gid) { mode } else { mode & !SETGID }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::protocol::Time;
    use crate::tree::inode::Body;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn the_closest_bits_count_and_no_others() {
        let mut inode = Inode::new(Body::File(Map::default()), 0o470, &caller(5, 6, &[]), Time::default());
        let may = |inode: &Inode, by: &Caller, rights| allows(inode, by, rights).is_ok();
        assert!(may(&inode, &caller(5, 6, &[]), READ) && !may(&inode, &caller(5, 6, &[]), WRITE), "the owner's alone");
        assert!(may(&inode, &caller(1, 6, &[]), 7) && may(&inode, &caller(1, 1, &[9, 6]), 7));
        assert!(!may(&inode, &caller(1, 1, &[9]), READ) && may(&inode, &caller(1, 1, &[9]), 0));
        assert!(may(&inode, &caller(0, 0, &[]), 7));
        inode.mode = 0o666;
        assert!(may(&inode, &caller(0, 0, &[]), READ | WRITE) && !may(&inode, &caller(0, 0, &[]), EXECUTE));
    }

    #[test]
    fn writing_takes_lent_rights_away() {
        for (mode, uid, always, expected) in [
            (0o6755, 5, false, 0o0755),
            (0o6745, 5, false, 0o2745),
            (0o6755, 0, false, 0o6755),
            (0o6755, 0, true, 0o0755),
        ] {
            let mut inode = Inode::new(Body::File(Map::default()), mode, &caller(5, 6, &[]), Time::default());
            drop_privileges(&mut inode, &caller(uid, 6, &[]), always);
            assert_eq!(inode.mode, expected, "{mode:o} by {uid}");
        }
    }
}
