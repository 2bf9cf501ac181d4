//! An ordered index of byte strings, which any number of threads read, scan and change at once (nsdi19 7.2 uses
//! Masstree for this).
//!
//! The tree is `scc::TreeIndex`, a B+-tree whose readers take no lock. It is the only one of the crates tried that is
//! correct, and an index has to be correct first: while writers inserted, overwrote and removed among 20,000 keys,
//! scans and GETs of `masstree` 0.9.5 missed keys that were present throughout, and those of `crossbeam-skiplist` 0.1.3
//! missed keys while they were overwritten (14,782 and 363 times in ten seconds; the tree never). In the same run, on a
//! busy machine, `masstree` read four times as fast as the tree, and `crossbeam-skiplist` as fast. `tests/ordered.rs`
//! is a short form of this trial.
//!
//! This module adds the layout of keys and values (`key`, `value`), exact counts of entries and bytes, and a bound on
//! both. The first eight bytes of a key, and values of up to 22 bytes, lie in the tree's nodes. The tree does not
//! report what an insertion replaced, so changes of one key take turns under a lock that keys share by their hash;
//! readers never wait for it.
//!
//! A GET takes 1,018 instructions in the tree, and a dependent cache miss for each of its levels. So a hash table in
//! front of it (`front`) has copies of short entries, in a cache line each, which a GET finds with 209; GETs store
//! there what they had to look for in the tree.

mod front;
mod key;
mod value;

use std::fmt;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use scc::{Guard, TreeIndex};
use sinew_mem::atomic::plain::{AtomicU64, Ordering};

use front::Front;
use key::{Key, KeyRef};
use value::Value;

/// Longest key, in bytes. Keys may be empty.
pub const KEY_LEN_MAX: usize = 4096;
/// Bytes that an entry takes besides its key and value: its place in a node, its share of the node, and the rounding of
/// allocations. An estimate from a million entries of 8 and 8 bytes.
pub const ENTRY_BYTES: usize = 120;
/// Bytes that an entry takes further if it is short: key and value, each rounded up to 8 bytes, have at most 48. GETs
/// find it in a table of such entries, of which this is its share.
pub const SHORT_ENTRY_BYTES: usize = front::ENTRY_BYTES;

/// An ordered map from byte strings to byte strings, shared by threads.
///
/// GETs, PUTs and DELETEs are linearizable, as the tree promises for its methods. A scan sees each key that was present
/// throughout, in order and once; of keys that come or go meanwhile it sees some.
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
    front: Front,
    stripes: Box<[Stripe]>,
    memory_bytes: u64,
    entries: AtomicU64,
    short_entries: AtomicU64,
    used_bytes: AtomicU64,
}

/// Lock of the keys of a stripe, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// Reason why a value was not stored. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The entries would exceed the memory limit. (A shorter value may count for more: see [`entry_bytes`].)
    #[error("the index is full: its entries may take {memory_bytes} B; delete some, or start it with more memory")]
    Full {
        /// The limit, in bytes.
        memory_bytes: u64,
    },
    /// The key is longer than [`KEY_LEN_MAX`].
    #[error("a key of {len} B is longer than {KEY_LEN_MAX} B")]
    KeyTooLong {
        /// Length of the key, in bytes.
        len: usize,
    },
}

/// Counters of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of entries.
    pub entries: u64,
    /// Bytes of all entries: see [`entry_bytes`].
    pub used_bytes: u64,
    /// Limit of `used_bytes`.
    pub memory_bytes: u64,
}

impl OrderedIndex {
    /// Makes an empty index whose entries take at most `memory_bytes` bytes, as [`entry_bytes`] counts them. A removed
    /// or replaced value is no longer counted, but is freed only when the tree next rewrites its leaf, which has 15
    /// places: a key that is overwritten again and again keeps up to 14 of its older values in memory. The table from
    /// which short entries are read does not shrink when there are fewer of them.
    pub fn new(memory_bytes: u64) -> Self {
        Self {
            tree: TreeIndex::new(),
            // At most what is counted for it when the index is full of empty entries.
            front: Front::new(memory_bytes / entry_bytes(b"", 0) * SHORT_ENTRY_BYTES as u64),
            stripes: (0..front::STRIPES).map(|_| Stripe::default()).collect(),
            memory_bytes,
            entries: AtomicU64::new(0),
            short_entries: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
        }
    }

