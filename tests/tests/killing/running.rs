//! Processes that report on standard error, and are killed, stopped and continued.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::process::Signal;

use crate::common::{PATIENCE, Process};

/// A process whose lines are read.
pub struct Running {
    pub process: Process,
    /// Lines of its standard output.
    pub out: Receiver<String>,
    /// Lines of its standard error.
    pub err: Receiver<String>,
    /// Open until the process is to end; some processes end when it closes.
    stdin: Option<ChildStdin>,
}

fn lines_of(source: impl Read + Send + 'static) -> Receiver<String> {
    let (line, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(source).lines().map_while(Result::ok).try_for_each(|text| line.send(text))
    });
    lines
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = lines_of(child.stdout.take().unwrap());
        let err = lines_of(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Self { process: Process(child), out, err, stdin }
    }

    /// Waits for a line of its standard output that contains `what`, and returns it.
    pub fn wait_for(&self, what: &str) -> String {
        loop {
            match self.out.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(what) => return line,
                Ok(_) => {}
                Err(error) => {
                    let stderr: Vec<String> = self.err.try_iter().collect();
                    let how = if error == RecvTimeoutError::Timeout { "does not say" } else { "ended and did not say" };
                    panic!("a process {how} {what:?}: {stderr:?}");
                }
            }
        }
    }

    pub fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        // Otherwise the process id could be reused before the next signal.
        self.process.wait();
    }

    /// Ends it as a person would. Returns whether its exit status is a success.
    pub fn end(mut self) -> bool {
        drop(self.stdin.take());
        self.process.signal(Signal::INT);
        self.process.wait().success()
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }
}
