//! Memory that other threads, processes or devices may write while we read it.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::atomic::plain::{Arc, AtomicU32, AtomicU64, Ordering};
use crate::region::{PAGE_LEN_MIN, Region};

/// A range of memory that anybody may be writing *now*: a region exposed to remote writes, or a peer's memory. It has
/// no slice view: bytes are copied in and out, and words are loaded and changed one at a time.
///
/// Writes go in ascending order of addresses, in aligned words of 8 bytes, each of which appears whole; bytes before
/// the first and after the last aligned word appear one by one. Every store is a release: a reader that sees a byte
/// sees all bytes at lower addresses that were written before it. No more than a word appears at once, so a reader that
/// needs more must find out whether what it read is torn. Reads go in ascending order too, an aligned word at a time,
/// and see each word as it was at some moment. Clones are handles on the same memory and keep it mapped.
#[derive(Clone)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: a range of addresses that the owner keeps mapped; every access is atomic.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

/// An access that is not within the memory, or not aligned to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie within a memory of {capacity} bytes, or are not aligned to a word")]
pub struct OutOfBounds {
    /// Offset of the access, in bytes.
    pub offset: usize,
    /// Length of the access, in bytes.
    pub len: usize,
    /// Length of the memory, in bytes.
    pub capacity: usize,
}

impl SharedMemory {
    /// The `len` bytes of `region` from `offset`, which must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when they are not within the region, or `offset` is no multiple of 8.
    ///
    /// # Safety
    ///
    /// Nobody in this process holds or makes a slice over these bytes while this value or a clone of it lives.
    pub unsafe fn new(region: Arc<Region>, offset: usize, len: usize) -> Result<Self, OutOfBounds> {
        let capacity = region.len();
        match offset.checked_add(len) {
            Some(end) if end <= capacity && offset.is_multiple_of(8) => {
                // SAFETY: the offset lies in the region.
                Ok(Self { start: unsafe { region.start().add(offset) }, len, owner: region })
            }
            _ => Err(OutOfBounds { offset, len, capacity }),
        }
    }

