//! A thread's way to a donor.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{GATHER_MAX, Scatter, Slice};
use sinew_fabric::{Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};

use super::error::Why;

/// What a path can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one operation at most.
    pub op_len_max: usize,
    /// Pieces of one operation at most; no more than [`GATHER_MAX`].
    pub pieces_max: usize,
    /// Operations in flight at most.
    pub depth: usize,
}

/// An operation on the donor's memory.
#[derive(Debug)]
pub enum PathJob {
    /// Bytes from `at` on into these buffers, one after the other, each up to its length.
    Read {
        /// First byte.
        at: u64,
        /// Where they go.
        targets: Scatter,
    },
    /// These bytes, one piece after the other, to `at` and on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes.
        sources: ArrayVec<Slice, GATHER_MAX>,
    },
}

impl PathJob {
    /// A read into one buffer.
    #[inline]
    pub fn read(at: u64, target: MessageBuffer) -> Self {
        let mut targets = Scatter::new();
        targets.push(target);
        Self::Read { at, targets }
    }

    /// A write from one piece.
    #[inline]
    pub fn write(at: u64, source: Slice) -> Self {
        let mut sources = ArrayVec::new();
        sources.push(source);
        Self::Write { at, sources }
    }
}

/// An operation that is over.
#[derive(Debug)]
pub struct Done {
    /// As it was pushed.
    pub id: u32,
    /// What went wrong, if anything did.
    pub error: Option<Box<Why>>,
    /// The buffers of a read, in their order.
    pub targets: Scatter,
}

/// A thread's way to one donor. Operations that overlap (one of them a write) are never on it together, so that it may carry them in any order.
///
/// It can be slept on as [`Readiness`] says.
pub trait Path: Readiness {
    /// What it can carry; the same each time.
    fn limits(&self) -> Limits;

    /// Whether a read can go to this buffer as it is, if it is pushed before the next [`Self::ring`]: others are copied by way of [`Self::stage`]. A path may have to register it for that.
    fn takes_target(&self, target: &MessageBuffer) -> bool;

    /// Whether a write can come from this buffer as it is, likewise.
    fn takes_source(&self, source: &Slice) -> bool;

    /// A buffer that it takes.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    fn stage(&self, len: usize) -> Result<MessageBuffer, AllocError>;

    /// How many more operations can be pushed.
    fn room(&self) -> usize;

    /// Takes an operation within its [limits](Self::limits), to start with the next [`Self::ring`]. An operation that fails, now or later, is told by [`Self::poll`].
    /// There must be room.
    fn push(&mut self, id: u32, job: PathJob);

    /// The same of a read into one buffer, which most are.
    #[inline]
    fn push_read(&mut self, id: u32, at: u64, target: MessageBuffer) {
        self.push(id, PathJob::read(at, target));
    }

    /// The same of a write from one piece.
    #[inline]
    fn push_write(&mut self, id: u32, at: u64, source: Slice) {
        self.push(id, PathJob::write(at, source));
    }

    /// Starts what was pushed.
    fn ring(&mut self);

    /// Tells what is over. Never blocks. Returns whether there was anything to do.
    fn poll(&mut self, over: &mut impl FnMut(Done)) -> bool;

    /// What broke it, when it is broken. What is in flight then is told to be over soon, and what is pushed fails.
    fn error(&self) -> Option<&Why>;

    /// Breaks it, from this side: what is in flight does nothing more to the donor's memory, as far as the device can have it so, and is told to be over, if it can be, by the next [`Self::poll`].
    fn close(&mut self);

    /// Ends a sleep on it, from any thread.
    fn waker(&self) -> Waker;
}
