//! The locked table compared with a map, next to writers, among noise, and after lost writers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use sinew_mem::SharedMemory;
use sinew_store::locked::{Inspected, Layout, LockWord, LockedTable, Released};
use sinew_store::remote::{Index, Span, Step, TableError};

const KEY_LEN_MAX: u32 = 20;
const VALUE_LEN_MAX: u32 = 100;

fn table(records: u32) -> (LockedTable, Layout, SharedMemory) {
    let layout =
        Layout { buckets: records / 4 + 1, records, key_len_max: KEY_LEN_MAX, value_len_max: VALUE_LEN_MAX, seed: 7 };
    let memory = SharedMemory::private(layout.memory_len()).unwrap();
    (LockedTable::new(layout, memory.clone()).unwrap(), layout, memory)
}

/// Searches as a remote reader does, and returns the value and the record with its lock word. The inner `None` stands
/// for a missing key. Gives up after `looks` READs.
fn search(layout: &Layout, memory: &SharedMemory, key: &[u8], looks: usize) -> Option<Option<Found>> {
    let (mut search, mut span) = layout.search(key);
    for _ in 0..looks {
        let mut bytes = vec![0; span.len];
        memory.read(span.offset as usize, &mut bytes).unwrap();
        match layout.step(&mut search, key, &bytes) {
            Step::Read(next) | Step::Again(next) => span = next,
            Step::Found(value) => {
                let (record, lock) = search.found().unwrap();
                return Some(Some(Found { value: value.to_vec(), record, lock }));
            }
            Step::Missing => return Some(None),
        }
    }
    None
}

#[derive(Clone, Debug, PartialEq)]
struct Found {
    value: Vec<u8>,
    record: u32,
    lock: LockWord,
}

fn get(layout: &Layout, memory: &SharedMemory, key: &[u8]) -> Option<Vec<u8>> {
    search(layout, memory, key, 1_000_000).expect("found something but changes").map(|found| found.value)
}

fn word_at(layout: &Layout, record: u32) -> usize {
    layout.record_span(record).offset as usize
}

/// Locks a key's record as a remote writer does, if it is free.
fn lock(layout: &Layout, memory: &SharedMemory, key: &[u8], holder: u16) -> Option<(u32, LockWord)> {
    let Found { record, lock, .. } = search(layout, memory, key, 1_000_000)??;
    let held = lock.held_by(holder);
    let was = memory.compare_swap(word_at(layout, record), LockWord::free(lock.version()).0, held.0).unwrap();
    (was == LockWord::free(lock.version()).0).then_some((record, held))
}

/// Updates and unlocks; returns whether the lock was still held.
fn store(layout: &Layout, memory: &SharedMemory, key: &[u8], (record, held): (u32, LockWord), value: &[u8]) -> bool {
    let mut image = Vec::new();
    let at = layout.image(&mut image, layout.hash(key), record, held.next().version(), value);
    memory.write(at as usize, &image).unwrap();
    memory.compare_swap(word_at(layout, record), held.0, held.next().0) == Ok(held.0)
}

fn change(layout: &Layout, memory: &SharedMemory, key: &[u8], holder: u16, value: &[u8]) -> bool {
    lock(layout, memory, key, holder).is_some_and(|held| store(layout, memory, key, held, value))
}

#[derive(Clone, Debug)]
enum Change {
    Put(u8, usize, u8),
    Delete(u8),
    /// A writer locks, writes this many bytes of a value, and is lost.
    Die(u8, usize),
    Inspect,
}

