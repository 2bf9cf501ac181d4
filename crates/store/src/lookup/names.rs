//! Routes of names (NDN, nsdi15 4): the longest prefix of whole components, after Wang et al. with cuckoo hashing.
//!
//! A name is a `/` and components separated by `/`, such as `/org/example/video`. Each prefix in the table is found by
//! the hash of its components, in a cuckoo table; its text lies elsewhere and is compared, so a name whose hash
//! collides with another's finds nothing instead of the wrong next hop. A lookup tries the lengths of the prefixes in
//! the table, the longest first.
//!
//! ```
//! use sinew_interleave::Batch;
//! use sinew_store::lookup::names::{Name, NameTable};
//!
//! let mut table = NameTable::new(1000, 64 << 10, 7)?;
//! table.insert(Name::new(b"/org/example")?, 4)?;
//! let names = [Name::new(b"/org/example/video/1")?, Name::new(b"/org")?];
//! let mut hops = [None; 2];
//! table.get_all(Batch::<8>::new(), names, &mut hops);
//! assert_eq!(hops, [Some(4), None]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
use sinew_interleave::{Batch, switch};
use sinew_mem::TableWords;

use super::cuckoo::{Cuckoo, CuckooError};

/// Most components of a prefix. Names that are looked up may have more.
pub const COMPONENTS_MAX: usize = 31;
/// The longest prefix, in bytes.
pub const NAME_LEN_MAX: usize = u16::MAX as usize;
/// Bits of the next hop in the cuckoo table's value; the bits above them are the place of the text.
const HOP_BITS: u32 = 16;

/// A name with no empty component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

/// Reason why bytes are not a name, or a prefix cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The name does not begin with `/`.
    #[error("a name begins with `/`")]
    NoSlash,
    /// A component is empty: there is nothing between two `/`, or after the last.
    #[error("the component at byte {at} is empty")]
    EmptyComponent {
        /// Index at which the component would begin.
        at: usize,
    },
    /// The prefix has more components than the table allows.
    #[error("a prefix of {components} components is too long: the table takes {COMPONENTS_MAX}")]
    Components {
        /// Components of the prefix.
        components: usize,
    },
    /// The prefix has more bytes than the table allows.
    #[error("a prefix of {len} bytes is too long: the table takes {NAME_LEN_MAX}")]
    TooLong {
        /// Length of the prefix, in bytes.
        len: usize,
    },
    /// Another prefix has the same hash.
    #[error("another prefix has the same hash: make the table with another seed")]
    Collision,
    /// There is no room for the prefix's text.
    #[error("the table is full: its texts take {used} of {capacity} bytes; make one with more")]
    TextFull {
        /// Bytes in use.
        used: usize,
        /// Bytes in all.
        capacity: usize,
    },
    /// An error of the table of hashes.
    #[error(transparent)]
    Table(#[from] CuckooError),
    /// The system has no memory.
    #[error("the system gave no memory for {bytes} bytes of names")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

impl<'a> Name<'a> {
    /// Checks that the bytes are a name. `/` alone has no components, and is a prefix of every other name.
    ///
    /// # Errors
    ///
    /// [`NameError::NoSlash`], [`NameError::EmptyComponent`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        match bytes {
            b"/" => return Ok(Self(b"")),
            [b'/', ..] => {}
            _ => return Err(NameError::NoSlash),
        }
        let is_empty = |at: usize| bytes.get(at + 1).is_none_or(|byte| *byte == b'/');
        match (0..bytes.len()).find(|at| bytes[*at] == b'/' && is_empty(*at)) {
            Some(at) => Err(NameError::EmptyComponent { at: at + 1 }),
            None => Ok(Self(bytes)),
        }
    }

    /// The bytes of the name; empty for the name that has no components.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Number of components.
    pub fn components(self) -> usize {
        self.0.iter().filter(|byte| **byte == b'/').count()
    }
}

/// The prefixes of a name that are short enough for a table.
struct Prefixes {
    hashes: [u64; COMPONENTS_MAX + 1],
    /// Lengths of the prefixes, in bytes.
    ends: [u16; COMPONENTS_MAX + 1],
    components: usize,
}

