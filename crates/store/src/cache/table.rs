//! The table as seen by its one writer.

use std::cell::Cell;
use std::convert::Infallible;

use sinew_mem::TableWords;

use super::census::Census;
use super::entry::{Entry, Extras, ItemMeta, VALUE_LEN_LIMIT};
use super::heap::Heap;
use super::key::{KEY_LEN_MAX, Key, KeyHasher};
use super::log::{Head, Log, OFFSET_BITS, OlderHalf, offset_of};
use super::oldest::Oldest;
use super::reader::CacheReader;
use super::view::{CHAIN_MAX, CONTROL_WORDS, FoundItem, HEAD, SLOTS, Slot, View, is_dead_at};
use super::{CacheConfig, CacheError, CacheStats, Eviction, ModifyError, Put, PutError, VALUE_LEN_MAX, When, WhenFull};

/// Expected items for each bucket: half of its slots, so that few items find their bucket full.
const ITEMS_PER_BUCKET: usize = 4;
/// Smallest memory of a table, in words.
pub(super) const WORDS_MIN: usize = 16;
/// Buckets for each spare one, in a table that does not evict.
const BUCKETS_PER_SPARE: usize = 4;
/// Most versions of buckets that readers check; more would only take up cache.
const VERSIONS_MAX: usize = 1 << 16;

const _: () = assert!(VALUE_LEN_MAX <= VALUE_LEN_LIMIT);

/// The space where items lie.
#[derive(Debug)]
pub(super) enum Space {
    Log(Log),
    Heap(Heap),
}

/// Room for an item.
struct Reserved {
    position: u64,
    /// Words reserved.
    room: usize,
    /// Whether other items were removed to make room.
    reclaimed: bool,
}

/// The item that a new one with the same key replaces.
#[derive(Clone, Copy)]
struct Existing {
    found: FoundItem,
    /// See [`View::is_dead`].
    is_dead: bool,
}

/// A table: see [the module](super). It belongs to one thread at a time.
#[derive(Debug)]
pub struct Cache {
    pub(super) view: View,
    pub(super) hasher: KeyHasher,
    pub(super) space: Space,
    /// Free buckets for chaining.
    pub(super) spares: Vec<usize>,
    value_len_max: usize,
    /// See [`Eviction::OldestUnread`].
    pub(super) spares_read: bool,
    /// Places of the items whose reads are noted, so that they are spared.
    noted: OlderHalf,
    /// Highest version given to an item so far.
    pub(super) version: u64,
    /// Some item was stored with an expiry.
    pub(super) any_expires: bool,
    /// Next bucket to search for expired items.
    pub(super) cursor: usize,
    hits: Cell<u64>,
    misses: Cell<u64>,
    stored: u64,
    pub(super) census: Census,
    /// Buffer for a value being modified.
    scratch: Vec<u8>,
    pub(super) oldest: Oldest,
    /// Buffer for the key of an item that leaves.
    pub(super) key: Vec<u8>,
}

/// GETs between two changes of a [`Cache`]: what they have in common is read once. They are to be
/// [counted](Cache::count_gets) together.
#[derive(Clone, Copy, Debug)]
pub struct Gets<'a> {
    cache: &'a Cache,
    head: Head,
    cleared: u64,
    now_s: u32,
}

impl<'a> Gets<'a> {
    /// Returns the item of `key`, if there is one.
    #[inline(always)]
    pub fn get(&self, key: &Key<'_>) -> Option<Item<'a>> {
        let mut item = self.peek(key)?;
        item.entry.note_read(item.body, self.cache.noted.contains(item.entry.offset));
        Some(item)
    }

    #[inline(always)]
    fn peek(&self, key: &Key<'_>) -> Option<Item<'a>> {
        let view = &self.cache.view;
        let entry = view.find_at(self.head, key)?.entry;
        let extras = entry.extras(&view.body);
        let is_dead = is_dead_at(self.cleared, &entry, extras, self.now_s);
        (!is_dead).then_some(Item { body: &view.body, entry, extras })
    }
}

/// An item in the table.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    body: &'a TableWords,
    entry: Entry,
    extras: Extras,
}

/// The value of an item: its place, without what else is known of the item.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    body: &'a TableWords,
    offset: usize,
    len: usize,
}

