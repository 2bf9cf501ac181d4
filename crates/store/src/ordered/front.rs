//! Copies of short entries, found by hash: a GET of one takes one cache miss, where the tree takes one for each of its
//! levels.
//!
//! It has a copy of an entry only while the tree has that entry. A writer removes its key here, changes the tree, and
//! stores the new copy, all under the lock of the key's stripe; a reader that had to ask the tree stores what it found
//! under that lock as well. So the tree alone decides what an index holds, and what is not found here is asked of the
//! tree.
//!
//! An entry takes a line: a version, odd while a writer is at work; a tag, with a part of the hash and both lengths, or
//! zero; the key; the value. A key has two buckets of four lines. A new entry takes the first line that is empty, so
//! the last two of the first bucket are seldom needed, and those of the second hardly ever; if none is empty, it
//! overwrites one of the first bucket, by turns.

use std::sync::OnceLock;

use sinew_mem::TableWords;
use sinew_mem::atomic::plain::{AtomicU8, AtomicU64, Ordering};

/// Number of stripes: all keys of a bucket are in one stripe, however many buckets there are.
pub const STRIPES: usize = 64;

/// Words of a line.
const LINE: usize = 8;
/// Lines of a bucket.
const WAYS: usize = 4;
/// Lines in which an entry may be.
const PLACES: usize = 2 * WAYS;
/// Lines of a key that are prefetched, which most entries take.
const PREFETCHED: usize = 2;
/// Words of a line, after the version: the tag, and from `KEY` on the key and the value, each of whole words.
const TAG: usize = 1;
const KEY: usize = 2;
/// Words that key and value share.
const ROOM: usize = LINE - KEY;
/// Lines of the first table.
const LINES_MIN: usize = 1 << 10;
/// Most tables, each of which is twice as large as the one before it.
const TABLES_MAX: usize = 24;
/// Share of a table's lines, in quarters, that entries may take before there is a larger one.
const FULL_QUARTERS: u64 = 3;
/// Most bytes that a table takes for an entry: just after it has grown, three in eight of its lines are taken.
pub const ENTRY_BYTES: usize = LINE * 8 * 8 / 3;

const _: () = assert!(LINES_MIN / WAYS >= STRIPES);

/// The stripe of a key with this hash.
#[inline]
pub fn stripe_of(hash: u64) -> usize {
    hash as usize % STRIPES
}

/// The value of a copy.
pub struct Copied {
    bytes: [u8; ROOM * 8],
    len: usize,
}

impl Copied {
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The copies. [`Self::put`] and [`Self::remove`] are for the holder of the lock of the key's stripe.
pub struct Front {
    tables: [OnceLock<TableWords>; TABLES_MAX],
    /// Index of the table in use.
    current: AtomicU64,
    /// Number of tables that there may be.
    tables_max: usize,
    /// 1 once there was no memory for a larger table.
    is_refused: AtomicU8,
}

/// Bits of a line's tag that hold the length of the value.
const VALUE_LEN: u64 = 0xFF;

/// The tag of a line with an entry, without the length of the value. It is never zero.
#[inline(always)]
fn tag_of(hash: u64, key: &[u8]) -> u64 {
    hash & !0xFFFF | (key.len() as u64 + 1) << 8
}

/// Words of these bytes.
#[inline(always)]
fn words_of(bytes: &[u8]) -> usize {
    bytes.len().div_ceil(8)
}

/// Whether there may be a copy of an entry with this key.
#[inline(always)]
pub fn is_short(key: &[u8]) -> bool {
    words_of(key) <= ROOM
}

/// Whether there may be a copy of an entry with this key and a value of so many bytes.
#[inline(always)]
pub fn is_copied(key: &[u8], value_len: usize) -> bool {
    words_of(key) + value_len.div_ceil(8) <= ROOM
}

impl Front {
    /// A front whose table takes at most `bytes_max` bytes, unless the smallest one takes more.
    pub fn new(bytes_max: u64) -> Self {
        let bytes = |index: usize| ((LINES_MIN * LINE * 8) as u64) << index;
        let tables_max = (1..TABLES_MAX).take_while(|index| bytes(*index) <= bytes_max).count() + 1;
        let front = Self {
            tables: [const { OnceLock::new() }; TABLES_MAX],
            current: AtomicU64::new(0),
            tables_max,
            is_refused: AtomicU8::new(0),
        };
        front.add_table(0);
        front
    }

