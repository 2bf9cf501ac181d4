//! Vectors in far memory.

use std::ops::Range;

use sinew_remote_memory::Store;

use crate::error::FarError;
use crate::guard::{Pinned, PinnedMut};
use crate::memory::FarMemory;
use crate::place::{Places, Pod};

/// A vector of plain values in [`FarMemory`], with as much of it in local memory as there is room.
///
/// Elements lie in pages of 4 KB, as many in each as fit whole. An access to a page that is not here waits for it. Reading sequentially, forward, backward
/// or in steps, is fetched ahead. What is lent by [`Self::slice`] stays here for as long as it is.
///
/// ```
/// # struct Stopped;
/// # impl sinew_fabric::Clock for Stopped { fn now_ns(&self) -> u64 { 0 } }
/// use sinew_far_memory::{FarMemory, FarVec, Options};
/// use sinew_remote_memory::RamStore;
///
/// let store = RamStore::new(64 << 20, 1 << 20)?;
/// let memory = FarMemory::new(store, Options::with_local_pages(64), Stopped)?;
/// let mut squares = FarVec::<u64, _>::zeroed(&memory, 1_000_000)?;
/// for index in 0..squares.len() {
///     squares.set(index, (index * index) as u64)?;
/// }
/// assert_eq!(squares.get(999_999)?, 999_998_000_001);
/// assert_eq!(squares.slice(10..13)?.as_slice(), Some(&[100, 121, 144][..]));
/// memory.flush()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is lent cannot be changed meanwhile:
///
/// ```compile_fail,E0502
/// # use sinew_far_memory::{FarError, FarVec};
/// # fn change<S: sinew_remote_memory::Store>(mut vector: FarVec<u64, S>) -> Result<(), FarError> {
/// let lent = vector.slice(0..2)?;
/// vector.set(0, 1)?;
/// assert_eq!(lent[0], 0);
/// # Ok(())
/// # }
/// ```
pub struct FarVec<T: Pod, S: Store> {
    memory: FarMemory<S>,
    places: Places<T>,
    len: usize,
}

impl<T: Pod, S: Store> FarVec<T, S> {
    /// A vector of zeros, in pages that are free. They are discarded at the store, which costs nothing for what was never used.
    ///
    /// # Errors
    ///
    /// [`FarError::Full`]; what the store says.
    pub fn zeroed(memory: &FarMemory<S>, len: usize) -> Result<Self, FarError> {
        let pages = memory.extents().take(Places::<T>::count(len))?;
        let vector = Self { memory: memory.clone(), places: Places::new(pages.start), len };
        memory.pager().zero(pages)?;
        Ok(vector)
    }

    /// The vector that lies in the store from page `page` on, with what it holds: one that was there before, and was flushed.
    ///
    /// # Errors
    ///
    /// [`FarError::Full`] when another vector has some of the pages, or the store has not so many.
    pub fn at(memory: &FarMemory<S>, page: u64, len: usize) -> Result<Self, FarError> {
        let count = Places::<T>::count(len);
        let pages = page..page.checked_add(count).ok_or(FarError::Full { pages: count, free: 0 })?;
        if !memory.extents().take_at(pages) {
            return Err(FarError::Full { pages: count, free: 0 });
        }
        Ok(Self { memory: memory.clone(), places: Places::new(page), len })
    }

    /// Elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages of the store that it lies in.
    pub fn pages(&self) -> Range<u64> {
        self.places.first..self.places.first + Places::<T>::count(self.len)
    }

    /// The memory that it lies in.
    pub fn memory(&self) -> &FarMemory<S> {
        &self.memory
    }

    /// Whether an element is here.
    pub fn is_local(&self, index: usize) -> bool {
        index < self.len && self.memory.pager().is_local(self.places.place(index).0)
    }

    /// An element.
    ///
    /// # Errors
    ///
    /// [`FarError`].
    #[inline]
    pub fn get(&self, index: usize) -> Result<T, FarError> {
        let (page, at) = self.place(index)?;
        let mut pager = self.memory.pager();
        let frame = pager.get(page)?;
        let (value, _) = T::read_from_prefix(&pager.bytes(frame)?[at..]).expect("an element lies whole in its page");
        Ok(value)
    }

    /// Changes an element.
    ///
    /// # Errors
    ///
    /// [`FarError`]; nothing changes then.
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<(), FarError> {
        let (page, at) = self.place(index)?;
        let mut pager = self.memory.pager();
        let frame = pager.get(page)?;
        value.write_to_prefix(&mut pager.bytes_mut(frame)?[at..]).expect("an element lies whole in its page");
        Ok(())
    }

    #[inline]
    fn place(&self, index: usize) -> Result<(u64, usize), FarError> {
        if index >= self.len {
            return Err(FarError::OutOfBounds { from: index, to: index.saturating_add(1), len: self.len });
        }
        Ok(self.places.place(index))
    }

    fn check(&self, range: &Range<usize>) -> Result<(), FarError> {
        if range.start > range.end || range.end > self.len {
            return Err(FarError::OutOfBounds { from: range.start, to: range.end, len: self.len });
        }
        Ok(())
    }