    /// The `len` bytes of this memory from `offset`, which must be a multiple of 8. `last` is dropped with the last
    /// clone of the part, which tells a lender that the loan is over.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; `last` is dropped then.
    pub fn part(&self, offset: usize, len: usize, last: impl Send + Sync + 'static) -> Result<Self, OutOfBounds> {
        /// Fields are dropped in this order.
        struct Part<T>(#[allow(dead_code)] T, #[allow(dead_code)] Arc<dyn Send + Sync>);
        match NonNull::new(self.at(offset, len)?) {
            Some(start) if start.addr().get().is_multiple_of(8) => {
                Ok(Self { start, len, owner: Arc::new(Part(last, Arc::clone(&self.owner))) })
            }
            _ => Err(OutOfBounds { offset, len, capacity: self.len }),
        }
    }

    /// Fresh private memory of `len` bytes, all zero.
    ///
    /// # Errors
    ///
    /// The system's error when it has no memory to give.
    pub fn private(len: usize) -> std::io::Result<Self> {
        let bytes = len.max(1).checked_next_multiple_of(8).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let region = Arc::new(Region::private(bytes)?);
        // SAFETY: nobody else has the region.
        unsafe { Self::new(region, 0, len) }.map_err(|error| std::io::Error::other(error.to_string()))
    }

    /// Bytes of the memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the memory in this process: a number to give to peers that may write there.
    #[inline]
    pub fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Makes the system back all of the memory with pages; its contents stay as they are. A process that must not wait
    /// for memory later calls this when it starts.
    pub fn back(&self) {
        for offset in (0..self.len).step_by(PAGE_LEN_MIN) {
            // Writes the word that is there: adding nothing would be made a load. If another one is there by now,
            // somebody else has written to the page. Only bytes that make no word, in the last page, are left out.
            let _ = self.load(offset).and_then(|word| self.compare_swap(offset, word, word));
        }
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= len`, and the range was promised to be mapped.
            Some(end) if end <= self.len => Ok(unsafe { self.start.as_ptr().add(offset) }),
            _ => Err(OutOfBounds { offset, len, capacity: self.len }),
        }
    }

    /// The word at `offset`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the word is not within the memory, or is not aligned.
    #[inline(always)]
    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let pointer = self.at(offset, 8)?;
        if !pointer.addr().is_multiple_of(8) {
            return Err(OutOfBounds { offset, len: 8, capacity: self.len });
        }
        // SAFETY: in bounds, aligned, and mapped while `self` lives; others' accesses are atomic or outside this
        // process.
        Ok(unsafe { &*pointer.cast::<AtomicU64>() })
    }

    /// The aligned 4 bytes at `offset`, as the system's futex calls need them.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    ///
    /// # Safety
    ///
    /// This process accesses these bytes in no other way: atomic accesses of different sizes may not overlap.
    #[inline]
    pub unsafe fn futex(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let pointer = self.at(offset, 4)?;
        if !pointer.addr().is_multiple_of(4) {
            return Err(OutOfBounds { offset, len: 4, capacity: self.len });
        }
        // SAFETY: as in `word`.
        Ok(unsafe { &*pointer.cast::<AtomicU32>() })
    }

    /// Loads the aligned word at `offset`, with acquire: what its writer stored before it is visible afterwards.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, OutOfBounds> {
        // Partner: the writer's release store, in `store`, in `write` or by a device.
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores the aligned word at `offset`, with release.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Swaps the aligned word at `offset` for `desired` if it equals `expected`; returns the old value.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn compare_swap(&self, offset: usize, expected: u64, desired: u64) -> Result<u64, OutOfBounds> {
        let word = self.word(offset)?;
        // Both acquire and release: remote atomics order what their initiator did before and does after.
        Ok(word.compare_exchange(expected, desired, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|was| was))
    }

    /// Adds to the aligned word at `offset`, wrapping; returns the old value.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Prefetches the line that holds the byte at `offset`; does nothing when there is no such byte.
    #[inline(always)]
    pub fn prefetch_line(&self, offset: usize) {
        if let Ok(word) = self.word(offset & !7) {
            crate::prefetch_read(word);
        }
    }

    /// Copies the bytes from `offset` on to `target`, in ascending order. They may be torn: see [`SharedMemory`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was copied then.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        self.slice(0, self.len)?.read(offset, target)
    }

    /// Copies `source` to `offset`, in ascending order: see [`SharedMemory`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was written then.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        self.slice(0, self.len)?.write(offset, source)
    }

    /// All whole words of the memory, for many loads. They belong to others as much as the bytes do, so each is to be
    /// loaded with acquire, as [`Self::load`] does, and several in ascending order, as [`Self::read`] does.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory starts at an aligned word, has these words, and is mapped while `self` lives; others'
        // accesses are atomic or outside this process.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.len / 8) }
    }

    /// The `len` bytes from `offset` on, borrowed.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<SharedSlice<'_>, OutOfBounds> {
        Ok(SharedSlice { start: self.at(offset, len)?, len, memory: PhantomData })
    }
}

/// Some bytes of a [`SharedMemory`], borrowed, for several accesses within the same bounds. They are copied in and out
/// as there, and never seen as a slice.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a> {
    /// The `len` bytes from here on lie in the memory.
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'a SharedMemory>,
}

impl SharedSlice<'_> {
    /// The `len` bytes from `offset` on.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= len`, and these bytes lie in a memory that is borrowed.
            Some(end) if end <= self.len => Ok(unsafe { self.start.add(offset) }),
            _ => Err(OutOfBounds { offset, len, capacity: self.len }),
        }
    }

    /// As [`SharedMemory::read`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was copied then.
    #[inline(always)]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, target.len())?;
        if (source.addr() | target.len()).is_multiple_of(8) {
            // SAFETY: `at` checked the range, which starts at an aligned word.
            unsafe { load_words(source, target.as_chunks_mut().0) }
        } else {
            // SAFETY: `at` checked the range.
            unsafe { load_any(source, target) }
        }
        Ok(())
    }

    /// As [`SharedMemory::write`].
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; nothing was written then.
    #[inline(always)]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let target = self.at(offset, source.len())?;
        // Nearly every message is some aligned words.
        if (target.addr() | source.len()).is_multiple_of(8) {
            // SAFETY: `at` checked the range, which starts at an aligned word.
            unsafe { store_words(target, source.as_chunks().0) }
        } else {
            // SAFETY: `at` checked the range.
            unsafe { store_any(target, source) }
        }
        Ok(())
    }
}

