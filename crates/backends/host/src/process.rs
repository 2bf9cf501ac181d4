use std::io;
use std::time::Duration;

/// Has the kernel kill this process when the thread that started it ends, so that a server which a test or a tour started
/// never outlives it.
///
/// Call it early in the child. "The thread that started it" is meant literally: a parent that spawns from a short-lived
/// thread loses its child with that thread.
///
/// # Errors
///
/// What `prctl` says; `NotConnected` when the parent has ended already, in which case the caller should end too.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: getppid has no arguments and always succeeds.
    let parent = unsafe { libc::getppid() };
    // SAFETY: this prctl reads one integer argument and changes only a flag of this process.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that died before the call cannot be waited for any more; one that died during it shows as a change.
    // SAFETY: as above.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::new(io::ErrorKind::NotConnected, "the process that started this one has ended"));
    }
    Ok(())
}

/// Whether the process may do what root may.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The processor time that this process has used: for itself, and in the system.
pub fn cpu_times() -> [Duration; 2] {
    // SAFETY: a `rusage` is numbers, for which zeros are values.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to `usage` alone. It fails only for a process that is none, which leaves the zeros.
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
        // The flag goes back to none, since the test's process must outlive the threads that started it.
        die_with_parent().unwrap();
        let mut signal: libc::c_int = 0;
        // SAFETY: this prctl writes one integer to the given place.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) }, 0);
        // SAFETY: as in `die_with_parent`.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
        assert_eq!(signal, libc::SIGKILL);
    }
}
