//! Guarantees of the cache's table beyond those of a map.

use sinew_store::cache::{
    Cache, CacheConfig, CacheError, FETCHED, KEY_LEN_MAX, LimitError, MissReason, Put, PutError, VALUE_LEN_MAX,
    WhenFull,
};

const NOW_S: u32 = 1;

fn table(items: usize, memory_bytes: usize, when_full: WhenFull) -> Cache {
    Cache::new(&CacheConfig { items, memory_bytes, when_full, seed: 7, ..CacheConfig::default() }).unwrap()
}

fn put(cache: &mut Cache, key: u64, value: &[u8]) -> Result<u64, PutError> {
    let bytes = key.to_le_bytes();
    let key = cache.hasher().key(&bytes);
    cache.put(&key, value, &Put::default(), NOW_S)
}

fn get(cache: &Cache, key: u64) -> Option<Vec<u8>> {
    let bytes = key.to_le_bytes();
    let item = cache.get(&cache.hasher().key(&bytes), NOW_S)?;
    let mut value = Vec::new();
    item.append_to(&mut value);
    Some(value)
}

#[test]
fn a_table_keeps_nearly_all_of_the_items_that_it_was_made_for() {
    let items = if cfg!(miri) { 200 } else { 100_000 };
    let mut cache = table(items, items * 64, WhenFull::Evict);
    for key in 0..items as u64 {
        put(&mut cache, key, &key.to_le_bytes()).unwrap();
    }
    let kept = (0..items as u64).filter(|key| get(&cache, *key) == Some(key.to_le_bytes().to_vec())).count();
    let stats = cache.stats();
    assert!(kept * 100 >= items * 98, "{kept} of {items}");
    assert_eq!(stats.items, kept, "{stats:?}");
    assert_eq!(stats.evictions as usize, items - kept);
    assert_eq!((stats.hits as usize, stats.misses as usize), (kept, items - kept));
}

#[test]
fn the_oldest_items_go_first() {
    let mut cache = table(1000, 100 * 32, WhenFull::Evict);
    for key in 0..250 {
        put(&mut cache, key, &[1; 8]).unwrap();
    }
    // 32 bytes each, so a hundred fit.
    let kept: Vec<u64> = (0..250).filter(|key| get(&cache, *key).is_some()).collect();
    assert_eq!(kept, (150..250).collect::<Vec<_>>());
    assert_eq!(cache.stats().used_bytes, cache.stats().capacity_bytes);
}

#[test]
fn an_item_that_was_just_changed_is_not_the_next_to_go() {
    let mut cache = table(1000, 100 * 32, WhenFull::Evict);
    for key in 0..100 {
        put(&mut cache, key, &[1; 8]).unwrap();
    }
    put(&mut cache, 0, &[2; 8]).unwrap();
    for key in 100..150 {
        put(&mut cache, key, &[1; 8]).unwrap();
    }
    assert_eq!(get(&cache, 0), Some(vec![2; 8]));
    assert_eq!(get(&cache, 1), None);
}

#[test]
fn what_gave_its_place_to_others_is_counted_at_once() {
    let count = if cfg!(miri) { 500 } else { 235_000u64 };
    for (memory_bytes, asked) in [(count as usize / 2 * 32, false), (count as usize / 3 * 32, true), (1000 * 32, false)]
    {
        // An index in which hardly any bucket is full.
        let mut cache = table(count as usize * 4, memory_bytes, WhenFull::Evict);
        for number in 0..count {
            put(&mut cache, number, &number.to_le_bytes()).unwrap();
            if asked {
                let bytes = number.to_le_bytes();
                cache.get(&cache.hasher().key(&bytes), NOW_S).unwrap().mark(FETCHED);
                // Reads of older items, some of which are spared for it.
                get(&cache, number.saturating_sub(count / 4));
            }
        }
        let kept = (0..count).filter(|number| get(&cache, *number).is_some()).count();
        let stats = cache.stats();
        assert_eq!((stats.items, stats.item_bytes), (kept, kept * 32));
        assert_eq!((stats.evictions, stats.stored), (count - kept as u64, count));
        assert_eq!(stats.spared > 0, asked);
        assert_eq!(stats.evicted_unfetched, if asked { 0 } else { stats.evictions });
        assert!(kept * 32 > memory_bytes * 9 / 10, "{kept}");
    }
}

