//! Memory for a store that does not evict: blocks of any size, split and joined in constant time.
//!
//! Two-level segregated fit: free blocks are listed by the power of two of their size, in eight steps, and two levels
//! of bit masks say which lists are not empty. A block begins with a word that has its size. A free block has its
//! list's links next, and its size again at its end, where the block after it finds it.

use sinew_mem::TableWords;

const STEP_BITS: u32 = 3;
const STEPS: usize = 1 << STEP_BITS;
const LEVELS: usize = 36;

/// The block is free.
const FREE: u64 = 1;
/// The block in front of this one is free.
const FREE_BEFORE: u64 = 2;
/// Smallest block, in words: header, two links, and the size again.
const BLOCK_MIN: usize = 4;
/// No block; the first word belongs to none.
const NONE: u64 = 0;

/// The allocation state of a memory.
#[derive(Debug)]
pub(crate) struct Heap {
    lists: Box<[[u64; STEPS]; LEVELS]>,
    /// Bit masks of the levels that have a free block, and of the steps of each.
    levels: u64,
    steps: [u8; LEVELS],
    used: usize,
}

/// Returns the list of blocks of `words` words.
fn list_of(words: usize) -> (usize, usize) {
    if words < STEPS {
        return (0, words);
    }
    let log = words.ilog2();
    ((log - STEP_BITS + 1) as usize, (words >> (log - STEP_BITS)) & (STEPS - 1))
}

/// Returns the smallest size whose list, and all later ones, hold only blocks of at least `words` words.
fn rounded_up(words: usize) -> usize {
    if words < STEPS { words } else { words + (1 << (words.ilog2() - STEP_BITS)) - 1 }
}

impl Heap {
    /// Makes a heap in which all of `memory` is free.
    pub fn new(memory: &TableWords) -> Self {
        let mut heap = Self { lists: Box::new([[NONE; STEPS]; LEVELS]), levels: 0, steps: [0; LEVELS], used: 0 };
        // One word in front, so that no block is at 0, and an empty block at the end, so that each block has a next.
        if let Some(words) = memory.len().checked_sub(2).filter(|words| *words >= BLOCK_MIN) {
            memory.store(memory.len() - 1, FREE_BEFORE);
            heap.put_in_list(memory, 1, words, 0);
        }
        heap
    }

    /// Longest piece, in words, that can be allocated from an empty heap in this memory.
    pub fn words_max(memory: &TableWords) -> usize {
        let all = memory.len().saturating_sub(2);
        // A list serves only requests that its smallest block satisfies.
        let guaranteed = if all < STEPS { all } else { all >> (all.ilog2() - STEP_BITS) << (all.ilog2() - STEP_BITS) };
        if guaranteed < BLOCK_MIN { 0 } else { guaranteed - 1 }
    }

    /// Words in use, including each block's header.
    pub fn used(&self) -> usize {
        self.used
    }

    fn put_in_list(&mut self, memory: &TableWords, block: usize, words: usize, before: u64) {
        let (level, step) = list_of(words);
        let next = std::mem::replace(&mut self.lists[level][step], block as u64);
        memory.store(block, (words as u64) << 2 | before | FREE);
        memory.store(block + 1, next);
        memory.store(block + 2, NONE);
        memory.store(block + words - 1, words as u64);
        if next != NONE {
            memory.store(next as usize + 2, block as u64);
        }
        self.levels |= 1 << level;
        self.steps[level] |= 1 << step;
    }

