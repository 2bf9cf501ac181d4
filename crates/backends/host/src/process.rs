//! Facts and settings of this process: its parent, its rights, its processor time.

use std::io;
use std::time::Duration;

/// Makes the kernel kill this process when the thread that started it ends, so that a server started by a test or a
/// tour never outlives it.
///
/// Call it early in the child. "The thread that started it" is meant literally: if a short-lived thread spawns the
/// child, the child dies with that thread.
///
/// # Errors
///
/// The error of `prctl`; `NotConnected` when the parent has ended during the call, in which case the caller should end
/// too.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: getppid has no arguments and always succeeds.
    let parent = unsafe { libc::getppid() };
    // SAFETY: this prctl reads one integer argument and changes only a flag of this process.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that died before this call cannot be detected any more; one that died during it shows as a changed
    // parent.
    // SAFETY: as above.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::new(io::ErrorKind::NotConnected, "the process that started this one has ended"));
    }
    Ok(())
}

/// Sets the scheduling priority of this thread, and of those that it starts from now on: its nice value, from -20, the
/// most urgent, to 19.
///
/// # Errors
///
/// The system's: values below the present one take `CAP_SYS_NICE` or a limit (`ulimit -e`) that allows them.
pub fn set_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Processor time that this process has used: in user mode, and in the kernel.
pub fn cpu_times() -> [Duration; 2] {
    // SAFETY: a `rusage` consists of numbers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `getrusage` writes only to `usage`. It fails only for an invalid first argument, which would leave the
    // zeros.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    [usage.ru_utime, usage.ru_stime].map(|time| {
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_passes_while_it_is_used() {
        let [before, _] = cpu_times();
        while cpu_times()[0] == before {}
        assert!(cpu_times()[0] > before);
    }

    #[test]
    fn the_kernel_holds_the_request() {
        // The flag is cleared again, since the test's process must outlive the threads that started it.
        die_with_parent().unwrap();
        let mut signal: libc::c_int = 0;
        // SAFETY: this prctl writes one integer to the given place.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) }, 0);
        // SAFETY: as in `die_with_parent`.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
        assert_eq!(signal, libc::SIGKILL);
    }
}