#[test]
fn memory_is_limited_anew_and_what_lies_beyond_is_forgotten() {
    let mut cache = Cache::new(&CacheConfig {
        items: 10_000,
        memory_bytes: 1000 * 32,
        memory_bytes_max: 4000 * 32,
        seed: 7,
        ..CacheConfig::default()
    })
    .unwrap();
    let mut next = 0u64;
    let mut rounds = if cfg!(miri) { 10 } else { 60u64 };
    while rounds > 0 {
        rounds -= 1;
        let limit = [4000, 300, 2500, 299, 1, 1000, 4000][rounds as usize % 7].max(4);
        cache.limit_memory(limit as usize * 32, NOW_S).unwrap();
        let count_kept = |cache: &Cache, next| (0..next).filter(|number| get(cache, *number).is_some()).count();
        let stats = cache.stats();
        assert_eq!((stats.items, stats.item_bytes), (count_kept(&cache, next), stats.items * 32));
        assert!(stats.item_bytes <= limit as usize * 32 && stats.capacity_bytes == limit as usize * 32, "{stats:?}");
        for _ in 0..(rounds * 37) % 2000 {
            put(&mut cache, next, &next.to_le_bytes()).unwrap();
            next += 1;
        }
        let stats = cache.stats();
        assert_eq!((stats.items, stats.evictions), (count_kept(&cache, next), next - stats.items as u64));
        assert!(next < limit || stats.items as u64 * 2 > limit.min((rounds * 37) % 2000), "{limit}: {stats:?}");
    }
    let max = 4000 * 32;
    assert_eq!(cache.limit_memory(max + 8, NOW_S), Err(LimitError::Bounds { bytes: max + 8, min: 128, max }),);
    assert_eq!(cache.limit_memory(127, NOW_S), Err(LimitError::Bounds { bytes: 127, min: 128, max }));
    let mut heap = table(10, 1 << 12, WhenFull::Refuse);
    assert_eq!(heap.limit_memory(1 << 11, NOW_S), Err(LimitError::EvictsNothing));
}

#[test]
fn what_expired_or_was_cleared_is_counted_when_somebody_comes_across_it() {
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let mut cache = table(100, 1 << 16, when_full);
        let hasher = cache.hasher().clone();
        let expiring = Put { expires_s: NOW_S + 1, ..Put::default() };
        let names: Vec<[u8; 8]> = (0..6u64).map(u64::to_le_bytes).collect();
        for name in &names {
            cache.put(&hasher.key(name), b"x", &expiring, NOW_S).unwrap();
        }
        cache.get(&hasher.key(&names[0]), NOW_S).unwrap().mark(FETCHED);
        let later_s = NOW_S + 1;
        assert_eq!((cache.remove_dead_item(&hasher.key(&names[0]), NOW_S), cache.stats().items), (None, 6));
        for name in &names[..2] {
            assert!(cache.get(&hasher.key(name), later_s).is_none());
            assert_eq!(cache.remove_dead_item(&hasher.key(name), later_s), Some(MissReason::Expired));
            assert_eq!(cache.remove_dead_item(&hasher.key(name), later_s), None);
        }
        assert!(!cache.delete(&hasher.key(&names[2]), later_s));
        cache.put(&hasher.key(&names[3]), b"y", &Put::default(), later_s).unwrap();
        let stats = cache.stats();
        assert_eq!((stats.items, stats.reclaimed, stats.expired_unfetched, stats.evictions), (3, 4, 3, 0));
        cache.clear();
        assert_eq!((cache.stats().items, cache.stats().item_bytes), (0, 0));
        cache.put(&hasher.key(&names[3]), b"z", &Put::default(), later_s).unwrap();
        assert_eq!(cache.stats().items, 1);
    }
}

