//! The cache's table, in batches as its servers use it, and the ordered index.

use std::ops::Bound;

use anyhow::ensure;
use sinew_cost::{Count, KEY_LEN, Operation, cache_config, key_bytes, operation};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_store::cache::{Cache, CacheConfig, Eviction, Key, Put};
use sinew_store::ordered::OrderedIndex;

const OPERATIONS: &[Operation] = &[
    operation("table GET in batches of 8", &["table"], |count| table(count, true, ALONE)),
    operation("table PUT in batches of 8", &["table"], |count| table(count, false, ALONE)),
    operation("table GET in batches of 8, no item spared", &["table"], |count| table(count, true, NONE_SPARED)),
    operation("table GET in batches of 8, readers and expiry", &["table"], |count| table(count, true, SHARED)),
    operation("table PUT in batches of 8, readers and expiry", &["table"], |count| table(count, false, SHARED)),
    operation("table GET that marks its item in batches of 8", &["table"], marking),
    operation("table PUT in batches of 8, log full", &["table"], into_full_log),
    operation("table PUT that evicts in batches of 8", &["table"], evicting),
    operation("GET of an ordered index", &["index"], |count| index(count, 1, 8)),
    operation("GET of an ordered index, of a long entry", &["index"], |count| index(count, 1, 64)),
    operation("sum over 128 keys of an ordered index", &["index"], |count| index(count, SUM_LEN, 8)),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const BATCH: usize = 8;
const ROUNDS: usize = 1024;
const KEYS: u64 = 1 << 14;
const VALUE_LEN: usize = 32;
const NOW_S: u32 = 1;

/// How a table is used.
#[derive(Clone, Copy)]
struct Use {
    eviction: Eviction,
    /// Whether other threads may read it.
    readers: bool,
    /// Time of expiry of its items, in seconds; 0 means never.
    expires_s: u32,
}

const ALONE: Use = Use { eviction: Eviction::OldestUnread, readers: false, expires_s: 0 };
const NONE_SPARED: Use = Use { eviction: Eviction::Oldest, ..ALONE };
const SHARED: Use = Use { readers: true, expires_s: NOW_S + 1000, ..ALONE };

fn table(count: &mut Count, gets: bool, how: Use) -> anyhow::Result<()> {
    let config = CacheConfig { eviction: how.eviction, readers: how.readers, ..cache_config(KEYS) };
    let (mut cache, put) = (Cache::new(&config)?, Put { expires_s: how.expires_s, ..Put::default() });
    let hasher = cache.hasher().clone();
    for number in 0..KEYS {
        cache.put(&hasher.key(&key_bytes(number)), &[number as u8; VALUE_LEN], &put, NOW_S)?;
    }
    // In the steady state, every key has been read before.
    let is_there = |number| cache.get(&hasher.key(&key_bytes(number)), NOW_S).is_some();
    ensure!(!gets || (0..KEYS).all(is_there), "a key was lost");
    let mut random = random_keys();
    count.rounds(ROUNDS, ROUNDS, |count| match gets {
        true => get_batch(count, &cache, random()),
        false => put_batch(count, &mut cache, random(), &put),
    })
}

/// Numbers of random keys, a batch at a time.
fn random_keys() -> impl FnMut() -> [u64; BATCH] {
    let mut generator = SeededGenerator::new(1);
    move || std::array::from_fn(|_| generator.next_u64() % KEYS)
}

/// Makes keys, whose items are prefetched.
#[inline(always)]
fn prefetched<'a>(cache: &Cache, bytes: &'a [[u8; KEY_LEN]; BATCH]) -> [Key<'a>; BATCH] {
    let mut keys: [Key<'_>; BATCH] = std::array::from_fn(|at| {
        let key = cache.hasher().key(&bytes[at]);
        cache.prefetch_bucket(&key);
        key
    });
    keys.iter_mut().for_each(|key| cache.prefetch_item(key));
    keys
}

fn get_batch(count: &mut Count, cache: &Cache, numbers: [u64; BATCH]) -> anyhow::Result<()> {
    let bytes = numbers.map(key_bytes);
    let good = count.step("table", BATCH, || {
        let keys = prefetched(cache, &bytes);
        let (mut value, mut good) = ([0; VALUE_LEN], 0);
        for (key, number) in keys.iter().zip(numbers) {
            let Some(item) = cache.get(key, NOW_S).filter(|item| item.value_len() == VALUE_LEN) else { continue };
            item.copy_to(&mut value);
            good += usize::from(value[0] == number as u8);
        }
        good
    });
    ensure!(good == BATCH, "{good} of {BATCH} GETs");
    Ok(())
}

fn put_batch(count: &mut Count, cache: &mut Cache, numbers: [u64; BATCH], put: &Put) -> anyhow::Result<()> {
    let bytes = numbers.map(key_bytes);
    let good = count.step("table", BATCH, || {
        let keys = prefetched(cache, &bytes);
        let (mut value, mut good) = ([0; VALUE_LEN], 0);
        for (key, number) in keys.iter().zip(numbers) {
            value.fill(number as u8);
            good += usize::from(cache.put(key, &value, put, NOW_S).is_ok());
        }
        good
    });
    ensure!(good == BATCH, "{good} of {BATCH} PUTs");
    Ok(())
}

