//! The layout of an item in memory.
//!
//! Two words of header, one more if the item has flags or expires, the key and the value; key and value begin at words
//! of their own. A key of 16 bytes with a value of 32 takes one cache line.

use sinew_mem::TableWords;

/// Longest value that the length field can hold, in bytes.
pub const VALUE_LEN_LIMIT: usize = (1 << VALUE_BITS) - 1;

const VALUE_BITS: u32 = 28;
const KEY_BITS: u32 = 16;
/// Lower bits of the room; its upper bits are in the version's word.
const ROOM_LOW_BITS: u32 = 19;
const ROOM_LOW: u64 = (1 << ROOM_LOW_BITS) - 1;
const EXTRAS: u64 = 1 << 63;

const HEADER_WORDS: usize = 2;
/// Bits of the version. Above them, the word has the upper bits of the room, then whether the item was read, and then
/// the marks.
const VERSION_BITS: u32 = 64 - ROOM_HIGH_BITS - 1 - MARK_BITS;
const WAS_READ_BIT: u32 = VERSION_BITS + ROOM_HIGH_BITS;
const WAS_READ: u64 = 1 << WAS_READ_BIT;
const ROOM_HIGH_BITS: u32 = 8;
const MARK_BITS: u32 = 4;

const _: () = assert!(VALUE_BITS + KEY_BITS + ROOM_LOW_BITS == 63);

/// Flags and expiry of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// A number of the client's own.
    pub flags: u32,
    /// Time of expiry, in seconds of the clock passed in; 0 means never.
    pub expires_s: u32,
}

/// Everything about an item besides its key and value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ItemMeta {
    pub extras: Extras,
    pub marks: u8,
    pub version: u64,
}

impl ItemMeta {
    #[inline(always)]
    pub fn has_extras(&self) -> bool {
        self.extras != Extras::default()
    }
}

/// The header of an item, kept as it lies in memory and decoded field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset of the item, in words.
    pub offset: usize,
    /// Lengths, the lower bits of the room, and whether there are extras.
    shape: u64,
    /// Version, the upper bits of the room, whether it was read, and marks.
    stamp: u64,
}

impl Entry {
    /// Words that an item with these lengths takes.
    #[inline(always)]
    pub fn words(key_len: usize, value_len: usize, has_extras: bool) -> usize {
        HEADER_WORDS + usize::from(has_extras) + key_len.div_ceil(8) + value_len.div_ceil(8)
    }

    /// Makes the header of a new item at `offset`, with `room` words for it.
    #[inline(always)]
    pub fn new(at: usize, room: usize, key_len: usize, value_len: usize, meta: &ItemMeta) -> Self {
        let shape = value_len as u64
            | (key_len as u64) << VALUE_BITS
            | (room as u64 & ROOM_LOW) << (VALUE_BITS + KEY_BITS)
            | if meta.has_extras() { EXTRAS } else { 0 };
        let room_high = room as u64 >> ROOM_LOW_BITS;
        let stamp = u64::from(meta.marks) << (64 - MARK_BITS) | room_high << VERSION_BITS | meta.version;
        Self { offset: at, shape, stamp }
    }

    /// Makes the header of a new item in the place of this one, with the same key. It has extras exactly if this one
    /// does.
    #[inline(always)]
    pub fn with_value(&self, value_len: usize, meta: &ItemMeta) -> Self {
        let shape = self.shape & !(VALUE_LEN_LIMIT as u64) | value_len as u64;
        let room_high = self.stamp & (((1 << ROOM_HIGH_BITS) - 1) << VERSION_BITS);
        let stamp = u64::from(meta.marks) << (64 - MARK_BITS) | room_high | meta.version;
        Self { offset: self.offset, shape, stamp }
    }

    /// Loads the header of the item at `offset`; `None` if that is outside the memory. While the writer is at work, a
    /// reader may find anything there: see [`Entry::lies_in`].
    #[inline(always)]
    pub fn load(body: &TableWords, offset: usize) -> Option<Self> {
        let [shape, stamp] = body.get_array(offset)?;
        Some(Self { offset, shape, stamp })
    }

    #[inline(always)]
    pub fn key_len(&self) -> usize {
        (self.shape >> VALUE_BITS) as usize & ((1 << KEY_BITS) - 1)
    }

    #[inline(always)]
    pub fn value_len(&self) -> usize {
        self.shape as usize & VALUE_LEN_LIMIT
    }

