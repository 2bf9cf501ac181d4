//! Hints to the processor and the system. They change speed, never results.

use std::mem::MaybeUninit;

/// Prefetches the cache lines that hold `value`, at most the first 4 KB of them.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..size_of_val(value).min(4096)).step_by(64) {
        // SAFETY: a prefetch of any address is architecturally harmless, and this one comes from a reference.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>().wrapping_add(line));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

/// Returns an empty vector with room for `capacity` elements, on huge pages if it is large and the system has them to
/// give.
pub fn room_for_random_access<T>(capacity: usize) -> Vec<T> {
    let mut vec = Vec::with_capacity(capacity);
    prefer_huge_pages(vec.spare_capacity_mut());
    vec
}

/// Returns a vector of `len` zeros with room for `capacity` elements, as [`room_for_random_access`] does. Pages that
/// are never written to are not backed, so a large empty table costs neither memory nor time.
pub fn zeros_for_random_access(len: usize, capacity: usize) -> Vec<u32> {
    // Memory fresh from the system is zero.
    let mut vec = vec![0; capacity.max(len)];
    vec.truncate(len);
    let (start, capacity) = (vec.as_mut_ptr(), vec.capacity());
    // SAFETY: the slice is the vector's whole allocation, as memory that need not be initialised; nobody else has it
    // until this borrow ends.
    prefer_huge_pages(unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u32>>(), capacity) });
    vec
}

/// Moves `vec` to memory with room for twice as many elements, on huge pages if it is large and the system has them to
/// give. Random access to a table then misses in the caches only, and not in the TLB too.
pub fn grow_for_random_access<T>(vec: &mut Vec<T>) {
    // The advice must precede the first write: pages that exist already stay small.
    let mut larger = room_for_random_access((vec.len() * 2).max(16));
    larger.append(vec);
    *vec = larger;
}

#[cfg(not(miri))]
fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    const HUGE_PAGE: usize = 2 << 20;
    let range = memory.as_mut_ptr_range();
    let start = range.start.addr().next_multiple_of(HUGE_PAGE);
    let len = (range.end.addr() & !(HUGE_PAGE - 1)).saturating_sub(start);
    if len > 0 {
        let first = range.start.cast::<u8>().wrapping_add(start - range.start.addr());
        // SAFETY: the advice names memory of the slice only and changes none of its contents.
        let _ = unsafe { rustix::mm::madvise(first.cast(), len, rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(miri)]
fn prefer_huge_pages<T>(_memory: &mut [MaybeUninit<T>]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zeros_with_room_for_more() {
        let room = if cfg!(miri) { 2000 } else { 2 << 20 };
        let mut vec = zeros_for_random_access(1000, room);
        let start = vec.as_ptr();
        assert!(vec.len() == 1000 && vec.iter().all(|number| *number == 0));
        vec.resize(room, 7);
        assert_eq!((vec.as_ptr(), vec[999], vec[1000]), (start, 0, 7));
        assert_eq!(zeros_for_random_access(0, 0), []);
    }

    #[test]
    fn a_grown_vector_keeps_its_elements_and_has_room_for_as_many_more() {
        let mut vec: Vec<u64> = Vec::new();
        for number in 0..if cfg!(miri) { 100 } else { 1 << 20 } {
            if vec.len() == vec.capacity() {
                grow_for_random_access(&mut vec);
            }
            vec.push(number);
        }
        assert!(vec.iter().enumerate().all(|(index, &number)| number == index as u64));
        assert!(vec.capacity() <= 2 * vec.len());
    }
}
