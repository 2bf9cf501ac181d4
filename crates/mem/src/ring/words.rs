//! Words shared by two threads or processes: the memory under a ring or a board.

#[cfg(not(loom))]
mod mapped {
    use std::ptr::NonNull;

    use crate::atomic::plain::Arc;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::copy::copy_from_shared;
    #[cfg(not(miri))]
    use crate::copy::{copy_few, copy_words};
    use crate::region::Region;

    /// A range of a region, seen as atomic words. Clones see the same words and keep the region mapped.
    #[derive(Clone, Debug)]
    pub struct Words {
        start: NonNull<u8>,
        /// Length in words.
        len: usize,
        _region: Arc<Region>,
    }

    // SAFETY: the words are atomics, and the count keeps the region behind them alive.
    unsafe impl Send for Words {}
    // SAFETY: as above; plain writes go through `put`, whose callers answer for exclusion.
    unsafe impl Sync for Words {}

    /// Calls `each` with every line, four at a time, which takes a third of the instructions.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn for_lines(mut line: *const u8, mut lines: usize, each: impl Fn(*const u8)) {
        while lines >= 4 {
            for ahead in 0..4 {
                each(line.wrapping_add(ahead * 64));
            }
            line = line.wrapping_add(4 * 64);
            lines -= 4;
        }
        while lines > 0 {
            each(line);
            line = line.wrapping_add(64);
            lines -= 1;
        }
    }

    impl Words {
        /// The `bytes` bytes of `region` from `offset` on; `None` when they do not lie in the region or are not aligned
        /// to a cache line.
        pub fn of_region(region: &Arc<Region>, offset: usize, bytes: usize) -> Option<Self> {
            let end = offset.checked_add(bytes)?;
            if end > region.len() || !offset.is_multiple_of(64) || !bytes.is_multiple_of(64) {
                return None;
            }
            // SAFETY: `offset <= end <= len`, so the address lies in the region or at its end.
            let start = unsafe { region.start().add(offset) };
            Some(Self { start, len: bytes / 8, _region: Arc::clone(region) })
        }

        /// Number of words.
        #[inline]
        pub fn count(&self) -> usize {
            self.len
        }

        /// Word `index`.
        ///
        /// # Safety
        ///
        /// `index < count()`, and nobody in this process now holds a slice over the word or writes it with
        /// [`Self::put`].
        #[inline(always)]
        pub unsafe fn word(&self, index: usize) -> &AtomicU64 {
            debug_assert!(index < self.len);
            // SAFETY: the caller promises the index; the region is mapped while `self` lives and its start is aligned.
            unsafe { &*self.start.as_ptr().add(index * 8).cast::<AtomicU64>() }
        }

        /// The word at byte offset `at`, a multiple of 8.
        ///
        /// # Safety
        ///
        /// As for [`Self::word`].
        #[inline(always)]
        pub unsafe fn word_at(&self, at: usize) -> &AtomicU64 {
            debug_assert!(at.is_multiple_of(8) && at < self.len * 8);
            // SAFETY: as in `word`.
            unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU64>() }
        }

        /// Copies `bytes` to byte offset `at`.
        ///
        /// # Safety
        ///
        /// The range lies in the words, and nobody else in this process accesses it until a release store has published
        /// it.
        #[inline(always)]
        pub unsafe fn put(&self, at: usize, bytes: &[u8]) {
            debug_assert!(at + bytes.len() <= self.len * 8);
            #[cfg(not(miri))]
            // SAFETY: the caller promises the range and its exclusive use; a slice of safe code lies elsewhere.
            unsafe {
                copy_few(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
            }
            // Miri's model of weak memory wants either every write of a word to be atomic, or none.
            #[cfg(miri)]
            for (at, byte) in (at..).zip(bytes) {
                // SAFETY: the byte lies in a word of ours, which nobody else accesses now.
                let word = unsafe { self.word(at / 8) };
                let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
                value[at % 8] = *byte;
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
        }

        /// Copies `head` and then `data` to byte offset `at`, a multiple of 8, if they are a header and a message that
        /// fill a line, in one piece or two, and are aligned to words. Otherwise it does nothing and returns false.
        ///
        /// # Safety
        ///
        /// As for [`Self::put`].
        #[inline(always)]
        pub unsafe fn put_full_line(&self, at: usize, head: &[u8], data: &[u8]) -> bool {
            #[cfg(not(miri))]
            {
                let (from, then) = (head.as_ptr(), data.as_ptr());
                // SAFETY: the caller promises the range.
                let target = unsafe { self.start.as_ptr().add(at) };
                if head.len() == 56 && data.is_empty() && from.addr().is_multiple_of(8) {
                    // SAFETY: seven words; a slice of safe code lies elsewhere.
                    unsafe { copy_words::<7>(from, target) };
                    return true;
                }
                if head.len() == 24 && data.len() == 32 && (from.addr() | then.addr()).is_multiple_of(8) {
                    // SAFETY: three words and four, as above.
                    unsafe {
                        copy_words::<3>(from, target);
                        copy_words::<4>(then, target.add(24));
                    }
                    return true;
                }
            }
            let _ = (at, head, data);
            false
        }

        /// Copies two words and then `data` to byte offset `at`, a multiple of 8, if `data` is at most five aligned
        /// words. Otherwise it does nothing and returns false.
        ///
        /// # Safety
        ///
        /// As for [`Self::put`], for the 56 bytes from `at`.
        #[inline(always)]
        pub unsafe fn put_words(&self, at: usize, head: [u64; 2], data: &[u8]) -> bool {
            #[cfg(not(miri))]
            {
                let from = data.as_ptr();
                // SAFETY: the caller promises the range.
                let target = unsafe { self.start.as_ptr().add(at) };
                if (data.len() | from.addr()).is_multiple_of(8) && data.len() <= 40 {
                    // SAFETY: the words lie in the range, and the data has as many as are copied; a slice of safe code
                    // lies elsewhere.
                    unsafe {
                        target.cast::<[u64; 2]>().write(head.map(u64::to_le));
                        let target = target.add(16);
                        match data.len() / 8 {
                            0 => {}
                            1 => copy_words::<1>(from, target),
                            2 => copy_words::<2>(from, target),
                            3 => copy_words::<3>(from, target),
                            4 => copy_words::<4>(from, target),
                            _ => copy_words::<5>(from, target),
                        }
                    }
                    return true;
                }
            }
            let _ = (at, head, data);
            false
        }

        /// Copies `len` bytes from byte offset `at` to `target`.
        ///
        /// # Safety
        ///
        /// The source range lies in the words; `target` is valid for writes of `len` bytes and belongs to the caller.
        #[inline(always)]
        pub unsafe fn get(&self, at: usize, target: *mut u8, len: usize) {
            debug_assert!(at + len <= self.len * 8);
            // SAFETY: the caller's promises.
            unsafe { copy_from_shared(self.start.as_ptr().add(at), target, len) }
        }

        /// Copies `COUNT` words from byte offset `at`, a multiple of 8, to `target`.
        ///
        /// # Safety
        ///
        /// As for [`Self::get`].
        #[inline(always)]
        pub unsafe fn get_words<const COUNT: usize>(&self, at: usize, target: *mut u8) {
            for index in 0..COUNT {
                // SAFETY: the caller promises both ranges; the target is written unaligned.
                unsafe {
                    let word = self.word_at(at + index * 8).load(Ordering::Relaxed);
                    target.add(index * 8).cast::<u64>().write_unaligned(word);
                }
            }
        }

        /// Address of byte `at`.
        #[inline(always)]
        pub fn address(&self, at: usize) -> *const u8 {
            self.start.as_ptr().wrapping_add(at)
        }

        /// Prefetches `lines` lines from byte `at` on, for writing.
        #[inline(always)]
        pub fn prefetch_write(&self, at: usize, lines: usize) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            for_lines(self.address(at), lines, |line| {
                // SAFETY: a prefetch changes no state of the program; where PREFETCHW is unknown it is a no-op by
                // definition.
                unsafe {
                    core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
                }
            });
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = (at, lines);
        }

        /// Prefetches `lines` lines from byte `at` on, for reading.
        #[inline(always)]
        pub fn prefetch_read(&self, at: usize, lines: usize) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            for_lines(self.address(at), lines, |line| {
                // SAFETY: a prefetch of any address is architecturally harmless.
                unsafe {
                    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T0>(line.cast::<i8>());
                }
            });
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = (at, lines);
        }
    }
}

