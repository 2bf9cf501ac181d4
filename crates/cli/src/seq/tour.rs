//! The tour's part about sequencers.

use std::time::Duration;

use sinew_harness::Figure;
use sinew_harness::run::Progress;

use super::{bench, run};
use crate::measure::parse_args;

/// Measures the design for everyday use, over shared memory.
pub fn over_shm(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let args: bench::Args = parse_args(&["--design", "rpc", "--fabric", "shm", "--range", "1"], duration)?;
    run::measure(&args.plan()?, progress)
}
