//! The table of a key-value cache, after MICA (as HERD uses it: "Using RDMA Efficiently for Key-Value Services", section 4.1).
//!
//! An index of buckets, each one cache line with eight slots of tag and position, leads to the items: to a circular log, in
//! which new items overwrite the oldest ([`WhenFull::Evict`]), or to a heap, which forgets nothing and refuses what does not fit
//! ([`WhenFull::Refuse`]). A GET costs two cache misses, and so does a PUT of a key that is there. [`Cache::prefetch_bucket`] and
//! [`Cache::prefetch_item`] take these misses for a batch of requests at once.
//!
//! One thread owns a [`Cache`]: several of them, each for the keys of one [`Key::partition`], use several cores. Where other
//! threads are to read too, [`Cache::reader`] makes them [`CacheReader`]s.
//!
//! Every read compares the whole key and makes sure that the item was not overwritten meanwhile: it gives what was stored under
//! that key or nothing, never something else.
//!
//! ```
//! use sinew_store::cache::{Cache, CacheConfig, Put};
//!
//! let mut cache = Cache::new(&CacheConfig { items: 1000, ..CacheConfig::default() })?;
//! let hasher = cache.hasher().clone();
//! let key = hasher.key(b"greeting");
//! let now_s = 1;
//! cache.put(&key, b"hello", &Put::default(), now_s)?;
//! let item = cache.get(&key, now_s).expect("it was just stored");
//! let mut value = Vec::new();
//! item.append_to(&mut value);
//! assert_eq!(value, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod census;
mod entry;
mod heap;
mod interleaved;
mod key;
mod leave;
mod limit;
mod log;
mod reader;
mod table;
mod view;

pub use key::{KEY_LEN_MAX, Key, KeyHasher, KnownKey};
pub use reader::{CacheReader, Read};
pub use table::{Cache, Item};

/// Longest value that a table can be configured for, in bytes.
pub const VALUE_LEN_MAX: usize = 128 << 20;

/// The [mark](Item::mark) of an item that was asked for: what goes without it is counted, see [`CacheStats::expired_unfetched`].
pub const FETCHED: u8 = 1;

/// Why an item that was stored is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its time was over.
    Expired,
    /// Everything was cleared.
    Cleared,
}

/// What a table is made for.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Items that are expected, which gives the size of the index (16 bytes for each). More can be stored: a table that evicts
    /// then loses some of them early, one that does not needs longer to find them.
    pub items: usize,
    /// Bytes for the items. Each takes 16 bytes, 8 more if it has flags or expires, its key and its value, both rounded up to
    /// 8; without eviction 8 more.
    pub memory_bytes: usize,
    /// What [`Cache::limit_memory`] may raise that to, as far as address space goes: memory is taken when it is first used. Less than
    /// `memory_bytes` is as much.
    pub memory_bytes_max: usize,
    /// What becomes of an item that does not fit.
    pub when_full: WhenFull,
    /// Which item gives its place to another, in a table that evicts.
    pub eviction: Eviction,
    /// Whether there will be [`CacheReader`]s. Changes cost a little more then.
    pub readers: bool,
    /// Longest value, in bytes; at most [`VALUE_LEN_MAX`].
    pub value_len_max: usize,
    /// Seed of the [`KeyHasher`]: whoever knows it can choose keys that displace others'.
    pub seed: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            items: 1 << 20,
            memory_bytes: 64 << 20,
            memory_bytes_max: 0,
            when_full: WhenFull::Evict,
            eviction: Eviction::default(),
            readers: false,
            value_len_max: 1 << 20,
            seed: 0,
        }
    }
}

/// What becomes of an item that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It takes the place of the oldest.
    Evict,
    /// It is refused.
    Refuse,
}