impl Value<'_> {
    /// Its length, in bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the value to `target`.
    ///
    /// # Panics
    ///
    /// When `target` is not as [long](Value::len) as the value.
    #[inline(always)]
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "a value is copied whole");
        self.body.read(self.offset, target);
    }
}

impl<'a> Item<'a> {
    /// The value.
    #[inline(always)]
    pub fn value(&self) -> Value<'a> {
        Value { body: self.body, offset: self.entry.value_offset(), len: self.entry.value_len() }
    }
}

impl Item<'_> {
    /// Length of the value, in bytes.
    #[inline(always)]
    pub fn value_len(&self) -> usize {
        self.entry.value_len()
    }

    /// Version, which changes with every change of the item and is unique in the table. Compare-and-swap compares it.
    #[inline(always)]
    pub fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Flags, a number of the client's own.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        self.extras.flags
    }

    /// Time of expiry in seconds; 0 means never.
    #[inline(always)]
    pub fn expires_s(&self) -> u32 {
        self.extras.expires_s
    }

    /// Four bits in which the table's owner can remember something, set by [`Item::mark`]. A [put](Cache::put) clears
    /// them; every other change of the item keeps them.
    #[inline(always)]
    pub fn marks(&self) -> u8 {
        self.entry.marks()
    }

    /// Replaces the [marks](Item::marks): the lower four bits of `marks`. The version stays.
    #[inline(always)]
    pub fn mark(&self, marks: u8) {
        self.entry.store_marks(self.body, marks & 0xF);
    }

    /// Copies the value to `target`.
    ///
    /// # Panics
    ///
    /// When `target` is not [`Item::value_len`] long.
    #[inline(always)]
    pub fn copy_to(&self, target: &mut [u8]) {
        self.value().copy_to(target);
    }

    /// Appends the value to `target`.
    #[inline]
    pub fn append_to(&self, target: &mut Vec<u8>) {
        let start = target.len();
        target.resize(start + self.entry.value_len(), 0);
        self.entry.read_value(self.body, &mut target[start..]);
    }
}

impl Cache {
    /// Makes an empty table. It takes memory from the system as the memory is first used.
    ///
    /// # Errors
    ///
    /// [`CacheError`].
    pub fn new(config: &CacheConfig) -> Result<Self, CacheError> {
        let CacheConfig { items, memory_bytes, value_len_max, .. } = *config;
        let config_error = |why| CacheError::Config { items, memory_bytes, value_len_max, why };
        let evicts = config.when_full == WhenFull::Evict;
        let words = memory_bytes / 8;
        let words_max = if evicts { words.max(config.memory_bytes_max / 8) } else { words };
        if value_len_max > VALUE_LEN_MAX {
            return Err(config_error("values are at most 128 MB"));
        }
        if words_max >= 1 << OFFSET_BITS {
            return Err(config_error("a table has less than 512 GB of memory: make several"));
        }
        if words < WORDS_MIN {
            return Err(config_error("give it more memory"));
        }
        let buckets = u32::try_from(items.div_ceil(ITEMS_PER_BUCKET).max(1))
            .ok()
            .filter(|buckets| *buckets <= 1 << 31)
            .ok_or_else(|| config_error("a table has at most 8 billion items: make several"))?;
        let spares = if evicts { 0 } else { (buckets as usize).div_ceil(BUCKETS_PER_SPARE) + CHAIN_MAX };
        let zeroed = |words: usize| {
            TableWords::zeroed(words).map_err(|source| CacheError::Memory { bytes: words.saturating_mul(8), source })
        };
        let versions = (buckets as usize).next_power_of_two().min(VERSIONS_MAX);
        let view = View {
            index: zeroed((buckets as usize + spares) * SLOTS)?,
            buckets,
            body: zeroed(words_max)?,
            control: zeroed(CONTROL_WORDS)?,
            versions: config.readers.then(|| zeroed(versions)).transpose()?,
            evicts,
        };
        let space = if evicts {
            let log = Log::new(words);
            view.control.store(HEAD, log.head().0);
            Space::Log(log)
        } else {
            Space::Heap(Heap::new(&view.body))
        };
        Ok(Self {
            space,
            hasher: KeyHasher::new(config.seed),
            spares: (buckets as usize..buckets as usize + spares).rev().collect(),
            value_len_max,
            spares_read: evicts && config.eviction == Eviction::OldestUnread,
            noted: OlderHalf::NONE,
            version: 0,
            any_expires: false,
            cursor: 0,
            hits: Cell::new(0),
            misses: Cell::new(0),
            stored: 0,
            census: Census::default(),
            scratch: Vec::new(),
            oldest: Oldest::default(),
            key: Vec::new(),
            view,
        })
    }

