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
const ROOM_LOW: u64 = (1 << ROOM_LOW_BITS) - 1;
const EXTRAS: u64 = 1 << 63;

const HEADER_WORDS: usize = 2;
/// The version's word has the upper bits of the room above it, above those whether it was read, and then the marks.
const VERSION_BITS: u32 = 64 - ROOM_HIGH_BITS - 1 - MARK_BITS;
const WAS_READ: u64 = 1 << (VERSION_BITS + ROOM_HIGH_BITS);
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

/// What is said of an item that is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct About {
    pub extras: Extras,
    pub marks: u8,
    pub version: u64,
}

impl About {
    #[inline(always)]
    pub fn has_extras(&self) -> bool {
        self.extras != Extras::default()
    }
}

/// The header of an item, as it lies in memory: whoever wants a field of it has it decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where it lies.
    pub at: usize,
    /// Lengths, the lower bits of the room, and whether there are extras.
    shape: u64,
    /// Version, the upper bits of the room, whether it was read, and marks.
    stamp: u64,
}

impl Entry {
    /// Words of an item of such lengths.
    #[inline(always)]
    pub fn words(key_len: usize, value_len: usize, has_extras: bool) -> usize {
        HEADER_WORDS + usize::from(has_extras) + key_len.div_ceil(8) + value_len.div_ceil(8)
    }

    /// A new item at `at`, with `room` for it.
    #[inline(always)]
    pub fn new(at: usize, room: usize, key_len: usize, value_len: usize, about: &About) -> Self {
        let shape = value_len as u64
            | (key_len as u64) << VALUE_BITS
            | (room as u64 & ROOM_LOW) << (VALUE_BITS + KEY_BITS)
            | if about.has_extras() { EXTRAS } else { 0 };
        let room_high = room as u64 >> ROOM_LOW_BITS;
        let stamp = u64::from(about.marks) << (64 - MARK_BITS) | room_high << VERSION_BITS | about.version;
        Self { at, shape, stamp }
    }

    /// A new item in the place of this one, of the same key, and with extras as this one if it has any.
    #[inline(always)]
    pub fn replaced(&self, value_len: usize, about: &About) -> Self {
        let shape = self.shape & !(VALUE_LEN_LIMIT as u64) | value_len as u64;
        let room_high = self.stamp & (((1 << ROOM_HIGH_BITS) - 1) << VERSION_BITS);
        let stamp = u64::from(about.marks) << (64 - MARK_BITS) | room_high | about.version;
        Self { at: self.at, shape, stamp }
    }

    /// What the header of the item at `at` says, if it lies in the memory. A reader may find anything there while the writer is at work:
    /// see [`Entry::lies_in`].
    #[inline(always)]
    pub fn load(body: &Words, at: usize) -> Option<Self> {
        let [shape, stamp] = body.get_some(at)?;
        Some(Self { at, shape, stamp })
    }

    #[inline(always)]
    pub fn key_len(&self) -> usize {
        (self.shape >> VALUE_BITS) as usize & ((1 << KEY_BITS) - 1)
    }

    #[inline(always)]
    pub fn value_len(&self) -> usize {
        self.shape as usize & VALUE_LEN_LIMIT
    }

    /// Words that it may take: more than it does when a longer value was there.
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

    /// Bits of the owner's own.
    #[inline(always)]
    pub fn marks(&self) -> u8 {
        (self.stamp >> (64 - MARK_BITS)) as u8
    }

    /// Whether it was read since it was stored, or [moved](Entry::moved).
    #[inline(always)]
    pub fn was_read(&self) -> bool {
        self.stamp & WAS_READ != 0
    }

    /// Notes that it was read.
    #[inline(always)]
    pub fn note_read(&mut self, body: &Words) {
        self.stamp |= WAS_READ;
        body.store(self.at + 1, self.stamp);
    }

    /// The same item at `at`, as if it had not been read.
    pub fn moved(&self, at: usize) -> Self {
        Self { at, stamp: self.stamp & !WAS_READ, ..*self }
    }

