//! Output of the command: results on standard output, everything else on standard error.
//!
//! A reader may close its end early, as in `sinew limits | head -1`. That is neither an error of ours nor a reason to
//! panic: the rest is not written, and the exit status stays as it would have been.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::Context;

/// Writes a line, or several, to standard output. Returns false if the reader has closed its end.
///
/// # Errors
///
/// Those of the system, such as a full disk.
pub fn print(text: impl Display) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    outcome(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Whether what was written has a reader.
fn outcome(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("writing to standard output"),
    }
}

/// Writes bytes to standard output as they are, followed by a line break on a terminal. Returns false if the reader
/// has closed its end.
///
/// # Errors
///
/// As [`print`].
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    let end: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    outcome(out.write_all(bytes).and_then(|()| out.write_all(end)).and_then(|()| out.flush()))
}

/// Writes bytes and a line break to standard output. Returns false if the reader has closed its end.
///
/// # Errors
///
/// As [`print`].
pub fn print_line(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    outcome(out.write_all(bytes).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
}

/// Width of lines in columns: that of the terminal, between 40 and 110, or 80 without a terminal.
pub fn width() -> usize {
    let terminal = terminal_size::terminal_size().filter(|_| io::stdout().is_terminal());
    terminal.map_or(80, |(width, _)| usize::from(width.0).clamp(40, 110))
}

/// Writes a line to standard error, as best effort.
pub fn note(text: impl Display) {
    // An error here has nowhere to be reported.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes an error message to standard error, as best effort.
pub fn complain(text: impl Display) {
    note(format_args!("sinew: {text}"));
}

/// An error and its causes in one line. A cause that the message already quotes is left out.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let cause = io::Error::other("no such processor");
        let quoting = sinew::Error::System { doing: "pinning".to_owned(), source: cause };
        let error = anyhow::Error::from(quoting).context("thread 1");
        assert_eq!(describe(&error), "thread 1: pinning: no such processor");
    }
}