/// Which item gives its place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The oldest, as MICA's circular log has it: a key that is read all the time is lost after one lap of the log.
    Oldest,
    /// The oldest that its owner has not [got](Cache::get) since it was stored: others are stored once more, as if they were new and
    /// had not been got, up to four for each item that wants room. Reads by [`CacheReader`]s do not count.
    #[default]
    OldestUnread,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A size that makes no sense.
    #[error(
        "a table of {items} items in {memory_bytes} bytes with values of up to {value_len_max} bytes cannot be: {why}"
    )]
    Config {
        /// As configured.
        items: usize,
        /// As configured.
        memory_bytes: usize,
        /// As configured.
        value_len_max: usize,
        /// What to change.
        why: &'static str,
    },
    /// The system has no memory to give.
    #[error("no memory for a table of {bytes} bytes: {source}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why the memory of a table was not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// It forgets nothing.
    #[error("a table that evicts nothing keeps the memory that it was made with")]
    EvictsNothing,
    /// There is no address space for it, or it is less than an item takes.
    #[error("the memory of a table can be limited to {min} to {max} bytes, not to {bytes}")]
    Bounds {
        /// What was asked for.
        bytes: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
}

/// How to store a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Under which condition.
    pub when: When,
    /// A number of the client's own, given back with the item.
    pub flags: u32,
    /// When the item ends, in seconds of the clock that is handed in; never when 0.
    pub expires_s: u32,
}

/// A condition for storing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// None.
    #[default]
    Always,
    /// No item has the key.
    Absent,
    /// An item has it.
    Present,
    /// An item has it, and is of this version: compare-and-swap.
    Version(u64),
}

impl When {
    /// Whether an item may be stored, where the one that is there has the version `present`.
    fn permits(self, present: Option<u64>) -> Result<(), PutError> {
        match (self, present) {
            (When::Always, _) | (When::Absent, None) | (When::Present, Some(_)) => Ok(()),
            (When::Absent, Some(_)) => Err(PutError::Present),
            (When::Present | When::Version(_), None) => Err(PutError::Absent),
            (When::Version(expected), Some(version)) if version == expected => Ok(()),
            (When::Version(_), Some(version)) => Err(PutError::Changed { version }),
        }
    }
}

/// Why nothing was stored. What was there still is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The key is too long.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
    /// The value is too long.
    #[error("a value of {len} bytes is longer than the {max} that this table takes")]
    ValueTooLong {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// There is no memory for it, in a table that does not evict.
    #[error("the store is full: {used_bytes} of {capacity_bytes} bytes are in use, and nothing is evicted here")]
    Full {
        /// Bytes in use.
        used_bytes: usize,
        /// Bytes there are.
        capacity_bytes: usize,
    },
    /// An item has the key, and none should.
    #[error("an item has this key already")]
    Present,
    /// No item has the key.
    #[error("no item has this key")]
    Absent,
    /// The item that has it is of another version.
    #[error("the item was changed: it has version {version}")]
    Changed {
        /// The version that it has.
        version: u64,
    },
}

/// Why a value was not modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError<E> {
    /// The new value was not stored.
    #[error(transparent)]
    Put(#[from] PutError),
    /// Whoever was to change it did not want to.
    #[error("{0}")]
    Refused(E),
}

/// What happened in a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// GETs of its owner that found their item. Those of readers are the readers' to count.
    pub hits: u64,
    /// GETs that found none.
    pub misses: u64,
    /// Items there are. One that has expired counts until somebody comes across it: who asks for its key, who stores it anew, or
    /// whose item takes its place.
    pub items: usize,
    /// Items that were stored, in place of others or not.
    pub stored: u64,
    /// Items that gave their place to others before their time.
    pub evictions: u64,
    /// Those of them that nobody had asked for: without the mark [`FETCHED`].
    pub evicted_unfetched: u64,
    /// Items that were stored once more instead, since they had been read: see [`Eviction::OldestUnread`].
    pub spared: u64,
    /// Items that had expired, or had been cleared, when somebody came across them.
    pub reclaimed: u64,
    /// Those of them that nobody had asked for.
    pub expired_unfetched: u64,
    /// Bytes of the items there are.
    pub item_bytes: usize,
    /// Bytes of items, the dead ones in the log too.
    pub used_bytes: usize,
    /// Bytes for them.
    pub capacity_bytes: usize,
    /// Bytes of the index.
    pub index_bytes: usize,
}
