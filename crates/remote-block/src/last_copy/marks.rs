//! Marks: which blocks of a store its last copy has, and what is still to be copied.

use std::collections::VecDeque;
use std::ops::Range;

use sinew_remote_memory::store::BLOCK;

/// Bytes copied at a time.
pub const CHUNK: u64 = 256 << 10;
const BLOCK_LEN: u64 = BLOCK as u64;
// A chunk's blocks are the bits of a word.
const _: () = assert!(CHUNK == 64 * BLOCK_LEN);

/// The blocks of a chunk, one bit each.
type Blocks = u64;

/// A chunk of the store.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    /// Blocks whose bytes in the file are valid.
    valid: Blocks,
    /// Those valid blocks that a failed change may have changed in the store. The file has their earlier bytes, which
    /// are valid until the store has answered for the blocks again.
    doubtful: Blocks,
    /// Whether it is queued to be copied, or being copied.
    is_queued: bool,
}

/// State of the last copy of a store, block by block.
#[derive(Debug)]
pub struct Marks {
    len: u64,
    chunks: Vec<Chunk>,
    missing: VecDeque<usize>,
    /// Chunks that could not be read. One is tried now and then; once it can be read, the others are tried too.
    unreadable: VecDeque<usize>,
    /// Chunks of which the file lacks something.
    incomplete_chunks: usize,
    /// Chunks of which the file lacks something, or has something in doubt.
    doubtful_chunks: usize,
}

/// A word with these bits set.
fn bits(range: Range<u64>) -> Blocks {
    match range.end.saturating_sub(range.start) {
        0 => 0,
        count => (Blocks::MAX >> (64 - count)) << range.start,
    }
}

impl Marks {
    /// Marks for a store of `len` bytes, of which the file has nothing.
    pub fn new(len: u64) -> Self {
        let count = len.div_ceil(CHUNK) as usize;
        let chunk = Chunk { is_queued: true, ..Chunk::default() };
        Self {
            len,
            chunks: vec![chunk; count],
            missing: (0..count).collect(),
            unreadable: VecDeque::new(),
            incomplete_chunks: count,
            doubtful_chunks: count,
        }
    }

    /// Bytes of the store that a chunk covers.
    pub fn range(&self, chunk: usize) -> Range<u64> {
        let start = chunk as u64 * CHUNK;
        start..(start + CHUNK).min(self.len)
    }

    fn all(&self, chunk: usize) -> Blocks {
        let range = self.range(chunk);
        bits(0..(range.end - range.start).div_ceil(BLOCK_LEN))
    }

    /// Returns, for each chunk that a range overlaps, the blocks that it touches, and those that it covers.
    fn parts(&self, at: u64, len: u64) -> impl Iterator<Item = (usize, Blocks, Blocks)> + use<> {
        let (end, all) = (at + len, self.len);
        let chunks = if len == 0 { 0..0 } else { at / CHUNK..end.div_ceil(CHUNK) };
        chunks.map(move |chunk| {
            let start = chunk * CHUNK;
            let (from, to) = (at.max(start) - start, end.min(start + CHUNK) - start);
            // The last block of the store may be short.
            let covered_to = if start + to == all { to.div_ceil(BLOCK_LEN) } else { to / BLOCK_LEN };
            let touched = bits(from / BLOCK_LEN..to.div_ceil(BLOCK_LEN));
            (chunk as usize, touched, bits(from.div_ceil(BLOCK_LEN)..covered_to))
        })
    }

    /// Whether the file has all of a chunk, and whether it has it without doubt.
    fn state(&self, chunk: usize) -> (bool, bool) {
        let Chunk { valid, doubtful, .. } = self.chunks[chunk];
        let is_whole = valid == self.all(chunk);
        (is_whole, is_whole && doubtful == 0)
    }

    fn change(&mut self, chunk: usize, change: impl FnOnce(&mut Chunk)) {
        let (was_whole, was_sure) = self.state(chunk);
        change(&mut self.chunks[chunk]);
        let (is_whole, is_sure) = self.state(chunk);
        self.incomplete_chunks = self.incomplete_chunks + usize::from(was_whole) - usize::from(is_whole);
        self.doubtful_chunks = self.doubtful_chunks + usize::from(was_sure) - usize::from(is_sure);
        if !is_sure && !std::mem::replace(&mut self.chunks[chunk].is_queued, true) {
            self.missing.push_back(chunk);
        }
    }

