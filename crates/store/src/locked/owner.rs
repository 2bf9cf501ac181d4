//! The owner's side of a locked table.

use std::collections::VecDeque;

use sinew_mem::{SharedMemory, prefetch_read};

use super::{BUCKET_LEN, ENTRIES, HEAD_LEN, Layout, LockWord, Record, WAYS, entry, matching};
use crate::remote::{Index as _, TableError};

/// Insertions ahead of which the record that one will take is prefetched.
const RECORDS_AHEAD: usize = 8;

/// The owner's record of an item.
#[derive(Clone, Copy, Debug)]
struct Item {
    hash: u64,
    bucket: u32,
    /// Index of its entry in the bucket.
    at: u8,
}

/// Result of releasing a lost client's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The item was moved to another record.
    Moved,
    /// There was no free record: the item stays where it was.
    Kept,
    /// The record was free, or its contents were damaged: it is free now.
    Removed,
}

/// State in which a record was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// Undamaged, and not locked.
    Well,
    /// Locked by a client.
    Held(LockWord),
    /// Damaged by a client; it is free now.
    Repaired,
}

/// A key's hash and buckets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Located {
    hash: u64,
    buckets: [u32; WAYS as usize],
}

/// A table, as its owner changes it.
#[derive(Debug)]
pub struct LockedTable {
    layout: Layout,
    memory: SharedMemory,
    /// The item of each record, if it has one.
    items: Vec<Option<Item>>,
    /// The true contents of each bucket.
    buckets: Vec<[u64; ENTRIES]>,
    /// Free records, those free longest first.
    free: VecDeque<u32>,
    /// Buffer for a record being read or written.
    image: Vec<u8>,
}

impl LockedTable {
    /// Makes an empty table in `memory`, which must be all zero.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`], [`TableError::Memory`].
    pub fn new(layout: Layout, memory: SharedMemory) -> Result<Self, TableError> {
        layout.check()?;
        let (need, len) = (layout.memory_len(), memory.len());
        if need > len {
            return Err(TableError::Memory { need, len });
        }
        let table = Self {
            layout,
            memory,
            items: vec![None; layout.records as usize],
            buckets: vec![[0; ENTRIES]; layout.buckets as usize],
            free: (0..layout.records).collect(),
            image: vec![0; layout.record_len()],
        };
        for record in 0..layout.records {
            table.set_lock(record, LockWord::free(0).held_by(LockWord::OWNER));
        }
        Ok(table)
    }

