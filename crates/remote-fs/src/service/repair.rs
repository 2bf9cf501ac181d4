//! Restoring a missing copy.

use super::lanes::Lanes;
use super::store::Store;
use crate::disk::Disk;
use crate::kept::{Member, Op, Segment};
use crate::protocol::PAGE;

/// Pages copied by one step, at most.
pub(super) const STEP: u32 = 64;

/// A copy that is being made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repair {
    pub segment: u32,
    /// The donor that the copy is made at.
    pub lane: usize,
    /// The copy, once the donor has granted a slab.
    pub to: Option<Member>,
    /// First page not yet copied.
    pub next: u32,
    /// Pages of the step in flight; 0 if there is none.
    pub step: u32,
}

/// Chooses a segment that lacks a copy, and a donor for it.
pub(super) fn plan<K: Disk>(store: &Store<K>, lanes: &Lanes, copies: usize) -> Option<(u32, usize)> {
    let copies = copies.min(lanes.0.len());
    let lacks = |segment: &Segment| {
        segment.members.len() < copies
            && segment.members.iter().all(|member| member.is_whole)
            && segment.members.iter().any(|member| lanes.reaches(member))
    };
    for (number, segment) in store.kept.segments.iter().filter(|(_, segment)| lacks(segment)) {
        let used: Vec<usize> = segment.members.iter().filter_map(|member| lanes.of(member)).collect();
        if let Some(lane) = lanes.with_room(u64::from(segment.pages) * PAGE as u64, &used).first() {
            return Some((*number, *lane));
        }
    }
    None
}

/// Segments with copies that an earlier service began and did not finish, each with its whole copies.
pub(super) fn abandoned<K>(store: &Store<K>, current: Option<&Repair>) -> Vec<(u32, Vec<Member>)> {
    let is_ours = |number: u32| current.is_some_and(|repair| repair.segment == number);
    let half = store
        .kept
        .segments
        .iter()
        .filter(|(number, segment)| !is_ours(**number) && segment.members.iter().any(|member| !member.is_whole));
    let whole = |segment: &Segment| segment.members.iter().filter(|member| member.is_whole).copied().collect();
    half.map(|(number, segment)| (*number, whole(segment))).collect()
}

impl Repair {
    /// Records the new copy. From now on clients that write to the segment write to it, too.
    pub fn begin<K: Disk>(&mut self, store: &mut Store<K>, to: Member) -> bool {
        let Some(segment) = store.kept.segments.get(&self.segment) else { return false };
        let members = segment.members.iter().copied().chain([to]).collect();
        self.to = Some(to);
        store.perform(&Op::Members { segment: self.segment, members }).is_ok()
    }

    /// Records that the copy has all pages, or that it is given up. Returns whether it was recorded.
    pub fn end<K: Disk>(&self, store: &mut Store<K>, is_whole: bool) -> bool {
        let (Some(segment), Some(to)) = (store.kept.segments.get(&self.segment), self.to) else { return false };
        let is_it = |member: &Member| (member.donor, member.slab) == (to.donor, to.slab);
        if !segment.members.iter().any(is_it) {
            return false;
        }
        let mut members = segment.members.clone();
        members.retain(|member| is_whole || !is_it(member));
        members.iter_mut().filter(|member| is_it(member)).for_each(|member| member.is_whole = true);
        store.perform(&Op::Members { segment: self.segment, members }).is_ok()
    }

    /// The copy to copy from.
    pub fn source<'a>(&self, segment: &'a Segment, lanes: &Lanes) -> Option<&'a Member> {
        segment.members.iter().find(|member| member.is_whole && lanes.reaches(member))
    }
}
