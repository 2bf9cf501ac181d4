//! Buffers that were used, and will be again.

/// Bytes that are kept.
const KEPT_MAX: usize = 32 << 20;
/// Buffers are listed by the power of two of their size. The shortest have room for 64 bytes; all that are longer than 8 MB are
/// alike.
const SHORTEST: u32 = 6;
const LISTS: usize = 18;
/// Lists in which short buffers are looked for.
const LISTS_TRIED: usize = 4;
/// Buffers of each list that are kept.
const LIST_LEN: usize = 1024;

/// The first list whose buffers have room for `len` bytes.
fn list_for(len: usize) -> usize {
    let bits = len.max(1).next_power_of_two().ilog2();
    (bits.saturating_sub(SHORTEST) as usize).min(LISTS - 1)
}

#[derive(Default)]
pub(super) struct Pool {
    lists: [Vec<Vec<u8>>; LISTS],
    kept: usize,
}

impl Pool {
    /// An empty buffer with room for `len` bytes, which will be more: one of the longest there are.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let found = self.lists[list_for(len)..].iter_mut().rev().find_map(Vec::pop);
        self.taken(found, len)
    }

    /// An empty buffer with room for `len` bytes, and not very many more: it is to be kept for a while.
    pub fn take_short(&mut self, len: usize) -> Vec<u8> {
        let first = list_for(len);
        let found = self.lists[first..LISTS.min(first + LISTS_TRIED)].iter_mut().find_map(Vec::pop);
        self.taken(found, len)
    }

    fn taken(&mut self, found: Option<Vec<u8>>, len: usize) -> Vec<u8> {
        let Some(buffer) = found else { return Vec::with_capacity(len.next_power_of_two().max(1 << SHORTEST)) };
        self.kept -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer that nobody needs any more, if there is room for it.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let len = buffer.capacity();
        if len < 1 << SHORTEST || self.kept + len > KEPT_MAX {
            return;
        }
        let list = &mut self.lists[((len.ilog2() - SHORTEST) as usize).min(LISTS - 1)];
        if list.len() < LIST_LEN {
            buffer.clear();
            self.kept += len;
            list.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_was_given_is_taken_again_where_it_suffices() {
        let mut pool = Pool::default();
        for len in [0, 1, 64, 65, 1000, 4096, 1 << 20, (1 << 20) + 1] {
            let buffer = pool.take(len);
            let (at, capacity) = (buffer.as_ptr(), buffer.capacity());
            assert!(capacity >= len.max(64));
            pool.give(buffer);
            let again = pool.take(len);
            assert_eq!((again.as_ptr(), again.capacity(), pool.kept), (at, capacity, 0));
        }
        let long = pool.take(2000);
        pool.give(long);
        assert_eq!((pool.take_short(20).capacity(), pool.kept), (64, 2048));
        assert_eq!((pool.take(20).capacity(), pool.kept), (2048, 0));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut pool = Pool::default();
        (0..100).for_each(|_| pool.give(Vec::with_capacity(1 << 20)));
        assert_eq!(pool.kept, KEPT_MAX);
        (0..2000).for_each(|_| pool.give(Vec::new()));
        assert_eq!(pool.kept, KEPT_MAX);
    }
}
