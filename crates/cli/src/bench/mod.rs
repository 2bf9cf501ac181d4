//! `sinew rpc bench`: calls measured beside the machine's own limit, in the same run, alternating.

mod args;
mod limit;
mod result;
mod run;

pub use args::Command;
pub use result::{Figures, Kind};
pub use run::{Plan, measure};

use crate::Outcome;

/// Runs the benchmark that was asked for and prints what came of it.
pub fn run(command: &Command) -> anyhow::Result<Outcome> {
    let (plan, output) = command.plan()?;
    let figures = measure(&plan, &mut |_| ())?;
    if output.json {
        println!("{}", figures.to_json());
    } else {
        println!("{}", figures.to_text());
    }
    let missed = output.thresholds_missed(&figures);
    for message in &missed {
        eprintln!("sinew: {message}");
    }
    Ok(if missed.is_empty() { Outcome::Done } else { Outcome::ThresholdMissed })
}
