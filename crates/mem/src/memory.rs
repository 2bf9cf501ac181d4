//! Memory that other threads, processes or devices write while we read it.

use crate::atomic::plain::{Arc, AtomicU8, AtomicU64, Ordering};
use crate::copy::copy_from_shared;
use crate::region::Region;

/// A range of memory that anybody may be writing *now*: a region exposed to remote writes, or a peer's. It has no slice view;
/// it is copied in and out, and loaded and changed a word at a time.
///
/// Writes go from left to right in aligned words of 8 bytes, each of which appears whole; bytes before the first and after the
/// last aligned word appear one by one. Every store is a release: whoever sees a byte sees all bytes to its left that were
/// written before it. No more than a word appears at once, so a reader that needs more must find out whether what it read
/// is torn. Clones are the same memory and keep it mapped.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

/// An access that does not lie in the memory, or not on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} are not in a memory of {capacity} bytes, or a word there is not aligned to 8")]
pub struct OutOfBounds {
    /// First byte of the access.
    pub offset: usize,
    /// Bytes of it.
    pub len: usize,
    /// Bytes of the memory.
    pub capacity: usize,
}

impl SharedMemory {
    /// `len` bytes of `region` from `offset`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    ///
    /// # Safety
    ///
    /// Nobody in this process holds or makes a slice over these bytes while this or a clone of it lives.
    pub unsafe fn new(region: Arc<Region>, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        let capacity = region.len();
        match offset.checked_add(len) {
            Some(end) if end <= capacity && offset.is_multiple_of(8) => Ok(Self { region, offset, len }),
            _ => Err(OutOfBounds { offset, len, capacity }),
        }
    }

    /// Fresh private memory of `len` bytes, all zero.
    ///
    /// # Errors
    ///
    /// What the system says when it has no memory to give.
    pub fn private(len: usize) -> std::io::Result<Self> {
        let region = Arc::new(Region::private(len.max(8))?);
        // SAFETY: nobody else has the region.
        unsafe { Self::new(region, 0, len) }.map_err(|error| std::io::Error::other(error.to_string()))
    }