    /// Takes a chunk to be copied.
    pub fn next_missing(&mut self) -> Option<usize> {
        while let Some(chunk) = self.missing.pop_front() {
            if !self.state(chunk).1 {
                return Some(chunk);
            }
            self.chunks[chunk].is_queued = false;
        }
        None
    }

    /// Puts a chunk back that was taken, but is not being copied after all.
    pub fn requeue(&mut self, chunk: usize) {
        self.missing.push_front(chunk);
    }

    /// Puts a chunk aside that could not be read. What the file has of it stays valid.
    pub fn set_unreadable(&mut self, chunk: usize) {
        self.unreadable.push_back(chunk);
    }

    /// Whether there are chunks that could not be read.
    pub fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Takes one of the chunks put aside, to try it again.
    pub fn next_unreadable(&mut self) -> Option<usize> {
        self.unreadable.pop_front()
    }

    /// Queues all chunks put aside to be copied again.
    pub fn requeue_unreadable(&mut self) {
        self.missing.append(&mut self.unreadable);
    }

    /// Notes that a chunk was copied.
    pub fn set_copied(&mut self, chunk: usize) {
        let all = self.all(chunk);
        self.change(chunk, |chunk| *chunk = Chunk { valid: all, doubtful: 0, is_queued: false });
    }

    /// Whether the file has everything. Blocks in doubt count: they are as before a change that was never confirmed.
    pub fn is_complete(&self) -> bool {
        self.incomplete_chunks == 0
    }

    /// Whether all of a range can be read from the file.
    pub fn has(&self, at: u64, len: u64) -> bool {
        self.parts(at, len).all(|(chunk, touched, _)| touched & !self.chunks[chunk].valid == 0)
    }

    /// Notes that a range was changed, in the store and in the file. The rest of a partly changed block is as valid as
    /// before.
    pub fn set_changed(&mut self, at: u64, len: u64) {
        for (chunk, _, covered) in self.parts(at, len) {
            self.change(chunk, |chunk| {
                (chunk.valid, chunk.doubtful) = (chunk.valid | covered, chunk.doubtful & !covered)
            });
        }
    }

    /// Notes that a change of a range failed: the store may have done it in some blocks, and not in others.
    pub fn set_doubtful(&mut self, at: u64, len: u64) {
        for (chunk, touched, _) in self.parts(at, len) {
            self.change(chunk, |chunk| chunk.doubtful |= touched & chunk.valid);
        }
    }

