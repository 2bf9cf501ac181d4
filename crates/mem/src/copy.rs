//! Copies out of memory that another thread or process may be writing.
//!
//! A plain `memcpy` over such memory would be a data race. Small copies are relaxed loads of aligned words; large ones
//! are a single block of inline assembly, which the compiler cannot reason about. Under miri and loom, and on other
//! processors, everything is relaxed loads. The copied bytes may be torn, so the caller checks afterwards (see
//! [`crate::SharedBytes`]).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Length in bytes from which a copy is a block of assembly instead of word loads.
const BLOCK_COPY_FROM: usize = 128;

/// Copies `len` bytes from `source`, which others may write meanwhile, to `target`.
///
/// # Safety
///
/// `source` must be valid for reads of `len` bytes, and every concurrent writer must be outside this process, or use
/// atomic stores. `target` must be valid for writes of `len` bytes, owned by the caller, and not overlap `source`.
#[inline]
pub unsafe fn copy_from_shared(source: *const u8, target: *mut u8, len: usize) {
    if cfg!(all(target_arch = "x86_64", not(miri), not(loom))) && len >= BLOCK_COPY_FROM {
        // SAFETY: the caller's promises are those of `copy_block`.
        unsafe { copy_block(source, target, len) }
    } else {
        // SAFETY: the caller's promises are those of `copy_shared_words`.
        unsafe { copy_shared_words(source, target, len) }
    }
}

/// # Safety
///
/// As for [`copy_from_shared`].
#[inline]
unsafe fn copy_shared_words(source: *const u8, target: *mut u8, len: usize) {
    let mut at = 0;
    if source.addr().is_multiple_of(8) {
        // SAFETY: called with `at + 8 <= len`. The source is aligned for the atomic load; the target is written
        // unaligned.
        let copy_word = |at: usize| unsafe {
            let word = (*source.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
            target.add(at).cast::<u64>().write_unaligned(word);
        };
        // Half a line at a time takes half the instructions.
        while at + 32 <= len {
            (0..4).for_each(|word| copy_word(at + word * 8));
            at += 32;
        }
        while at + 8 <= len {
            copy_word(at);
            at += 8;
        }
    }
    while at < len {
        // SAFETY: `at < len`; a byte has no alignment.
        unsafe { target.add(at).write((*source.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed)) };
        at += 1;
    }
}

#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
#[inline]
unsafe fn copy_block(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller owns the target and may read the source. The direction flag is clear by the ABI. Assembly that
    // touches memory is a compiler barrier for it, so no assumption about the source's bytes crosses this point.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
#[inline]
unsafe fn copy_block(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's promises are those of `copy_shared_words`.
    unsafe { copy_shared_words(source, target, len) }
}

/// Copies `COUNT` words one by one.
///
/// The words were written one by one a moment ago, and a load that spans several of those stores waits until all of
/// them have left the store buffer, where earlier lines may be waiting for another core.
///
/// # Safety
///
/// As for `copy_nonoverlapping` of `COUNT` words; the source is aligned to 8.
#[inline(always)]
pub(crate) unsafe fn copy_words<const COUNT: usize>(source: *const u8, target: *mut u8) {
    let (source, target) = (source.cast::<u64>(), target.cast::<u64>());
    for at in 0..COUNT {
        // SAFETY: the caller's promises. Volatile, so that the compiler does not merge the loads into wider ones.
        unsafe { target.add(at).write_unaligned(source.add(at).read_volatile()) };
    }
}

/// Copies a few bytes without a function call.
///
/// Aligned sources of whole words, such as a header and the message behind it, are loaded a word at a time, for the
/// reason given at [`copy_words`].
///
/// # Safety
///
/// As for `copy_nonoverlapping`.
#[inline(always)]
pub(crate) unsafe fn copy_few(source: *const u8, target: *mut u8, len: usize) {
    if len.is_multiple_of(8) && len <= 64 && source.addr().is_multiple_of(8) {
        // SAFETY: the range has this many words, and the source is aligned.
        unsafe {
            match len / 8 {
                0 => {}
                1 => copy_words::<1>(source, target),
                2 => copy_words::<2>(source, target),
                3 => copy_words::<3>(source, target),
                4 => copy_words::<4>(source, target),
                5 => copy_words::<5>(source, target),
                6 => copy_words::<6>(source, target),
                7 => copy_words::<7>(source, target),
                _ => copy_words::<8>(source, target),
            }
        }
        return;
    }
    macro_rules! ends {
        ($type:ty) => {{
            let last = len - size_of::<$type>();
            // SAFETY: `len` is at least the size of the type, so both moves lie in the range; both are unaligned moves.
            unsafe {
                let head = source.cast::<$type>().read_unaligned();
                let tail = source.add(last).cast::<$type>().read_unaligned();
                target.cast::<$type>().write_unaligned(head);
                target.add(last).cast::<$type>().write_unaligned(tail);
            }
        }};
    }
    match len {
        0 => {}
        1..4 => {
            for at in 0..len {
                // SAFETY: `at < len`.
                unsafe { target.add(at).write(source.add(at).read()) };
            }
        }
        4..8 => ends!(u32),
        8..16 => ends!(u64),
        16..32 => ends!([u64; 2]),
        32..=64 => ends!([u64; 4]),
        // SAFETY: the caller's promises.
        _ => unsafe { std::ptr::copy_nonoverlapping(source, target, len) },
    }
}

/// Copies bytes, without a function call if there are 64 or fewer.
///
/// # Panics
///
/// When the lengths differ.
#[inline(always)]
pub fn copy_short(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "source and target must have the same length");
    // SAFETY: both ranges have this length, and a mutable slice overlaps no other.
    unsafe { copy_few(source.as_ptr(), target.as_mut_ptr(), source.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_copies_write_exactly_their_range() {
        let source: Vec<u8> = (1..=200).collect();
        for (offset, len) in (0..9).flat_map(|offset| (0..=130).map(move |len| (offset, len))) {
            let (mut target, source) = (vec![0; len + 2], &source[offset..offset + len]);
            copy_short(&mut target[1..=len], source);
            assert_eq!(target[1..=len], *source);
            assert_eq!((target[0], target[len + 1]), (0, 0));
        }
    }

    #[test]
    fn copies_every_length_and_alignment() {
        let mut source: Vec<u8> = (0..600u32).map(|i| (i * 7) as u8).collect();
        for len in [0, 1, 7, 8, 9, 63, 64, 127, 128, 129, 500] {
            for offset in 0..9 {
                let mut target = vec![0xAA; len + 2];
                // SAFETY: both ranges lie in their vectors, which do not overlap.
                unsafe { copy_from_shared(source[offset..].as_mut_ptr(), target[1..].as_mut_ptr(), len) };
                assert_eq!(target[1..=len], source[offset..offset + len]);
                assert_eq!((target[0], target[len + 1]), (0xAA, 0xAA));
            }
        }
    }
}
