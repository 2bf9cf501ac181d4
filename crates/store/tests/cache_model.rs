//! The table compared with a plain map, except that a cache may forget.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sinew_interleave::Batch;
use sinew_store::cache::{Cache, CacheConfig, Eviction, Key, KeyHasher, ModifyError, Put, PutError, When, WhenFull};

#[derive(Clone, Debug)]
enum Op {
    Get(u8),
    Put { key: u8, len: usize, when: u8, flags: u32, lives_s: u32 },
    Delete(u8),
    Append { key: u8, len: usize },
    Touch { key: u8, flags: Option<u32>, lives_s: Option<u32> },
    Clear,
    Wait(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..40;
    let len = prop_oneof![4 => 0usize..60, 1 => 0usize..600];
    let lives_s = prop_oneof![2 => Just(0u32), 1 => 1u32..20];
    let flags = prop_oneof![Just(0u32), any::<u32>()];
    prop_oneof![
        4 => key.clone().prop_map(Op::Get),
        6 => (key.clone(), len.clone(), 0u8..5, flags.clone(), lives_s.clone())
            .prop_map(|(key, len, when, flags, lives_s)| Op::Put { key, len, when, flags, lives_s }),
        2 => key.clone().prop_map(Op::Delete),
        2 => (key.clone(), len).prop_map(|(key, len)| Op::Append { key, len }),
        1 => (key, prop::option::of(flags), prop::option::of(lives_s))
            .prop_map(|(key, flags, lives_s)| Op::Touch { key, flags, lives_s }),
        1 => (1u32..5).prop_map(Op::Wait),
        1 => (0u8..10).prop_map(|n| if n == 0 { Op::Clear } else { Op::Wait(1) }),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Vec<u8>,
    version: u64,
    flags: u32,
    expires_s: u32,
}

/// Contents that the table should have if it forgot nothing.
struct Model {
    items: BTreeMap<u8, Known>,
    now_s: u32,
    forgets: bool,
}

impl Model {
    fn get(&self, key: u8) -> Option<&Known> {
        self.items.get(&key).filter(|known| known.expires_s == 0 || known.expires_s > self.now_s)
    }
}

/// Keys of every length, some of which begin alike.
fn bytes_of(key: u8) -> Vec<u8> {
    let len = usize::from(key) % 23;
    [&vec![b'k'; len][..], &[key]].concat()
}

fn value_of(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number * 7) as u8).collect()
}

fn look(cache: &Cache, key: &Key<'_>, now_s: u32) -> Option<Known> {
    cache.get(key, now_s).map(|item| {
        let mut value = vec![0xEE; item.value_len()];
        item.copy_to(&mut value);
        let mut appended = b"before".to_vec();
        item.append_to(&mut appended);
        assert_eq!(appended, [b"before", &value[..]].concat());
        Known { value, version: item.version(), flags: item.flags(), expires_s: item.expires_s() }
    })
}

