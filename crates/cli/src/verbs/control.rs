//! What the two sides tell each other over the rendezvous: one [`Word`] a frame, as JSON.
//!
//! The client begins with its plan; the server answers with its links, the client tells its own, and the server says that it is ready.
//! From then on the client says `go`, measures, and asks to check how many requests each link made; the server answers with what it
//! found. It ends when the client closes the connection.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use sinew::host::{Interrupt, Rendezvous, RendezvousLimits};
use sinew_harness::load::verbs::{LinkAddress, Word};

/// The other side has this long for what it was asked: longer than its threads have to answer it.
pub const PATIENCE: Duration = Duration::from_secs(40);
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

    pub fn tell(&mut self, word: &Word) -> anyhow::Result<()> {
        Ok(self.rendezvous.send(&serde_json::to_vec(word)?)?)
    }

    /// What the other side says next, which must come within `patience`.
    pub fn hear(&mut self, patience: Duration) -> anyhow::Result<Word> {
        let began = Instant::now();
        while !self.rendezvous.wait(LOOK)? {
            ensure!(!self.interrupt.is_set(), "interrupted");
            let peer = self.rendezvous.peer();
            ensure!(began.elapsed() < patience, "{peer} does not answer; look whether it is stopped");
        }
        let frame = self.rendezvous.receive()?;
        self.read(&frame)
    }

    /// What a frame of the other side says.
    pub fn read(&self, frame: &[u8]) -> anyhow::Result<Word> {
        let peer = self.rendezvous.peer();
        let word =
            serde_json::from_slice(frame).with_context(|| format!("{peer} said what is no word of this release"))?;
        if let Word::Error(error) = word {
            // It comes from elsewhere: nothing that moves a terminal's cursor.
            let error: String = error.chars().filter(|char| !char.is_control()).take(1000).collect();
            bail!("the server at {peer}: {error}");
        }
        Ok(word)
    }

    /// Tells, and hears the answer, which must come soon.
    pub fn ask(&mut self, word: &Word) -> anyhow::Result<Word> {
        self.tell(word)?;
        self.hear(PATIENCE)
    }

    /// Tells the server something, after which it must say that it is ready.
    pub fn is_ready_after(&mut self, word: &Word) -> anyhow::Result<()> {
        if matches!(self.ask(word)?, Word::Ready) { Ok(()) } else { Err(self.confused()) }
    }

    /// The links of the other side, if those are what it said.
    pub fn links(&self, word: Word, count: usize) -> anyhow::Result<Vec<LinkAddress>> {
        let Word::Links(links) = word else { return Err(self.confused()) };
        ensure!(links.len() == count, "the other side told {} links rather than {count}", links.len());
        Ok(links)
    }

    /// It said something else than it was asked.
    pub fn confused(&self) -> anyhow::Error {
        anyhow!("{} said something else than it was asked", self.rendezvous.peer())
    }
}
