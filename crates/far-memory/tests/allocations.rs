//! Tests that far memory, and the handler of a mapping, allocate nothing from the heap once everything has been used
//! once.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{PAGE, Watch};
use sinew_far_memory::{FarMemory, FarVec, Options};
use sinew_remote_memory::RamStore;

/// The system's allocator, with a counter.
struct Counting;

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending may allocate after its locals are gone.
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
        // SAFETY: the caller's promise to us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise to us.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(not(miri))]
#[test]
fn a_warm_access_allocates_nothing() {
    const PAGES: usize = 512;
    const PER_PAGE: usize = PAGE / 8;
    let store = RamStore::new(PAGES * PAGE, 4 << 20).unwrap();
    let memory = FarMemory::new(store, Options::with_local_pages(64), Watch::start()).unwrap();
    let mut vector = FarVec::<u64, _>::zeroed(&memory, PAGES * PER_PAGE).unwrap();
    let mut round = |round: u64| {
        for page in 0..PAGES {
            vector.set(page * 101 % PAGES * PER_PAGE, round).unwrap();
            vector.get(page * PER_PAGE + 1).unwrap();
        }
        assert_eq!(vector.iter().map(|element| element.unwrap()).sum::<u64>(), round * PAGES as u64);
        assert_eq!(vector.slice(PER_PAGE / 2..9 * PER_PAGE).unwrap().iter().sum::<u64>(), 8 * round);
        vector.slice_mut(1..8 * PER_PAGE).unwrap()[0] = 0;
        memory.flush().unwrap();
    };
    // Lists grow to the most that a round needs.
    (1..8).for_each(&mut round);
    let before = ALLOCATIONS.get();
    (8..40).for_each(&mut round);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(memory.stats().missing > 1000 && memory.stats().written > 1000);
}

/// The program may be waiting for memory that only the handler's progress frees.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[test]
fn a_warm_handler_allocates_nothing_for_a_fault() {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc;

    use sinew_far_memory::{FarMapping, Handler, MapOptions};

    const PAGES: usize = 256;
    const PER_PAGE: usize = PAGE / 8;
    let mapping = match FarMapping::new(PAGES as u64, MapOptions { user_mode_only: true, ..MapOptions::default() }) {
        Ok(mapping) => mapping,
        Err(error) => return sinew_conformance::skipped(format!("no userfaultfd: {error}")),
    };
    let of_handler = mapping.clone();
    let (send, receive) = mpsc::channel();
    let (ended, result) = mpsc::channel();
    let handler = std::thread::spawn(move || {
        let store = RamStore::new(PAGES * PAGE, 16 << 20).unwrap();
        let options = Options::with_local_pages(32);
        let mut handler = Handler::new(&of_handler, store, options, Watch::start()).unwrap();
        send.send(handler.control()).unwrap();
        loop {
            let (before, stats) = (ALLOCATIONS.get(), handler.stats());
            handler.run(|error| panic!("{error}")).unwrap();
            let (allocations, after) = (ALLOCATIONS.get() - before, handler.stats());
            if ended.send((allocations, after.missing - stats.missing, after.written - stats.written)).is_err() {
                return;
            }
        }
    });
    let control = receive.recv().unwrap();
    // Lists grow whenever more happens at once than ever before, which depends on the scheduler; an allocation for each
    // fault would be in every run.
    let is_warm = (0..20).any(|_| {
        // Fails until the handler's next run has begun.
        while control.flush().is_err() {
            std::thread::yield_now();
        }
        for round in 0..16 {
            for page in 0..PAGES {
                mapping.words()[page * 101 % PAGES * PER_PAGE].store(round, Relaxed);
                mapping.words()[page * PER_PAGE + 1].load(Relaxed);
            }
            control.flush().unwrap();
        }
        control.stop();
        let (allocations, missing, written) = result.recv().unwrap();
        assert!(missing > 1000 && written > 1000, "{missing} {written}");
        allocations == 0
    });
    assert!(is_warm, "every run allocated");
    drop(result);
    while !handler.is_finished() {
        control.stop();
        std::thread::yield_now();
    }
    handler.join().unwrap();
}
