//! The common part of the tables that clients search with nothing but READs ([`crate::cuckoo`], [`crate::hopscotch`]).
//!
//! Such a table lies in memory that only its owner writes, and that anyone may read at any time, with READs of a NIC,
//! which guarantee nothing about the order in which bytes are read. Everything is therefore *self-verifying*: it
//! carries a checksum. Bytes that are torn, or whose memory was reused since they were found, are read again and never
//! taken for a value. A search is a state machine that says what to READ next.
//!
//! # Design
//!
//! - **A search does no I/O**: it takes bytes and says what to READ next. So the same code is tested on plain memory
//!   beside a writer, and runs over any verbs.
//! - **Nothing relies on an order of bytes.** Buckets, slots, items and values all carry checksums.
//! - **A miss is checked.** An item that moves is written to its new place before its old one is cleared. Yet a reader
//!   can look at the new place too early and at the old one too late. So a search that found nothing checks whether any
//!   version has changed. A search that found its item does not need this check.
//! - **The owner keeps its bookkeeping in memory of its own**; the table holds only what readers need.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// A range of bytes in a table's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the start of the table's memory.
    pub offset: u64,
    /// Length, in bytes.
    pub len: usize,
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Read this, and pass the bytes to [`Index::step`].
    Read(Span),
    /// As [`Step::Read`], but the last bytes were of no use: they changed while they were read, or since they were
    /// found. The owner may be stopped in the middle of a change, so the caller decides for how long to retry.
    Again(Span),
    /// The value, a part of the bytes passed in.
    Found(&'a [u8]),
    /// No item had the key, at some moment since the search began.
    Missing,
}

/// The way to search a table, as its owner describes it to readers.
pub trait Index: Clone {
    /// The state of a search.
    type Search: Clone + std::fmt::Debug;

    /// Begins a search; also returns the first span to read.
    fn search(&self, key: &[u8]) -> (Self::Search, Span);

    /// Continues a search with `bytes`, which must be all of the last span.
    fn step<'a>(&self, search: &mut Self::Search, key: &[u8], bytes: &'a [u8]) -> Step<'a>;

    /// Length of the longest span, in bytes.
    fn read_len_max(&self) -> usize;

    /// Length of the table's memory, in bytes.
    fn memory_len(&self) -> usize;

    /// Encodes the index, to be sent to a reader.
    fn describe(&self) -> Vec<u8>;

    /// Decodes what an owner has sent; `None` if it is malformed, or this release does not know it.
    fn from_description(bytes: &[u8]) -> Option<Self>;
}

/// The owner's side of a table.
///
/// A change that is one of many can be made in steps, with those of other changes between them:
/// [`Self::locate`] and [`Self::prefetch`], then [`Self::prefetch_item`], then [`Self::put_located`] or
/// [`Self::delete_located`]. Each step finds the memory that it reads in the processor's cache.
pub trait Table {
    /// A key's hash, the places where its item can be, and the one where it was seen.
    type Located: Copy + Default + std::fmt::Debug;

    /// Hashes a key.
    fn locate(&self, key: &[u8]) -> Self::Located;

    /// Prefetches the owner's records of the places where the item can be.
    fn prefetch(&self, located: &Self::Located) {
        let _ = located;
    }

    /// Reads these records, and prefetches the item that they name.
    fn prefetch_item(&self, located: &mut Self::Located) {
        let _ = located;
    }

    /// As [`Self::put`], of a key that this table has located as `located`.
    ///
    /// # Errors
    ///
    /// As there.
    fn put_located(&mut self, key: &[u8], value: &[u8], located: &Self::Located) -> Result<bool, TableError>;

    /// As [`Self::delete`], of a key that this table has located as `located`.
    fn delete_located(&mut self, key: &[u8], located: &Self::Located) -> bool;

    /// Stores a value under a key, replacing an earlier one. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`TableError`]; then the table is unchanged.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        let located = self.locate(key);
        self.put_located(key, value, &located)
    }

    /// Deletes an item; returns whether there was one.
    fn delete(&mut self, key: &[u8]) -> bool {
        let located = self.locate(key);
        self.delete_located(key, &located)
    }

    /// Number of items.
    fn len(&self) -> usize;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reason why a table cannot be made, or an item not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There is no place for another item.
    #[error("the table has no place for another item: {items} are stored; delete some, or make it larger")]
    Full {
        /// Items in the table.
        items: usize,
    },
    /// There is no memory for an item of this length.
    #[error("no memory is left for an item of {len} bytes: delete other items, or make the table larger")]
    NoMemory {
        /// Length of the item, in bytes.
        len: usize,
    },
    /// The key is empty or too long.
    #[error("a key has 1 to {max} bytes, and this one has {len}")]
    Key {
        /// Length of the key, in bytes.
        len: usize,
        /// Longest key, in bytes.
        max: usize,
    },
    /// The value is too long.
    #[error("a value has up to {max} bytes, and this one has {len}")]
    Value {
        /// Length of the value, in bytes.
        len: usize,
        /// Longest value, in bytes.
        max: usize,
    },
    /// The layout is impossible.
    #[error("a table cannot have {what} {value} (allowed: {limit})")]
    Layout {
        /// The quantity that is out of bounds.
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The values that are possible.
        limit: &'static str,
    },
    /// The table does not fit into the memory given.
    #[error("the table takes {need} bytes, and the memory has {len}")]
    Memory {
        /// Bytes of the table.
        need: usize,
        /// Bytes of the memory.
        len: usize,
    },
}

