//! Makes a process fit to serve a device that the kernel pages to.

use std::io;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MlockAllFlags, mlockall};

/// File of `/proc/self` by which the kernel chooses which process to kill when memory runs out.
const SCORE: &str = "/proc/self/oom_score_adj";
/// Score that exempts this process.
const NEVER: &str = "-1000";

/// Value from Linux's `prctl.h` (the `libc` crate has it for Android only).
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Reason why a process cannot be made fit to serve the kernel's paging.
#[derive(Debug, thiserror::Error)]
pub enum PagingError {
    /// Its memory cannot be locked.
    #[error(
        "the memory of this process cannot be locked ({0}): run it as root, or raise its limit of lockable memory (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit)"
    )]
    Lock(io::Error),
    /// The kernel refused to treat this process as one that serves its paging (`PR_SET_IO_FLUSHER`).
    #[error(
        "the kernel does not let this process serve its paging ({0}): run it as root, with CAP_SYS_RESOURCE, on Linux 5.6 or later"
    )]
    Flusher(io::Error),
    /// The kernel may kill the process when memory runs out.
    #[error("{SCORE} cannot be written ({0}): run it as root, or give it CAP_SYS_RESOURCE")]
    Score(io::Error),
}

/// Makes this process fit to serve a device that the kernel pages to: it is asked to store pages when no memory is
/// left, so it must not wait for memory then.
///
/// - Its memory is locked (`mlockall`), including memory that it maps later; each page is locked when it is first used.
///   Use what will be needed before you serve: `sinew_mem::Arena::back` does so for buffers.
/// - Memory that the kernel allocates on behalf of this thread, and of those that it starts later, is found without
///   writing pages out first (`PR_SET_IO_FLUSHER`), which could wait for this process.
/// - The kernel does not kill it when memory runs out.
///
/// It does not belong in a control group whose limit is reached by the programs that are paged. What the kernel
/// allocates for its sockets counts there, and as no page may be written out for that, the kernel ends a program of the
/// group instead.
///
/// Call it before there are other threads. It cannot be undone.
///
/// Returns those of the last two steps that failed: they need rights that even root lacks in some places, such as
/// containers. Without them the process serves only as long as the kernel finds some memory for it, so tell the user.
///
/// # Errors
///
/// [`PagingError::Lock`]: memory cannot be locked. Nothing has been changed then.
pub fn serve_paging() -> Result<Vec<PagingError>, PagingError> {
    // ONFAULT: memory that may never be used is not brought in now.
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|error| PagingError::Lock(error.into()))?;
    let mut missing = Vec::new();
    // SAFETY: this prctl reads one integer argument, wants zeros for the others, and changes only flags of this thread.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        missing.push(PagingError::Flusher(io::Error::last_os_error()));
    }
    missing.extend(std::fs::write(SCORE, NEVER).err().map(PagingError::Score));
    Ok(missing)
}

/// Makes a file at least `len` bytes long, and has its file system reserve room for all of them, so that none is
/// lacking when a page is written to it.
///
/// # Errors
///
/// As `fallocate`: [`io::ErrorKind::Unsupported`] if the file system cannot reserve room.
pub fn reserve_room(file: &std::fs::File, len: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, len)?)
}