/// Calls `$few::<COUNT>` for the number of words, without a loop for up to a line of them; `$many` for more.
macro_rules! by_count {
    ($count:expr, $few:ident($($arguments:expr),*), $many:ident) => {
        match $count {
            0 => {}
            1 => $few::<1>($($arguments),*),
            2 => $few::<2>($($arguments),*),
            3 => $few::<3>($($arguments),*),
            4 => $few::<4>($($arguments),*),
            5 => $few::<5>($($arguments),*),
            6 => $few::<6>($($arguments),*),
            7 => $few::<7>($($arguments),*),
            8 => $few::<8>($($arguments),*),
            _ => $many($($arguments),*),
        }
    };
}

/// Loads words in ascending order.
///
/// # Safety
///
/// The words lie in a [`SharedMemory`], the first at an aligned address.
#[inline(always)]
unsafe fn load_words(source: *mut u8, target: &mut [[u8; 8]]) {
    // SAFETY: the caller's promise.
    unsafe { by_count!(target.len(), load_few(source, target), load_many) }
}

/// As [`load_words`], of at most `COUNT` words.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn load_few<const COUNT: usize>(source: *mut u8, target: &mut [[u8; 8]]) {
    for (at, word) in target.iter_mut().take(COUNT).enumerate() {
        // SAFETY: the caller's promise. Acquire, for the order. Partners: the stores of `store_few`.
        *word = unsafe { (*source.add(at * 8).cast::<AtomicU64>()).load(Ordering::Acquire) }.to_ne_bytes();
    }
}

/// As [`load_words`], a line at a time.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn load_many(source: *mut u8, target: &mut [[u8; 8]]) {
    let (lines, rest) = target.as_chunks_mut::<8>();
    // SAFETY: the caller's promise.
    unsafe {
        // The compiler knows the length of a line, so no word of one takes a comparison.
        lines.iter_mut().enumerate().for_each(|(at, line)| load_few::<8>(source.add(at * 64), line));
        load_few::<8>(source.add(lines.len() * 64), rest);
    }
}

/// Stores words in ascending order.
///
/// # Safety
///
/// As for [`load_words`].
#[inline(always)]
unsafe fn store_words(target: *mut u8, source: &[[u8; 8]]) {
    // SAFETY: the caller's promise.
    unsafe { by_count!(source.len(), store_few(target, source), store_many) }
}

/// As [`store_words`], of at most `COUNT` words.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn store_few<const COUNT: usize>(target: *mut u8, source: &[[u8; 8]]) {
    for (at, word) in source.iter().take(COUNT).enumerate() {
        // SAFETY: the caller's promise. Release: the order of the words is part of the contract. Partners: the loads of
        // `SharedMemory::load` and of `load_few`.
        unsafe { (*target.add(at * 8).cast::<AtomicU64>()).store(u64::from_ne_bytes(*word), Ordering::Release) };
    }
}

/// As [`store_words`], a line at a time.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn store_many(target: *mut u8, source: &[[u8; 8]]) {
    let (lines, rest) = source.as_chunks::<8>();
    // SAFETY: the caller's promise.
    unsafe {
        // As in `load_many`.
        lines.iter().enumerate().for_each(|(at, line)| store_few::<8>(target.add(at * 64), line));
        store_few::<8>(target.add(lines.len() * 64), rest);
    }
}

/// Loads bytes that start or end within a word.
///
/// # Safety
///
/// The bytes lie in a [`SharedMemory`].
#[inline(never)]
unsafe fn load_any(source: *mut u8, target: &mut [u8]) {
    let to_word = to_word(source).min(target.len());
    let (first, rest) = target.split_at_mut(to_word);
    let (words, last) = rest.as_chunks_mut::<8>();
    // SAFETY: the caller's promise; the address `to_word` bytes on is aligned if a word follows.
    unsafe {
        load_part(source, first);
        let aligned = source.add(to_word);
        load_words(aligned, words);
        load_part(aligned.add(words.len() * 8), last);
    }
}

/// Stores bytes that start or end within a word.
///
/// # Safety
///
/// As for [`load_any`].
#[inline(never)]
unsafe fn store_any(target: *mut u8, source: &[u8]) {
    let to_word = to_word(target).min(source.len());
    let (first, rest) = source.split_at(to_word);
    let (words, last) = rest.as_chunks::<8>();
    // SAFETY: as in `load_any`.
    unsafe {
        store_part(target, first);
        let aligned = target.add(to_word);
        store_words(aligned, words);
        store_part(aligned.add(words.len() * 8), last);
    }
}

/// A table in a [`SharedMemory`]: a power of two of rows, each of `WORDS` words, indexed without a bounds check.
#[derive(Clone, Debug)]
pub struct SharedRows<const WORDS: usize> {
    rows: SharedMemory,
    /// Number of rows, less one.
    mask: usize,
}

