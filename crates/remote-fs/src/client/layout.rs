//! The client's cache of the places of a file's pages.

use std::collections::BTreeMap;

use crate::protocol::{Extent, Layout, PAGE, Pages, Run, Sums, contents_name};

/// Consecutive pages of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Their places are not known.
    Unknown,
    /// They read as zeros.
    Hole {
        /// Number of pages.
        count: u64,
    },
    /// They are stored at donors.
    Stored(Stored),
}

/// Consecutive pages of a file that are stored consecutively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub pages: Pages,
    /// Checksum of each page.
    pub sums: Vec<u64>,
    /// Bytes of the last page that belong to the file.
    pub last_len: usize,
}

impl Stored {
    /// The [name](contents_name) of the last page's contents.
    pub fn contents(&self) -> u64 {
        self.sums.last().map_or(0, |sum| contents_name(*sum, self.last_len))
    }
}

/// The known part of a file's layout.
#[derive(Debug, Default)]
pub(super) struct LayoutCache {
    /// Runs by first page; none overlap.
    runs: BTreeMap<u64, Run>,
    /// Known ranges: first page, and the page after the last; none touch.
    ranges: BTreeMap<u64, u64>,
    pages: u64,
}

/// The part of a run from page `from` to before page `to`.
fn slice_run(run: &Run, from: u64, to: u64) -> Run {
    let (skip, count) = ((from - run.at) as usize, (to - from) as usize);
    let is_last = to == run.at + u64::from(run.pages.count);
    Run {
        at: from,
        pages: Pages { first: run.pages.first + skip as u32, count: count as u32, ..run.pages },
        last_len: if is_last { run.last_len } else { PAGE as u16 },
        sums: Sums(run.sums.0[skip..skip + count].to_vec()),
    }
}

fn end(run: &Run) -> u64 {
    run.at + u64::from(run.pages.count)
}

impl LayoutCache {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records that the file has no pages at all.
    pub fn set_empty(&mut self) {
        self.clear();
        self.ranges.insert(0, u64::MAX);
    }

    /// Number of known pages that are stored.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes over the service's answer about the pages from `at` on.
    pub fn learn(&mut self, at: u64, layout: &Layout) {
        if layout.until <= at {
            return;
        }
        self.cut(at, layout.until);
        for run in &layout.runs {
            let (from, to) = (run.at.max(at), end(run).min(layout.until));
            if from < to {
                self.insert(slice_run(run, from, to));
            }
        }
        self.mark_known(at, layout.until);
    }

    /// Records pages that were committed.
    pub fn commit(&mut self, extent: &Extent) {
        let run = Run { at: extent.at, pages: extent.pages, last_len: PAGE as u16, sums: extent.sums.clone() };
        self.cut(run.at, end(&run));
        self.mark_known(run.at, end(&run));
        self.insert(run);
    }

    /// The first piece from page `at` on, of at most `count` pages.
    pub fn piece(&self, at: u64, count: u64) -> Piece {
        let Some((_, known)) = self.ranges.range(..=at).next_back().filter(|(_, known)| **known > at) else {
            return Piece::Unknown;
        };
        let to = (at + count).min(*known);
        if let Some((_, run)) = self.runs.range(..=at).next_back()
            && end(run) > at
        {
            let Run { pages, last_len, sums, .. } = slice_run(run, at, to.min(end(run)));
            return Piece::Stored(Stored { pages, sums: sums.0, last_len: last_len.into() });
        }
        let next = self.runs.range(at..to).next().map_or(to, |(next, _)| *next);
        Piece::Hole { count: next - at }
    }

    /// The [name](contents_name) of a page's contents; 0 for a hole, `None` if unknown.
    pub fn contents(&self, page: u64) -> Option<u64> {
        match self.piece(page, 1) {
            Piece::Unknown => None,
            Piece::Hole { .. } => Some(0),
            Piece::Stored(stored) => Some(stored.contents()),
        }
    }

