//! A 2-8 cuckoo hash table (MemC3's terms, as in nsdi15 3.3): each key has two buckets of eight slots.
//!
//! The slots of a bucket are columns: one cache line of keys, and one of values unless these are packed into the same
//! words. An insertion that finds both buckets full searches, breadth first, for the shortest chain of items that can
//! move to their other buckets, and moves them from the end of that chain.
//!
//! One writer changes the table, and any number of [`CuckooReader`]s read it meanwhile. Each key has a version, one of
//! 8,192 that keys share by their hash; it is odd while the key's item is moved or changed. A reader that sees it
//! change looks again (MemC3 3.2).
//!
//! ```
//! use sinew_interleave::Batch;
//! use sinew_store::lookup::cuckoo::Cuckoo;
//!
//! let mut table: Cuckoo = Cuckoo::new(1000, 7)?;
//! for key in 1..=500 {
//!     table.insert(key, key * key)?;
//! }
//! let mut values = [None; 3];
//! table.get_all(Batch::<16>::new(), [3, 1000, 5], &mut values);
//! assert_eq!(values, [Some(9), None, Some(25)]);
//! # Ok::<(), sinew_store::lookup::cuckoo::CuckooError>(())
//! ```

use std::marker::PhantomData;

use sinew_interleave::{Batch, interleave};
use sinew_mem::TableWords;

use super::GROUP_MAX;

/// Slots of a bucket.
const SLOTS: usize = 8;
/// Number of versions, which keys share.
const VERSIONS: usize = 8192;
/// Buckets examined, at most, in search of a path to a free slot.
const BUCKETS_SEARCHED_MAX: usize = 512;
/// Items for each bucket of a table at its capacity, so that 87.5 % of the slots are full.
const FULL_SLOTS: usize = SLOTS - 1;
/// Attempts before a reader yields: the writer may be waiting for the reader's processor.
const TRIES_BEFORE_YIELD: u32 = 1000;

/// Arrangement of keys and values in the slots of a bucket.
pub trait Packing: sealed::Sealed + Copy + std::fmt::Debug + 'static {
    /// Cache lines of a bucket.
    const COLUMNS: usize;
    /// Bits of the value in the key's word.
    const VALUE_BITS: u32;
}

mod sealed {
    pub trait Sealed {}
}

/// Keys and values of 64 bits: a bucket is two cache lines.
#[derive(Clone, Copy, Debug)]
pub struct Wide;

/// Keys of 48 bits and values of 16: a bucket is one cache line.
#[derive(Clone, Copy, Debug)]
pub struct Packed;

impl sealed::Sealed for Wide {}
impl sealed::Sealed for Packed {}

impl Packing for Wide {
    const COLUMNS: usize = 2;
    const VALUE_BITS: u32 = 0;
}

impl Packing for Packed {
    const COLUMNS: usize = 1;
    const VALUE_BITS: u32 = 16;
}