fn check(ops: &[Op], config: &CacheConfig) -> Result<(), TestCaseError> {
    let mut cache = Cache::new(config).unwrap();
    let hasher: KeyHasher = cache.hasher().clone();
    let forgets = config.when_full == WhenFull::Evict;
    let mut model = Model { items: BTreeMap::new(), now_s: 100, forgets };
    let mut last_version = 0;
    for (number, op) in ops.iter().enumerate() {
        let now_s = model.now_s;
        let changed = match *op {
            Op::Get(key) | Op::Put { key, .. } | Op::Delete(key) | Op::Append { key, .. } | Op::Touch { key, .. } => {
                Some(key)
            }
            Op::Clear | Op::Wait(_) => None,
        };
        let bytes = changed.map(bytes_of).unwrap_or_default();
        let key = hasher.key(&bytes);
        if let Some(of) = changed {
            // An item in the table is the one stored, and it is there unless the table was allowed to forget it.
            let found = look(&cache, &key, now_s);
            match (&found, model.get(of)) {
                (Some(found), Some(known)) => prop_assert_eq!(found, known),
                (None, Some(_)) => {
                    prop_assert!(model.forgets);
                    model.items.remove(&of);
                }
                (None, None) => {}
                (Some(found), None) => prop_assert!(false, "{:?} came from nowhere", found),
            }
            if let Some(reader) = cache.reader() {
                let mut value = vec![1, 2, 3];
                let read = reader.get(&key, now_s, &mut value);
                prop_assert_eq!(
                    read.map(|read| Known {
                        value,
                        version: read.version,
                        flags: read.flags,
                        expires_s: read.expires_s
                    }),
                    found
                );
            }
        }
        let known = changed.and_then(|of| model.get(of)).cloned();
        let mut store =
            |cache: &Cache, of: u8, result: Result<u64, PutError>, item: Known| -> Result<(), TestCaseError> {
                let fits = item.value.len() <= config.value_len_max;
                match result {
                    Ok(version) => {
                        prop_assert!(version > last_version && fits);
                        last_version = version;
                        model.items.insert(of, Known { version, ..item });
                        prop_assert_eq!(look(cache, &key, now_s), model.get(of).cloned());
                    }
                    Err(PutError::ValueTooLong { len, max }) => {
                        prop_assert!(len == item.value.len() && max < len && (!fits || config.memory_bytes < 1600));
                    }
                    Err(PutError::Full { used_bytes, capacity_bytes }) => {
                        prop_assert!(!forgets && used_bytes > 0 && used_bytes <= capacity_bytes);
                    }
                    Err(other) => prop_assert!(false, "{}", other),
                }
                Ok(())
            };
        match *op {
            Op::Get(_) => {}
            Op::Put { key: key_id, len, when, flags, lives_s } => {
                let when = match when {
                    0 => When::Absent,
                    1 => When::Present,
                    2 => When::Version(known.as_ref().map_or(1, |known| known.version)),
                    3 => When::Version(known.as_ref().map_or(1, |known| known.version + 1)),
                    _ => When::Always,
                };
                let expires_s = if lives_s == 0 { 0 } else { now_s + lives_s };
                let value = value_of(len, number);
                let put = Put { when, flags, expires_s };
                let result = cache.put(&key, &value, &put, now_s);
                match (when, &known) {
                    (When::Absent, Some(_)) => prop_assert_eq!(result, Err(PutError::Present)),
                    (When::Present | When::Version(_), None) => prop_assert_eq!(result, Err(PutError::Absent)),
                    (When::Version(version), Some(known)) if version != known.version => {
                        prop_assert_eq!(result, Err(PutError::Changed { version: known.version }));
                    }
                    _ => store(&cache, key_id, result, Known { value, version: 0, flags, expires_s })?,
                }
            }
            Op::Delete(of) => {
                prop_assert_eq!(cache.delete(&key, now_s), known.is_some());
                model.items.remove(&of);
                prop_assert_eq!(look(&cache, &key, now_s), None);
            }
            Op::Append { key: key_id, len } => {
                let more = value_of(len, number);
                let refused = cache.modify(&key, now_s, |value| {
                    value.extend_from_slice(b"never seen");
                    Err(number)
                });
                match &known {
                    None => prop_assert_eq!(refused, Err(ModifyError::Put(PutError::Absent))),
                    Some(_) => prop_assert_eq!(refused, Err(ModifyError::Refused(number))),
                }
                let result = cache.modify(&key, now_s, |value| {
                    value.extend_from_slice(&more);
                    Ok::<(), ()>(())
                });
                match (known, result) {
                    (None, result) => prop_assert_eq!(result, Err(ModifyError::Put(PutError::Absent))),
                    (Some(_), Err(ModifyError::Refused(()))) => prop_assert!(false),
                    (Some(mut item), Ok(version)) => {
                        item.value.extend_from_slice(&more);
                        store(&cache, key_id, Ok(version), item)?;
                    }
                    (Some(mut item), Err(ModifyError::Put(error))) => {
                        item.value.extend_from_slice(&more);
                        store(&cache, key_id, Err(error), item)?;
                    }
                }
            }
            Op::Touch { key: key_id, flags, lives_s } => {
                let expires_s = lives_s.map(|lives_s| if lives_s == 0 { 0 } else { now_s + lives_s });
                let result = cache.touch(&key, flags, expires_s, now_s);
                match known {
                    None => prop_assert_eq!(result, Err(PutError::Absent)),
                    Some(mut item) => {
                        item.flags = flags.unwrap_or(item.flags);
                        item.expires_s = expires_s.unwrap_or(item.expires_s);
                        if result.is_err() {
                            store(&cache, key_id, result, item)?;
                        } else {
                            prop_assert_eq!(result, Ok(item.version));
                            model.items.insert(key_id, item);
                        }
                    }
                }
            }
            Op::Clear => {
                cache.clear();
                model.items.clear();
            }
            Op::Wait(seconds) => model.now_s += seconds,
        }
        let stats = cache.stats();
        prop_assert!(stats.item_bytes <= stats.used_bytes && stats.used_bytes <= stats.capacity_bytes, "{:?}", stats);
        // The counters cover exactly the items present, expired ones included.
        let is_there = |of: &u8| cache.peek(&hasher.key(&bytes_of(*of)), 0).is_some();
        prop_assert_eq!(stats.items, (0..40).filter(is_there).count());
        prop_assert_eq!(stats.item_bytes > 0, stats.items > 0);
    }
    if !forgets {
        // All memory is freed again.
        for of in 0..40 {
            let bytes = bytes_of(of);
            cache.delete(&hasher.key(&bytes), model.now_s);
        }
        let stats = cache.stats();
        prop_assert_eq!((stats.items, stats.used_bytes), (0, 0));
    }
    Ok(())
}

