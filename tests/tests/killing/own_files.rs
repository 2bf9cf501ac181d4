//! Threads whose open files are not inherited by the processes that they start.

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the thread a table of open files of its own. Otherwise a child process starts with copies of all files that
/// its parent has open, and closes them. Closing is a flush, which waits for the service; and the child may be the
/// service.
pub fn unshare_files() {
    // SAFETY: the thread has opened no files yet, closes none of other threads, and no other thread uses those that it
    // opens.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }.unwrap();
}
