//! Far memory by plain loads and stores, compared with a shadow copy, on a store that is late, fails and loses pages.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;

use common::{Faults, FaultsHandle, FaultyStore, PAGE, Watch};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_far_memory::{Control, FarError, FarMapping, Handler, MapError, MapOptions, OnLoss, Options, Stats};

const PER_PAGE: usize = PAGE / 8;

/// Runs `with` beside a handler. Returns the handler's statistics, and the errors that it reported.
fn with_handler(
    pages: u64,
    options: Options,
    map: MapOptions,
    faults: Faults,
    with: impl FnOnce(&FarMapping, &Control, &FaultsHandle),
) -> Option<(Stats, Vec<FarError>)> {
    let mapping = match FarMapping::new(pages, map) {
        Ok(mapping) => mapping,
        Err(error @ (MapError::Forbidden | MapError::NotPermitted | MapError::Absent | MapError::Lacks(_))) => {
            sinew_conformance::skipped(format!("no userfaultfd: {error}"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let (sender, receiver) = mpsc::channel();
    let of_handler = mapping.clone();
    let handler = thread::spawn(move || {
        let (store, hold) = FaultyStore::new(pages as usize, 16 << 20, 7, faults);
        let mut handler = Handler::new(&of_handler, store, options, Watch::start()).unwrap();
        sender.send((handler.control(), hold)).unwrap();
        let mut errors = Vec::new();
        handler.run(|error| errors.push(error)).unwrap();
        (handler.stats(), errors)
    });
    let (control, hold) = receiver.recv().unwrap();
    with(&mapping, &control, &hold);
    control.stop();
    Some(handler.join().unwrap())
}

fn user_mode() -> MapOptions {
    MapOptions { user_mode_only: true, ..MapOptions::default() }
}

#[test]
fn what_was_stored_is_loaded_again_however_few_pages_are_local() {
    let options = Options::with_local_pages(8);
    let ran = with_handler(64, options, user_mode(), Faults::default(), |mapping, control, hold| {
        let words = mapping.words();
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        for (index, word) in words.iter().enumerate().step_by(5) {
            word.store(index as u64 + 1, Relaxed);
        }
        let is_right = |(index, word): (usize, u64)| word == if index % 5 == 0 { index as u64 + 1 } else { 0 };
        assert!(words.iter().map(|word| word.load(Relaxed)).enumerate().all(is_right));
        control.flush().unwrap();
        let bytes = hold.bytes();
        let stored = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        assert!(stored.enumerate().all(is_right));
    });
    let Some((stats, errors)) = ran else { return };
    assert!(stats.local <= 8 && stats.dirty == 0 && errors.is_empty(), "{stats:?} {errors:?}");
    assert!(stats.evicted >= 3 * (64 - 8), "{stats:?}");
}

/// Gives each thread words of its own in every page, so that threads share pages and not words.
fn many_threads(options: Options, faults: Faults, accesses: usize) {
    const PAGES: usize = 48;
    const THREADS: usize = 4;
    let is_bad = faults.bad_writes > 0 || faults.bad_reads > 0;
    let ran = with_handler(PAGES as u64, options, user_mode(), faults, |mapping, control, hold| {
        let shadows: Vec<Vec<u64>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|mine| {
                    scope.spawn(move || {
                        let words = mapping.words();
                        let mut random = SeededGenerator::new(mine as u64);
                        let mut shadow = vec![0u64; PAGES * PER_PAGE];
                        for count in 0..accesses {
                            let word = random.next_u64();
                            // Mostly the same few pages, at times consecutive ones.
                            let page = match count % 100 {
                                0..30 => word as usize % 4,
                                30..40 => count / 10 % PAGES,
                                _ => word as usize % PAGES,
                            };
                            let at = page * PER_PAGE + (word >> 32) as usize % (PER_PAGE / THREADS) * THREADS + mine;
                            if word >> 63 == 0 {
                                words[at].store(word, Relaxed);
                                shadow[at] = word;
                            } else {
                                assert_eq!(words[at].load(Relaxed), shadow[at], "word {at} of thread {mine}");
                            }
                        }
                        shadow
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        {
            let mut faults = hold.faults();
            (faults.bad_reads, faults.bad_writes) = (0, 0);
        }
        control.flush().unwrap();
        let bytes = hold.bytes();
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            assert_eq!(u64::from_ne_bytes(*word), shadows[at % THREADS][at], "word {at} at the store");
        }
    });
    let Some((stats, errors)) = ran else { return };
    assert_eq!(stats.dirty, 0, "{stats:?}");
    assert!(is_bad || errors.is_empty(), "{errors:?}");
}

#[test]
fn many_threads_find_what_they_stored() {
    many_threads(Options::with_local_pages(12), Faults::default(), 20_000);
    many_threads(Options::with_local_pages(4), Faults::default(), 3_000);
}

#[test]
fn many_threads_find_what_they_stored_at_a_store_that_is_late_and_reorders() {
    let faults = Faults { delay: 8, reorders: true, ..Faults::default() };
    many_threads(Options::with_local_pages(24), faults, 10_000);
}

#[test]
fn many_threads_find_what_they_stored_at_a_store_that_fails() {
    let faults = Faults { delay: 2, bad_writes: 5, bad_reads: 20, ..Faults::default() };
    many_threads(Options::with_local_pages(24), faults, 1_000);
}

#[test]
fn a_sequential_reader_is_fetched_ahead() {
    let options = Options::with_local_pages(64);
    let ran = with_handler(512, options, user_mode(), Faults::default(), |mapping, _, hold| {
        assert!(mapping.words().iter().step_by(PER_PAGE).all(|word| word.load(Relaxed) == 0));
        assert_eq!(hold.faults().reads.len(), 512, "every page once");
    });
    let Some((stats, _)) = ran else { return };
    assert!(stats.fetched_ahead > 400 && stats.missing < 80, "{stats:?}");
}

#[test]
fn a_write_that_fails_is_told_and_its_page_stays() {
    let faults = Faults { bad_writes: 1, ..Faults::default() };
    let ran = with_handler(64, Options::with_local_pages(16), user_mode(), faults, |mapping, control, hold| {
        let words = mapping.words();
        (0..10).for_each(|page| words[page * PER_PAGE].store(page as u64 + 1, Relaxed));
        let error = control.flush().unwrap_err();
        assert!(matches!(error, FarError::WriteBack { .. }), "{error}");
        hold.faults().bad_writes = 0;
        (10..64).for_each(|page| words[page * PER_PAGE].store(page as u64 + 1, Relaxed));
        control.flush().unwrap();
        assert!((0..64).all(|page| hold.bytes()[page * PAGE] == page as u8 + 1));
        assert!((0..64).all(|page| words[page * PER_PAGE].load(Relaxed) == page as u64 + 1));
    });
    let Some((stats, _)) = ran else { return };
    assert!(stats.writes_failed > 0 && stats.dirty == 0, "{stats:?}");
}

#[test]
fn who_touches_a_lost_page_waits_until_it_is_back_if_so_decided() {
    let map = MapOptions { on_loss: OnLoss::Wait, ..user_mode() };
    let faults = Faults { lost: [3].into(), ..Faults::default() };
    let ran = with_handler(16, Options::with_local_pages(8), map, faults, |mapping, control, hold| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| mapping.words()[3 * PER_PAGE].load(Relaxed));
            for page in (0..16).filter(|page| *page != 3) {
                assert_eq!(mapping.words()[page * PER_PAGE].load(Relaxed), 0);
            }
            while hold.faults().reads.iter().filter(|page| **page == 3).count() < 2 {
                thread::yield_now();
            }
            assert!(!waits.is_finished());
            hold.bytes()[3 * PAGE] = 42;
            hold.faults().lost.clear();
            control.retry_lost();
            assert_eq!(waits.join().unwrap(), 42);
        });
    });
    let Some((_, errors)) = ran else { return };
    assert!(errors.iter().any(|error| matches!(error, FarError::Lost { page: 3, .. })), "{errors:?}");
}

/// The part of [`who_touches_a_lost_page_is_killed_and_gets_no_bytes`] that is killed, in a process of its own.
#[test]
fn child() {
    if std::env::var_os("TOUCH_A_LOST_PAGE").is_none() {
        return;
    }
    let faults = Faults { lost: [3].into(), ..Faults::default() };
    with_handler(16, Options::with_local_pages(8), user_mode(), faults, |mapping, _, _| {
        let word = mapping.words()[3 * PER_PAGE].load(Relaxed);
        println!("got {word:#x}");
    });
}

#[test]
fn who_touches_a_lost_page_is_killed_and_gets_no_bytes() {
    use std::os::unix::process::ExitStatusExt;
    if FarMapping::new(1, user_mode()).is_err() {
        sinew_conformance::skipped("no userfaultfd");
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env("TOUCH_A_LOST_PAGE", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("got"), "{text}");
    assert_eq!(output.status.signal(), Some(7), "SIGBUS: {} {text}", output.status);
}

#[test]
fn mappings_and_handlers_that_cannot_be_had_are_refused() {
    let new = |pages| FarMapping::new(pages, user_mode());
    assert!(matches!(new(0), Err(MapError::Pages(0))));
    assert!(matches!(new(u64::MAX), Err(MapError::Pages(_))));
    assert!(matches!(new(1 << 51), Err(MapError::Pages(_) | MapError::System(_))));
    let Ok(mapping) = new(4) else { return };
    let handler = |pages, arena| {
        let (store, _) = FaultyStore::new(pages, arena, 1, Faults::default());
        Handler::new(&mapping, store, Options::with_local_pages(4), Watch::start())
    };
    assert!(matches!(handler(3, 16 << 20), Err(FarError::Options(_))));
    let first = handler(4, 16 << 20).unwrap();
    assert!(matches!(handler(4, 16 << 20), Err(FarError::Options(_))));
    drop(first);
    let mapping = new(4).unwrap();
    let (store, _) = FaultyStore::new(4, PAGE, 1, Faults::default());
    let small = Handler::new(&mapping, store, Options::with_local_pages(4), Watch::start());
    assert!(matches!(small, Err(FarError::Buffers(_))));
}

#[test]
fn a_flush_of_a_handler_that_has_stopped_says_so_and_a_handler_may_run_again() {
    let Ok(mapping) = FarMapping::new(16, user_mode()) else { return };
    let (store, _) = FaultyStore::new(16, 16 << 20, 1, Faults::default());
    let mut handler = Handler::new(&mapping, store, Options::with_local_pages(8), Watch::start()).unwrap();
    let control = handler.control();
    control.stop();
    handler.run(|error| panic!("{error}")).unwrap();
    assert!(matches!(control.flush(), Err(FarError::Stopped)));
    let user = thread::spawn(move || {
        mapping.words()[0].store(1, Relaxed);
        let value = mapping.words()[0].load(Relaxed);
        control.stop();
        value
    });
    handler.run(|error| panic!("{error}")).unwrap();
    assert_eq!(user.join().unwrap(), 1);
}
