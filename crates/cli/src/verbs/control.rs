//! Messages between the two sides over the rendezvous: one [`ControlMessage`] in each frame, as JSON.
//!
//! The client begins with its plan; the server answers with its links, the client sends its own, and the server says
//! that it is ready. From then on the client sends `go`, measures, and asks the server to check how many requests each
//! link made; the server answers with its findings. The conversation ends when the client closes the connection.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use sinew::host::{Interrupt, Rendezvous, RendezvousLimits};
use sinew_harness::load::verbs::{ControlMessage, LinkAddress};
use sinew_harness::units::counted;

/// Time that the other side has to answer: longer than its threads have to answer it.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// Longest time until an interrupt is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time that a client spends to reach its server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub const LIMITS: RendezvousLimits =
    RendezvousLimits { frame_len_max: 8 << 20, frame_timeout: Duration::from_secs(10) };

/// A control connection to the other side.
pub struct ControlConnection {
    rendezvous: Rendezvous,
    interrupt: Interrupt,
}

impl ControlConnection {
    pub fn new(rendezvous: Rendezvous, interrupt: Interrupt) -> Self {
        Self { rendezvous, interrupt }
    }

    /// Connects to a server.
    pub fn connect(address: &str, interrupt: Interrupt) -> anyhow::Result<Self> {
        Ok(Self::new(Rendezvous::connect(address, CONNECT_TIMEOUT, LIMITS)?, interrupt))
    }

    pub fn send(&mut self, message: &ControlMessage) -> anyhow::Result<()> {
        Ok(self.rendezvous.send(&serde_json::to_vec(message)?)?)
    }

    /// Receives the other side's next message, which must come within `timeout`.
    pub fn receive(&mut self, timeout: Duration) -> anyhow::Result<ControlMessage> {
        let began = Instant::now();
        while !self.rendezvous.wait(POLL_INTERVAL)? {
            ensure!(!self.interrupt.is_set(), "interrupted");
            let peer = self.rendezvous.peer();
            ensure!(began.elapsed() < timeout, "{peer} does not answer; check that it is not suspended");
        }
        let frame = self.rendezvous.receive()?;
        self.parse(&frame)
    }

    /// Parses a frame of the other side.
    pub fn parse(&self, frame: &[u8]) -> anyhow::Result<ControlMessage> {
        let peer = self.rendezvous.peer();
        let message = serde_json::from_slice(frame)
            .with_context(|| format!("{peer} sent a message that this release does not know"))?;
        if let ControlMessage::Error(error) = message {
            // The text is foreign, so drop control characters, which could move the terminal's cursor.
            let error: String = error.chars().filter(|char| !char.is_control()).take(1000).collect();
            bail!("the server at {peer}: {error}");
        }
        Ok(message)
    }

    /// Sends a message, and receives the answer, which must come within [`ANSWER_TIMEOUT`].
    pub fn ask(&mut self, message: &ControlMessage) -> anyhow::Result<ControlMessage> {
        self.send(message)?;
        self.receive(ANSWER_TIMEOUT)
    }

    /// Sends the server a message, to which it must answer that it is ready.
    pub fn expect_ready(&mut self, message: &ControlMessage) -> anyhow::Result<()> {
        if matches!(self.ask(message)?, ControlMessage::Ready) { Ok(()) } else { Err(self.unexpected_answer()) }
    }

    /// The links of the other side, if that is what it sent.
    pub fn links(&self, message: ControlMessage, count: usize) -> anyhow::Result<Vec<LinkAddress>> {
        let ControlMessage::Links(links) = message else { return Err(self.unexpected_answer()) };
        ensure!(links.len() == count, "the other side sent {} rather than {count}", counted(links.len(), "link"));
        Ok(links)
    }

    /// Error for an answer that does not fit the request.
    pub fn unexpected_answer(&self) -> anyhow::Error {
        anyhow!("{} sent an answer that does not fit the request", self.rendezvous.peer())
    }
}
