//! Free and reserved pages of the donors' memory.
//!
//! None of this is stored: used pages are those that belong to files, and reservations end with their client. A page is
//! in one of four states:
//!
//! - free;
//! - reserved by a client, for any use or only to replace pages that files have;
//! - kept back: the client that had reserved it is gone, but may still write there until donors have cut it off;
//! - used: it belongs to a file.

mod intervals;

use std::collections::BTreeMap;

use crate::protocol::{EXTENTS_MAX, Pages, SEGMENTS_MAX};
use intervals::Intervals;

/// Most intervals of a segment that are examined to find one that is long enough.
const RUNS_SEARCHED_MAX: usize = 64;

/// What pages are reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// For any page of a file.
    Any,
    /// Only for pages that a file has already, or that room was promised to: so they, or others, become free again, or
    /// the promise is kept.
    Overwrite,
}

/// Error for pages that are not in the expected state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pages {}+{} of segment {} are not {state}", pages.first, pages.count, pages.segment)]
pub struct WrongState {
    /// The pages.
    pub pages: Pages,
    /// The expected state.
    pub state: &'static str,
}

#[derive(Debug, Default)]
struct SegmentSpace {
    pages: u32,
    free: Intervals,
    /// Reserved pages of each client, by purpose.
    reserved: BTreeMap<(u64, Purpose), Intervals>,
    kept_back: Intervals,
    /// Whether its pages may be reserved.
    is_open: bool,
}

/// The pages of all segments.
#[derive(Debug, Default)]
pub struct Space {
    segments: BTreeMap<u32, SegmentSpace>,
    /// Number of pages that each client has reserved, by purpose.
    clients: BTreeMap<(u64, Purpose), u64>,
    /// Number of pages that all clients have reserved to overwrite others.
    overwriting: u64,
    /// Segment at which the next reservation starts to look. It rotates, so that all donors are written to.
    next: u32,
}

impl Space {
    /// Adds a segment whose pages are all free.
    pub fn add(&mut self, segment: u32, pages: u32) {
        let mut free = Intervals::default();
        free.insert(0, pages);
        self.segments.insert(segment, SegmentSpace { pages, free, is_open: true, ..SegmentSpace::default() });
    }

    /// Removes a segment.
    pub fn remove(&mut self, segment: u32) {
        let Some(removed) = self.segments.remove(&segment) else { return };
        for (reserved, pages) in &removed.reserved {
            self.count(*reserved, -(pages.len() as i64));
        }
    }

