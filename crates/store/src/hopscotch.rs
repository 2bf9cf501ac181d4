//! FaRM's table (nsdi14; described in sigcomm14 5.1.2): hopscotch hashing, with values in the slots or elsewhere.
//!
//! A key's *neighbourhood* is some consecutive slots from the one that it hashes to; 6 in the paper. A reader READs all of them at once
//! and finds the value there, or where it lies: an extent, which takes another READ. Where a neighbourhood is full and nothing in it
//! can hop away, further items go to an overflow block of as many slots, which the first slot names.
//!
//! A slot is self-verifying: a version, lengths, the key, the value or the extent with its checksum, and a checksum over all of it. As in
//! [`crate::cuckoo`], an item that hops is written to its new slot before its old one is overwritten, and a reader who found nothing
//! reads the neighbourhood once more: when no version has changed, nothing hopped meanwhile.
//!
//! Slots are as long as the longest key and value: READs are amplified by the neighbourhood, which is what the design pays for
//! needing one. Overflow blocks stay with their slot when they are empty. The hash is known to all: whoever chooses keys can fill the
//! overflow blocks.

mod owner;

pub use owner::HopscotchTable;

use crate::remote::{Index, Span, Step, TableError, checksum, place, word};

/// Before the key in a slot: version and overflow block; lengths.
const SLOT_HEAD_LEN: usize = 16;
/// Behind the value.
const SUM_LEN: usize = 8;
/// What stands for a value elsewhere: its place, and its checksum.
const POINTER_LEN: usize = 16;
/// Overflow blocks of one slot at most: a table with more of them was not hashed well.
const CHAIN_MAX: u32 = 64;
const OF_KEYS: u64 = 0x686F_706B;
const OF_SLOTS: u64 = 0x686F_7073;
const OF_VALUES: u64 = 0x686F_7076;

/// Where values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// In the slots (FaRM-em in sigcomm14).
    Inline,
    /// In so many bytes of extents (FaRM-em-VAR); a multiple of 8, at most 32 GiB.
    OutOfLine(u64),
}

/// A table, as readers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Places that keys hash to.
    pub buckets: u32,
    /// Slots of a neighbourhood.
    pub neighbourhood: u32,
    /// Overflow blocks.
    pub overflow_blocks: u32,
    /// Bytes of a key at most.
    pub key_len_max: u32,
    /// Bytes of a value at most.
    pub value_len_max: u32,
    /// Where values lie.
    pub values: Values,
    /// Another seed is other places.
    pub seed: u64,
}

impl Layout {
    /// Bytes that [`Self::to_bytes`] gives.
    pub const BYTES: usize = 40;

    /// Whether it can be.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`].
    pub fn check(&self) -> Result<(), TableError> {
        let check = |what, value: u64, limit, good: bool| {
            if good { Ok(()) } else { Err(TableError::Layout { what, value, limit }) }
        };
        check("buckets", self.buckets.into(), "1 to 2^30", (1..=1 << 30).contains(&self.buckets))?;
        let good = (1..=64).contains(&self.neighbourhood);
        check("a neighbourhood of", self.neighbourhood.into(), "1 to 64 slots", good)?;
        check("overflow blocks", self.overflow_blocks.into(), "up to 2^24", self.overflow_blocks <= 1 << 24)?;
        check("keys of", self.key_len_max.into(), "1 to 65535 bytes", (1..=65_535).contains(&self.key_len_max))?;
        check("values of", self.value_len_max.into(), "up to 1 GiB", self.value_len_max <= 1 << 30)?;
        let bytes = match self.values {
            Values::Inline => 0,
            Values::OutOfLine(bytes) => bytes,
        };
        check("bytes of extents", bytes, "a multiple of 8 up to 32 GiB", bytes <= 8 << 32 && bytes % 8 == 0)?;
        let all = (self.slots() as u64).saturating_mul(self.slot_len() as u64);
        check("bytes of slots", all, "up to 1 TiB", all <= 1 << 40)
    }

