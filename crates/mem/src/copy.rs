//! Copies out of memory that another thread or process may be writing.
//!
//! A plain `memcpy` over such memory would be a data race. Small copies are relaxed loads of aligned words; large ones are
//! a single block of inline assembly, which the compiler cannot reason about; under miri and loom, and on other
//! processors, everything is relaxed loads. What arrives may be torn: the caller checks afterwards (see
//! [`crate::SharedBytes`]).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// From this many bytes on a copy is a block of assembly instead of word loads.
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
        // SAFETY: the caller's promises are those of `copy_words`.
        unsafe { copy_words(source, target, len) }
    }
}

/// # Safety
/// As for [`copy_from_shared`].
#[inline]
unsafe fn copy_words(source: *const u8, target: *mut u8, len: usize) {
    let mut at = 0;
    if source.addr().is_multiple_of(8) {
        while at + 8 <= len {
            // SAFETY: `at + 8 <= len`, the source is aligned for the atomic load; the target is written unaligned.
            unsafe {
                let word = (*source.add(at).cast::<AtomicU64>()).load(Ordering::Relaxed);
                target.add(at).cast::<u64>().write_unaligned(word);
            }
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
    // SAFETY: the same promises.
    unsafe { copy_words(source, target, len) }
}

/// Copies bytes, of which there are usually few, without a call for those.
///
/// # Panics
///
/// When the lengths differ.
#[inline(always)]
pub fn copy_short(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "copies are of one length");
    // The first and the last bytes, which overlap: the same moves for each length of a range.
    macro_rules! ends {
        ($len:literal) => {
            if let (Some(first), Some(last)) = (source.first_chunk::<$len>(), source.last_chunk::<$len>()) {
                let (first, last) = (*first, *last);
                if let Some(target) = target.first_chunk_mut() {
                    *target = first;
                }
                if let Some(target) = target.last_chunk_mut() {
                    *target = last;
                }
            }
        };
    }
    match source.len() {
        8..16 => ends!(8),
        16..32 => ends!(16),
        32..=64 => ends!(32),
        _ => target.copy_from_slice(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_copies_are_of_every_length() {
        let source: Vec<u8> = (1..=130).collect();
        for len in 0..=130 {
            let mut target = vec![0; len];
            copy_short(&mut target, &source[..len]);
            assert_eq!(target, source[..len]);
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
