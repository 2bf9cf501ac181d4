//! The free pages of a store, as runs in ascending order.

use std::ops::Range;

use crate::error::FarError;

/// The free pages of a store.
#[derive(Debug)]
pub struct Extents {
    free: Vec<Range<u64>>,
}

impl Extents {
    /// All of `pages` pages, free.
    pub fn new(pages: u64) -> Self {
        let all = 0..pages;
        Self { free: Vec::from_iter((pages > 0).then_some(all)) }
    }

    /// Takes a run of pages: the first free run that is long enough.
    ///
    /// # Errors
    ///
    /// [`FarError::Full`] when no run is long enough.
    pub fn take(&mut self, pages: u64) -> Result<Range<u64>, FarError> {
        let len = |run: &Range<u64>| run.end - run.start;
        let Some(at) = self.free.iter().position(|run| len(run) >= pages) else {
            return Err(FarError::Full { pages, free: self.free.iter().map(len).max().unwrap_or(0) });
        };
        let run = &mut self.free[at];
        let taken = run.start..run.start + pages;
        run.start = taken.end;
        if run.is_empty() {
            self.free.remove(at);
        }
        Ok(taken)
    }

    /// Takes exactly these pages. False if some are not free.
    pub fn take_at(&mut self, pages: Range<u64>) -> bool {
        let Some(at) = self.free.iter().position(|run| run.start <= pages.start && pages.end <= run.end) else {
            return pages.is_empty();
        };
        let run = self.free[at].clone();
        let rest = [run.start..pages.start, pages.end..run.end];
        self.free.splice(at..=at, rest.into_iter().filter(|run| !run.is_empty()));
        true
    }

    /// Returns pages that were taken.
    pub fn give_back(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let at = self.free.partition_point(|run| run.start < pages.start);
        self.free.insert(at, pages);
        for first in [at, at.wrapping_sub(1)] {
            if first < self.free.len()
                && first + 1 < self.free.len()
                && self.free[first].end == self.free[first + 1].start
            {
                self.free[first].end = self.free.remove(first + 1).end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_becomes_one_run_again() {
        let mut extents = Extents::new(10);
        let taken: Vec<_> = (0..5).map(|_| extents.take(2).unwrap()).collect();
        assert!(matches!(extents.take(1), Err(FarError::Full { pages: 1, free: 0 })));
        for at in [0, 2, 1, 4, 3] {
            extents.give_back(taken[at].clone());
        }
        assert!(matches!(extents.take(11), Err(FarError::Full { pages: 11, free: 10 })));
        assert_eq!(extents.take(10).unwrap(), 0..10);
        assert_eq!(extents.take(0).ok(), None);
    }

    #[test]
    fn pages_are_taken_where_they_lie_once() {
        let mut extents = Extents::new(10);
        assert!(extents.take_at(3..5) && !extents.take_at(4..6) && !extents.take_at(9..11) && extents.take_at(0..3));
        assert_eq!((extents.free.len(), extents.free[0].clone()), (1, 5..10));
        assert!(extents.take_at(5..10) && extents.free.is_empty());
    }
}