fn key_of(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) % KEY_LEN_MAX as usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn a_locked_table_is_a_map_until_it_is_full_whoever_dies(
        changes in prop::collection::vec(prop_oneof![
            6 => (any::<u8>(), 0..=VALUE_LEN_MAX as usize, any::<u8>()).prop_map(|(key, len, fill)| Change::Put(key, len, fill)),
            2 => any::<u8>().prop_map(Change::Delete),
            1 => (any::<u8>(), 0..=VALUE_LEN_MAX as usize).prop_map(|(key, len)| Change::Die(key, len)),
            1 => Just(Change::Inspect),
        ], 1..500),
        records in 1u32..300,
    ) {
        let (mut table, layout, memory) = table(records);
        let mut map: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for change_ in &changes {
            match *change_ {
                Change::Put(key, len, fill) => {
                    let (key, value) = (key_of(key), vec![fill; len]);
                    if let Some(place) = map.get_mut(&key) {
                        prop_assert_eq!(table.insert(&key, &value), Ok(false));
                        prop_assert!(change(&layout, &memory, &key, 3, &value));
                        *place = value;
                    } else {
                        match table.insert(&key, &value) {
                            Ok(true) => drop(map.insert(key, value)),
                            Err(TableError::Full { items }) => prop_assert_eq!(items, map.len()),
                            other => panic!("{other:?}"),
                        }
                    }
                }
                Change::Delete(key) => {
                    let key = key_of(key);
                    match lock(&layout, &memory, &key, 4) {
                        Some((record, held)) => {
                            // Not with another holder's lock word, nor with another key.
                            prop_assert!(!table.remove(record, held.held_by(5), &key));
                            prop_assert!(!table.remove(record, held, b"another"));
                            prop_assert!(table.remove(record, held, &key) && map.remove(&key).is_some());
                            prop_assert!(!table.remove(record, held, &key));
                        }
                        None => prop_assert!(!map.contains_key(&key)),
                    }
                }
                Change::Die(key, len) => {
                    let key = key_of(key);
                    if let Some((record, held)) = lock(&layout, &memory, &key, 6) {
                        let mut image = Vec::new();
                        let at = layout.image(&mut image, layout.hash(&key), record, held.next().version(), &[9; 100]);
                        memory.write(at as usize, &image[..len]).unwrap();
                        // Readers do not wait, and see nothing of the change.
                        prop_assert_eq!(get(&layout, &memory, &key), map.get(&key).cloned());
                        prop_assert_eq!(table.inspect(record), Inspected::Held(held));
                        prop_assert_eq!(table.release(record, held.held_by(7)), None);
                        let expected = if table.len() == records as usize { Released::Kept } else { Released::Moved };
                        prop_assert_eq!(table.release(record, held), Some(expected));
                        prop_assert_eq!(table.release(record, held), None);
                    }
                }
                Change::Inspect => {
                    for record in 0..records {
                        prop_assert_eq!(table.inspect(record), Inspected::Well);
                    }
                }
            }
            prop_assert_eq!(table.len(), map.len());
        }
        for key in 0..=u8::MAX {
            let key = key_of(key);
            prop_assert_eq!(get(&layout, &memory, &key), map.get(&key).cloned());
        }
    }

    /// A NIC reads the words of a record in any order while they are being written.
    #[test]
    fn words_of_different_moments_are_never_taken_for_a_value(
        runs in prop::collection::vec((0usize..6, 1usize..30), 1..8), first_len in 0usize..=100, second_len in 0usize..=100
    ) {
        let (mut table, layout, memory) = table(8);
        let key = b"the key";
        let values: Vec<Vec<u8>> = (0..5u8).map(|nth| vec![nth; if nth % 2 == 0 { first_len } else { second_len }]).collect();
        table.insert(key, &values[0]).unwrap();
        let Found { record, .. } = search(&layout, &memory, key, 9).unwrap().unwrap();
        let Span { offset, len } = layout.record_span(record);
        let image = || {
            let mut bytes = vec![0; len];
            memory.read(offset as usize, &mut bytes).unwrap();
            bytes
        };
        let mut images = vec![image()];
        for value in &values[1..] {
            let held = lock(&layout, &memory, key, 3).unwrap();
            images.push(image());
            prop_assert!(store(&layout, &memory, key, held, value));
        }
        // The record is reused for another key.
        let (record, held) = lock(&layout, &memory, key, 3).unwrap();
        prop_assert!(table.remove(record, held, key));
        while search(&layout, &memory, b"another", 9).unwrap().is_none_or(|found| found.record != record) {
            let another = search(&layout, &memory, b"another", 9).unwrap();
            if another.is_some() {
                let (record, held) = lock(&layout, &memory, b"another", 3).unwrap();
                table.remove(record, held, b"another");
            }
            table.insert(b"another", &[7; 50]).unwrap();
        }
        images.push(image());
        let from: Vec<usize> = runs.iter().flat_map(|(image, words)| std::iter::repeat_n(*image, *words)).collect();
        let mixed: Vec<u8> =
            (0..len / 8).flat_map(|word| images[from[word % from.len()]][word * 8..][..8].iter().copied()).collect();
        let (mut search, span) = layout.search_record(layout.hash(key), record);
        prop_assert_eq!(span, Span { offset, len });
        if let Step::Found(value) = layout.step(&mut search, key, &mixed) {
            let (_, found) = search.found().unwrap();
            let nth = (found.version() - 1) as usize;
            prop_assert_eq!(value, &values[nth][..]);
        }
    }

    #[test]
    fn searches_and_owners_survive_memory_that_holds_anything(
        noise in prop::collection::vec(any::<u64>(), 200), places in prop::collection::vec(any::<u32>(), 200), key in 0u8..20
    ) {
        let (mut table, layout, memory) = table(40);
        for key in 0..20 {
            table.insert(&key_of(key), &[key; 60]).unwrap();
        }
        let words = (memory.len() / 8) as u32;
        for (noise, place) in noise.iter().zip(&places) {
            // Half of the noise resembles valid words.
            let noise = match place % 4 {
                0 => noise >> 48,
                1 => LockWord::free(noise % 3).held_by(*noise as u16 % 5).0,
                _ => *noise,
            };
            memory.store((place / 4 % words) as usize * 8, noise).unwrap();
            let _ = search(&layout, &memory, &key_of(key), 10);
            let _ = table.remove(place % 50, LockWord(noise), &key_of(key));
            let _ = table.release(place % 50, LockWord(memory.load(word_at(&layout, place % 40)).unwrap()));
            let _ = table.insert(&key_of((place % 30) as u8), &[1; 60]);
            prop_assert!(table.len() <= 40);
        }
        // Then the noise stops.
        for record in 0..40 {
            if let Inspected::Held(lock) = table.inspect(record) {
                prop_assert!(table.release(record, lock).is_some());
            }
        }
        for record in 0..40 {
            prop_assert_eq!(table.inspect(record), Inspected::Well);
        }
        let found = (0..=u8::MAX).filter_map(|key| Some((key, get(&layout, &memory, &key_of(key))?)));
        let found: Vec<_> = found.collect();
        for (key, value) in &found {
            prop_assert!(*value == [1; 60] || *value == [*key; 60], "{key} {value:?}");
        }
        prop_assert_eq!(found.len(), table.len());
    }

    #[test]
    fn layouts_survive_the_way_and_bad_ones_do_not_pass(bytes in any::<[u8; Layout::BYTES]>()) {
        if let Ok(layout) = Layout::from_bytes(&bytes) {
            prop_assert_eq!(Layout::from_bytes(&layout.to_bytes()), Ok(layout));
        }
        let (_, layout, _) = table(50);
        prop_assert_eq!(Layout::from_description(&layout.describe()), Some(layout));
    }
}

