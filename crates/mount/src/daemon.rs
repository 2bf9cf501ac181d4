//! What a process does to go on when whoever started it has gone.

use std::fs::File;
use std::io;

/// Leaves the terminal and its session, and holds no folder that others may want to remove.
///
/// # Errors
///
/// What the system says.
pub fn leave_session() -> io::Result<()> {
    match rustix::process::setsid() {
        // It leads a session already.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// From now on nobody hears what is written to standard output and standard error, and whoever waits for their ends need not any more.
///
/// # Errors
///
/// What the system says.
pub fn hush() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
