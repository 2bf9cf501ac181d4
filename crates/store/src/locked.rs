//! A table whose values others change, too: records with a lock word, after DrTM-KV (described in atc16 4.3.2).
//!
//! A key is named by an entry of one of two buckets, and its item lies in a *record*: a lock word, the key, and two places for the value. The
//! lock word says who holds the record and how often its value was changed, its *version*. The value that counts lies in the place of
//! the version's parity, under a checksum over version, record, key and value.
//!
//! - A **reader** READs a bucket and the record, or the record alone where it remembers which one it was. Whoever holds the record does not
//!   keep it from reading: the value that counts is not written. What was changed while it was read has another checksum.
//! - A **writer** takes the lock with a compare-and-swap of the word that it has seen, so the record is still the key's; WRITEs the other
//!   place; and with a second compare-and-swap lets go, and makes the other place the one that counts.
//! - The **owner** alone inserts and removes, and changes a lock word only while somebody holds it: the owner itself (as it does all records
//!   that are free), a writer that has locked it to have it removed, or one that is gone. A compare-and-swap by others fails then, and
//!   writes nothing, so the owner needs no atomics that count among those of a device, which few devices have.
//!
//! A writer that is gone has changed nothing but the place that does not count, so its lock is all there is to undo. The item moves to
//! another record then, and the old one is used again last: a WRITE that was stopped on its way may still arrive there.
//!
//! Whoever can lock can spoil. The owner keeps what it must know in memory of its own, reads the table as what anybody may have written, and
//! [`LockedTable::inspect`] repairs it: items that are spoiled are removed.

mod owner;

pub use owner::{Inspected, LockedTable, Released};

use crate::remote::{Index, Span, Step, TableError, checksum, mixed, place, word};

/// Entries of a bucket.
const ENTRIES: usize = 8;
/// Bytes of a bucket.
const BUCKET_LEN: usize = ENTRIES * 8;
/// Buckets that a key can be in.
const WAYS: u8 = 2;
/// Before the key in a record: lock word, key's length.
const HEAD_LEN: usize = 16;
/// Before a value: checksum, value's length.
const VALUE_HEAD_LEN: usize = 16;
const OF_KEYS: u64 = 0x6C6F_636B;
const OF_VALUES: u64 = 0x6C6F_6376;

/// What says who holds a record: a number of 16 bits, and a version of 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord(pub u64);

impl LockWord {
    /// The holder that is the table's owner.
    pub const OWNER: u16 = u16::MAX;

    /// Held by nobody.
    pub fn free(version: u64) -> Self {
        Self(version & ((1 << 48) - 1))
    }

    /// The same version, held by somebody; 0 is nobody.
    #[must_use]
    pub fn held_by(self, holder: u16) -> Self {
        Self(Self::free(self.0).0 | u64::from(holder) << 48)
    }

    /// Who holds it.
    pub fn holder(self) -> Option<u16> {
        Some((self.0 >> 48) as u16).filter(|holder| *holder != 0)
    }

    /// How often the value was changed, modulo 2^48.
    pub fn version(self) -> u64 {
        Self::free(self.0).0
    }

    /// The next version, held by nobody.
    #[must_use]
    pub fn next(self) -> Self {
        Self::free(self.0.wrapping_add(1))
    }
}

/// A table, as others need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Buckets of eight entries. Half full, they hardly ever refuse.
    pub buckets: u32,
    /// Records. Some beyond the items that are to be stored are room for those that move.
    pub records: u32,
    /// Bytes of a key at most.
    pub key_len_max: u32,
    /// Bytes of a value at most.
    pub value_len_max: u32,
    /// Another seed is other places.
    pub seed: u64,
}

impl Layout {
    /// Bytes that [`Self::to_bytes`] gives.
    pub const BYTES: usize = 24;

    /// Whether it can be.
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

    /// To be told to others.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = [self.buckets, self.records, self.key_len_max, self.value_len_max];
        for (bytes, part) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(parts) {
            *bytes = part.to_le_bytes();
        }
        bytes[16..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// What an owner told.
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

    /// Bytes of one of the two places for a value.
    fn value_room(&self) -> usize {
        VALUE_HEAD_LEN + (self.value_len_max as usize).next_multiple_of(8)
    }

    /// Bytes of a record.
    pub fn record_len(&self) -> usize {
        HEAD_LEN + self.key_room() + 2 * self.value_room()
    }

    /// The bytes of a record, from its lock word on.
    #[inline]
    pub fn record_span(&self, record: u32) -> Span {
        let len = self.record_len();
        Span { offset: u64::from(self.buckets) * BUCKET_LEN as u64 + u64::from(record) * len as u64, len }
    }

    /// Where the value of a version lies, from the start of its record.
    fn value_start(&self, version: u64) -> usize {
        HEAD_LEN + self.key_room() + (version & 1) as usize * self.value_room()
    }

    fn bucket_span(&self, hash: u64, way: u8) -> Span {
        Span { offset: u64::from(self.bucket(hash, way)) * BUCKET_LEN as u64, len: BUCKET_LEN }
    }

    #[inline(always)]
    fn bucket(&self, hash: u64, way: u8) -> u32 {
        place(hash.wrapping_add(mixed(way.into())), self.buckets)
    }

    /// A key's hash.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        checksum(key, self.seed ^ OF_KEYS)
    }

