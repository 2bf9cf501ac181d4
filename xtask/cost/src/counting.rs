//! The system's allocator, with a count of allocations. Tests that count allocations include this file, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocations of this thread alone: some devices have threads of their own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends may allocate after its locals are gone.
    let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: our caller keeps the contract of `alloc`, which is also that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: our caller keeps the contract of `dealloc`; `block` came from `System`, as all our blocks do.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: our caller keeps the contract of `realloc`; `block` came from `System`, as all our blocks do.
        unsafe { System.realloc(block, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
