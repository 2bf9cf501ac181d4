//! What of a store its last copy has.

use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that are copied at once.
pub const CHUNK: u64 = 256 << 10;

/// What the file has of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// What it had before it was opened, or nothing. The chunk is to be copied.
    Old,
    /// All that the store has.
    All,
    /// What the store had before a change that failed. It counts, unless the store answers for it again, and may have done the change.
    Before,
    /// Nothing, since the store could not be read when it was to be copied.
    Nothing,
}

/// A store's chunks.
#[derive(Debug)]
pub struct Chunks {
    len: u64,
    has: Vec<Has>,
    missing: VecDeque<usize>,
    /// Chunks that do not have all, those that are on their way included.
    left: usize,
}

impl Chunks {
    /// Of a store of so many bytes. Nothing is copied.
    pub fn new(len: u64) -> Self {
        let count = len.div_ceil(CHUNK) as usize;
        Self { len, has: vec![Has::Old; count], missing: (0..count).collect(), left: count }
    }

    /// Bytes of the store that a chunk has.
    pub fn range(&self, chunk: usize) -> Range<u64> {
        let start = chunk as u64 * CHUNK;
        start..(start + CHUNK).min(self.len)
    }

    fn of(at: u64, len: u64) -> Range<usize> {
        (at / CHUNK) as usize..(at + len).div_ceil(CHUNK) as usize
    }

    /// A chunk that is to be copied, which is on its way from now on.
    pub fn next_missing(&mut self) -> Option<usize> {
        self.missing.pop_front()
    }

    /// It is not on its way after all.
    pub fn put_back(&mut self, chunk: usize) {
        self.missing.push_front(chunk);
    }

    /// It was copied. Returns whether that was the last.
    pub fn copied(&mut self, chunk: usize) -> bool {
        self.has[chunk] = Has::All;
        self.left -= 1;
        self.left == 0
    }

    /// It could not be read.
    pub fn fail(&mut self, chunk: usize) {
        self.has[chunk] = Has::Nothing;
    }

    pub fn are_all_copied(&self) -> bool {
        self.left == 0
    }

    /// Whether all of a range can be read from the file.
    pub fn has(&self, at: u64, len: u64) -> bool {
        self.has[Self::of(at, len)].iter().all(|has| matches!(has, Has::All | Has::Before))
    }

    /// Whether a change of a range changes what was copied. What was not will be, with the change.
    pub fn touches_copied(&self, at: u64, len: u64) -> bool {
        self.has[Self::of(at, len)].iter().any(|has| matches!(has, Has::All | Has::Before))
    }

    /// A change of a range failed: the store may have done it or not.
    pub fn doubt(&mut self, at: u64, len: u64) {
        for has in self.has[Self::of(at, len)].iter_mut().filter(|has| **has == Has::All) {
            *has = Has::Before;
            self.left += 1;
        }
    }

    /// The store has answered for a range: what it may have changed without the file is copied anew, and not read from the file before.
    pub fn answers(&mut self, at: u64, len: u64) {
        if self.left == 0 {
            return;
        }
        for chunk in Self::of(at, len) {
            if self.has[chunk] == Has::Before {
                self.has[chunk] = Has::Old;
                self.missing.push_back(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_change_is_doubted_until_the_store_answers() {
        let mut chunks = Chunks::new(2 * CHUNK + 1);
        assert_eq!((chunks.range(2), chunks.has(0, 1)), (2 * CHUNK..2 * CHUNK + 1, false));
        while let Some(chunk) = chunks.next_missing() {
            assert_eq!(chunks.copied(chunk), chunk == 2);
        }
        assert!(chunks.has(0, 2 * CHUNK + 1) && chunks.are_all_copied());
        chunks.doubt(CHUNK - 1, 2);
        assert!(chunks.has(0, 2 * CHUNK) && !chunks.are_all_copied());
        chunks.answers(2 * CHUNK, 1);
        assert_eq!(chunks.next_missing(), None);
        chunks.answers(CHUNK, 1);
        assert_eq!((chunks.has(0, CHUNK), chunks.has(CHUNK, 1), chunks.next_missing()), (true, false, Some(1)));
        assert!(chunks.touches_copied(0, 2 * CHUNK) && !chunks.touches_copied(CHUNK, 1));
        assert!(!chunks.copied(1), "the first is in doubt still");
    }

    #[test]
    fn what_could_not_be_read_is_never_read_from_the_file() {
        let mut chunks = Chunks::new(CHUNK);
        assert_eq!(chunks.next_missing(), Some(0));
        chunks.fail(0);
        chunks.doubt(0, 1);
        chunks.answers(0, 1);
        assert!(!chunks.has(0, 1) && !chunks.are_all_copied() && chunks.next_missing().is_none());
    }
}
