//! The table of a key-value cache, after MICA (as HERD uses it: "Using RDMA Efficiently for Key-Value Services",
//! section 4.1).
//!
//! An index of buckets, each one cache line with eight slots of tag and position, leads to the items. They are in a
//! circular log, in which new items overwrite the oldest ([`WhenFull::Evict`]), or in a heap, which evicts nothing and
//! refuses items that do not fit ([`WhenFull::Refuse`]). A GET costs two cache misses, and so does a PUT of an existing
//! key. [`Cache::prefetch_bucket`] and [`Cache::prefetch_item`] take these misses for a batch of requests at once;
//! a [`Pipeline`] takes them while other requests are served.
//!
//! One thread owns a [`Cache`]. To use several cores, make several caches, each for the keys of one [`Key::partition`].
//! Where other threads need to read as well, [`Cache::reader`] makes them [`CacheReader`]s.
//!
//! Every read compares the whole key and makes sure that the item was not overwritten meanwhile: it returns what was
//! stored under that key or nothing, never anything else.
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
//!
//! # Design
//!
//! What this table adds to MICA's, and why:
//!
//! - **A position is a place and a lap**, 36 and 11 bits of the slot. An item is present until the log's head passes
//!   it; one subtraction tells. Laps repeat after 2,048, so no slot may outlive its item: it is emptied when the log's
//!   tail passes the item, and items and evictions are counted at the same time.
//! - **Words, not bytes.** Table and log are `sinew_mem::TableWords`, relaxed atomics, so the same safe code serves a
//!   thread that has its partition to itself, and readers in other threads. Readers copy, and then check that a version
//!   has not changed (there are up to 64 K versions, shared by the buckets). In the log they also check that the head,
//!   which is announced before anything is written, has not passed what they read.
//! - **An item is changed in place** if the new value fits and the item lies in the younger half of the log. In the
//!   older half it is appended, so that an item which was just stored is not among the next to be evicted.
//! - **An item that was read is spared once** ([`Eviction::OldestUnread`], the default). A GET by the table's owner
//!   sets a bit in the item's header if the item lies in the older half of the log and the bit is not set yet. An item
//!   with the bit that is about to be overwritten is appended again without it, unless it is longer than 4 KB. Up to
//!   four items are spared for each one that needs room, so a PUT stays bounded. On a fixed trace
//!   (`tests/cache_eviction.rs`) 71.9 % of the keys of Zipf .99 are found, where the log alone finds 68.5 %, and 35.3 %
//!   instead of 29.2 % of a hot set beside scans. If reads in the younger half counted as well, more would be found
//!   (72.8 and 39.5 %), but more items would be moved: a full table would serve 5 to 10 % fewer requests than one that
//!   spares none, where it now serves 4 to 7 % fewer (`sinew kv bench eviction`, both on one day and machine; 2 to 6 %
//!   on others). A bit costs a GET that sets it one store. Whether to set it is computed for every GET, without a
//!   branch, also in a table that spares none (`cargo xtask cost --row "table GET"`).
//! - **The buckets of the next eight items to go are prefetched** (`oldest.rs`), since those misses would overlap with
//!   nothing else. With that, a full table served 1.1 to 1.8 times as many requests of three of the benchmark's traces,
//!   and 0.93 times as many of SYS.
//! - **A table that evicts nothing** has the same index over a heap (two-level segregated fit), and chains spare
//!   buckets to full ones.
//! - **Prefetches are into all levels of the processor's cache.** With non-temporal ones, a table of 8 M items served
//!   as many requests: 22.3 M/s, and 21.8 M/s with these (batches of 16; medians of five alternating runs on an AMD
//!   EPYC).
//! - **A prefetched key remembers the slot** in which its item was seen, so the bucket is searched once.

mod census;
mod entry;
mod heap;
mod interleaved;
mod key;
mod leave;
mod limit;
mod log;
mod oldest;
mod pipeline;
mod reader;
mod table;
mod view;

pub use key::{KEY_LEN_MAX, Key, KeyHasher, KnownKey};
pub use pipeline::Pipeline;
pub use reader::{CacheReader, Read};
pub use table::{Cache, Gets, Item, Value};

/// Longest value that a table can be configured for, in bytes.
pub const VALUE_LEN_MAX: usize = 128 << 20;

/// The [mark](Item::mark) of an item that was fetched. Items that leave the table without it are counted: see
/// [`CacheStats::expired_unfetched`].
pub const FETCHED: u8 = 1;

/// Reason why a stored item is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// It expired.
    Expired,
    /// The table was cleared.
    Cleared,
}