    /// To be told to a reader.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // One more, so that no bytes of extents are not values in the slots.
        let extents = match self.values {
            Values::Inline => 0,
            Values::OutOfLine(bytes) => bytes + 1,
        };
        let words = [
            pair(self.buckets, self.neighbourhood),
            pair(self.overflow_blocks, self.key_len_max),
            u64::from(self.value_len_max),
            extents,
            self.seed,
        ];
        let mut bytes = [0; Self::BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// What an owner told.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, TableError> {
        let half = |at: usize| (word(bytes, at / 2) >> (at % 2 * 32)) as u32;
        let layout = Self {
            buckets: half(0),
            neighbourhood: half(1),
            overflow_blocks: half(2),
            key_len_max: half(3),
            value_len_max: half(4),
            values: word(bytes, 3).checked_sub(1).map_or(Values::Inline, Values::OutOfLine),
            seed: word(bytes, 4),
        };
        layout.check().map(|()| layout)
    }

    /// Slots that are in some neighbourhood.
    fn main_slots(&self) -> usize {
        (self.buckets + self.neighbourhood - 1) as usize
    }

    /// All slots.
    fn slots(&self) -> usize {
        self.main_slots() + self.overflow_blocks as usize * self.neighbourhood as usize
    }

    fn key_room(&self) -> usize {
        (self.key_len_max as usize).next_multiple_of(8)
    }

    fn value_room(&self) -> usize {
        match self.values {
            Values::Inline => (self.value_len_max as usize).next_multiple_of(8),
            Values::OutOfLine(_) => POINTER_LEN,
        }
    }

    /// Bytes of a slot.
    pub fn slot_len(&self) -> usize {
        SLOT_HEAD_LEN + self.key_room() + self.value_room() + SUM_LEN
    }

    fn extents_start(&self) -> u64 {
        (self.slots() * self.slot_len()) as u64
    }

    fn hash(&self, key: &[u8]) -> u64 {
        checksum(key, self.seed ^ OF_KEYS)
    }

    /// The slots from `first` on that are read together.
    fn span(&self, first: usize) -> Span {
        let len = self.slot_len();
        Span { offset: (first * len) as u64, len: self.neighbourhood as usize * len }
    }

    fn slot_sum(&self, bytes: &[u8], slot: usize) -> u64 {
        checksum(bytes, self.seed ^ OF_SLOTS ^ (slot as u64) << 32)
    }

    /// Of a value that lies elsewhere. A key's value does not pass for another's.
    fn value_sum(&self, value: &[u8], hash: u64) -> u64 {
        checksum(value, hash ^ OF_VALUES)
    }

    /// What the bytes of a slot say; `None` when they are torn.
    #[inline(always)]
    fn slot<'a>(&self, bytes: &'a [u8], slot: usize) -> Option<Slot<'a>> {
        let (body, sum) = bytes.split_last_chunk::<SUM_LEN>()?;
        let head = word(body, 0);
        let (version, overflow) = (head as u32, (head >> 32) as u32);
        // Fresh memory is an empty slot.
        let sum = u64::from_le_bytes(*sum);
        if sum == 0 && body.iter().all(|byte| *byte == 0) {
            return Some(Slot { version, overflow, item: None });
        }
        if sum != self.slot_sum(body, slot) {
            return None;
        }
        let lens = word(body, 1);
        let (key_len, value_len) = (lens as u32 as usize, (lens >> 32) as usize);
        let item = body.get(SLOT_HEAD_LEN..).and_then(|item| item.split_at_checked(self.key_room()));
        let item = item.and_then(|(key, value)| Some(Item { key: key.get(..key_len)?, value_len, value }));
        Some(Slot { version, overflow, item: item.filter(|item| !item.key.is_empty()) })
    }
}

/// A slot that is whole.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    version: u32,
    /// Block that goes on where this slot's neighbourhood, or block, ends; from 1.
    overflow: u32,
    item: Option<Item<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    key: &'a [u8],
    value_len: usize,
    /// The value with what fills its room, or where it is.
    value: &'a [u8],
}

