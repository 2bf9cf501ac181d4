//! The ordered index compared with a `BTreeMap`, alone and next to threads that change it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use sinew_conformance::history::{MapClient, check_map};
use sinew_store::ordered::{KEY_LEN_MAX, OrderedIndex, PutError, Stats, entry_bytes};

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(index: &OrderedIndex, range: (Bound<&[u8]>, Bound<&[u8]>), max: usize) -> Entries {
    let mut found = Vec::new();
    index.scan(range, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        found.len() < max
    });
    found
}

#[derive(Clone, Debug)]
enum Operation {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>, usize),
}

/// Few and short keys, so that they coincide; with zeros, so that some are prefixes of others and pad to the same head.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => proptest::collection::vec(0u8..2, 0..12),
        1 => proptest::collection::vec(any::<u8>(), 0..3),
    ]
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![Just(Bound::Unbounded), key().prop_map(Bound::Included), key().prop_map(Bound::Excluded)]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (key(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Operation::Put(key, value)),
        2 => key().prop_map(Operation::Delete),
        2 => key().prop_map(Operation::Get),
        1 => (bound(), bound(), 1..50usize).prop_map(|(from, to, max)| Operation::Scan(from, to, max)),
    ]
}

fn lies_in(key: &[u8], (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    let after = match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let before = match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    after && before
}

proptest! {
    #[test]
    fn an_index_does_what_a_map_does(operations in proptest::collection::vec(operation(), 0..400)) {
        let index = OrderedIndex::new(1 << 30);
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for operation in operations {
            match operation {
                Operation::Put(key, value) => {
                    let replaced = index.put(&key, &value).unwrap();
                    prop_assert_eq!(replaced, model.insert(key, value).is_some());
                }
                Operation::Delete(key) => prop_assert_eq!(index.delete(&key), model.remove(&key).is_some()),
                Operation::Get(key) => {
                    prop_assert_eq!(index.get(&key, <[u8]>::to_vec), model.get(&key).cloned());
                }
                Operation::Scan(from, to, max) => {
                    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                    let expected: Entries = model
                        .iter()
                        .filter(|(key, _)| lies_in(key, range))
                        .take(max)
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .collect();
                    let mut values = Vec::new();
                    index.scan_values(range, |value| {
                        values.push(value.to_vec());
                        values.len() < max
                    });
                    prop_assert_eq!(&values, &expected.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>());
                    prop_assert_eq!(scan(&index, range, max), expected);
                }
            }
            let used: u64 = model.iter().map(|(key, value)| entry_bytes(key, value.len())).sum();
            let expected = Stats { entries: model.len() as u64, used_bytes: used, memory_bytes: 1 << 30 };
            prop_assert_eq!(index.stats(), expected);
        }
    }
}

#[test]
fn a_full_index_takes_what_needs_no_more_and_what_was_deleted_makes_room() {
    let index = OrderedIndex::new(2 * entry_bytes(b"a", 1));
    assert_eq!(index.put(b"a", b"1"), Ok(false));
    assert_eq!(index.put(b"b", b"1"), Ok(false));
    let full = Err(PutError::Full { memory_bytes: 2 * entry_bytes(b"a", 1) });
    assert_eq!(index.put(b"c", b""), full);
    assert_eq!(index.put(b"b", b"22"), full);
    assert_eq!(index.get(b"b", <[u8]>::to_vec), Some(b"1".to_vec()));
    assert_eq!(index.put(b"b", b"3"), Ok(true));
    assert!(index.delete(b"a"));
    assert_eq!(index.put(b"c", b"1"), Ok(false));
}

#[test]
fn keys_up_to_the_limit_are_taken_and_longer_ones_are_not() {
    let index = OrderedIndex::new(1 << 20);
    let longest = vec![7; KEY_LEN_MAX];
    assert_eq!(index.put(&longest, b"x"), Ok(false));
    assert_eq!(index.get(&longest, <[u8]>::len), Some(1));
    let longer = vec![7; KEY_LEN_MAX + 1];
    assert_eq!(index.put(&longer, b"x"), Err(PutError::KeyTooLong { len: KEY_LEN_MAX + 1 }));
    assert_eq!(index.get(&longer, <[u8]>::len), None);
    assert!(!index.delete(&longer));
}

/// Makes a value that begins with its key, so that a wrong value shows.
fn value_of(key: &[u8], round: u64) -> Vec<u8> {
    [key, &round.to_le_bytes()].concat()
}

/// Even keys are always present, and are overwritten all the time; odd ones come and go. Each scan and GET must find
/// the even ones.
fn standing_keys_are_always_seen(prefix_len: usize, rounds: u64) {
    const KEYS: u64 = 4000;
    let name = |number: u64| {
        let mut key = vec![b'p'; prefix_len];
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
        key.extend_from_slice(format!("{scattered:04}/{number}").as_bytes());
        key
    };
    let index = OrderedIndex::new(1 << 30);
    let mut standing: Vec<_> = (0..KEYS).step_by(2).map(name).collect();
    standing.sort();
    for key in &standing {
        index.put(key, &value_of(key, 0)).unwrap();
    }
    let over = AtomicBool::new(false);
    let (writers, readers) = (3, 2);
    let together = Barrier::new(writers + readers);
    thread::scope(|scope| {
        let writing: Vec<_> = (0..writers as u64)
            .map(|writer| {
                let (index, together, name) = (&index, &together, &name);
                scope.spawn(move || {
                    let mut state = writer + 1;
                    together.wait();
                    for round in 0..rounds {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let number = (state >> 33) % KEYS;
                        let key = name(number);
                        if number % 2 == 1 && state >> 63 == 1 {
                            index.delete(&key);
                        } else {
                            index.put(&key, &value_of(&key, round)).unwrap();
                        }
                    }
                })
            })
            .collect();
        for reader in 0..readers {
            let (index, together, standing, over) = (&index, &together, &standing, &over);
            scope.spawn(move || {
                together.wait();
                let mut first = reader;
                while !over.load(Ordering::Relaxed) {
                    first = (first + 611) % standing.len();
                    let key = &standing[first];
                    assert_eq!(index.get(key, |value| value.starts_with(key)), Some(true), "a key that stands");
                    let mut expected = standing[first..].iter().peekable();
                    let mut last = Vec::new();
                    let mut seen = 0;
                    index.scan((Bound::Included(key), Bound::Unbounded), |key, value| {
                        assert!(key > &last[..], "keys come once, in their order");
                        assert!(value.starts_with(key), "values are their keys'");
                        last = key.to_vec();
                        if expected.next_if(|next| next.as_slice() <= key).is_some_and(|next| next != key) {
                            panic!("a scan missed a key that stands before {}", key.escape_ascii());
                        }
                        seen += 1;
                        seen < 300
                    });
                }
            });
        }
        let ended: Vec<_> = writing.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a writer panicked");
    });
    let all = scan(&index, (Bound::Unbounded, Bound::Unbounded), usize::MAX);
    let used: u64 = all.iter().map(|(key, value)| entry_bytes(key, value.len())).sum();
    assert_eq!((all.len() as u64, used), (index.stats().entries, index.stats().used_bytes));
}

#[test]
fn scans_and_gets_see_short_keys_that_stand_beside_writers() {
    standing_keys_are_always_seen(0, 60_000);
}

#[test]
fn scans_and_gets_see_long_keys_with_one_head_that_stand_beside_writers() {
    standing_keys_are_always_seen(20, 60_000);
}

/// A thread's view of an index whose values are numbers.
#[derive(Clone, Copy)]
struct Numbers<'a>(&'a OrderedIndex);

impl MapClient for Numbers<'_> {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        self.0.get(key, |value| u64::from_le_bytes(*value.as_array().expect("all values are numbers")))
    }

    fn put(&mut self, key: &[u8], value: u64) -> bool {
        self.0.put(key, &value.to_le_bytes()).expect("there is room")
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.0.delete(key)
    }
}

#[test]
fn gets_puts_and_deletes_of_a_key_by_several_threads_are_linearizable() {
    let index = OrderedIndex::new(1 << 30);
    let result = check_map(&mut [Numbers(&index); 3], 3000, 1);
    assert_eq!(result, Ok(()));
}
