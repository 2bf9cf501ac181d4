//! `sinew rpc bench`: calls measured beside the machine's own limit, alternately, in the same run.

mod args;
mod limit;
mod plan;
mod run;

pub use args::Command;
pub use plan::{Kind, RpcPlan};
pub use run::measure;

use crate::measure::with_progress;
use crate::{Outcome, Usage};

/// Runs the benchmark that was asked for, and prints the result.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let (plan, args) = command.plan().map_err(Usage::of)?;
    args.show(&with_progress(|progress| measure(&plan, progress))?)
}
