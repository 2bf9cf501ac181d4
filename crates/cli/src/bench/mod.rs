//! `sinew rpc bench`: calls measured beside the machine's own limit, in the same run, alternating.

mod args;
mod limit;
mod result;
mod run;

pub use args::{Command, Judged, Output};
pub use result::{Figures, Kind};
pub use run::{Plan, measure, open};

use crate::{Outcome, Usage, output};

/// Runs the benchmark that was asked for and prints what came of it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let (plan, shown) = command.plan().map_err(Usage::of)?;
    let figures = measure(&plan, &mut |_| ())?;
    if shown.json {
        output::print(figures.to_json())?;
    } else {
        output::print(figures.to_text())?;
    }
    Ok(shown.judge(&figures.judged()))
}