    /// Whether the item lies in the memory as a whole.
    #[inline(always)]
    pub fn lies_in(&self, body: &Words) -> bool {
        self.at + Self::words(self.key_len(), self.value_len(), self.has_extras()) <= body.len()
    }

    #[inline(always)]
    fn key_at(&self) -> usize {
        self.at + HEADER_WORDS + usize::from(self.has_extras())
    }

    #[inline(always)]
    fn value_at(&self) -> usize {
        self.key_at() + self.key_len().div_ceil(8)
    }

    /// Writes the header alone.
    #[inline(always)]
    pub fn store_header(&self, body: &Words) {
        body.store_some(self.at, [self.shape, self.stamp]);
    }

    /// Writes header and extras; the key and the value are written by [`Entry::store_key`] and [`Entry::store_value`].
    #[inline(always)]
    pub fn store(&self, body: &Words, extras: Extras) {
        self.store_header(body);
        if self.has_extras() {
            self.store_extras(body, extras);
        }
    }

    /// Writes the marks anew, up to four of them.
    #[inline(always)]
    pub fn store_marks(&self, body: &Words, marks: u8) {
        let rest = self.stamp & ((1 << (64 - MARK_BITS)) - 1);
        body.store(self.at + 1, u64::from(marks) << (64 - MARK_BITS) | rest);
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
        if !self.has_extras() {
            return Extras::default();
        }
        let word = body.load(self.at + 2);
        Extras { flags: (word >> 32) as u32, expires_s: word as u32 }
    }

    #[inline(always)]
    pub fn has_key(&self, body: &Words, key: &[u8]) -> bool {
        self.key_len() == key.len() && body.holds(self.key_at(), key)
    }

    /// Copies the key out to `target`, in place of what is there.
    pub fn read_key(&self, body: &Words, target: &mut Vec<u8>) {
        target.resize(self.key_len(), 0);
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
            let extras = if has_extras { Extras { flags: u32::MAX, expires_s: 7 } } else { Extras::default() };
            let about = About { extras, marks: 9, version: (1 << 51) - 2 };
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
            noted.note_read(&body);
            let read = Entry::load(&body, 3).unwrap();
            assert!(!entry.was_read() && read.was_read() && read == noted && read.moved(3) == entry);
            assert_eq!((read.version(), read.marks(), read.room()), (about.version, 9, words + 5));
            let mut value_out = vec![0; value_len];
            read.read_value(&body, &mut value_out);
            assert_eq!(value_out, value);
            assert!(read.has_key(&body, &key) && !read.has_key(&body, &[&key[..], b"x"].concat()));
        }
        assert_eq!(Entry::words(16, 32, false), 8);
    }

    #[test]
    fn the_largest_lengths_fit_their_fields() {
        let body = Words::zeroed(Entry::words(0xFFFF, super::super::VALUE_LEN_MAX, true)).unwrap();
        // The room of the longest item of a table is no more than its field holds.
        let about = About { extras: Extras { flags: 1, expires_s: 0 }, marks: 0, version: 1 };
        let largest = Entry::new(0, body.len(), 0xFFFF, super::super::VALUE_LEN_MAX, &about);
        largest.store(&body, about.extras);
        assert_eq!(Entry::load(&body, 0), Some(largest));
        assert_eq!((largest.value_len(), largest.room()), (super::super::VALUE_LEN_MAX, body.len()));
    }

    #[test]
    fn nothing_is_an_item_that_does_not_lie_in_memory() {
        let body = Words::zeroed(8).unwrap();
        assert!(Entry::load(&body, 6).is_some() && Entry::load(&body, 7).is_none());
        let lies = |shape| {
            body.store(0, shape);
            Entry::load(&body, 0).is_some_and(|entry| entry.lies_in(&body))
        };
        assert!(!lies(u64::MAX) && !lies(6 * 8 + 1) && lies(6 * 8));
        // Nor is a key that does not.
        body.store(0, 56 << VALUE_BITS);
        assert!(!Entry::load(&body, 0).unwrap().has_key(&body, &[0; 56]));
    }
}