    fn take_from_list(&mut self, memory: &TableWords, block: usize, words: usize) {
        let (level, step) = list_of(words);
        let [next, previous] = memory.load_array(block + 1);
        if next != NONE {
            memory.store(next as usize + 2, previous);
        }
        if previous != NONE {
            memory.store(previous as usize + 1, next);
            return;
        }
        self.lists[level][step] = next;
        if next == NONE {
            self.steps[level] &= !(1 << step);
            if self.steps[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    fn find_block(&self, words: usize) -> Option<usize> {
        let (level, step) = list_of(rounded_up(words));
        if level >= LEVELS {
            return None;
        }
        let in_level = self.steps[level] & (u8::MAX << step);
        let (level, steps) = if in_level != 0 {
            (level, in_level)
        } else {
            let higher_levels = self.levels & (u64::MAX << (level + 1));
            let level = higher_levels.trailing_zeros() as usize;
            (level, *self.steps.get(level)?)
        };
        Some(self.lists[level][steps.trailing_zeros() as usize] as usize)
    }

    /// Allocates `words` contiguous words if possible; returns their place and their actual number.
    pub fn alloc(&mut self, memory: &TableWords, words: usize) -> Option<(usize, usize)> {
        let needed = (words + 1).max(BLOCK_MIN);
        let block = self.find_block(needed)?;
        let header = memory.load(block);
        let mut len = (header >> 2) as usize;
        self.take_from_list(memory, block, len);
        let rest = len - needed;
        if rest >= BLOCK_MIN {
            len = needed;
            self.put_in_list(memory, block + needed, rest, 0);
        } else {
            let next = block + len;
            memory.store(next, memory.load(next) & !FREE_BEFORE);
        }
        memory.store(block, (len as u64) << 2 | header & FREE_BEFORE);
        self.used += len;
        Some((block + 1, len - 1))
    }

    /// Frees what [`Heap::alloc`] returned.
    pub fn free(&mut self, memory: &TableWords, offset: usize) {
        let mut block = offset - 1;
        let header = memory.load(block);
        let mut words = (header >> 2) as usize;
        self.used -= words;
        let mut before = header & FREE_BEFORE;
        let next = block + words;
        let next_header = memory.load(next);
        if next_header & FREE != 0 {
            let next_words = (next_header >> 2) as usize;
            self.take_from_list(memory, next, next_words);
            words += next_words;
        }
        if before != 0 {
            let previous_words = memory.load(block - 1) as usize;
            block -= previous_words;
            before = memory.load(block) & FREE_BEFORE;
            self.take_from_list(memory, block, previous_words);
            words += previous_words;
        }
        self.put_in_list(memory, block, words, before);
        let next = block + words;
        memory.store(next, memory.load(next) | FREE_BEFORE);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_hold_what_they_promise() {
        for words in 1..100_000 {
            let needed = rounded_up(words);
            assert!(list_of(needed) >= list_of(words));
            // The smallest block of that list, and of any later one, is large enough.
            let first = (words..).find(|size| list_of(*size) == list_of(needed)).unwrap();
            assert!(first >= words && first <= needed);
        }
    }

    #[test]
    fn all_memory_can_be_had_in_one_piece_again() {
        let memory = TableWords::zeroed(1000).unwrap();
        let mut heap = Heap::new(&memory);
        let all = heap.alloc(&memory, 895).expect("its list begins at 896 words");
        assert_eq!(heap.alloc(&memory, 895), None);
        heap.free(&memory, all.0);
        let pieces: Vec<_> = std::iter::from_fn(|| heap.alloc(&memory, 7)).collect();
        assert!(pieces.len() >= 120, "{}", pieces.len());
        for at in (0..pieces.len()).step_by(2).chain((1..pieces.len()).step_by(2)) {
            heap.free(&memory, pieces[at].0);
        }
        assert_eq!(heap.used(), 0);
        assert!(heap.alloc(&memory, 895).is_some());
    }

    #[test]
    fn memory_has_as_much_in_one_piece_as_it_says_and_no_more() {
        for words in 0..6 {
            let memory = TableWords::zeroed(words).unwrap();
            assert_eq!(Heap::new(&memory).alloc(&memory, 1), None, "{words}");
        }
        for words in 0..3000 {
            let memory = TableWords::zeroed(words).unwrap();
            let most = Heap::words_max(&memory);
            assert!(most == 0 || Heap::new(&memory).alloc(&memory, most).is_some(), "{words}");
            assert_eq!(Heap::new(&memory).alloc(&memory, most + 1), None, "{words}");
        }
        let memory = TableWords::zeroed(6).unwrap();
        assert!(Heap::new(&memory).alloc(&memory, 3).is_some());
        assert_eq!(Heap::new(&memory).alloc(&memory, 4), None);
        assert_eq!(Heap::new(&memory).alloc(&memory, 1 << 40), None);
    }

    proptest! {
        #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(2) } else { ProptestConfig::default() })]

        #[test]
        fn blocks_never_overlap_and_everything_comes_back(
            steps in prop::collection::vec((any::<bool>(), 0usize..200, any::<prop::sample::Index>()), 1..400),
        ) {
            let memory = TableWords::zeroed(2000).unwrap();
            let mut heap = Heap::new(&memory);
            let mut given: BTreeMap<usize, usize> = BTreeMap::new();
            for (give_back, words, which) in steps {
                if give_back && !given.is_empty() {
                    let (&place, _) = given.iter().nth(which.index(given.len())).unwrap();
                    given.remove(&place);
                    heap.free(&memory, place);
                } else if let Some((place, room)) = heap.alloc(&memory, words) {
                    prop_assert!(room >= words && room < words + 2 * BLOCK_MIN);
                    prop_assert!(place + room < memory.len());
                    let before = given.range(..place).next_back().is_none_or(|(start, len)| start + len < place);
                    let after = given.range(place..).next().is_none_or(|(start, _)| place + room < *start);
                    prop_assert!(before && after);
                    given.insert(place, room);
                    // The owner of a block may write all of it.
                    (place..place + room).for_each(|word| memory.store(word, u64::MAX));
                } else {
                    let free = memory.len() - 2 - heap.used();
                    prop_assert!(words > 0 || free < BLOCK_MIN);
                }
            }
            for place in given.into_keys() {
                heap.free(&memory, place);
            }
            prop_assert_eq!(heap.used(), 0);
            prop_assert!(heap.alloc(&memory, 1700).is_some());
        }
    }
}
