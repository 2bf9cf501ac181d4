//! The map from each logical page to its slot.

use std::ops::Range;

use super::slot::CHUNK;

/// A slot of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub segment: u32,
    pub slot: u32,
}

impl Place {
    /// The place `slots` slots further on.
    pub fn plus(self, slots: u32) -> Self {
        Self { slot: self.slot + slots, ..self }
    }

    fn to_word(self) -> u64 {
        (u64::from(self.segment) << 32 | u64::from(self.slot)) + 1
    }

    fn from_word(word: u64) -> Option<Self> {
        let word = word.checked_sub(1)?;
        Some(Self { segment: (word >> 32) as u32, slot: word as u32 })
    }
}

/// Place and checksum of each logical page. Takes 16 bytes a page, of memory that is only used as pages are written.
pub(super) struct Map {
    /// Place and checksum; zeros for a page that was never written.
    entries: Vec<[u64; 2]>,
}

impl Map {
    /// Whether there is address space for a map of that many pages and for their versions.
    pub fn has_room(pages: u64) -> bool {
        usize::try_from(pages).is_ok_and(|pages| Vec::<[u64; 4]>::new().try_reserve_exact(pages).is_ok())
    }

    pub fn new(pages: u64) -> Self {
        Self { entries: vec![[0; 2]; pages as usize] }
    }

    #[inline]
    pub fn place(&self, page: u64) -> Option<Place> {
        Place::from_word(self.entries.get(page as usize)?[0])
    }

    /// Checksum of a page; 0 if it has none.
    #[inline]
    pub fn sum(&self, page: u64) -> u64 {
        self.entries.get(page as usize).map_or(0, |entry| entry[1])
    }

    /// Sets the place and checksum of a page. Returns its old place.
    #[inline]
    pub fn set(&mut self, page: u64, place: Option<Place>, sum: u64) -> Option<Place> {
        let entry = self.entries.get_mut(page as usize)?;
        Place::from_word(std::mem::replace(entry, [place.map_or(0, Place::to_word), sum])[0])
    }

    /// Returns the place of the first page, and the number of pages from it on that lie in consecutive slots of one
    /// chunk, or that were all never written.
    #[inline]
    pub fn extent(&self, pages: Range<u64>) -> (Option<Place>, u32) {
        let first = self.place(pages.start);
        let mut count = 1;
        let continues = |count: u32| {
            let next = self.place(pages.start + u64::from(count));
            match first {
                None => next.is_none(),
                Some(first) => {
                    let place = first.plus(count);
                    next == Some(place) && !place.slot.is_multiple_of(CHUNK)
                }
            }
        };
        while u64::from(count) < pages.end - pages.start && continues(count) {
            count += 1;
        }
        (first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_end_where_slots_do_not_follow_and_where_chunks_begin() {
        let mut map = Map::new(10);
        let at = |segment, slot| Some(Place { segment, slot });
        for (page, place) in
            [(2, at(0, 5)), (3, at(0, 6)), (4, at(0, 8)), (5, at(1, 9)), (6, at(1, CHUNK - 1)), (7, at(1, CHUNK))]
        {
            assert_eq!(map.set(page, place, page), None);
        }
        let extents: Vec<_> = [0, 2, 4, 5, 6, 7, 8].map(|page| map.extent(page..10)).into();
        let expected = [
            (None, 2),
            (at(0, 5), 2),
            (at(0, 8), 1),
            (at(1, 9), 1),
            (at(1, CHUNK - 1), 1),
            (at(1, CHUNK), 1),
            (None, 2),
        ];
        assert_eq!(extents, expected);
        assert_eq!(map.set(2, None, 0), at(0, 5));
        assert_eq!((map.place(2), map.sum(3), map.place(99)), (None, 3, None));
        assert!(Map::has_room(10) && !Map::has_room(u64::MAX / 32));
    }
}
