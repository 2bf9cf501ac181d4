//! Guarantees of far memory's safe interface.

mod common;

use common::{Faults, FaultsHandle, FaultyStore, PAGE, Watch};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_far_memory::{FarError, FarMemory, FarVec, LOCAL_PAGES_MIN, Options};
use sinew_mem::Arena;
use sinew_remote_memory::StoreError;

const PER_PAGE: usize = PAGE / 8;

fn far(pages: usize, options: Options, faults: Faults) -> (FarMemory<FaultyStore>, FaultsHandle) {
    let arena = 2 * (options.local_pages + 8) * Arena::block_len(PAGE, PAGE);
    let (store, hold) = FaultyStore::new(pages, arena, 1, faults);
    (FarMemory::new(store, options, Watch::start()).unwrap(), hold)
}

fn words(memory: &FarMemory<FaultyStore>, pages: usize) -> FarVec<u64, FaultyStore> {
    FarVec::zeroed(memory, pages * PER_PAGE).unwrap()
}

/// Options for eight local pages, with no read-ahead and no background write-back.
fn plain() -> Options {
    Options { ahead_pages: 0, dirty_high: 8, dirty_low: 8, ..Options::with_local_pages(8) }
}

#[test]
fn what_was_set_comes_back_however_few_pages_are_local() {
    let (memory, _) = far(64, Options::with_local_pages(LOCAL_PAGES_MIN), Faults::default());
    let mut vector = words(&memory, 64);
    for index in (0..vector.len()).step_by(7) {
        vector.set(index, index as u64 + 1).unwrap();
    }
    for index in 0..vector.len() {
        assert_eq!(vector.get(index).unwrap(), if index % 7 == 0 { index as u64 + 1 } else { 0 });
    }
    assert!(memory.stats().local <= LOCAL_PAGES_MIN);
}

#[test]
fn a_page_that_is_pinned_stays() {
    let (memory, hold) = far(64, plain(), Faults::default());
    let vector = words(&memory, 64);
    let guard = vector.slice(0..PER_PAGE + 1).unwrap();
    let reads = hold.faults().reads.len();
    for page in 2..64 {
        vector.get(page * PER_PAGE).unwrap();
    }
    assert!(vector.is_local(0) && vector.is_local(PER_PAGE));
    assert_eq!((guard[0], guard[PER_PAGE], memory.stats().pinned), (0, 0, 2));
    assert_eq!(hold.faults().reads[reads..], (2..64).collect::<Vec<u64>>());
    drop(guard);
    for page in 2..64 {
        vector.get(page * PER_PAGE).unwrap();
    }
    assert!(!vector.is_local(0) && memory.stats().pinned == 0);
}

#[test]
fn as_many_pages_are_pinned_as_may_be_and_one_more_is_an_error() {
    let options = Options { pinned_pages: 4, ..plain() };
    let (memory, _) = far(64, options, Faults::default());
    let vector = words(&memory, 64);
    let four = vector.slice(0..4 * PER_PAGE).unwrap();
    let again = vector.slice(0..1).unwrap();
    let error = vector.slice(4 * PER_PAGE..4 * PER_PAGE + 1).unwrap_err();
    assert!(matches!(error, FarError::TooManyPins { asked: 1, pinned: 4, max: 4 }), "{error}");
    drop(four);
    assert_eq!(memory.stats().pinned, 1);
    let error = vector.slice(0..5 * PER_PAGE).unwrap_err();
    assert!(matches!(error, FarError::TooManyPins { asked: 5, max: 4, .. }), "{error}");
    assert!(matches!(vector.slice(PER_PAGE..5 * PER_PAGE).unwrap_err(), FarError::TooManyPins { asked: 4, .. }));
    assert_eq!(memory.stats().pinned, 1, "what was pinned for nothing is not");
    drop(again);
    assert_eq!(vector.slice(PER_PAGE..5 * PER_PAGE).unwrap().len(), 4 * PER_PAGE);
}