#[test]
fn a_key_that_was_spoiled_for_a_while_has_one_item() {
    let (mut table, layout, memory) = table(20);
    table.insert(b"key", b"first").unwrap();
    let len_at = word_at(&layout, search(&layout, &memory, b"key", 10).flatten().unwrap().record) + 8;
    memory.store(len_at, 2).unwrap();
    assert_eq!(table.insert(b"key", b"second"), Ok(true));
    memory.store(len_at, 3).unwrap();
    (0..20).for_each(|record| {
        table.inspect(record);
    });
    assert_eq!((table.len(), get(&layout, &memory, b"key")), (1, Some(b"second".to_vec())));
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut table, layout, _) = table(20);
    let (key, value) = (KEY_LEN_MAX as usize, VALUE_LEN_MAX as usize);
    assert_eq!(table.insert(b"", b"value"), Err(TableError::Key { len: 0, max: key }));
    assert_eq!(table.insert(&vec![1; key + 1], b""), Err(TableError::Key { len: key + 1, max: key }));
    assert_eq!(table.insert(b"key", &vec![1; value + 1]), Err(TableError::Value { len: value + 1, max: value }));
    assert_eq!(table.insert(&vec![1; key], &vec![1; value]), Ok(true));
    let small = SharedMemory::private(layout.memory_len() - 8).unwrap();
    assert!(matches!(LockedTable::new(layout, small), Err(TableError::Memory { .. })));
    for bad in [
        Layout { buckets: 0, ..layout },
        Layout { records: 0, ..layout },
        Layout { key_len_max: 0, ..layout },
        Layout { value_len_max: (1 << 20) + 1, ..layout },
        Layout { records: 1 << 30, value_len_max: 1 << 20, ..layout },
    ] {
        assert!(matches!(bad.check(), Err(TableError::Layout { .. })), "{bad:?}");
    }
}

#[test]
fn buckets_half_full_refuse_nothing() {
    let items = if cfg!(miri) { 300 } else { 30_000u32 };
    let (mut table, layout, memory) = table(items);
    for key in 0..items {
        assert_eq!(table.insert(&key.to_le_bytes(), &[1; 8]), Ok(true), "{key}");
    }
    assert_eq!(table.insert(b"one more", b""), Err(TableError::Full { items: items as usize }));
    assert!((0..items).all(|key| get(&layout, &memory, &key.to_le_bytes()).is_some()));
}