/// Reason why an item cannot be stored, or a table not made.
#[derive(Debug, thiserror::Error)]
pub enum CuckooError {
    /// No chain of moves makes room.
    #[error("the table is full: it has {items} items, and was made for {capacity}; make a larger one")]
    Full {
        /// Items in the table.
        items: usize,
        /// Items that the table was made for.
        capacity: usize,
    },
    /// The key is 0, which marks an empty slot.
    #[error("0 cannot be a key: it marks an empty slot")]
    ZeroKey,
    /// The item does not fit the 48 and 16 bits of a packed table's key and value.
    #[error("the key {key:#x} with the value {value:#x} does not fit into 48 and 16 bits")]
    TooLarge {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// The capacity needs more buckets than a table can have.
    #[error("a table has at most {max} items, not {capacity}: make several")]
    Capacity {
        /// Items asked for.
        capacity: usize,
        /// Most items of a table.
        max: usize,
    },
    /// The system has no memory.
    #[error("the system gave no memory for a table of {capacity} items")]
    Memory {
        /// Items asked for.
        capacity: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The memory of a table, shared by its writer and its readers.
#[derive(Clone, Debug)]
struct View<P> {
    words: TableWords,
    versions: TableWords,
    buckets: u32,
    seed: u64,
    packing: PhantomData<P>,
}

/// The place of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotPosition {
    bucket: usize,
    slot: usize,
}

impl<P: Packing> View<P> {
    #[inline(always)]
    fn hash(&self, key: u64) -> u64 {
        let product = u128::from(key ^ self.seed) * 0x9E37_79B9_7F4A_7C15;
        let folded = (product >> 64) as u64 ^ product as u64;
        folded.wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    /// The two buckets of a key, which differ.
    #[inline(always)]
    fn buckets_of(&self, hash: u64) -> [usize; 2] {
        let nth = |bits: u32| ((u64::from(bits) * u64::from(self.buckets)) >> 32) as usize;
        let (first, second) = (nth((hash >> 32) as u32), nth((hash as u32).reverse_bits()));
        let following = if first + 1 == self.buckets as usize { 0 } else { first + 1 };
        [first, if second == first { following } else { second }]
    }

    #[inline(always)]
    fn version(hash: u64) -> usize {
        (hash >> 16) as usize % VERSIONS
    }

    /// Index of a bucket's first word.
    #[inline(always)]
    fn start(bucket: usize) -> usize {
        bucket * SLOTS * P::COLUMNS
    }

    #[inline(always)]
    fn prefetch_bucket(&self, bucket: usize) {
        for column in 0..P::COLUMNS {
            self.words.prefetch_line(Self::start(bucket) + column * SLOTS);
        }
    }

    /// Returns the slot of a bucket that has the key; 0 finds an empty one.
    #[inline(always)]
    fn slot_of(&self, bucket: usize, key: u64) -> Option<usize> {
        let words: [u64; SLOTS] = self.words.load_array(Self::start(bucket));
        let mut matching = 0u32;
        for (slot, word) in words.iter().enumerate() {
            matching |= u32::from(word >> P::VALUE_BITS == key) << slot;
        }
        (matching != 0).then(|| matching.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn value_at(&self, SlotPosition { bucket, slot }: SlotPosition) -> u64 {
        let last = self.words.load(Self::start(bucket) + (P::COLUMNS - 1) * SLOTS + slot);
        if P::COLUMNS == 1 { last & ((1 << P::VALUE_BITS) - 1) } else { last }
    }

    #[inline(always)]
    fn in_bucket(&self, bucket: usize, key: u64) -> Option<u64> {
        self.slot_of(bucket, key).map(|slot| self.value_at(SlotPosition { bucket, slot }))
    }

    /// Returns the value of a key, as the table is at the moment; key 0 has none.
    #[interleave(batch = get_all, lookup = look_up)]
    #[inline(always)]
    fn get(&self, #[each] key: u64) -> Option<u64> {
        let [first, second] = self.buckets_of(self.hash(key));
        switch!(self.prefetch_bucket(first));
        let value = self.in_bucket(first, key);
        if value.is_some() {
            return value.filter(|_| key != 0);
        }
        switch!(self.prefetch_bucket(second));
        self.in_bucket(second, key).filter(|_| key != 0)
    }

    /// See [`Cuckoo::get_grouped`].
    #[inline(always)]
    fn get_grouped(&self, keys: &[u64], values: &mut [Option<u64>]) {
        for (keys, values) in keys.chunks(GROUP_MAX).zip(values.chunks_mut(GROUP_MAX)) {
            let mut buckets = [[0; 2]; GROUP_MAX];
            for (buckets, key) in buckets.iter_mut().zip(keys) {
                *buckets = self.buckets_of(self.hash(*key));
                self.prefetch_bucket(buckets[0]);
            }
            for ((buckets, key), value) in buckets.iter().zip(keys).zip(values.iter_mut()) {
                *value = self.in_bucket(buckets[0], *key);
                if value.is_none() {
                    self.prefetch_bucket(buckets[1]);
                }
            }
            for ((buckets, key), value) in buckets.iter().zip(keys).zip(values.iter_mut()) {
                if value.is_none() {
                    *value = self.in_bucket(buckets[1], *key);
                }
                if *key == 0 {
                    *value = None;
                }
            }
        }
    }
}

/// A table, as seen by its writer. See [the module](self).
#[derive(Debug)]
pub struct Cuckoo<P: Packing = Wide> {
    view: View<P>,
    items: usize,
    capacity: usize,
    /// Buckets examined by a search for room, each with the step by which it was reached.
    paths: Vec<PathStep>,
}

#[derive(Clone, Copy, Debug)]
struct PathStep {
    bucket: usize,
    /// Index of the step that leads here, and the slot whose item would move; `None` for the buckets that the search
    /// starts with.
    from: Option<(usize, usize)>,
}

impl<P: Packing> Cuckoo<P> {
    /// Most items that a table can be made for.
    pub const CAPACITY_MAX: usize = (u32::MAX as usize / 2) * FULL_SLOTS;

    /// Makes an empty table for this many items. Someone who does not know the seed cannot choose keys that collide, as
    /// far as a fast, non-cryptographic hash prevents that.
    ///
    /// # Errors
    ///
    /// [`CuckooError::Capacity`], [`CuckooError::Memory`].
    pub fn new(capacity: usize, seed: u64) -> Result<Self, CuckooError> {
        if capacity > Self::CAPACITY_MAX {
            return Err(CuckooError::Capacity { capacity, max: Self::CAPACITY_MAX });
        }
        let buckets = capacity.div_ceil(FULL_SLOTS).max(2);
        let zeroed = |words| TableWords::zeroed(words).map_err(|source| CuckooError::Memory { capacity, source });
        let view = View {
            words: zeroed(buckets * SLOTS * P::COLUMNS)?,
            versions: zeroed(VERSIONS)?,
            buckets: buckets as u32,
            seed,
            packing: PhantomData,
        };
        Ok(Self { view, items: 0, capacity, paths: Vec::new() })
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Length of all buckets, in bytes.
    pub fn bytes(&self) -> usize {
        self.view.words.len() * 8
    }

    /// Makes a reader for use by another thread while this one writes the table.
    pub fn reader(&self) -> CuckooReader<P> {
        CuckooReader { view: self.view.clone() }
    }

    /// Returns the value of a key.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.view.get(key)
    }

    /// [`Self::get`] of each key, interleaved; results are in the order of the keys. Returns the number of keys.
    #[inline(always)]
    pub fn get_all<const MAX: usize>(
        &self,
        batch: Batch<MAX>,
        keys: impl IntoIterator<Item = u64>,
        values: &mut [Option<u64>],
    ) -> usize {
        self.view.get_all(batch, keys, values)
    }

    /// [`Self::get`] as a lookup that lets others run while it waits.
    #[inline(always)]
    pub async fn look_up(&self, key: u64) -> Option<u64> {
        self.view.look_up(key).await
    }

    /// [`Self::get`] of each key, with group prefetching by hand.
    #[inline(always)]
    pub fn get_grouped(&self, keys: &[u64], values: &mut [Option<u64>]) {
        self.view.get_grouped(keys, values);
    }

    fn position_of(&self, key: u64) -> Option<SlotPosition> {
        let buckets = self.view.buckets_of(self.view.hash(key));
        buckets.into_iter().find_map(|bucket| Some(SlotPosition { bucket, slot: self.view.slot_of(bucket, key)? }))
    }

    fn free_in(&self, bucket: usize) -> Option<SlotPosition> {
        // In a packed table, the whole word of an empty slot is 0, since no key is 0.
        self.view.slot_of(bucket, 0).map(|slot| SlotPosition { bucket, slot })
    }

    /// Makes a change that readers of `key` see either whole or not at all.
    fn change(&self, key: u64, change: impl FnOnce(&TableWords)) {
        let version = View::<P>::version(self.view.hash(key));
        self.view.versions.begin_write(version);
        change(&self.view.words);
        self.view.versions.end_write(version);
    }

    fn write(words: &TableWords, SlotPosition { bucket, slot }: SlotPosition, item: Option<(u64, u64)>) {
        let (key, value) = item.unwrap_or((0, 0));
        let start = View::<P>::start(bucket) + slot;
        if P::COLUMNS == 1 {
            words.store(start, key << P::VALUE_BITS | value);
        } else {
            words.store(start + SLOTS, value);
            words.store(start, key);
        }
    }

    fn key_at(&self, SlotPosition { bucket, slot }: SlotPosition) -> u64 {
        self.view.words.load(View::<P>::start(bucket) + slot) >> P::VALUE_BITS
    }

    /// Stores a value and returns the key's earlier one.
    ///
    /// # Errors
    ///
    /// [`CuckooError::Full`], [`CuckooError::ZeroKey`], [`CuckooError::TooLarge`]; then the table is unchanged.
    pub fn insert(&mut self, key: u64, value: u64) -> Result<Option<u64>, CuckooError> {
        if key == 0 {
            return Err(CuckooError::ZeroKey);
        }
        if P::COLUMNS == 1 && (key >> (64 - P::VALUE_BITS) != 0 || value >> P::VALUE_BITS != 0) {
            return Err(CuckooError::TooLarge { key, value });
        }
        if let Some(position) = self.position_of(key) {
            let old = self.view.value_at(position);
            self.change(key, |words| Self::write(words, position, Some((key, value))));
            return Ok(Some(old));
        }
        let full = CuckooError::Full { items: self.items, capacity: self.capacity };
        let position = self.make_room(self.view.buckets_of(self.view.hash(key))).ok_or(full)?;
        self.change(key, |words| Self::write(words, position, Some((key, value))));
        self.items += 1;
        Ok(None)
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: u64) -> Option<u64> {
        let position = if key == 0 { None } else { self.position_of(key) }?;
        let old = self.view.value_at(position);
        self.change(key, |words| Self::write(words, position, None));
        self.items -= 1;
        Some(old)
    }

    /// Finds a free slot in one of two buckets, moving other items if necessary.
    fn make_room(&mut self, buckets: [usize; 2]) -> Option<SlotPosition> {
        let mut paths = std::mem::take(&mut self.paths);
        paths.clear();
        paths.extend(buckets.map(|bucket| PathStep { bucket, from: None }));
        let found = self.path_to_free(&mut paths);
        let freed = found.map(|(end, mut free)| {
            let mut at = end;
            // From the end of the chain: each item is in its new place before its old one is needed.
            while let Some((from, slot)) = paths[at].from {
                let moving = SlotPosition { bucket: paths[from].bucket, slot };
                let item = (self.key_at(moving), self.view.value_at(moving));
                self.change(item.0, |words| {
                    Self::write(words, free, Some(item));
                    Self::write(words, moving, None);
                });
                (free, at) = (moving, from);
            }
            free
        });
        self.paths = paths;
        freed
    }

    /// Finds the shortest path to a bucket with a free slot; returns its index and the slot.
    fn path_to_free(&self, steps: &mut Vec<PathStep>) -> Option<(usize, SlotPosition)> {
        let mut at = 0;
        while at < steps.len() {
            let bucket = steps[at].bucket;
            if let Some(free) = self.free_in(bucket) {
                return Some((at, free));
            }
            for slot in 0..SLOTS {
                if steps.len() >= BUCKETS_SEARCHED_MAX {
                    break;
                }
                let [first, second] = self.view.buckets_of(self.view.hash(self.key_at(SlotPosition { bucket, slot })));
                let other = if first == bucket { second } else { first };
                // A path that visits a bucket twice would move an item twice.
                if steps.iter().all(|step| step.bucket != other) {
                    steps.push(PathStep { bucket: other, from: Some((at, slot)) });
                }
            }
            at += 1;
        }
        None
    }
}

/// Reads a table that another thread writes. See [`Cuckoo::reader`].
#[derive(Clone, Debug)]
pub struct CuckooReader<P: Packing = Wide> {
    view: View<P>,
}

impl<P: Packing> CuckooReader<P> {
    /// Returns the value of a key, as it was at one moment during the call. Retries for as long as the writer keeps
    /// changing items with the same version.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u64> {
        sinew_interleave::alone(self.retry_until_stable(key, |key| std::future::ready(self.view.get(key))))
    }

    /// [`Self::get`] as a lookup that lets others run while it waits.
    #[inline(always)]
    pub async fn look_up(&self, key: u64) -> Option<u64> {
        self.retry_until_stable(key, |key| self.view.look_up(key)).await
    }

    /// [`Self::get`] of each key, interleaved; results are in the order of the keys. Returns the number of keys.
    #[inline(always)]
    pub fn get_all<const MAX: usize>(
        &self,
        batch: Batch<MAX>,
        keys: impl IntoIterator<Item = u64>,
        values: &mut [Option<u64>],
    ) -> usize {
        batch.run(keys, values, |key| self.look_up(key))
    }

    #[inline(always)]
    async fn retry_until_stable<F: Future<Output = Option<u64>>>(
        &self,
        key: u64,
        look: impl Fn(u64) -> F,
    ) -> Option<u64> {
        let version = View::<P>::version(self.view.hash(key));
        let mut tries = 0;
        loop {
            if let Some(stamp) = self.view.versions.stamp(version) {
                let value = look(key).await;
                if self.view.versions.is_unchanged(version, stamp) {
                    return value;
                }
            }
            tries += 1;
            if tries % TRIES_BEFORE_YIELD == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}
