//! Bytes that another thread or process may be writing, and the guard that says whether a copy of them counts.

use std::marker::PhantomData;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::copy::copy_from_shared;

/// Condition for a copy out of shared memory to count: a word of the sender's, which the sender changes when it takes
/// the memory back.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// The word. Its partner is the store by which the sender revokes what it sent, before it writes the memory anew.
    pub word: &'a AtomicU64,
    /// Value of the word while the memory is still lent.
    pub expected: u64,
}

impl Guard<'_> {
    /// Whether the memory was still lent when everything read before this call was read.
    #[inline]
    pub fn still_lent(&self) -> bool {
        // The reader's half of a sequence lock: loads of the data may not sink below the load of the word. Partner: the
        // release fence in `Producer::revoked`.
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == self.expected
    }
}

/// Error of a copy during which the sender took the bytes back: the copied bytes mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sender revoked the packet while it was being copied")]
pub struct Revoked;

/// Bytes in memory that another thread or process may write at any time. They can be copied out, never borrowed.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    start: *const u8,
    len: usize,
    guard: Option<Guard<'a>>,
    lent: PhantomData<&'a [AtomicU64]>,
}

impl<'a> SharedBytes<'a> {
    /// The `len` bytes from `start` on, with the guard that decides whether a copy of them counts.
    ///
    /// # Safety
    ///
    /// `start` must be valid for reads of `len` bytes during `'a`, and anyone writing there meanwhile must be another
    /// process, or use atomic stores.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize, guard: Option<Guard<'a>>) -> Self {
        Self { start, len, guard, lent: PhantomData }
    }

    /// Bytes that nobody else has, presented as shared ones, for ports that model such memory. The guard still decides
    /// whether a copy counts.
    #[inline]
    pub fn from_exclusive(bytes: &'a mut [u8], guard: Option<Guard<'a>>) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len(), guard, lent: PhantomData }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies all bytes out.
    ///
    /// # Errors
    ///
    /// [`Revoked`] when the sender took the memory back before the copy was done; `target` then holds garbage.
    ///
    /// # Panics
    ///
    /// When `target` is not exactly [`Self::len`] bytes long.
    #[inline]
    pub fn copy_to(&self, target: &mut [u8]) -> Result<(), Revoked> {
        assert_eq!(target.len(), self.len, "copy_to needs a target of the same length");
        // SAFETY: `new` promised a readable range; the target is an exclusive slice of the same length, and a slice of
        // ours never overlaps memory that is shared with writers.
        unsafe { copy_from_shared(self.start, target.as_mut_ptr(), self.len) };
        match self.guard {
            Some(guard) if !guard.still_lent() => Err(Revoked),
            _ => Ok(()),
        }
    }
}
