//! What becomes of the frames of a burst, and frames that are made on the way.

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_fabric::frames::LentFrame;

use crate::counters::Counters;
use crate::form::Form;

/// What becomes of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Drop,
    /// It goes out of this port, as it is now.
    Forward(u16),
    /// So many bytes of it go out of this port.
    Shorten(u16, u16),
    /// It goes out of every port but the one that it came from.
    Flood,
}

/// Fates of the frames of a burst, in their order.
pub type Fates = ArrayVec<Fate, MAX_BURST>;

/// Frames that are sent before those of the burst at hand.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// The port, and where the frame ends.
    frames: Vec<(u16, usize)>,
}

impl Outbox {
    /// With no frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frame, in pieces, for a port.
    pub fn push(&mut self, to: u16, pieces: &[&[u8]]) {
        pieces.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.frames.push((to, self.bytes.len()));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Its frames, with the ports that they go out of.
    pub fn frames(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut start = 0;
        self.frames.iter().map(move |(to, end)| {
            let frame = &self.bytes[start..*end];
            start = *end;
            (*to, frame)
        })
    }

    /// Forgets them; their memory is used again.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}

/// What is done with frames, between the ports: a state machine that is handed bursts and the time.
pub trait Application {
    /// Looks at a burst of at most [`MAX_BURST`] frames that came in at a port, changes those that go on, and says in `fates`, which is cleared, what becomes of each. Frames to be sent before
    /// them go to `outbox`. Frames of one flow leave in the order in which they came.
    ///
    /// # Panics
    ///
    /// When there are more frames.
    fn process<L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frames: &mut [L],
        fates: &mut Fates,
        outbox: &mut Outbox,
    );

    /// Looks keys up in another form from now on.
    fn set_form(&mut self, form: Form);

    /// Does what is due by now.
    fn tick(&mut self, _now_ns: u64, _outbox: &mut Outbox) {}

    /// When something is due next.
    fn next_ns(&self) -> Option<u64> {
        None
    }

    /// What became of frames so far.
    fn counters(&self) -> &Counters;
}
