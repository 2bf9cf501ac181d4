//! Changes: pages are written beside those that they replace, on all copies; then the map is switched, and then the old
//! slots are cleared.

use sinew_fabric::verbs::Slice;
use sinew_mem::Frozen;

use super::core::{Destination, Lanes, Owner, PendingClear, Run, RunKind, Volume, lane_bit};
use super::donors::Donors;
use super::map::Place;
use super::requests::{Edge, Kind, Pending};
use super::slot::{HEADER, Header, Version, checksum, sum_in};
use crate::engine::Op;
use crate::store::{BLOCK, StoreError};

const PAGE: u64 = BLOCK as u64;

/// Consecutive pages of a change, from `page` on, that lie in one buffer, and their number.
fn source_at(live: &Pending, page: u64) -> Option<(Slice, u64)> {
    for edge in live.edges.iter().flatten() {
        if edge.page == page {
            return Some((Slice::from(edge.frozen.clone()?), 1));
        }
    }
    let edge_after = live.edges.iter().flatten().map(|edge| edge.page).filter(|edge| *edge > page).min();
    let end = edge_after.unwrap_or(live.pages().end);
    let source = live.source.as_ref()?;
    let from = usize::try_from((page * PAGE).checked_sub(live.at)?).ok()?;
    let len = ((end - page) * PAGE) as usize;
    Some((Slice { buffer: source.buffer.clone(), start: source.start + from, len }, end - page))
}

/// Applies a request's bytes to its edges.
fn overlay(live: &mut Pending) {
    let (at, end) = (live.at, live.at + live.len);
    for edge in live.edges.iter_mut().flatten() {
        let Some(mut staged) = edge.staged.take() else { continue };
        let first = edge.page * PAGE;
        let (from, to) = (at.max(first), end.min(first + PAGE));
        let part = &mut staged[(from - first) as usize..(to - first) as usize];
        match (live.kind, &live.source) {
            (Kind::Write, Some(source)) => {
                let start = (from - at) as usize;
                part.copy_from_slice(&source.bytes()[start..start + part.len()]);
            }
            (Kind::Discard, _) => part.fill(0),
            _ => {}
        }
        edge.frozen = Some(staged.freeze());
    }
}

impl<D: Donors> Volume<D> {
    /// Begins a change: reads the pages that it changes in part. Returns false if there is no memory for them now.
    pub(super) fn start_change(&mut self, key: u32) -> bool {
        let live = self.requests.get(key);
        let (pages, kind, at, end) = (live.pages(), live.kind, live.at, live.at + live.len);
        if kind == Kind::Discard && !self.may_discard(key) {
            return true;
        }
        let is_partial = |page: u64| kind == Kind::Refresh || page * PAGE < at || end < (page + 1) * PAGE;
        let last = pages.end - 1;
        let candidates = [Some(pages.start), (last != pages.start).then_some(last)];
        let edges = candidates.map(|page| page.filter(|page| is_partial(*page)));
        if let Some(page) = edges.iter().flatten().find(|page| self.is_unknown(**page)) {
            let error = self.unknown(*page);
            let live = self.requests.get_mut(key);
            live.parts = 1;
            self.complete_part(key, Some(error));
            return true;
        }
        // Pages that were never written read as zeros already.
        let edges = edges.map(|page| page.filter(|page| kind == Kind::Write || self.map.place(*page).is_some()));
        let mut staged = [None, None];
        for (edge, staged) in edges.iter().zip(&mut staged) {
            if edge.is_some() {
                let Ok(buffer) = self.donors.arena().alloc(BLOCK, BLOCK) else { return false };
                *staged = Some(buffer);
            }
        }
        let live = self.requests.get_mut(key);
        live.parts = 1;
        // Pages that were never written are not discarded at any donor.
        live.is_from_map = kind == Kind::Discard;
        for (index, edge) in edges.into_iter().enumerate() {
            let (Some(page), Some(mut buffer)) = (edge, staged[index].take()) else { continue };
            if let Some(place) = self.map.place(page) {
                self.requests.get_mut(key).edges[index] = Some(Edge { page, staged: None, frozen: None });
                self.read_piece(key, Destination::Edge(index as u8), page, place, 1, Some(buffer));
            } else {
                buffer[..].fill(0);
                let live = self.requests.get_mut(key);
                live.is_from_map = true;
                live.edges[index] = Some(Edge { page, staged: Some(buffer), frozen: None });
            }
        }
        self.complete_part(key, None);
        true
    }

    /// Continues a change that has read what it needs.
    pub(super) fn change(&mut self, key: u32) {
        let live = self.requests.get_mut(key);
        overlay(live);
        live.writes = true;
        live.next = live.pages().start;
        live.parts = 1;
        self.advance(key);
    }

