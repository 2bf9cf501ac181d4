//! Facts that `/proc` shows: about a caller, where the kernel does not pass them on, and about this process.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::files::{Caller, LockFamily};

/// Numbers of the system calls that lock: those of this machine's programs, and those of 32-bit ones.
const FLOCK_CALLS: [u32; 2] = if cfg!(target_arch = "x86_64") { [73, 143] } else { [32, 143] };
const FCNTL_CALLS: [u32; 3] = if cfg!(target_arch = "x86_64") { [72, 55, 221] } else { [25, 55, 221] };
/// Times to look at a caller that is still on its way to sleep, and the pause in between.
const LOOKS_MAX: usize = 20;
const PAUSE: Duration = Duration::from_micros(50);

/// The caller of a request. A user's supplementary groups are looked up, since permissions depend on them; root needs
/// none.
pub(crate) fn caller_of(request: &fuser::Request) -> Caller {
    let (uid, gid, pid) = (request.uid(), request.gid(), request.pid());
    let groups = if uid == 0 || pid == 0 { Vec::new() } else { status(pid).as_deref().map_or_else(Vec::new, groups) };
    Caller { uid, gid, groups, pid }
}

/// Whether a thread has a signal pending that it does not block, so that it should stop waiting. The kernel reports
/// this by interrupting requests, which `fuser` 0.18 does not pass on. A thread that cannot be seen, for example one in
/// another PID namespace, counts as having none.
pub(crate) fn is_interrupted(pid: u32) -> bool {
    pid != 0 && status(pid).is_some_and(|status| has_pending_signal(&status))
}

/// The call by which a thread asks for a lock of a whole file, which it waits in. The kernel's request says so in flags
/// that `fuser` 0.18 does not pass on. Seeing another user's calls takes root's rights (as for `ptrace`).
pub(crate) fn lock_family(thread: u32) -> LockFamily {
    for _ in 0..LOOKS_MAX {
        let call = fs::read_to_string(format!("/proc/{thread}/syscall")).ok();
        match call.as_deref().map(str::split_whitespace).and_then(|mut words| words.next()) {
            Some("running") => thread::sleep(PAUSE),
            Some(number) => return number.parse().map_or(LockFamily::Either, family_of_call),
            None => break,
        }
    }
    LockFamily::Either
}

fn family_of_call(number: u32) -> LockFamily {
    match number {
        _ if FLOCK_CALLS.contains(&number) => LockFamily::Flock,
        _ if FCNTL_CALLS.contains(&number) => LockFamily::Fcntl,
        _ => LockFamily::Either,
    }
}

/// Number of the capability that allows mounts, among much else.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether this process may mount by itself. If that cannot be seen, it is assumed.
pub(crate) fn may_mount() -> bool {
    let status = status(std::process::id());
    let rights = status.as_deref().and_then(|status| field(status, "CapEff"));
    rights
        .and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok())
        .is_none_or(|all| all >> CAP_SYS_ADMIN & 1 == 1)
}

fn status(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn groups(status: &str) -> Vec<u32> {
    field(status, "Groups").into_iter().flat_map(str::split_whitespace).filter_map(|group| group.parse().ok()).collect()
}

fn has_pending_signal(status: &str) -> bool {
    let mask = |name| field(status, name).and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nGroups:\t4 24 1000 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000002\nSigBlk:\t0000000000000000\n";

    #[test]
    fn groups_and_signals_are_read_from_a_status() {
        assert_eq!(groups(STATUS), [4, 24, 1000]);
        assert!(has_pending_signal(STATUS));
        assert!(!has_pending_signal(&STATUS.replace("SigBlk:\t0000000000000000", "SigBlk:\t0000000000000002")));
        assert!(!has_pending_signal("nothing of it") && groups("nothing of it").is_empty());
    }

    #[test]
    fn a_call_that_cannot_be_seen_may_be_either() {
        assert_eq!((lock_family(0), lock_family(u32::MAX)), (LockFamily::Either, LockFamily::Either));
        let calls = [FLOCK_CALLS[0], FCNTL_CALLS[0], 0];
        assert_eq!(calls.map(family_of_call), [LockFamily::Flock, LockFamily::Fcntl, LockFamily::Either]);
    }

    #[test]
    fn a_thread_that_is_not_there_has_no_signal() {
        assert!(!is_interrupted(0) && !is_interrupted(u32::MAX) && !is_interrupted(std::process::id()));
    }
}
