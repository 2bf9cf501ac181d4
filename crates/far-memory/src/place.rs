//! Layout of a vector's elements: each page holds as many whole ones as fit.

use std::marker::PhantomData;
use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::options::PAGE;

/// Values that can lie in far memory: plain data without padding, for which every bit pattern is valid. This covers
/// every type that derives `zerocopy`'s traits, all numbers, and arrays of them.
pub trait Pod: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + 'static {}
impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + 'static> Pod for T {}

/// Places of a vector's elements.
#[derive(Debug)]
pub struct Layout<T> {
    /// The page of the first element.
    pub first: u64,
    kind: PhantomData<T>,
}

impl<T> Clone for Layout<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Layout<T> {}

impl<T: Pod> Layout<T> {
    /// Elements in a page. No element straddles two.
    pub const PER_PAGE: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>() <= PAGE, "elements of a far vector are of 1 to 4096 bytes");
        assert!(align_of::<T>() <= 64, "elements of a far vector are aligned to 64 bytes at most");
        PAGE / size_of::<T>()
    };

    /// Places from page `first` on.
    pub fn new(first: u64) -> Self {
        Self { first, kind: PhantomData }
    }

    /// Pages that `len` elements take.
    pub fn count(len: usize) -> u64 {
        len.div_ceil(Self::PER_PAGE) as u64
    }

    /// The page of an element, and its offset in bytes there.
    #[inline]
    pub fn place(&self, index: usize) -> (u64, usize) {
        (self.first + (index / Self::PER_PAGE) as u64, index % Self::PER_PAGE * size_of::<T>())
    }

    /// The pages of a range.
    pub fn pages(&self, range: &Range<usize>) -> Range<u64> {
        if range.is_empty() {
            return self.first..self.first;
        }
        self.place(range.start).0..self.place(range.end - 1).0 + 1
    }

    /// The elements that page `at` of a range holds, counted from the start of the range, and their bytes in that page.
    pub fn part_of_page(&self, range: &Range<usize>, at: usize) -> (Range<usize>, Range<usize>) {
        let page = range.start / Self::PER_PAGE + at;
        let page_start = page * Self::PER_PAGE;
        let from = page_start.max(range.start);
        let to = (page_start + Self::PER_PAGE).min(range.end);
        (from - range.start..to - range.start, (from - page_start) * size_of::<T>()..(to - page_start) * size_of::<T>())
    }

    /// Index of the page within a range that holds element `index`, and the index among the range's elements there.
    pub fn find(&self, range: &Range<usize>, index: usize) -> (usize, usize) {
        let page_index = (range.start + index) / Self::PER_PAGE - range.start / Self::PER_PAGE;
        (page_index, index - self.part_of_page(range, page_index).0.start)
    }

    /// Views bytes of a page as elements.
    pub fn elements<'a>(&self, bytes: &'a [u8]) -> &'a [T] {
        <[T]>::ref_from_bytes(bytes).expect("whole elements of a page, whose buffer is aligned to 64 bytes")
    }

    /// Views bytes of a page as elements.
    pub fn elements_mut<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [T] {
        <[T]>::mut_from_bytes(bytes).expect("whole elements of a page, whose buffer is aligned to 64 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Three = [u8; 3];

    #[test]
    fn no_element_lies_in_two_pages() {
        assert_eq!(
            (Layout::<Three>::PER_PAGE, Layout::<[u8; 4096]>::PER_PAGE, Layout::<u64>::PER_PAGE),
            (1365, 1, 512)
        );
        let places = Layout::<Three>::new(7);
        assert_eq!([0, 1364, 1365].map(|index| places.place(index)), [(7, 0), (7, 4092), (8, 0)]);
        assert_eq!([0, 1, 1365, 1366].map(Layout::<Three>::count), [0, 1, 1, 2]);
    }

    #[test]
    fn parts_of_a_range_are_its_elements_in_order() {
        let places = Layout::<u64>::new(0);
        for range in [0..0, 5..5, 0..1, 511..513, 100..2000, 512..1024] {
            let pages = places.pages(&range);
            let parts: Vec<_> =
                (0..(pages.end - pages.start) as usize).map(|at| places.part_of_page(&range, at)).collect();
            let mut next = 0;
            for (at, (elements, bytes)) in parts.iter().enumerate() {
                assert_eq!((elements.start, elements.len() * 8), (next, bytes.len()));
                next = elements.end;
                for index in elements.clone() {
                    assert_eq!(places.find(&range, index), (at, index - elements.start));
                }
            }
            assert_eq!(next, range.len());
        }
    }
}