fn configs() -> impl Strategy<Value = CacheConfig> {
    let policy = prop_oneof![
        Just((WhenFull::Refuse, Eviction::default())),
        Just((WhenFull::Evict, Eviction::Oldest)),
        Just((WhenFull::Evict, Eviction::OldestUnread)),
    ];
    (1usize..60, 16usize..400, policy, any::<bool>(), any::<u64>(), prop_oneof![Just(100usize), Just(1000)]).prop_map(
        |(items, words, (when_full, eviction), readers, seed, value_len_max)| CacheConfig {
            items,
            memory_bytes: words * 8,
            memory_bytes_max: 0,
            when_full,
            eviction,
            readers,
            value_len_max,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(if cfg!(miri) { ProptestConfig::with_cases(4) } else { ProptestConfig::default() })]

    #[test]
    fn the_table_is_a_map_that_may_forget(ops in prop::collection::vec(op(), 1..300), config in configs()) {
        check(&ops, &config)?;
    }
}

#[test]
fn interleaved_gets_find_what_gets_find() {
    // With room to spare, so that no bucket is full.
    let mut cache = Cache::new(&CacheConfig { items: 8000, readers: true, ..CacheConfig::default() }).unwrap();
    let hasher = cache.hasher().clone();
    let texts: Vec<String> = (0..1000).map(|number| format!("key {number}")).collect();
    for text in texts.iter().step_by(2) {
        cache.put(&hasher.key(text.as_bytes()), text.as_bytes(), &Put::default(), 1).unwrap();
    }
    let keys = || texts.iter().map(|text| hasher.key(text.as_bytes()));
    let mut items = vec![None; texts.len()];
    assert_eq!(cache.get_all(Batch::<16>::new(), 1, keys(), &mut items), texts.len());
    let reader = cache.reader().unwrap();
    let mut values = vec![Vec::new(); texts.len()];
    let mut read = vec![None; texts.len()];
    Batch::<16>::new().run(keys().zip(&mut values), &mut read, |(key, value)| reader.look_up(key, 1, value));
    for (at, text) in texts.iter().enumerate() {
        let mut value = Vec::new();
        if let Some(item) = &items[at] {
            item.append_to(&mut value);
        }
        let expected = if at % 2 == 0 { text.as_bytes() } else { b"" };
        assert_eq!((&value[..], &values[at][..]), (expected, expected));
        assert_eq!((items[at].is_some(), read[at].is_some()), (at % 2 == 0, at % 2 == 0));
    }
}
