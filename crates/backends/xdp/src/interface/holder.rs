//! The process that holds the program on an interface, for error messages.

use std::fs;

use crate::sys::netlink::Link;

/// Returns ` by ...`: the program's number, and the processes that hold it, as far as this user may see.
pub(super) fn describe(link: Option<Link>) -> String {
    let Some(id) = link.and_then(|link| link.program) else { return " by a program of another process".to_owned() };
    let holders = processes_with(id);
    match holders.is_empty() {
        true => format!(" by the XDP program {id}, which no process holds (`ip link set ... xdp off` removes it)"),
        false => format!(" by the XDP program {id} of {}", holders.join(", ")),
    }
}

/// The processes that have a link to the program open.
fn processes_with(id: u32) -> Vec<String> {
    let line = format!("prog_id:\t{id}\n");
    let holds = |pid: &str| {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
        entries.flatten().any(|entry| fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&line)))
    };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && holds(pid))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        })
        .collect()
}
