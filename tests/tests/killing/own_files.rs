//! Threads whose open files no process that is started has.

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the thread files of its own. A process that is started has copies of all files that its parent has open, and closes them: that is a flush, which waits for the service. And it may be the
/// service that is started.
pub fn have_own_files() {
    // SAFETY: the thread has opened none yet, closes none of others, and none that it opens are used by others.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.unwrap();
}