impl SharedMemory {
    /// The table of `count` rows at `offset`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`]; a `count` that is no power of two is out of bounds too.
    pub fn rows<const WORDS: usize>(&self, offset: usize, count: usize) -> Result<SharedRows<WORDS>, OutOfBounds> {
        let len = if count.is_power_of_two() { count.saturating_mul(WORDS * 8) } else { usize::MAX };
        let rows = self.part(offset, len, ())?;
        Ok(SharedRows { rows, mask: count - 1 })
    }
}

impl<const WORDS: usize> SharedRows<WORDS> {
    /// Row `index`, modulo the number of rows.
    #[inline(always)]
    pub fn row(&self, index: usize) -> &[AtomicU64; WORDS] {
        // SAFETY: the mask keeps the row inside the memory, which is aligned and mapped while `self` lives; others'
        // accesses are atomic or outside this process.
        unsafe { &*self.rows.start.as_ptr().cast::<[AtomicU64; WORDS]>().add(index & self.mask) }
    }
}

/// Atomics in a [`SharedMemory`], with a handle that keeps the memory: for words that are looked at so often that
/// finding them would cost more.
pub struct SharedRef<T> {
    place: NonNull<T>,
    memory: SharedMemory,
}

impl<T> Clone for SharedRef<T> {
    fn clone(&self) -> Self {
        Self { place: self.place, memory: self.memory.clone() }
    }
}

// SAFETY: atomics in a memory that the handle keeps mapped.
unsafe impl<T: Sync> Send for SharedRef<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedRef<T> {}

impl<T> std::fmt::Debug for SharedRef<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedRef").field("place", &self.place).field("memory", &self.memory).finish()
    }
}

impl<T> std::ops::Deref for SharedRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the place was a reference into the memory, which the handle keeps mapped.
        unsafe { self.place.as_ref() }
    }
}

impl SharedMemory {
    /// As [`Self::futex`], with a handle on the memory.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`].
    ///
    /// # Safety
    ///
    /// As for [`Self::futex`].
    pub unsafe fn futex_ref(&self, offset: usize) -> Result<SharedRef<AtomicU32>, OutOfBounds> {
        // SAFETY: the caller's promise.
        let place = NonNull::from(unsafe { self.futex(offset) }?);
        Ok(SharedRef { place, memory: self.clone() })
    }
}

impl<const WORDS: usize> SharedRows<WORDS> {
    /// As [`Self::row`], with a handle on the memory.
    pub fn row_ref(&self, index: usize) -> SharedRef<[AtomicU64; WORDS]> {
        SharedRef { place: NonNull::from(self.row(index)), memory: self.rows.clone() }
    }
}

/// Bytes to the next aligned word.
#[inline(always)]
fn to_word(at: *mut u8) -> usize {
    at.addr().wrapping_neg() % 8
}

/// The word that holds the byte at `at`, and the byte's index in it.
///
/// # Safety
///
/// The byte lies in a [`SharedMemory`]; the word lies there too, or ends in the mapped bytes behind it.
#[inline(always)]
unsafe fn word_around<'a>(at: *mut u8) -> (&'a AtomicU64, usize) {
    let byte = at.addr() % 8;
    // SAFETY: the caller's promise; mappings are whole pages, so an aligned word that begins in one also ends in it.
    (unsafe { &*at.sub(byte).cast::<AtomicU64>() }, byte)
}

/// Loads fewer than 8 bytes, all in one word. The whole word is loaded, since atomic accesses of different sizes may
/// not overlap.
///
/// # Safety
///
/// The bytes lie in one word of a [`SharedMemory`].
#[inline(always)]
unsafe fn load_part(source: *mut u8, target: &mut [u8]) {
    if !target.is_empty() {
        // SAFETY: the caller's promise. Acquire: as in `SharedMemory::read`.
        let (word, byte) = unsafe { word_around(source) };
        let bytes = word.load(Ordering::Acquire).to_ne_bytes();
        target.copy_from_slice(&bytes[byte..byte + target.len()]);
    }
}

