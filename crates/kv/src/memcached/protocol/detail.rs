//! `stats detail`: counts of operations by key prefix.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_mem::atomic::{AtomicBool, Ordering};

use super::numbers::push_number;

/// Delimiter that ends the prefix of a key.
const DELIMITER: u8 = b':';
/// Most prefixes that a thread counts; keys with further prefixes are not counted.
const PREFIXES_MAX: usize = 1000;

/// Counts of operations on keys with one prefix.
#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// A get that found an item.
    Hit,
    /// A get that found none.
    Miss,
    /// An attempt to store a value.
    Set,
    /// An attempt to delete the item.
    Delete,
}

/// Counts by prefix of all threads of a server, while switched on.
#[derive(Debug)]
pub struct Detail {
    is_on: AtomicBool,
    /// Counts of each thread. A thread's lock is contended only when the counts are read or reset.
    threads: Box<[Mutex<Prefixes>]>,
}

type Prefixes = BTreeMap<Box<[u8]>, PrefixCounts>;

fn lock(prefixes: &Mutex<Prefixes>) -> MutexGuard<'_, Prefixes> {
    prefixes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Detail {
    /// Counts for `threads` threads, switched off at first.
    pub fn new(threads: usize) -> Self {
        Self { is_on: AtomicBool::new(false), threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Whether keys are to be counted.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Starts or stops counting.
    pub fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Resets all counts.
    pub fn reset(&self) {
        self.threads.iter().for_each(|prefixes| lock(prefixes).clear());
    }

    /// Counts an operation on `key` for `thread`.
    pub fn count(&self, thread: usize, key: &[u8], usage: Usage) {
        let Some(end) = memchr::memchr(DELIMITER, key) else { return };
        let prefix = &key[..end];
        let mut prefixes = lock(&self.threads[thread]);
        if !prefixes.contains_key(prefix) {
            if prefixes.len() >= PREFIXES_MAX {
                return;
            }
            prefixes.insert(prefix.into(), PrefixCounts::default());
        }
        let Some(uses) = prefixes.get_mut(prefix) else { return };
        uses.gets += u64::from(matches!(usage, Usage::Hit | Usage::Miss));
        uses.hits += u64::from(usage == Usage::Hit);
        uses.sets += u64::from(usage == Usage::Set);
        uses.deletes += u64::from(usage == Usage::Delete);
    }

    /// Appends the sums over all threads.
    pub fn dump(&self, out: &mut Vec<u8>) {
        let mut all = Prefixes::new();
        for prefixes in &self.threads {
            for (prefix, uses) in lock(prefixes).iter() {
                let sum = all.entry(prefix.clone()).or_default();
                sum.gets += uses.gets;
                sum.hits += uses.hits;
                sum.sets += uses.sets;
                sum.deletes += uses.deletes;
            }
        }
        for (prefix, uses) in all {
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(&prefix);
            for (name, number) in [("get", uses.gets), ("hit", uses.hits), ("set", uses.sets), ("del", uses.deletes)] {
                out.push(b' ');
                out.extend_from_slice(name.as_bytes());
                out.push(b' ');
                push_number(out, number);
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}
