//! `--for-paging`: makes a process safe for this host to swap to.

use anyhow::Context;
use sinew::host::serve_paging;

use crate::output;

/// Prepares this process. Must run before it starts threads, which inherit this. Reports what cannot be had.
pub fn prepare() -> anyhow::Result<()> {
    for missing in serve_paging().context("--for-paging")? {
        output::complain(format_args!("--for-paging: {missing}; going on without it"));
    }
    Ok(())
}
