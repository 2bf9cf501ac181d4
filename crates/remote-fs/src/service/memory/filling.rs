//! The making of a missing copy: the service copies the pages of files, step by step, from a copy that is whole.
//!
//! What is copied is checked first. Pages that are wrong in the copy that was read are searched for in the others, and
//! written to those copies, too, where they were wrong. So the new copy is right wherever any is. Otherwise the copy
//! with the right bytes might be the one that is left once the new one counts.

use sinew_fabric::verbs::Slice;
use sinew_mem::MessageBuffer;
use sinew_remote_memory::donor::Call;
use sinew_remote_memory::engine::Op as Move;
use sinew_remote_memory::volume::{Donors, checksum};

use super::super::repair::{self, Repair, RepairContext, RepairPlan, STEP};
use super::super::store::Store;
use super::{CallPurpose, Memory};
use crate::disk::Disk;
use crate::durable_state::{Member, Op};
use crate::protocol::PAGE;

/// The search for the right bytes of a step's pages, some of which were wrong in the copies that were read so far.
pub(super) struct Search {
    /// The pages as they are to be written, if no better ones are found.
    bytes: MessageBuffer,
    /// Indices of the pages that were wrong in all copies tried.
    wrong: Vec<usize>,
    tried: Vec<Member>,
    /// Copies and indices of pages that were wrong there, and were found in another.
    found: Vec<(Member, usize)>,
}

/// The right bytes of a page, for a copy where they were wrong.
pub(super) struct Mend {
    member: Member,
    page: u32,
    source: Slice,
}

/// What follows once the pages of a step were read.
enum Next {
    Write(Search),
    ReadFrom(Member),
    /// A copy that may have the right bytes is out of reach.
    GiveUp,
}

fn page(bytes: &[u8], index: usize) -> &[u8] {
    &bytes[index * PAGE..(index + 1) * PAGE]
}

/// Where a copy has a page of its segment.
fn address(member: &Member, page: u32) -> u64 {
    member.base + u64::from(page) * PAGE as u64
}

impl<D: Donors> Memory<D> {
    /// Does what is due for the repair in progress, or begins one. Returns whether there is more to do at once.
    pub(super) fn continue_repair<K: Disk>(&mut self, store: &mut Store<K>) -> bool {
        let Some(repair) = self.repair else {
            self.begin_repair(store);
            return false;
        };
        let (Some(to), 0) = (repair.to, repair.step) else { return false };
        let known = store.state.segments.get(&repair.segment);
        let Some(segment) = known.filter(|segment| segment.members.contains(&to) && self.lanes.reaches(&to)) else {
            self.end_repair(store, false);
            return false;
        };
        let Some(source) = Repair::source(segment, &self.lanes, &[]) else {
            self.end_repair(store, false);
            return false;
        };
        if !self.collect_sums(store, repair.segment) {
            return true;
        }
        let Some((first, count)) = store.space.used(repair.segment, repair.next, STEP) else {
            self.end_repair(store, true);
            return false;
        };
        // The contents of these pages do not change until they are copied.
        store.pinned = Some(repair.segment);
        self.repair = Some(Repair { next: first, step: count, ..repair });
        if !self.read_step(store, &source) {
            // There is room again once the previous step is done.
            self.repair = Some(repair);
            store.unpin();
        }
        false
    }

    fn begin_repair<K: Disk>(&mut self, store: &mut Store<K>) {
        if self.repair_again_ns > self.now_ns {
            return;
        }
        self.repair_again_ns = self.now_ns + self.config.stat_interval_ns / 8;
        for (segment, members) in repair::abandoned(store, None) {
            let incomplete = store.state.segments[&segment].members.iter().find(|member| !member.is_whole).copied();
            if let (Some(half), Ok(_)) = (incomplete, store.perform(&Op::Members { segment, members })) {
                self.orphans.add(segment, half, &self.lanes, self.now_ns);
            }
        }
        let until_ns = self.now_ns.saturating_sub(self.config.donor_timeout_ns);
        let context = RepairContext { orphans: &self.orphans, retired: &self.retired, until_ns };
        match repair::plan(store, &self.lanes, &context, self.config.copies) {
            None => store.sums.clear(),
            Some(RepairPlan::Take { segment, lane, len }) => {
                self.repair = Some(Repair { segment, lane, to: None, next: 0, step: 0 });
                let (volume, epoch) = (self.volume, self.epoch);
                self.call(lane, CallPurpose::Repair(lane), Call::Take { volume, epoch, len });
            }
            Some(RepairPlan::Adopt { segment, lane, to }) => {
                let mut repair = Repair { segment, lane, to: None, next: 0, step: 0 };
                if repair.begin(store, to) {
                    self.repair = Some(repair);
                    self.has_changed = true;
                }
            }
        }
    }

    /// Collects the checksums of a segment's pages, together with those of segments that are likely to be next. Returns
    /// whether they are known.
    fn collect_sums<K: Disk>(&self, store: &mut Store<K>, segment: u32) -> bool {
        if !store.sums.includes(segment) {
            let next = repair::lacking_segments(store, &self.lanes, self.config.copies);
            let all = [segment].into_iter().chain(next.iter().map(|lacking| lacking.segment));
            let segments = &store.state.segments;
            store.sums.begin(all.filter_map(|number| Some((number, segments.get(&number)?.pages))));
        }
        store.sums.collect(&store.state.tree);
        !store.sums.is_collecting()
    }

    /// Reads the pages of the current step from a copy. Returns whether there was memory for them.
    fn read_step<K: Disk>(&mut self, store: &mut Store<K>, source: &Member) -> bool {
        let (Some(Repair { next, step, .. }), Some(lane)) = (self.repair, self.lanes.index_of(source)) else {
            return false;
        };
        let len = step as usize * PAGE;
        let Ok(target) = self.donors.arena().alloc(len, len) else { return false };
        self.submit(store, CallPurpose::Read(lane), Move::Read { at: address(source, next), target });
        true
    }

