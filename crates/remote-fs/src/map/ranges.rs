//! A set of pages of a file, stored as ranges.

use std::collections::BTreeMap;

/// A set of pages, as ranges (first page, page after the last) that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    ends: BTreeMap<u64, u64>,
    len: u64,
}

impl Ranges {
    /// Number of pages.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|(first, end)| (*first, *end))
    }

    /// The parts of `at` to before `end` that are in the set.
    fn within(&self, at: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.ends.range(..at).next_back().filter(|(_, stop)| **stop > at);
        let behind = if at < end { Some(self.ends.range(at..end)) } else { None };
        let all = before.filter(|_| at < end).into_iter().chain(behind.into_iter().flatten());
        all.map(move |(first, stop)| ((*first).max(at), (*stop).min(end)))
    }

    /// Number of pages from `at` to before `end` that are in the set.
    pub fn count(&self, at: u64, end: u64) -> u64 {
        self.within(at, end).map(|(first, stop)| stop - first).sum()
    }

    /// Adds the pages from `at` to before `end`.
    pub fn insert(&mut self, at: u64, end: u64) {
        if at >= end {
            return;
        }
        self.remove(at, end);
        let before = self.ends.range(..at).next_back().filter(|(_, stop)| **stop == at).map(|(first, _)| *first);
        let stop = self.ends.remove(&end).unwrap_or(end);
        self.ends.insert(before.unwrap_or(at), stop);
        self.len += end - at;
    }

    /// Removes the pages from `at` to before `end`, as far as they are in the set.
    pub fn remove(&mut self, at: u64, end: u64) {
        if self.len == 0 {
            return;
        }
        let hit: Vec<(u64, u64)> = self.within(at, end).collect();
        for (first, stop) in hit {
            let Some((&from, &to)) = self.ends.range(..=first).next_back() else { continue };
            self.ends.remove(&from);
            if from < first {
                self.ends.insert(from, first);
            }
            if stop < to {
                self.ends.insert(stop, to);
            }
            self.len -= stop - first;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 1..60)
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (adds, at, count) in steps {
                let end = at + count;
                prop_assert_eq!(ranges.count(at, end), model.range(at..end).count() as u64);
                if adds {
                    ranges.insert(at, end);
                    model.extend(at..end);
                } else {
                    ranges.remove(at, end);
                    model.retain(|page| !(at..end).contains(page));
                }
                let pages: Vec<u64> = ranges.iter().flat_map(|(first, end)| first..end).collect();
                prop_assert_eq!(&pages, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.len(), model.len() as u64);
                let is_apart = ranges.iter().zip(ranges.iter().skip(1)).all(|((_, end), (next, _))| end < next);
                prop_assert!(is_apart, "{:?}", ranges);
            }
        }
    }
}
