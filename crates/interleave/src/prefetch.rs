//! Prefetching: asking the caches for memory that will be read soon.

/// Length of a cache line, in bytes.
const LINE: usize = 64;

/// Asks the cache for the lines that hold `value`, which will be read soon. It affects only speed, and does nothing on
/// processors other than x86-64 and aarch64.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        prefetch_line(first.wrapping_add(offset));
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn prefetch_line(address: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: prefetching any address has no effect that the program can see, and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn prefetch_line(address: *const u8) {
    // SAFETY: prefetching any address has no effect that the program can see, and never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{address}]", address = in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
#[inline(always)]
fn prefetch_line(_address: *const u8) {}