const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(0x5349_4E45_5745_4241);

/// Hashes keys, and computes the checksum of everything self-verifying. `seed` separates the uses.
#[inline(always)]
pub(crate) fn checksum(bytes: &[u8], seed: u64) -> u64 {
    mix(rapidhash_v3_inline::<true, false, false>(bytes, &SECRETS) ^ seed)
}

/// Scrambles a number, one to one (the finaliser of splitmix64).
#[inline(always)]
pub(crate) fn mix(number: u64) -> u64 {
    let mut result = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    result = (result ^ result >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    result = (result ^ result >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    result ^ result >> 31
}

/// Maps a hash to one of `count` places.
#[inline(always)]
pub(crate) fn index_from_hash(hash: u64, count: u32) -> u32 {
    (((mix(hash) >> 32) * u64::from(count)) >> 32) as u32
}

/// Returns the word at `index` of the bytes read; 0 past their end.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], index: usize) -> u64 {
    bytes.get(index * 8..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// The place of a value or item outside a table's slots, in units of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub unit: u32,
    /// Length in units, which may be more than its contents need.
    pub units: u32,
}

/// Allocates extents: lists of free ones by size, of at most an eighth more than was asked for. A freed extent keeps
/// its size, and serves a request of the same size class, or, when nothing else is left, a shorter one.
#[derive(Debug)]
pub(crate) struct Extents {
    free: Vec<Vec<Extent>>,
    next: u32,
    end: u32,
}

/// Size classes: the highest bit and the three bits below it.
fn list_of(units: u32) -> usize {
    match units.checked_ilog2() {
        Some(log) if log >= 3 => ((log - 2) * 8 + (units >> (log - 3) & 7)) as usize,
        _ => units as usize,
    }
}

fn rounded_up(units: u32) -> u32 {
    match units.checked_ilog2() {
        Some(log) if log >= 3 => units.saturating_add((1 << (log - 3)) - 1) >> (log - 3) << (log - 3),
        _ => units,
    }
}

impl Extents {
    pub fn new(units: u32) -> Self {
        Self { free: vec![Vec::new(); list_of(u32::MAX) + 1], next: 0, end: units }
    }

    /// Allocates an extent for `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<Extent> {
        let units = rounded_up(u32::try_from(len.div_ceil(8)).ok()?);
        let list = list_of(units);
        if let Some(extent) = self.free[list].pop() {
            return Some(extent);
        }
        if self.end - self.next >= units {
            let extent = Extent { unit: self.next, units };
            self.next += units;
            return Some(extent);
        }
        self.free[list..].iter_mut().find_map(Vec::pop)
    }

    pub fn free(&mut self, extent: Extent) {
        self.free[list_of(extent.units)].push(extent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_hold_what_was_asked_for_and_never_overlap() {
        let mut extents = Extents::new(100_000);
        let mut random = 1;
        let mut held: Vec<Extent> = Vec::new();
        let mut refused = 0;
        for _ in 0..20_000 {
            random = mix(random);
            if random % 5 < 2 && !held.is_empty() {
                extents.free(held.swap_remove(random as usize / 8 % held.len()));
                continue;
            }
            let len = (random >> 40) as usize % 4000;
            match extents.take(len) {
                Some(extent) => {
                    assert!(extent.units as usize * 8 >= len && extent.unit + extent.units <= 100_000);
                    held.push(extent);
                }
                None => refused += 1,
            }
        }
        held.sort_by_key(|extent| extent.unit);
        assert!(held.windows(2).all(|pair| pair[0].unit + pair[0].units <= pair[1].unit));
        assert!(refused > 0 && held.len() > 300, "{refused} {}", held.len());
    }

    #[test]
    fn sizes_are_at_most_an_eighth_too_large() {
        for units in (1..5000).chain([1 << 20, (1 << 20) + 1, u32::MAX / 2]) {
            let rounded = rounded_up(units);
            assert!(rounded >= units && rounded - units <= units / 8, "{units} {rounded}");
            assert_eq!(list_of(rounded), list_of(rounded + rounded / 16 / 8), "{units}");
        }
    }
}