#[test]
fn young_items_are_changed_in_place() {
    let mut cache = table(1000, 100 * 32, WhenFull::Evict);
    for round in 0..10_000u64 {
        put(&mut cache, round % 2, &round.to_le_bytes()).unwrap();
    }
    assert_eq!(cache.stats().used_bytes, 64);
    // Shorter, and then as long as before.
    put(&mut cache, 1, b"x").unwrap();
    put(&mut cache, 1, b"12345678").unwrap();
    assert_eq!((cache.stats().used_bytes, get(&cache, 1)), (64, Some(b"12345678".to_vec())));
    put(&mut cache, 1, b"123456789").unwrap();
    assert_eq!((cache.stats().used_bytes, get(&cache, 1)), (104, Some(b"123456789".to_vec())));
}

#[test]
fn a_store_that_is_full_says_so_and_keeps_everything() {
    let mut cache = table(100, 100 * 40, WhenFull::Refuse);
    let mut stored = 0;
    let full = loop {
        match put(&mut cache, stored, &[7; 16]) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(full.to_string().starts_with("the store is full: "), "{full}");
    assert!(stored >= 70, "{stored}");
    assert!((0..stored).all(|key| get(&cache, key) == Some(vec![7; 16])));
    // A changed value needs no more room than the old one had.
    put(&mut cache, 3, &[8; 16]).unwrap();
    assert!(matches!(put(&mut cache, 3, &[9; 2000]), Err(PutError::Full { .. })));
    assert_eq!(get(&cache, 3), Some(vec![8; 16]));
    // Deleting one item makes room for exactly one.
    let bytes = 5u64.to_le_bytes();
    let key = cache.hasher().key(&bytes);
    assert!(cache.delete(&key, NOW_S));
    put(&mut cache, stored, &[7; 16]).unwrap();
    assert!(matches!(put(&mut cache, stored + 1, &[7; 16]), Err(PutError::Full { .. })));
}

#[test]
fn a_store_that_is_full_of_what_expired_takes_new_items() {
    let mut cache = table(100, 100 * 48, WhenFull::Refuse);
    let expiring = Put { expires_s: 10, ..Put::default() };
    let mut stored = 0u64;
    loop {
        let bytes = stored.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        if cache.put(&key, &[7; 16], &expiring, NOW_S).is_err() {
            break;
        }
        stored += 1;
    }
    let put_at = |cache: &mut Cache, number: u64, now_s| {
        let bytes = number.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        cache.put(&key, &[8; 16], &Put::default(), now_s)
    };
    assert!(put_at(&mut cache, 1000, 9).is_err());
    for number in 1000..1000 + stored {
        put_at(&mut cache, number, 10).unwrap();
    }
}

#[test]
fn a_store_takes_more_items_than_its_index_was_made_for_and_gives_everything_back() {
    let items = if cfg!(miri) { 60 } else { 4000 };
    // An index meant for a quarter of the items.
    let mut cache = table(items / 4, items * 64, WhenFull::Refuse);
    for round in 0..3u64 {
        let keys = round * 1_000_000..round * 1_000_000 + items as u64;
        let stored = keys.clone().take_while(|key| put(&mut cache, *key, &key.to_le_bytes()).is_ok()).count();
        assert!(stored * 3 >= items, "{stored} of {items}");
        for key in keys.clone().take(stored) {
            assert_eq!(get(&cache, key), Some(key.to_le_bytes().to_vec()));
        }
        for key in keys.take(stored) {
            let bytes = key.to_le_bytes();
            let key = cache.hasher().key(&bytes);
            assert!(cache.delete(&key, NOW_S));
        }
        assert_eq!((cache.stats().items, cache.stats().used_bytes), (0, 0));
    }
}

#[test]
fn both_sides_of_every_limit() {
    let config = CacheConfig { items: 10, memory_bytes: 1 << 18, value_len_max: 1000, ..CacheConfig::default() };
    let mut cache = Cache::new(&config).unwrap();
    let hasher = cache.hasher().clone();
    let mut put = |key: &[u8], value: &[u8]| cache.put(&hasher.key(key), value, &Put::default(), NOW_S).map(|_| ());
    assert_eq!(put(b"", b""), Ok(()));
    assert_eq!(put(&vec![b'k'; KEY_LEN_MAX], &[1; 1000]), Ok(()));
    assert_eq!(put(&vec![b'k'; KEY_LEN_MAX + 1], &[1]), Err(PutError::KeyTooLong { len: KEY_LEN_MAX + 1 }));
    assert_eq!(put(b"k", &[1; 1001]), Err(PutError::ValueTooLong { len: 1001, max: 1000 }));

    let with = |change: fn(&mut CacheConfig)| {
        let mut config = CacheConfig { items: 10, memory_bytes: 128, ..CacheConfig::default() };
        change(&mut config);
        Cache::new(&config).map(|_| ())
    };
    let refused = |change| matches!(with(change), Err(CacheError::Config { .. }));
    assert!(with(|_| ()).is_ok() && refused(|config| config.memory_bytes = 127));
    assert!(with(|config| config.value_len_max = VALUE_LEN_MAX).is_ok());
    assert!(refused(|config| config.value_len_max = VALUE_LEN_MAX + 1));
    assert!(refused(|config| config.items = usize::MAX) && refused(|config| config.memory_bytes = 1 << 39));
    assert!(with(|config| config.items = 0).is_ok());
}

#[test]
fn an_item_as_large_as_the_log_can_be_stored_and_one_word_more_cannot() {
    let mut cache = table(10, 128, WhenFull::Evict);
    assert_eq!(put(&mut cache, 1, &[5; 104]).map(|_| ()), Ok(()));
    assert_eq!(get(&cache, 1), Some(vec![5; 104]));
    assert_eq!(put(&mut cache, 2, &[5; 105]), Err(PutError::ValueTooLong { len: 105, max: 97 }));
    assert_eq!(get(&cache, 1), Some(vec![5; 104]));
    put(&mut cache, 2, &[6; 8]).unwrap();
    assert_eq!((get(&cache, 1), get(&cache, 2)), (None, Some(vec![6; 8])));
}

#[test]
fn only_tables_made_for_them_have_readers() {
    let config = |readers| CacheConfig { items: 10, readers, ..CacheConfig::default() };
    assert!(Cache::new(&config(false)).unwrap().reader().is_none());
    assert!(Cache::new(&config(true)).unwrap().reader().is_some());
}

/// Readers next to a writer: each value read was stored under that key, is whole, and is never older than one read
/// before.
fn readers_see_whole_values(when_full: WhenFull, memory_bytes: usize) {
    const KEYS: u64 = 50;
    let config = CacheConfig { items: 20, memory_bytes, when_full, readers: true, ..CacheConfig::default() };
    let mut cache = Cache::new(&config).unwrap();
    let reader = cache.reader().unwrap();
    let rounds = if cfg!(miri) { 300 } else { 400_000u64 };
    let done = std::sync::atomic::AtomicBool::new(false);
    let value_of = |key: u64, round: u64| -> Vec<u8> {
        let len = ((round * 13 + key) % 120) as usize;
        let mut value = [key.to_le_bytes(), round.to_le_bytes()].concat();
        value.extend((0..len).map(|at| (key + round) as u8 ^ at as u8));
        value
    };
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let (reader, done) = (reader.clone(), &done);
            threads.spawn(move || {
                let (mut value, mut newest, mut hits, mut at) = (Vec::new(), [0; KEYS as usize], 0u64, 0u64);
                while !done.load(std::sync::atomic::Ordering::Relaxed) || at % KEYS != 0 {
                    let number = at % KEYS;
                    at += 1;
                    let bytes = number.to_le_bytes();
                    let mut key = reader.hasher().key(&bytes);
                    reader.prefetch_bucket(&key);
                    reader.prefetch_item(&mut key);
                    if let Some(read) = reader.get(&key, NOW_S, &mut value) {
                        let round = u64::from_le_bytes(value[8..16].try_into().unwrap());
                        assert_eq!(value, value_of(number, round));
                        assert!(round >= newest[number as usize], "{number}");
                        newest[number as usize] = round;
                        assert!(read.version > 0);
                        hits += 1;
                    }
                }
                assert!(hits > 0);
            });
        }
        for round in 1..=rounds {
            let number = (round * round) % KEYS;
            let bytes = number.to_le_bytes();
            let key = cache.hasher().key(&bytes);
            if round % 7 == 0 {
                cache.delete(&key, NOW_S);
            } else {
                let _ = cache.put(&key, &value_of(number, round), &Put::default(), NOW_S);
            }
        }
        for number in 0..KEYS {
            let _ = put(&mut cache, number, &value_of(number, rounds + 1));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn readers_of_a_log_see_whole_values() {
    readers_see_whole_values(WhenFull::Evict, 3000);
    readers_see_whole_values(WhenFull::Evict, 16 << 10);
}

#[test]
fn readers_of_a_heap_see_whole_values() {
    readers_see_whole_values(WhenFull::Refuse, 6000);
}

#[test]
fn an_item_that_moved_since_it_was_prefetched_is_found() {
    // A single bucket, whose slots are reassigned again and again.
    let mut cache = table(1, 8 * 32, WhenFull::Evict);
    for round in 0..200u64 {
        put(&mut cache, round % 9, &round.to_le_bytes()).unwrap();
        let bytes: Vec<_> = (0..9u64).map(u64::to_le_bytes).collect();
        let mut keys: Vec<_> = bytes.iter().map(|bytes| cache.hasher().key(bytes)).collect();
        keys.iter_mut().for_each(|key| cache.prefetch_item(key));
        let before: Vec<_> = (0..9).map(|key| get(&cache, key)).collect();
        for (at, key) in keys.iter().enumerate() {
            let mut value = Vec::new();
            let found = cache.get(key, NOW_S).map(|item| item.append_to(&mut value));
            assert_eq!(found.map(|()| value), before[at]);
        }
        assert!(cache.delete(&keys[(round % 9) as usize], NOW_S));
        put(&mut cache, 100 + round, b"another").unwrap();
        assert!(cache.get(&keys[(round % 9) as usize], NOW_S).is_none());
    }
}

#[test]
fn an_expired_item_that_made_room_for_its_own_successor_is_freed_once() {
    let mut cache = table(100, 100 * 48, WhenFull::Refuse);
    let expiring = Put { expires_s: 10, ..Put::default() };
    let put_at = |cache: &mut Cache, number: u64, value: &[u8], put: &Put, now_s| {
        let bytes = number.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        cache.put(&key, value, put, now_s)
    };
    let stored =
        (0..).take_while(|number| put_at(&mut cache, *number, &[7; 16], &expiring, NOW_S).is_ok()).count() as u64;
    // Longer than the items that they replace, so the room comes from those that expired.
    for number in 0..stored / 2 {
        put_at(&mut cache, number, &[8; 40], &Put::default(), 10).unwrap();
    }
    for number in 0..stored {
        let bytes = number.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        assert_eq!(cache.delete(&key, 10), number < stored / 2);
    }
    assert_eq!((cache.stats().items, cache.stats().used_bytes), (0, 0));
}

#[test]
fn a_store_whose_index_is_far_too_small_refuses_what_it_could_not_find() {
    let mut cache = table(1, 1 << 20, WhenFull::Refuse);
    let stored = (0..2000u64).take_while(|key| put(&mut cache, *key, &key.to_le_bytes()).is_ok()).count() as u64;
    // 64 buckets, all but the last with a link in place of an item.
    assert_eq!(stored, 64 * 8 - 63);
    assert!((0..stored).all(|key| get(&cache, key) == Some(key.to_le_bytes().to_vec())));
    for key in 0..stored {
        let bytes = key.to_le_bytes();
        let key = cache.hasher().key(&bytes);
        assert!(cache.delete(&key, NOW_S));
    }
    assert_eq!((cache.stats().items, cache.stats().used_bytes), (0, 0));
}

#[test]
fn readers_find_an_item_that_is_only_being_replaced() {
    // Each new item overlaps the old one.
    let config = CacheConfig { items: 1, memory_bytes: 128, readers: true, ..CacheConfig::default() };
    let mut cache = Cache::new(&config).unwrap();
    let reader = cache.reader().unwrap();
    put(&mut cache, 1, &[0; 96]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut value = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let bytes = 1u64.to_le_bytes();
                assert!(reader.get(&reader.hasher().key(&bytes), NOW_S, &mut value).is_some());
                assert!(value.iter().all(|byte| *byte == value[0]), "{value:?}");
            }
        });
        for round in 0..if cfg!(miri) { 100 } else { 200_000u32 } {
            // Alternately longer, so that none can be changed in place.
            let len = 96 + (round as usize % 2) * 8;
            put(&mut cache, 1, &vec![round as u8; len]).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn the_longest_values_come_back_whole() {
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let config = CacheConfig {
            items: 10,
            memory_bytes: 2 * VALUE_LEN_MAX + (32 << 20),
            when_full,
            value_len_max: VALUE_LEN_MAX,
            ..CacheConfig::default()
        };
        let mut cache = Cache::new(&config).unwrap();
        for len in [1 << 20, VALUE_LEN_MAX - 1, VALUE_LEN_MAX] {
            if len > 8 << 20 && cfg!(miri) {
                continue;
            }
            let value: Vec<u8> = (0u8..251).cycle().take(len).collect();
            put(&mut cache, len as u64, &value).unwrap();
            assert!(get(&cache, len as u64) == Some(value), "{len}");
        }
    }
}

#[test]
fn marks_stay_with_an_item_until_its_value_is_put_anew() {
    let mut cache = Cache::new(&CacheConfig { items: 10, memory_bytes: 1 << 16, ..CacheConfig::default() }).unwrap();
    let version = put(&mut cache, 1, b"12").unwrap();
    let bytes = 1u64.to_le_bytes();
    let key = cache.hasher().key(&bytes);
    let marks_and_version = |cache: &Cache| cache.peek(&key, NOW_S).map(|item| (item.marks(), item.version()));
    assert_eq!(marks_and_version(&cache), Some((0, version)));
    cache.peek(&key, NOW_S).unwrap().mark(0xF5);
    assert_eq!(marks_and_version(&cache), Some((5, version)));
    // First to a place with room for the expiry, and then in place.
    for expires_s in [NOW_S + 10, NOW_S + 20] {
        assert_eq!(cache.touch(&key, None, Some(expires_s), NOW_S), Ok(version));
        assert_eq!(marks_and_version(&cache), Some((5, version)));
        assert_eq!(cache.peek(&key, NOW_S).unwrap().expires_s(), expires_s);
    }
    let modified = cache.modify(&key, NOW_S, |value| {
        value.push(b'3');
        Ok::<(), ()>(())
    });
    assert_eq!(marks_and_version(&cache), Some((5, version + 1)));
    assert_eq!(modified, Ok(version + 1));
    put(&mut cache, 1, b"12").unwrap();
    assert_eq!(marks_and_version(&cache), Some((0, version + 2)));
}