/// Mixes a chain of components' hashes.
#[inline(always)]
fn fold(hash: u64) -> u64 {
    let product = u128::from(hash) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// A table of prefixes. It belongs to one thread at a time.
#[derive(Debug)]
pub struct NameTable {
    hashes: Cuckoo,
    /// The texts: one word with length and components, then the bytes.
    texts: TableWords,
    /// Words of `texts` in use, from the start.
    used: usize,
    /// Words of it that are no longer referred to.
    wasted: usize,
    /// Number of prefixes by number of components.
    lengths: [usize; COMPONENTS_MAX + 1],
    /// One bit for each number of components that some prefix has.
    present: u32,
    secrets: RapidSecrets,
    /// Bits of a hash that count: all, except in tests of collisions.
    hash_mask: u64,
}

impl NameTable {
    /// Makes an empty table for this many prefixes, with `text_bytes` bytes for their texts; each text takes 8 bytes
    /// more than its length, and is rounded up to 8.
    ///
    /// # Errors
    ///
    /// [`NameError::Table`], [`NameError::Memory`].
    pub fn new(prefixes: usize, text_bytes: usize, seed: u64) -> Result<Self, NameError> {
        let texts = TableWords::zeroed(text_bytes.div_ceil(8))
            .map_err(|source| NameError::Memory { bytes: text_bytes, source })?;
        Ok(Self {
            hashes: Cuckoo::new(prefixes, seed)?,
            texts,
            used: 0,
            wasted: 0,
            lengths: [0; COMPONENTS_MAX + 1],
            present: 0,
            secrets: RapidSecrets::seed(seed),
            hash_mask: u64::MAX,
        })
    }

    /// Number of prefixes.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    #[inline(always)]
    fn prefixes(&self, name: Name<'_>) -> Prefixes {
        let mut prefixes = Prefixes { hashes: [0; COMPONENTS_MAX + 1], ends: [0; COMPONENTS_MAX + 1], components: 0 };
        let bytes = &name.0[..name.0.len().min(NAME_LEN_MAX)];
        let mut hash = 0;
        prefixes.hashes[0] = self.key_of(hash);
        let mut at = 0;
        while at < bytes.len() && prefixes.components < COMPONENTS_MAX {
            let len = bytes[at + 1..].iter().position(|byte| *byte == b'/').unwrap_or(bytes.len() - at - 1) + 1;
            let end = at + len;
            // A component that was cut off does not count.
            if end == bytes.len() && end < name.0.len() && name.0[end] != b'/' {
                break;
            }
            let component = rapidhash_v3_inline::<true, false, false>(&bytes[at..end], &self.secrets);
            hash = fold(hash.rotate_left(29) ^ component);
            prefixes.components += 1;
            prefixes.hashes[prefixes.components] = self.key_of(hash);
            prefixes.ends[prefixes.components] = end as u16;
            at = end;
        }
        prefixes
    }

    /// The key of a hash in the cuckoo table, where 0 is not allowed.
    #[inline(always)]
    fn key_of(&self, hash: u64) -> u64 {
        (hash & self.hash_mask).max(1)
    }

    /// Stores a prefix with its next hop; returns its earlier next hop.
    ///
    /// # Errors
    ///
    /// [`NameError`]; then the table is unchanged.
    pub fn insert(&mut self, prefix: Name<'_>, hop: u16) -> Result<Option<u16>, NameError> {
        let (components, len) = (prefix.components(), prefix.0.len());
        if components > COMPONENTS_MAX {
            return Err(NameError::Components { components });
        }
        if len > NAME_LEN_MAX {
            return Err(NameError::TooLong { len });
        }
        let key = self.prefixes(prefix).hashes[components];
        if let Some(value) = self.hashes.get(key) {
            let text = (value >> HOP_BITS) as usize;
            if !self.is_text(text, components, prefix.0) {
                return Err(NameError::Collision);
            }
            self.hashes.insert(key, (text as u64) << HOP_BITS | u64::from(hop))?;
            return Ok(Some(value as u16));
        }
        let words = 1 + len.div_ceil(8);
        if self.used + words > self.texts.len() {
            return Err(NameError::TextFull { used: self.used * 8, capacity: self.texts.len() * 8 });
        }
        self.hashes.insert(key, (self.used as u64) << HOP_BITS | u64::from(hop))?;
        self.texts.store(self.used, (len as u64) << 8 | components as u64);
        self.texts.write(self.used + 1, prefix.0);
        self.used += words;
        self.lengths[components] += 1;
        self.present |= 1 << components;
        Ok(None)
    }

    /// Removes a prefix; returns its next hop. The bytes of its text are reused once the table is empty.
    pub fn remove(&mut self, prefix: Name<'_>) -> Option<u16> {
        let components = prefix.components();
        if components > COMPONENTS_MAX || prefix.0.len() > NAME_LEN_MAX {
            return None;
        }
        let key = self.prefixes(prefix).hashes[components];
        let value = self.hashes.get(key)?;
        if !self.is_text((value >> HOP_BITS) as usize, components, prefix.0) {
            return None;
        }
        self.hashes.remove(key);
        self.wasted += 1 + prefix.0.len().div_ceil(8);
        if self.hashes.is_empty() {
            (self.used, self.wasted) = (0, 0);
        }
        self.lengths[components] -= 1;
        if self.lengths[components] == 0 {
            self.present &= !(1 << components);
        }
        Some(value as u16)
    }

    /// Bytes of texts that are no longer referred to.
    pub fn wasted_bytes(&self) -> usize {
        self.wasted * 8
    }

    #[inline(always)]
    fn is_text(&self, text: usize, components: usize, bytes: &[u8]) -> bool {
        self.texts.load(text) == (bytes.len() as u64) << 8 | components as u64
            && self.texts.bytes_equal(text + 1, bytes)
    }

    /// Lengths to try, as bits.
    #[inline(always)]
    fn candidates(&self, prefixes: &Prefixes) -> u32 {
        self.present & (u32::MAX >> (31 - prefixes.components))
    }

    /// Returns the next hop of the longest prefix of a name.
    #[inline]
    pub fn get(&self, name: Name<'_>) -> Option<u16> {
        let prefixes = self.prefixes(name);
        let mut candidates = self.candidates(&prefixes);
        while candidates != 0 {
            let components = candidates.ilog2() as usize;
            candidates ^= 1 << components;
            if let Some(value) = self.hashes.get(prefixes.hashes[components]) {
                let bytes = &name.0[..prefixes.ends[components].into()];
                if self.is_text((value >> HOP_BITS) as usize, components, bytes) {
                    return Some(value as u16);
                }
            }
        }
        None
    }

    /// [`Self::get`] as a lookup that lets others run while it waits.
    #[inline]
    pub async fn look_up(&self, name: Name<'_>) -> Option<u16> {
        let prefixes = self.prefixes(name);
        let mut candidates = self.candidates(&prefixes);
        while candidates != 0 {
            let components = candidates.ilog2() as usize;
            candidates ^= 1 << components;
            if let Some(value) = self.hashes.look_up(prefixes.hashes[components]).await {
                let (text, bytes) = ((value >> HOP_BITS) as usize, &name.0[..prefixes.ends[components].into()]);
                self.texts.prefetch_line(text);
                switch().await;
                if self.is_text(text, components, bytes) {
                    return Some(value as u16);
                }
            }
        }
        None
    }

    /// [`Self::get`] of each name, interleaved; results are in the order of the names. Returns the number of names.
    #[inline]
    pub fn get_all<'a, const MAX: usize>(
        &self,
        batch: Batch<MAX>,
        names: impl IntoIterator<Item = Name<'a>>,
        hops: &mut [Option<u16>],
    ) -> usize {
        batch.run(names, hops, |name| self.look_up(name))
    }

    /// [`Self::get`] of each name, with group prefetching by hand: one stage for each length of prefixes.
    pub fn get_grouped(&self, names: &[Name<'_>], hops: &mut [Option<u16>]) {
        /// Names processed together; their prefixes take some 330 bytes each.
        const GROUP: usize = 16;
        for (names, hops) in names.chunks(GROUP).zip(hops.chunks_mut(GROUP)) {
            let prefixes: [Option<Prefixes>; GROUP] =
                std::array::from_fn(|at| names.get(at).map(|name| self.prefixes(*name)));
            hops.fill(None);
            let mut lengths = self.present;
            while lengths != 0 {
                let components = lengths.ilog2() as usize;
                lengths ^= 1 << components;
                // Names that have such a prefix, and have found none yet.
                let (mut keys, mut indices, mut count) = ([0; GROUP], [0; GROUP], 0);
                for (at, prefixes) in prefixes.iter().flatten().enumerate() {
                    if prefixes.components >= components && hops[at].is_none() {
                        (keys[count], indices[count]) = (prefixes.hashes[components], at);
                        count += 1;
                    }
                }
                let mut values = [None; GROUP];
                self.hashes.get_grouped(&keys[..count], &mut values[..count]);
                for value in values.iter().flatten() {
                    self.texts.prefetch_line((value >> HOP_BITS) as usize);
                }
                for (value, at) in values[..count].iter().zip(indices) {
                    let (Some(value), Some(prefixes)) = (value, &prefixes[at]) else { continue };
                    let bytes = &names[at].0[..prefixes.ends[components].into()];
                    if self.is_text((value >> HOP_BITS) as usize, components, bytes) {
                        hops[at] = Some(*value as u16);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a table whose hashes have few bits.
    fn with_weak_hash() -> NameTable {
        let mut table = NameTable::new(100, 4096, 1).unwrap();
        table.hash_mask = 7;
        table
    }

    #[test]
    fn prefixes_of_one_hash_are_told_apart_and_the_second_is_refused() {
        let mut table = with_weak_hash();
        let texts: Vec<String> = (0..40).map(|number| format!("/n{number}")).collect();
        let mut stored = Vec::new();
        let mut refused = 0;
        for (at, text) in texts.iter().enumerate() {
            match table.insert(Name::new(text.as_bytes()).unwrap(), at as u16) {
                Ok(None) => stored.push(at),
                Err(NameError::Collision) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(stored.len() <= 8 && refused == 40 - stored.len(), "{stored:?}");
        for (at, text) in texts.iter().enumerate() {
            let name = Name::new(text.as_bytes()).unwrap();
            let expected = stored.contains(&at).then_some(at as u16);
            assert_eq!(table.get(name), expected);
            let (mut all, mut grouped) = ([None], [None]);
            table.get_all(Batch::<1>::new(), [name], &mut all);
            table.get_grouped(&[name], &mut grouped);
            assert_eq!((all[0], grouped[0]), (expected, expected));
            if expected.is_none() {
                assert_eq!(table.remove(name), None, "another's is not removed");
            }
        }
    }
}