#[test]
fn a_dirty_page_whose_write_fails_stays_and_is_told() {
    let (memory, hold) = far(64, plain(), Faults { bad_writes: 1, ..Faults::default() });
    let mut vector = words(&memory, 64);
    for page in 0..8 {
        vector.set(page * PER_PAGE, 100 + page as u64).unwrap();
    }
    let error = vector.get(8 * PER_PAGE).unwrap_err();
    assert!(matches!(error, FarError::WriteBack { source: StoreError::Unavailable(_), .. }), "{error}");
    let error = memory.flush().unwrap_err();
    assert!(matches!(error, FarError::WriteBack { pages: 8, .. }), "{error}");
    for page in 0..8 {
        assert_eq!(vector.get(page * PER_PAGE).unwrap(), 100 + page as u64);
    }
    hold.faults().bad_writes = 0;
    assert_eq!(vector.get(8 * PER_PAGE).unwrap(), 0);
    memory.flush().unwrap();
    assert_eq!(memory.stats().dirty, 0);
    for page in 0..8 {
        assert_eq!(hold.bytes()[page * PAGE], 100 + page as u8);
    }
}

#[test]
fn a_write_in_the_background_that_fails_is_told_once() {
    let options = Options { dirty_high: 2, dirty_low: 1, ..plain() };
    let (memory, hold) = far(64, options, Faults { bad_writes: 1, ..Faults::default() });
    let mut vector = words(&memory, 64);
    for page in 0..5 {
        vector.set(page * PER_PAGE, 1).unwrap();
        memory.turn();
    }
    assert!(matches!(memory.write_failure(), Some(FarError::WriteBack { .. })));
    assert!(memory.write_failure().is_none());
    assert_eq!(memory.stats().dirty, 5);
    hold.faults().bad_writes = 0;
    memory.flush().unwrap();
    assert_eq!((memory.stats().dirty, memory.stats().written), (0, 5));
}

#[test]
fn changed_pages_are_written_in_the_background_between_the_marks() {
    let options = Options { dirty_high: 16, dirty_low: 4, ahead_pages: 0, ..Options::with_local_pages(64) };
    let (memory, hold) = far(64, options, Faults::default());
    let mut vector = words(&memory, 64);
    for page in 0..16 {
        vector.set(page * PER_PAGE, 1).unwrap();
    }
    assert_eq!((hold.faults().writes.len(), memory.stats().dirty), (0, 16));
    for page in 16..64 {
        vector.set(page * PER_PAGE, 1).unwrap();
        memory.turn();
        assert!(memory.stats().dirty <= 18, "{:?}", memory.stats());
    }
    let writes = hold.faults().writes.clone();
    assert!(writes.len() >= 44, "{writes:?}");
    assert!(writes.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() * 2 > writes.len(), "{writes:?}");
}

#[test]
fn a_page_that_is_changed_while_it_is_written_is_written_again() {
    let options = Options { dirty_high: 2, dirty_low: 0, ..plain() };
    let (memory, hold) = far(64, options, Faults { delay: 1000, ..Faults::default() });
    let mut vector = words(&memory, 64);
    for round in 0..50 {
        for page in 0..4 {
            vector.set(page * PER_PAGE, 1000 * round + page as u64).unwrap();
        }
    }
    memory.flush().unwrap();
    assert_eq!(memory.stats().dirty, 0);
    for page in 0..4 {
        let at = page * PAGE;
        assert_eq!(u64::from_ne_bytes(hold.bytes()[at..at + 8].try_into().unwrap()), 49_000 + page as u64);
    }
}

#[test]
fn a_lost_page_is_an_error_and_the_others_are_there() {
    let faults = Faults { lost: [3].into(), ..Faults::default() };
    let (memory, hold) = far(64, Options::with_local_pages(32), faults);
    let mut vector = words(&memory, 64);
    for page in 0..64 {
        let value = vector.get(page * PER_PAGE);
        match page {
            3 => assert!(matches!(value, Err(FarError::Lost { page: 3, source: StoreError::Lost { .. } }))),
            _ => assert_eq!(value.unwrap(), 0),
        }
    }
    assert!(matches!(vector.set(3 * PER_PAGE, 1), Err(FarError::Lost { page: 3, .. })));
    assert!(matches!(vector.slice(0..5 * PER_PAGE), Err(FarError::Lost { page: 3, .. })));
    assert!(vector.iter().any(|element| element.is_err()));
    assert_eq!(memory.stats().pinned, 0);
    hold.faults().lost.clear();
    assert_eq!(vector.get(3 * PER_PAGE).unwrap(), 0);
}

