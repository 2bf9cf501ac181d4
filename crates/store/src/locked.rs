//! A table whose values clients change, too: records with a lock word, after DrTM-KV (described in atc16 4.3.2).
//!
//! A key is named by an entry of one of two buckets, and its item lies in a *record*: a lock word, the key, and two
//! places for the value. The lock word tells who holds the record, and how often its value was changed: its *version*.
//! The parity of the version says which of the two places has the current value, protected by a checksum over version,
//! record, key and value.
//!
//! - A **reader** READs a bucket and the record, or the record alone if it remembers which one it was. It can read
//!   while the record is locked, because the current value is not written. If the value changes while it is read, the
//!   checksum does not match.
//! - A **writer** takes the lock with a compare-and-swap that expects the word that it has seen, so the record is still
//!   the key's. It WRITEs the other place, and with a second compare-and-swap it unlocks and makes the other place the
//!   current one.
//! - The **owner** alone inserts and removes, and changes a lock word only while it is held: by the owner itself (which
//!   holds all free records), by a writer that has locked it to have it removed, or by a lost client. A
//!   compare-and-swap of another client then fails and writes nothing, so the owner needs no operations that are atomic
//!   with respect to those of the device, which few devices offer.
//!
//! A lost writer has changed nothing but the place that is not current, so only its lock has to be undone. The item
//! then moves to another record, and the old record is reused as late as possible: a WRITE that was stopped halfway may
//! still arrive there.
//!
//! A client that can lock can also cause damage. The owner keeps what it must know in memory of its own, distrusts all
//! that it reads in the table, and repairs it with [`LockedTable::inspect`]: damaged items are removed.
//!
//! Two places for the value cost READs twice the value's bytes. In return readers never wait for a lock, no
//! half-written value is ever served, and a client that dies with a lock leaves nothing to undo but the lock.

mod owner;

pub use owner::{Inspected, Located, LockedTable, Released};

use crate::remote::{Index, Span, Step, TableError, checksum, index_from_hash, mix, word};

/// Entries of a bucket.
const ENTRIES: usize = 8;
/// Bytes of a bucket.
const BUCKET_LEN: usize = ENTRIES * 8;
/// Buckets in which a key can be.
const WAYS: u8 = 2;
/// Bytes before the key in a record: lock word, and length of the key.
const HEAD_LEN: usize = 16;
/// Bytes before a value: checksum, and length of the value.
const VALUE_HEAD_LEN: usize = 16;
const KEY_SEED: u64 = 0x6C6F_636B;
const VALUE_SEED: u64 = 0x6C6F_6376;

/// The lock word of a record: the holder's number (16 bits) and a version (48 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord(pub u64);

impl LockWord {
    /// Number by which the table's owner holds a lock.
    pub const OWNER: u16 = u16::MAX;

    /// A word that is not held.
    pub fn free(version: u64) -> Self {
        Self(version & ((1 << 48) - 1))
    }

    /// The same version, held by `holder`; 0 stands for nobody.
    #[must_use]
    pub fn held_by(self, holder: u16) -> Self {
        Self(Self::free(self.0).0 | u64::from(holder) << 48)
    }

    /// Number of the holder, if there is one.
    pub fn holder(self) -> Option<u16> {
        Some((self.0 >> 48) as u16).filter(|holder| *holder != 0)
    }

    /// Number of changes of the value, modulo 2^48.
    pub fn version(self) -> u64 {
        Self::free(self.0).0
    }

    /// The next version, not held.
    #[must_use]
    pub fn next(self) -> Self {
        Self::free(self.0.wrapping_add(1))
    }
}

