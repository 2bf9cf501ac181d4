//! Buffers that were used, and will be again.

/// Buffers are listed by their size, in steps of an eighth. The shortest have room for 64 bytes.
const SHORTEST: u32 = 6;
const STEP_BITS: u32 = 3;
const LISTS: usize = 128;
/// Lists in which a buffer is looked for that is to be kept for a while: up to twice as long.
const LISTS_TRIED: u32 = 1 << STEP_BITS;
/// Buffers of each list that are kept.
const LIST_LEN: usize = 1024;

/// The list of buffers that have at least `len` bytes, and fewer than those of the next one.
fn list_of(len: usize) -> usize {
    let len = len.max(1 << SHORTEST);
    let log = len.ilog2();
    let step = (len >> (log - STEP_BITS)) & ((1 << STEP_BITS) - 1);
    (((log - SHORTEST) as usize) << STEP_BITS | step).min(LISTS - 1)
}

/// `len`, or a little more: the shortest of a list.
fn rounded_up(len: usize) -> usize {
    let len = len.max(1 << SHORTEST);
    len.next_multiple_of(1 << (len.ilog2() - STEP_BITS))
}

/// Buffers of one size that nobody has.
#[derive(Default)]
struct List {
    buffers: Vec<Vec<u8>>,
    /// The fewest there were lately.
    fewest: usize,
}

/// See the module.
pub(super) struct Pool {
    lists: Box<[List]>,
    /// A bit for each list that has buffers.
    filled: u128,
    kept: usize,
    kept_max: usize,
}

impl Pool {
    /// Keeps up to so many bytes.
    pub fn new(kept_max: usize) -> Self {
        Self { lists: (0..LISTS).map(|_| List::default()).collect(), filled: 0, kept: 0, kept_max }
    }

    /// Bytes of buffers that nobody has.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// An empty buffer with room for `len` bytes, which will be more: one of the longest there are.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let fitting = self.fitting(len);
        self.taken((fitting != 0).then(|| u128::BITS - 1 - fitting.leading_zeros()), len)
    }

    /// An empty buffer with room for `len` bytes, and not very many more: it is to be kept for a while.
    pub fn take_short(&mut self, len: usize) -> Vec<u8> {
        let fitting = self.fitting(len);
        let first = list_of(rounded_up(len)) as u32;
        let list = fitting.trailing_zeros();
        self.taken((fitting != 0 && list < first + LISTS_TRIED).then_some(list), len)
    }

    /// The lists whose buffers have room for `len`. The last one's may be of any length, and are for nobody.
    fn fitting(&self, len: usize) -> u128 {
        let first = list_of(rounded_up(len));
        self.filled & (u128::MAX << first) & !(1 << (LISTS - 1))
    }

    fn taken(&mut self, list: Option<u32>, len: usize) -> Vec<u8> {
        let Some(list) = list.map(|list| list as usize) else { return Vec::with_capacity(rounded_up(len)) };
        let List { buffers, fewest } = &mut self.lists[list];
        let buffer = buffers.pop().unwrap_or_default();
        *fewest = (*fewest).min(buffers.len());
        if buffers.is_empty() {
            self.filled &= !(1 << list);
        }
        self.kept -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer that nobody needs any more, if there is room for it.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let len = buffer.capacity();
        let list = list_of(len);
        if len < 1 << SHORTEST || list == LISTS - 1 || self.kept + len > self.kept_max {
            return;
        }
        let buffers = &mut self.lists[list].buffers;
        if buffers.len() < LIST_LEN {
            buffer.clear();
            self.kept += len;
            self.filled |= 1 << list;
            buffers.push(buffer);
        }
    }

    /// Frees all that it keeps.
    pub fn clear(&mut self) {
        *self = Self::new(self.kept_max);
    }

    /// Frees the buffers that nobody has wanted since it was called last.
    pub fn trim(&mut self) {
        for (list, List { buffers, fewest }) in self.lists.iter_mut().enumerate() {
            for buffer in buffers.drain(..(*fewest).min(buffers.len())) {
                self.kept -= buffer.capacity();
            }
            *fewest = buffers.len();
            if buffers.is_empty() {
                self.filled &= !(1 << list);
                buffers.shrink_to_fit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT_MAX: usize = 32 << 20;

    #[test]
    fn a_buffer_that_was_given_is_taken_again_where_it_suffices() {
        let mut pool = Pool::new(KEPT_MAX);
        for len in [0, 1, 64, 65, 1000, 4096, 1 << 20, (1 << 20) + 1, 1_000_040] {
            let buffer = pool.take(len);
            let (at, capacity) = (buffer.as_ptr(), buffer.capacity());
            assert!(capacity >= len.max(64) && capacity <= (len + len / 8).max(64), "{len}: {capacity}");
            pool.give(buffer);
            let again = pool.take(len);
            assert_eq!((again.as_ptr(), again.capacity(), pool.kept()), (at, capacity, 0));
        }
        let long = pool.take(2000);
        pool.give(long);
        assert_eq!((pool.take_short(20).capacity(), pool.kept()), (64, 2048));
        assert_eq!((pool.take(20).capacity(), pool.kept()), (2048, 0));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut pool = Pool::new(KEPT_MAX);
        (0..100).for_each(|_| pool.give(Vec::with_capacity(1 << 20)));
        assert_eq!(pool.kept(), KEPT_MAX);
        (0..2000).for_each(|_| pool.give(Vec::new()));
        assert_eq!(pool.kept(), KEPT_MAX);
    }

    #[test]
    fn what_nobody_wants_for_a_while_is_freed() {
        let mut pool = Pool::new(KEPT_MAX);
        (0..4).for_each(|_| pool.give(Vec::with_capacity(1 << 20)));
        pool.trim();
        assert_eq!(pool.kept(), 4 << 20);
        let used = [pool.take(1 << 20), pool.take(1 << 20)];
        used.into_iter().for_each(|buffer| pool.give(buffer));
        pool.trim();
        assert_eq!(pool.kept(), 2 << 20);
        pool.trim();
        assert_eq!((pool.kept(), pool.filled), (0, 0));
    }
}
