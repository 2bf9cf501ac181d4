//! Fates of the frames of a burst, and frames that an application makes meanwhile.

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_fabric::frames::LentFrame;

use crate::counters::Counters;
use crate::form::Form;

/// Fate of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes nowhere.
    Drop,
    /// It leaves by this port, as it is now.
    Forward(u16),
    /// Its first bytes leave by a port: the port, and their number.
    Shorten(u16, u16),
    /// It leaves by every port except the one that it arrived at.
    Flood,
}

/// Fates of the frames of a burst, in the order of the frames.
pub type Fates = ArrayVec<Fate, MAX_BURST>;

/// Frames to be sent before those of the current burst.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Port of each frame, and the offset at which the frame ends in `bytes`.
    frames: Vec<(u16, usize)>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frame, given in pieces, that leaves by port `to`.
    pub fn push(&mut self, to: u16, pieces: &[&[u8]]) {
        pieces.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.frames.push((to, self.bytes.len()));
    }

    /// Whether the outbox has no frames.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The frames, each with the port that it leaves by.
    pub fn frames(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut start = 0;
        self.frames.iter().map(move |(to, end)| {
            let frame = &self.bytes[start..*end];
            start = *end;
            (*to, frame)
        })
    }

    /// Forgets the frames and keeps their memory for the next ones.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}

/// The decision about frames, between the ports: a state machine that is handed bursts and the time.
pub trait Application {
    /// Looks at a burst of at most [`MAX_BURST`] frames that arrived at a port, changes those that are sent on, and
    /// writes the fate of each into `fates`, which it clears first. Frames to be sent before them go to `outbox`.
    /// Frames of one flow leave in the order in which they arrived.
    ///
    /// # Panics
    ///
    /// When there are more than [`MAX_BURST`] frames.
    fn process<L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frames: &mut [L],
        fates: &mut Fates,
        outbox: &mut Outbox,
    );

    /// Looks up keys in another form from now on.
    fn set_form(&mut self, form: Form);

    /// Does the work that is due by now.
    fn tick(&mut self, _now_ns: u64, _outbox: &mut Outbox) {}

    /// When the next work is due; `None` while there is none.
    fn next_ns(&self) -> Option<u64> {
        None
    }

    /// Counts of frames so far, by outcome.
    fn counters(&self) -> &Counters;
}
