//! Pilaf's table (atc13; described in sigcomm14 5.1.1): 3-1 cuckoo hashing with self-verifying buckets and extents.
//!
//! A key can be in one of three buckets, of one item each. A bucket is 32 bytes: the place and length of the item, a
//! fingerprint of the key's hash, a version, the checksum of the item, and one of the bucket itself. The item, key and
//! value, is an *extent* elsewhere. A reader READs the buckets one after the other until the fingerprint fits, then the
//! extent.
//!
//! - To change a value, the owner writes another extent and then the bucket. The old extent may be reused at once: a
//!   reader that still goes there finds that the checksum in the bucket does not match, and reads the bucket again.
//! - To move an item, the owner writes its new bucket before it overwrites the old one, so the item is always
//!   somewhere. A reader can miss it all the same, if it looks at the one bucket before the move and at the other after
//!   it. So a reader that has found nothing reads the first two buckets once more: when their versions are the same,
//!   nothing moved meanwhile. (Versions have 32 bits: a bucket that is changed 2^32 times between two READs looks
//!   unchanged.)
//!
//! The table does not grow, and a PUT is refused when no items can be moved to make room. Up to a load of 75 % (Pilaf's
//! figure) refusals are next to impossible. The hash is public: someone who chooses keys can fill all three buckets of
//! a key.

use sinew_mem::{SharedMemory, prefetch_read};

use crate::remote::{Extent, Extents, Index, Span, Step, Table, TableError, checksum, index_from_hash, mix, word};

/// Bytes of a bucket.
pub const BUCKET_LEN: usize = 32;
/// Hash functions.
const WAYS: usize = 3;
/// Bytes before the key in an extent: lengths of key and value.
const ITEM_HEAD_LEN: usize = 8;
/// Buckets examined, at most, in search of a way to make room.
const BUCKETS_SEARCHED_MAX: usize = 512;
/// Seeds of the hash of keys, of the checksums of buckets, and of those of extents.
const KEY_SEED: u64 = 0x6B65_7973;
const BUCKET_SEED: u64 = 0x6275_636B;
const ITEM_SEED: u64 = 0x6974_656D;

/// Layout of a table, as readers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of buckets; there should be four for every three items.
    pub buckets: u32,
    /// Bytes for extents, at most 32 GiB. Each extent takes 8 bytes more than key and value, and up to an eighth on
    /// top.
    pub extent_bytes: u64,
    /// Longest key and value together, in bytes.
    pub item_len_max: u32,
    /// Seed of the hash that places items.
    pub seed: u64,
}

impl Layout {
    /// Length of the layout as encoded by [`Self::to_bytes`], in bytes.
    pub const BYTES: usize = 24;

    /// Checks that such a table is possible.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`].
    pub fn check(&self) -> Result<(), TableError> {
        let fail = |what, value, limit| Err(TableError::Layout { what, value, limit });
        if self.buckets < WAYS as u32 {
            return fail("buckets", self.buckets.into(), "at least 3");
        }
        if self.extent_bytes > 8 << 32 || !self.extent_bytes.is_multiple_of(8) {
            return fail("bytes of extents", self.extent_bytes, "a multiple of 8 up to 32 GiB");
        }
        if !(1..=1 << 30).contains(&self.item_len_max) {
            return fail("items of", self.item_len_max.into(), "1 byte to 1 GiB");
        }
        Ok(())
    }

    /// Encodes the layout, to be sent to a reader.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.buckets.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.item_len_max.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.extent_bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// Decodes and checks a layout that an owner has sent.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, TableError> {
        let first = word(bytes, 0);
        let layout = Self {
            buckets: first as u32,
            item_len_max: (first >> 32) as u32,
            extent_bytes: word(bytes, 1),
            seed: word(bytes, 2),
        };
        layout.check().map(|()| layout)
    }

    fn extents_start(&self) -> u64 {
        u64::from(self.buckets) * BUCKET_LEN as u64
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        checksum(key, self.seed ^ KEY_SEED)
    }

    #[inline(always)]
    fn bucket(&self, hash: u64, way: usize) -> u32 {
        index_from_hash(hash.wrapping_add(mix(way as u64)), self.buckets)
    }

    #[inline(always)]
    fn bucket_span(&self, hash: u64, way: usize) -> Span {
        Span { offset: u64::from(self.bucket(hash, way)) * BUCKET_LEN as u64, len: BUCKET_LEN }
    }
}