    /// Adds a table, unless there is no memory for it or another thread has added it. Returns whether it did.
    fn add_table(&self, index: usize) -> bool {
        match TableWords::zeroed((LINES_MIN * LINE) << index) {
            Ok(table) => self.tables[index].set(table).is_ok(),
            Err(_) => {
                self.is_refused.store(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// The table in use; `None` if there was no memory for any.
    #[inline(always)]
    fn table(&self) -> Option<&TableWords> {
        // Acquire: whoever knows of a change that was made to a larger table looks there. Partner: the store in
        // `make_room`.
        self.tables[self.current.load(Ordering::Acquire) as usize].get()
    }

    /// First words of the lines of a key's buckets, which are both in its stripe.
    #[inline(always)]
    fn lines(table: &TableWords, hash: u64) -> [usize; PLACES] {
        let buckets = table.len() / (WAYS * LINE);
        let other = hash.rotate_right(32) as usize / STRIPES * STRIPES + stripe_of(hash);
        std::array::from_fn(|place| {
            let bucket = if place < WAYS { hash as usize } else { other } & (buckets - 1);
            (bucket * WAYS + place % WAYS) * LINE
        })
    }

    /// The line of a key, for a writer.
    fn line_of(table: &TableWords, hash: u64, key: &[u8]) -> Option<usize> {
        let has_key = |line: &usize| {
            table.load(line + TAG) & !VALUE_LEN == tag_of(hash, key) && table.bytes_equal(line + KEY, key)
        };
        Self::lines(table, hash).into_iter().find(has_key)
    }

    /// Prefetches the bucket of a key.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        if let Some(table) = self.table() {
            Self::lines(table, hash)[..PREFETCHED].iter().for_each(|line| table.prefetch_line(*line));
        }
    }

    /// Copy of the value of a [short](is_short) key. `None` says nothing about the index.
    #[inline(always)]
    pub fn get(&self, hash: u64, key: &[u8]) -> Option<Copied> {
        let table = self.table()?;
        let tag = tag_of(hash, key);
        for line in Self::lines(table, hash) {
            if table.load(line + TAG) & !VALUE_LEN != tag {
                continue;
            }
            let stamp = table.stamp(line)?;
            // Again, as what was read before the stamp may be older than it.
            let len = (table.load(line + TAG) & VALUE_LEN) as usize;
            let value = KEY + words_of(key);
            // Both hold unless the line is being written, since the key is short.
            if table.load(line + TAG) & !VALUE_LEN != tag || value + len.div_ceil(8) > LINE {
                return None;
            }
            if !table.bytes_equal(line + KEY, key) {
                continue;
            }
            let mut copied = Copied { bytes: [0; ROOM * 8], len };
            table.read(line + value, &mut copied.bytes[..len]);
            return table.is_unchanged(line, stamp).then_some(copied);
        }
        None
    }

    /// Forgets a key, which is about to change.
    pub fn remove(&self, hash: u64, key: &[u8]) {
        let Some(table) = self.table().filter(|_| is_short(key)) else { return };
        if let Some(line) = Self::line_of(table, hash, key) {
            table.begin_write(line);
            table.store(line + TAG, 0);
            table.end_write(line);
        }
    }

    /// Stores a copy of an entry, if it is short enough.
    pub fn put(&self, hash: u64, key: &[u8], value: &[u8]) {
        let Some(table) = self.table().filter(|_| is_copied(key, value.len())) else { return };
        let lines = Self::lines(table, hash);
        let free = || lines.into_iter().find(|line| table.load(line + TAG) == 0);
        // Each change of a line adds two to its version, so these take turns.
        let next = || lines[(lines[..WAYS].iter().map(|line| table.load(*line)).sum::<u64>() / 2) as usize % WAYS];
        let line = Self::line_of(table, hash, key).or_else(free).unwrap_or_else(next);
        table.begin_write(line);
        table.store(line + TAG, tag_of(hash, key) | value.len() as u64);
        table.write(line + KEY, key);
        table.write(line + KEY + words_of(key), value);
        table.end_write(line);
    }

    /// Adds a larger table, which is empty, if that in use is too small for so many entries and there may be a larger
    /// one. GETs fill it. Returns the outgrown one: its memory may be given back once every writer has ended that holds
    /// the lock of its stripe now.
    pub fn make_room(&self, entries: u64) -> Option<&TableWords> {
        let current = self.current.load(Ordering::Acquire) as usize;
        let table = self.tables[current].get()?;
        let lines = (table.len() / LINE) as u64;
        if 4 * entries <= FULL_QUARTERS * lines || current + 1 == self.tables_max {
            return None;
        }
        // A refusal is not asked for again with each entry.
        if self.is_refused.load(Ordering::Relaxed) == 1 || !self.add_table(current + 1) {
            return None;
        }
        // Release: whoever sees the new index sees the table. Partner: the load in `table`.
        self.current.store(current as u64 + 1, Ordering::Release);
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(front: &Front, hash: u64, key: &[u8]) -> Option<Vec<u8>> {
        front.get(hash, key).map(|copied| copied.bytes().to_vec())
    }

    #[test]
    fn entries_of_up_to_six_words_are_copied_and_longer_ones_are_not() {
        let front = Front::new(0);
        for (key_len, value_len, is_copied) in [
            (0, 0, true),
            (0, 48, true),
            (8, 40, true),
            (9, 32, true),
            (9, 33, false),
            (48, 0, true),
            (48, 1, false),
            (0, 49, false),
        ] {
            let (key, bytes) = (vec![1; key_len], vec![2; value_len]);
            front.put(7, &key, &bytes);
            assert_eq!(value(&front, 7, &key), is_copied.then_some(bytes), "{key_len} {value_len}");
            front.remove(7, &key);
            assert_eq!(value(&front, 7, &key), None, "{key_len} {value_len}");
        }
        let long = [3; 300];
        assert_eq!((value(&front, 7, &long), is_short(&long), is_short(&long[..48])), (None, false, true));
        front.put(7, &long, b"");
        assert_eq!(value(&front, 7, &long), None);
    }

    #[test]
    fn keys_of_one_hash_are_told_apart_and_take_turns_once_their_buckets_are_full() {
        const FULL: u8 = PLACES as u8;
        let front = Front::new(0);
        front.put(5, b"a", b"1");
        front.put(5, b"b", b"2");
        front.put(5, b"b", b"3");
        assert_eq!([value(&front, 5, b"a"), value(&front, 5, b"b")], [Some(b"1".to_vec()), Some(b"3".to_vec())]);
        // Its buckets are 6 and 70.
        let hash = 1 << 38 | 6;
        for number in 0..100 {
            front.put(hash, &[number], &[number]);
            let is_there = |number: &u8| value(&front, hash, &[*number]) == Some(vec![*number]);
            let there: Vec<u8> = (0..=number).filter(is_there).collect();
            // Those of the second bucket stay; the others go in their order.
            let is_kept = |at: &u8| (4..8).contains(at) || number - at < if *at < 4 { FULL } else { WAYS as u8 };
            let expected: Vec<u8> = (0..=number).filter(is_kept).collect();
            assert_eq!(there, expected);
        }
    }

    #[test]
    fn a_table_that_is_too_small_is_followed_by_larger_ones_up_to_the_limit() {
        let bytes = (LINES_MIN * LINE * 8) as u64;
        for (bytes_max, tables) in [(0, 1), (2 * bytes - 1, 1), (2 * bytes, 2), (4 * bytes, 3)] {
            let front = Front::new(bytes_max);
            let mut lines = LINES_MIN as u64;
            for table in 1..=4 {
                assert_eq!(front.table().map(TableWords::len), Some(lines as usize * LINE));
                front.put(1, b"key", b"value");
                assert!(front.make_room(lines * 3 / 4).is_none());
                assert_eq!(value(&front, 1, b"key"), Some(b"value".to_vec()), "there is room");
                let has_grown = table < tables;
                assert_eq!(front.make_room(lines * 3 / 4 + 1).is_some(), has_grown);
                assert_eq!(value(&front, 1, b"key").is_none(), has_grown, "a new table is empty");
                lines <<= u32::from(has_grown);
            }
        }
    }
}
