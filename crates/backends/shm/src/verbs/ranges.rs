//! The free parts of a device's exposed memory.

use std::collections::BTreeMap;

/// Bytes of a page: ranges are whole pages.
pub(crate) const PAGE: usize = 4096;

/// The free ranges of a stretch of memory, by their starts; no two of them touch.
#[derive(Debug)]
pub(crate) struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// One free range of `len` bytes from `start`.
    pub fn new(start: usize, len: usize) -> Self {
        Self(BTreeMap::from([(start, len)]))
    }

    /// Takes the first range of at least `len` bytes, in whole pages and at least one page, and returns its start.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let len = pages(len)?;
        let (start, free) = self.0.iter().map(|(&start, &free)| (start, free)).find(|&(_, free)| free >= len)?;
        self.0.remove(&start);
        if free > len {
            self.0.insert(start + len, free - len);
        }
        Some(start)
    }

    /// Gives back the range that [`Self::take`] took for `len` bytes.
    pub fn give_back(&mut self, start: usize, len: usize) {
        let Some(mut len) = pages(len) else { return };
        let mut start = start;
        if let Some(behind) = self.0.remove(&(start + len)) {
            len += behind;
        }
        if let Some((&before, &free)) = self.0.range(..start).next_back()
            && before + free == start
        {
            start = before;
            len += free;
        }
        self.0.insert(start, len);
    }

    /// Length of the longest free range, in bytes.
    pub fn longest(&self) -> usize {
        self.0.values().copied().max().unwrap_or(0)
    }
}

/// Bytes of the whole pages that `len` bytes need.
pub(crate) fn pages(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_grow_together_again() {
        let mut ranges = Ranges::new(PAGE, 8 * PAGE);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut step = 1usize;
        for round in 0..2000 {
            step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if step >> 33 & 1 == 0 && !taken.is_empty() {
                let (start, len) = taken.swap_remove((step >> 40) % taken.len());
                ranges.give_back(start, len);
            } else if let Some(start) = ranges.take((step >> 40) % (3 * PAGE)) {
                let len = (step >> 40) % (3 * PAGE);
                let end = start + pages(len).unwrap();
                assert!(start >= PAGE && end <= 9 * PAGE, "round {round}");
                assert!(taken.iter().all(|&(other, len)| end <= other || start >= other + pages(len).unwrap()));
                taken.push((start, len));
            }
        }
        for (start, len) in taken {
            ranges.give_back(start, len);
        }
        assert_eq!(ranges.longest(), 8 * PAGE);
        assert_eq!(
            (ranges.take(8 * PAGE + 1), ranges.take(usize::MAX), ranges.take(8 * PAGE)),
            (None, None, Some(PAGE))
        );
        assert_eq!(ranges.take(0), None);
    }
}
