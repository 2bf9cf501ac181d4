//! Unnamed network namespaces, which cease to exist with their last user.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fd::AsRawFd;

use super::check;

/// The namespace of the calling thread.
pub(crate) fn current() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Identity of the calling thread's namespace.
pub(crate) fn identity() -> io::Result<(u64, u64)> {
    let metadata = current()?.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Moves the calling thread to a namespace.
pub(crate) fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: no pointers. The thread's sockets stay where they were made.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
    Ok(())
}

/// Moves the calling thread to a new namespace.
pub(crate) fn enter_new() -> io::Result<()> {
    // SAFETY: no pointers; the other threads of the process stay where they are.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    Ok(())
}