    fn submit<K: Disk>(&mut self, store: &mut Store<K>, purpose: CallPurpose, op: Move) {
        let (CallPurpose::Read(lane) | CallPurpose::Write(lane)) = purpose else { return };
        self.last_tag += 1;
        self.purposes.insert(self.last_tag, purpose);
        if self.donors.submit(lane, self.last_tag, op).is_err() {
            // None of our own transfers is in flight there, so the lane is filled by another user, or broken.
            self.purposes.remove(&self.last_tag);
            self.end_repair(store, false);
        }
    }

    pub(super) fn on_moved<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        tag: u64,
        error: Option<String>,
        target: Option<MessageBuffer>,
    ) {
        let Some(purpose) = self.purposes.remove(&tag) else { return };
        let Some(repair) = self.repair else { return };
        match (purpose, error, target, repair.to) {
            (CallPurpose::Read(lane), None, Some(bytes), Some(to)) => match self.check_step(store, repair, lane, bytes)
            {
                Next::Write(Search { bytes, found, .. }) => {
                    let buffer = bytes.freeze();
                    let mend = |(member, index): (Member, usize)| {
                        let source = Slice { buffer: buffer.clone(), start: index * PAGE, len: PAGE };
                        Mend { member, page: repair.next + index as u32, source }
                    };
                    self.mends = found.into_iter().map(mend).collect();
                    let write = Move::Write { at: address(&to, repair.next), source: buffer.into() };
                    self.submit(store, CallPurpose::Write(repair.lane), write);
                }
                Next::ReadFrom(source) => {
                    if !self.read_step(store, &source) {
                        self.end_repair(store, false);
                    }
                }
                Next::GiveUp => self.end_repair(store, false),
            },
            (CallPurpose::Write(_), None, ..) => self.mend_or_end_step(store, repair),
            (CallPurpose::Read(lane) | CallPurpose::Write(lane), ..) => {
                // The connection is broken. The next fence makes a new one.
                self.end_repair(store, false);
                self.set_away(lane, self.now_ns);
            }
            _ => {}
        }
    }

    /// Writes the next page to a copy where it was wrong. If there is none, the step is over.
    fn mend_or_end_step<K: Disk>(&mut self, store: &mut Store<K>, repair: Repair) {
        while let Some(Mend { member, page, source }) = self.mends.pop() {
            let members = store.state.segments.get(&repair.segment).map_or(&[][..], |found| &found.members);
            // The memory of a copy that was taken out meanwhile may be given back, and lent to others.
            let is_copy = members.contains(&member) && self.lanes.reaches(&member);
            if let Some(lane) = self.lanes.index_of(&member).filter(|_| is_copy) {
                store.stats.mended_pages += 1;
                let write = Move::Write { at: address(&member, page), source };
                return self.submit(store, CallPurpose::Write(lane), write);
            }
        }
        store.unpin();
        self.repair = Some(Repair { next: repair.next + repair.step, step: 0, ..repair });
    }

    /// Checks pages that were read for the current step. The wrong ones are to be read from another copy.
    fn check_step<K: Disk>(&mut self, store: &Store<K>, repair: Repair, lane: usize, bytes: MessageBuffer) -> Next {
        let Some(segment) = store.state.segments.get(&repair.segment) else { return Next::GiveUp };
        let read = segment.members.iter().find(|member| self.lanes.index_of(member) == Some(lane)).copied();
        // Pages that belong to a file have a checksum, and belong to it until the step is over.
        let (Some(read), Some(sums)) = (read, store.sums.of(repair.segment, repair.next, repair.step)) else {
            return Next::GiveUp;
        };
        let is_right = |bytes: &[u8], index: usize| checksum(page(bytes, index)) == sums[index];
        let mut search = match self.search.take() {
            None => {
                let wrong = (0..sums.len()).filter(|index| !is_right(&bytes, *index)).collect();
                Search { bytes, wrong, tried: Vec::new(), found: Vec::new() }
            }
            Some(mut search) => {
                let (found, wrong): (Vec<usize>, Vec<usize>) =
                    search.wrong.iter().partition(|index| is_right(&bytes, **index));
                for index in found {
                    let range = index * PAGE..(index + 1) * PAGE;
                    search.bytes[range.clone()].copy_from_slice(&bytes[range]);
                    search.found.extend(search.tried.iter().map(|member| (*member, index)));
                }
                Search { wrong, ..search }
            }
        };
        search.tried.push(read);
        if search.wrong.is_empty() {
            return Next::Write(search);
        }
        if let Some(source) = Repair::source(segment, &self.lanes, &search.tried) {
            self.search = Some(search);
            return Next::ReadFrom(source);
        }
        if segment.members.iter().any(|member| member.is_whole && !search.tried.contains(member)) {
            return Next::GiveUp;
        }
        // No copy has them. The other pages are to have their copies nevertheless.
        Next::Write(search)
    }

    pub(super) fn end_repair<K: Disk>(&mut self, store: &mut Store<K>, is_whole: bool) {
        store.unpin();
        self.search = None;
        self.mends.clear();
        let Some(repair) = self.repair.take() else { return };
        let is_recorded = repair.end(store, is_whole);
        if is_recorded && is_whole {
            store.stats.repaired += 1;
            store.sums.forget(repair.segment);
            self.repair_again_ns = self.now_ns;
            self.leave_copies(store);
        } else if let (true, Some(to)) = (is_recorded, repair.to) {
            self.orphans.add(repair.segment, to, &self.lanes, self.now_ns);
        }
        self.has_changed = true;
    }
}