/// Tells the keys of a bucket apart without reading their extents.
fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// A bucket that holds an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    unit: u32,
    /// Bytes of the item with its head; never 0.
    len: u32,
    fingerprint: u32,
    /// Checksum of the item.
    sum: u64,
}

/// Contents of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bucket {
    Torn,
    Whole { version: u32, entry: Option<Entry> },
}

fn bucket_sum(bytes: &[u8], bucket: u32) -> u64 {
    checksum(&bytes[..24], BUCKET_SEED ^ u64::from(bucket) << 32)
}

impl Bucket {
    fn to_bytes(version: u32, entry: Option<Entry>, bucket: u32) -> [u8; BUCKET_LEN] {
        let entry = entry.unwrap_or(Entry { unit: 0, len: 0, fingerprint: 0, sum: 0 });
        let mut bytes = [0; BUCKET_LEN];
        bytes[..4].copy_from_slice(&entry.unit.to_le_bytes());
        bytes[4..8].copy_from_slice(&entry.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&entry.fingerprint.to_le_bytes());
        bytes[12..16].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.sum.to_le_bytes());
        let sum = bucket_sum(&bytes, bucket);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8], bucket: u32) -> Self {
        let Some(bytes) = bytes.first_chunk::<BUCKET_LEN>() else { return Self::Torn };
        let words: [u64; 4] = std::array::from_fn(|at| word(bytes, at));
        // Fresh memory is an empty bucket.
        if words == [0; 4] {
            return Self::Whole { version: 0, entry: None };
        }
        if words[3] != bucket_sum(bytes, bucket) {
            return Self::Torn;
        }
        let (len, version) = ((words[0] >> 32) as u32, (words[1] >> 32) as u32);
        let entry = Entry { unit: words[0] as u32, len, fingerprint: words[1] as u32, sum: words[2] };
        Self::Whole { version, entry: (len > 0).then_some(entry) }
    }
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Search {
    hash: u64,
    way: usize,
    /// Checksum of the extent to be read next; `None` if a bucket is read next.
    sum: Option<u64>,
    /// Versions of the buckets in the first round.
    versions: [u32; WAYS],
    /// Version of the current bucket, as last read.
    version: u32,
    /// The second round, which checks the versions.
    is_check: bool,
}

impl Search {
    /// Continues the search after a bucket that does not hold the key.
    fn next<'a>(&mut self, layout: &Layout) -> Step<'a> {
        if self.is_check && self.versions[self.way] != self.version {
            self.way = 0;
            self.is_check = false;
            return Step::Again(layout.bucket_span(self.hash, 0));
        }
        self.versions[self.way] = self.version;
        self.way += 1;
        // The last bucket was read between the two readings of the others, so it need not be read again.
        if self.is_check && self.way == WAYS - 1 {
            return Step::Missing;
        }
        if self.way == WAYS {
            self.way = 0;
            self.is_check = true;
        }
        Step::Read(layout.bucket_span(self.hash, self.way))
    }
}

impl Index for Layout {
    type Search = Search;

    #[inline]
    fn search(&self, key: &[u8]) -> (Search, Span) {
        let hash = self.hash(key);
        let search = Search { hash, way: 0, sum: None, versions: [0; WAYS], version: 0, is_check: false };
        (search, self.bucket_span(hash, 0))
    }

