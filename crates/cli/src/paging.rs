//! `--for-paging`: makes a process safe for this host to swap to.

use anyhow::Context;
use sinew::host::serve_paging;
use sinew::mem::Arena;

use crate::output;

/// Bytes of the requests that the kernel has in flight at a device, with room for the sizes that they come in.
pub const DATA: usize = 32 << 20;
/// Bytes of the other messages of an endpoint.
pub const MESSAGES: usize = 1 << 20;

/// Takes memory for `len` bytes of an arena's buffers now: later, the system might need this process to find any.
pub fn back(arena: &Arena, len: usize) {
    arena.back(len.saturating_sub(arena.touched()));
}

/// Prepares this process. Must run before it starts threads, which inherit this. Reports what cannot be had.
pub fn prepare() -> anyhow::Result<()> {
    for missing in serve_paging().context("--for-paging")? {
        output::complain(format_args!("--for-paging: {missing}; going on without it"));
    }
    Ok(())
}
