//! Conversions between our types and those of `fuser`.

use std::time::SystemTime;

use fuser::{FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use rustix::fs::FileType as SystemType;
use rustix::io::Errno;

use crate::files::{Attributes, Kind, LockKind, TimeChange};

/// Preferred I/O size reported to programs, in bytes: a page, since the kernel also takes it for the block size.
const BLOCK: u32 = 4096;

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub(super) fn generation(attributes: &Attributes) -> Generation {
    Generation(attributes.generation)
}

pub(super) fn attribute(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.ino),
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.accessed,
        mtime: attributes.modified,
        ctime: attributes.changed,
        crtime: attributes.changed,
        kind: match attributes.kind {
            Kind::File => FileType::RegularFile,
            Kind::Directory => FileType::Directory,
            Kind::Link => FileType::Symlink,
            Kind::Fifo => FileType::NamedPipe,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharDevice,
            Kind::BlockDevice => FileType::BlockDevice,
        },
        perm: attributes.mode & 0o7777,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: BLOCK,
        flags: 0,
    }
}

/// Attributes that a listing gives for `.` and `..`.
pub(super) fn dot(ino: u64) -> Attributes {
    Attributes {
        ino,
        generation: 0,
        kind: Kind::Directory,
        mode: 0o755,
        links: 2,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        blocks: 0,
        accessed: SystemTime::UNIX_EPOCH,
        modified: SystemTime::UNIX_EPOCH,
        changed: SystemTime::UNIX_EPOCH,
    }
}

/// The permission bits of a mode.
pub(super) fn mode_of(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The kind of inode that `mknod` makes for a mode.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match SystemType::from_raw_mode(mode) {
        SystemType::RegularFile => Kind::File,
        SystemType::Fifo => Kind::Fifo,
        SystemType::Socket => Kind::Socket,
        SystemType::CharacterDevice => Kind::CharDevice,
        SystemType::BlockDevice => Kind::BlockDevice,
        SystemType::Unknown if mode & 0o170_000 == 0 => Kind::File,
        _ => return None,
    })
}

pub(super) fn when(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(time),
    }
}

// As in `fcntl.h` on Linux.
const READ_LOCK: i32 = 0;
const WRITE_LOCK: i32 = 1;
const UNLOCK: i32 = 2;

pub(super) fn lock_kind(number: i32) -> Option<LockKind> {
    match number {
        READ_LOCK => Some(LockKind::Shared),
        WRITE_LOCK => Some(LockKind::Exclusive),
        UNLOCK => Some(LockKind::Unlocked),
        _ => None,
    }
}

pub(super) fn lock_number(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared => READ_LOCK,
        LockKind::Exclusive => WRITE_LOCK,
        LockKind::Unlocked => UNLOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_say_what_mknod_makes() {
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o100_644), Some(Kind::File));
        assert_eq!(kind_of_mode(0o010_600), Some(Kind::Fifo));
        assert_eq!((kind_of_mode(0o040_755), mode_of(0o104_755)), (None, 0o4755));
    }

    #[test]
    fn kinds_of_locks_are_the_systems_numbers() {
        for number in 0..3 {
            assert_eq!(lock_kind(number).map(lock_number), Some(number));
        }
        assert_eq!(lock_kind(3), None);
    }
}
