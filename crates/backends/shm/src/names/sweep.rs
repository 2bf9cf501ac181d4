//! Removes the files that dead owners left behind.
//!
//! A process that is killed leaves its socket and its lock file. An owner holds an exclusive lock on its lock file for
//! as long as it lives. So while a sweeper holds a shared lock on the file, the name has no owner and can get none. A
//! process that was about to claim the name finds its lock file removed, and makes another.
//!
//! Shared locks would not keep two sweepers apart: one could remove files that were recreated after the other's
//! removal. So a sweeper also holds an exclusive lock on the directory; one that does not get it leaves the work to the
//! holder. Sweepers never wait for a lock.

use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{check, lock_path, socket_path};

/// Removes the files of dead owners in `directory`. Files that cannot be removed stay.
pub(super) fn all(directory: &Path) {
    let Some(_sweeping) = exclude_others(directory) else { return };
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        if let Some(name) = file_name.to_str().and_then(|file_name| file_name.strip_suffix(".lock"))
            && check("", name).is_ok()
        {
            remove_if_dead(directory, name);
        }
    }
}

/// Removes the files of a dead owner of `name` in `directory`.
pub(super) fn one(directory: &Path, name: &str) {
    if let Some(_sweeping) = exclude_others(directory) {
        remove_if_dead(directory, name);
    }
}

fn exclude_others(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

/// Removes the files of `name` if its owner is dead. The caller must hold the directory's lock.
fn remove_if_dead(directory: &Path, name: &str) {
    let path = lock_path(directory, name);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(lock) = rustix::fs::open(&path, flags, Mode::empty()) else { return };
    // If the path now leads to another file than the locked one, that file belongs to a new owner.
    if has_no_owner(&lock) && is_at(&lock, &path) == Ok(true) {
        // The lock file is removed last: as long as it is there, nobody makes a socket.
        if matches!(rustix::fs::unlink(socket_path(directory, name)), Ok(()) | Err(Errno::NOENT)) {
            let _ = rustix::fs::unlink(&path);
        }
    }
}

/// Takes a shared lock, and returns whether that succeeded, which means that the name has no owner. It then gets none
/// before `lock` is closed.
pub(super) fn has_no_owner(lock: impl AsFd) -> bool {
    rustix::fs::flock(lock, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Whether `path` leads to the open file `file`.
pub(super) fn is_at(file: impl AsFd, path: &Path) -> Result<bool, Errno> {
    let opened = rustix::fs::fstat(file)?;
    match rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