    /// The layout that clients need to know.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn start(&self, record: u32) -> usize {
        self.layout.record_span(record).offset as usize
    }

    /// Returns the lock word of a record; if there is no such record, one held by the owner.
    fn lock(&self, record: u32) -> LockWord {
        let word = (record < self.layout.records).then(|| self.memory.load(self.start(record)));
        word.and_then(Result::ok).map_or(LockWord(u64::MAX), LockWord)
    }

    fn set_lock(&self, record: u32, lock: LockWord) {
        // Cannot fail: `new` checked that the table fits.
        let _ = self.memory.store(self.start(record), lock.0);
    }

    /// Copies a record into `image`.
    fn load(&mut self, record: u32) {
        let start = self.start(record);
        let _ = self.memory.read(start, &mut self.image);
    }

    /// Hashes a key. The owner of a table can make a change in steps, as [`crate::remote::Table`] says.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Located {
        let hash = self.layout.hash(key);
        Located { hash, buckets: std::array::from_fn(|way| self.layout.bucket(hash, way as u8)) }
    }

    /// Prefetches the buckets of a key.
    #[inline]
    pub fn prefetch(&self, located: &Located) {
        located.buckets.iter().filter_map(|bucket| self.buckets.get(*bucket as usize)).for_each(|bucket| {
            prefetch_read(&bucket[0]);
            prefetch_read(&bucket[ENTRIES - 1]);
        });
    }

    /// Reads these buckets, and prefetches the item that they name.
    #[inline]
    pub fn prefetch_item(&self, located: &Located) {
        for bucket in located.buckets.iter().filter_map(|bucket| self.buckets.get(*bucket as usize)) {
            let mut matching = matching(bucket, located.hash);
            while matching != 0 {
                let entry = bucket[matching.trailing_zeros() as usize % ENTRIES];
                if let Some(record) = (entry as u32).checked_sub(1) {
                    self.prefetch_record(record);
                }
                matching &= matching - 1;
            }
        }
    }

    #[inline(always)]
    fn prefetch_record(&self, record: u32) {
        if let Some(item) = self.items.get(record as usize) {
            prefetch_read(item);
        }
        let start = self.start(record);
        (start..start + self.layout.record_len()).step_by(64).for_each(|offset| self.memory.prefetch_line(offset));
    }

    /// Returns the record of a key. A record with this hash whose key is damaged is freed: if its key were repaired one
    /// day, there would be two items with that key.
    fn find(&mut self, key: &[u8], Located { hash, buckets }: Located) -> Option<u32> {
        for bucket in buckets {
            let mut matching = matching(&self.buckets[bucket as usize], hash);
            while matching != 0 {
                let entry = self.buckets[bucket as usize][matching.trailing_zeros() as usize % ENTRIES];
                matching &= matching - 1;
                let Some(record) = (entry as u32).checked_sub(1) else { continue };
                if self.items[record as usize].is_none_or(|item| item.hash != hash) {
                    continue;
                }
                self.load(record);
                match self.layout.key(&self.image) {
                    Some(found) if found == key => return Some(record),
                    Some(found) if self.layout.hash(found) == hash => {}
                    _ => self.discard(record),
                }
            }
        }
        None
    }

    /// Returns a free entry in the emptier of a key's buckets.
    fn free_entry(&self, located: Located) -> Option<(u32, u8)> {
        let free_entries = located.buckets.into_iter().filter_map(|bucket| {
            let entries = &self.buckets[bucket as usize];
            let free = entries.iter().enumerate().fold(0u8, |free, (at, entry)| free | u8::from(*entry == 0) << at);
            (free != 0).then(|| (free.count_zeros(), bucket, free.trailing_zeros() as u8))
        });
        free_entries.min().map(|(_, bucket, at)| (bucket, at))
    }

    /// Writes an item to a record that the owner holds, and unlocks it.
    fn fill(&mut self, record: u32, hash: u64, key: &[u8], value: &[u8]) {
        let (start, next) = (self.start(record), self.lock(record).next());
        let _ = self.memory.store(start + 8, key.len() as u64);
        let _ = self.memory.write(start + HEAD_LEN, key);
        let offset = self.layout.image(&mut self.image, hash, record, next.version(), value);
        let _ = self.memory.write(offset as usize, &self.image);
        self.image.resize(self.layout.record_len(), 0);
        self.set_lock(record, next);
    }

    /// Makes an entry name a record, or none.
    fn set_entry(&mut self, Item { hash, bucket, at }: Item, record: Option<u32>) {
        let entry = record.map_or(0, |record| entry(hash, record));
        let _ = self.memory.store(bucket as usize * BUCKET_LEN + usize::from(at) * 8, entry);
        self.buckets[bucket as usize][usize::from(at)] = entry;
    }

    /// Frees a record.
    fn free(&mut self, record: u32) {
        // When the record is filled again its version is higher by two, so a late WRITE of its last holder still hits
        // the place that is not current.
        let version = self.lock(record).next();
        self.set_lock(record, version.held_by(LockWord::OWNER));
        if self.items[record as usize].take().is_some() {
            self.free.push_back(record);
        }
    }

    /// Stores an item. Returns false if the key has one already, which a client may lock and change.
    ///
    /// # Errors
    ///
    /// [`TableError`]; then the table is unchanged.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        self.insert_located(key, value, self.locate(key))
    }

    /// As [`Self::insert`], of a key that this table has located as `located`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn insert_located(&mut self, key: &[u8], value: &[u8], located: Located) -> Result<bool, TableError> {
        let Layout { key_len_max, value_len_max, .. } = self.layout;
        if !(1..=key_len_max as usize).contains(&key.len()) {
            return Err(TableError::Key { len: key.len(), max: key_len_max as usize });
        }
        if value.len() > value_len_max as usize {
            return Err(TableError::Value { len: value.len(), max: value_len_max as usize });
        }
        if self.find(key, located).is_some() {
            return Ok(false);
        }
        let full = TableError::Full { items: self.len() };
        let (bucket, at) = self.free_entry(located).ok_or(full)?;
        let record = self.free.pop_front().ok_or(full)?;
        if let Some(ahead) = self.free.get(RECORDS_AHEAD - 1) {
            self.prefetch_record(*ahead);
        }
        self.fill(record, located.hash, key, value);
        let item = Item { hash: located.hash, bucket, at };
        self.items[record as usize] = Some(item);
        self.set_entry(item, Some(record));
        Ok(true)
    }

    /// Removes the item of a key whose record a client has locked with this lock word. Returns whether that was so.
    pub fn remove(&mut self, record: u32, lock: LockWord, key: &[u8]) -> bool {
        self.remove_located(record, lock, key, self.locate(key))
    }

    /// As [`Self::remove`], of a key that this table has located as `located`.
    pub fn remove_located(&mut self, record: u32, lock: LockWord, key: &[u8], located: Located) -> bool {
        if self.held(record) != Some(lock) || self.find(key, located) != Some(record) {
            return false;
        }
        self.discard(record);
        true
    }

    /// Removes the item of a record.
    fn discard(&mut self, record: u32) {
        if let Some(item) = self.items[record as usize] {
            self.set_entry(item, None);
        }
        self.free(record);
    }

    /// Returns the lock word of a record that a client holds.
    pub fn held(&self, record: u32) -> Option<LockWord> {
        Some(self.lock(record)).filter(|lock| lock.holder().is_some_and(|holder| holder != LockWord::OWNER))
    }

    /// Releases the lock of a holder that is gone: of the holder's operations, only one that was stopped halfway may
    /// still arrive. Returns `None` if the lock word has changed.
    pub fn release(&mut self, record: u32, lock: LockWord) -> Option<Released> {
        if lock.holder().is_none() || record >= self.layout.records || self.lock(record) != lock {
            return None;
        }
        let intact = self.items[record as usize].and_then(|item| Some((item, self.intact_record(record, item.hash)?)));
        let Some((item, (key, value))) = intact else {
            self.discard(record);
            return Some(Released::Removed);
        };
        let Some(to) = self.free.pop_front() else {
            self.set_lock(record, LockWord::free(lock.version()));
            return Some(Released::Kept);
        };
        self.fill(to, item.hash, &key, &value);
        self.items[to as usize] = Some(item);
        self.set_entry(item, Some(to));
        self.free(record);
        Some(Released::Moved)
    }

    /// Returns key and value of a record, if they are undamaged and those of an item with this hash.
    fn intact_record(&mut self, record: u32, hash: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        self.load(record);
        // Ignore the holder.
        self.image[6..8].fill(0);
        match self.layout.record(&self.image, record, (&[], 0)) {
            Record::Item { key, hash: found_hash, value, .. } if found_hash == hash => {
                Some((key.to_vec(), value.to_vec()))
            }
            _ => None,
        }
    }

    /// Inspects a record and its share of the buckets, and repairs damage. A damaged record that is not locked is
    /// freed. A client that knows its lock word may lock it at the same moment, and then loses its value; nothing is
    /// guaranteed for damaged records.
    pub fn inspect(&mut self, record: u32) -> Inspected {
        let buckets = (record..self.layout.buckets).step_by(self.layout.records as usize);
        let repaired = buckets.filter(|bucket| self.repair(*bucket)).count();
        match self.inspect_record(record) {
            Inspected::Well if repaired > 0 => Inspected::Repaired,
            inspected => inspected,
        }
    }

    /// Repairs a bucket; returns whether it was damaged.
    fn repair(&self, bucket: u32) -> bool {
        let start = bucket as usize * BUCKET_LEN;
        let mut is_repaired = false;
        for (at, entry) in self.buckets[bucket as usize].iter().enumerate() {
            if self.memory.load(start + at * 8) != Ok(*entry) {
                let _ = self.memory.store(start + at * 8, *entry);
                is_repaired = true;
            }
        }
        is_repaired
    }

    fn inspect_record(&mut self, record: u32) -> Inspected {
        let lock = self.lock(record);
        let Some(item) = self.items.get(record as usize).copied().flatten() else {
            if lock.holder() == Some(LockWord::OWNER) {
                return Inspected::Well;
            }
            self.free(record);
            return Inspected::Repaired;
        };
        if lock.holder().is_some() {
            return Inspected::Held(lock);
        }
        // No client writes the value of the current version, so a mismatch under an unchanged lock word is damage.
        if self.is_intact(record, item.hash) || self.lock(record) != lock {
            return Inspected::Well;
        }
        self.discard(record);
        Inspected::Repaired
    }

    fn is_intact(&mut self, record: u32, hash: u64) -> bool {
        self.load(record);
        let record = self.layout.record(&self.image, record, (&[], 0));
        matches!(record, Record::Item { hash: found, .. } if found == hash)
    }
}
