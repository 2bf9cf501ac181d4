//! Tables that clients search with READs, compared with a map, and next to a writer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use sinew_mem::SharedMemory;
use sinew_store::cuckoo::{self, CuckooTable};
use sinew_store::hopscotch::{self, HopscotchTable, Values};
use sinew_store::remote::{Index, Step, Table, TableError};

const KEY_LEN_MAX: u32 = 40;
const VALUE_LEN_MAX: u32 = 100;

fn cuckoo_layout(buckets: u32) -> cuckoo::Layout {
    cuckoo::Layout {
        buckets,
        extent_bytes: u64::from(buckets) * 200,
        item_len_max: KEY_LEN_MAX + VALUE_LEN_MAX,
        seed: 7,
    }
}

fn hopscotch_layout(buckets: u32, neighbourhood: u32, values: Values) -> hopscotch::Layout {
    hopscotch::Layout {
        buckets,
        neighbourhood,
        overflow_blocks: buckets / 8,
        key_len_max: KEY_LEN_MAX,
        value_len_max: VALUE_LEN_MAX,
        values,
        seed: 7,
    }
}

fn cuckoo_table(buckets: u32) -> (CuckooTable, cuckoo::Layout, SharedMemory) {
    let layout = cuckoo_layout(buckets);
    let memory = SharedMemory::private(layout.memory_len()).unwrap();
    (CuckooTable::new(layout, memory.clone()).unwrap(), layout, memory)
}

fn hopscotch_table(
    buckets: u32,
    neighbourhood: u32,
    values: Values,
) -> (HopscotchTable, hopscotch::Layout, SharedMemory) {
    let layout = hopscotch_layout(buckets, neighbourhood, values);
    let memory = SharedMemory::private(layout.memory_len()).unwrap();
    (HopscotchTable::new(layout, memory.clone()).unwrap(), layout, memory)
}

fn out_of_line(buckets: u32) -> Values {
    Values::OutOfLine(u64::from(buckets) * 152)
}

/// Searches as a remote reader does; also returns the number of READs.
fn read<I: Index>(index: &I, memory: &SharedMemory, key: &[u8]) -> (Option<Vec<u8>>, usize) {
    let (mut search, mut span) = index.search(key);
    let mut reads = 0;
    loop {
        assert!(span.len <= index.read_len_max());
        let mut bytes = vec![0; span.len];
        memory.read(span.offset as usize, &mut bytes).unwrap();
        reads += 1;
        match index.step(&mut search, key, &bytes) {
            Step::Read(next) | Step::Again(next) => span = next,
            Step::Found(value) => return (Some(value.to_vec()), reads),
            Step::Missing => return (None, reads),
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Put(u8, usize, u8),
    Delete(u8),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        3 => (any::<u8>(), 0..=VALUE_LEN_MAX as usize, any::<u8>()).prop_map(|(key, len, fill)| Change::Put(key, len, fill)),
        1 => any::<u8>().prop_map(Change::Delete),
    ];
    prop::collection::vec(change, 1..600)
}

fn key_of(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) % KEY_LEN_MAX as usize]
}

