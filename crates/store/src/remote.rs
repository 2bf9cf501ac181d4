//! What tables have in common that others search with nothing but READs ([`crate::cuckoo`], [`crate::hopscotch`]).
//!
//! Such a table lies in memory that its owner alone writes and anybody reads at any time: with READs of a NIC, which say nothing
//! of the order in which bytes are read. Everything is therefore *self-verifying*: it carries a checksum, and what is torn, or
//! was reused since it was found, is read again and never taken for a value. A search is a state machine that says what to READ next.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// What a table's memory is for a reader: bytes from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the start of the table's memory.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// What a search needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// To be read, and handed in.
    Read(Span),
    /// As [`Step::Read`], since what was handed in had been changed while it was read, or since it was found. The owner may be in the
    /// middle of a change for as long as its thread stands still: whoever reads decides how long to go on.
    Again(Span),
    /// The value: part of what was handed in.
    Found(&'a [u8]),
    /// At some moment since the search began, no item had the key.
    Missing,
}

/// How to search a table, as its owner tells everybody.
pub trait Index: Clone {
    /// A search that is under way.
    type Search: Clone + std::fmt::Debug;

    /// Begins to search; with what to read first.
    fn search(&self, key: &[u8]) -> (Self::Search, Span);

    /// Takes what was read: all bytes of the last span.
    fn step<'a>(&self, search: &mut Self::Search, key: &[u8], bytes: &'a [u8]) -> Step<'a>;

    /// Bytes of the longest span.
    fn read_len_max(&self) -> usize;

    /// Bytes of the table's memory.
    fn memory_len(&self) -> usize;

    /// To be told to a reader.
    fn describe(&self) -> Vec<u8>;

    /// What an owner told; `None` is nothing that this release knows, or that can be.
    fn from_description(bytes: &[u8]) -> Option<Self>;
}

/// The owner's side of a table.
pub trait Table {
    /// Stores a value under a key, in place of the one before. Whether there was one.
    ///
    /// # Errors
    ///
    /// [`TableError`]; the table is as it was.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError>;

    /// Deletes an item; whether there was one.
    fn delete(&mut self, key: &[u8]) -> bool;

    /// Items that there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why there is no table, or something was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// No place for another item.
    #[error("the table has no place for another item: {items} are stored; delete some, or make it larger")]
    Full {
        /// Items that there are.
        items: usize,
    },
    /// No memory for such a long item.
    #[error("no memory is left for an item of {len} bytes: delete some, or make the table larger")]
    NoMemory {
        /// Its length.
        len: usize,
    },
    /// No such key is possible.
    #[error("a key has 1 to {max} bytes, and this one has {len}")]
    Key {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// No such value is possible.
    #[error("a value has up to {max} bytes here, and this one has {len}")]
    Value {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// The layout cannot be.
    #[error("a table cannot have {what} {value}: {limit}")]
    Layout {
        /// Of what.
        what: &'static str,
        /// As it was asked for.
        value: u64,
        /// What is possible.
        limit: &'static str,
    },
    /// The table does not fit in the memory that it was to lie in.
    #[error("the table takes {need} bytes, and the memory has {len}")]
    Memory {
        /// Bytes of the table.
        need: usize,
        /// Bytes of the memory.
        len: usize,
    },
}

const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(0x5349_4E45_5745_4241);

/// The hash of a key, and the checksum of whatever is self-verifying. `seed` tells one use from another.
#[inline(always)]
pub(crate) fn checksum(bytes: &[u8], seed: u64) -> u64 {
    mixed(rapidhash_v3_inline::<true, false, false>(bytes, &SECRETS) ^ seed)
}

/// Another number for each number, with no resemblance (splitmix64's).
#[inline(always)]
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// One of `count` places for a hash.
#[inline(always)]
pub(crate) fn place(hash: u64, count: u32) -> u32 {
    (((mixed(hash) >> 32) * u64::from(count)) >> 32) as u32
}

/// The word at a place of what was read; 0 past its end.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], index: usize) -> u64 {
    bytes.get(index * 8..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Where values, or items, lie outside a table's slots: in units of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub unit: u32,
    /// Units that it has, which may be more than what lies in it.
    pub units: u32,
}

/// Which units of a memory are whose: lists of free extents by size, of at most an eighth more than was asked for. What was freed
/// keeps its size; it is had again by what is as long, or, when nothing else is left, shorter.
#[derive(Debug)]
pub(crate) struct Extents {
    free: Vec<Vec<Extent>>,
    next: u32,
    end: u32,
}

/// Sizes with three bits behind the first one.
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

    /// An extent for `len` bytes.
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

    pub fn give_back(&mut self, extent: Extent) {
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
            random = mixed(random);
            if random % 5 < 2 && !held.is_empty() {
                extents.give_back(held.swap_remove(random as usize / 8 % held.len()));
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