    /// Writes the rest of a change, as far as there are slots.
    pub(super) fn advance(&mut self, key: u32) {
        loop {
            let live = self.requests.get(key);
            let (next, end) = (live.next, live.pages().end);
            if next >= end || live.error.is_some() {
                return self.complete_part(key, None);
            }
            if self.segments[self.home_segment(next).0 as usize].is_dead() {
                if self.voting.durable < self.voting.generation && self.ended.is_none() {
                    // Another writer may have the volume by now; the voters will tell.
                    return self.starved.push_back(key);
                }
                let error = self.no_copy();
                return self.complete_part(key, Some(error));
            }
            let is_edge = live.edges.iter().flatten().any(|edge| edge.page == next);
            if live.kind == Kind::Discard && !is_edge {
                let to = live.edges.iter().flatten().map(|edge| edge.page).filter(|page| *page > next).min();
                let to = to.unwrap_or(end);
                self.requests.get_mut(key).next = to;
                // A partly discarded page that was never written needs no change.
                self.discard_pages(key, next..to);
                continue;
            }
            if live.kind == Kind::Refresh && !is_edge {
                return self.complete_part(key, None);
            }
            let to = if live.kind == Kind::Discard { next + 1 } else { end };
            match self.write_run(key, next, to - next) {
                Some(count) => self.requests.get_mut(key).next += u64::from(count),
                None => {
                    self.stats.starved += 1;
                    return self.starved.push_back(key);
                }
            }
        }
    }

    /// Writes up to `count` pages to consecutive slots, and returns their number. `None` if there is no slot or no
    /// memory now.
    fn write_run(&mut self, key: u32, page: u64, count: u64) -> Option<u32> {
        let (number, left) = self.home_segment(page);
        let (slot, count) = self.segments[number as usize].slots.take(left.min(count) as u32)?;
        let place = Place { segment: number, slot };
        let Ok(mut headers) = self.donors.arena().alloc(count as usize * HEADER, count as usize * HEADER) else {
            (0..count).for_each(|slot| self.segments[place.segment as usize].slots.give_back(place.slot + slot));
            return None;
        };
        let settled = self.settled();
        let first_seq = self.versions.begin(u64::from(count));
        let mut sources = arrayvec::ArrayVec::<(u64, Slice), 3>::new();
        let mut done = 0;
        while done < u64::from(count) {
            let Some((mut slice, pages)) = source_at(self.requests.get(key), page + done) else { break };
            let pages = pages.min(u64::from(count) - done);
            slice.len = (pages * PAGE) as usize;
            for (index, bytes) in slice.bytes().chunks_exact(BLOCK).enumerate() {
                let index = done + index as u64;
                let header = Header {
                    volume: self.id,
                    page: page + index,
                    version: Version { epoch: self.epoch, seq: first_seq + index },
                    settled,
                    sum: if self.config.checksums { checksum(bytes) } else { 0 },
                };
                if let Some(bytes) = headers.as_chunks_mut::<HEADER>().0.get_mut(index as usize) {
                    header.write(bytes);
                }
            }
            sources.push((done, slice));
            done += pages;
        }
        let segment = &mut self.segments[place.segment as usize];
        segment.busy[(place.slot / super::slot::CHUNK) as usize] += 1;
        let mut lanes = arrayvec::ArrayVec::<(u8, u64), { super::DONORS_MAX }>::new();
        lanes.extend(segment.written(place.slot));
        let headers: Frozen = headers.freeze();
        let headers_sent = self.config.checksums;
        let kind = RunKind::Write { key, first_seq, headers: headers.clone(), headers_sent };
        let ops = sources.len() as u32 + u32::from(headers_sent);
        let run = self.runs.insert(Run {
            kind,
            place,
            count,
            page: Some(page),
            outstanding: ops * lanes.len() as u32,
            lanes: lanes.iter().fold(0, |all, (lane, _)| all | lane_bit(*lane)),
            failed: 0,
            needs: self.voting.generation,
        });
        self.requests.get_mut(key).parts += 1;
        self.stats.pages_written += u64::from(count);
        for (lane, base) in lanes {
            for (at, source) in &sources {
                let at = base + self.shape.page_at(place.slot + *at as u32);
                self.send(lane, Owner::Run(run), Op::Write { at, source: source.clone() });
            }
            if headers_sent {
                let at = base + self.shape.header_at(place.slot);
                self.send(lane, Owner::Run(run), Op::Write { at, source: headers.clone().into() });
            }
        }
        Some(count)
    }