/// Gets items of a full log's older half for the first time.
fn marking(count: &mut Count) -> anyhow::Result<()> {
    let mut cache = full_log()?;
    let mut next = 0;
    count.rounds(8, ROUNDS / 2, |count| {
        let numbers = std::array::from_fn(|at| next + at as u64);
        next += BATCH as u64;
        get_batch(count, &cache, numbers)
    })?;
    let hasher = cache.hasher().clone();
    for number in KEYS..2 * KEYS {
        cache.put(&hasher.key(&key_bytes(number)), &[0; VALUE_LEN], &Put::default(), NOW_S)?;
    }
    // All were marked: of five in a row, four are spared in their turn.
    ensure!(cache.stats().spared >= next * 4 / 5, "{:?} after {next} items were read", cache.stats());
    Ok(())
}

/// Makes a table whose log has room for just the keys, and puts them there in order.
fn full_log() -> anyhow::Result<Cache> {
    let item = 16 + KEY_LEN + VALUE_LEN;
    let mut cache = Cache::new(&CacheConfig { memory_bytes: KEYS as usize * item, ..cache_config(KEYS) })?;
    let hasher = cache.hasher().clone();
    for number in 0..KEYS {
        cache.put(&hasher.key(&key_bytes(number)), &[number as u8; VALUE_LEN], &Put::default(), NOW_S)?;
    }
    ensure!(cache.stats().items == KEYS as usize, "an item was lost");
    Ok(cache)
}

/// Puts random keys into a full log. Half of their items lie in its older half, and are appended.
fn into_full_log(count: &mut Count) -> anyhow::Result<()> {
    let mut cache = full_log()?;
    let mut random = random_keys();
    count.rounds(4 * ROUNDS, ROUNDS, |count| put_batch(count, &mut cache, random(), &Put::default()))
}

/// Puts items that are new to a full table, a fourth of whose items were read when they were old.
fn evicting(count: &mut Count) -> anyhow::Result<()> {
    let mut cache = Cache::new(&cache_config(KEYS))?;
    let mut value = [0; VALUE_LEN];
    let mut put = |cache: &mut Cache, number: u64| {
        value.fill(number as u8);
        cache.put(&cache.hasher().key(&key_bytes(number)), &value, &Put::default(), NOW_S).is_ok()
    };
    let read = |cache: &Cache, number: u64| {
        !number.is_multiple_of(4) || cache.get(&cache.hasher().key(&key_bytes(number)), NOW_S).is_some()
    };
    let mut next = 0;
    while cache.stats().evictions == 0 {
        ensure!(put(&mut cache, next), "an item was refused");
        next += 1;
    }
    // Items are read when about half of the table's items are older.
    let young = next / 2;
    ensure!((1..young).all(|number| read(&cache, number)), "an item is missing");
    count.rounds(ROUNDS, ROUNDS, |count| {
        let numbers = next..next + BATCH as u64;
        let good = count.step("table", BATCH, || numbers.clone().filter(|number| put(&mut cache, *number)).count());
        let is_there = numbers.clone().all(|number| read(&cache, number - young));
        next = numbers.end;
        ensure!(good == BATCH && is_there, "{good} of {BATCH} requests, or an item is missing");
        Ok(())
    })?;
    let stats = cache.stats();
    ensure!(stats.spared > 0 && stats.spared >= stats.evictions / 8, "{stats:?}");
    Ok(())
}

/// Keys of a sum (nsdi19 7.2).
const SUM_LEN: u64 = 128;

/// Reads one value of an index of eight-byte keys, or sums those of a row of keys: the numbers with which values of
/// `value_len` bytes begin.
fn index(count: &mut Count, keys: u64, value_len: usize) -> anyhow::Result<()> {
    let index = OrderedIndex::new(1 << 30);
    // Filled in no order, as its nodes are then as full as they are with any keys.
    for number in (0..KEYS).map(|number| number.wrapping_mul(0x9E37_79B1) % KEYS) {
        let mut value = vec![0; value_len];
        value[..8].copy_from_slice(&number.to_le_bytes());
        index.put(&number.to_be_bytes(), &value)?;
    }
    // The first GET of a key is slower, once the table of short entries has grown.
    ensure!((0..KEYS).all(|number| index.get(&number.to_be_bytes(), |_| ()).is_some()), "a key is missing");
    let mut generator = SeededGenerator::new(1);
    count.rounds(ROUNDS, ROUNDS, |count| {
        let first = generator.next_u64() % (KEYS - keys);
        let key = first.to_be_bytes();
        let value_of = |value: &[u8]| value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let sum = count.step("index", 1, || {
            if keys == 1 {
                return index.get(&key, value_of);
            }
            let (mut sum, mut seen) = (0, 0);
            index.scan_values((Bound::Included(&key), Bound::Unbounded), |value| {
                (sum, seen) = (sum + value_of(value), seen + 1);
                seen < keys
            });
            Some(sum)
        });
        let expected: u64 = (first..first + keys).sum();
        ensure!(sum == Some(expected), "{sum:?} instead of {expected}");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
