//! `--for-paging`: a process that this host swaps to.

use anyhow::Context;
use sinew::host::serve_paging;

use crate::output;

/// Makes this process fit for it, before it has threads, which are to be so, too; what cannot be had is told.
pub fn prepare() -> anyhow::Result<()> {
    for missing in serve_paging().context("--for-paging")? {
        output::complain(format_args!("--for-paging: {missing}; it goes on without"));
    }
    Ok(())
}
