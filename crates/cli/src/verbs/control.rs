//! What the two sides tell each other over the rendezvous: one JSON object a frame.
//!
//! The client begins with its plan and what carries it; the server answers with its links, the client tells its own, and the server
//! says that it is ready. From then on the client says `go`, measures, and says `check` with how many requests each link made;
//! the server answers with what it found. It ends when the client closes the connection.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use sinew::host::{Interrupt, Rendezvous, RendezvousLimits};

/// The other side has this long for what it was asked.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// An interrupt is noticed within this time.
const LOOK: Duration = Duration::from_millis(50);
/// How long a client tries to reach its server.
const CONNECT: Duration = Duration::from_secs(5);

pub const LIMITS: RendezvousLimits =
    RendezvousLimits { frame_len_max: 8 << 20, frame_timeout: Duration::from_secs(10) };

/// A conversation with the other side.
pub struct Talk {
    rendezvous: Rendezvous,
    interrupt: Interrupt,
}

impl Talk {
    pub fn new(rendezvous: Rendezvous, interrupt: Interrupt) -> Self {
        Self { rendezvous, interrupt }
    }

    /// Begins one with a server.
    pub fn with(address: &str, interrupt: Interrupt) -> anyhow::Result<Self> {
        Ok(Self::new(Rendezvous::connect(address, CONNECT, LIMITS)?, interrupt))
    }

    pub fn tell(&mut self, value: &Value) -> anyhow::Result<()> {
        Ok(self.rendezvous.send(value.to_string().as_bytes())?)
    }

    /// What the other side says next, once it does.
    pub fn hear(&mut self) -> anyhow::Result<Value> {
        while !self.rendezvous.wait(LOOK)? {
            ensure!(!self.interrupt.is_set(), "interrupted");
        }
        let frame = self.rendezvous.receive()?;
        self.read(&frame)
    }

    /// What a frame of the other side says.
    pub fn read(&self, frame: &[u8]) -> anyhow::Result<Value> {
        let peer = self.rendezvous.peer();
        let value: Value = serde_json::from_slice(frame).with_context(|| format!("{peer} said what is no JSON"))?;
        ensure!(value.is_object(), "{peer} said what is no JSON object");
        if let Some(error) = value["error"].as_str() {
            // It comes from elsewhere: nothing that moves a terminal's cursor.
            let error: String = error.chars().filter(|char| !char.is_control()).take(1000).collect();
            bail!("the server at {peer}: {error}");
        }
        Ok(value)
    }

    /// Tells, and hears the answer, which must come soon.
    pub fn ask(&mut self, value: &Value) -> anyhow::Result<Value> {
        self.tell(value)?;
        self.hear_within(PATIENCE)
    }

    /// What the other side says next, which must come within `patience`.
    pub fn hear_within(&mut self, patience: Duration) -> anyhow::Result<Value> {
        let began = Instant::now();
        while !self.rendezvous.wait(LOOK)? {
            ensure!(!self.interrupt.is_set(), "interrupted");
            ensure!(
                began.elapsed() < patience,
                "{} does not answer; look whether it is stopped",
                self.rendezvous.peer()
            );
        }
        self.hear()
    }
}
