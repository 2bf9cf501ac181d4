//! Facts about a caller that the kernel does not pass on and `/proc` shows.

use std::fs;

use crate::files::Caller;

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
    fn a_thread_that_is_not_there_has_no_signal() {
        assert!(!is_interrupted(0) && !is_interrupted(u32::MAX) && !is_interrupted(std::process::id()));
    }
}
