//! A set of numbers, stored as intervals.

use std::collections::BTreeMap;

/// A set of numbers below 2^32, as intervals (first, count) that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    runs: BTreeMap<u32, u32>,
    len: u64,
}

impl Intervals {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.runs.iter().map(|(first, count)| (*first, *count))
    }

    /// The last interval that begins at or before a number.
    fn before(&self, at: u32) -> Option<(u32, u32)> {
        self.runs.range(..=at).next_back().map(|(first, count)| (*first, *count))
    }

    pub fn contains(&self, first: u32, count: u32) -> bool {
        self.before(first)
            .is_some_and(|(start, len)| u64::from(first) + u64::from(count) <= u64::from(start) + u64::from(len))
    }

    pub fn overlaps(&self, first: u32, count: u32) -> bool {
        if count == 0 {
            return false;
        }
        let last = first.saturating_add(count - 1);
        self.before(last).is_some_and(|(start, len)| start + (len - 1) >= first)
    }

    /// Adds an interval. False, without a change, if some of it is in the set already.
    pub fn insert(&mut self, first: u32, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        if self.overlaps(first, count) || first.checked_add(count).is_none() {
            return false;
        }
        let (mut start, mut len) = (first, count);
        if let Some((before, before_len)) = self.before(first)
            && before + before_len == first
        {
            (start, len) = (before, before_len + len);
        }
        if let Some(behind) = self.runs.remove(&(first + count)) {
            len += behind;
        }
        self.runs.insert(start, len);
        self.len += u64::from(count);
        true
    }

    /// Removes an interval. False, without a change, unless all of it is in the set.
    pub fn remove(&mut self, first: u32, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        let Some((start, len)) = self.before(first).filter(|_| self.contains(first, count)) else { return false };
        self.runs.remove(&start);
        if start < first {
            self.runs.insert(start, first - start);
        }
        let (end, rest) = (first + count, start + len);
        if end < rest {
            self.runs.insert(end, rest - end);
        }
        self.len -= u64::from(count);
        true
    }

    /// The end of the interval that contains this number.
    pub fn end_of(&self, at: u32) -> Option<u32> {
        self.before(at).map(|(start, len)| start + len).filter(|end| *end > at)
    }

    /// The start of the first interval at or after this number.
    pub fn next(&self, at: u32) -> Option<u32> {
        self.runs.range(at..).next().map(|(first, _)| *first)
    }

    pub fn first(&self) -> Option<(u32, u32)> {
        self.iter().next()
    }

    /// The first interval of at least `count` numbers, among the first `tries`.
    pub fn find(&self, count: u32, tries: usize) -> Option<(u32, u32)> {
        self.iter().take(tries).find(|(_, len)| *len >= count)
    }
}