    /// Sets whether pages of a segment may be reserved.
    pub fn set_open(&mut self, segment: u32, is_open: bool) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.is_open = is_open;
        }
    }

    /// Number of pages in all segments.
    pub fn pages(&self) -> u64 {
        self.segments.values().map(|segment| u64::from(segment.pages)).sum()
    }

    /// Number of pages that can be reserved.
    pub fn free_pages(&self) -> u64 {
        self.segments.values().filter(|segment| segment.is_open).map(|segment| segment.free.len()).sum()
    }

    /// Whether pages are reserved by a client, or kept back.
    pub fn has_unused(&self) -> bool {
        !self.clients.is_empty() || self.segments.values().any(|segment| segment.kept_back.len() > 0)
    }

    /// Number of pages that a client has reserved.
    pub fn reserved_pages(&self, client: u64) -> u64 {
        self.clients.range((client, Purpose::Any)..=(client, Purpose::Overwrite)).map(|(_, pages)| pages).sum()
    }

    /// Number of pages that clients have reserved to overwrite others. Each becomes free again, or makes another free,
    /// or keeps a promise of room.
    pub fn overwriting_pages(&self) -> u64 {
        self.overwriting
    }

    /// Whether a client has reserved these pages only to overwrite others.
    pub fn is_for_overwrites(&self, client: u64, pages: Pages) -> bool {
        let reserved = self.segments.get(&pages.segment).map(|segment| &segment.reserved);
        let reserved = reserved.and_then(|reserved| reserved.get(&(client, Purpose::Overwrite)));
        reserved.is_some_and(|reserved| reserved.overlaps(pages.first, pages.count))
    }

    /// Number of pages of a segment that belong to no file.
    pub fn unused(&self, segment: u32) -> u64 {
        self.segments.get(&segment).map_or(0, |segment| {
            let reserved: u64 = segment.reserved.values().map(Intervals::len).sum();
            segment.free.len() + segment.kept_back.len() + reserved
        })
    }

    /// Whether all pages of a segment are free.
    pub fn is_free(&self, segment: u32) -> bool {
        self.segments.get(&segment).is_some_and(|segment| segment.free.len() == u64::from(segment.pages))
    }

    /// The first run of pages at or after `from` that belong to files, cut to `max` pages: first, count.
    pub fn used(&self, segment: u32, from: u32, max: u32) -> Option<(u32, u32)> {
        let segment = self.segments.get(&segment)?;
        let all = || segment.reserved.values().chain([&segment.free, &segment.kept_back]);
        let mut first = from;
        while let Some(end) = all().find_map(|unused| unused.end_of(first)) {
            first = end;
        }
        let end = all().filter_map(|unused| unused.next(first)).chain([segment.pages]).min()?;
        let count = end.saturating_sub(first).min(max);
        (count > 0).then_some((first, count))
    }

    fn segment(&mut self, pages: Pages, state: &'static str) -> Result<&mut SegmentSpace, WrongState> {
        let segment = self.segments.get_mut(&pages.segment);
        let is_in = |segment: &&mut SegmentSpace| {
            pages.count > 0 && pages.first.checked_add(pages.count).is_some_and(|end| end <= segment.pages)
        };
        segment.filter(is_in).ok_or(WrongState { pages, state })
    }

    /// Marks free pages as used: for the pages of files when a file system is loaded.
    ///
    /// # Errors
    ///
    /// [`WrongState`] when some are not free, which means that two files have them.
    pub fn take(&mut self, pages: Pages) -> Result<(), WrongState> {
        let state = "free";
        let is_free = self.segment(pages, state)?.free.remove(pages.first, pages.count);
        if is_free { Ok(()) } else { Err(WrongState { pages, state }) }
    }

    /// Marks used pages as free.
    ///
    /// # Errors
    ///
    /// [`WrongState`] when some do not belong to a file.
    pub fn free(&mut self, pages: Pages) -> Result<(), WrongState> {
        let state = "used";
        let segment = self.segment(pages, state)?;
        let Pages { first, count, .. } = pages;
        let others = segment.reserved.values().chain([&segment.kept_back]);
        if others.into_iter().any(|other| other.overlaps(first, count)) || !segment.free.insert(first, count) {
            return Err(WrongState { pages, state });
        }
        Ok(())
    }

    /// Reserves up to `pages` pages, in as few runs as can be found quickly: at most [`EXTENTS_MAX`], in at most
    /// [`SEGMENTS_MAX`] segments. Returns no runs if nothing is free.
    pub fn reserve(&mut self, client: u64, purpose: Purpose, pages: u32) -> Vec<Pages> {
        let reserved = (client, purpose);
        let (mut runs, mut left, mut segments) = (Vec::new(), pages, 0);
        let order: Vec<u32> =
            self.segments.range(self.next..).chain(self.segments.range(..self.next)).map(|s| *s.0).collect();
        // Try segments with a run of the full length first, then any segment.
        for is_whole in [true, false] {
            for number in &order {
                if segments == SEGMENTS_MAX {
                    break;
                }
                let Some(segment) = self.segments.get_mut(number).filter(|segment| segment.is_open) else { continue };
                let before = runs.len();
                while left > 0 && runs.len() < EXTENTS_MAX {
                    let found =
                        if is_whole { segment.free.find(left, RUNS_SEARCHED_MAX) } else { segment.free.first() };
                    let Some((first, count)) = found else { break };
                    let count = count.min(left);
                    segment.free.remove(first, count);
                    segment.reserved.entry(reserved).or_default().insert(first, count);
                    runs.push(Pages { segment: *number, first, count });
                    left -= count;
                }
                segments += usize::from(runs.len() > before);
                if left == 0 {
                    self.next = number.wrapping_add(1);
                    self.count(reserved, i64::from(pages));
                    return runs;
                }
            }
        }
        self.count(reserved, i64::from(pages - left));
        runs
    }

    /// Whether the client has reserved all of these pages, each run for one purpose, and none is listed twice.
    pub fn has_reserved(&self, client: u64, pages: impl IntoIterator<Item = Pages>) -> bool {
        let mut all: BTreeMap<u32, Intervals> = BTreeMap::new();
        pages.into_iter().all(|pages| {
            self.purpose(client, pages).is_some()
                && all.entry(pages.segment).or_default().insert(pages.first, pages.count)
        })
    }

    /// The purpose for which a client has reserved all of these pages.
    fn purpose(&self, client: u64, Pages { segment, first, count }: Pages) -> Option<Purpose> {
        let segment = self.segments.get(&segment)?;
        let is_it = |purpose: &Purpose| {
            segment.reserved.get(&(client, *purpose)).is_some_and(|reserved| reserved.contains(first, count))
        };
        [Purpose::Any, Purpose::Overwrite].into_iter().find(is_it)
    }

    /// Marks pages that a client has reserved as used.
    ///
    /// # Errors
    ///
    /// [`WrongState`] when some are not reserved by it, or not for the same purpose.
    pub fn commit(&mut self, client: u64, pages: Pages) -> Result<(), WrongState> {
        let state = "reserved by the client";
        self.segment(pages, state)?;
        let key = (client, self.purpose(client, pages).ok_or(WrongState { pages, state })?);
        let segment = self.segment(pages, state)?;
        let reserved = segment.reserved.get_mut(&key);
        if !reserved.is_some_and(|reserved| reserved.remove(pages.first, pages.count)) {
            return Err(WrongState { pages, state });
        }
        if segment.reserved.get(&key).is_some_and(|reserved| reserved.len() == 0) {
            segment.reserved.remove(&key);
        }
        self.count(key, -i64::from(pages.count));
        Ok(())
    }

    /// Frees pages that a client has reserved, and to which it does not write any more.
    ///
    /// # Errors
    ///
    /// [`WrongState`] when some are not reserved by it.
    pub fn give_back(&mut self, client: u64, pages: Pages) -> Result<(), WrongState> {
        self.commit(client, pages)?;
        self.free(pages)
    }

    /// Keeps back the reservations of a client that is gone, until [`Self::release`]. Returns them.
    pub fn keep_back(&mut self, client: u64) -> Vec<Pages> {
        let mut kept = Vec::new();
        for reserved in [(client, Purpose::Any), (client, Purpose::Overwrite)] {
            for (number, segment) in &mut self.segments {
                for (first, count) in segment.reserved.remove(&reserved).iter().flat_map(Intervals::iter) {
                    segment.kept_back.insert(first, count);
                    kept.push(Pages { segment: *number, first, count });
                }
            }
            let pages = self.clients.get(&reserved).copied().unwrap_or_default();
            self.count(reserved, -(pages as i64));
        }
        kept
    }

    /// Frees pages that were kept back, now that their client cannot write to them any more. Pages not kept back (their
    /// segment is gone) are left alone.
    pub fn release(&mut self, kept_back: &[Pages]) {
        for pages in kept_back {
            if let Some(segment) = self.segments.get_mut(&pages.segment)
                && segment.kept_back.remove(pages.first, pages.count)
            {
                segment.free.insert(pages.first, pages.count);
            }
        }
    }

    fn count(&mut self, reserved: (u64, Purpose), change: i64) {
        let pages = self.clients.entry(reserved).or_default();
        *pages = pages.saturating_add_signed(change);
        if *pages == 0 {
            self.clients.remove(&reserved);
        }
        if reserved.1 == Purpose::Overwrite {
            self.overwriting = self.overwriting.saturating_add_signed(change);
        }
    }
}

#[cfg(test)]
mod tests;
