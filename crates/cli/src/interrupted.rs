//! Ctrl-C: the exit status of what it interrupted, and, for commands that have nothing to put in order, the end at once, wherever they are.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, ensure};
use sinew::fabric::{WakeTarget, Waker};
use sinew::host::{Interrupt, WakeOnInterrupt};
use sinew_harness::run::Interrupted;

use crate::{outfile, output};

/// Kept for as long as the process is there.
static WAKE: OnceLock<WakeOnInterrupt> = OnceLock::new();

struct End(Interrupt);

impl WakeTarget for End {
    fn wake(&self) {
        // Nothing half done is left behind.
        let _held = outfile::hold();
        if io::stderr().is_terminal() {
            // After what shows the progress.
            output::note("");
        }
        output::complain("interrupted");
        std::process::exit(status(self.0).into());
    }
}

/// The exit status of a command that was interrupted, if it was.
pub fn by_signal() -> Option<u8> {
    Interrupt::installed()?.exit_status()
}

/// The exit status of a command that was interrupted.
pub fn status(interrupt: Interrupt) -> u8 {
    interrupt.exit_status().unwrap_or(130)
}

/// From now on a signal that asks the process to end does so.
///
/// # Errors
///
/// What the system says.
pub fn ends() -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    WAKE.get_or_init(|| interrupt.wake_on_interrupt(Waker::new(Arc::new(End(interrupt)))));
    Ok(())
}

/// Does what is given up on a signal. That reaches servers too: what is said of their going is then not the cause.
///
/// # Errors
///
/// What the work came to, or that it was interrupted.
pub fn unless<T>(work: impl FnOnce(Interrupt) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let result = work(interrupt);
    ensure!(!interrupt.is_set(), Interrupted);
    result
}
