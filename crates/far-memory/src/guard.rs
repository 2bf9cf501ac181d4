//! Guards, which keep the pages of a range of a vector local.
//!
//! A guard for reading has shares of the pages' buffers; a guard for writing has the buffers themselves. So nothing
//! else can change what is lent, whatever happens to the guard: a forgotten guard keeps its pages, and other accesses
//! to them get an error.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};

use sinew_mem::{Frozen, MessageBuffer};
use sinew_remote_memory::Store;

use crate::error::FarError;
use crate::memory::FarMemory;
use crate::place::{Layout, Pod};

/// A range lent for reading. See [`FarVec::slice`](crate::FarVec::slice).
#[must_use]
pub struct Pinned<'a, T: Pod, S: Store> {
    held: PinnedPages<'a, T, S, Frozen>,
}

/// A range lent for reading and writing. See [`FarVec::slice_mut`](crate::FarVec::slice_mut).
#[must_use]
pub struct PinnedMut<'a, T: Pod, S: Store> {
    held: PinnedPages<'a, T, S, MessageBuffer>,
}

/// State common to both kinds of guard: the range, and the bytes of its pages.
struct PinnedPages<'a, T: Pod, S: Store, B: PinnedBuffer> {
    memory: &'a FarMemory<S>,
    range: Range<usize>,
    layout: Layout<T>,
    pages: Vec<(u32, B)>,
    kind: PhantomData<T>,
}

/// Bytes that a frame lends to a guard and gets back.
trait PinnedBuffer: std::ops::Deref<Target = [u8]> + Sized {
    fn acquire<S: Store>(memory: &FarMemory<S>, frame: u32) -> Result<Self, FarError>;
    fn release<S: Store>(self, memory: &FarMemory<S>, frame: u32);
    /// An empty list, one kept for reuse if there is one.
    fn take_list<S: Store>(memory: &FarMemory<S>) -> Vec<(u32, Self)>;
    fn return_list<S: Store>(memory: &FarMemory<S>, list: Vec<(u32, Self)>);
}

impl PinnedBuffer for Frozen {
    fn acquire<S: Store>(memory: &FarMemory<S>, frame: u32) -> Result<Self, FarError> {
        memory.pager().share(frame)
    }

    fn release<S: Store>(self, _: &FarMemory<S>, _: u32) {}

    fn take_list<S: Store>(memory: &FarMemory<S>) -> Vec<(u32, Self)> {
        memory.lists().shared.pop().unwrap_or_default()
    }

    fn return_list<S: Store>(memory: &FarMemory<S>, list: Vec<(u32, Self)>) {
        memory.lists().shared.push(list);
    }
}

impl PinnedBuffer for MessageBuffer {
    fn acquire<S: Store>(memory: &FarMemory<S>, frame: u32) -> Result<Self, FarError> {
        memory.pager().lend(frame)
    }

    fn release<S: Store>(self, memory: &FarMemory<S>, frame: u32) {
        memory.pager().give_back(frame, self);
    }

    fn take_list<S: Store>(memory: &FarMemory<S>) -> Vec<(u32, Self)> {
        memory.lists().unshared.pop().unwrap_or_default()
    }

    fn return_list<S: Store>(memory: &FarMemory<S>, list: Vec<(u32, Self)>) {
        memory.lists().unshared.push(list);
    }
}

impl<'a, T: Pod, S: Store, B: PinnedBuffer> PinnedPages<'a, T, S, B> {
    fn new(memory: &'a FarMemory<S>, layout: Layout<T>, range: Range<usize>) -> Result<Self, FarError> {
        let mut held = Self { memory, range, layout, pages: B::take_list(memory), kind: PhantomData };
        let pages = layout.pages(&held.range);
        let count = (pages.end - pages.start) as usize;
        {
            let mut pager = memory.pager();
            let (pinned, max) = (pager.stats().pinned, pager.options.pinned_pages);
            if count > max {
                return Err(FarError::TooManyPins { asked: count, pinned, max });
            }
            if count > 1 {
                pager.prefetch(pages.clone());
            }
        }
        for page in pages {
            let frame = {
                let mut pager = memory.pager();
                let frame = pager.get(page)?;
                if !pager.may_pin(frame) {
                    let (pinned, max) = (pager.stats().pinned - held.pages.len(), pager.options.pinned_pages);
                    return Err(FarError::TooManyPins { asked: count, pinned, max });
                }
                frame
            };
            // Lend before pinning: a writer is refused a pinned frame, and a pin found here belongs to a forgotten
            // guard.
            let bytes = B::acquire(memory, frame)?;
            memory.pager().pin(frame);
            held.pages.push((frame, bytes));
        }
        Ok(held)
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    /// The elements of the range that lie in its page `at`, and their bytes in that page.
    fn part_of_page(&self, at: usize) -> (Range<usize>, Range<usize>) {
        self.layout.part_of_page(&self.range, at)
    }

    /// Index of the page within the range that holds element `index`, and the index among the elements in that page.
    fn find(&self, index: usize) -> (usize, usize) {
        assert!(index < self.len(), "element {index} of a range of {}", self.len());
        self.layout.find(&self.range, index)
    }

    fn piece(&self, at: usize) -> &[T] {
        let (_, bytes) = self.part_of_page(at);
        self.layout.elements(&self.pages[at].1[bytes])
    }
}

impl<T: Pod, S: Store> PinnedPages<'_, T, S, MessageBuffer> {
    fn piece_mut(&mut self, at: usize) -> &mut [T] {
        let (_, bytes) = self.part_of_page(at);
        self.layout.elements_mut(&mut self.pages[at].1[bytes])
    }
}