/// A search.
#[derive(Clone, Debug)]
pub struct Search {
    hash: u64,
    /// First of the slots that are read next.
    first: usize,
    /// Of the value elsewhere that is read next, instead of slots.
    sum: Option<u64>,
    /// Blocks that the search has followed.
    chain: u32,
    /// The versions of the neighbourhood as it was read first.
    versions: Option<u64>,
    is_check: bool,
}

impl Layout {
    fn home(&self, hash: u64) -> usize {
        place(hash, self.buckets) as usize
    }

    /// The first slot of an overflow block, from 1.
    fn block(&self, block: u32) -> Option<usize> {
        let index = block.checked_sub(1).filter(|index| *index < self.overflow_blocks)?;
        Some(self.main_slots() + index as usize * self.neighbourhood as usize)
    }

    /// Begins anew.
    fn again<'a>(&self, search: &mut Search) -> Step<'a> {
        *search = self.search_hash(search.hash);
        Step::Again(self.span(search.first))
    }

    fn search_hash(&self, hash: u64) -> Search {
        Search { hash, first: self.home(hash), sum: None, chain: 0, versions: None, is_check: false }
    }

    /// The item was found.
    fn found<'a>(&self, search: &mut Search, item: &Item<'a>) -> Step<'a> {
        match self.values {
            Values::Inline => match item.value.get(..item.value_len) {
                Some(value) => Step::Found(value),
                None => self.again(search),
            },
            Values::OutOfLine(bytes) => {
                let start = (word(item.value, 0) as u32 as u64) * 8;
                if item.value_len > self.value_len_max as usize || start + item.value_len as u64 > bytes {
                    return self.again(search);
                }
                // Nothing is read of a value without bytes.
                if item.value_len == 0 {
                    return Step::Found(&item.value[..0]);
                }
                search.sum = Some(word(item.value, 1));
                Step::Read(Span { offset: self.extents_start() + start, len: item.value_len })
            }
        }
    }
}

impl Index for Layout {
    type Search = Search;

    #[inline]
    fn search(&self, key: &[u8]) -> (Search, Span) {
        let search = self.search_hash(self.hash(key));
        let span = self.span(search.first);
        (search, span)
    }

    #[inline]
    fn step<'a>(&self, search: &mut Search, key: &[u8], bytes: &'a [u8]) -> Step<'a> {
        if let Some(sum) = search.sum.take() {
            if self.value_sum(bytes, search.hash) == sum {
                return Step::Found(bytes);
            }
            return self.again(search);
        }
        let (mut torn, mut versions, mut next) = (false, 0, 0);
        for (at, slot_bytes) in bytes.chunks_exact(self.slot_len()).enumerate() {
            let Some(slot) = self.slot(slot_bytes, search.first + at) else {
                torn = true;
                continue;
            };
            if let Some(item) = slot.item.filter(|item| item.key == key) {
                return self.found(search, &item);
            }
            versions = checksum(&slot.version.to_le_bytes(), versions);
            if at == 0 {
                next = slot.overflow;
            }
        }
        if torn {
            return Step::Again(self.span(search.first));
        }
        if search.is_check {
            return if search.versions == Some(versions) { Step::Missing } else { self.again(search) };
        }
        search.versions.get_or_insert(versions);
        if next != 0 {
            let block = self.block(next).filter(|_| search.chain < CHAIN_MAX);
            let Some(first) = block else { return self.again(search) };
            search.first = first;
            search.chain += 1;
            return Step::Read(self.span(first));
        }
        search.first = self.home(search.hash);
        search.is_check = true;
        Step::Read(self.span(search.first))
    }

    fn read_len_max(&self) -> usize {
        let value = match self.values {
            Values::Inline => 0,
            Values::OutOfLine(_) => self.value_len_max as usize,
        };
        (self.neighbourhood as usize * self.slot_len()).max(value)
    }

    fn memory_len(&self) -> usize {
        let extents = match self.values {
            Values::Inline => 0,
            Values::OutOfLine(bytes) => bytes,
        };
        (self.extents_start() + extents) as usize
    }

    fn describe(&self) -> Vec<u8> {
        self.to_bytes().to_vec()
    }

    fn from_description(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.try_into().ok()?).ok()
    }
}
