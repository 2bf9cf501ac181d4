//! The choice of items that a table evicts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sinew_store::cache::{Cache, CacheConfig, Eviction, Put, WhenFull};

const NOW_S: u32 = 1;
/// Bytes of an item with a key and a value of eight bytes each.
const ITEM: usize = 32;

fn table(items: usize, eviction: Eviction, readers: bool) -> Cache {
    let config = CacheConfig { items: 8 * items, memory_bytes: items * ITEM, seed: 7, ..CacheConfig::default() };
    Cache::new(&CacheConfig { when_full: WhenFull::Evict, eviction, readers, ..config }).unwrap()
}

fn put(cache: &mut Cache, key: u64, value: &[u8]) {
    let bytes = key.to_le_bytes();
    let key = cache.hasher().key(&bytes);
    cache.put(&key, value, &Put::default(), NOW_S).unwrap();
}

fn get(cache: &Cache, key: u64) -> bool {
    let bytes = key.to_le_bytes();
    cache.get(&cache.hasher().key(&bytes), NOW_S).is_some()
}

fn has(cache: &Cache, key: u64) -> bool {
    let bytes = key.to_le_bytes();
    cache.peek(&cache.hasher().key(&bytes), NOW_S).is_some()
}

#[test]
fn what_is_read_all_the_time_is_kept() {
    for (eviction, kept) in [(Eviction::OldestUnread, true), (Eviction::Oldest, false)] {
        let mut cache = table(100, eviction, false);
        put(&mut cache, 0, &[1; 8]);
        for key in 1..if cfg!(miri) { 250 } else { 10_000 } {
            get(&cache, 0);
            put(&mut cache, key, &[1; 8]);
        }
        assert_eq!(has(&cache, 0), kept, "{eviction:?}");
        assert_eq!(cache.stats().items, 100);
        assert_eq!(cache.stats().spared > 0, kept);
    }
}

#[test]
fn what_was_read_once_goes_around_once_more() {
    let mut cache = table(100, Eviction::OldestUnread, false);
    for key in 0..100 {
        put(&mut cache, key, &[1; 8]);
    }
    // A peek does not count as a read, and neither does a get that finds nothing.
    assert!(get(&cache, 0) && has(&cache, 1) && !get(&cache, 1000));
    put(&mut cache, 100, &[1; 8]);
    assert_eq!((has(&cache, 0), has(&cache, 1), cache.stats().spared), (true, false, 1));
    for key in 101..199 {
        put(&mut cache, key, &[1; 8]);
        assert!(has(&cache, 0), "{key}");
    }
    put(&mut cache, 199, &[1; 8]);
    assert_eq!((has(&cache, 0), cache.stats().spared, cache.stats().items), (false, 1, 100));
}

#[test]
fn what_was_read_only_while_it_was_young_is_not_spared() {
    for (read_after, kept) in [(49, false), (50, true)] {
        let mut cache = table(100, Eviction::OldestUnread, false);
        for key in 0..=100 {
            put(&mut cache, key, &[1; 8]);
            if key == read_after {
                assert!(get(&cache, 0));
            }
        }
        assert_eq!(has(&cache, 0), kept, "{read_after}");
    }
}

#[test]
fn at_most_four_are_spared_for_one() {
    let mut cache = table(100, Eviction::OldestUnread, false);
    (0..100).for_each(|key| put(&mut cache, key, &[1; 8]));
    assert!((0..50).all(|key| get(&cache, key)));
    put(&mut cache, 100, &[1; 8]);
    let kept: Vec<bool> = (0..8).map(|key| has(&cache, key)).collect();
    assert_eq!(kept, [true, true, true, true, false, true, true, true]);
    assert_eq!((cache.stats().spared, cache.stats().evictions), (4, 1));
}

#[test]
fn values_that_were_replaced_do_not_count_among_the_four() {
    let mut cache = table(100, Eviction::OldestUnread, false);
    (0..90).for_each(|key| put(&mut cache, key, &[1; 8]));
    // The first eight are read and then replaced, which leaves their old values in the log; another one is read.
    assert!((0..9).all(|key| get(&cache, key)));
    (0..8).for_each(|key| put(&mut cache, key, &[2; 8]));
    (90..92).for_each(|key| put(&mut cache, key, &[1; 8]));
    // It takes the place of nine items.
    put(&mut cache, 92, &[1; 264]);
    assert_eq!((has(&cache, 8), has(&cache, 9), cache.stats().spared), (true, false, 1));
}

#[test]
fn long_items_are_not_spared() {
    // Header and key take three words, so the longest value that is spared has 509.
    for (words, kept) in [(509, true), (510, false)] {
        let mut cache = table(1000, Eviction::OldestUnread, false);
        put(&mut cache, 0, &vec![1; words * 8]);
        let others = (4000 - 3 - words as u64) / 4;
        (1..=others).for_each(|key| put(&mut cache, key, &[1; 8]));
        assert!(get(&cache, 0));
        put(&mut cache, 0xFFFF, &[1; 8]);
        assert_eq!(has(&cache, 0), kept, "{words}");
    }
}

#[test]
fn an_expired_item_is_not_spared() {
    let mut cache = table(100, Eviction::OldestUnread, false);
    let bytes = 0u64.to_le_bytes();
    let key = cache.hasher().key(&bytes);
    cache.put(&key, &[], &Put { expires_s: 10, ..Put::default() }, NOW_S).unwrap();
    (1..100).for_each(|number| put(&mut cache, number, &[1; 8]));
    assert!(get(&cache, 0) && get(&cache, 1));
    for number in 100..102u64 {
        let bytes = number.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        cache.put(&key, &[1; 8], &Put::default(), 10).unwrap();
    }
    // The other item that was read is spared, so the third one goes.
    let stats = cache.stats();
    assert_eq!((stats.spared, stats.reclaimed, stats.evictions), (1, 1, 1));
}

