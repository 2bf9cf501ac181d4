//! A mount that outlives the command which made it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::serve::READY;
use crate::{Outcome, output};

/// Starts this program again, in the background, and waits until it has mounted.
pub fn start() -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--background");
    let mut command = Command::new(&program);
    command.args(args).arg("--is-in-background").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
    let stdout = child.stdout.take().context("its output was not captured")?;
    for line in BufReader::new(stdout).lines() {
        let line = line.context("reading its output")?;
        if line == READY {
            return Ok(Outcome::Done);
        }
        output::print(line)?;
    }
    // The child has reported why.
    child.wait().context("waiting for the background process")?;
    Ok(Outcome::Failed)
}

/// Tells the parent that the mount is ready. After this, nobody reads the output.
pub fn tell_ready() -> anyhow::Result<()> {
    output::print(READY)?;
    sinew_mount::daemon::discard_output().context("closing the terminal's side")
}