#[cfg(not(loom))]
pub use mapped::Words;

#[cfg(loom)]
pub use model::Words;

/// Words under loom: each is one of loom's own, and bytes are moved through relaxed words, so that loom sees every
/// access.
#[cfg(loom)]
mod model {
    use crate::atomic::{Arc, AtomicU64, Ordering};

    #[derive(Clone, Debug)]
    pub struct Words(Arc<Vec<AtomicU64>>);

    impl Words {
        pub fn new(len: usize) -> Self {
            Self(Arc::new((0..len).map(|_| AtomicU64::new(0)).collect()))
        }

        pub fn count(&self) -> usize {
            self.0.len()
        }

        pub unsafe fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }

        pub unsafe fn word_at(&self, at: usize) -> &AtomicU64 {
            &self.0[at / 8]
        }

        pub unsafe fn put(&self, at: usize, bytes: &[u8]) {
            assert!(at.is_multiple_of(8) && bytes.len().is_multiple_of(8), "the model moves whole words");
            for (index, word) in bytes.chunks(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                self.0[at / 8 + index].store(word, Ordering::Relaxed);
            }
        }

        pub unsafe fn get(&self, at: usize, target: *mut u8, len: usize) {
            assert!(at.is_multiple_of(8) && len.is_multiple_of(8), "the model moves whole words");
            for index in 0..len / 8 {
                let word = self.0[at / 8 + index].load(Ordering::Relaxed);
                // SAFETY: the caller's promise about the target.
                unsafe { target.add(index * 8).cast::<u64>().write_unaligned(word) };
            }
        }

        pub unsafe fn put_full_line(&self, _at: usize, _head: &[u8], _data: &[u8]) -> bool {
            false
        }

        pub unsafe fn put_words(&self, _at: usize, _head: [u64; 2], _data: &[u8]) -> bool {
            false
        }

        pub unsafe fn get_words<const COUNT: usize>(&self, at: usize, target: *mut u8) {
            // SAFETY: as for `get`.
            unsafe { self.get(at, target, COUNT * 8) }
        }

        pub fn prefetch_write(&self, _at: usize, _lines: usize) {}

        pub fn prefetch_read(&self, _at: usize, _lines: usize) {}
    }
}