    /// Sends the headers once all pages are written, where pages have no checksums. Returns whether any were sent.
    fn send_headers(&mut self, key: u32) -> bool {
        let Some(run) = self.runs.get_mut(key) else { return false };
        let RunKind::Write { headers, headers_sent, .. } = &mut run.kind else { return false };
        if std::mem::replace(headers_sent, true) {
            return false;
        }
        let (headers, good, place) = (headers.clone(), run.lanes & !run.failed, run.place);
        let mut lanes = arrayvec::ArrayVec::<(u8, u64), { super::DONORS_MAX }>::new();
        let written = self.segments[place.segment as usize].written(place.slot);
        lanes.extend(written.filter(|(lane, _)| lane_bit(*lane) & good != 0));
        run.outstanding += lanes.len() as u32;
        let any = !lanes.is_empty();
        for (lane, base) in lanes {
            let at = base + self.shape.header_at(place.slot);
            self.send(lane, Owner::Run(key), Op::Write { at, source: headers.clone().into() });
        }
        any
    }

    /// Handles the end of an operation of a run.
    pub(super) fn complete_op(&mut self, key: u32, lane: u8, failed: bool) {
        let Some(run) = self.runs.get_mut(key) else { return };
        run.outstanding -= 1;
        if failed {
            run.failed |= lane_bit(lane);
        }
        if run.outstanding == 0 && !self.send_headers(key) {
            self.finish_run(key);
        }
    }

    /// Ends a run whose operations have finished, once the voters know which copies have it.
    pub(super) fn finish_run(&mut self, key: u32) {
        let Some(run) = self.runs.get(key) else { return };
        if run.needs > self.voting.durable && self.ended.is_none() {
            return self.gated.push(key);
        }
        // Where nothing failed, every copy that counts has it: a chunk with runs in flight is not copied to new ones.
        let is_lost = run.failed != 0 && run.lanes & !run.failed & self.named_lanes(run.place.segment) == 0;
        if is_lost || self.ended.is_some() {
            return self.fail_run(key);
        }
        let Some(Run { kind, place, count, page, .. }) = self.runs.remove(key) else { return };
        self.segments[place.segment as usize].busy[(place.slot / super::slot::CHUNK) as usize] -= 1;
        match kind {
            RunKind::Write { key, first_seq, headers, .. } => {
                self.versions.end(first_seq..first_seq + u64::from(count));
                if let Some(page) = page {
                    self.switch_pages(page, place, count, &headers);
                }
                self.complete_part(key, None);
            }
            RunKind::Clear { owner } => self.on_cleared(place, count, page, owner),
        }
    }

    /// Lanes of the donors whose copies of a segment count, whether or not they answer now. Copies that were given up
    /// do not count, even if they hold a write that the segment's last copy lacks.
    pub(super) fn named_lanes(&self, segment: u32) -> Lanes {
        let ids = self.donors.ids();
        let copies = self.segments[segment as usize].copies.iter();
        let lanes = copies.filter_map(|copy| ids.iter().position(|id| *id == copy.member.donor));
        lanes.fold(0, |all, lane| all | lane_bit(lane as u8))
    }

    /// Points the map to the new slots of these pages, and clears the old ones.
    fn switch_pages(&mut self, page: u64, place: Place, count: u32, headers: &[u8]) {
        let mut old: Option<(u64, Place, u32)> = None;
        for index in 0..count {
            let this = page + u64::from(index);
            if !self.trusted.is_empty() {
                self.trusted.remove(&this);
            }
            let sum = sum_in(headers, index as usize);
            let before = self.map.set(this, Some(place.plus(index)), sum);
            let follows = |(_, first, len): &(u64, Place, u32)| {
                let next = first.plus(*len);
                before == Some(next) && !next.slot.is_multiple_of(super::slot::CHUNK)
            };
            match &mut old {
                Some(run) if follows(run) => run.2 += 1,
                _ => {
                    if let Some((page, place, count)) = old.take() {
                        self.clear(place, count, Some(page), None);
                    }
                    old = before.map(|before| (this, before, 1));
                }
            }
        }
        if let Some((page, place, count)) = old {
            self.clear(place, count, Some(page), None);
        }
    }

    /// Fails a run that no copy has, or whose volume has ended.
    fn fail_run(&mut self, key: u32) {
        let Some(Run { kind, place, count, page, .. }) = self.runs.remove(key) else { return };
        self.segments[place.segment as usize].busy[(place.slot / super::slot::CHUNK) as usize] -= 1;
        match kind {
            RunKind::Write { key, .. } => {
                // The run's slots stay taken, because they may hold its pages, in whole or in part.
                self.pin_settled();
                self.unclean.push(PendingClear { place, count, page, owner: None });
                let error = self.no_copy();
                self.complete_part(key, Some(error));
            }
            RunKind::Clear { owner } => self.defer_clear(PendingClear { place, count, page, owner }),
        }
    }

    pub(super) fn no_copy(&self) -> StoreError {
        self.ended.clone().unwrap_or_else(|| {
            StoreError::Unavailable(format!(
                "no donor that has this part of the volume answers: {}",
                self.describe_down()
            ))
        })
    }
}
