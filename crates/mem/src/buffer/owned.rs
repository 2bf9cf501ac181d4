//! Ranges of memory that is moved in, split into parts that are held apart, and given back whole.
//!
//! A [`MessageBuffer`] is one message, with room for packets' headers in front of its data, so it cannot be split. An
//! [`OwnedRange`] is bytes alone: of a message buffer, or of a vector of the user's.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Arena, BufferPlace, Extent, MessageBuffer};
use crate::atomic::plain::Arc;

/// The memory of ranges, whole. Its bytes are touched through ranges alone, until it is given back.
pub(crate) struct OwnedMemory {
    bytes: Bytes,
    start: NonNull<u8>,
    len: usize,
    /// Its place, which may be longer than the bytes.
    extent: Extent,
}

enum Bytes {
    Buffer(MessageBuffer),
    Vector(Vec<u8>),
}

// SAFETY: the memory moves with this value or lies elsewhere, and nobody touches its bytes through it.
unsafe impl Send for OwnedMemory {}
// SAFETY: as above; a shared reference gives the address, and what does not change: the arena of a buffer.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }
}

/// Bytes that only the holder of this handle reads or writes: all bytes of a message buffer or of a vector, or a part
/// of them.
///
/// A request of a queue pair takes it in and gives it back, so parts of one buffer can be targets of many READs at the
/// same time. [`Self::split_off`] splits it, [`Self::join`] joins neighbours, and [`Self::into_buffer`] and
/// [`Self::into_vec`] give the memory back, which they refuse for as long as other parts exist or the memory is
/// registered. It takes one allocation for the memory, and none for a part.
///
/// ```
/// # use sinew_mem::OwnedRange;
/// let mut whole = OwnedRange::from(vec![0; 8]);
/// let mut tail = whole.split_off(6);
/// tail.fill(7);
/// let mut whole = whole.into_vec().expect_err("a part is out");
/// whole.join(tail).expect("they are neighbours");
/// assert_eq!(whole.into_vec().expect("all of it is here"), [0, 0, 0, 0, 0, 0, 7, 7]);
/// ```
pub struct OwnedRange {
    memory: Arc<OwnedMemory>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are reached through this handle alone, and the memory behind it may be shared.
unsafe impl Send for OwnedRange {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for OwnedRange {}

impl OwnedRange {
    fn whole(bytes: Bytes, start: NonNull<u8>, len: usize) -> Self {
        let address = start.as_ptr().addr();
        let extent = match &bytes {
            Bytes::Buffer(buffer) => buffer.extent(),
            Bytes::Vector(_) => Extent { address, len },
        };
        Self { memory: Arc::new(OwnedMemory { bytes, start, len, extent }), start, len }
    }

    /// Splits the range: this becomes its first `at` bytes, and the others are returned.
    ///
    /// # Panics
    ///
    /// When the range has fewer than `at` bytes.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "a range of {} bytes cannot be split at {at}", self.len);
        // SAFETY: the place lies in the range, or at its end.
        let start = unsafe { self.start.add(at) };
        let rest = Self { memory: Arc::clone(&self.memory), start, len: self.len - at };
        self.len = at;
        rest
    }

    /// Splits the range into parts of `len` bytes, the last of which may be shorter. An empty range is one part.
    ///
    /// # Panics
    ///
    /// When `len` is 0.
    pub fn split(self, len: usize) -> impl Iterator<Item = Self> {
        assert!(len > 0, "a part has at least one byte");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let mut part = rest.take()?;
            if part.len > len {
                rest = Some(part.split_off(len));
            }
            Some(part)
        })
    }

    /// Joins the range that begins where this one ends.
    ///
    /// # Errors
    ///
    /// The other range, when it is no such neighbour.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        // SAFETY: the end of a range lies in its memory, or directly behind it.
        let end = unsafe { self.start.add(self.len) };
        if !Arc::ptr_eq(&self.memory, &next.memory) || end != next.start {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Whether this is all of the memory.
    pub fn is_whole(&self) -> bool {
        self.start == self.memory.start && self.len == self.memory.len
    }

    /// Whether the bytes lie in a message buffer of `arena`.
    #[inline]
    pub fn is_from(&self, arena: &Arena) -> bool {
        matches!(&self.memory.bytes, Bytes::Buffer(buffer) if buffer.is_from(arena))
    }

    /// Place of the whole memory, for devices that register it.
    pub fn place(&self) -> BufferPlace {
        BufferPlace::owned(Arc::clone(&self.memory))
    }

    /// Extent of the whole memory, whatever part of it this is: that of [`Self::place`].
    #[inline]
    pub fn extent(&self) -> Extent {
        self.memory.extent
    }

    /// The memory, if it was a message buffer's. Its contents have the length that they had.
    ///
    /// # Errors
    ///
    /// The range, when other parts exist, or the memory is registered, or is a vector.
    pub fn into_buffer(self) -> Result<MessageBuffer, Self> {
        match &self.memory.bytes {
            Bytes::Buffer(_) => self.into_bytes().map(|bytes| match bytes {
                Bytes::Buffer(buffer) => buffer,
                Bytes::Vector(_) => unreachable!("it was looked at"),
            }),
            Bytes::Vector(_) => Err(self),
        }
    }

    /// The memory, if it was a vector.
    ///
    /// # Errors
    ///
    /// The range, when other parts exist, or the memory is registered, or is a message buffer's.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match &self.memory.bytes {
            Bytes::Vector(_) => self.into_bytes().map(|bytes| match bytes {
                Bytes::Vector(vector) => vector,
                Bytes::Buffer(_) => unreachable!("it was looked at"),
            }),
            Bytes::Buffer(_) => Err(self),
        }
    }

    /// The memory, when this is the last handle on it. (Parts that were dropped are nobody's, and come back with it.)
    fn into_bytes(self) -> Result<Bytes, Self> {
        let Self { memory, start, len } = self;
        match Arc::try_unwrap(memory) {
            Ok(OwnedMemory { bytes, .. }) => Ok(bytes),
            Err(memory) => Err(Self { memory, start, len }),
        }
    }
}

