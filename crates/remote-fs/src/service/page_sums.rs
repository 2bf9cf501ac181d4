//! The checksums that pages of some segments should have, by which the repair of these segments checks what it copies.
//!
//! A map leads from a file's page to a page of a segment, and not back. So all maps are walked, a bounded number of
//! pages at each turn, and what clients commit meanwhile is noted as it is committed. One walk serves many segments,
//! since a donor that is gone leaves many with a missing copy.

use std::collections::BTreeMap;

use crate::protocol::{Extent, Ino};
use crate::tree::{Body, Tree};

/// Pages whose checksums are kept at once, about: 32 MiB of them.
const PAGES_MAX: usize = 1 << 22;
/// Inodes, and chunks of their maps, that are visited at each turn, at most.
const VISITS_MAX: usize = 128;

/// The checksums of all pages of some segments; 0 for those that never belonged to a file.
///
/// The checksum of a page stays when it becomes free, until the page belongs to a file again.
#[derive(Debug, Default)]
pub(super) struct PageSums {
    segments: BTreeMap<u32, Vec<u64>>,
    /// The inode, and the page of it, at which the walk continues; `None` once it is over.
    next: Option<(Ino, u64)>,
}

impl PageSums {
    /// Begins a walk for segments: each with its number of pages, and as many of them as are kept at once.
    pub fn begin(&mut self, segments: impl IntoIterator<Item = (u32, u32)>) {
        *self = Self { segments: BTreeMap::new(), next: Some((Ino::default(), 0)) };
        let mut pages = 0;
        for (segment, count) in segments {
            pages += count as usize;
            if pages > PAGES_MAX && !self.segments.is_empty() {
                return;
            }
            self.segments.insert(segment, vec![0; count as usize]);
        }
    }

    /// Whether a segment is among those whose checksums are known, or are being collected.
    pub fn includes(&self, segment: u32) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Whether the walk goes on.
    pub fn is_collecting(&self) -> bool {
        self.next.is_some()
    }

    /// Walks on for a while.
    pub fn collect(&mut self, tree: &Tree) {
        let Some(next) = self.next.take() else { return };
        let mut visits = VISITS_MAX;
        for (ino, inode) in tree.inodes_from(next.0) {
            // The file at which the walk stopped may be gone, and another come next.
            let at = if ino == next.0 { next.1 } else { 0 };
            if visits == 0 {
                self.next = Some((ino, at));
                return;
            }
            visits -= 1;
            if let Body::File(map) = inode.body() {
                let mut kept = Kept { segments: &mut self.segments, last: None };
                let (visited, behind) = map.visit(at, visits, |segment, page, sum| kept.set(segment, page, sum));
                visits -= visited;
                if let Some(behind) = behind {
                    self.next = Some((ino, behind));
                    return;
                }
            }
        }
    }

    /// Takes note of pages that now belong to a file.
    pub fn note(&mut self, extents: &[Extent]) {
        for Extent { pages, sums, .. } in extents {
            let Some(kept) = self.segments.get_mut(&pages.segment) else { continue };
            kept.iter_mut().skip(pages.first as usize).zip(&sums.0).for_each(|(kept, sum)| *kept = *sum);
        }
    }

    /// The checksums of consecutive pages that belong to files; `None` if they are not known.
    pub fn of(&self, segment: u32, first: u32, count: u32) -> Option<&[u64]> {
        let first = first as usize;
        self.segments.get(&segment).filter(|_| !self.is_collecting())?.get(first..first + count as usize)
    }

    /// Forgets everything, and ends the walk.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets a segment, which is repaired.
    pub fn forget(&mut self, segment: u32) {
        self.segments.remove(&segment);
    }
}

/// The checksums, with the segment that was last asked for: the pages of a file mostly lie together.
struct Kept<'a> {
    segments: &'a mut BTreeMap<u32, Vec<u64>>,
    last: Option<(u32, bool)>,
}