    /// Notes that the store has answered for a range. Its blocks that were in doubt are not read from the file until
    /// they are copied anew, because that could contradict the answer.
    pub fn clear_doubt(&mut self, at: u64, len: u64) {
        if self.doubtful_chunks == 0 {
            return;
        }
        for (chunk, touched, _) in self.parts(at, len) {
            let answered = touched & self.chunks[chunk].doubtful;
            if answered != 0 {
                self.change(chunk, |chunk| {
                    (chunk.valid, chunk.doubtful) = (chunk.valid & !answered, chunk.doubtful & !answered)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(len: u64) -> Marks {
        let mut marks = Marks::new(len);
        while let Some(chunk) = marks.next_missing() {
            marks.set_copied(chunk);
        }
        marks
    }

    #[test]
    fn only_what_a_failed_change_covered_is_in_doubt_and_only_until_the_store_answers() {
        let mut marks = copied(2 * CHUNK + 1);
        assert!(marks.has(0, 2 * CHUNK + 1) && marks.is_complete());
        marks.set_doubtful(CHUNK - 1, 2);
        assert!(marks.has(0, 2 * CHUNK + 1) && marks.is_complete(), "what was there before counts");
        marks.clear_doubt(0, CHUNK - BLOCK_LEN);
        marks.clear_doubt(CHUNK + BLOCK_LEN, 1);
        assert!(marks.has(0, 2 * CHUNK + 1), "nothing was said of what is in doubt");
        marks.clear_doubt(CHUNK, 1);
        assert!(!marks.is_complete());
        assert!(marks.has(0, CHUNK) && !marks.has(CHUNK, 1) && marks.has(CHUNK + BLOCK_LEN, CHUNK + 1 - BLOCK_LEN));
        assert_eq!((marks.next_missing(), marks.next_missing(), marks.next_missing()), (Some(0), Some(1), None));
        marks.set_copied(1);
        assert!(marks.has(0, 2 * CHUNK + 1) && marks.is_complete());
        // The last block of the first chunk is still in doubt.
        marks.set_copied(0);
        marks.clear_doubt(0, 2 * CHUNK + 1);
        assert!(marks.is_complete());
    }

    #[test]
    fn whole_blocks_that_are_written_count_before_their_chunk_is_copied() {
        let mut marks = Marks::new(CHUNK + 5);
        marks.set_changed(BLOCK_LEN - 1, BLOCK_LEN + 2);
        assert!(marks.has(BLOCK_LEN, BLOCK_LEN) && !marks.has(BLOCK_LEN - 1, 1) && !marks.has(2 * BLOCK_LEN, 1));
        // The last block of the store is short.
        marks.set_changed(CHUNK, 4);
        assert!(!marks.has(CHUNK, 1));
        marks.set_changed(CHUNK, 5);
        assert!(marks.has(CHUNK, 5) && !marks.is_complete());
        assert_eq!((marks.next_missing(), marks.next_missing()), (Some(0), None), "the other is there");
        marks.set_copied(0);
        assert!(marks.is_complete());
        // A change of the whole block ends the doubt.
        marks.set_doubtful(CHUNK, 1);
        marks.set_changed(CHUNK, 5);
        marks.clear_doubt(CHUNK, 5);
        assert!(marks.is_complete());
    }

    #[test]
    fn what_cannot_be_read_keeps_what_it_has_and_waits_aside() {
        let mut marks = copied(2 * CHUNK);
        marks.set_doubtful(0, 1);
        marks.set_doubtful(CHUNK, 1);
        for chunk in 0..2 {
            assert_eq!(marks.next_missing(), Some(chunk));
            marks.set_unreadable(chunk);
        }
        assert!(marks.next_missing().is_none() && marks.has_unreadable() && marks.has(0, 2 * CHUNK));
        assert_eq!(marks.next_unreadable(), Some(0));
        marks.set_doubtful(0, 1);
        assert_eq!(marks.next_missing(), None, "it is on its way");
        marks.requeue_unreadable();
        assert_eq!((marks.next_missing(), marks.next_missing()), (Some(1), None));
    }

    #[test]
    fn marks_are_those_of_a_plain_array_of_blocks() {
        use sinew_fabric::SeededGenerator;
        const LEN: u64 = 2 * CHUNK + 3 * BLOCK_LEN + 77;
        let mut random = SeededGenerator::new(7);
        let mut marks = Marks::new(LEN);
        let mut blocks = vec![(false, false); LEN.div_ceil(BLOCK_LEN) as usize];
        for _ in 0..4000 {
            let at = random.below(LEN);
            let len_max = if random.below(2) == 0 { 3 * BLOCK_LEN } else { LEN };
            let len = random.below(len_max + 1).min(LEN - at);
            let touched = (at / BLOCK_LEN) as usize..(at + len).div_ceil(BLOCK_LEN) as usize;
            let touched = if len == 0 { 0..0 } else { touched };
            match random.below(4) {
                0 => {
                    marks.set_changed(at, len);
                    for block in touched {
                        let (start, end) = (block as u64 * BLOCK_LEN, ((block as u64 + 1) * BLOCK_LEN).min(LEN));
                        if at <= start && end <= at + len {
                            blocks[block] = (true, false);
                        }
                    }
                }
                1 => {
                    marks.set_doubtful(at, len);
                    blocks[touched].iter_mut().for_each(|(has, doubt)| *doubt |= *has);
                }
                2 => {
                    marks.clear_doubt(at, len);
                    blocks[touched].iter_mut().filter(|block| block.1).for_each(|block| *block = (false, false));
                }
                _ => {
                    if let Some(chunk) = marks.next_missing() {
                        marks.set_copied(chunk);
                        let range = marks.range(chunk);
                        let all = (range.start / BLOCK_LEN) as usize..range.end.div_ceil(BLOCK_LEN) as usize;
                        blocks[all].fill((true, false));
                    }
                }
            }
            let at = random.below(LEN);
            let expected = blocks[(at / BLOCK_LEN) as usize].0;
            assert_eq!(marks.has(at, 1), expected, "{at}");
            assert_eq!(marks.is_complete(), blocks.iter().all(|block| block.0));
        }
    }
}
