//! Messages between the two sides over the rendezvous: one [`Word`] in each frame, as JSON.
//!
//! The client begins with its plan; the server answers with its links, the client sends its own, and the server says
//! that it is ready. From then on the client sends `go`, measures, and asks the server to check how many requests each
//! link made; the server answers with its findings. The conversation ends when the client closes the connection.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use sinew::host::{Interrupt, Rendezvous, RendezvousLimits};
use sinew_harness::load::verbs::{LinkAddress, Word};

/// Time that the other side has to answer: longer than its threads have to answer it.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Longest time until an interrupt is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// Time that a client spends to reach its server.
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

    /// Begins a conversation with a server.
    pub fn with(address: &str, interrupt: Interrupt) -> anyhow::Result<Self> {
        Ok(Self::new(Rendezvous::connect(address, CONNECT, LIMITS)?, interrupt))
    }

    pub fn tell(&mut self, word: &Word) -> anyhow::Result<()> {
        Ok(self.rendezvous.send(&serde_json::to_vec(word)?)?)
    }

    /// Receives the other side's next word, which must come within `patience`.
    pub fn hear(&mut self, patience: Duration) -> anyhow::Result<Word> {
        let began = Instant::now();
        while !self.rendezvous.wait(LOOK)? {
            ensure!(!self.interrupt.is_set(), "interrupted");
            let peer = self.rendezvous.peer();
            ensure!(began.elapsed() < patience, "{peer} does not answer; check that it is not suspended");
        }
        let frame = self.rendezvous.receive()?;
        self.read(&frame)
    }

    /// Parses a frame of the other side.
    pub fn read(&self, frame: &[u8]) -> anyhow::Result<Word> {
        let peer = self.rendezvous.peer();
        let word = serde_json::from_slice(frame)
            .with_context(|| format!("{peer} sent a message that this release does not know"))?;
        if let Word::Error(error) = word {
            // The text is foreign, so drop control characters, which could move the terminal's cursor.
            let error: String = error.chars().filter(|char| !char.is_control()).take(1000).collect();
            bail!("the server at {peer}: {error}");
        }
        Ok(word)
    }

    /// Sends a word, and receives the answer, which must come within [`PATIENCE`].
    pub fn ask(&mut self, word: &Word) -> anyhow::Result<Word> {
        self.tell(word)?;
        self.hear(PATIENCE)
    }

    /// Sends the server a word, to which it must answer that it is ready.
    pub fn is_ready_after(&mut self, word: &Word) -> anyhow::Result<()> {
        if matches!(self.ask(word)?, Word::Ready) { Ok(()) } else { Err(self.confused()) }
    }

    /// The links of the other side, if that is what it sent.
    pub fn links(&self, word: Word, count: usize) -> anyhow::Result<Vec<LinkAddress>> {
        let Word::Links(links) = word else { return Err(self.confused()) };
        ensure!(links.len() == count, "the other side sent {} links rather than {count}", links.len());
        Ok(links)
    }

    /// Error for an answer that does not fit the request.
    pub fn confused(&self) -> anyhow::Error {
        anyhow!("{} sent an answer that does not fit the request", self.rendezvous.peer())
    }
}
