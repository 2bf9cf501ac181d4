//! Repair: new copies for segments that have too few, made chunk by chunk ([`CHUNK`] slots) while the volume is in use.
//!
//! While a chunk is *held*, none of its slots is allocated or cleared. It is copied once no operation on it is in
//! flight, and then released. Changes in chunks that are already copied go to the new copy too. When all chunks are
//! copied, the copy is added to the record.

use sinew_mem::{Frozen, MessageBuffer};

use super::core::{Joining, Owner, PendingCall, RepairStep, SegmentCopy, SlabToFree, Volume, lane_bit};
use super::donors::{CallFailed, Donors};
use super::record::Member;
use super::slot::{CHUNK, HEADER, Header, SlotState, checksum};
use crate::donor::{Answer, Call};
use crate::engine::Op;
use crate::store::{BLOCK, StoreError};

/// Time until donors that had no room are asked again, in ns.
const FULL_PAUSE_NS: u64 = 1_000_000_000;

impl<D: Donors> Volume<D> {
    /// Notes whether a donor wants its memory back. If so, its copies are rebuilt elsewhere, as far as there is room,
    /// and its slabs are freed.
    pub(super) fn set_leaving(&mut self, lane: u8, is_withdrawing: bool) {
        if is_withdrawing {
            self.repairing.leaving |= lane_bit(lane);
        } else {
            self.repairing.leaving &= !lane_bit(lane);
        }
    }

    /// When the volume next has work without an event, on the donors' clock.
    pub(super) fn next_step_ns(&self) -> Option<u64> {
        let voting = (self.voting.durable < self.voting.generation && self.voting.round.is_none())
            .then_some(self.voting.retry_at_ns);
        // The other steps wait for events.
        let is_due = match self.repairing.step {
            RepairStep::Idle => (0..self.segments.len()).any(|segment| self.wants_copy(segment)),
            RepairStep::Draining { segment } => {
                let segment = &self.segments[segment as usize];
                let chunk = segment.joining.as_ref().map_or(0, |joining| joining.copied);
                segment.busy.get(chunk as usize).is_none_or(|busy| *busy == 0)
            }
            _ => false,
        };
        let repair = (self.config.repairs && is_due).then_some(self.repairing.not_before_ns);
        let revival = (!self.lanes.is_empty()).then_some(self.revive_at_ns);
        match self.ended {
            Some(StoreError::NoAnswer(_)) => revival,
            Some(_) => None,
            None => voting.into_iter().chain(repair).chain(revival).min(),
        }
    }

    fn wants_copy(&self, segment: usize) -> bool {
        let segment = &self.segments[segment];
        let staying = segment.reached().filter(|(lane, _)| self.repairing.leaving & lane_bit(*lane) == 0).count();
        !segment.is_dead() && staying < self.copies as usize
    }

    pub(super) fn turn_repair(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.free_deferred_slabs();
        if !self.config.repairs {
            return false;
        }
        match self.repairing.step {
            RepairStep::Idle => self.now_ns >= self.repairing.not_before_ns && self.begin_repair(),
            RepairStep::Taking { .. } | RepairStep::Reading { .. } | RepairStep::Writing { .. } => false,
            RepairStep::Draining { segment } => {
                if self.now_ns < self.repairing.not_before_ns {
                    return false;
                }
                self.copy_chunk(segment)
            }
            RepairStep::Joining { segment, generation } => {
                if self.voting.durable < generation {
                    return false;
                }
                self.stats.copies_made += 1;
                self.repairing.step = RepairStep::Idle;
                self.remove_leaving_copy(segment);
                true
            }
        }
    }

    fn begin_repair(&mut self) -> bool {
        let Some(segment) = (0..self.segments.len()).find(|segment| self.wants_copy(*segment)) else { return false };
        let excluded = self.repairing.full | self.repairing.leaving;
        let is_candidate = |lane: &usize| {
            let state = &self.lanes[*lane];
            let has_copy =
                self.segments[segment].copies.iter().any(|copy| copy.member.donor == self.donors.ids()[*lane]);
            state.down.is_none() && state.incarnation.is_some() && excluded >> lane & 1 == 0 && !has_copy
        };
        let lanes = self.lanes.len();
        let Some(lane) = (0..lanes).map(|lane| (lane + segment) % lanes).find(is_candidate) else {
            self.repairing.full = 0;
            self.repairing.not_before_ns = self.now_ns + FULL_PAUSE_NS;
            return false;
        };
        let number = lane as u8;
        self.repairing.step = RepairStep::Taking { lane: number };
        let tag = self.calls.insert(PendingCall::Take { segment: segment as u32, lane: number });
        let call = Call::Take { volume: self.id, epoch: self.epoch, len: self.shape.slab_len() };
        self.donors.call(lane, u64::from(tag), call);
        true
    }