#[test]
fn a_sequential_reader_is_fetched_ahead() {
    for backward in [false, true] {
        let (memory, hold) = far(256, Options::with_local_pages(64), Faults::default());
        let vector = words(&memory, 256);
        for page in 0..256 {
            let page = if backward { 255 - page } else { page };
            vector.get(page * PER_PAGE + 3).unwrap();
        }
        let stats = memory.stats();
        assert!(stats.missing <= 3 && stats.fetched_ahead >= 253, "{stats:?}");
        assert_eq!(stats.unused, 0, "{stats:?}");
        let faults = hold.faults();
        assert_eq!(faults.reads.len(), 256, "every page once");
        assert_eq!(faults.batches.iter().max(), Some(&8), "a whole window at a time: {:?}", faults.batches);
    }
}

#[test]
fn a_reader_in_steps_is_fetched_ahead_and_a_random_one_is_not() {
    let (memory, _) = far(256, Options::with_local_pages(64), Faults::default());
    let vector = words(&memory, 256);
    (0..64).for_each(|at| assert_eq!(vector.get(4 * at * PER_PAGE).unwrap(), 0));
    assert!(memory.stats().missing <= 4, "{:?}", memory.stats());
    let (memory, _) = far(4096, Options::with_local_pages(64), Faults::default());
    let vector = words(&memory, 4096);
    let mut random = SeededGenerator::new(1);
    for _ in 0..100 {
        assert_eq!(vector.get(random.next_u64() as usize % 4096 * PER_PAGE).unwrap(), 0);
    }
    assert!(memory.stats().fetched_ahead <= 20, "{:?}", memory.stats());
}

#[test]
fn nothing_that_guards_lend_is_changed_by_others() {
    let (memory, _) = far(64, plain(), Faults::default());
    let mut vector = words(&memory, 64);
    {
        let mut guard = vector.slice_mut(5..2 * PER_PAGE).unwrap();
        guard[0] = 7;
        guard[2 * PER_PAGE - 6] = 8;
        assert!(matches!(memory.flush(), Err(FarError::Borrowed { .. })));
        assert!(guard.as_mut_slice().is_none());
    }
    assert_eq!((vector.get(5).unwrap(), vector.get(2 * PER_PAGE - 1).unwrap(), vector.get(4).unwrap()), (7, 8, 0));
    memory.flush().unwrap();
    let lent = vector.slice(0..10).unwrap();
    memory.flush().unwrap();
    assert_eq!((lent[5], vector.get(5).unwrap()), (7, 7));
}

#[cfg(not(miri))]
#[test]
fn a_guard_that_is_forgotten_keeps_its_pages() {
    let (memory, _) = far(16, plain(), Faults::default());
    let mut vector = words(&memory, 16);
    std::mem::forget(vector.slice(0..1).unwrap());
    assert!(matches!(vector.set(1, 1), Err(FarError::Borrowed { page: 0 })));
    std::mem::forget(vector.slice_mut(PER_PAGE..PER_PAGE + 1).unwrap());
    assert!(matches!(vector.get(PER_PAGE), Err(FarError::Borrowed { page: 1 })));
    assert_eq!(vector.get(0).unwrap(), 0);
    drop(vector);
    assert!(matches!(FarVec::<u64, _>::zeroed(&memory, PER_PAGE), Err(FarError::Full { free: 0, .. })));
}

#[test]
fn elements_outside_the_vector_are_errors() {
    let (memory, _) = far(16, plain(), Faults::default());
    let mut vector = FarVec::<u64, _>::zeroed(&memory, 10).unwrap();
    assert!(vector.get(9).is_ok() && vector.set(9, 1).is_ok() && vector.slice(10..10).unwrap().is_empty());
    assert!(matches!(vector.get(10), Err(FarError::OutOfBounds { from: 10, to: 11, len: 10 })));
    assert!(matches!(vector.get(usize::MAX), Err(FarError::OutOfBounds { .. })));
    assert!(matches!(vector.set(10, 1), Err(FarError::OutOfBounds { .. })));
    assert!(matches!(vector.slice(0..11), Err(FarError::OutOfBounds { .. })));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = vector.slice_mut(3..2);
    assert!(matches!(reversed, Err(FarError::OutOfBounds { .. })));
}

