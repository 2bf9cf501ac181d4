//! Tests of the key-value store.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn run(store: &mut KvStore, command: Command<'_>) -> Vec<u8> {
    let (mut bytes, mut answer) = (Vec::new(), Vec::new());
    wire::encode(&command, &mut bytes);
    store.apply(&bytes, &mut answer);
    answer
}

fn done(answer: &[u8]) -> CommandResult<'_> {
    wire::decode(answer).unwrap()
}

/// The state, serialised at once.
fn serialized(store: &KvStore) -> Vec<u8> {
    let items = store.items.iter().map(|(key, value)| StoredItem {
        key: key.bytes(),
        value: &value.bytes,
        revision: value.revision,
        created: value.created,
    });
    let mut bytes = Vec::new();
    wire::encode(&StoredState { kind: KIND, revision: store.revision, items: items.collect() }, &mut bytes);
    bytes
}

fn ask(store: &KvStore, query: Query<'_>) -> Option<Vec<u8>> {
    let (mut bytes, mut answer) = (Vec::new(), Vec::new());
    wire::encode(&query, &mut bytes);
    assert_eq!(store.check_query(&bytes), Ok(()));
    store.read(&bytes, &mut answer).then_some(answer)
}

#[test]
fn a_swap_changes_what_is_as_expected_and_nothing_else() {
    let mut store = KvStore::new();
    let swap = |store: &mut KvStore, expect, value| run(store, Command::Swap { key: b"k", expect, value });
    assert_eq!(done(&swap(&mut store, Expect::Value(b"a"), Some(b"b"))), CommandResult::Differs { found: None });
    assert_eq!(done(&swap(&mut store, Expect::Nothing, Some(b"a"))), CommandResult::Changed { revision: 1 });
    let found = Item { key: b"", value: b"a", revision: 1, created: 1 };
    assert_eq!(done(&swap(&mut store, Expect::Nothing, Some(b"b"))), CommandResult::Differs { found: Some(found) });
    assert_eq!(done(&swap(&mut store, Expect::Revision(1), Some(b"b"))), CommandResult::Changed { revision: 2 });
    assert_eq!(done(&swap(&mut store, Expect::Value(b"b"), None)), CommandResult::Changed { revision: 3 });
    assert!(store.is_empty());
}

#[test]
fn a_swap_of_nothing_for_nothing_is_no_change() {
    let mut store = KvStore::new();
    run(&mut store, Command::Put { key: b"other", value: b"v" });
    let answer = run(&mut store, Command::Swap { key: b"k", expect: Expect::Nothing, value: None });
    assert_eq!((done(&answer), store.revision()), (CommandResult::KeyMissing, 1));
}

/// Each look searches only what came since the last, so it does not matter when earlier changes are dropped.
#[test]
fn a_watch_that_is_resumed_outlives_any_number_of_other_changes() {
    let mut store = KvStore::new();
    let mut query = Vec::new();
    wire::encode(&Query::Watch { prefix: b"a", from: 1, limit: 9 }, &mut query);
    let first = query.clone();
    for round in 0..70 {
        for _ in 0..1000 {
            store.put(b"b", b"v");
        }
        assert!(!store.read(&query, &mut Vec::new()));
        query = store.resume(&query).unwrap();
        let from = (round + 1) * 1000 + 1;
        assert_eq!(wire::decode(&query), Ok(Query::Watch { prefix: b"a", from, limit: 9 }));
        assert_eq!(store.resume(&query), None, "all was searched");
    }
    let revision = store.put(b"a", b"v");
    let mut answer = Vec::new();
    assert!(store.read(&query, &mut answer));
    let changes = vec![Change { revision, key: b"a", value: Some(b"v") }];
    assert_eq!(wire::decode(&answer), Ok(QueryResult::Changes { changes, next: revision + 1 }));
    answer.clear();
    assert!(store.read(&first, &mut answer));
    assert!(matches!(wire::decode(&answer), Ok(QueryResult::Compacted { .. })));
}

