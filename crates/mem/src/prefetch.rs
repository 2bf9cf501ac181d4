/// Asks the cache for the line that holds `value`, to read it soon.
///
/// A hint without effect on what the program computes.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is architecturally harmless, and this one comes from a reference.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}