impl From<MessageBuffer> for OwnedRange {
    fn from(mut buffer: MessageBuffer) -> Self {
        let (start, len) = (NonNull::from(&mut buffer[..]).cast(), buffer.len());
        Self::whole(Bytes::Buffer(buffer), start, len)
    }
}

impl From<Vec<u8>> for OwnedRange {
    fn from(mut vector: Vec<u8>) -> Self {
        // Every place has memory behind it, also that of no bytes.
        vector.reserve(usize::from(vector.is_empty()));
        let (start, len) = (NonNull::from(&mut vector[..]).cast(), vector.len());
        Self::whole(Bytes::Vector(vector), start, len)
    }
}

impl Deref for OwnedRange {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the memory, which stays for as long as this handle, and only it reaches them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for OwnedRange {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and ranges of one memory are disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for OwnedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.start.as_ptr().addr() - self.extent().address;
        f.debug_struct("OwnedRange").field("start", &offset).field("len", &self.len).finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(len: usize) -> Vec<u8> {
        (0..len).map(|at| at as u8).collect()
    }

    #[test]
    fn parts_are_written_apart_and_come_back_as_one() {
        let vector = counted(100);
        let (address, mut parts) = (vector.as_ptr(), OwnedRange::from(vector).split(30));
        let mut parts: Vec<_> = parts.by_ref().collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [30, 30, 30, 10]);
        std::thread::scope(|scope| {
            for part in &mut parts {
                scope.spawn(|| part.iter_mut().for_each(|byte| *byte += 100));
            }
        });
        let mut parts = parts.into_iter();
        let mut whole = parts.next().unwrap();
        parts.for_each(|part| whole.join(part).unwrap());
        assert!(whole.is_whole());
        let vector = whole.into_vec().unwrap();
        assert_eq!(vector.as_ptr(), address, "the memory itself comes back");
        assert_eq!(vector, counted(200)[100..]);
    }

    #[test]
    fn memory_stays_for_as_long_as_a_part_or_a_registration_has_it() {
        let arena = Arena::private(1 << 16).unwrap();
        let mut buffer = arena.alloc(64, 64).unwrap();
        buffer.fill(&counted(64)).unwrap();
        let mut first = OwnedRange::from(buffer);
        let last = first.split_off(40);
        assert!(first.is_from(&arena) && !first.is_from(&Arena::private(1 << 16).unwrap()));
        let first = first.into_buffer().expect_err("the last part is held");
        drop(first);
        let place = last.place();
        assert_eq!((place.extent(), place.len()), (last.extent(), 64));
        let last = last.into_buffer().expect_err("the memory is registered");
        drop((arena, place));
        // The parts that were dropped are in it again.
        assert_eq!(last.into_buffer().unwrap()[..], counted(64));
    }

    #[test]
    fn only_neighbours_are_joined_and_memory_is_what_it_was() {
        let mut first = OwnedRange::from(counted(9));
        let mut middle = first.split_off(3);
        let last = middle.split_off(3);
        let last = first.join(last).expect_err("the middle is missing");
        let mut other = OwnedRange::from(counted(3));
        let middle = other.join(middle).expect_err("it is another's");
        assert_eq!((first.join(middle).is_ok(), first.join(last).is_ok()), (true, true));
        let whole = first.into_buffer().expect_err("it is a vector");
        assert_eq!(whole.into_vec().unwrap(), counted(9));
        let mut first = OwnedRange::from(counted(9));
        drop(first.split_off(2));
        assert_eq!(*first.into_buffer().expect_err("it is a vector"), [0, 1], "a refusal gives back what was given");
    }

    #[test]
    fn an_empty_range_is_one_part() {
        let parts: Vec<_> = OwnedRange::from(Vec::new()).split(4).collect();
        assert!(parts.len() == 1 && parts[0].is_empty() && parts[0].is_whole());
    }

    #[test]
    #[should_panic(expected = "cannot be split at 5")]
    fn a_range_is_not_split_past_its_end() {
        let _rest = OwnedRange::from(counted(4)).split_off(5);
    }
}