/// Layout of a table, as clients need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of buckets, of eight entries each. While they are half full, an insertion hardly ever fails.
    pub buckets: u32,
    /// Number of records. There should be some more than items, for items that move.
    pub records: u32,
    /// Longest key, in bytes.
    pub key_len_max: u32,
    /// Longest value, in bytes.
    pub value_len_max: u32,
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
        let check = |what, value: u64, limit, good: bool| {
            if good { Ok(()) } else { Err(TableError::Layout { what, value, limit }) }
        };
        check("buckets", self.buckets.into(), "1 to 2^28", (1..=1 << 28).contains(&self.buckets))?;
        check("records", self.records.into(), "1 to 2^30", (1..=1 << 30).contains(&self.records))?;
        check("keys of", self.key_len_max.into(), "1 to 65535 bytes", (1..=65_535).contains(&self.key_len_max))?;
        check("values of", self.value_len_max.into(), "up to 1 MiB", self.value_len_max <= 1 << 20)?;
        let all = self.records as u64 * self.record_len() as u64;
        check("bytes of records", all, "up to 1 TiB", all <= 1 << 40)
    }

    /// Encodes the layout, to be sent to a client.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = [self.buckets, self.records, self.key_len_max, self.value_len_max];
        for (bytes, part) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(parts) {
            *bytes = part.to_le_bytes();
        }
        bytes[16..].copy_from_slice(&self.seed.to_le_bytes());
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
            records: half(1),
            key_len_max: half(2),
            value_len_max: half(3),
            seed: word(bytes, 2),
        };
        layout.check().map(|()| layout)
    }

    fn key_room(&self) -> usize {
        (self.key_len_max as usize).next_multiple_of(8)
    }

    /// Length of one of the two places for a value, in bytes.
    fn value_room(&self) -> usize {
        VALUE_HEAD_LEN + (self.value_len_max as usize).next_multiple_of(8)
    }

    /// Length of a record, in bytes.
    pub fn record_len(&self) -> usize {
        HEAD_LEN + self.key_room() + 2 * self.value_room()
    }

    /// The span of a record, from its lock word on.
    #[inline]
    pub fn record_span(&self, record: u32) -> Span {
        let len = self.record_len();
        Span { offset: u64::from(self.buckets) * BUCKET_LEN as u64 + u64::from(record) * len as u64, len }
    }

    /// Offset of a version's value in its record.
    fn value_start(&self, version: u64) -> usize {
        HEAD_LEN + self.key_room() + (version & 1) as usize * self.value_room()
    }

    fn bucket_span(&self, hash: u64, way: u8) -> Span {
        Span { offset: u64::from(self.bucket(hash, way)) * BUCKET_LEN as u64, len: BUCKET_LEN }
    }

    #[inline(always)]
    fn bucket(&self, hash: u64, way: u8) -> u32 {
        index_from_hash(hash.wrapping_add(mix(way.into())), self.buckets)
    }

    /// Returns the hash of a key.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        checksum(key, self.seed ^ KEY_SEED)
    }

    /// Checksum of a value with its length, which are `bytes`.
    #[inline(always)]
    fn value_sum(&self, bytes: &[u8], hash: u64, record: u32, version: u64) -> u64 {
        checksum(bytes, mix(mix(hash ^ VALUE_SEED) ^ mix(version) ^ u64::from(record)))
    }

    /// Puts into `bytes` the data that a writer of `version` WRITEs for a key with this hash; returns the offset to
    /// WRITE it to.
    #[inline]
    pub fn image(&self, bytes: &mut Vec<u8>, hash: u64, record: u32, version: u64, value: &[u8]) -> u64 {
        bytes.clear();
        bytes.extend([0; 8]);
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend(value);
        let sum = self.value_sum(&bytes[8..], hash, record, version);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        self.record_span(record).offset + self.value_start(version) as u64
    }

    /// Returns the key in the bytes of a record.
    #[inline(always)]
    fn key<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = word(bytes, 1);
        if len > self.key_len_max.into() {
            return None;
        }
        bytes.get(HEAD_LEN..HEAD_LEN + len as usize)
    }

    /// Decodes a record. `searched` is the key searched for and its hash, which then need not be computed.
    #[inline(always)]
    fn record<'a>(&self, bytes: &'a [u8], record: u32, searched: (&[u8], u64)) -> Record<'a> {
        let lock = LockWord(word(bytes, 0));
        if lock.holder() == Some(LockWord::OWNER) {
            return Record::Nothing;
        }
        let key = self.key(bytes);
        let value_bytes = bytes.get(self.value_start(lock.version())..);
        let (Some(key), Some(value_bytes)) = (key, value_bytes) else { return Record::Torn };
        let hash = if key == searched.0 { searched.1 } else { self.hash(key) };
        let len = word(value_bytes, 1);
        if len > self.value_len_max.into() {
            return Record::Torn;
        }
        match value_bytes.get(8..VALUE_HEAD_LEN + len as usize) {
            Some(body) if self.value_sum(body, hash, record, lock.version()) == word(value_bytes, 0) => {
                Record::Item { lock, key, hash, value: &body[8..] }
            }
            _ => Record::Torn,
        }
    }

    /// Begins a search for a key with this hash.
    #[inline(always)]
    pub fn search_hash(&self, hash: u64) -> (Search, Span) {
        (Search::new(hash), self.bucket_span(hash, 0))
    }

    /// Begins a search for a key with this hash in the record in which it was found before.
    #[inline(always)]
    pub fn search_record(&self, hash: u64, record: u32) -> (Search, Span) {
        let search = Search { next: NextRead::Record(record), ways: 0, ..Search::new(hash) };
        (search, self.record_span(record))
    }
}

/// Contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record<'a> {
    /// The record is free, or the owner is at work on it.
    Nothing,
    Torn,
    Item {
        lock: LockWord,
        key: &'a [u8],
        hash: u64,
        value: &'a [u8],
    },
}

/// Encodes an entry of a bucket; 0 stands for none.
fn entry(hash: u64, record: u32) -> u64 {
    hash >> 32 << 32 | u64::from(record + 1)
}

/// Entries of a bucket that may be those of a key with this hash, a bit each.
#[inline(always)]
fn matching(entries: &[u64; ENTRIES], hash: u64) -> u32 {
    let bit = |(at, entry): (usize, &u64)| u32::from((entry ^ hash) >> 32 == 0) << at;
    entries.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
}

/// The object to be read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRead {
    Bucket,
    Record(u32),
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Search {
    hash: u64,
    next: NextRead,
    /// Number of buckets requested so far.
    ways: u8,
    /// Records named by the last bucket; the first `candidates_left` of them are still to be read.
    candidates: [u32; ENTRIES],
    candidates_left: u8,
    found: Option<(u32, LockWord)>,
}

impl Search {
    fn new(hash: u64) -> Self {
        Self { hash, next: NextRead::Bucket, ways: 1, candidates: [0; ENTRIES], candidates_left: 0, found: None }
    }

    /// Returns the hash of the key.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The record in which the key was found, and its lock word.
    pub fn found(&self) -> Option<(u32, LockWord)> {
        self.found
    }

    /// Continues the search after bytes that do not hold the key.
    #[inline(always)]
    fn read_next<'a>(&mut self, layout: &Layout) -> Step<'a> {
        if self.candidates_left > 0 {
            self.candidates_left -= 1;
            let record = self.candidates[usize::from(self.candidates_left)];
            self.next = NextRead::Record(record);
            return Step::Read(layout.record_span(record));
        }
        if self.ways == WAYS {
            return Step::Missing;
        }
        self.ways += 1;
        self.next = NextRead::Bucket;
        Step::Read(layout.bucket_span(self.hash, self.ways - 1))
    }

    /// Starts again, after bytes that were torn, or a record that is no longer in use.
    fn retry<'a>(&mut self, layout: &Layout) -> Step<'a> {
        *self = Self::new(self.hash);
        Step::Again(layout.bucket_span(self.hash, 0))
    }
}

impl Index for Layout {
    type Search = Search;

    #[inline]
    fn search(&self, key: &[u8]) -> (Search, Span) {
        self.search_hash(self.hash(key))
    }

    /// An item never moves between buckets, so one that is in neither was missing at some moment: one pass is enough.
    #[inline]
    fn step<'a>(&self, search: &mut Search, key: &[u8], bytes: &'a [u8]) -> Step<'a> {
        match search.next {
            NextRead::Bucket => {
                search.candidates_left = 0;
                let Some(bytes) = bytes.first_chunk::<BUCKET_LEN>() else { return search.retry(self) };
                let entries = std::array::from_fn(|at| word(bytes, at));
                let mut matching = matching(&entries, search.hash);
                while matching != 0 {
                    let entry = entries[matching.trailing_zeros() as usize % ENTRIES];
                    matching &= matching - 1;
                    let record = (entry as u32).wrapping_sub(1);
                    if entry == 0 {
                        continue;
                    }
                    if record >= self.records {
                        return search.retry(self);
                    }
                    search.candidates[usize::from(search.candidates_left)] = record;
                    search.candidates_left += 1;
                }
                search.read_next(self)
            }
            NextRead::Record(record) => match self.record(bytes, record, (key, search.hash)) {
                Record::Item { lock, key: found_key, value, .. } if found_key == key => {
                    search.found = Some((record, lock));
                    Step::Found(value)
                }
                Record::Item { .. } => search.read_next(self),
                Record::Nothing | Record::Torn => search.retry(self),
            },
        }
    }

    fn read_len_max(&self) -> usize {
        self.record_len().max(BUCKET_LEN)
    }

    fn memory_len(&self) -> usize {
        self.record_span(self.records).offset as usize
    }

    fn describe(&self) -> Vec<u8> {
        self.to_bytes().to_vec()
    }

    fn from_description(bytes: &[u8]) -> Option<Self> {
        Self::from_bytes(bytes.try_into().ok()?).ok()
    }
}