#[test]
fn a_value_that_was_spoiled_is_not_served_and_the_owner_removes_it() {
    let (mut table, layout, memory) = table(20);
    table.insert(b"key", b"value").unwrap();
    let found = search(&layout, &memory, b"key", 9).unwrap().unwrap();
    let last = (layout.record_len() - 16) / 8;
    for word in 1..=last {
        let (mut table, layout, memory) = self::table(20);
        table.insert(b"key", &[3; 100]).unwrap();
        table.insert(b"other", &[4; 100]).unwrap();
        let at = word_at(&layout, found.record) + word * 8;
        memory.store(at, memory.load(at).unwrap() ^ 1 << (word % 64)).unwrap();
        if let Some(Some(found)) = search(&layout, &memory, b"key", 50) {
            // The damage hit the place that is not current, or the padding of the key.
            assert_eq!(found.value, [3; 100]);
            continue;
        }
        let repaired = (0..20).filter(|record| table.inspect(*record) == Inspected::Repaired).count();
        assert_eq!((repaired, table.len()), (1, 1));
        assert_eq!(get(&layout, &memory, b"key"), None);
        assert_eq!(get(&layout, &memory, b"other").as_deref(), Some(&[4; 100][..]));
        assert_eq!(table.insert(b"key", b"again"), Ok(true));
        assert_eq!(get(&layout, &memory, b"key").as_deref(), Some(&b"again"[..]));
    }
}

#[test]
fn what_arrives_late_from_a_writer_that_was_given_up_changes_nothing() {
    let (mut table, layout, memory) = table(20);
    table.insert(b"key", b"before").unwrap();
    let late = lock(&layout, &memory, b"key", 3).unwrap();
    assert_eq!(table.release(late.0, late.1), Some(Released::Moved));
    assert!(change(&layout, &memory, b"key", 4, b"after"));
    assert!(!store(&layout, &memory, b"key", late, b"late"));
    assert_eq!(get(&layout, &memory, b"key").as_deref(), Some(&b"after"[..]));
    assert!(!table.remove(late.0, late.1, b"key"));
    // Not even if the record belongs to another item by now.
    let others: Vec<[u8; 1]> = (0..18).map(|other| [other]).collect();
    for other in &others {
        assert_eq!(table.insert(other, b"other"), Ok(true));
    }
    assert_eq!(table.insert(b"last", b"last"), Ok(true));
    assert_eq!(search(&layout, &memory, b"last", 9).unwrap().unwrap().record, late.0);
    assert!(!store(&layout, &memory, b"key", late, b"late"));
    assert_eq!(get(&layout, &memory, b"last").as_deref(), Some(&b"last"[..]));
    assert!((0..20).all(|record| table.inspect(record) == Inspected::Well));
}

/// Writers change the same keys while the owner inserts and removes others and takes away the locks of lost writers: no
/// change is lost, and a reader finds stored values, those of each writer in their order.
#[test]
fn writers_of_the_same_keys_lose_no_change_and_readers_see_whole_values() {
    const KEYS: usize = 4;
    const WRITERS: u16 = 2;
    let rounds: u64 = if cfg!(miri) { 10 } else { 20_000 };
    let (mut table, layout, memory) = table(64);
    let value_of = |writer: u16, round: u64| {
        let mut value = vec![(round ^ u64::from(writer)) as u8; 10 + (round % 90) as usize];
        value[..2].copy_from_slice(&writer.to_le_bytes());
        value[2..10].copy_from_slice(&round.to_le_bytes());
        value
    };
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| vec![key as u8; 5]).collect();
    for key in &keys {
        table.insert(key, &value_of(0, 0)).unwrap();
    }
    let version = |key: &[u8]| search(&layout, &memory, key, 1_000_000).unwrap().unwrap().lock.version();
    let before: Vec<u64> = keys.iter().map(|key| version(key)).collect();
    let stored: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    let (done, keys, stored, memory) = (AtomicBool::new(false), &keys, &stored, &memory);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    for round in 1..=rounds {
                        let nth = (round as usize * 7 + usize::from(writer)) % KEYS;
                        while !change(&layout, memory, &keys[nth], writer, &value_of(writer, round)) {
                            std::thread::yield_now();
                        }
                        stored[nth].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let is_done = &done;
        scope.spawn(move || {
            let mut seen = [[0u64; WRITERS as usize + 1]; KEYS];
            while !is_done.load(Ordering::Acquire) {
                for (nth, key) in keys.iter().enumerate() {
                    let value = get(&layout, memory, key).expect("it is there all the time");
                    let writer = u16::from_le_bytes(*value.first_chunk().unwrap());
                    let round = u64::from_le_bytes(*value[2..].first_chunk().unwrap());
                    assert_eq!(value, value_of(writer, round));
                    assert!(round >= seen[nth][usize::from(writer)], "{writer} {round}");
                    seen[nth][usize::from(writer)] = round;
                }
            }
        });
        let mut others = 0u8;
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            others = others.wrapping_add(1);
            let key = [others, 1, 2];
            match lock(&layout, memory, &key, 9) {
                Some((record, held)) => assert!(table.remove(record, held, &key)),
                None => drop(table.insert(&key, &[others; 30])),
            }
            for record in 0..64 {
                assert_ne!(table.inspect(record), Inspected::Repaired);
            }
            std::thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    for ((key, before), stored) in keys.iter().zip(before).zip(stored) {
        assert_eq!(version(key) - before, stored.load(Ordering::Relaxed));
    }
}
