//! How an item lies in memory.
//!
//! Two words of header, one more when the item has flags or expires, the key and the value; key and value begin at words of
//! their own. A key of 16 bytes with a value of 32 is one cache line.

use sinew_mem::Words;

/// Longest value of any table, in bytes: what its field holds.
pub const VALUE_LEN_LIMIT: usize = (1 << VALUE_BITS) - 1;

const VALUE_BITS: u32 = 28;
const KEY_BITS: u32 = 16;
/// Of the room, whose upper bits stand in the version's word.
const ROOM_LOW_BITS: u32 = 19;
const EXTRAS: u64 = 1 << 63;

const HEADER_WORDS: usize = 2;
/// The version's word has the upper bits of the room above it, and above those the marks.
const VERSION_BITS: u32 = 64 - ROOM_HIGH_BITS - MARK_BITS;
const ROOM_HIGH_BITS: u32 = 8;
const MARK_BITS: u32 = 4;

const _: () = assert!(VALUE_BITS + KEY_BITS + ROOM_LOW_BITS == 63);

/// What is said of an item beside its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// The client's own number.
    pub flags: u32,
    /// When it ends, in seconds of the clock that is handed in; never when 0.
    pub expires_s: u32,
}

/// The header of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where it lies.
    pub at: usize,
    pub key_len: usize,
    pub value_len: usize,
    /// Words that it may take: more than it does when a longer value was there.
    pub room: usize,
    pub has_extras: bool,
    pub version: u64,
    /// Bits of the owner's own.
    pub marks: u8,
}

impl Entry {
    /// Words of an item of such lengths.
    #[inline(always)]
    pub fn words(key_len: usize, value_len: usize, has_extras: bool) -> usize {
        HEADER_WORDS + usize::from(has_extras) + key_len.div_ceil(8) + value_len.div_ceil(8)
    }

    #[inline(always)]
    fn key_at(&self) -> usize {
        self.at + HEADER_WORDS + usize::from(self.has_extras)
    }

    #[inline(always)]
    fn value_at(&self) -> usize {
        self.key_at() + self.key_len.div_ceil(8)
    }

    /// The item at `at`, if what stands there can be one. A reader may find anything, if the writer is at work there.
    #[inline(always)]
    pub fn load(body: &Words, at: usize) -> Option<Self> {
        if at + HEADER_WORDS > body.len() {
            return None;
        }
        let [shape, stamp] = body.load_some(at);
        let field = |word: u64, from: u32, bits: u32| (word >> from) as usize & ((1 << bits) - 1);
        let room_high = field(stamp, VERSION_BITS, ROOM_HIGH_BITS);
        let entry = Self {
            at,
            key_len: field(shape, VALUE_BITS, KEY_BITS),
            value_len: field(shape, 0, VALUE_BITS),
            room: room_high << ROOM_LOW_BITS | field(shape, VALUE_BITS + KEY_BITS, ROOM_LOW_BITS),
            has_extras: shape & EXTRAS != 0,
            version: stamp & ((1 << VERSION_BITS) - 1),
            marks: (stamp >> (64 - MARK_BITS)) as u8,
        };
        let end = at + Self::words(entry.key_len, entry.value_len, entry.has_extras);
        (end <= body.len()).then_some(entry)
    }

    /// Writes header and extras; the key and the value are written by [`Entry::store_key`] and [`Entry::store_value`].
    #[inline(always)]
    pub fn store(&self, body: &Words, extras: Extras) {
        let shape = self.value_len as u64
            | (self.key_len as u64) << VALUE_BITS
            | (self.room as u64 & ((1 << ROOM_LOW_BITS) - 1)) << (VALUE_BITS + KEY_BITS)
            | if self.has_extras { EXTRAS } else { 0 };
        body.store(self.at, shape);
        self.store_marks(body, self.marks);
        if self.has_extras {
            self.store_extras(body, extras);
        }
    }