    fn insert(&mut self, run: Run) {
        self.pages += u64::from(run.pages.count);
        self.runs.insert(run.at, run);
    }

    /// Removes the runs in a range, and shortens those that reach out of it.
    fn cut(&mut self, from: u64, to: u64) {
        let first = self.runs.range(..from).next_back().filter(|(_, run)| end(run) > from).map(|(at, _)| *at);
        let hit: Vec<u64> = first.into_iter().chain(self.runs.range(from..to).map(|(at, _)| *at)).collect();
        for at in hit {
            let Some(run) = self.runs.remove(&at) else { continue };
            self.pages -= u64::from(run.pages.count);
            if run.at < from {
                self.insert(slice_run(&run, run.at, from));
            }
            if end(&run) > to {
                self.insert(slice_run(&run, to, end(&run)));
            }
        }
    }

    fn mark_known(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        while let Some((&at, &until)) = self.ranges.range(..=to).next_back().filter(|(_, until)| **until >= from) {
            self.ranges.remove(&at);
            (from, to) = (from.min(at), to.max(until));
        }
        self.ranges.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 40;

    /// What is known of each page: nothing, a hole, or its place, its checksum and its length.
    type Model = Vec<Option<Option<(u32, u64, usize)>>>;

    fn read(known: &LayoutCache) -> Model {
        let mut model = Model::new();
        while (model.len() as u64) < LEN {
            let at = model.len() as u64;
            match known.piece(at, LEN - at) {
                Piece::Unknown => model.push(None),
                Piece::Hole { count } => model.extend((0..count).map(|_| Some(None))),
                Piece::Stored(Stored { pages, sums, last_len }) => {
                    assert_eq!(sums.len(), pages.count as usize);
                    for (index, sum) in sums.iter().enumerate() {
                        let len = if index + 1 == sums.len() { last_len } else { PAGE };
                        model.push(Some(Some((pages.first + index as u32, *sum, len))));
                    }
                }
            }
        }
        model
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_was_learnt_last(
            steps in prop::collection::vec((0u64..LEN, 1u64..12, any::<bool>(), 1u16..100), 1..60)
        ) {
            let mut known = LayoutCache::default();
            let mut model: Model = vec![None; LEN as usize];
            for (number, (at, count, is_commit, last_len)) in steps.into_iter().enumerate() {
                let count = count.min(LEN - at);
                let pages = Pages { segment: 1, first: number as u32 * 100, count: count as u32 };
                let sums: Vec<u64> = (0..count).map(|index| number as u64 * 100 + index + 1).collect();
                let place = |index: usize, len: usize| Some(Some((pages.first + index as u32, sums[index], len)));
                if is_commit {
                    let sums = Sums(sums.clone());
                    known.commit(&Extent { at, pages, generation: 0, sums, replaces: None });
                    (0..count as usize).for_each(|index| model[at as usize + index] = place(index, PAGE));
                } else {
                    // The first half is stored, the rest is a hole.
                    let half = count / 2;
                    let run = Run {
                        at,
                        pages: Pages { count: half as u32, ..pages },
                        last_len,
                        sums: Sums(sums[..half as usize].to_vec()),
                    };
                    let runs = if half > 0 { vec![run] } else { Vec::new() };
                    let layout = Layout { version: 1, size: 0, until: at + count, runs, places: Vec::new() };
                    known.learn(at, &layout);
                    for index in 0..count as usize {
                        let is_last = index as u64 + 1 == half;
                        let len = if is_last { last_len.into() } else { PAGE };
                        model[at as usize + index] =
                            if (index as u64) < half { place(index, len) } else { Some(None) };
                    }
                }
                prop_assert_eq!(read(&known), model.clone());
                let stored = model.iter().flatten().flatten().count() as u64;
                prop_assert_eq!(known.pages(), stored);
            }
        }
    }
}