#[test]
fn keys_and_values_of_a_wrong_size_are_refused_and_change_nothing() {
    let mut store = KvStore::new();
    let (long_key, long_value) = (vec![1; KEY_LEN_MAX + 1], vec![1; VALUE_LEN_MAX + 1]);
    for command in [
        Command::Put { key: b"", value: b"x" },
        Command::Put { key: &long_key, value: b"x" },
        Command::Put { key: b"k", value: &long_value },
        Command::Swap { key: b"k", expect: Expect::Nothing, value: Some(&long_value) },
        Command::Swap { key: b"k", expect: Expect::Value(&long_value), value: None },
        Command::Swap { key: b"k", expect: Expect::Nothing, value: Some(&long_value) },
        Command::Delete { key: b"" },
    ] {
        let mut bytes = Vec::new();
        wire::encode(&command, &mut bytes);
        assert!(store.check_command(&bytes).is_err());
        assert_eq!(done(&run(&mut store, command)), CommandResult::Malformed);
    }
    assert_eq!(store.revision(), 0);
    let longest = (vec![1; KEY_LEN_MAX], vec![1; VALUE_LEN_MAX]);
    let put = Command::Put { key: &longest.0, value: &longest.1 };
    assert_eq!(done(&run(&mut store, put)), CommandResult::Changed { revision: 1 });
}

#[test]
fn an_answer_holds_no_more_short_items_than_can_be_made_in_little_time() {
    let mut store = KvStore::new();
    for index in 0_u32..40_000 {
        run(&mut store, Command::Put { key: &index.to_be_bytes(), value: b"" });
    }
    let answer = ask(&store, Query::Range { from: b"", to: None, limit: u32::MAX }).unwrap();
    let Ok(QueryResult::Items { items, more: true, .. }) = wire::decode(&answer) else { panic!() };
    assert!((20_000..=ANSWER_LEN_MAX / ITEM_LEN).contains(&items.len()), "{}", items.len());
}

#[test]
fn a_snapshot_that_no_store_has_made_is_refused() {
    let item = StoredItem { key: b"k", value: b"v", revision: 2, created: 1 };
    let state = |revision, item| StoredState { kind: KIND, revision, items: vec![item] };
    for (state, is_right) in [
        (state(2, StoredItem { ..item }), true),
        (state(u64::MAX, StoredItem { ..item }), false),
        (state(1, StoredItem { ..item }), false),
        (state(2, StoredItem { created: 3, ..item }), false),
        (state(2, StoredItem { key: b"", ..item }), false),
        (StoredState { kind: 0, ..state(2, StoredItem { ..item }) }, false),
    ] {
        let mut bytes = Vec::new();
        wire::encode(&state, &mut bytes);
        let mut store = KvStore::new();
        assert_eq!((store.check_snapshot(&bytes).is_ok(), store.restore(&bytes).is_ok()), (is_right, is_right));
    }
}

#[test]
fn a_range_ends_at_its_bounds_its_limit_and_what_an_answer_holds() {
    let mut store = KvStore::new();
    for index in 0_u8..10 {
        run(&mut store, Command::Put { key: &[index], value: &vec![index; ANSWER_LEN_MAX / 4] });
    }
    let keys = |from: &[u8], to: Option<&[u8]>, limit| {
        let answer = ask(&store, Query::Range { from, to, limit }).unwrap();
        let QueryResult::Items { items, more, .. } = wire::decode(&answer).unwrap() else { panic!() };
        (items.iter().map(|item| item.key[0]).collect::<Vec<_>>(), more)
    };
    assert_eq!(keys(&[3], Some(&[5]), 100), (vec![3, 4], false));
    assert_eq!(keys(&[3], None, 2), (vec![3, 4], true));
    assert_eq!(keys(&[], None, 100), (vec![0, 1, 2], true));
    assert_eq!(keys(&[5], Some(&[3]), 100), (vec![], false));
    assert_eq!(keys(&[9], None, 100), (vec![9], false));
}

