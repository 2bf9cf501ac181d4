//! Tables in one process's memory that are written while other threads may read.

use std::ptr::NonNull;

use crate::atomic::plain::{Arc, AtomicU64, Ordering, fence};
use crate::region::Region;

/// Length in bytes from which memory is asked for in huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed words of 8 bytes, for tables that are accessed at random: on huge pages if there are any, and prefetched by
/// hand.
///
/// Any number of threads may read while one writes. Writers of what one version protects take turns. Every access is
/// atomic and none orders another, so what readers see may be torn, though each word is whole.
/// [`TableWords::begin_write`] and its neighbours say how a reader finds out. Clones are handles on the same memory. An
/// index past the end panics, as a slice's does.
#[derive(Clone)]
pub struct TableWords {
    start: NonNull<AtomicU64>,
    len: usize,
    // Keeps the memory mapped.
    region: Arc<Region>,
}

// SAFETY: a range of memory that the region keeps; every access is atomic.
unsafe impl Send for TableWords {}
// SAFETY: as above.
unsafe impl Sync for TableWords {}

impl std::fmt::Debug for TableWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWords").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Evaluates an expression with a length that is a constant to the compiler if it is that of most keys and values,
/// whose copies then need no loop. (A closure would not be inlined into each arm.)
macro_rules! with_usual_len {
    ($len:expr, |$known:ident| $do:expr) => {
        match $len {
            $known @ 8 => $do,
            $known @ 16 => $do,
            $known @ 32 => $do,
            $known => $do,
        }
    };
}

