use std::io;

use rustix::mm::{MlockAllFlags, mlockall};

/// The one of `/proc/self` by which the kernel chooses whom to end when memory runs out.
const SCORE: &str = "/proc/self/oom_score_adj";
/// Never this process.
const NEVER: &str = "-1000";

/// As Linux' `prctl.h` has it (`libc` has it for Android alone).
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Why a process cannot be made fit to serve the kernel's paging.
#[derive(Debug, thiserror::Error)]
pub enum PagingError {
    /// Its memory cannot be locked.
    #[error(
        "the memory of this process cannot be locked ({0}): run it as root, or raise its limit of lockable memory (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit)"
    )]
    Lock(io::Error),
    /// The kernel does not take it for one that serves its own input and output.
    #[error(
        "the kernel does not let this process serve its paging ({0}): run it as root, with CAP_SYS_RESOURCE, on Linux 5.6 or later"
    )]
    Flusher(io::Error),
    /// It may be ended when memory runs out.
    #[error("{SCORE} cannot be written ({0}): run it as root, or give it CAP_SYS_RESOURCE")]
    Score(io::Error),
}

/// Makes this process fit to serve a device that the kernel pages to: it is asked to store pages when no memory is left, so it must not wait for memory then.
///
/// - Its memory is locked (`mlockall`), what it takes later as well, each page when it is first used.
/// - What this thread and those that it starts later take of the kernel is given without writing pages out first (`PR_SET_IO_FLUSHER`): that could wait for this process.
/// - The kernel does not end it when memory runs out.
///
/// Call it before there are other threads. It cannot be taken back.
///
/// Returns what could not be done of the last two, which want rights that not even root has everywhere (in containers). Without them the process serves as long as the kernel
/// finds some memory for it, so its user should hear of it.
///
/// # Errors
///
/// [`PagingError::Lock`]: memory cannot be locked. Nothing has been done then.
pub fn serve_paging() -> Result<Vec<PagingError>, PagingError> {
    // Of memory that may never be used, nothing is wanted now.
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