impl Kept<'_> {
    fn set(&mut self, segment: u32, page: u32, sum: u64) {
        if self.last == Some((segment, false)) {
            return;
        }
        let kept = self.segments.get_mut(&segment);
        self.last = Some((segment, kept.is_some()));
        if let Some(kept) = kept.and_then(|kept| kept.get_mut(page as usize)) {
            *kept = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Caller, NodeKind, Pages, Request, Sums, Time};
    use crate::tree::Context;

    /// A tree with files, each with this many pages, one after the other in segments of a hundred pages.
    struct Files {
        tree: Tree,
        placed: u32,
    }

    impl Files {
        fn change(&mut self, opened: Option<Ino>, request: &Request) -> Ino {
            let context = Context { caller: &Caller::default(), now: Time::default(), opened };
            match self.tree.change(context, request, &mut Vec::new()) {
                Ok(crate::protocol::Answer::Attr(attr)) => attr.ino,
                other => panic!("{other:?}"),
            }
        }

        fn add(&mut self, name: u32) -> Ino {
            let (parent, name) = (Ino::ROOT, name.to_string().into_bytes());
            let request = Request::MakeNode { parent, name, mode: 0o600, kind: NodeKind::File, rdev: 0 };
            self.change(None, &request)
        }

        /// Writes a page, whose checksum says where it lies.
        fn write(&mut self, ino: Ino, at: u64) -> Extent {
            let pages = Pages { segment: self.placed / 100, first: self.placed % 100, count: 1 };
            self.placed += 1;
            let extent = Extent { at, pages, generation: 0, sums: Sums(vec![sum_of(self.placed - 1)]), replaces: None };
            let (size_min, mtime, holes, extents) = (1 << 40, None, Vec::new(), vec![extent.clone()]);
            self.change(Some(ino), &Request::Commit { handle: 1, size_min, mtime, holes, extents });
            extent
        }
    }

    fn sum_of(page: u32) -> u64 {
        1000 + u64::from(page)
    }

    #[test]
    fn a_walk_finds_the_checksums_of_all_pages_in_bounded_portions() {
        let mut files = Files { tree: Tree::new(Time::default()), placed: 0 };
        for name in 0..300 {
            let ino = files.add(name);
            // Every hundredth file has many chunks.
            let pages = if name % 100 == 7 { 600 } else { name % 3 };
            (0..pages).for_each(|at| drop(files.write(ino, u64::from(at) * 97)));
        }
        let mut sums = PageSums::default();
        assert!(!sums.is_collecting() && sums.of(0, 0, 1).is_none());
        sums.begin([(3, 100), (19, 100), (20, 100)]);
        let mut turns = 0;
        while sums.is_collecting() {
            assert!(sums.of(3, 0, 1).is_none(), "they are not yet known");
            sums.collect(&files.tree);
            turns += 1;
        }
        assert!(turns as usize > (300 + 3 * 600) / VISITS_MAX, "{turns}");
        for segment in [3, 19] {
            let expected: Vec<u64> = (0..100).map(|page| sum_of(segment * 100 + page)).collect();
            assert_eq!(sums.of(segment, 0, 100), Some(&expected[..]));
        }
        assert_eq!((sums.of(3, 99, 2), sums.of(4, 0, 1), sums.includes(4)), (None, None, false));
        sums.forget(3);
        assert!(!sums.includes(3) && sums.of(3, 0, 1).is_none());
    }

    #[test]
    fn what_is_committed_during_a_walk_is_known_wherever_the_walk_is() {
        let mut files = Files { tree: Tree::new(Time::default()), placed: 0 };
        let inos: Vec<Ino> = (0..1000).map(|name| files.add(name)).collect();
        let mut sums = PageSums::default();
        sums.begin((0..10).map(|segment| (segment, 100)));
        while sums.is_collecting() {
            for ino in [inos[0], inos[500], inos[999]] {
                let extent = files.write(ino, u64::from(files.placed % 7));
                sums.note(&[extent]);
            }
            sums.collect(&files.tree);
        }
        assert!(files.placed > 20);
        for page in 0..files.placed {
            assert_eq!(sums.of(page / 100, page % 100, 1), Some(&[sum_of(page)][..]), "page {page}");
        }
    }

    #[test]
    fn a_walk_that_stopped_in_a_file_that_is_gone_skips_nothing_of_the_next() {
        let mut files = Files { tree: Tree::new(Time::default()), placed: 0 };
        let [long, next] = [0, 1].map(|name| files.add(name));
        (0..2 * VISITS_MAX as u64).for_each(|at| drop(files.write(long, at * 64)));
        let kept = files.write(next, 0);
        let mut sums = PageSums::default();
        sums.begin([(kept.pages.segment, 100)]);
        sums.collect(&files.tree);
        assert!(sums.is_collecting());
        let context = Context { caller: &Caller::default(), now: Time::default(), opened: None };
        let unlink = Request::Unlink { parent: Ino::ROOT, name: b"0".to_vec() };
        files.tree.change(context, &unlink, &mut Vec::new()).unwrap();
        assert!(files.tree.drop_orphan(long, &mut Vec::new()));
        while sums.is_collecting() {
            sums.collect(&files.tree);
        }
        assert_eq!(sums.of(kept.pages.segment, kept.pages.first, 1), Some(&kept.sums.0[..]));
    }

    #[test]
    fn so_many_checksums_are_kept_and_no_more_but_always_those_of_one_segment() {
        let mut sums = PageSums::default();
        sums.begin((0..5).map(|segment| (segment, PAGES_MAX as u32 / 2)));
        assert!(sums.includes(0) && sums.includes(1) && !sums.includes(2));
        sums.begin([(7, PAGES_MAX as u32 + 1), (8, 1)]);
        assert!(sums.includes(7) && !sums.includes(8));
    }
}
