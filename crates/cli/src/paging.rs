//! `--for-paging`: makes a process safe for this host to swap to.

use anyhow::{Context, ensure};
use sinew::host::serve_paging;
use sinew_harness::units;

use crate::output;

/// Bytes of the requests that the kernel has in flight at a device, with room for the sizes that they come in.
pub const DATA: usize = 32 << 20;
/// Bytes of the other messages of an endpoint.
pub const MESSAGES: usize = 1 << 20;

/// Prepares this process, which takes `len` bytes at the start, to serve the host's paging. Must be called before
/// threads are started, since they inherit the settings. Reports each protection that the system refuses.
pub fn prepare(len: usize) -> anyhow::Result<()> {
    // Other programs would be killed for it, since this one is exempt.
    let available = available();
    ensure!(
        available.is_none_or(|available| len <= available),
        "--for-paging takes {} of memory at the start, and this host has {} available",
        units::size(len),
        units::amount(available.unwrap_or_default() as u64)
    );
    for missing in serve_paging().context("--for-paging")? {
        output::complain(format_args!("--for-paging: {missing}; going on without it"));
    }
    Ok(())
}

/// Bytes that this host can give without swapping, by the kernel's estimate; `None` where it makes none.
fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}