#[test]
fn a_watch_sees_each_change_of_its_prefix_once_and_waits_for_the_next() {
    let mut store = KvStore::new();
    for (key, value) in [("a/1", "x"), ("b", "y"), ("a/2", "z")] {
        run(&mut store, Command::Put { key: key.as_bytes(), value: value.as_bytes() });
    }
    run(&mut store, Command::Delete { key: b"a/1" });
    let watch = |from, limit| ask(&store, Query::Watch { prefix: b"a/", from, limit });
    let answer = watch(1, 2).unwrap();
    let first = [(1, b"a/1", Some(b"x")), (3, b"a/2", Some(b"z"))];
    let changes = first.map(|(revision, key, value)| Change { revision, key, value: value.map(|value| &value[..]) });
    assert_eq!(wire::decode(&answer), Ok(QueryResult::Changes { changes: changes.to_vec(), next: 4 }));
    let answer = watch(4, 2).unwrap();
    let changes = vec![Change { revision: 4, key: b"a/1", value: None }];
    assert_eq!(wire::decode(&answer), Ok(QueryResult::Changes { changes, next: 5 }));
    assert_eq!(watch(5, 2), None);
    let mut other = KvStore::new();
    other.restore(&store.snapshot()).unwrap();
    let answer = ask(&other, Query::Watch { prefix: b"", from: 2, limit: 1 }).unwrap();
    assert_eq!(wire::decode(&answer), Ok(QueryResult::Compacted { oldest: 5 }));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Delete(u8),
    Swap(u8, Option<Vec<u8>>, Option<Vec<u8>>),
}

fn step() -> impl Strategy<Value = Step> {
    let value = || proptest::collection::vec(0_u8..3, 0..3);
    prop_oneof![
        (0_u8..5, value()).prop_map(|(key, value)| Step::Put(key, value)),
        (0_u8..5).prop_map(Step::Delete),
        (0_u8..5, proptest::option::of(value()), proptest::option::of(value()))
            .prop_map(|(key, expect, value)| Step::Swap(key, expect, value)),
    ]
}

proptest! {
    #[test]
    fn the_store_is_a_map_before_and_after_a_snapshot(
        steps in proptest::collection::vec(step(), 0..60),
        part_len in 1_usize..40,
    ) {
        let (mut store, mut map, mut snapshot) = (KvStore::new(), BTreeMap::new(), None);
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(key, value) => {
                    run(&mut store, Command::Put { key: &[key], value: &value });
                    map.insert(key, value);
                }
                Step::Delete(key) => {
                    let answer = run(&mut store, Command::Delete { key: &[key] });
                    prop_assert_eq!(done(&answer) != CommandResult::KeyMissing, map.remove(&key).is_some());
                }
                Step::Swap(key, expect, value) => {
                    let swap = Command::Swap {
                        key: &[key],
                        expect: expect.as_deref().map_or(Expect::Nothing, Expect::Value),
                        value: value.as_deref(),
                    };
                    let answer = run(&mut store, swap);
                    let is_so = map.get(&key) == expect.as_ref();
                    let changes = is_so && (expect.is_some() || value.is_some());
                    prop_assert_eq!(matches!(done(&answer), CommandResult::Changed { .. }), changes);
                    prop_assert_eq!(done(&answer) == CommandResult::KeyMissing, is_so && !changes);
                    match value {
                        Some(value) if is_so => drop(map.insert(key, value)),
                        None if is_so => drop(map.remove(&key)),
                        _ => {}
                    }
                }
            }
            if at % 16 == 15 {
                let mut restored = KvStore::new();
                restored.restore(&store.snapshot()).unwrap();
                prop_assert_eq!(restored.revision(), store.revision());
                (store, snapshot) = (restored, None);
            }
            // A snapshot in parts is that of the state in which it was begun.
            let (bytes, begun_with) = snapshot.get_or_insert_with(|| {
                let mut bytes = Vec::new();
                assert!(!store.begin_snapshot(&mut bytes));
                (bytes, serialized(&store))
            });
            if store.continue_snapshot(bytes, part_len) {
                prop_assert_eq!(&*bytes, &*begun_with);
                snapshot = None;
            }
            let answer = ask(&store, Query::Range { from: &[], to: None, limit: 100 }).unwrap();
            let QueryResult::Items { items, .. } = wire::decode(&answer).unwrap() else { panic!() };
            let found: BTreeMap<_, _> = items.iter().map(|item| (item.key[0], item.value.to_vec())).collect();
            prop_assert_eq!(&found, &map);
        }
    }

    #[test]
    fn any_bytes_are_a_command_or_change_nothing(mut bytes in proptest::collection::vec(0_u8.., 0..60)) {
        if let Some(first) = bytes.first_mut() { *first = wire::VERSION; }
        let mut store = KvStore::new();
        let is_one = store.check_command(&bytes).is_ok();
        store.apply(&bytes, &mut Vec::new());
        prop_assert!(is_one || store.revision() == 0);
        let _ = store.check_query(&bytes);
        store.read(&bytes, &mut Vec::new());
        let _ = store.restore(&bytes);
    }
}