    #[inline]
    fn step<'a>(&self, search: &mut Search, key: &[u8], bytes: &'a [u8]) -> Step<'a> {
        let again = |search: &Search| Step::Again(self.bucket_span(search.hash, search.way));
        if let Some(sum) = search.sum.take() {
            if checksum(bytes, ITEM_SEED ^ self.seed) != sum {
                return again(search);
            }
            let head = word(bytes, 0);
            let (key_len, value_len) = (head as u32 as usize, (head >> 32) as usize);
            let item = bytes.get(ITEM_HEAD_LEN..).and_then(|item| item.split_at_checked(key_len));
            return match item {
                Some((found, value)) if found == key && value.len() == value_len => Step::Found(value),
                _ => search.next(self),
            };
        }
        match Bucket::from_bytes(bytes, self.bucket(search.hash, search.way)) {
            Bucket::Torn => again(search),
            Bucket::Whole { version, entry } => {
                search.version = version;
                match entry.filter(|entry| entry.fingerprint == fingerprint(search.hash)) {
                    None => search.next(self),
                    Some(entry) => {
                        let (start, len) = (u64::from(entry.unit) * 8, entry.len as usize);
                        if len > self.read_len_max() || start + len as u64 > self.extent_bytes {
                            return again(search);
                        }
                        search.sum = Some(entry.sum);
                        Step::Read(Span { offset: self.extents_start() + start, len })
                    }
                }
            }
        }
    }

    fn read_len_max(&self) -> usize {
        (self.item_len_max as usize + ITEM_HEAD_LEN).max(BUCKET_LEN)
    }

    fn memory_len(&self) -> usize {
        (self.extents_start() + self.extent_bytes) as usize
    }

    fn describe(&self) -> Vec<u8> {
        self.to_bytes().to_vec()
    }

    fn from_description(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.try_into().ok()?).ok()
    }
}

/// The owner's record of a bucket's item.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    extent: Extent,
    len: u32,
    sum: u64,
}

/// A key's hash and buckets, first the one in which the key was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Located {
    hash: u64,
    buckets: [u32; WAYS],
}

/// A table, as its owner changes it.
#[derive(Debug)]
pub struct CuckooTable {
    layout: Layout,
    memory: SharedMemory,
    slots: Vec<Option<Slot>>,
    versions: Vec<u32>,
    extents: Extents,
    items: usize,
    /// Buffer for an item being assembled.
    item: Vec<u8>,
    /// Buckets examined by a search for room, each with the index in here of the bucket whose item could move to it.
    searched: Vec<(u32, usize)>,
}

impl CuckooTable {
    /// Makes an empty table in `memory`, which must be all zero, and which nobody else may write.
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
        let buckets = layout.buckets as usize;
        Ok(Self {
            layout,
            memory,
            slots: vec![None; buckets],
            versions: vec![0; buckets],
            // 32 GiB have one unit more than a u32 can count.
            extents: Extents::new((layout.extent_bytes / 8).min(u32::MAX.into()) as u32),
            items: 0,
            item: Vec::with_capacity(layout.read_len_max()),
            searched: Vec::with_capacity(BUCKETS_SEARCHED_MAX),
        })
    }

    /// The layout that readers need to know.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Publishes the contents of a bucket.
    fn set(&mut self, bucket: u32, slot: Option<Slot>) {
        let at = bucket as usize;
        self.slots[at] = slot;
        self.versions[at] = self.versions[at].wrapping_add(1);
        let entry = slot.map(|slot| Entry {
            unit: slot.extent.unit,
            len: slot.len,
            fingerprint: fingerprint(slot.hash),
            sum: slot.sum,
        });
        let bytes = Bucket::to_bytes(self.versions[at], entry, bucket);
        // Cannot fail: `new` checked that the table fits.
        let _ = self.memory.write(at * BUCKET_LEN, &bytes);
    }

    /// Offset of an extent in the memory.
    #[inline(always)]
    fn extent_start(&self, extent: Extent) -> usize {
        self.layout.extents_start() as usize + extent.unit as usize * 8
    }

    /// Returns the bucket that holds a key.
    fn find(&mut self, key: &[u8], located: &Located) -> Option<(u32, Slot)> {
        for bucket in located.buckets {
            let slot = self.slots[bucket as usize].as_ref().filter(|slot| slot.hash == located.hash);
            let Some(slot) = slot.copied() else { continue };
            self.item.resize(ITEM_HEAD_LEN + key.len(), 0);
            let start = self.extent_start(slot.extent);
            let read = slot.len as usize >= self.item.len() && self.memory.read(start, &mut self.item).is_ok();
            if read && word(&self.item, 0) as u32 as usize == key.len() && &self.item[ITEM_HEAD_LEN..] == key {
                return Some((bucket, slot));
            }
        }
        None
    }

    /// Frees one of a key's buckets, and returns it.
    fn make_room(&mut self, buckets: [u32; WAYS]) -> Option<u32> {
        self.searched.clear();
        self.searched.extend(buckets.map(|bucket| (bucket, usize::MAX)));
        // Breadth first: the shortest path moves the fewest items.
        let mut at = 0;
        while at < self.searched.len() {
            let (bucket, _) = self.searched[at];
            let Some(slot) = self.slots[bucket as usize] else { return Some(self.shift(at)) };
            for way in 0..WAYS {
                let to = self.layout.bucket(slot.hash, way);
                if self.searched.len() < BUCKETS_SEARCHED_MAX && !self.is_on_path(at, to) {
                    self.searched.push((to, at));
                }
            }
            at += 1;
        }
        None
    }

    fn is_on_path(&self, mut at: usize, bucket: u32) -> bool {
        while let Some((on_way, before)) = self.searched.get(at) {
            if *on_way == bucket {
                return true;
            }
            at = *before;
        }
        false
    }

    /// Moves each item on the path to a free bucket one step, the last first, so that each is always somewhere. Returns
    /// the first bucket of the path.
    fn shift(&mut self, mut at: usize) -> u32 {
        loop {
            let (free, before) = self.searched[at];
            let Some((from, _)) = self.searched.get(before) else { return free };
            let (from, slot) = (*from, self.slots[*from as usize]);
            self.set(free, slot);
            // Readers still find it in its old bucket, which is overwritten next.
            self.slots[from as usize] = None;
            at = before;
        }
    }
}