    /// Handles a donor's answer to the request for a slab.
    pub(super) fn on_slab_taken(&mut self, segment: u32, lane: u8, result: Result<Answer, CallFailed>) {
        self.repairing.step = RepairStep::Idle;
        let state = &self.lanes[usize::from(lane)];
        match result {
            Ok(Answer::Taken { incarnation, lent })
                if state.incarnation == Some(incarnation) && self.shape.fits(&lent) =>
            {
                let member = Member { donor: self.donors.ids()[usize::from(lane)], incarnation, slab: lent.slab };
                if state.down.is_some() || !self.wants_copy(segment as usize) {
                    return self.free_slab(lane, lent.slab);
                }
                self.segments[segment as usize].joining = Some(Joining { member, lane, base: lent.base, copied: 0 });
                self.begin_chunk(segment);
            }
            _ => self.repairing.full |= lane_bit(lane),
        }
    }

    fn free_slab(&mut self, lane: u8, slab: u64) {
        let tag = self.calls.insert(PendingCall::Free);
        self.donors.call(usize::from(lane), u64::from(tag), Call::Free { volume: self.id, epoch: self.epoch, slab });
    }

    /// Goes on to the next chunk. After the last, adds the copy to the record.
    fn begin_chunk(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        let Some(joining) = &segment.joining else { return self.abandon_repair(number) };
        if joining.copied < self.shape.slots.div_ceil(CHUNK) {
            self.repairing.step = RepairStep::Draining { segment: number };
            return;
        }
        if let Some(Joining { member, lane, base, .. }) = segment.joining.take() {
            segment.copies.push(SegmentCopy { member, lane: Some(lane), base });
        }
        self.change_record();
        self.repairing.step = RepairStep::Joining { segment: number, generation: self.voting.generation };
    }

    /// Holds the next chunk, and reads it from a copy once no operation on it is in flight.
    fn copy_chunk(&mut self, number: u32) -> bool {
        let segment = &mut self.segments[number as usize];
        let Some(joining) = &segment.joining else {
            self.abandon_repair(number);
            return true;
        };
        let chunk = joining.copied;
        segment.slots.held_chunk = Some(chunk);
        if segment.busy[chunk as usize] > 0 {
            return false;
        }
        let first = chunk * CHUNK;
        let end = self.shape.slots.min(first + CHUNK);
        let Some(last) = (first..end).rev().find(|slot| segment.slots.is_taken(*slot)) else {
            // A new slab is all zeros already.
            self.chunk_copied(number);
            return true;
        };
        let count = (last + 1 - first) as usize;
        let Some((lane, base)) = segment.reached().next() else {
            self.abandon_repair(number);
            return true;
        };
        let arena = self.donors.arena();
        let buffers = (arena.alloc(count * HEADER, count * HEADER), arena.alloc(count * BLOCK, count * BLOCK));
        let (Ok(headers), Ok(pages)) = buffers else {
            self.repairing.not_before_ns = self.now_ns + self.config.repair_pause_ns;
            self.release_chunk(number);
            return false;
        };
        self.repairing.step =
            RepairStep::Reading { segment: number, headers: None, pages: None, outstanding: 2, failed: false };
        self.send(
            lane,
            Owner::Repair { of_headers: true },
            Op::Read { at: base + self.shape.header_at(first), target: headers },
        );
        self.send(
            lane,
            Owner::Repair { of_headers: false },
            Op::Read { at: base + self.shape.page_at(first), target: pages },
        );
        true
    }

    /// Handles the end of an operation of the repair, on headers or on pages.
    pub(super) fn complete_repair_op(&mut self, of_headers: bool, has_failed: bool, target: Option<MessageBuffer>) {
        match &mut self.repairing.step {
            RepairStep::Reading { segment, headers, pages, outstanding, failed } => {
                *outstanding -= 1;
                *failed |= has_failed;
                let into = if of_headers { &mut *headers } else { &mut *pages };
                *into = target;
                if *outstanding > 0 {
                    return;
                }
                let (segment, failed) = (*segment, *failed);
                match (headers.take(), pages.take()) {
                    (Some(headers), Some(pages)) if !failed => self.write_chunk(segment, headers, pages),
                    _ => self.abandon_repair(segment),
                }
            }
            RepairStep::Writing { segment, outstanding, failed } => {
                *outstanding -= 1;
                *failed |= has_failed;
                if *outstanding > 0 {
                    return;
                }
                let (segment, failed) = (*segment, *failed);
                if failed { self.abandon_repair(segment) } else { self.chunk_copied(segment) }
            }
            _ => {}
        }
    }