/// Applies the changes to a table and to a map, and compares the two.
fn same_as_map<I: Index>(table: &mut impl Table, index: &I, memory: &SharedMemory, changes: &[Change]) {
    let mut map: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    for change in changes {
        match change {
            Change::Put(key, len, fill) => {
                let (key, value) = (key_of(*key), vec![*fill; *len]);
                match table.put(&key, &value) {
                    Ok(was_there) => assert_eq!(was_there, map.insert(key.clone(), value).is_some()),
                    // A refused PUT changes nothing.
                    Err(TableError::Full { items }) => assert!(items == map.len() && !map.contains_key(&key)),
                    Err(TableError::NoMemory { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(read(index, memory, &key).0.as_ref(), map.get(&key));
            }
            Change::Delete(key) => {
                let key = key_of(*key);
                assert_eq!(table.delete(&key), map.remove(&key).is_some());
                assert_eq!(read(index, memory, &key).0, None);
            }
        }
        assert_eq!(table.len(), map.len());
    }
    for key in 0..=u8::MAX {
        let key = key_of(key);
        assert_eq!(read(index, memory, &key).0.as_ref(), map.get(&key));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]

    #[test]
    fn a_cuckoo_table_is_a_map_until_it_is_full(changes in changes(), buckets in 3u32..400) {
        let (mut table, layout, memory) = cuckoo_table(buckets);
        same_as_map(&mut table, &layout, &memory, &changes);
    }

    #[test]
    fn a_hopscotch_table_is_a_map_until_it_is_full(
        changes in changes(), buckets in 1u32..400, neighbourhood in 1u32..10, inline in any::<bool>()
    ) {
        let values = if inline { Values::Inline } else { out_of_line(buckets) };
        let (mut table, layout, memory) = hopscotch_table(buckets, neighbourhood, values);
        same_as_map(&mut table, &layout, &memory, &changes);
    }

    #[test]
    fn a_search_survives_memory_that_holds_anything(
        noise in prop::collection::vec(any::<u8>(), 4096), key in prop::collection::vec(any::<u8>(), 0..50), stop in 1usize..64
    ) {
        fn search<I: Index>(index: &I, noise: &[u8], key: &[u8], stop: usize) {
            let (mut search, mut span) = index.search(key);
            for round in 0..stop {
                assert!(span.len <= index.read_len_max());
                assert!(span.offset as usize + span.len <= index.memory_len());
                let bytes: Vec<u8> = noise.iter().copied().cycle().skip(round * 7).take(span.len).collect();
                match index.step(&mut search, key, &bytes) {
                    Step::Read(next) | Step::Again(next) => span = next,
                    found => panic!("{found:?} in noise"),
                }
            }
        }
        search(&cuckoo_layout(50), &noise, &key, stop);
        search(&hopscotch_layout(50, 6, Values::Inline), &noise, &key, stop);
        search(&hopscotch_layout(50, 6, out_of_line(50)), &noise, &key, stop);
    }

    #[test]
    fn layouts_survive_the_way_and_bad_ones_do_not_pass(bytes in any::<[u8; 40]>()) {
        if let Ok(layout) = hopscotch::Layout::from_bytes(&bytes) {
            prop_assert_eq!(hopscotch::Layout::from_bytes(&layout.to_bytes()), Ok(layout));
        }
        if let Ok(layout) = cuckoo::Layout::from_bytes(bytes.first_chunk().unwrap()) {
            prop_assert_eq!(cuckoo::Layout::from_bytes(&layout.to_bytes()), Ok(layout));
        }
        let layout = cuckoo_layout(50);
        prop_assert_eq!(cuckoo::Layout::from_bytes(&layout.to_bytes()), Ok(layout));
        for values in [Values::Inline, out_of_line(50)] {
            let layout = hopscotch_layout(50, 6, values);
            prop_assert_eq!(hopscotch::Layout::from_bytes(&layout.to_bytes()), Ok(layout));
        }
    }
}

#[test]
fn keys_and_values_that_cannot_be_are_refused() {
    let (mut table, ..) = cuckoo_table(50);
    let most = (KEY_LEN_MAX + VALUE_LEN_MAX) as usize;
    assert_eq!(table.put(b"", b"value"), Err(TableError::Key { len: 0, max: most }));
    assert_eq!(table.put(&vec![1; most + 1], b""), Err(TableError::Key { len: most + 1, max: most }));
    assert_eq!(table.put(&[1; 10], &vec![1; most - 9]), Err(TableError::Value { len: most - 9, max: most - 10 }));
    assert_eq!(table.put(&vec![1; most], b""), Ok(false));

    let (mut table, ..) = hopscotch_table(50, 6, Values::Inline);
    let (key, value) = (KEY_LEN_MAX as usize, VALUE_LEN_MAX as usize);
    assert_eq!(table.put(b"", b"value"), Err(TableError::Key { len: 0, max: key }));
    assert_eq!(table.put(&vec![1; key + 1], b""), Err(TableError::Key { len: key + 1, max: key }));
    assert_eq!(table.put(&vec![1; key], &vec![1; value + 1]), Err(TableError::Value { len: value + 1, max: value }));
    assert_eq!(table.put(&vec![1; key], &vec![1; value]), Ok(false));

    let layout = cuckoo_layout(50);
    let small = SharedMemory::private(layout.memory_len() - 8).unwrap();
    assert!(matches!(CuckooTable::new(layout, small), Err(TableError::Memory { .. })));
    assert!(cuckoo::Layout { buckets: 2, ..layout }.check().is_err());
    assert!(hopscotch::Layout { neighbourhood: 0, ..hopscotch_layout(50, 6, Values::Inline) }.check().is_err());
}

/// Fills a table with `items` items; returns the average number of READs of a search.
fn reads_per_get<I: Index>(table: &mut impl Table, index: &I, memory: &SharedMemory, items: u32) -> f64 {
    for key in 0..items {
        table.put(&key.to_le_bytes(), &[1; 32]).unwrap();
    }
    let mut reads = 0;
    for key in 0..items {
        let (value, took) = read(index, memory, &key.to_le_bytes());
        assert_eq!(value.as_deref(), Some(&[1; 32][..]));
        reads += took;
    }
    reads as f64 / f64::from(items)
}

#[test]
fn a_cuckoo_table_three_quarters_full_is_probed_less_than_twice_a_get() {
    const BUCKETS: u32 = if cfg!(miri) { 400 } else { 40_000 };
    let (mut table, layout, memory) = cuckoo_table(BUCKETS);
    let reads = reads_per_get(&mut table, &layout, &memory, BUCKETS / 4 * 3);
    // Pilaf takes 1.6 READs of buckets, and one of the extent.
    assert!((2.3..2.9).contains(&reads), "{reads}");
}

#[test]
fn a_hopscotch_table_is_read_about_once_a_get() {
    const BUCKETS: u32 = if cfg!(miri) { 400 } else { 40_000 };
    let (mut table, layout, memory) = hopscotch_table(BUCKETS, 6, Values::Inline);
    let reads = reads_per_get(&mut table, &layout, &memory, BUCKETS / 10 * 7);
    assert!((1.0..1.1).contains(&reads), "{reads}");
    let (mut table, layout, memory) = hopscotch_table(BUCKETS, 8, out_of_line(BUCKETS));
    let reads = reads_per_get(&mut table, &layout, &memory, BUCKETS / 10 * 7);
    assert!((2.0..2.1).contains(&reads), "{reads}");
}

/// Of a neighbourhood's six slots, one at a time is torn.
#[test]
fn only_a_torn_slot_of_the_key_itself_holds_up_a_search() {
    let (mut table, layout, memory) = hopscotch_table(40, 6, Values::Inline);
    // Some keys are shorter than a word, and each begins with the one before.
    let keys: Vec<Vec<u8>> = (0..20u8).map(|len| vec![7; 1 + usize::from(len)]).collect();
    for key in &keys {
        table.put(key, &[key.len() as u8; 32]).unwrap();
    }
    let mut checked = 0;
    for key in &keys {
        let (search, span) = layout.search(key);
        let mut bytes = vec![0; span.len];
        memory.read(span.offset as usize, &mut bytes).unwrap();
        if layout.step(&mut search.clone(), key, &bytes) != Step::Found(&[key.len() as u8; 32]) {
            // It is in an overflow block.
            continue;
        }
        let torn: Vec<_> = (0..6)
            .filter(|at| {
                let mut bytes = bytes.clone();
                bytes[at * layout.slot_len() + 60] ^= 1;
                match layout.step(&mut search.clone(), key, &bytes) {
                    Step::Found(value) => {
                        assert_eq!(value, [key.len() as u8; 32]);
                        false
                    }
                    step => {
                        assert_eq!(step, Step::Again(span));
                        true
                    }
                }
            })
            .collect();
        assert_eq!(torn.len(), 1, "{torn:?}");
        checked += 1;
    }
    assert!(checked > 10, "{checked} keys lie in their neighbourhoods");
}

/// Makes a value that depends on its key, so that a wrong value shows.
fn value_of(key: u32, round: u32) -> Vec<u8> {
    let len = 8 + (key.wrapping_mul(31).wrapping_add(round) % 80) as usize;
    let mut value = vec![(key ^ round) as u8; len];
    value[..4].copy_from_slice(&key.to_le_bytes());
    value[4..8].copy_from_slice(&round.to_le_bytes());
    value
}

/// A writer changes some keys and leaves others alone, which hop about to make room. A reader misses none of the
/// latter, and never takes anything for a value that was not stored under its key.
fn reader_beside_writer<I: Index + Send>(mut table: impl Table + Send, index: &I, memory: &SharedMemory, buckets: u32) {
    let (constant, changing) = (buckets / 2, buckets / 5);
    for key in 0..constant {
        table.put(&key.to_le_bytes(), &value_of(key, 0)).unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    let rounds = if cfg!(miri) { 4 } else { 400 };
    std::thread::scope(|scope| {
        let stop = Arc::clone(&done);
        scope.spawn(move || {
            for round in 1..=rounds {
                for key in constant..constant + changing {
                    // Now and then there is no place; other items come and go.
                    let _ = table.put(&key.to_le_bytes(), &value_of(key, round));
                }
                for key in constant..constant + changing {
                    if (key + round) % 3 != 0 {
                        table.delete(&key.to_le_bytes());
                    }
                }
            }
            stop.store(true, Ordering::Release);
        });
        let mut found = 0u64;
        loop {
            let last = done.load(Ordering::Acquire);
            for key in 0..constant + changing {
                let (value, _) = read(index, memory, &key.to_le_bytes());
                let Some(value) = value else {
                    assert!(key >= constant, "{key} was there all the time");
                    continue;
                };
                let round = u32::from_le_bytes(*value[4..].first_chunk().unwrap());
                assert_eq!(value, value_of(key, round));
                assert_eq!(round == 0, key < constant);
                found += u64::from(key >= constant);
            }
            if last {
                break;
            }
        }
        assert!(found > 0);
    });
}

const SMALL: u32 = if cfg!(miri) { 40 } else { 400 };

#[test]
fn a_reader_beside_the_writer_of_a_cuckoo_table_gets_what_was_stored() {
    let (table, layout, memory) = cuckoo_table(SMALL);
    reader_beside_writer(table, &layout, &memory, SMALL);
}

#[test]
fn a_reader_beside_the_writer_of_a_hopscotch_table_gets_what_was_stored() {
    for values in [Values::Inline, out_of_line(SMALL)] {
        let (table, layout, memory) = hopscotch_table(SMALL, 6, values);
        reader_beside_writer(table, &layout, &memory, SMALL);
    }
}

/// Puts keys in steps, each step of all of them, and checks what a reader finds. Between the steps, other keys come and
/// go, so that items move.
fn check_changes_in_steps<I: Index, T: Table>((mut table, layout, memory): (T, I, SharedMemory), keys: u64) {
    let key = |number: u64| number.to_le_bytes();
    let mut others = 1 << 32;
    (0..keys).for_each(|number| assert_eq!(table.put(&key(number), b"old"), Ok(false)));
    for first in (0..keys).step_by(8) {
        let batch = first..(first + 8).min(keys);
        let mut located: Vec<_> = batch.clone().map(|number| table.locate(&key(number))).collect();
        located.iter().for_each(|located| table.prefetch(located));
        located.iter_mut().for_each(|located| table.prefetch_item(located));
        // These items may take the places that were seen.
        for number in batch.clone().step_by(2) {
            assert!(table.delete(&key(number)));
            others += 1;
            let _ = table.put(&key(others), b"other");
        }
        for (number, located) in batch.zip(&located) {
            let was_there = number % 2 == 1;
            assert_eq!(table.put_located(&key(number), b"new", located), Ok(was_there), "{number}");
        }
    }
    (0..keys).for_each(|number| assert_eq!(read(&layout, &memory, &key(number)).0.as_deref(), Some(&b"new"[..])));
    assert_eq!(read(&layout, &memory, &key(keys)).0, None);
}

#[test]
fn changes_in_steps_find_items_that_moved_between_them() {
    check_changes_in_steps(cuckoo_table(400), 160);
    check_changes_in_steps(hopscotch_table(400, 6, Values::Inline), 200);
    check_changes_in_steps(hopscotch_table(200, 2, out_of_line(400)), 90);
}