    /// Bytes of the memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the memory starts in this process: a number to tell others, who may then write there.
    #[inline]
    pub fn address(&self) -> usize {
        self.region.start().as_ptr().expose_provenance() + self.offset
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= len`, and `new` checked that the range lies in the region.
            Some(end) if end <= self.len => Ok(unsafe { self.region.start().as_ptr().add(self.offset + offset) }),
            _ => Err(OutOfBounds { offset, len, capacity: self.len }),
        }
    }

    /// The word at `offset`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], as all its neighbours.
    #[inline(always)]
    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let at = self.at(offset, 8)?;
        if !at.addr().is_multiple_of(8) {
            return Err(OutOfBounds { offset, len: 8, capacity: self.len });
        }
        // SAFETY: in bounds, aligned, mapped while `self` lives; accesses of others are atomic or outside this process.
        Ok(unsafe { &*at.cast::<AtomicU64>() })
    }

    /// Loads the aligned word at `offset` (acquire: what its writer stored before it is visible after).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds> {
        // The partner is the release store of whoever writes the word: `store`, `write`, or a device.
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores the aligned word at `offset` (release).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Swaps the aligned word at `offset` for `desired` if it is `expected`; returns what it was.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn compare_swap(&self, offset: usize, expected: u64, desired: u64) -> Result<u64, OutOfBounds> {
        let word = self.word(offset)?;
        // Both halves: remote atomics order what their initiator did before and does after.
        Ok(word.compare_exchange(expected, desired, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|was| was))
    }

    /// Adds to the aligned word at `offset`, wrapping; returns what it was.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Copies bytes from `offset` on out to `target`. They may be torn: see the type.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was copied then.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, target.len())?;
        // SAFETY: a mapped range in bounds; whoever writes it meanwhile uses atomic stores or is outside this process. A slice of
        // safe code lies elsewhere.
        unsafe { copy_from_shared(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies `source` to `offset`, from left to right: see the type.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was written then.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.at(offset, source.len())?;
        let to_word = target.align_offset(8).min(source.len());
        let (first, rest) = source.split_at(to_word);
        let (words, last) = rest.as_chunks::<8>();
        let bytes = |target: *mut u8, bytes: &[u8]| {
            for (at, byte) in bytes.iter().enumerate() {
                // SAFETY: in the range that `at` checked; a byte is always aligned.
                unsafe { (*target.add(at).cast::<AtomicU8>()).store(*byte, Ordering::Release) };
            }
        };
        if !first.is_empty() {
            bytes(target, first);
        }
        // SAFETY: as above; `to_word` bytes on it is aligned to a word if there is a word.
        let aligned = unsafe { target.add(to_word) };
        for (at, word) in words.iter().enumerate() {
            // SAFETY: in the range, aligned. Release, each of them: the order of the words is part of the contract.
            unsafe { (*aligned.add(at * 8).cast::<AtomicU64>()).store(u64::from_ne_bytes(*word), Ordering::Release) };
        }
        if !last.is_empty() {
            // SAFETY: as above.
            bytes(unsafe { aligned.add(words.len() * 8) }, last);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_at_every_offset_and_length() {
        let memory = SharedMemory::private(256).unwrap();
        let bytes: Vec<u8> = (1..=100).collect();
        for offset in 0..17 {
            for len in [0, 1, 7, 8, 9, 15, 16, 31, 64, 100] {
                memory.write(0, &[0; 256]).unwrap();
                memory.write(offset, &bytes[..len]).unwrap();
                let mut all = [0xFF; 256];
                memory.read(0, &mut all).unwrap();
                assert!(all[..offset].iter().all(|&byte| byte == 0));
                assert_eq!(all[offset..offset + len], bytes[..len]);
                assert!(all[offset + len..].iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn accesses_past_the_end_or_off_a_word_are_refused() {
        let memory = SharedMemory::private(64).unwrap();
        assert!(memory.load(56).is_ok() && memory.load(57).is_err() && memory.load(64).is_err());
        assert!(memory.store(4, 1).is_err() && memory.fetch_add(60, 1).is_err());
        assert!(memory.write(60, &[0; 4]).is_ok() && memory.write(60, &[0; 5]).is_err());
        assert!(memory.read(0, &mut [0; 65]).is_err() && memory.read(usize::MAX, &mut [0]).is_err());
        assert!(memory.read(64, &mut []).is_ok());
    }

    #[test]
    fn atomics_return_what_was_there() {
        let memory = SharedMemory::private(64).unwrap();
        memory.store(8, 5).unwrap();
        assert_eq!(memory.fetch_add(8, u64::MAX), Ok(5));
        assert_eq!((memory.compare_swap(8, 5, 9), memory.load(8)), (Ok(4), Ok(4)));
        assert_eq!((memory.compare_swap(8, 4, 9), memory.load(8)), (Ok(4), Ok(9)));
    }

    #[test]
    fn words_never_tear_and_appear_from_left_to_right() {
        let memory = SharedMemory::private(64).unwrap();
        let writer = memory.clone();
        let rounds = if cfg!(miri) { 50 } else { 200_000u64 };
        let thread = std::thread::spawn(move || {
            for round in 1..=rounds {
                let word = (round << 32 | round).to_ne_bytes();
                let bytes: Vec<u8> = word.iter().copied().cycle().take(64).collect();
                writer.write(0, &bytes).unwrap();
            }
        });
        loop {
            // From right to left: a word that is there has everything to its left.
            let right = memory.load(56).unwrap();
            let left = memory.load(0).unwrap();
            assert!(left >= right && right >> 32 == right & 0xFFFF_FFFF && left >> 32 == left & 0xFFFF_FFFF);
            if right & 0xFFFF_FFFF == rounds {
                break;
            }
        }
        thread.join().unwrap();
    }
}