/// Stores fewer than 8 bytes, one by one, since others may be storing other bytes of the same word.
///
/// # Safety
///
/// As for [`load_part`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn store_part(target: *mut u8, source: &[u8]) {
    for (at, &byte) in source.iter().enumerate() {
        // SAFETY: the caller's promise. To the compiler the assembly is one more thread that it knows nothing about,
        // since an atomic store of a byte may not overlap others' stores of words. The processor keeps stores in order,
        // so each is a release.
        unsafe {
            core::arch::asm!(
                "mov byte ptr [{}], {}",
                in(reg) target.add(at),
                in(reg_byte) byte,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Stores fewer than 8 bytes, one by one, on processors without that instruction: each byte replaces its own in the
/// word.
///
/// # Safety
///
/// As for [`load_part`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
unsafe fn store_part(target: *mut u8, source: &[u8]) {
    for (at, &new) in source.iter().enumerate() {
        // SAFETY: the caller's promise.
        let (word, byte) = unsafe { word_around(target.add(at)) };
        let with = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            bytes[byte] = new;
            Some(u64::from_ne_bytes(bytes))
        };
        // The closure always returns a value. Release: as in `SharedMemory::write`.
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, with);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_in_their_memory_and_nowhere_else() {
        let memory = SharedMemory::private(64).unwrap();
        let rows = memory.rows::<3>(8, 2).unwrap();
        rows.row(1)[2].store(7, Ordering::Relaxed);
        assert_eq!(memory.load(8 + 24 + 16), Ok(7));
        assert!(std::ptr::eq(rows.row(0), rows.row(2)));
        let kept = rows.row_ref(1);
        // SAFETY: nobody accesses these words in another way.
        let futex = unsafe { memory.futex_ref(56) }.unwrap();
        futex.store(9, Ordering::Relaxed);
        for (offset, count) in [(0, 4), (24, 2), (4, 1), (0, 0), (0, 3), (0, 1 << 63)] {
            assert!(memory.rows::<3>(offset, count).is_err(), "{offset} {count}");
        }
        drop((rows, memory));
        assert_eq!((kept[2].load(Ordering::Relaxed), futex.load(Ordering::Relaxed)), (7, 9));
    }

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
    fn words_are_those_of_the_memory_and_no_more() {
        let memory = SharedMemory::private(64).unwrap();
        memory.store(48, 7).unwrap();
        let part = memory.part(8, 47, ()).unwrap();
        assert_eq!((memory.words().len(), part.words().len()), (8, 5));
        assert_eq!(part.words()[4].load(Ordering::Acquire), 0);
        assert_eq!(memory.words()[6].load(Ordering::Acquire), 7);
        assert!(std::ptr::eq(&memory.words()[1], &part.words()[0]));
        assert!(memory.part(64, 0, ()).unwrap().words().is_empty());
    }

    #[test]
    fn a_slice_ends_where_it_was_cut() {
        let memory = SharedMemory::private(64).unwrap();
        let slice = memory.slice(8, 20).unwrap();
        assert!(slice.write(12, &[7; 8]).is_ok() && slice.write(13, &[8; 8]).is_err());
        assert!(slice.write(usize::MAX, &[8; 8]).is_err() && slice.write(21, &[]).is_err());
        let mut read = [0; 9];
        assert!(slice.read(11, &mut read).is_ok() && slice.read(12, &mut read).is_err());
        assert_eq!(read, [0, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert!(memory.slice(64, 0).is_ok() && memory.slice(57, 8).is_err() && memory.slice(1, usize::MAX).is_err());
    }

    #[test]
    fn the_end_of_the_last_clone_of_a_part_is_told() {
        struct Last(Arc<AtomicU64>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let drops = Arc::new(AtomicU64::new(0));
        let memory = SharedMemory::private(64).unwrap();
        let part = memory.part(16, 32, Last(Arc::clone(&drops))).unwrap();
        let clone = part.clone();
        memory.store(16, 7).unwrap();
        drop((memory, part));
        assert_eq!((clone.len(), clone.load(0), drops.load(Ordering::Relaxed)), (32, Ok(7), 0));
        assert!(clone.load(32).is_err() && clone.part(4, 8, ()).is_err() && clone.part(24, 9, ()).is_err());
        drop(clone);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn accesses_past_the_end_or_off_a_word_are_refused() {
        let memory = SharedMemory::private(64).unwrap();
        // SAFETY: these words are not accessed meanwhile.
        let futex = |offset| unsafe { memory.futex(offset).is_ok() };
        assert!(futex(60) && !futex(58) && !futex(64));
        assert!(SharedMemory::private(usize::MAX).is_err());
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
    fn words_never_tear_and_appear_in_ascending_order() {
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
            // In descending order: once a word is visible, so is everything at lower addresses.
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