    /// The hasher that all keys must be made with.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// Makes a reader for use by another thread while this one writes the table.
    ///
    /// `None` if the table was not made for [readers](CacheConfig::readers).
    pub fn reader(&self) -> Option<CacheReader> {
        CacheReader::new(self.view.clone(), self.hasher.clone())
    }

    /// Prefetches the bucket of `key`, the first of the two misses that a request costs. For a batch, prefetch all
    /// buckets, then all [items](Cache::prefetch_item), and then execute the requests.
    #[inline(always)]
    pub fn prefetch_bucket(&self, key: &Key<'_>) {
        self.view.prefetch_bucket(key);
    }

    /// Prefetches the item of `key`, the second miss. Its bucket must have been prefetched a while ago.
    #[inline(always)]
    pub fn prefetch_item(&self, key: &mut Key<'_>) {
        self.view.prefetch_item(key);
    }

    #[inline(always)]
    fn find(&self, key: &Key<'_>, now_s: u32) -> Option<(FoundItem, Extras)> {
        let found = self.view.find(key)?;
        let extras = found.entry.extras(&self.view.body);
        (!self.view.is_dead(&found.entry, extras, now_s)).then_some((found, extras))
    }

    /// Returns the item of `key`, if there is one.
    #[inline(always)]
    pub fn get(&self, key: &Key<'_>, now_s: u32) -> Option<Item<'_>> {
        let item = self.gets(now_s).get(key);
        let count = if item.is_some() { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        item
    }

    /// Begins several GETs between two changes of the table.
    #[inline(always)]
    pub fn gets(&self, now_s: u32) -> Gets<'_> {
        Gets { cache: self, head: self.view.head(), cleared: self.view.cleared(), now_s }
    }

    /// Counts [several](Cache::gets) GETs, of which this many were hits.
    #[inline(always)]
    pub fn count_gets(&self, gets: u64, hits: u64) {
        self.hits.set(self.hits.get() + hits);
        self.misses.set(self.misses.get() + (gets - hits));
    }

    /// As [`Cache::get`], but counted as neither hit nor miss.
    #[inline(always)]
    pub fn peek(&self, key: &Key<'_>, now_s: u32) -> Option<Item<'_>> {
        self.gets(now_s).peek(key)
    }

    /// Stores a value; returns its version.
    ///
    /// # Errors
    ///
    /// [`PutError`].
    pub fn put(&mut self, key: &Key<'_>, value: &[u8], put: &Put, now_s: u32) -> Result<u64, PutError> {
        if key.bytes().len() > KEY_LEN_MAX {
            return Err(PutError::KeyTooLong { len: key.bytes().len() });
        }
        let old = self.view.find(key).map(|found| Existing { is_dead: self.is_dead(&found.entry, now_s), found });
        if put.when != When::Always {
            let present = old.filter(|old| !old.is_dead).map(|old| old.found.entry.version());
            put.when.permits(present)?;
        }
        let extras = Extras { flags: put.flags, expires_s: put.expires_s };
        let meta = ItemMeta { extras, marks: 0, version: self.version + 1 };
        self.store(key, value, meta, old, now_s)
    }

    /// Changes the value of an item and returns its new version. Flags, marks and expiry stay.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; then `change` had no effect.
    pub fn modify<E>(
        &mut self,
        key: &Key<'_>,
        now_s: u32,
        change: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, ModifyError<E>> {
        let next = self.version + 1;
        self.rewrite(key, now_s, |value, meta| {
            meta.version = next;
            change(value)
        })
    }

    /// Changes the flags of an item, its expiry, or both; returns its version, which stays the same.
    ///
    /// # Errors
    ///
    /// [`PutError::Absent`], and, in a table that does not evict, [`PutError::Full`].
    pub fn touch(
        &mut self,
        key: &Key<'_>,
        flags: Option<u32>,
        expires_s: Option<u32>,
        now_s: u32,
    ) -> Result<u64, PutError> {
        let (found, mut extras) = self.find(key, now_s).ok_or(PutError::Absent)?;
        extras.flags = flags.unwrap_or(extras.flags);
        extras.expires_s = expires_s.unwrap_or(extras.expires_s);
        if found.entry.has_extras() {
            found.entry.store_extras(&self.view.body, extras);
            self.any_expires |= extras.expires_s != 0;
            return Ok(found.entry.version());
        }
        let changed = self.rewrite(key, now_s, |_, meta| {
            meta.extras = extras;
            Ok::<(), Infallible>(())
        });
        changed.map_err(|error| match error {
            ModifyError::Put(error) => error,
            ModifyError::Refused(never) => match never {},
        })
    }

    /// Stores an item again, with its value, extras, marks and version as `change` alters them.
    fn rewrite<E>(
        &mut self,
        key: &Key<'_>,
        now_s: u32,
        change: impl FnOnce(&mut Vec<u8>, &mut ItemMeta) -> Result<(), E>,
    ) -> Result<u64, ModifyError<E>> {
        let (found, extras) = self.find(key, now_s).ok_or(PutError::Absent)?;
        let mut meta = ItemMeta { extras, marks: found.entry.marks(), version: found.entry.version() };
        let mut value = std::mem::take(&mut self.scratch);
        value.resize(found.entry.value_len(), 0);
        found.entry.read_value(&self.view.body, &mut value);
        let result = change(&mut value, &mut meta)
            .map_err(ModifyError::Refused)
            .and_then(|()| Ok(self.store(key, &value, meta, Some(Existing { found, is_dead: false }), now_s)?));
        self.scratch = value;
        result
    }

    /// Removes the item of `key`; returns whether there was one.
    pub fn delete(&mut self, key: &Key<'_>, now_s: u32) -> bool {
        let Some(found) = self.view.find(key) else { return false };
        let bucket = key.bucket(self.view.buckets);
        if self.view.is_dead(&found.entry, found.entry.extras(&self.view.body), now_s) {
            self.remove_dead(bucket, found.slot, &found.entry);
            return false;
        }
        self.census.leave(&found.entry, self.cleared());
        self.remove(bucket, found.slot);
        true
    }

    /// Counters so far, and how full the table is.
    pub fn stats(&self) -> CacheStats {
        let (used_words, capacity_words) = match &self.space {
            Space::Log(log) => (log.used(), log.words()),
            Space::Heap(heap) => (heap.used(), self.view.body.len()),
        };
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            items: self.census.items,
            stored: self.stored,
            evictions: self.census.evictions,
            evicted_unfetched: self.census.evicted_unfetched,
            spared: self.census.spared,
            reclaimed: self.census.reclaimed,
            expired_unfetched: self.census.expired_unfetched,
            item_bytes: self.census.words * 8,
            used_bytes: used_words * 8,
            capacity_bytes: capacity_words * 8,
            index_bytes: self.view.index.len() * 8,
        }
    }

    /// Stores an item in place of `old`, which has the same key.
    #[inline(always)]
    fn store(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        meta: ItemMeta,
        old: Option<Existing>,
        now_s: u32,
    ) -> Result<u64, PutError> {
        if value.len() > self.value_len_max {
            return Err(PutError::ValueTooLong { len: value.len(), max: self.value_len_max });
        }
        let words = Entry::words(key.bytes().len(), value.len(), meta.has_extras());
        match old {
            Some(old) if self.fits_in_place(&old.found, words, meta.has_extras()) => {
                self.overwrite(key, value, &meta, &old);
            }
            // A separate call, so that nothing is prepared for `old` when there is none.
            Some(old) => self.append(key, value, words, &meta, Some(old), now_s)?,
            None => self.append(key, value, words, &meta, None, now_s)?,
        }
        // A touched item keeps its version.
        self.version = meta.version.max(self.version);
        self.stored += 1;
        self.any_expires |= meta.extras.expires_s != 0;
        Ok(meta.version)
    }

    /// Stores an item where `old` lies.
    #[inline(always)]
    fn overwrite(&mut self, key: &Key<'_>, value: &[u8], meta: &ItemMeta, old: &Existing) {
        let replaced = &old.found.entry;
        let entry = replaced.with_value(value.len(), meta);
        let bucket = key.bucket(self.view.buckets);
        self.begin_bucket_write(bucket);
        entry.store(&self.view.body, meta.extras);
        entry.store_value(&self.view.body, value);
        self.end_bucket_write(bucket);
        // Otherwise the number of items and words is the same as before.
        if old.is_dead {
            self.census.leave(replaced, self.cleared());
            self.census.reclaim(replaced);
            self.census.enter(&entry);
        }
    }

    /// Stores an item of `words` words in a new place.
    #[inline(never)]
    fn append(
        &mut self,
        key: &Key<'_>,
        value: &[u8],
        words: usize,
        meta: &ItemMeta,
        replaced: Option<Existing>,
        now_s: u32,
    ) -> Result<(), PutError> {
        let bucket = key.bucket(self.view.buckets);
        let old = replaced.map(|old| old.found);
        let Reserved { position, room, reclaimed } = self.reserve(words, value.len(), old, now_s)?;
        // Reclaiming may have removed the old item, or moved its slot.
        let old = if reclaimed { self.view.find(key) } else { old };
        let replaced = replaced.filter(|_| old.is_some());
        let entry = Entry::new(offset_of(position), room, key.bytes().len(), value.len(), meta);
        if old.is_some() {
            // The new item may overwrite the old one: a reader must find one or the other.
            self.begin_bucket_write(bucket);
        }
        // Announced before any reader can see the new data.
        let head = if let Space::Log(log) = &self.space { log.head().0 } else { 0 };
        self.view.control.announce(HEAD, head);
        entry.store(&self.view.body, meta.extras);
        entry.store_key(&self.view.body, key.bytes());
        entry.store_value(&self.view.body, value);
        let slot = match old {
            // The slot stays, though the log may have overwritten the old item by now.
            Some(old) => old.slot,
            None => match self.find_free_slot(bucket, now_s) {
                Ok(slot) => slot,
                Err(error) => {
                    self.free(position);
                    return Err(error);
                }
            },
        };
        self.begin_bucket_write(bucket);
        self.view.index.store(slot, Slot::item(key.tag(), position).0);
        self.end_bucket_write(bucket);
        if let Some(old) = old {
            self.free(old.position);
        }
        if let Some(Existing { found, is_dead }) = replaced {
            self.census.leave(&found.entry, self.cleared());
            if is_dead {
                self.census.reclaim(&found.entry);
            }
        }
        self.census.enter(&entry);
        Ok(())
    }

    /// Whether an item of `words` words can take the place of `old`.
    #[inline(always)]
    fn fits_in_place(&self, old: &FoundItem, words: usize, has_extras: bool) -> bool {
        if has_extras != old.entry.has_extras() || words > old.entry.room() {
            return false;
        }
        match &self.space {
            // A freshly stored item should not be the next to be evicted.
            Space::Log(log) => log.appended_since(old.position) <= log.words() / 2,
            Space::Heap(_) => words * 2 >= old.entry.room(),
        }
    }

    /// Reserves room for an item of `words` words, possibly in the place of `old`.
    fn reserve(
        &mut self,
        words: usize,
        value_len: usize,
        old: Option<FoundItem>,
        now_s: u32,
    ) -> Result<Reserved, PutError> {
        let words_max = match &self.space {
            Space::Log(log) => log.words(),
            Space::Heap(_) => Heap::words_max(&self.view.body),
        };
        if words > words_max {
            let max = self.value_len_max.min(value_len.saturating_sub((words - words_max) * 8));
            return Err(PutError::ValueTooLong { len: value_len, max });
        }
        self.evict_for(words, old.map(|old| old.position), now_s);
        if let Space::Log(log) = &mut self.space {
            let position = log.reserve(words);
            self.note_head_moved();
            return Ok(Reserved { position, room: words, reclaimed: false });
        }
        for reclaimed in [false, true] {
            let Space::Heap(heap) = &mut self.space else { break };
            if let Some((offset, room)) = heap.alloc(&self.view.body, words) {
                return Ok(Reserved { position: offset as u64, room, reclaimed });
            }
            if !reclaimed && self.any_expires {
                self.reclaim(now_s);
            }
        }
        Err(self.full_error())
    }

    /// To be called when the head of a log has moved, before the next GET.
    #[inline(always)]
    pub(super) fn note_head_moved(&mut self) {
        if let Space::Log(log) = &self.space
            && self.spares_read
        {
            self.noted = log.older_half();
        }
    }

    fn full_error(&self) -> PutError {
        let CacheStats { used_bytes, capacity_bytes, .. } = self.stats();
        PutError::Full { used_bytes, capacity_bytes }
    }

    pub(super) fn free(&mut self, position: u64) {
        if let Space::Heap(heap) = &mut self.space {
            heap.free(&self.view.body, offset_of(position));
        }
    }

    #[inline(always)]
    pub(super) fn begin_bucket_write(&self, bucket: usize) {
        if let Some(versions) = &self.view.versions {
            versions.begin_write(View::version_of(versions, bucket));
        }
    }

    #[inline(always)]
    pub(super) fn end_bucket_write(&self, bucket: usize) {
        if let Some(versions) = &self.view.versions {
            versions.end_write(View::version_of(versions, bucket));
        }
    }

    /// Counts an item of a full bucket as gone: one that has expired or was cleared, or else the oldest one. Returns
    /// the place of its slot in the bucket.
    #[cold]
    fn displace(&mut self, bucket: usize, oldest: usize, now_s: u32) -> usize {
        let slots = self.view.bucket(bucket);
        let is_dead = |slot: &Slot| self.entry_of(*slot).is_some_and(|entry| self.is_dead(&entry, now_s));
        // If no item ever expires and nothing was cleared, the items need not be read.
        let may_be_dead = self.any_expires || self.cleared() > 0;
        let at = if may_be_dead { slots.iter().position(is_dead) } else { None }.unwrap_or(oldest);
        if let Some(entry) = self.entry_of(slots[at]) {
            self.count_evicted(&entry, now_s);
        }
        at
    }

    /// Finds a slot of `bucket` for one more item.
    fn find_free_slot(&mut self, bucket: usize, now_s: u32) -> Result<usize, PutError> {
        if self.view.evicts {
            let head = self.view.head();
            let slots = self.view.bucket(bucket);
            let age = |slot: Slot| if slot.is_item() { head.age(slot.position()) } else { u64::MAX };
            // An empty slot if there is one, else that of the oldest item.
            let (at, slot) =
                slots.into_iter().enumerate().max_by_key(|(_, slot)| age(*slot)).expect("a bucket has slots");
            let at = if slot.is_item() { self.displace(bucket, at, now_s) } else { at };
            return Ok(bucket * SLOTS + at);
        }
        let mut last = bucket;
        for buckets in 1..=CHAIN_MAX {
            let slots = self.view.bucket(last);
            if let Some(at) = slots.iter().position(|slot| *slot == Slot::EMPTY) {
                return Ok(last * SLOTS + at);
            }
            if let Some(next) = slots[SLOTS - 1].linked() {
                last = next;
                continue;
            }
            if buckets == CHAIN_MAX {
                break;
            }
            let spare = self.spares.pop().ok_or_else(|| self.full_error())?;
            self.begin_bucket_write(bucket);
            self.view.index.store(spare * SLOTS, slots[SLOTS - 1].0);
            self.view.index.store(last * SLOTS + SLOTS - 1, Slot::link(spare).0);
            self.end_bucket_write(bucket);
            return Ok(spare * SLOTS + 1);
        }
        Err(self.full_error())
    }
}
