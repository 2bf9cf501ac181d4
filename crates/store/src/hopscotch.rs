//! FaRM's table (nsdi14; described in sigcomm14 5.1.2): hopscotch hashing, with values in the slots or elsewhere.
//!
//! A key's *neighbourhood* is a run of consecutive slots that begins at the one it hashes to; the paper has 6. A reader
//! READs all of them at once, and finds the value there, or its place: an extent, which takes another READ. When a
//! neighbourhood is full and no item in it can hop away, further items go to an overflow block of the same number of
//! slots, which the first slot names.
//!
//! A slot is self-verifying: a version, lengths, the key, the value or the extent with its checksum, and a checksum
//! over all of it. As in [`crate::cuckoo`], an item that hops is written to its new slot before its old one is
//! overwritten, and a reader that has found nothing reads the neighbourhood once more: if no version has changed,
//! nothing hopped meanwhile.
//!
//! Slots are as long as the longest key and value. So a READ transfers all slots of a neighbourhood, which is the price
//! for needing only one. An overflow block stays with its slot when it is empty. The hash is public: someone who
//! chooses keys can fill the overflow blocks.

mod owner;

pub use owner::{HopscotchTable, Located};

use crate::remote::{Index, Span, Step, TableError, checksum, index_from_hash, word};

/// Bytes before the key in a slot: version and overflow block; lengths.
const SLOT_HEAD_LEN: usize = 16;
/// Bytes of the checksum after the value.
const SUM_LEN: usize = 8;
/// Bytes that stand for a value elsewhere: its place, and its checksum.
const POINTER_LEN: usize = 16;
/// Most overflow blocks of one slot; more of them would mean that the keys were badly hashed.
const CHAIN_MAX: u32 = 64;
const KEY_SEED: u64 = 0x686F_706B;
const SLOT_SEED: u64 = 0x686F_7073;
const VALUE_SEED: u64 = 0x686F_7076;

/// Place of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// In the slots (FaRM-em in sigcomm14).
    Inline,
    /// In extents (FaRM-em-VAR), of this many bytes in all; a multiple of 8, at most 32 GiB.
    OutOfLine(u64),
}

/// Layout of a table, as readers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of slots that keys hash to.
    pub buckets: u32,
    /// Slots of a neighbourhood.
    pub neighbourhood: u32,
    /// Number of overflow blocks.
    pub overflow_blocks: u32,
    /// Longest key, in bytes.
    pub key_len_max: u32,
    /// Longest value, in bytes.
    pub value_len_max: u32,
    /// Place of the values.
    pub values: Values,
    /// Seed of the hash that places items.
    pub seed: u64,
}

impl Layout {
    /// Length of the layout as encoded by [`Self::to_bytes`], in bytes.
    pub const BYTES: usize = 40;

    /// Checks that such a table is possible.
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

    /// Encodes the layout, to be sent to a reader.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // One more, so that 0 bytes of extents differ from values in the slots.
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

    /// Decodes and checks a layout that an owner has sent.
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

    /// Number of slots outside overflow blocks.
    fn main_slots(&self) -> usize {
        (self.buckets + self.neighbourhood - 1) as usize
    }

    /// Number of slots, including those of overflow blocks.
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

    /// Length of a slot, in bytes.
    pub fn slot_len(&self) -> usize {
        SLOT_HEAD_LEN + self.key_room() + self.value_room() + SUM_LEN
    }

    fn extents_start(&self) -> u64 {
        (self.slots() * self.slot_len()) as u64
    }

    fn hash(&self, key: &[u8]) -> u64 {
        checksum(key, self.seed ^ KEY_SEED)
    }

    /// The span of the slots from `first` on that are read together.
    fn span(&self, first: usize) -> Span {
        let len = self.slot_len();
        Span { offset: (first * len) as u64, len: self.neighbourhood as usize * len }
    }

    fn slot_sum(&self, bytes: &[u8], slot: usize) -> u64 {
        checksum(bytes, self.seed ^ SLOT_SEED ^ (slot as u64) << 32)
    }

