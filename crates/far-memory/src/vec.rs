//! Vectors in far memory.

use std::ops::Range;

use sinew_remote_memory::Store;

use crate::error::FarError;
use crate::guard::{Pinned, PinnedMut};
use crate::memory::FarMemory;
use crate::place::{Layout, Pod};

/// A vector of plain values in [`FarMemory`], as much of it local as there is room.
///
/// Elements lie in pages of 4 KB, as many whole ones in each as fit. An access to a page that is not local waits for
/// it. Pages are fetched ahead of sequential reading, whether forward, backward or in steps. What [`Self::slice`] lends
/// stays local while the guard lives.
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
/// A lent range cannot be changed meanwhile:
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
    layout: Layout<T>,
    len: usize,
}

impl<T: Pod, S: Store> FarVec<T, S> {
    /// A vector of zeros, in free pages. They are discarded at the store, which costs nothing for pages that were never
    /// used.
    ///
    /// # Errors
    ///
    /// [`FarError::Full`], or the store's error.
    pub fn zeroed(memory: &FarMemory<S>, len: usize) -> Result<Self, FarError> {
        let pages = memory.extents().take(Layout::<T>::count(len))?;
        let vector = Self { memory: memory.clone(), layout: Layout::new(pages.start), len };
        memory.pager().zero(pages)?;
        Ok(vector)
    }

    /// The vector that lies in the store from page `page` on, with its contents: one that was made and flushed earlier.
    ///
    /// # Errors
    ///
    /// [`FarError::Full`] when another vector has some of the pages, or the store is too small.
    pub fn at(memory: &FarMemory<S>, page: u64, len: usize) -> Result<Self, FarError> {
        let count = Layout::<T>::count(len);
        let pages = page..page.checked_add(count).ok_or(FarError::Full { pages: count, free: 0 })?;
        if !memory.extents().take_at(pages) {
            return Err(FarError::Full { pages: count, free: 0 });
        }
        Ok(Self { memory: memory.clone(), layout: Layout::new(page), len })
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages of the store that the vector lies in.
    pub fn pages(&self) -> Range<u64> {
        self.layout.first..self.layout.first + Layout::<T>::count(self.len)
    }

    /// The memory that the vector lies in.
    pub fn memory(&self) -> &FarMemory<S> {
        &self.memory
    }

    /// Whether an element is local.
    pub fn is_local(&self, index: usize) -> bool {
        index < self.len && self.memory.pager().is_local(self.layout.place(index).0)
    }

    /// Reads an element.
    ///
    /// # Errors
    ///
    /// [`FarError`], for example [`FarError::OutOfBounds`].
    #[inline]
    pub fn get(&self, index: usize) -> Result<T, FarError> {
        let (page, at) = self.page_and_offset(index)?;
        let mut pager = self.memory.pager();
        let frame = pager.get(page)?;
        let (value, _) = T::read_from_prefix(&pager.bytes(frame)?[at..]).expect("an element lies whole in its page");
        Ok(value)
    }

    /// Changes an element.
    ///
    /// # Errors
    ///
    /// [`FarError`]; the element is then unchanged.
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<(), FarError> {
        let (page, at) = self.page_and_offset(index)?;
        let mut pager = self.memory.pager();
        let frame = pager.get(page)?;
        value.write_to_prefix(&mut pager.bytes_mut(frame)?[at..]).expect("an element lies whole in its page");
        Ok(())
    }

    #[inline]
    fn page_and_offset(&self, index: usize) -> Result<(u64, usize), FarError> {
        if index >= self.len {
            return Err(FarError::OutOfBounds { from: index, to: index.saturating_add(1), len: self.len });
        }
        Ok(self.layout.place(index))
    }

    fn check(&self, range: &Range<usize>) -> Result<(), FarError> {
        if range.start > range.end || range.end > self.len {
            return Err(FarError::OutOfBounds { from: range.start, to: range.end, len: self.len });
        }
        Ok(())
    }

    /// Lends a range for reading. Its pages stay local until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`FarError`]; [`FarError::TooManyPins`] when guards would hold more pages than allowed.
    pub fn slice(&self, range: Range<usize>) -> Result<Pinned<'_, T, S>, FarError> {
        self.check(&range)?;
        Pinned::new(&self.memory, self.layout, range)
    }

    /// Lends a range for reading and writing. Its pages stay local until the guard is dropped, and count as changed
    /// then.
    ///
    /// # Errors
    ///
    /// As for [`Self::slice`].
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<PinnedMut<'_, T, S>, FarError> {
        self.check(&range)?;
        PinnedMut::new(&self.memory, self.layout, range)
    }

    /// Iterates over all elements, from either end. At each end one page at a time is pinned. The iterator ends after
    /// an error.
    pub fn iter(&self) -> Iter<'_, T, S> {
        Iter { vector: self, rest: 0..self.len, front: None, back: None }
    }

    /// Iterates over the elements of a range, as [`Self::iter`] does.
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
        // Pages held by a forgotten guard are never reused.
        if pager.discard_changes(pages.clone()) {
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

/// Iterator over the elements of a [`FarVec`].
#[must_use]
pub struct Iter<'a, T: Pod, S: Store> {
    vector: &'a FarVec<T, S>,
    rest: Range<usize>,
    front: Option<PinnedPage<'a, T, S>>,
    back: Option<PinnedPage<'a, T, S>>,
}

/// The page that an end of an iterator is in: the index of its first element, and its guard.
type PinnedPage<'a, T, S> = (usize, Pinned<'a, T, S>);

impl<'a, T: Pod, S: Store> Iter<'a, T, S> {
    #[inline]
    fn element(
        vector: &'a FarVec<T, S>,
        cached: &mut Option<PinnedPage<'a, T, S>>,
        index: usize,
    ) -> Result<T, FarError> {
        if let Some((first, pinned)) = cached
            && index.wrapping_sub(*first) < Layout::<T>::PER_PAGE
            && let Some(value) = pinned.in_page(index - *first)
        {
            return Ok(value);
        }
        Self::next_page(vector, cached, index)
    }

    #[cold]
    fn next_page(
        vector: &'a FarVec<T, S>,
        cached: &mut Option<PinnedPage<'a, T, S>>,
        index: usize,
    ) -> Result<T, FarError> {
        *cached = None;
        let first = index - index % Layout::<T>::PER_PAGE;
        let (_, pinned) = cached.insert((first, vector.slice(first..vector.len.min(first + Layout::<T>::PER_PAGE))?));
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

    /// Works page by page, so that sums, counts and collects do not look up each element.
    fn fold<A, F: FnMut(A, Self::Item) -> A>(mut self, so_far: A, mut with: F) -> A {
        let mut all = so_far;
        // The ends release their pages first, lest there be none left to pin.
        (self.front, self.back) = (None, None);
        while !self.rest.is_empty() {
            let from = self.rest.start;
            let to = self.rest.end.min(from - from % Layout::<T>::PER_PAGE + Layout::<T>::PER_PAGE);
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