    /// Passes the value of `key` to `read` and returns its result; `None` if there is no such key. `read` should be
    /// short: what other threads remove meanwhile is freed only after it ends.
    #[inline]
    pub fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if front::is_short(key)
            && let Some(copied) = self.front.get(hash_of(key), key)
        {
            return Some(read(copied.bytes()));
        }
        self.get_from_tree(key, read)
    }

    /// Prefetches what a [`Self::get`] of `key` reads first. It pays for several GETs in a row.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        if front::is_short(key) {
            self.front.prefetch(hash_of(key));
        }
    }

    #[inline(never)]
    fn get_from_tree<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let guard = Guard::new();
        let value = self.tree.peek(&KeyRef::new(key), &guard)?.bytes();
        if front::is_copied(key, value.len()) {
            self.copy_to_front(key, &guard);
        }
        Some(read(value))
    }

    /// Copies an entry, unless a writer is at work in its stripe.
    fn copy_to_front(&self, key: &[u8], guard: &Guard) {
        let hash = hash_of(key);
        let Some(_key_lock) = self.try_lock_key(hash) else { return };
        // What the tree has now: it may have changed since it was read without the lock.
        if let Some(value) = self.tree.peek(&KeyRef::new(key), guard) {
            self.front.put(hash, key, value.bytes());
        }
    }

    /// Stores `value` under `key`. Returns whether there was a value before. Readers see the old or the new value, and
    /// never none in between.
    ///
    /// # Errors
    ///
    /// [`PutError`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, PutError> {
        if key.len() > KEY_LEN_MAX {
            return Err(PutError::KeyTooLong { len: key.len() });
        }
        let (key_ref, hash) = (KeyRef::new(key), hash_of(key));
        let key_lock = self.lock_key(hash);
        let before = self.len_of(key_ref);
        self.reserve(before.map_or(0, |len| entry_bytes(key, len)), entry_bytes(key, value.len()))?;
        self.front.remove(hash, key);
        self.tree.upsert_sync(key_ref.to_owned(), Value::new(value));
        self.front.put(hash, key, value);
        if before.is_none() {
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        let outgrown = match (before.is_some_and(|len| front::is_copied(key, len)), front::is_copied(key, value.len()))
        {
            (false, true) => self.front.make_room(self.short_entries.fetch_add(1, Ordering::Relaxed) + 1),
            (true, false) => {
                self.short_entries.fetch_sub(1, Ordering::Relaxed);
                None
            }
            _ => None,
        };
        drop(key_lock);
        if let Some(outgrown) = outgrown {
            // Writers that still use it hold their locks. Later ones find the new table.
            self.stripes.iter().for_each(|stripe| drop(stripe.0.lock()));
            // Readers that still use it see that a version has changed, or find nothing, and ask the tree.
            outgrown.give_back(0);
        }
        Ok(before.is_some())
    }

    /// Removes `key`; returns whether it was there.
    pub fn delete(&self, key: &[u8]) -> bool {
        let (key_ref, hash) = (KeyRef::new(key), hash_of(key));
        let _key_lock = self.lock_key(hash);
        let Some(len) = self.len_of(key_ref) else { return false };
        self.front.remove(hash, key);
        self.tree.remove_sync(&key_ref);
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.short_entries.fetch_sub(front::is_copied(key, len).into(), Ordering::Relaxed);
        self.used_bytes.fetch_sub(entry_bytes(key, len), Ordering::Relaxed);
        true
    }

    /// Passes the entries of a range to `visit` in key order, until it returns `false`. A range whose end lies before
    /// its beginning is empty. Returns whether `visit` ended the scan.
    pub fn scan(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>), mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        if is_empty(from, to) {
            return false;
        }
        let guard = Guard::new();
        let mut key_bytes = Vec::with_capacity(64);
        for (key, value) in self.tree.range((key::bound(from), key::bound(to)), &guard) {
            key.write(&mut key_bytes);
            if !visit(&key_bytes, value.bytes()) {
                return true;
            }
        }
        false
    }

    /// As [`Self::scan`], but passes only the values.
    pub fn scan_values(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>), mut visit: impl FnMut(&[u8]) -> bool) -> bool {
        if is_empty(from, to) {
            return false;
        }
        let guard = Guard::new();
        !self.tree.range((key::bound(from), key::bound(to)), &guard).all(|(_, value)| visit(value.bytes()))
    }

    /// Counters of the index. While other threads write, they may be from slightly different moments.
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

    /// Takes the lock for changes of the key with this hash.
    fn lock_key(&self, hash: u64) -> MutexGuard<'_, ()> {
        // A poisoned lock is harmless: the tree it protects is consistent at all times, and a copy that was being
        // written is found by no reader.
        self.stripes[front::stripe_of(hash)].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::lock_key`], but does not wait.
    fn try_lock_key(&self, hash: u64) -> Option<MutexGuard<'_, ()>> {
        match self.stripes[front::stripe_of(hash)].0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Accounts for replacing an entry of `before` bytes by one of `after` bytes, if there is room.
    fn reserve(&self, before: u64, after: u64) -> Result<(), PutError> {
        let with_entry = |used: u64| {
            let used = used + after - before;
            // An entry that counts for no more than before always has room.
            (used <= self.memory_bytes || after <= before).then_some(used)
        };
        match self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_entry) {
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

/// Hash of a key. Keys that someone chose to have one hash are got from the tree, after a search of their lines, and
/// their PUTs take turns.
#[inline]
fn hash_of(key: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(key)
}

/// Bytes that an entry counts for: its key and its value, [`ENTRY_BYTES`], and [`SHORT_ENTRY_BYTES`] if it is short.
pub fn entry_bytes(key: &[u8], value_len: usize) -> u64 {
    let more = if front::is_copied(key, value_len) { SHORT_ENTRY_BYTES } else { 0 };
    (ENTRY_BYTES + more + key.len() + value_len) as u64
}

/// Whether a range can hold no key.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use sinew_conformance::history::{MapClient, check_map};

    use super::*;

    /// A key that begins with `key`, and whose first bucket in the smallest table is the first.
    fn crowded(key: &[u8]) -> Vec<u8> {
        let mut keys = (0u64..).map(|number| [key, &number.to_le_bytes()].concat());
        keys.find(|key| hash_of(key).is_multiple_of(256)).expect("one in 256 has such a hash")
    }

    /// A thread's view of an index whose keys have one bucket in common until the table grows.
    #[derive(Clone, Copy)]
    struct Crowded<'a> {
        index: &'a OrderedIndex,
        others: &'a [Vec<u8>],
    }

    impl MapClient for Crowded<'_> {
        fn get(&mut self, key: &[u8]) -> Option<u64> {
            for other in self.others {
                assert_eq!(self.index.get(other, <[u8]>::to_vec).as_ref(), Some(other));
            }
            self.index.get(&crowded(key), |value| u64::from_le_bytes(*value.as_array().expect("all are numbers")))
        }

        fn put(&mut self, key: &[u8], value: u64) -> bool {
            self.index.put(&crowded(key), &value.to_le_bytes()).expect("there is room")
        }

        fn delete(&mut self, key: &[u8]) -> bool {
            self.index.delete(&crowded(key))
        }
    }

    #[test]
    fn keys_of_one_bucket_are_linearizable_while_the_table_grows() {
        let (rounds, entries) = if cfg!(miri) { (3, 800u64) } else { (2000, 100_000) };
        let index = OrderedIndex::new(1 << 30);
        let others: Vec<Vec<u8>> = (b'a'..b'f').map(|key| crowded(&[key])).collect();
        for other in &others {
            index.put(other, other).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..entries {
                    index.put(format!("more {number}").as_bytes(), b"").unwrap();
                    if number % 64 == 0 {
                        thread::yield_now();
                    }
                }
            });
            let client = Crowded { index: &index, others: &others };
            assert_eq!(check_map(&mut [client; 3], rounds, 1), Ok(()));
        });
        assert!((0..entries).all(|number| index.get(format!("more {number}").as_bytes(), <[u8]>::len) == Some(0)));
    }

    #[test]
    fn what_a_get_had_to_look_for_is_copied_and_what_is_gone_is_not() {
        let index = OrderedIndex::new(1 << 30);
        let is_copied = |key: &[u8]| index.front.get(hash_of(key), key).is_some();
        index.put(b"key", b"value").unwrap();
        assert!(is_copied(b"key"));
        index.front.remove(hash_of(b"key"), b"key");
        assert_eq!((is_copied(b"key"), index.get(b"key", <[u8]>::to_vec)), (false, Some(b"value".to_vec())));
        assert!(is_copied(b"key"));
        index.put(b"key", &[7; 100]).unwrap();
        assert_eq!((is_copied(b"key"), index.get(b"key", <[u8]>::to_vec)), (false, Some(vec![7; 100])));
        assert!(!is_copied(b"key"));
        index.put(b"key", b"value").unwrap();
        assert!(index.delete(b"key"));
        assert_eq!((is_copied(b"key"), index.get(b"key", <[u8]>::to_vec)), (false, None));
        assert!(!is_copied(b"key"));
    }
}
