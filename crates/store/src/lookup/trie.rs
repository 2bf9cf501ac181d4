//! A trie of prefixes: the first 24 bits at once, then eight at a time. For IPv4 it is DIR-24-8 ("Routing Lookups in
//! Hardware at Memory Access Speeds"); for IPv6 it is laid out as DPDK's rte_lpm6.
//!
//! Every entry is 4 bytes: the next hop of the longest prefix that covers it, with that prefix's length, or the group
//! of 256 entries that continues it. All entries lie in one vector, whose first 2^24 are for the first 24 bits; a group
//! is named by its number, and begins at 256 times that.
//!
//! An entry knows the length of its prefix so that a shorter prefix added later does not overwrite a longer one. A
//! group whose entries have all become equal is freed. A trie belongs to one thread: a user that serves lookups while
//! routes change builds another trie.

use std::collections::BTreeMap;

use sinew_mem::zeros_for_random_access;

/// The largest next hop.
pub const HOP_MAX: u32 = (1 << 22) - 1;

/// Bits of the first step.
const FIRST_BITS: u32 = 24;
/// Bits of each further step.
const NEXT_BITS: u32 = 8;
/// Entries of a group.
const GROUP: usize = 1 << NEXT_BITS;
/// Number of the first group: the entries before it are those of the first step.
const GROUPS_START: u32 = 1 << (FIRST_BITS - NEXT_BITS);
/// Most groups that an entry can tell apart.
pub(super) const GROUPS_MAX: usize = (1 << 22) - GROUPS_START as usize;

/// Reason why a route cannot be stored or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The prefix has more bits than an address.
    #[error("a prefix of {len} bits is longer than an address, which has {max}")]
    TooLong {
        /// Bits of the prefix.
        len: u8,
        /// Bits of an address.
        max: u8,
    },
    /// The next hop does not fit into an entry.
    #[error("the next hop {hop} is out of range: the largest is {HOP_MAX}")]
    Hop {
        /// The next hop asked for.
        hop: u32,
    },
    /// The table has used up its groups.
    #[error("the table is full: it has its {groups} groups for longer prefixes; make one that may have more")]
    Full {
        /// Groups that the table may have.
        groups: usize,
    },
    /// The table has no such route.
    #[error("there is no route for this prefix of {len} bits")]
    Absent {
        /// Bits of the prefix.
        len: u8,
    },
    /// The table would have more groups than entries can tell apart.
    #[error("a table has at most {GROUPS_MAX} groups for longer prefixes, not {groups}")]
    Groups {
        /// Groups asked for.
        groups: usize,
    },
}

/// An entry. It is a plain number, so that zeroed memory holds empty entries without being written.
pub(super) type Entry = u32;

const EMPTY: Entry = 0;
const IS_ROUTE: u32 = 1 << 31;
const IS_GROUP: u32 = 1 << 30;
const LEN_SHIFT: u32 = 22;

fn route(len: u8, hop: u32) -> Entry {
    IS_ROUTE | u32::from(len) << LEN_SHIFT | hop
}

fn group(number: u32) -> Entry {
    IS_GROUP | number
}

/// Decodes an [`Entry`].
pub(super) trait EntryExt {
    fn hop(self) -> Option<u32>;

    /// Index at which the group that continues the entry begins.
    fn next(self) -> Option<usize>;

    /// Length of the prefix; for an empty entry 0, as for a prefix that covers everything.
    fn len(self) -> u8;
}

impl EntryExt for Entry {
    #[inline(always)]
    fn hop(self) -> Option<u32> {
        (self & IS_ROUTE != 0).then_some(self & HOP_MAX)
    }

    #[inline(always)]
    fn next(self) -> Option<usize> {
        (self & IS_GROUP != 0).then_some((self & HOP_MAX) as usize * GROUP)
    }

    fn len(self) -> u8 {
        (self >> LEN_SHIFT) as u8
    }
}

/// Prefixes of addresses of up to 128 bits, aligned to the highest bit.
#[derive(Debug)]
pub(super) struct Trie {
    pub entries: Vec<Entry>,
    /// Unused groups.
    free: Vec<u32>,
    routes: BTreeMap<(u8, u128), u32>,
    groups_max: usize,
    len_max: u8,
}

/// A change of the entries that a prefix covers.
#[derive(Clone, Copy)]
enum Change {
    /// Entries of the same or a shorter prefix get this one.
    Put(Entry),
    /// Entries of exactly this length get this one.
    Replace(Entry),
}

impl Change {
    fn of(self, len: u8, entry: Entry) -> Entry {
        match self {
            Self::Put(new) if entry.len() <= len => new,
            Self::Replace(new) if entry.hop().is_some() && entry.len() == len => new,
            _ => entry,
        }
    }
}

