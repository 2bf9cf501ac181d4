//! The safe interface compared with a plain vector, with few local pages and a store that is late, reorders and fails.

mod common;

use common::{Faults, FaultyStore, PAGE, Watch};
use proptest::prelude::*;
use sinew_far_memory::{FarError, FarMemory, FarVec, Options};
use sinew_mem::Arena;

const PAGES: usize = if cfg!(miri) { 8 } else { 24 };
const PER_PAGE: usize = PAGE / 8;
const LEN: usize = PAGES * PER_PAGE;

#[derive(Clone, Debug)]
enum Step {
    Get(usize),
    Set(usize, u64),
    Read(usize, usize),
    Write(usize, usize, u64),
    Run(usize, usize, bool),
    Flush,
    Turn,
}

fn steps() -> impl Strategy<Value = Step> {
    let index = || (0..PAGES, 0..4usize).prop_map(|(page, at)| page * PER_PAGE + [0, 1, 300, PER_PAGE - 1][at]);
    prop_oneof![
        4 => index().prop_map(Step::Get),
        6 => (index(), any::<u64>()).prop_map(|(index, value)| Step::Set(index, value)),
        2 => (index(), 0..3 * PER_PAGE).prop_map(|(index, len)| Step::Read(index, len)),
        2 => (index(), 0..3 * PER_PAGE, any::<u64>()).prop_map(|(index, len, value)| Step::Write(index, len, value)),
        2 => (0..PAGES, 1..PAGES, any::<bool>()).prop_map(|(page, count, down)| Step::Run(page, count, down)),
        1 => Just(Step::Flush),
        1 => Just(Step::Turn),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let one_in = || prop_oneof![Just(0u64), Just(2), Just(7)];
    (0..20u64, any::<bool>(), one_in(), one_in(), prop_oneof![Just(1usize), Just(3), Just(64)]).prop_map(
        |(delay, reorders, bad_reads, bad_writes, requests_max)| Faults {
            delay,
            reorders,
            bad_reads,
            bad_writes,
            requests_max,
            ..Faults::default()
        },
    )
}

fn options() -> impl Strategy<Value = Options> {
    (4..20usize, 0..9usize, 0..20usize, 0..20usize, 1..5usize).prop_map(|(local, ahead, high, low, writes)| {
        let dirty_high = high.min(local);
        Options {
            local_pages: local,
            pinned_pages: local - 1,
            ahead_pages: ahead.min(local / 2),
            dirty_high,
            dirty_low: low.min(dirty_high),
            writes_max: writes,
        }
    })
}

/// Whether a faulty store or few local pages can lead to this error. No other error may occur.
fn is_expected(error: &FarError, faults: &Faults) -> bool {
    match error {
        FarError::Fetch { .. } => faults.bad_reads > 0,
        FarError::WriteBack { .. } => faults.bad_writes > 0,
        FarError::TooManyPins { .. } => true,
        _ => false,
    }
}

fn check(steps: &[Step], faults: Faults, options: Options, seed: u64) {
    let arena = (options.local_pages + 4) * Arena::block_len(PAGE, PAGE);
    let (store, hold) = FaultyStore::new(PAGES, arena, seed, faults.clone());
    let memory = FarMemory::new(store, options.clone(), Watch::start()).unwrap();
    let mut vector = FarVec::<u64, _>::zeroed(&memory, LEN).unwrap();
    let mut shadow = vec![0u64; LEN];
    let due = |error: FarError| assert!(is_expected(&error, &faults), "{error}");
    for step in steps {
        match *step {
            Step::Get(index) => vector.get(index).map(|value| assert_eq!(value, shadow[index])).unwrap_or_else(due),
            Step::Set(index, value) => vector.set(index, value).map(|()| shadow[index] = value).unwrap_or_else(due),
            Step::Read(from, len) => {
                let range = from..LEN.min(from + len);
                match vector.slice(range.clone()) {
                    Ok(guard) => assert!(guard.iter().eq(&shadow[range])),
                    Err(error) => due(error),
                }
            }
            Step::Write(from, len, value) => {
                let range = from..LEN.min(from + len);
                match vector.slice_mut(range.clone()) {
                    Ok(mut guard) => {
                        guard.for_each_piece(|piece| piece.fill(value));
                        shadow[range].fill(value);
                    }
                    Err(error) => due(error),
                }
            }
            Step::Run(page, count, down) => {
                for at in 0..count {
                    let Some(page) = (if down { page.checked_sub(at) } else { Some(page + at) }) else { break };
                    if page < PAGES {
                        let index = page * PER_PAGE + 5;
                        vector.get(index).map(|value| assert_eq!(value, shadow[index])).unwrap_or_else(due);
                    }
                }
            }
            Step::Flush => memory.flush().unwrap_or_else(due),
            Step::Turn => drop(memory.turn()),
        }
        let stats = memory.stats();
        assert!(stats.local <= options.local_pages && stats.pinned == 0, "{stats:?}");
    }
    {
        let mut faults = hold.faults();
        (faults.bad_reads, faults.bad_writes) = (0, 0);
    }
    memory.flush().unwrap();
    let bytes = hold.bytes();
    let stored = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    assert!(stored.eq(shadow.iter().copied()), "the store has what was written");
    drop(bytes);
    assert!(vector.iter().map(|element| element.unwrap()).eq(shadow.iter().copied()));
    assert!(vector.iter().rev().map(|element| element.unwrap()).eq(shadow.iter().rev().copied()));
}

proptest! {
    #![proptest_config(if cfg!(miri) { ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2) } } else { ProptestConfig::with_cases(400) })]

    #[test]
    fn far_memory_is_memory(
        steps in proptest::collection::vec(steps(), 1..if cfg!(miri) { 12 } else { 200 }),
        faults in faults(),
        options in options(),
        seed in any::<u64>(),
    ) {
        check(&steps, faults, options, seed);
    }
}

/// Threads that share one vector, each with elements of its own in every page: the thread that owns the memory works
/// for them.
#[cfg(not(miri))]
#[test]
fn many_threads_that_share_a_vector_through_its_owner_find_what_they_stored() {
    use std::sync::mpsc;
    use std::thread;

    use sinew_fabric::{Generator, SeededGenerator};

    const THREADS: usize = 4;
    const ACCESSES: usize = 3000;
    type Work = Box<dyn FnOnce(&mut FarVec<u64, FaultyStore>) + Send>;
    let faults = Faults { delay: 3, reorders: true, ..Faults::default() };
    let (store, hold) = FaultyStore::new(PAGES, 40 * Arena::block_len(PAGE, PAGE), 5, faults);
    let memory = FarMemory::new(store, Options::with_local_pages(8), Watch::start()).unwrap();
    let mut vector = FarVec::<u64, _>::zeroed(&memory, LEN).unwrap();
    let (ask, asked) = mpsc::channel::<Work>();
    let shadows: Vec<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|mine| {
                let ask = ask.clone();
                scope.spawn(move || {
                    let mut random = SeededGenerator::new(mine as u64);
                    let mut shadow = vec![0u64; LEN];
                    let (reply, answer) = mpsc::channel();
                    for _ in 0..ACCESSES {
                        let word = random.next_u64();
                        let at = random.below((LEN / THREADS) as u64) as usize * THREADS + mine;
                        let reply = reply.clone();
                        if word >> 63 == 0 {
                            // Nobody waits for it: what this thread asks for later comes later.
                            shadow[at] = word;
                            ask.send(Box::new(move |vector| vector.set(at, word).unwrap())).unwrap();
                        } else {
                            ask.send(Box::new(move |vector| reply.send(vector.get(at).unwrap()).unwrap())).unwrap();
                            assert_eq!(answer.recv().unwrap(), shadow[at], "element {at} of thread {mine}");
                        }
                    }
                    shadow
                })
            })
            .collect();
        drop(ask);
        asked.into_iter().for_each(|work| work(&mut vector));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    memory.flush().unwrap();
    assert!(memory.stats().missing > 1000, "{:?}", memory.stats());
    for (at, word) in hold.bytes().as_chunks::<8>().0.iter().enumerate() {
        assert_eq!(u64::from_ne_bytes(*word), shadows[at % THREADS][at], "element {at} at the store");
    }
}