    /// Lends a range to be read. Its pages stay here until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`FarError`]; [`FarError::TooManyPins`] when guards would have more pages than they may.
    pub fn slice(&self, range: Range<usize>) -> Result<Pinned<'_, T, S>, FarError> {
        self.check(&range)?;
        Pinned::new(&self.memory, self.places, range)
    }

    /// Lends a range to be read and written. Its pages stay here until the guard is dropped, and count as changed then.
    ///
    /// # Errors
    ///
    /// As for [`Self::slice`].
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<PinnedMut<'_, T, S>, FarError> {
        self.check(&range)?;
        PinnedMut::new(&self.memory, self.places, range)
    }

    /// All elements, from either end. One page at a time is pinned at each end. It ends after an error.
    pub fn iter(&self) -> Iter<'_, T, S> {
        Iter { vector: self, rest: 0..self.len, front: None, back: None }
    }

    /// The elements of a range, as by [`Self::iter`].
    ///
    /// # Errors
    ///
    /// [`FarError::OutOfBounds`].
    pub fn iter_of(&self, range: Range<usize>) -> Result<Iter<'_, T, S>, FarError> {
        self.check(&range)?;
        Ok(Iter { rest: range, ..self.iter() })
    }
}

impl<T: Pod, S: Store> Drop for FarVec<T, S> {
    fn drop(&mut self) {
        let pages = self.pages();
        let mut pager = self.memory.pager();
        // Pages that a forgotten guard has are nobody's any more.
        if pager.abandon(pages.clone()) {
            drop(pager);
            self.memory.extents().give_back(pages);
        }
    }
}

impl<T: Pod, S: Store> std::fmt::Debug for FarVec<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarVec").field("len", &self.len).field("pages", &self.pages()).finish_non_exhaustive()
    }
}

impl<'a, T: Pod, S: Store> IntoIterator for &'a FarVec<T, S> {
    type Item = Result<T, FarError>;
    type IntoIter = Iter<'a, T, S>;

    fn into_iter(self) -> Iter<'a, T, S> {
        self.iter()
    }
}

/// The elements of a [`FarVec`].
#[must_use]
pub struct Iter<'a, T: Pod, S: Store> {
    vector: &'a FarVec<T, S>,
    rest: Range<usize>,
    front: Option<OfPage<'a, T, S>>,
    back: Option<OfPage<'a, T, S>>,
}

/// A page that an end of an iterator is in: its first element, and all of them.
type OfPage<'a, T, S> = (usize, Pinned<'a, T, S>);

impl<'a, T: Pod, S: Store> Iter<'a, T, S> {
    #[inline]
    fn element(vector: &'a FarVec<T, S>, held: &mut Option<OfPage<'a, T, S>>, index: usize) -> Result<T, FarError> {
        if let Some((first, pinned)) = held
            && index.wrapping_sub(*first) < Places::<T>::PER_PAGE
            && let Some(value) = pinned.in_page(index - *first)
        {
            return Ok(value);
        }
        Self::next_page(vector, held, index)
    }

    #[cold]
    fn next_page(vector: &'a FarVec<T, S>, held: &mut Option<OfPage<'a, T, S>>, index: usize) -> Result<T, FarError> {
        *held = None;
        let first = index - index % Places::<T>::PER_PAGE;
        let (_, pinned) = held.insert((first, vector.slice(first..vector.len.min(first + Places::<T>::PER_PAGE))?));
        Ok(pinned[index - first])
    }
}

impl<T: Pod, S: Store> Iterator for Iter<'_, T, S> {
    type Item = Result<T, FarError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.rest.next()?;
        let element = Self::element(self.vector, &mut self.front, index);
        if element.is_err() {
            self.rest = 0..0;
        }
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rest.len().min(1), Some(self.rest.len()))
    }

    /// Page by page: what sums, counts and collects is not slower for where the elements lie.
    fn fold<A, F: FnMut(A, Self::Item) -> A>(mut self, so_far: A, mut with: F) -> A {
        let mut all = so_far;
        // The ends let go of their pages first, lest there be none to pin.
        (self.front, self.back) = (None, None);
        while !self.rest.is_empty() {
            let from = self.rest.start;
            let to = self.rest.end.min(from - from % Places::<T>::PER_PAGE + Places::<T>::PER_PAGE);
            self.rest.start = to;
            match self.vector.slice(from..to) {
                Ok(page) => all = page.iter().fold(all, |all, element| with(all, Ok(*element))),
                Err(error) => return with(all, Err(error)),
            }
        }
        all
    }
}

impl<T: Pod, S: Store> DoubleEndedIterator for Iter<'_, T, S> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        let index = self.rest.next_back()?;
        let element = Self::element(self.vector, &mut self.back, index);
        if element.is_err() {
            self.rest = 0..0;
        }
        Some(element)
    }
}

impl<T: Pod, S: Store> std::fmt::Debug for Iter<'_, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter").field("rest", &self.rest).finish_non_exhaustive()
    }
}