    fn write_chunk(&mut self, number: u32, headers: MessageBuffer, pages: MessageBuffer) {
        let Some(Joining { lane, base, copied, .. }) = &self.segments[number as usize].joining else {
            return self.abandon_repair(number);
        };
        let (lane, base, first) = (*lane, *base, copied * CHUNK);
        for (header, page) in headers.as_chunks::<HEADER>().0.iter().zip(pages.chunks_exact(BLOCK)) {
            // A page that is bad in this copy is copied as it is, and then rewritten from another copy.
            if let SlotState::Header(Header { page: page_number, sum, .. }) = Header::read(header)
                && sum != 0
                && checksum(page) != sum
                && page_number < self.pages
            {
                self.stats.bad_pages += 1;
                self.refresh(page_number);
            }
        }
        self.repairing.step = RepairStep::Writing { segment: number, outstanding: 2, failed: false };
        let (headers, pages): (Frozen, Frozen) = (headers.freeze(), pages.freeze());
        let at = base + self.shape.page_at(first);
        self.send(lane, Owner::Repair { of_headers: false }, Op::Write { at, source: pages.into() });
        let at = base + self.shape.header_at(first);
        self.send(lane, Owner::Repair { of_headers: true }, Op::Write { at, source: headers.into() });
    }

    fn chunk_copied(&mut self, number: u32) {
        self.repairing.not_before_ns = self.now_ns + self.config.repair_pause_ns;
        if let Some(joining) = &mut self.segments[number as usize].joining {
            joining.copied += 1;
        }
        self.release_chunk(number);
        self.begin_chunk(number);
    }

    /// Releases the held chunk, and clears the slots that waited for this.
    fn release_chunk(&mut self, number: u32) {
        self.segments[number as usize].slots.held_chunk = None;
        for _ in 0..self.held_clears.len() {
            if let Some(owed) = self.held_clears.pop_front() {
                self.clear_now(owed);
            }
        }
    }

    fn abandon_repair(&mut self, number: u32) {
        if let Some(Joining { lane, member, .. }) = self.segments[number as usize].joining.take() {
            // No record has named it.
            self.defer_free(lane, member.slab, 0);
        }
        self.repairing.step = RepairStep::Idle;
        self.repairing.not_before_ns = self.now_ns + self.config.repair_pause_ns;
        self.release_chunk(number);
    }

    /// Removes a copy at a donor that wants its memory back, if the segment has enough without it.
    fn remove_leaving_copy(&mut self, number: u32) {
        let (leaving, copies) = (self.repairing.leaving, self.copies as usize);
        let segment = &mut self.segments[number as usize];
        let is_leaving = |copy: &SegmentCopy| copy.lane.is_some_and(|lane| leaving & lane_bit(lane) != 0);
        if segment.copies.len() <= copies {
            return;
        }
        let Some(index) = segment.copies.iter().position(is_leaving) else { return };
        let copy = segment.copies.remove(index);
        self.forget_removed_copies();
        self.change_record();
        if let Some(lane) = copy.lane {
            self.defer_free(lane, copy.member.slab, self.voting.generation);
        }
    }

    pub(super) fn defer_free(&mut self, lane: u8, slab: u64, generation: u64) {
        if self.lanes[usize::from(lane)].down.is_none() {
            self.repairing.slabs_to_free.push(SlabToFree { lane, slab, generation, number: self.stats.operations });
        }
    }

    /// Gives back slabs that no record names any more, and to which no operation is in flight.
    fn free_deferred_slabs(&mut self) {
        if self.repairing.slabs_to_free.is_empty() {
            return;
        }
        let mut left = std::mem::take(&mut self.repairing.slabs_to_free);
        left.retain(|one| {
            if self.lanes[usize::from(one.lane)].down.is_some() {
                // When it comes back it is fenced, and slabs that no record names are freed.
                return false;
            }
            let is_before = |key| {
                self.lane_ops.get(key).is_some_and(|flight| flight.lane == one.lane && flight.number <= one.number)
            };
            if self.voting.durable < one.generation || self.lane_ops.keys().any(is_before) {
                return true;
            }
            self.free_slab(one.lane, one.slab);
            false
        });
        self.repairing.slabs_to_free.append(&mut left);
    }
}
