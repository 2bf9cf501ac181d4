//! Clearing: the headers of slots no longer needed become zeros on all copies, and then the slots are free.

use std::ops::Range;

use super::core::{Owner, PendingClear, Run, RunKind, Volume, lane_bit};
use super::donors::Donors;
use super::map::Place;
use super::slot::CHUNK;
use crate::engine::Op;
use crate::store::BLOCK;

impl<D: Donors> Volume<D> {
    /// Clears slots of one chunk. `owner` is the request, for a discard.
    pub(super) fn clear(&mut self, place: Place, count: u32, page: Option<u64>, owner: Option<u32>) {
        if let (Some(page), None) = (page, owner) {
            (page..page + u64::from(count)).for_each(|page| *self.clearing.entry(page).or_default() += 1);
        }
        if let Some(owner) = owner {
            self.requests.get_mut(owner).parts += 1;
        }
        self.clear_now(PendingClear { place, count, page, owner });
    }

    pub(super) fn clear_now(&mut self, pending: PendingClear) {
        let PendingClear { place, count, page, owner } = pending;
        let chunk = place.slot / CHUNK;
        let segment = &mut self.segments[place.segment as usize];
        if segment.slots.held_chunk == Some(chunk) {
            return self.held_clears.push_back(pending);
        }
        if segment.is_dead() || self.ended.is_some() {
            return self.defer_clear(pending);
        }
        segment.busy[chunk as usize] += 1;
        let mut lanes = arrayvec::ArrayVec::<(u8, u64), { super::DONORS_MAX }>::new();
        lanes.extend(segment.written(place.slot));
        let run = self.runs.insert(Run {
            kind: RunKind::Clear { owner },
            place,
            count,
            page,
            outstanding: lanes.len() as u32,
            lanes: lanes.iter().fold(0, |all, (lane, _)| all | lane_bit(*lane)),
            failed: 0,
            needs: self.voting.generation,
        });
        for (lane, base) in lanes {
            let op = Op::Write { at: base + self.shape.header_at(place.slot), source: self.zero_headers(count) };
            self.send(lane, Owner::Run(run), op);
        }
    }

    /// Frees slots that have been cleared.
    pub(super) fn on_cleared(&mut self, place: Place, count: u32, page: Option<u64>, owner: Option<u32>) {
        self.stats.cleared += u64::from(count);
        let slots = &mut self.segments[place.segment as usize].slots;
        (0..count).for_each(|slot| slots.give_back(place.slot + slot));
        match (page, owner) {
            (Some(page), Some(owner)) => {
                for page in page..page + u64::from(count) {
                    self.map.set(page, None, 0);
                    self.trusted.remove(&page);
                }
                self.complete_part(owner, None);
            }
            (Some(page), None) => self.count_cleared(page, count),
            _ => {}
        }
    }

    fn count_cleared(&mut self, page: u64, count: u32) {
        for page in page..page + u64::from(count) {
            if let Some(slots) = self.clearing.get_mut(&page) {
                *slots -= 1;
                if *slots == 0 {
                    self.clearing.remove(&page);
                }
            }
        }
        self.requests.ready.extend(self.waiting.drain(..));
    }

    /// Handles slots of which no copy can be reached: they stay as they are until one can.
    pub(super) fn defer_clear(&mut self, owed: PendingClear) {
        let PendingClear { count, page, owner, .. } = owed;
        if let Some(owner) = owner {
            let error = self.no_copy();
            return self.complete_part(owner, Some(error));
        }
        self.unclean.push(owed);
        if let Some(page) = page {
            self.count_cleared(page, count);
        }
    }

    /// Whether a discard may begin. It must wait while other slots of its pages are uncleared, because those would be
    /// found instead.
    pub(super) fn may_discard(&mut self, key: u32) -> bool {
        let pages = self.requests.get(key).pages();
        let waits = if (self.clearing.len() as u64) < pages.end - pages.start {
            self.clearing.keys().any(|page| pages.contains(page))
        } else {
            pages.into_iter().any(|page| self.clearing.contains_key(&page))
        };
        if waits {
            self.waiting.push(key);
        }
        !waits
    }

    /// Clears the slots of the whole pages among these.
    pub(super) fn discard_pages(&mut self, key: u32, pages: Range<u64>) {
        let live = self.requests.get(key);
        let (at, end) = (live.at.div_ceil(BLOCK as u64), (live.at + live.len) / BLOCK as u64);
        let pages = pages.start.max(at)..pages.end.min(end);
        let mut page = pages.start;
        if let Some(page) = pages.clone().find(|page| self.is_unknown(*page)) {
            self.requests.get_mut(key).error = Some(self.unknown(page));
            return;
        }
        while page < pages.end {
            let (place, count) = self.map.extent(page..pages.end);
            if let Some(place) = place {
                self.clear(place, count, Some(page), Some(key));
            }
            page += u64::from(count);
        }
    }
}
