//! The word that publishes a packet, and a consumer's handle on a packet.

#[cfg(not(loom))]
use std::marker::PhantomData;
use std::num::NonZeroU64;

#[cfg(not(loom))]
use super::words::Words;
use super::{FULL_LINE, LINE, WORD};
#[cfg(not(loom))]
use crate::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use crate::copy::copy_from_shared;

/// The most lines of a burst that its first word can announce, so that the consumer fetches all of them at once.
pub(super) const BURST_LINES_MAX: u64 = 32;
pub(super) const BURST_SHIFT: u32 = 56;
const KIND_SHIFT: u32 = 48;
const KIND_MASK: u64 = 0xFF;

pub(super) const KIND_INLINE: u64 = 1;
pub(super) const KIND_FAR: u64 = 2;
pub(super) const KIND_SKIP: u64 = 3;
pub(super) const KIND_REVOKED: u64 = 4;

#[inline(always)]
pub(super) const fn lines_of(len: usize) -> usize {
    (len + WORD).div_ceil(LINE)
}

/// `word` without the length of the burst that it may begin.
#[inline(always)]
pub(super) const fn without_burst(word: u64) -> u64 {
    word & !(u64::MAX << BURST_SHIFT)
}

/// The word that publishes a packet: the low half of its position, its length, its kind. Never zero.
#[inline(always)]
pub(super) const fn word_of(position: u64, len: usize, kind: u64) -> u64 {
    (position & 0xFFFF_FFFF) | ((len as u64) << 32) | (kind << KIND_SHIFT)
}

#[inline(always)]
pub(super) const fn kind_of(word: u64) -> u64 {
    word >> KIND_SHIFT & KIND_MASK
}

#[inline(always)]
pub(super) const fn len_of(word: u64) -> usize {
    (word >> 32) as u16 as usize
}

/// The length of a packet whose bytes travel in the ring and whose word announces no burst; for any other word, a
/// number larger than any packet's length.
#[inline(always)]
pub(super) const fn plain_len(word: u64) -> u64 {
    (word >> 32).wrapping_sub(KIND_INLINE << (KIND_SHIFT - 32))
}

/// A packet that a consumer has taken and not yet given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Byte offset of its ring bytes in the words.
    pub(super) offset: usize,
    /// Never zero, so an `Option` of this type fits in two registers.
    pub(super) word: NonZeroU64,
}

impl Taken {
    /// Bytes in the ring: the whole packet, or the head of one whose rest is in the producer's arena.
    #[inline]
    pub fn len(&self) -> usize {
        len_of(self.word.get())
    }

    /// Whether there are no bytes in the ring.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the packet's rest is in the producer's arena; see [`super::Consumer::far`].
    #[inline]
    pub fn is_far(&self) -> bool {
        kind_of(self.word.get()) == KIND_FAR
    }

    /// Whether the producer revoked the packet before it was read. It then has no bytes and only fills its line.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        kind_of(self.word.get()) == KIND_REVOKED
    }

    /// Whether this is a whole packet, with no rest elsewhere, and not revoked.
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        kind_of(self.word.get()) == KIND_INLINE
    }

    /// Whether this is a whole packet in one line, as nearly all are.
    #[inline(always)]
    pub fn is_plain_line(&self) -> bool {
        plain_len(self.word.get()) <= FULL_LINE as u64
    }

    /// Bytes that [`super::Consumer::copy_out`] writes: [`Self::len`], rounded up to the length that is copied fastest.
    #[inline]
    pub fn copy_len(&self) -> usize {
        if cfg!(loom) {
            self.len()
        } else {
            // To the end of its last line, which is whole words.
            lines_of(self.len()) * LINE - self.offset % LINE
        }
    }
}

/// A whole packet that lies in a ring, whose producer may be hostile and still write it. Its length is fixed; its bytes
/// are copied out, never borrowed.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct InRing<'a> {
    /// The first byte, at an aligned word.
    start: *const u8,
    len: usize,
    ring: PhantomData<&'a Words>,
}

#[cfg(not(loom))]
impl InRing<'_> {
    /// The `len` bytes from `start` on.
    ///
    /// # Safety
    ///
    /// They lie in a ring that is borrowed for as long as this, from an aligned word on, and nobody in this process has
    /// a slice over them or writes them.
    #[inline(always)]
    pub(super) unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, ring: PhantomData }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splits off the first `COUNT` words, which are copied; `None` if there are fewer.
    #[inline(always)]
    pub fn split_words<const COUNT: usize>(self) -> Option<([u64; COUNT], Self)> {
        let rest = self.len.checked_sub(COUNT * 8)?;
        // SAFETY: the packet has these words.
        let words = std::array::from_fn(|at| u64::from_le(unsafe { self.word(at) }));
        // SAFETY: what is left of the packet.
        Some((words, unsafe { Self::new(self.start.wrapping_add(COUNT * 8), rest) }))
    }

    /// Word `at`.
    ///
    /// # Safety
    ///
    /// The packet has it.
    #[inline(always)]
    unsafe fn word(&self, at: usize) -> u64 {
        // SAFETY: the caller's promise, and that of `new`. Relaxed: ordered by the acquire of the packet's word.
        unsafe { &*self.start.add(at * 8).cast::<AtomicU64>() }.load(Ordering::Relaxed)
    }

    /// Copies the first `COUNT` words.
    ///
    /// # Safety
    ///
    /// The packet has them, and the target is valid for writes of as many.
    #[inline(always)]
    unsafe fn copy_words<const COUNT: usize>(&self, target: *mut u8) {
        for at in 0..COUNT {
            // SAFETY: the caller's promises; the target is written unaligned.
            unsafe { target.add(at * 8).cast::<u64>().write_unaligned(self.word(at)) };
        }
    }

    /// Copies all bytes to the start of `target`; returns false, without having copied any, if that is too short.
    #[inline(always)]
    pub fn copy_to(self, target: &mut [u8]) -> bool {
        if self.len > target.len() {
            return false;
        }
        let target = target.as_mut_ptr();
        // SAFETY: the packet has these words, and the target is long enough.
        unsafe {
            // Nearly every message is some words in one line.
            match self.len {
                8 => self.copy_words::<1>(target),
                16 => self.copy_words::<2>(target),
                24 => self.copy_words::<3>(target),
                32 => self.copy_words::<4>(target),
                40 => self.copy_words::<5>(target),
                _ => copy_any(self.start, target, self.len),
            }
        }
        true
    }
}

/// As [`copy_from_shared`], not inlined.
///
/// # Safety
///
/// As there.
#[cfg(not(loom))]
#[inline(never)]
unsafe fn copy_any(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promises.
    unsafe { copy_from_shared(source, target, len) }
}