    /// Words reserved for the item; more than it takes if a longer value was there before.
    #[inline(always)]
    pub fn room(&self) -> usize {
        let low = self.shape >> (VALUE_BITS + KEY_BITS) & ROOM_LOW;
        let high = self.stamp >> VERSION_BITS & ((1 << ROOM_HIGH_BITS) - 1);
        (high << ROOM_LOW_BITS | low) as usize
    }

    #[inline(always)]
    pub fn has_extras(&self) -> bool {
        self.shape & EXTRAS != 0
    }

    #[inline(always)]
    pub fn version(&self) -> u64 {
        self.stamp & ((1 << VERSION_BITS) - 1)
    }

    /// Bits for the use of the table's owner.
    #[inline(always)]
    pub fn marks(&self) -> u8 {
        (self.stamp >> (64 - MARK_BITS)) as u8
    }

    /// Whether [a read was noted](Entry::note_read) since the item was stored or [moved](Entry::move_to).
    #[inline(always)]
    pub fn was_read(&self) -> bool {
        self.stamp & WAS_READ != 0
    }

    /// Records that the item was read, if that `counts` and is not recorded yet. There is no branch on `counts`, which
    /// cannot be predicted.
    #[inline(always)]
    pub fn note_read(&mut self, body: &TableWords, counts: bool) {
        let stamp = self.stamp | u64::from(counts) << WAS_READ_BIT;
        if stamp != self.stamp {
            self.stamp = stamp;
            body.store(self.offset + 1, stamp);
        }
    }

    /// Writes the item at another offset, marked as not read. The two places may overlap if the new one is lower.
    pub fn move_to(&self, body: &TableWords, offset: usize) {
        /// Words moved at a time.
        const STEP: usize = 4;
        let moved = Self { offset, stamp: self.stamp & !WAS_READ, ..*self };
        moved.store_header(body);
        let room = self.room();
        let mut at = HEADER_WORDS;
        while at + STEP <= room {
            body.store_array(offset + at, body.load_array::<STEP>(self.offset + at));
            at += STEP;
        }
        for at in at..room {
            body.store(offset + at, body.load(self.offset + at));
        }
    }

    /// Whether the whole item lies within the memory.
    #[inline(always)]
    pub fn lies_in(&self, body: &TableWords) -> bool {
        self.offset + Self::words(self.key_len(), self.value_len(), self.has_extras()) <= body.len()
    }

    #[inline(always)]
    fn key_offset(&self) -> usize {
        self.offset + HEADER_WORDS + usize::from(self.has_extras())
    }

    #[inline(always)]
    pub fn value_offset(&self) -> usize {
        self.key_offset() + self.key_len().div_ceil(8)
    }

    /// Writes only the header.
    #[inline(always)]
    pub fn store_header(&self, body: &TableWords) {
        body.store_array(self.offset, [self.shape, self.stamp]);
    }

    /// Writes header and extras. Key and value are written by [`Entry::store_key`] and [`Entry::store_value`].
    #[inline(always)]
    pub fn store(&self, body: &TableWords, extras: Extras) {
        self.store_header(body);
        if self.has_extras() {
            self.store_extras(body, extras);
        }
    }

    /// Replaces the marks, which are the lower four bits of `marks`.
    #[inline(always)]
    pub fn store_marks(&self, body: &TableWords, marks: u8) {
        let rest = self.stamp & ((1 << (64 - MARK_BITS)) - 1);
        body.store(self.offset + 1, u64::from(marks) << (64 - MARK_BITS) | rest);
    }

    /// Writes the extras; the item must have some.
    #[inline(always)]
    pub fn store_extras(&self, body: &TableWords, extras: Extras) {
        body.store(self.offset + 2, u64::from(extras.flags) << 32 | u64::from(extras.expires_s));
    }

    #[inline(always)]
    pub fn store_key(&self, body: &TableWords, key: &[u8]) {
        body.write(self.key_offset(), key);
    }

    #[inline(always)]
    pub fn store_value(&self, body: &TableWords, value: &[u8]) {
        body.write(self.value_offset(), value);
    }

    #[inline(always)]
    pub fn extras(&self, body: &TableWords) -> Extras {
        if !self.has_extras() {
            return Extras::default();
        }
        let word = body.load(self.offset + 2);
        Extras { flags: (word >> 32) as u32, expires_s: word as u32 }
    }

    #[inline(always)]
    pub fn has_key(&self, body: &TableWords, key: &[u8]) -> bool {
        self.key_len() == key.len() && body.bytes_equal(self.key_offset(), key)
    }

    /// Copies the key to `target`, replacing its contents.
    pub fn read_key(&self, body: &TableWords, target: &mut Vec<u8>) {
        target.resize(self.key_len(), 0);
        body.read(self.key_offset(), target);
    }

