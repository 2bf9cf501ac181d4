//! Facts and settings of processes: their parents, rights and processor time.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Makes the kernel kill the process that `command` starts when the thread that starts it ends, however it ends. So a
/// server that a program starts never outlives it.
///
/// "The thread that starts it" is meant literally: if a short-lived thread starts the child, the child dies with that
/// thread. A child that changes its user loses this, and its own children do not inherit it.
///
/// If the parent ends while the child starts, starting fails; so does it with the error of `prctl`.
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let request = move || {
        // SAFETY: this prctl reads one integer argument and changes only a flag of this process.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // A parent that died before that call would go unnoticed, but it is no longer the parent.
        // SAFETY: getppid has no arguments and always succeeds.
        if unsafe { libc::getppid() }.cast_unsigned() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `request` makes two system calls and allocates nothing.
    unsafe { command.pre_exec(request) }
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
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn processor_time_passes_while_it_is_used() {
        let [before, _] = cpu_times();
        while cpu_times()[0] == before {}
        assert!(cpu_times()[0] > before);
    }

    #[test]
    fn a_child_is_killed_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            kill_with_parent(command.arg("600")).spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
