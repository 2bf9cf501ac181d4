//! Steps by which a process outlives the one that started it.

use std::fs::File;
use std::io;

/// Leaves the terminal and its session.
///
/// # Errors
///
/// The system's error.
pub fn leave_session() -> io::Result<()> {
    match rustix::process::setsid() {
        // The process leads a session already.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Discards standard output and standard error from now on, so that nothing need wait for them to close. Changes to the
/// root directory, so that no other directory is kept in use.
///
/// # Errors
///
/// The system's error.
pub fn discard_output() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
