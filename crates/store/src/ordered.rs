//! An ordered index of byte strings, which any number of threads read, scan and change at once (nsdi19 7.2 has Masstree in this place).
//!
//! The tree is `scc::TreeIndex`, a B+-tree whose readers take no lock. Of the crates that were tried it is the one that is correct: under writers
//! that insert, overwrite and remove among 20,000 keys, scans and GETs of `masstree` 0.9.5 missed keys that stood throughout, and those of
//! `crossbeam-skiplist` 0.1.3 missed keys while they were overwritten. `tests/ordered.rs` holds it to that.
//!
//! What is added here is the layout of keys and values (`key`, `value`), exact counts, and a bound on what they add up to. The tree does not tell what an
//! insertion replaced, so changes of one key take turns by a lock that keys share by their hash; readers never look at it.

mod key;
mod value;

use std::fmt;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scc::{Guard, TreeIndex};
use sinew_mem::atomic::plain::{AtomicU64, Ordering};

use key::{Key, KeyRef};
use value::Value;

/// Longest key, in bytes. Keys may be empty.
pub const KEY_LEN_MAX: usize = 4096;
/// Bytes that an entry takes beside its key and value: its place in a node, the node's share, and what allocations round up to. An
/// estimate from a million entries of 8 and 8 bytes.
pub const ENTRY_BYTES: usize = 120;
/// Locks of writers, which keys share.
const STRIPES: usize = 64;

/// An ordered map from byte strings to byte strings, shared by threads.
///
/// GETs, PUTs and DELETEs are linearizable, as the tree says of its methods. A scan sees each key that stood from its beginning to its end, in order and once; of keys that
/// come or go meanwhile it sees some.
///
/// ```
/// use std::ops::Bound;
/// use sinew_store::ordered::OrderedIndex;
///
/// let index = OrderedIndex::new(1 << 20);
/// for (key, value) in [("b", "2"), ("a", "1"), ("c", "3")] {
///     index.put(key.as_bytes(), value.as_bytes())?;
/// }
/// let mut found = Vec::new();
/// index.scan((Bound::Excluded(b"a"), Bound::Unbounded), |key, value| {
///     found.push((key.to_vec(), value.to_vec()));
///     true
/// });
/// assert_eq!(found, [(b"b".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"3".to_vec())]);
/// # Ok::<(), sinew_store::ordered::PutError>(())
/// ```
pub struct OrderedIndex {
    tree: TreeIndex<Key, Value>,
    stripes: Box<[Mutex<()>]>,
    memory_bytes: u64,
    entries: AtomicU64,
    used_bytes: AtomicU64,
}

/// Why a value was not stored. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The entries have all the memory that they may have.
    #[error("the index is full: its entries may take {memory_bytes} B; delete some, or start it with more memory")]
    Full {
        /// The bound.
        memory_bytes: u64,
    },
    /// The key is longer than [`KEY_LEN_MAX`].
    #[error("a key of {len} B is longer than {KEY_LEN_MAX} B")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
}

/// What an index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries.
    pub entries: u64,
    /// Bytes of keys and values, with [`ENTRY_BYTES`] for each entry.
    pub used_bytes: u64,
    /// As many as there may be.
    pub memory_bytes: u64,
}

impl OrderedIndex {
    /// An empty index whose entries count at most `memory_bytes` bytes, [`ENTRY_BYTES`] for each included. What was removed or replaced counts no longer, and is
    /// freed when the tree next rewrites its leaf, which has 15 places: a key that is overwritten again and again keeps up to 14 of its older values in memory.
    pub fn new(memory_bytes: u64) -> Self {
        Self {
            tree: TreeIndex::new(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            memory_bytes,
            entries: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
        }
    }

    /// What `read` makes of the value of `key`; none if there is no such key. `read` should be short: what other threads remove meanwhile is not
    /// freed before it ends.
    #[inline]
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let guard = Guard::new();
        self.tree.peek(&KeyRef::new(key), &guard).map(|value| read(value.bytes()))
    }

    /// Stores `value` as that of `key`. Returns whether there was one before. Readers see the one or the other, and never none in between.
    ///
    /// # Errors
    ///
    /// [`PutError`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, PutError> {
        if key.len() > KEY_LEN_MAX {
            return Err(PutError::KeyTooLong { len: key.len() });
        }
        let name = KeyRef::new(key);
        let _turn = self.turn(key);
        let before = self.len_of(name);
        let after = entry_bytes(key, value.len());
        self.reserve(before.map_or(0, |len| entry_bytes(key, len)), after)?;
        self.tree.upsert_sync(name.to_owned(), Value::new(value));
        if before.is_none() {
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        Ok(before.is_some())
    }

    /// Removes `key`. Returns whether it was there.
    pub fn delete(&self, key: &[u8]) -> bool {
        let name = KeyRef::new(key);
        let _turn = self.turn(key);
        let Some(len) = self.len_of(name) else { return false };
        self.tree.remove_sync(&name);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.used_bytes.fetch_sub(entry_bytes(key, len), Ordering::Relaxed);
        true
    }

    /// Shows `visit` the entries of a range in the order of their keys, until it returns `false`. A range whose end lies before its beginning is
    /// empty. Returns whether `visit` ended it.
    pub fn scan(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>), mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        if is_empty(from, to) {
            return false;
        }
        let guard = Guard::new();
        let mut name = Vec::with_capacity(64);
        for (key, value) in self.tree.range((key::bound(from), key::bound(to)), &guard) {
            key.write(&mut name);
            if !visit(&name, value.bytes()) {
                return true;
            }
        }
        false
    }

    /// As [`Self::scan`], of the values alone.
    pub fn scan_values(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>), mut visit: impl FnMut(&[u8]) -> bool) -> bool {
        if is_empty(from, to) {
            return false;
        }
        let guard = Guard::new();
        !self.tree.range((key::bound(from), key::bound(to)), &guard).all(|(_, value)| visit(value.bytes()))
    }

    /// What it holds. Beside writers the figures are of moments near each other.
    pub fn stats(&self) -> Stats {
        Stats {
            entries: self.entries.load(Ordering::Relaxed),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            memory_bytes: self.memory_bytes,
        }
    }

    fn len_of(&self, key: KeyRef<'_>) -> Option<usize> {
        let guard = Guard::new();
        self.tree.peek(&key, &guard).map(|value| value.bytes().len())
    }

    /// The right to change `key`.
    fn turn(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let hash = rapidhash::v3::rapidhash_v3(key);
        // What a lock protects is whole at any time.
        self.stripes[hash as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an entry of `before` bytes as one of `after` bytes, if there is room.
    fn reserve(&self, before: u64, after: u64) -> Result<(), PutError> {
        let grown = |used: u64| {
            let used = used + after - before;
            // What takes no more than before always has room.
            (used <= self.memory_bytes || after <= before).then_some(used)
        };
        match self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => Ok(()),
            Err(_) => Err(PutError::Full { memory_bytes: self.memory_bytes }),
        }
    }
}

impl fmt::Debug for OrderedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedIndex").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

fn entry_bytes(key: &[u8], value_len: usize) -> u64 {
    (ENTRY_BYTES + key.len() + value_len) as u64
}

/// Whether no key can lie in it.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}
