//! Ctrl-C: the exit status of an interrupted command, and an immediate exit for commands that have nothing to clean up.

use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, ensure};
use sinew::fabric::{WakeTarget, Waker};
use sinew::host::{Interrupt, WakeOnInterrupt};
use sinew_harness::run::Interrupted;

use crate::{outfile, output};

/// Kept until the process ends.
static WAKE: OnceLock<WakeOnInterrupt> = OnceLock::new();

struct End(Interrupt);

impl WakeTarget for End {
    fn wake(&self) {
        // Held so that no output file is left half written.
        let _held = outfile::hold();
        if io::stderr().is_terminal() {
            // Ends the line of the progress bar.
            output::note("");
        }
        output::complain("interrupted");
        std::process::exit(status(self.0).into());
    }
}

/// The exit status of this command if it was interrupted.
pub fn by_signal() -> Option<u8> {
    Interrupt::installed()?.exit_status()
}

/// The exit status of an interrupted command.
pub fn status(interrupt: Interrupt) -> u8 {
    interrupt.exit_status().unwrap_or(130)
}

/// Lets a signal that asks the process to end do so at once, from now on.
///
/// # Errors
///
/// Those of the system.
pub fn exit_on_signal() -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    WAKE.get_or_init(|| interrupt.wake_on_interrupt(Waker::new(Arc::new(End(interrupt)))));
    Ok(())
}

/// Does `work`, whose result is discarded after a signal. The signal reaches child servers too, so their errors are
/// then not the cause.
///
/// # Errors
///
/// Those of `work`, or [`Interrupted`].
pub fn run_interruptible<T>(work: impl FnOnce(Interrupt) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let result = work(interrupt);
    ensure!(!interrupt.is_set(), Interrupted);
    result
}