#[test]
fn vectors_share_the_store_and_new_ones_are_zero() {
    let (memory, _) = far(16, plain(), Faults::default());
    let mut first = words(&memory, 10);
    (0..first.len()).for_each(|index| first.set(index, 9).unwrap());
    let small = FarVec::<u8, _>::zeroed(&memory, 6 * PAGE).unwrap();
    assert!(matches!(FarVec::<u8, _>::zeroed(&memory, 1), Err(FarError::Full { pages: 1, free: 0 })));
    drop(first);
    let second = words(&memory, 10);
    assert!(second.iter().all(|element| element.unwrap() == 0));
    assert!(small.iter().rev().all(|element| element.unwrap() == 0));
    assert!(matches!(FarVec::<u64, _>::at(&memory, 9, 1), Err(FarError::Full { .. })));
    drop((second, small));
    assert!(FarVec::<u8, _>::zeroed(&memory, 16 * PAGE).is_ok());
}

#[test]
fn a_vector_is_found_again_where_it_was_flushed() {
    let (memory, _) = far(16, plain(), Faults::default());
    let mut vector = words(&memory, 12);
    (0..vector.len()).for_each(|index| vector.set(index, !(index as u64)).unwrap());
    let pages = vector.pages();
    let memory = memory.into_store().err().expect("the vector has it too");
    drop(vector);
    let (memory_again, _) = far(1, plain(), Faults::default());
    drop(memory_again);
    let mut vector = FarVec::<u64, _>::at(&memory, pages.start, 12 * PER_PAGE).unwrap();
    (0..vector.len()).for_each(|index| vector.set(index, !(index as u64)).unwrap());
    memory.flush().unwrap();
    drop(vector);
    let store = memory.into_store().ok().unwrap().unwrap();
    let memory = FarMemory::new(store, plain(), Watch::start()).unwrap();
    let vector = FarVec::<u64, _>::at(&memory, pages.start, 12 * PER_PAGE).unwrap();
    assert!(vector.iter().enumerate().all(|(index, element)| element.unwrap() == !(index as u64)));
}

#[test]
fn options_that_cannot_be_had_are_refused() {
    let new = |options: Options, arena: usize| {
        FarMemory::new(FaultyStore::new(16, arena, 1, Faults::default()).0, options, Watch::start()).err()
    };
    let good = Options::with_local_pages(LOCAL_PAGES_MIN);
    let arena = LOCAL_PAGES_MIN * Arena::block_len(PAGE, PAGE);
    assert!(new(good.clone(), arena).is_none());
    assert!(matches!(new(good.clone(), arena - 1), Some(FarError::Buffers(_))));
    let wrong = [
        Options { local_pages: LOCAL_PAGES_MIN - 1, ..good.clone() },
        Options { pinned_pages: LOCAL_PAGES_MIN, ..good.clone() },
        Options { ahead_pages: LOCAL_PAGES_MIN / 2 + 1, ..good.clone() },
        Options { dirty_high: LOCAL_PAGES_MIN + 1, ..good.clone() },
        Options { dirty_high: 1, dirty_low: 2, ..good.clone() },
        Options { writes_max: 0, ..good },
    ];
    for options in wrong {
        assert!(matches!(new(options.clone(), 1 << 20), Some(FarError::Options(_))), "{options:?}");
    }
}

#[test]
fn a_store_that_takes_one_request_at_a_time_serves_all() {
    let faults = Faults { requests_max: 1, delay: 3, ..Faults::default() };
    let (memory, _) = far(64, Options::with_local_pages(16), faults);
    let mut vector = words(&memory, 64);
    (0..64).for_each(|page| vector.set(page * PER_PAGE, page as u64).unwrap());
    memory.flush().unwrap();
    assert!((0..64).all(|page| vector.get(page * PER_PAGE).unwrap() == page as u64));
}