    /// Checksum of a value that lies elsewhere. It depends on the key's hash, so that no key's value passes for
    /// another's.
    fn value_sum(&self, value: &[u8], hash: u64) -> u64 {
        checksum(value, hash ^ VALUE_SEED)
    }

    /// Decodes a slot; `None` if it is torn.
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

    /// Finds a key's item in the slots from `first` on. Slots without the key are not checked: it does not matter
    /// whether they are torn.
    #[inline(always)]
    fn find<'a>(&self, first: usize, key: &[u8], bytes: &'a [u8]) -> Option<Item<'a>> {
        let key_start = word(key, 0);
        bytes.chunks_exact(self.slot_len()).enumerate().find_map(|(at, bytes)| {
            // Most slots differ in the key's first word, for which no call is needed.
            let may_fit = word(bytes, 1) as u32 as usize == key.len()
                && (word(bytes, 2) == key_start || key.len() < 8)
                && bytes.get(SLOT_HEAD_LEN..SLOT_HEAD_LEN + key.len()) == Some(key);
            if may_fit { self.slot(bytes, first + at)?.item } else { None }
        })
    }
}

/// The contents of an undamaged slot.
#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    version: u32,
    /// The overflow block that continues the neighbourhood, or the block, that begins here; numbered from 1, 0 for
    /// none.
    overflow: u32,
    item: Option<Item<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    key: &'a [u8],
    value_len: usize,
    /// The value with its padding, or the place of the value.
    value: &'a [u8],
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Search {
    hash: u64,
    /// First of the slots to be read next.
    first: usize,
    /// Checksum of the value elsewhere that is read next; `None` if slots are read next.
    sum: Option<u64>,
    /// Overflow blocks followed so far.
    chain: u32,
    /// Checksum of the neighbourhood's versions in the first round.
    versions: Option<u64>,
    is_check: bool,
}

impl Layout {
    fn home(&self, hash: u64) -> usize {
        index_from_hash(hash, self.buckets) as usize
    }

    /// Returns the first slot of an overflow block, numbered from 1.
    fn block(&self, block: u32) -> Option<usize> {
        let index = block.checked_sub(1).filter(|index| *index < self.overflow_blocks)?;
        Some(self.main_slots() + index as usize * self.neighbourhood as usize)
    }

    /// Starts the search again.
    fn retry<'a>(&self, search: &mut Search) -> Step<'a> {
        *search = self.search_hash(search.hash);
        Step::Again(self.span(search.first))
    }

    fn search_hash(&self, hash: u64) -> Search {
        Search { hash, first: self.home(hash), sum: None, chain: 0, versions: None, is_check: false }
    }

    /// Continues the search with the item that has the key.
    fn found<'a>(&self, search: &mut Search, item: &Item<'a>) -> Step<'a> {
        match self.values {
            Values::Inline => match item.value.get(..item.value_len) {
                Some(value) => Step::Found(value),
                None => self.retry(search),
            },
            Values::OutOfLine(bytes) => {
                let start = (word(item.value, 0) as u32 as u64) * 8;
                if item.value_len > self.value_len_max as usize || start + item.value_len as u64 > bytes {
                    return self.retry(search);
                }
                // An empty value takes no READ.
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
            return self.retry(search);
        }
        if let Some(item) = self.find(search.first, key, bytes) {
            return self.found(search, &item);
        }
        let (mut torn, mut versions, mut next) = (false, 0, 0);
        for (at, slot_bytes) in bytes.chunks_exact(self.slot_len()).enumerate() {
            let Some(slot) = self.slot(slot_bytes, search.first + at) else {
                torn = true;
                continue;
            };
            versions = checksum(&slot.version.to_le_bytes(), versions);
            if at == 0 {
                next = slot.overflow;
            }
        }
        if torn {
            return Step::Again(self.span(search.first));
        }
        if search.is_check {
            return if search.versions == Some(versions) { Step::Missing } else { self.retry(search) };
        }
        search.versions.get_or_insert(versions);
        if next != 0 {
            let block = self.block(next).filter(|_| search.chain < CHAIN_MAX);
            let Some(first) = block else { return self.retry(search) };
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