impl<T: Pod, S: Store, B: PinnedBuffer> Drop for PinnedPages<'_, T, S, B> {
    fn drop(&mut self) {
        let mut pages = std::mem::take(&mut self.pages);
        for (frame, bytes) in pages.drain(..) {
            bytes.release(self.memory, frame);
            self.memory.pager().unpin(frame);
        }
        B::return_list(self.memory, pages);
    }
}

impl<'a, T: Pod, S: Store> Pinned<'a, T, S> {
    pub(crate) fn new(memory: &'a FarMemory<S>, places: Layout<T>, range: Range<usize>) -> Result<Self, FarError> {
        Ok(Self { held: PinnedPages::new(memory, places, range)? })
    }

    /// Number of elements in the range.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.held.len() == 0
    }

    /// An element of a range that lies in one page; `None` if that page does not have it whole.
    #[inline]
    pub(crate) fn in_page(&self, index: usize) -> Option<T> {
        let (_, bytes) = self.held.pages.first()?;
        let offset = (self.held.range.start % Layout::<T>::PER_PAGE + index) * size_of::<T>();
        Some(T::read_from_prefix(bytes.get(offset..)?).ok()?.0)
    }

    /// The range page by page. The elements in one page form one slice.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &[T]> + DoubleEndedIterator {
        (0..self.held.pages.len()).map(|at| self.held.piece(at))
    }

    /// Iterates over all elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.pieces().flatten()
    }

    /// The whole range as one slice, if it lies in one page.
    pub fn as_slice(&self) -> Option<&[T]> {
        match self.held.pages.len() {
            0 => Some(&[]),
            1 => Some(self.held.piece(0)),
            _ => None,
        }
    }

    /// Copies the range into `target`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn copy_to(&self, target: &mut [T]) {
        assert_eq!(target.len(), self.len(), "the target must be as long as the range");
        let mut rest = target;
        for piece in self.pieces() {
            let (part, behind) = rest.split_at_mut(piece.len());
            part.copy_from_slice(piece);
            rest = behind;
        }
    }
}

impl<'a, T: Pod, S: Store> PinnedMut<'a, T, S> {
    pub(crate) fn new(memory: &'a FarMemory<S>, places: Layout<T>, range: Range<usize>) -> Result<Self, FarError> {
        Ok(Self { held: PinnedPages::new(memory, places, range)? })
    }

    /// Number of elements in the range.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.held.len() == 0
    }

    /// The range page by page, for reading.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &[T]> + DoubleEndedIterator {
        (0..self.held.pages.len()).map(|at| self.held.piece(at))
    }

    /// Calls `change` with the elements of each page of the range.
    pub fn for_each_piece(&mut self, mut change: impl FnMut(&mut [T])) {
        (0..self.held.pages.len()).for_each(|at| change(self.held.piece_mut(at)));
    }

    /// The whole range as one slice, if it lies in one page.
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        match self.held.pages.len() {
            0 => Some(&mut []),
            1 => Some(self.held.piece_mut(0)),
            _ => None,
        }
    }

    /// Copies `source` into the range.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn copy_from(&mut self, source: &[T]) {
        assert_eq!(source.len(), self.len(), "the source must be as long as the range");
        let mut rest = source;
        self.for_each_piece(|piece| {
            let (part, behind) = rest.split_at(piece.len());
            piece.copy_from_slice(part);
            rest = behind;
        });
    }
}

impl<T: Pod, S: Store> Index<usize> for Pinned<'_, T, S> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let (page, at) = self.held.find(index);
        &self.held.piece(page)[at]
    }
}

impl<T: Pod, S: Store> Index<usize> for PinnedMut<'_, T, S> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let (page, at) = self.held.find(index);
        &self.held.piece(page)[at]
    }
}

impl<T: Pod, S: Store> IndexMut<usize> for PinnedMut<'_, T, S> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        let (page, at) = self.held.find(index);
        &mut self.held.piece_mut(page)[at]
    }
}

impl<T: Pod, S: Store> std::fmt::Debug for Pinned<'_, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("range", &self.held.range).finish_non_exhaustive()
    }
}

impl<T: Pod, S: Store> std::fmt::Debug for PinnedMut<'_, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedMut").field("range", &self.held.range).finish_non_exhaustive()
    }
}