impl Table for CuckooTable {
    type Located = Located;

    #[inline]
    fn locate(&self, key: &[u8]) -> Located {
        let hash = self.layout.hash(key);
        Located { hash, buckets: std::array::from_fn(|way| self.layout.bucket(hash, way)) }
    }

    #[inline]
    fn prefetch(&self, located: &Located) {
        located.buckets.iter().filter_map(|bucket| self.slots.get(*bucket as usize)).for_each(prefetch_read);
    }

    #[inline]
    fn prefetch_item(&self, located: &mut Located) {
        for way in 0..WAYS {
            let bucket = located.buckets[way] as usize;
            let slot = self.slots.get(bucket).and_then(Option::as_ref).filter(|slot| slot.hash == located.hash);
            if let Some(slot) = slot {
                self.memory.prefetch_line(self.extent_start(slot.extent));
                self.memory.prefetch_line(bucket * BUCKET_LEN);
                prefetch_read(&self.versions[bucket]);
                located.buckets.swap(0, way);
                return;
            }
        }
    }

    fn put_located(&mut self, key: &[u8], value: &[u8], located: &Located) -> Result<bool, TableError> {
        let max = self.layout.item_len_max as usize;
        if !(1..=max).contains(&key.len()) {
            return Err(TableError::Key { len: key.len(), max });
        }
        let max = max - key.len();
        if value.len() > max {
            return Err(TableError::Value { len: value.len(), max });
        }
        let old = self.find(key, located);
        self.item.clear();
        self.item.extend((key.len() as u32).to_le_bytes());
        self.item.extend((value.len() as u32).to_le_bytes());
        self.item.extend(key);
        self.item.extend(value);
        let len = self.item.len();
        let fresh = self.extents.take(len);
        // Without memory for another extent, the old one is overwritten if it is long enough; readers notice by the
        // checksum.
        let in_place = old.map(|(_, slot)| slot.extent).filter(|extent| extent.units as usize * 8 >= len);
        let extent = fresh.or(in_place).ok_or(TableError::NoMemory { len })?;
        let bucket = match old {
            Some((bucket, _)) => bucket,
            None => match self.make_room(located.buckets) {
                Some(bucket) => bucket,
                None => {
                    self.extents.free(extent);
                    return Err(TableError::Full { items: self.items });
                }
            },
        };
        let _ = self.memory.write(self.extent_start(extent), &self.item);
        let sum = checksum(&self.item, ITEM_SEED ^ self.layout.seed);
        self.set(bucket, Some(Slot { hash: located.hash, extent, len: len as u32, sum }));
        match old {
            Some((_, slot)) if fresh.is_some() => self.extents.free(slot.extent),
            Some(_) => {}
            None => self.items += 1,
        }
        Ok(old.is_some())
    }

    fn delete_located(&mut self, key: &[u8], located: &Located) -> bool {
        let Some((bucket, slot)) = self.find(key, located) else { return false };
        self.set(bucket, None);
        self.extents.free(slot.extent);
        self.items -= 1;
        true
    }

    fn len(&self) -> usize {
        self.items
    }
}
