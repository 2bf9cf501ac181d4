//! A donor that is killed and comes back empty, or is stopped and continues with its memory.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::running::Running;
use crate::common::{sinew, unique};

pub struct Donor {
    running: Option<Running>,
    pub address: String,
    memory: &'static str,
    /// When it comes back, while it is away.
    back_at: Option<Instant>,
}

/// Starts a server by a command with `--child`, and returns it with its address.
pub fn serving(command: &mut Command) -> (Running, String) {
    let running = Running::start(command);
    let address = running.wait_for("serving ").replace("serving ", "");
    running.wait_for("ready");
    (running, address)
}

impl Donor {
    pub fn new(fabric: &str, memory: &'static str) -> Self {
        let address = match fabric {
            "shm" => format!("shm://{}", unique("donor")),
            _ => format!("{fabric}://127.0.0.1:0"),
        };
        let mut donor = Self { running: None, address, memory, back_at: None };
        donor.start();
        donor
    }

    /// Starts it, empty, at its address.
    fn start(&mut self) {
        let args = ["serve", "memory", &self.address, "--child", "--memory", self.memory];
        let (running, address) = serving(&mut sinew(&args));
        (self.running, self.address) = (Some(running), address);
    }

    pub fn is_up(&self) -> bool {
        self.back_at.is_none()
    }

    pub fn kill(&mut self, away: Duration) {
        if let Some(mut running) = self.running.take() {
            running.kill();
        }
        self.back_at = Some(Instant::now() + away);
    }

    pub fn stop(&mut self, away: Duration) {
        if let Some(running) = &self.running {
            running.process.signal(Signal::STOP);
        }
        self.back_at = Some(Instant::now() + away);
    }

    /// Brings it back if it is due. Returns whether it was.
    pub fn restart_if_due(&mut self) -> bool {
        if self.back_at.take_if(|until| *until <= Instant::now()).is_none() {
            return false;
        }
        match &self.running {
            Some(running) => running.process.signal(Signal::CONT),
            None => self.start(),
        }
        true
    }
}