/// Keeps the first `len` bits of a prefix.
fn masked(prefix: u128, len: u8) -> u128 {
    prefix & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl Trie {
    /// Makes a trie for addresses of `len_max` bits, with at most `groups_max` groups.
    pub fn new(len_max: u8, groups_max: usize) -> Result<Self, RouteError> {
        if groups_max > GROUPS_MAX {
            return Err(RouteError::Groups { groups: groups_max });
        }
        let first = 1 << FIRST_BITS;
        let entries = zeros_for_random_access(first, first + groups_max * GROUP);
        Ok(Self { entries, free: Vec::new(), routes: BTreeMap::new(), groups_max, len_max })
    }

    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Groups in use.
    pub fn groups(&self) -> usize {
        self.entries.len() / GROUP - GROUPS_START as usize - self.free.len()
    }

    fn check(&self, len: u8) -> Result<(), RouteError> {
        if len > self.len_max { Err(RouteError::TooLong { len, max: self.len_max }) } else { Ok(()) }
    }

    /// Adds a route, or changes its next hop; returns the old one.
    pub fn insert(&mut self, prefix: u128, len: u8, hop: u32) -> Result<Option<u32>, RouteError> {
        self.check(len)?;
        if hop > HOP_MAX {
            return Err(RouteError::Hop { hop });
        }
        let prefix = masked(prefix, len);
        let wanted = self.groups_wanted(prefix, len);
        if wanted > self.groups_max - self.groups() {
            return Err(RouteError::Full { groups: self.groups_max });
        }
        self.change(0, 0, prefix, len, Change::Put(route(len, hop)));
        Ok(self.routes.insert((len, prefix), hop))
    }

    /// Removes a route; returns its next hop.
    pub fn remove(&mut self, prefix: u128, len: u8) -> Result<u32, RouteError> {
        self.check(len)?;
        let prefix = masked(prefix, len);
        let hop = self.routes.remove(&(len, prefix)).ok_or(RouteError::Absent { len })?;
        let shorter = (0..len).rev().find_map(|shorter| {
            let hop = self.routes.get(&(shorter, masked(prefix, shorter)))?;
            Some(route(shorter, *hop))
        });
        self.change(0, 0, prefix, len, Change::Replace(shorter.unwrap_or(EMPTY)));
        Ok(hop)
    }

    /// Returns the `bits` bits of an address that follow the first `taken`.
    fn index(prefix: u128, taken: u32, bits: u32) -> usize {
        (prefix >> (128 - taken - bits)) as usize & ((1 << bits) - 1)
    }

    fn bits(taken: u32) -> u32 {
        if taken == 0 { FIRST_BITS } else { NEXT_BITS }
    }

    /// Number of groups that must be made for a prefix.
    fn groups_wanted(&self, prefix: u128, len: u8) -> usize {
        let (mut base, mut taken) = (0, 0);
        while u32::from(len) > taken + Self::bits(taken) {
            let bits = Self::bits(taken);
            let Some(next) = self.entries[base + Self::index(prefix, taken, bits)].next() else {
                return (u32::from(len) - taken - bits).div_ceil(NEXT_BITS) as usize;
            };
            (base, taken) = (next, taken + bits);
        }
        0
    }

    /// Changes the entries that a prefix covers, in the entries from `base` on, which are those behind the first
    /// `taken` bits.
    fn change(&mut self, base: usize, taken: u32, prefix: u128, len: u8, change: Change) {
        let bits = Self::bits(taken);
        let start = base + Self::index(prefix, taken, bits);
        let end = taken + bits;
        if u32::from(len) <= end {
            for index in start..start + (1 << (end - u32::from(len))) {
                self.change_below(index, end, len, change);
            }
            return;
        }
        let next = match (self.entries[start].next(), change) {
            (Some(next), _) => next,
            (None, Change::Put(_)) => self.split(start),
            // A route this long would have made the group.
            (None, Change::Replace(_)) => return,
        };
        self.change(next, end, prefix, len, change);
        self.join(start, next, end);
    }

    /// Changes an entry that a prefix covers entirely, and the group that continues it.
    fn change_below(&mut self, at: usize, taken: u32, len: u8, change: Change) {
        match self.entries[at].next() {
            Some(next) => {
                for at in next..next + GROUP {
                    self.change_below(at, taken + NEXT_BITS, len, change);
                }
                self.join(at, next, taken);
            }
            None => self.entries[at] = change.of(len, self.entries[at]),
        }
    }

    /// Makes a group that continues an entry; returns the index at which it begins.
    fn split(&mut self, at: usize) -> usize {
        let entry = self.entries[at];
        let next = match self.free.pop() {
            Some(number) => {
                let next = number as usize * GROUP;
                self.entries[next..next + GROUP].fill(entry);
                next
            }
            None => {
                let next = self.entries.len();
                self.entries.resize(next + GROUP, entry);
                next
            }
        };
        self.entries[at] = group((next / GROUP) as u32);
        next
    }

    /// Frees a group that one entry can replace, after the first `taken` bits.
    fn join(&mut self, at: usize, next: usize, taken: u32) {
        let entries = &self.entries[next..next + GROUP];
        let first = entries[0];
        if first.next().is_none() && u32::from(first.len()) <= taken && entries.iter().all(|entry| *entry == first) {
            self.entries[at] = first;
            self.free.push((next / GROUP) as u32);
        }
    }
}