/// Configuration of a table.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Expected number of items, which sets the size of the index (16 bytes for each). More can be stored: a table that
    /// evicts then loses some of them early, and one that does not evict takes longer to find them.
    pub items: usize,
    /// Bytes for the items. Each item takes 16 bytes, 8 more if it has flags or expires, and its key and its value,
    /// both rounded up to 8; without eviction, it takes 8 more.
    pub memory_bytes: usize,
    /// Limit up to which [`Cache::limit_memory`] may raise `memory_bytes`. It costs only address space: memory is taken
    /// when it is first used. A value below `memory_bytes` counts as `memory_bytes`.
    pub memory_bytes_max: usize,
    /// Whether a full table evicts or refuses.
    pub when_full: WhenFull,
    /// Choice of the item to evict, in a table that evicts.
    pub eviction: Eviction,
    /// Whether there will be [`CacheReader`]s, which makes changes cost a little more.
    pub readers: bool,
    /// Longest value, in bytes; at most [`VALUE_LEN_MAX`].
    pub value_len_max: usize,
    /// Seed of the [`KeyHasher`]: someone who knows it can choose keys that displace others'.
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

/// Behaviour of a full table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// A new item displaces older ones.
    Evict,
    /// A new item is refused.
    Refuse,
}

/// Choice of the item to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The oldest, as in MICA's circular log: a key that is read all the time is still lost after one lap of the log.
    Oldest,
    /// The oldest that its owner did not [get](Cache::get) while it was in the older half of the log. Items that were
    /// got then are appended to the log again, as if they were new, up to four of them for each item that needs room.
    /// Reads by [`CacheReader`]s do not count.
    #[default]
    OldestUnread,
}

/// Reason why a table cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The configuration is impossible.
    #[error(
        "a table of {items} items in {memory_bytes} bytes with values of up to {value_len_max} bytes is not possible: {why}"
    )]
    Config {
        /// Items, as configured.
        items: usize,
        /// Memory in bytes, as configured.
        memory_bytes: usize,
        /// Longest value in bytes, as configured.
        value_len_max: usize,
        /// The limit that is exceeded, or what to change.
        why: &'static str,
    },
    /// The system has no memory.
    #[error("no memory for a table of {bytes} bytes: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Reason why the memory of a table was not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The table does not evict.
    #[error("a table that evicts nothing keeps the memory that it was made with")]
    EvictsNothing,
    /// The limit exceeds the table's address space, or is less than an item takes.
    #[error("the memory of a table can be limited to {min} to {max} bytes, not to {bytes}")]
    Bounds {
        /// Bytes asked for.
        bytes: usize,
        /// Lowest limit, in bytes.
        min: usize,
        /// Highest limit, in bytes.
        max: usize,
    },
}

/// Condition, flags and expiry of a value to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Condition under which the value is stored.
    pub when: When,
    /// A number of the client's own, returned with the item.
    pub flags: u32,
    /// Time of expiry, in seconds of the clock passed in; 0 means never.
    pub expires_s: u32,
}

/// A condition for storing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// No condition.
    #[default]
    Always,
    /// No item has the key.
    Absent,
    /// An item has the key.
    Present,
    /// An item has the key and this version: compare-and-swap.
    Version(u64),
}

impl When {
    /// Checks the condition; `present` is the version of the existing item, if there is one.
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

/// Reason why nothing was stored. An existing item is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The key is too long.
    #[error("a key of {len} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len: usize,
    },
    /// The value is too long.
    #[error("a value of {len} bytes is longer than the {max} that this table takes")]
    ValueTooLong {
        /// Length of the value, in bytes.
        len: usize,
        /// Longest value of the table, in bytes.
        max: usize,
    },
    /// There is no memory for the item, in a table that does not evict.
    #[error("the store is full: {used_bytes} of {capacity_bytes} bytes are in use, and nothing is evicted here")]
    Full {
        /// Bytes in use.
        used_bytes: usize,
        /// Bytes in all.
        capacity_bytes: usize,
    },
    /// An item has the key, and none should.
    #[error("an item has this key already")]
    Present,
    /// No item has the key.
    #[error("no item has this key")]
    Absent,
    /// The existing item has another version.
    #[error("the item was changed: it has version {version}")]
    Changed {
        /// Version of the existing item.
        version: u64,
    },
}

/// Reason why a value was not modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError<E> {
    /// The new value was not stored.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The `change` function refused.
    #[error("{0}")]
    Refused(E),
}

/// Counters of a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// GETs of the owner that found their item. Readers count their own.
    pub hits: u64,
    /// GETs of the owner that found none.
    pub misses: u64,
    /// Items in the table. An expired item counts until it is found: by a request for its key, by a PUT of its key, or
    /// when its place is needed.
    pub items: usize,
    /// Items stored, including those that replaced others.
    pub stored: u64,
    /// Items evicted before they expired.
    pub evictions: u64,
    /// Evicted items that had never been fetched, that is, without the mark [`FETCHED`].
    pub evicted_unfetched: u64,
    /// Items appended again instead of being evicted, since they had been read: see [`Eviction::OldestUnread`].
    pub spared: u64,
    /// Items found to have expired or to have been cleared, and removed.
    pub reclaimed: u64,
    /// Removed items, among these, that had never been fetched.
    pub expired_unfetched: u64,
    /// Bytes of the items in the table.
    pub item_bytes: usize,
    /// Bytes of items, including dead ones in the log.
    pub used_bytes: usize,
    /// Bytes available for items.
    pub capacity_bytes: usize,
    /// Bytes of the index.
    pub index_bytes: usize,
}
