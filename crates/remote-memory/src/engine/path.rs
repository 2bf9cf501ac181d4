//! A thread's path to a donor.

use sinew_fabric::verbs::{Gather, Scatter, Slice};
use sinew_fabric::{Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};

use super::error::FailureCause;

/// Pieces of one operation by default, at most: a list of four takes no allocation. Longer runs of small requests are
/// copied together.
pub const PIECES_MAX: usize = 4;

/// Limits of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one operation, at most.
    pub op_len_max: usize,
    /// Pieces of one operation, at most.
    pub pieces_max: usize,
    /// Operations in flight, at most.
    pub depth: usize,
}

/// An operation on the donor's memory.
#[derive(Debug)]
pub enum PathJob {
    /// Reads the bytes from `at` on into these buffers, one after the other, filling each.
    Read {
        /// First byte.
        at: u64,
        /// Destination of the bytes.
        targets: Scatter,
    },
    /// Writes these pieces, one after the other, from `at` on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes.
        sources: Gather,
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
        let mut sources = Gather::new();
        sources.push(source);
        Self::Write { at, sources }
    }
}

/// A finished operation.
#[derive(Debug)]
pub struct Done {
    /// The id with which it was pushed.
    pub id: u32,
    /// The failure, if any.
    pub error: Option<Box<FailureCause>>,
    /// The buffers of a read, in order.
    pub targets: Scatter,
}

/// A thread's path to one donor. Overlapping operations of which one is a write are never in flight together, so a path
/// may carry operations in any order.
///
/// A thread can sleep on it, as described at [`Readiness`].
pub trait Path: Readiness {
    /// Limits of the path, which never change.
    fn limits(&self) -> Limits;

    /// Whether a read can go to this buffer as it is, if it is pushed before the next [`Self::ring`]. Other reads are
    /// copied through a buffer of [`Self::stage`]. A path may have to register the buffer for that.
    fn takes_target(&self, target: &MessageBuffer) -> bool;

    /// Whether a write can come from this buffer as it is, under the same condition.
    fn takes_source(&self, source: &Slice) -> bool;

    /// Allocates a buffer that the path can use directly.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for it now.
    fn stage(&self, len: usize) -> Result<MessageBuffer, AllocError>;

    /// Operations that can still be pushed.
    fn room(&self) -> usize;

    /// Accepts an operation within the path's [limits](Self::limits), to start with the next [`Self::ring`].
    /// [`Self::poll`] reports an operation that fails, now or later. There must be [room](Self::room).
    fn push(&mut self, id: u32, job: PathJob);

    /// As [`Self::push`], for a read into one buffer, which most are.
    #[inline]
    fn push_read(&mut self, id: u32, at: u64, target: MessageBuffer) {
        self.push(id, PathJob::read(at, target));
    }

    /// As [`Self::push`], for a write from one piece.
    #[inline]
    fn push_write(&mut self, id: u32, at: u64, source: Slice) {
        self.push(id, PathJob::write(at, source));
    }

    /// Starts the operations pushed.
    fn ring(&mut self);

    /// Passes each finished operation to `completed`. Never blocks. Returns whether there was anything to do.
    fn poll(&mut self, completed: &mut impl FnMut(Done)) -> bool;

    /// The error that broke the path, if any. [`Self::poll`] soon reports everything in flight as over, and what is
    /// pushed from then on fails.
    fn error(&self) -> Option<&FailureCause>;

    /// Breaks the path from this side. What is in flight does nothing more to the donor's memory, as far as the device
    /// can ensure it, and is reported by the next [`Self::poll`] where that is possible.
    fn close(&mut self);

    /// Returns a waker that ends a sleep on the path, from any thread.
    fn waker(&self) -> Waker;
}