/// A version, taken before reading what it protects. See [`TableWords::begin_write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl TableWords {
    /// `len` words, all zero.
    ///
    /// # Errors
    ///
    /// The system's error when it has no memory to give.
    pub fn zeroed(len: usize) -> std::io::Result<Self> {
        let bytes = len.max(1).checked_mul(8).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let region = Region::private(bytes)?;
        if bytes >= HUGE_PAGE {
            region.prefer_huge_pages();
        }
        Ok(Self { start: region.start().cast(), len, region: Arc::new(region) })
    }

    /// Gives the memory from the word at `index` on back to the system, whatever it holds: those words must be written
    /// again before they mean anything. Nobody may write there meanwhile, since versions begin anew.
    pub fn give_back(&self, index: usize) {
        self.region.give_back(index.saturating_mul(8));
    }

    /// Number of words.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no words.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the region has `len` words, aligned to 64 bytes, and lives as long as `self`; all accesses are
        // atomic.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The word at `index`.
    #[inline(always)]
    pub fn load(&self, index: usize) -> u64 {
        self.all()[index].load(Ordering::Relaxed)
    }

    /// Stores the word at `index`.
    #[inline(always)]
    pub fn store(&self, index: usize, value: u64) {
        self.all()[index].store(value, Ordering::Relaxed);
    }

    /// Stores the `N` words from `index` on.
    #[inline(always)]
    pub fn store_array<const N: usize>(&self, index: usize, values: [u64; N]) {
        for (word, value) in self.all()[index..index + N].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The `N` words from `index` on.
    #[inline(always)]
    pub fn load_array<const N: usize>(&self, index: usize) -> [u64; N] {
        let words = &self.all()[index..index + N];
        std::array::from_fn(|at| words[at].load(Ordering::Relaxed))
    }

    /// The `N` words from `index` on, or `None` when they are not within the memory.
    #[inline(always)]
    pub fn get_array<const N: usize>(&self, index: usize) -> Option<[u64; N]> {
        let words = self.all().get(index..index.checked_add(N)?)?;
        Some(std::array::from_fn(|at| words[at].load(Ordering::Relaxed)))
    }

    /// The `N` words from `index` on, each loaded when it is taken, so that a fold need not keep them all.
    #[inline(always)]
    pub fn iter_array<const N: usize>(&self, index: usize) -> impl DoubleEndedIterator<Item = u64> {
        self.all()[index..index + N].iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// Copies the bytes from the word at `index` on to `target`.
    #[inline(always)]
    pub fn read(&self, index: usize, target: &mut [u8]) {
        with_usual_len!(target.len(), |len| self.read_any(index, &mut target[..len]));
    }

    #[inline(always)]
    fn read_any(&self, index: usize, target: &mut [u8]) {
        let words = &self.all()[index..index + target.len().div_ceil(8)];
        let (chunks, last) = target.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !last.is_empty() {
            let word = words[words.len() - 1].load(Ordering::Relaxed).to_ne_bytes();
            last.copy_from_slice(&word[..last.len()]);
        }
    }

    /// Copies `source` to the bytes from the word at `index` on. The rest of the last word becomes zero.
    #[inline(always)]
    pub fn write(&self, index: usize, source: &[u8]) {
        with_usual_len!(source.len(), |len| self.write_any(index, &source[..len]));
    }

    #[inline(always)]
    fn write_any(&self, index: usize, source: &[u8]) {
        let words = &self.all()[index..index + source.len().div_ceil(8)];
        let (chunks, last) = source.as_chunks::<8>();
        for (chunk, word) in chunks.iter().zip(words) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !last.is_empty() {
            words[words.len() - 1].store(padded(last), Ordering::Relaxed);
        }
    }

    /// Whether the bytes from the word at `index` on are `bytes`, as [`TableWords::write`] wrote them. Returns false if
    /// they are not within the memory.
    #[inline(always)]
    pub fn bytes_equal(&self, index: usize, bytes: &[u8]) -> bool {
        with_usual_len!(bytes.len(), |len| self.bytes_equal_any(index, &bytes[..len]))
    }

    #[inline(always)]
    fn bytes_equal_any(&self, index: usize, bytes: &[u8]) -> bool {
        let end = index.checked_add(bytes.len().div_ceil(8));
        let Some(words) = end.and_then(|end| self.all().get(index..end)) else { return false };
        let (chunks, last) = bytes.as_chunks::<8>();
        let mut differing = 0;
        for (chunk, word) in chunks.iter().zip(words) {
            differing |= u64::from_ne_bytes(*chunk) ^ word.load(Ordering::Relaxed);
        }
        if !last.is_empty() {
            differing |= padded(last) ^ words[words.len() - 1].load(Ordering::Relaxed);
        }
        differing == 0
    }

    /// Prefetches the line that holds the word at `index`; does nothing when there is no such word.
    #[inline(always)]
    pub fn prefetch_line(&self, index: usize) {
        if let Some(word) = self.all().get(index) {
            crate::prefetch_read(word);
        }
    }

    /// Begins a change that readers must not see half of: the version at `index`, a word of its own, is odd until
    /// [`TableWords::end_write`]. Only the writer calls it; it then makes its stores, in these words or others, and
    /// ends the change.
    #[inline(always)]
    pub fn begin_write(&self, index: usize) {
        self.store(index, self.load(index) | 1);
        // Partner: the fence of `is_unchanged`. A reader that saw a store of the change sees the odd version.
        fence(Ordering::Release);
    }

    /// Ends a change.
    #[inline(always)]
    pub fn end_write(&self, index: usize) {
        // Partner: the load of `stamp`. A reader that sees the new version sees the whole change.
        self.all()[index].store((self.load(index) | 1).wrapping_add(1), Ordering::Release);
    }

    /// The version at `index`, to be compared after reading what it protects; `None` while a change is under way.
    #[inline(always)]
    pub fn stamp(&self, index: usize) -> Option<Stamp> {
        let version = self.all()[index].load(Ordering::Acquire);
        (version & 1 == 0).then_some(Stamp(version))
    }

    /// Whether nothing that the version at `index` protects has changed since `stamp` was taken. If so, everything read
    /// since then is as it was at one moment.
    #[inline(always)]
    pub fn is_unchanged(&self, index: usize, stamp: Stamp) -> bool {
        // Partner: the fence of `begin_write`.
        fence(Ordering::Acquire);
        self.load(index) == stamp.0
    }

    /// Stores `value` at `index` and makes it visible before the stores that follow: it announces that words elsewhere
    /// are about to change.
    #[inline(always)]
    pub fn announce(&self, index: usize, value: u64) {
        self.store(index, value);
        // Partner: the fence of `load_acquired`.
        fence(Ordering::Release);
    }

    /// The word at `index`, no older than anything read before: it includes what was announced before any change that
    /// those reads saw.
    #[inline(always)]
    pub fn load_acquired(&self, index: usize) -> u64 {
        // Partner: the fence of `announce`.
        fence(Ordering::Acquire);
        self.load(index)
    }
}

/// A word of fewer than 8 bytes, padded with zeros.
#[inline(always)]
fn padded(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_out_as_they_went_in() {
        let words = TableWords::zeroed(16).unwrap();
        let bytes: Vec<u8> = (1..=100).collect();
        for len in 0..=100 {
            words.write(2, &[0xFF; 104]);
            words.write(2, &bytes[..len]);
            let mut out = vec![0; len];
            words.read(2, &mut out);
            assert_eq!(out, bytes[..len]);
            assert!(words.bytes_equal(2, &bytes[..len]));
            if len > 0 {
                out[len - 1] ^= 1;
                assert!(!words.bytes_equal(2, &out));
            }
            assert_eq!((words.load(1), words.load(15)), (0, 0));
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_refused() {
        assert!(TableWords::zeroed(usize::MAX).is_err());
        assert!(TableWords::zeroed(usize::MAX / 16).is_err());
    }

    #[test]
    fn a_reader_never_takes_half_a_change_for_a_whole() {
        let words = TableWords::zeroed(8).unwrap();
        let writer = words.clone();
        let rounds = if cfg!(miri) { 100 } else { 300_000 };
        let thread = std::thread::spawn(move || {
            for round in 1..=rounds {
                writer.begin_write(0);
                for word in 1..8 {
                    writer.store(word, round);
                }
                writer.end_write(0);
            }
        });
        loop {
            let Some(stamp) = words.stamp(0) else { continue };
            let seen: [u64; 7] = words.load_array(1);
            if words.is_unchanged(0, stamp) {
                assert!(seen.iter().all(|word| *word == seen[0]), "{seen:?}");
                if seen[0] == rounds {
                    break;
                }
            }
        }
        thread.join().unwrap();
        assert_eq!(words.stamp(0).map(|stamp| stamp.0), Some(2 * rounds));
    }

    #[test]
    fn whoever_saw_a_change_sees_what_was_announced_before_it() {
        let words = TableWords::zeroed(2).unwrap();
        let writer = words.clone();
        let rounds = if cfg!(miri) { 100 } else { 300_000 };
        let thread = std::thread::spawn(move || {
            for round in 1..=rounds {
                writer.announce(0, round);
                writer.store(1, round);
            }
        });
        loop {
            let changed = words.load(1);
            assert!(words.load_acquired(0) >= changed);
            if changed == rounds {
                break;
            }
        }
        thread.join().unwrap();
    }
}