    /// Of the length and the value behind it.
    #[inline(always)]
    fn value_sum(&self, bytes: &[u8], hash: u64, record: u32, version: u64) -> u64 {
        checksum(bytes, mixed(mixed(hash ^ OF_VALUES) ^ mixed(version) ^ u64::from(record)))
    }

    /// What a writer of `version` WRITEs, in place of what is in `bytes`, for a key of this hash; and where to.
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

    /// The key in the bytes of a record.
    #[inline(always)]
    fn key<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = word(bytes, 1);
        if len > self.key_len_max.into() {
            return None;
        }
        bytes.get(HEAD_LEN..HEAD_LEN + len as usize)
    }

    /// What the bytes of a record say. Of the key that is searched the hash is known.
    #[inline(always)]
    fn record<'a>(&self, bytes: &'a [u8], record: u32, searched: (&[u8], u64)) -> Record<'a> {
        let lock = LockWord(word(bytes, 0));
        if lock.holder() == Some(LockWord::OWNER) {
            return Record::Nothing;
        }
        let key = self.key(bytes);
        let place = bytes.get(self.value_start(lock.version())..);
        let (Some(key), Some(place)) = (key, place) else { return Record::Torn };
        let hash = if key == searched.0 { searched.1 } else { self.hash(key) };
        let len = word(place, 1);
        if len > self.value_len_max.into() {
            return Record::Torn;
        }
        match place.get(8..VALUE_HEAD_LEN + len as usize) {
            Some(body) if self.value_sum(body, hash, record, lock.version()) == word(place, 0) => {
                Record::Item { lock, key, hash, value: &body[8..] }
            }
            _ => Record::Torn,
        }
    }

    /// Begins to search a key in the record that it was found in before.
    #[inline]
    pub fn search_record(&self, key: &[u8], record: u32) -> (Search, Span) {
        let search = Search { next: Next::Record(record), ways: 0, ..Search::new(self.hash(key)) };
        (search, self.record_span(record))
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record<'a> {
    /// It is free, or the owner is about to change that.
    Nothing,
    Torn,
    Item {
        lock: LockWord,
        key: &'a [u8],
        hash: u64,
        value: &'a [u8],
    },
}

/// An entry of a bucket; 0 is none.
fn entry(hash: u64, record: u32) -> u64 {
    hash >> 32 << 32 | u64::from(record + 1)
}

/// What is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Bucket,
    Record(u32),
}

/// A search.
#[derive(Clone, Debug)]
pub struct Search {
    hash: u64,
    next: Next,
    /// Buckets that were asked for.
    ways: u8,
    /// Records that the last bucket named, of which `left` were not looked at.
    named: [u32; ENTRIES],
    left: u8,
    found: Option<(u32, LockWord)>,
}

impl Search {
    fn new(hash: u64) -> Self {
        Self { hash, next: Next::Bucket, ways: 1, named: [0; ENTRIES], left: 0, found: None }
    }

    /// The key's hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The record in which the key was found, and its lock word.
    pub fn found(&self) -> Option<(u32, LockWord)> {
        self.found
    }

    /// The key is not in what was read.
    #[inline(always)]
    fn go_on<'a>(&mut self, layout: &Layout) -> Step<'a> {
        if self.left > 0 {
            self.left -= 1;
            let record = self.named[usize::from(self.left)];
            self.next = Next::Record(record);
            return Step::Read(layout.record_span(record));
        }
        if self.ways == WAYS {
            return Step::Missing;
        }
        self.ways += 1;
        self.next = Next::Bucket;
        Step::Read(layout.bucket_span(self.hash, self.ways - 1))
    }

    /// What was read is no more, or was torn.
    fn again<'a>(&mut self, layout: &Layout) -> Step<'a> {
        *self = Self::new(self.hash);
        Step::Again(layout.bucket_span(self.hash, 0))
    }
}

impl Index for Layout {
    type Search = Search;

    #[inline]
    fn search(&self, key: &[u8]) -> (Search, Span) {
        let search = Search::new(self.hash(key));
        let span = self.bucket_span(search.hash, 0);
        (search, span)
    }

    /// An item never moves from bucket to bucket, so one that is in neither of both was missing at some moment: nobody needs to look twice.
    #[inline]
    fn step<'a>(&self, search: &mut Search, key: &[u8], bytes: &'a [u8]) -> Step<'a> {
        match search.next {
            Next::Bucket => {
                search.left = 0;
                for at in 0..ENTRIES {
                    let entry = word(bytes, at);
                    let record = (entry as u32).wrapping_sub(1);
                    if entry == 0 || entry >> 32 != search.hash >> 32 {
                        continue;
                    }
                    if record >= self.records {
                        return search.again(self);
                    }
                    search.named[usize::from(search.left)] = record;
                    search.left += 1;
                }
                search.go_on(self)
            }
            Next::Record(record) => match self.record(bytes, record, (key, search.hash)) {
                Record::Item { lock, key: found, value, .. } if found == key => {
                    search.found = Some((record, lock));
                    Step::Found(value)
                }
                Record::Item { .. } => search.go_on(self),
                Record::Nothing | Record::Torn => search.again(self),
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
