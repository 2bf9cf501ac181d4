//! A pool of buffers for reuse.

/// Size classes ("lists") grow in steps of an eighth. The shortest buffers have room for 64 bytes.
const SHORTEST: u32 = 6;
const STEP_BITS: u32 = 3;
const LISTS: usize = 128;
/// Lists that [`Pool::take_short`] searches: up to buffers twice as long.
const LISTS_TRIED: u32 = 1 << STEP_BITS;
/// Buffers kept in each list.
const LIST_LEN: usize = 1024;

/// Returns the list of buffers that have at least `len` bytes, and fewer than those of the next list.
fn list_of(len: usize) -> usize {
    let len = len.max(1 << SHORTEST);
    let log = len.ilog2();
    let step = (len >> (log - STEP_BITS)) & ((1 << STEP_BITS) - 1);
    (((log - SHORTEST) as usize) << STEP_BITS | step).min(LISTS - 1)
}

/// Rounds `len` up to the shortest length of a list.
fn rounded_up(len: usize) -> usize {
    let len = len.max(1 << SHORTEST);
    len.next_multiple_of(1 << (len.ilog2() - STEP_BITS))
}

/// Free buffers of one size class.
#[derive(Default)]
struct List {
    buffers: Vec<Vec<u8>>,
    /// Smallest number of free buffers since the last [`Pool::trim`].
    len_min: usize,
}

/// A pool of free buffers, by size class.
pub(super) struct Pool {
    lists: Box<[List]>,
    /// One bit for each list that has buffers.
    filled: u128,
    len_kept: usize,
    kept_max: usize,
}

impl Pool {
    /// Makes a pool that keeps up to `kept_max` bytes.
    pub fn new(kept_max: usize) -> Self {
        Self { lists: (0..LISTS).map(|_| List::default()).collect(), filled: 0, len_kept: 0, kept_max }
    }

    /// Bytes of free buffers.
    pub fn len_kept(&self) -> usize {
        self.len_kept
    }

    /// Takes an empty buffer with room for at least `len` bytes, for data that will grow: the longest there is.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let fitting = self.fitting(len);
        self.take_from((fitting != 0).then(|| u128::BITS - 1 - fitting.leading_zeros()), len)
    }

    /// Takes an empty buffer with room for `len` bytes and at most about twice that, since it will be held for a while.
    pub fn take_short(&mut self, len: usize) -> Vec<u8> {
        let fitting = self.fitting(len);
        let first = list_of(rounded_up(len)) as u32;
        let list = fitting.trailing_zeros();
        self.take_from((fitting != 0 && list < first + LISTS_TRIED).then_some(list), len)
    }

    /// The lists whose buffers have room for `len`, except for the last, whose buffers may be of any length.
    fn fitting(&self, len: usize) -> u128 {
        let first = list_of(rounded_up(len));
        self.filled & (u128::MAX << first) & !(1 << (LISTS - 1))
    }

    fn take_from(&mut self, list: Option<u32>, len: usize) -> Vec<u8> {
        let Some(list) = list.map(|list| list as usize) else { return Vec::with_capacity(rounded_up(len)) };
        let List { buffers, len_min } = &mut self.lists[list];
        let buffer = buffers.pop().unwrap_or_default();
        *len_min = (*len_min).min(buffers.len());
        if buffers.is_empty() {
            self.filled &= !(1 << list);
        }
        self.len_kept -= buffer.capacity();
        buffer
    }

    /// Gives a buffer back to the pool, which keeps it if there is room.
    pub fn put_back(&mut self, mut buffer: Vec<u8>) {
        let len = buffer.capacity();
        let list = list_of(len);
        if len < 1 << SHORTEST || list == LISTS - 1 || self.len_kept + len > self.kept_max {
            return;
        }
        let buffers = &mut self.lists[list].buffers;
        if buffers.len() < LIST_LEN {
            buffer.clear();
            self.len_kept += len;
            self.filled |= 1 << list;
            buffers.push(buffer);
        }
    }

    /// Frees all buffers in the pool.
    pub fn clear(&mut self) {
        *self = Self::new(self.kept_max);
    }

    /// Frees the buffers that have not been needed since the last call.
    pub fn trim(&mut self) {
        for (list, List { buffers, len_min }) in self.lists.iter_mut().enumerate() {
            for buffer in buffers.drain(..(*len_min).min(buffers.len())) {
                self.len_kept -= buffer.capacity();
            }
            *len_min = buffers.len();
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
            pool.put_back(buffer);
            let again = pool.take(len);
            assert_eq!((again.as_ptr(), again.capacity(), pool.len_kept()), (at, capacity, 0));
        }
        let long = pool.take(2000);
        pool.put_back(long);
        assert_eq!((pool.take_short(20).capacity(), pool.len_kept()), (64, 2048));
        assert_eq!((pool.take(20).capacity(), pool.len_kept()), (2048, 0));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut pool = Pool::new(KEPT_MAX);
        (0..100).for_each(|_| pool.put_back(Vec::with_capacity(1 << 20)));
        assert_eq!(pool.len_kept(), KEPT_MAX);
        (0..2000).for_each(|_| pool.put_back(Vec::new()));
        assert_eq!(pool.len_kept(), KEPT_MAX);
    }

    #[test]
    fn what_nobody_wants_for_a_while_is_freed() {
        let mut pool = Pool::new(KEPT_MAX);
        (0..4).for_each(|_| pool.put_back(Vec::with_capacity(1 << 20)));
        pool.trim();
        assert_eq!(pool.len_kept(), 4 << 20);
        let used = [pool.take(1 << 20), pool.take(1 << 20)];
        used.into_iter().for_each(|buffer| pool.put_back(buffer));
        pool.trim();
        assert_eq!(pool.len_kept(), 2 << 20);
        pool.trim();
        assert_eq!((pool.len_kept(), pool.filled), (0, 0));
    }
}