#[test]
fn in_a_full_bucket_an_expired_item_makes_room_before_the_oldest_does() {
    // One bucket, with eight slots.
    let mut cache = Cache::new(&CacheConfig { items: 1, memory_bytes: 100 * ITEM, seed: 7, ..CacheConfig::default() });
    let cache = cache.as_mut().unwrap();
    let put_at = |cache: &mut Cache, number: u64, expires_s, now_s| {
        let bytes = number.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        cache.put(&key, &[1; 8], &Put { expires_s, ..Put::default() }, now_s).unwrap();
    };
    (0..8).for_each(|number| put_at(cache, number, if number == 5 { 10 } else { 0 }, NOW_S));
    assert_eq!(cache.stats().items, 8);
    put_at(cache, 8, 0, 10);
    let kept: Vec<bool> = (0..9).map(|number| has(cache, number)).collect();
    assert_eq!(kept, [true, true, true, true, true, false, true, true, true]);
    assert_eq!((cache.stats().reclaimed, cache.stats().evictions, cache.stats().items), (1, 0, 8));
    put_at(cache, 9, 0, 10);
    assert!(!has(cache, 0) && (1..10).all(|number| number == 5 || has(cache, number)));
    assert_eq!((cache.stats().reclaimed, cache.stats().evictions, cache.stats().items), (1, 1, 8));
}

#[test]
fn readers_never_miss_what_is_spared() {
    let mut cache = table(40, Eviction::OldestUnread, true);
    let reader = cache.reader().unwrap();
    put(&mut cache, 0, &[0xAB; 8]);
    let (puts_min, reads_min) = if cfg!(miri) { (200, 10) } else { (300_000, 1000) };
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let reading = threads.spawn(|| {
            let (mut value, bytes) = (Vec::new(), 0u64.to_le_bytes());
            while !done.load(Ordering::Relaxed) {
                let key = reader.hasher().key(&bytes);
                assert!(reader.get(&key, NOW_S, &mut value).is_some());
                assert_eq!(value, [0xAB; 8]);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let count = || reads.load(Ordering::Relaxed);
        while count() == 0 && !reading.is_finished() {
            std::thread::yield_now();
        }
        // The reads that count are made while the item is spared again and again.
        let (before, mut number) = (count(), 0u64);
        while (number < puts_min || count() < before + reads_min) && !reading.is_finished() {
            number += 1;
            assert!(get(&cache, 0));
            put(&mut cache, 1 + number % 1000, &vec![1; number as usize % 40]);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > reads_min && cache.stats().spared > 0);
}

/// A generator of reproducible numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the percentage of keys found, when each missing one is stored.
fn hit_percent(eviction: Eviction, items: usize, keys: impl Iterator<Item = u64>) -> f64 {
    let mut cache = table(items, eviction, false);
    let (mut hits, mut all) = (0u32, 0u32);
    for key in keys {
        all += 1;
        if get(&cache, key) {
            hits += 1;
        } else {
            put(&mut cache, key, &[1; 8]);
        }
    }
    f64::from(hits) * 100.0 / f64::from(all)
}

/// Percentages of keys found where the oldest items go, and where those that were read are spared.
fn compare(name: &str, items: usize, keys: &[u64]) -> [f64; 2] {
    let [oldest, unread] =
        [Eviction::Oldest, Eviction::OldestUnread].map(|eviction| hit_percent(eviction, items, keys.iter().copied()));
    println!(
        "{name}: {oldest:.1} % of the keys found where the oldest go, {unread:.1} % where what was read is spared"
    );
    [oldest, unread]
}

/// Whether percentages are these, but for rounding and the last bits of a power.
fn are_near(found: [f64; 2], expected: [f64; 2]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.15)
}

#[test]
#[cfg_attr(miri, ignore = "half a million requests")]
fn more_is_found_where_what_was_read_is_spared() {
    const KEYS: u64 = 100_000;
    let mut numbers = Numbers(1);
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            total += (rank as f64).powf(-0.99);
            total
        })
        .collect();
    let zipf: Vec<u64> = (0..500_000)
        .map(|_| {
            let at = numbers.fraction() * total;
            sums.partition_point(|sum| *sum < at) as u64
        })
        .collect();
    let found = compare("Zipf .99", 10_000, &zipf);
    assert!(are_near(found, [68.5, 71.9]), "{found:?}");
    // A hot set that would fit, and scans of keys that are requested once.
    let mut next = 1 << 32;
    let scans: Vec<u64> = (0..500_000)
        .map(|_| {
            if numbers.next().is_multiple_of(2) {
                return numbers.next() % 5000;
            }
            next += 1;
            next
        })
        .collect();
    let found = compare("a hot set, and scans", 10_000, &scans);
    assert!(are_near(found, [29.2, 35.3]), "{found:?}");
    let uniform: Vec<u64> = (0..500_000).map(|_| numbers.next() % 20_000).collect();
    let [oldest, unread] = compare("uniform", 10_000, &uniform);
    assert!((unread - oldest).abs() < 1.0 && (48.0..50.5).contains(&oldest), "{oldest} {unread}");
}