    /// Copies the value to `target`, which must have its length.
    #[inline(always)]
    pub fn read_value(&self, body: &TableWords, target: &mut [u8]) {
        body.read(self.value_offset(), target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_as_they_went_in() {
        let body = TableWords::zeroed(64).unwrap();
        for (key_len, value_len, has_extras) in [(0, 0, false), (1, 0, true), (16, 32, false), (250, 100, true)] {
            let key: Vec<u8> = (1..=key_len as u8).collect();
            let value: Vec<u8> = (0..value_len as u8).rev().collect();
            let words = Entry::words(key_len, value_len, has_extras);
            let extras = if has_extras { Extras { flags: u32::MAX, expires_s: 7 } } else { Extras::default() };
            let about = ItemMeta { extras, marks: 9, version: (1 << 51) - 2 };
            let entry = Entry::new(3, words + 5, key_len, value_len, &about);
            assert_eq!((entry.key_len(), entry.value_len(), entry.room()), (key_len, value_len, words + 5));
            assert_eq!((entry.has_extras(), entry.version(), entry.marks()), (has_extras, about.version, 9));
            entry.store(&body, extras);
            entry.store_key(&body, &key);
            entry.store_value(&body, &value);
            let read = Entry::load(&body, 3).unwrap();
            assert_eq!(read, entry);
            assert_eq!(read.extras(&body), extras);
            let mut noted = entry;
            noted.note_read(&body, true);
            let read = Entry::load(&body, 3).unwrap();
            assert!(!entry.was_read() && read.was_read() && read == noted);
            assert_eq!((read.version(), read.marks(), read.room()), (about.version, 9, words + 5));
            let mut value_out = vec![0; value_len];
            read.read_value(&body, &mut value_out);
            assert_eq!(value_out, value);
            assert!(read.has_key(&body, &key) && !read.has_key(&body, &[&key[..], b"x"].concat()));
        }
        assert_eq!(Entry::words(16, 32, false), 8);
    }

    #[test]
    fn an_item_moves_whole_also_to_a_place_that_it_overlaps() {
        let body = TableWords::zeroed(128).unwrap();
        for (value_len, down) in (0..100).flat_map(|len| [0, 1, 3, 4, 20].map(|down| (len, down))) {
            let (key, value) = ([7; 9], (0..value_len as u8).collect::<Vec<_>>());
            let about = ItemMeta { extras: Extras { flags: 5, expires_s: 6 }, marks: 9, version: 3 };
            let entry = Entry::new(50, Entry::words(9, value_len, true) + 1, 9, value_len, &about);
            entry.store(&body, about.extras);
            entry.store_key(&body, &key);
            entry.store_value(&body, &value);
            let mut noted = entry;
            noted.note_read(&body, true);
            let before = body.load(49 - down);
            noted.move_to(&body, 50 - down);
            let moved = Entry::load(&body, 50 - down).unwrap();
            assert_eq!(moved, Entry { offset: 50 - down, ..entry });
            let mut value_out = vec![0; value_len];
            moved.read_value(&body, &mut value_out);
            assert!(moved.has_key(&body, &key) && value_out == value && moved.extras(&body) == about.extras);
            assert_eq!(body.load(49 - down), before);
        }
    }

    #[test]
    fn the_largest_lengths_fit_their_fields() {
        let body = TableWords::zeroed(Entry::words(0xFFFF, super::super::VALUE_LEN_MAX, true)).unwrap();
        // The room of the longest item of any table fits its field.
        let about = ItemMeta { extras: Extras { flags: 1, expires_s: 0 }, marks: 0, version: 1 };
        let largest = Entry::new(0, body.len(), 0xFFFF, super::super::VALUE_LEN_MAX, &about);
        largest.store(&body, about.extras);
        assert_eq!(Entry::load(&body, 0), Some(largest));
        assert_eq!((largest.value_len(), largest.room()), (super::super::VALUE_LEN_MAX, body.len()));
    }

    #[test]
    fn nothing_is_an_item_that_does_not_lie_in_memory() {
        let body = TableWords::zeroed(8).unwrap();
        assert!(Entry::load(&body, 6).is_some() && Entry::load(&body, 7).is_none());
        let lies = |shape| {
            body.store(0, shape);
            Entry::load(&body, 0).is_some_and(|entry| entry.lies_in(&body))
        };
        assert!(!lies(u64::MAX) && !lies(6 * 8 + 1) && lies(6 * 8));
        // Likewise a key that does not lie in the memory.
        body.store(0, 56 << VALUE_BITS);
        assert!(!Entry::load(&body, 0).unwrap().has_key(&body, &[0; 56]));
    }
}