    /// Writes the marks anew, up to four of them.
    #[inline(always)]
    pub fn store_marks(&self, body: &Words, marks: u8) {
        let room_high = self.room as u64 >> ROOM_LOW_BITS;
        body.store(self.at + 1, u64::from(marks) << (64 - MARK_BITS) | room_high << VERSION_BITS | self.version);
    }

    /// Of an entry that has extras.
    #[inline(always)]
    pub fn store_extras(&self, body: &Words, extras: Extras) {
        body.store(self.at + 2, u64::from(extras.flags) << 32 | u64::from(extras.expires_s));
    }

    #[inline(always)]
    pub fn store_key(&self, body: &Words, key: &[u8]) {
        body.write(self.key_at(), key);
    }

    #[inline(always)]
    pub fn store_value(&self, body: &Words, value: &[u8]) {
        body.write(self.value_at(), value);
    }

    #[inline(always)]
    pub fn extras(&self, body: &Words) -> Extras {
        if !self.has_extras {
            return Extras::default();
        }
        let word = body.load(self.at + 2);
        Extras { flags: (word >> 32) as u32, expires_s: word as u32 }
    }

    #[inline(always)]
    pub fn has_key(&self, body: &Words, key: &[u8]) -> bool {
        self.key_len == key.len() && body.holds(self.key_at(), key)
    }

    /// Copies the key out to `target`, in place of what is there.
    pub fn read_key(&self, body: &Words, target: &mut Vec<u8>) {
        target.resize(self.key_len, 0);
        body.read(self.key_at(), target);
    }

    /// Copies the value out to `target`, which is as long.
    #[inline(always)]
    pub fn read_value(&self, body: &Words, target: &mut [u8]) {
        body.read(self.value_at(), target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_as_they_went_in() {
        let body = Words::zeroed(64).unwrap();
        for (key_len, value_len, has_extras) in [(0, 0, false), (1, 0, true), (16, 32, false), (250, 100, true)] {
            let key: Vec<u8> = (1..=key_len as u8).collect();
            let value: Vec<u8> = (0..value_len as u8).rev().collect();
            let words = Entry::words(key_len, value_len, has_extras);
            let entry =
                Entry { at: 3, key_len, value_len, room: words + 5, has_extras, version: (1 << 52) - 2, marks: 9 };
            let extras = if has_extras { Extras { flags: u32::MAX, expires_s: 7 } } else { Extras::default() };
            entry.store(&body, extras);
            entry.store_key(&body, &key);
            entry.store_value(&body, &value);
            let read = Entry::load(&body, 3).unwrap();
            assert_eq!(read, entry);
            assert_eq!(read.extras(&body), extras);
            let mut value_out = vec![0; value_len];
            read.read_value(&body, &mut value_out);
            assert_eq!(value_out, value);
            assert!(read.has_key(&body, &key) && !read.has_key(&body, &[&key[..], b"x"].concat()));
        }
        assert_eq!(Entry::words(16, 32, false), 8);
    }

    #[test]
    fn the_largest_lengths_fit_their_fields() {
        let entry =
            |value_len, room| Entry { at: 0, key_len: 0xFFFF, value_len, room, has_extras: true, version: 1, marks: 0 };
        let body = Words::zeroed(Entry::words(0xFFFF, super::super::VALUE_LEN_MAX, true)).unwrap();
        // The room of the longest item of a table is no more than its field holds.
        let largest = entry(super::super::VALUE_LEN_MAX, Entry::words(0xFFFF, super::super::VALUE_LEN_MAX, true));
        largest.store(&body, Extras::default());
        assert_eq!(Entry::load(&body, 0), Some(largest));
    }

    #[test]
    fn nothing_is_an_item_that_does_not_lie_in_memory() {
        let body = Words::zeroed(8).unwrap();
        assert!(Entry::load(&body, 6).is_some() && Entry::load(&body, 7).is_none());
        body.store(0, u64::MAX);
        assert_eq!(Entry::load(&body, 0), None);
        body.store(0, 6 * 8 + 1);
        assert_eq!(Entry::load(&body, 0), None);
        body.store(0, 6 * 8);
        assert!(Entry::load(&body, 0).is_some());
    }
}
