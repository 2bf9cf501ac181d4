//! Restoring a missing copy: the choice of its segment and its place, and the progress of the copying.

use super::lanes::{DonorLane, Lanes};
use super::orphans::FormerCopies;
use super::retired_clients::RetiredClients;
use super::store::Store;
use crate::disk::Disk;
use crate::durable_state::{Member, Op, Segment};
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

/// Where a missing copy goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum RepairPlan {
    /// To a slab of this many bytes that the donor is to be asked for.
    Take { segment: u32, lane: usize, len: u64 },
    /// To a slab that was one of the segment's copies before.
    Adopt { segment: u32, lane: usize, to: Member },
}

/// A segment that lacks a copy, or has one at a donor that wants its memory back.
pub(super) struct LackingSegment {
    pub segment: u32,
    /// Bytes of a copy.
    pub len: u64,
    /// The donors that have one.
    pub used: Vec<usize>,
}

/// The segments that lack a copy and have one to copy from: first those with too few copies, then those whose copies
/// only have to move.
pub(super) fn lacking_segments<K: Disk>(store: &Store<K>, lanes: &Lanes, copies: usize) -> Vec<LackingSegment> {
    let copies = copies.min(lanes.0.len());
    let lacks = |segment: &Segment| {
        segment.members.iter().filter(|member| !lanes.is_withdrawing(member)).count() < copies
            && segment.members.iter().all(|member| member.is_whole)
            && segment.members.iter().any(|member| lanes.reaches(member))
    };
    let lacking = store.state.segments.iter().filter(|(_, segment)| lacks(segment)).map(|(number, segment)| {
        let used = segment.members.iter().filter_map(|member| lanes.index_of(member)).collect();
        LackingSegment { segment: *number, len: u64::from(segment.pages) * PAGE as u64, used }
    });
    let mut lacking: Vec<LackingSegment> = lacking.collect();
    lacking.sort_by_key(|segment| segment.used.len() >= copies);
    lacking
}

/// Further state on which the place of a missing copy depends.
pub(super) struct RepairContext<'a> {
    pub orphans: &'a FormerCopies,
    pub retired: &'a RetiredClients,
    /// Slabs that were taken out after this are not used yet.
    pub until_ns: u64,
}

/// Chooses a segment that lacks a copy, and a place for it.
pub(super) fn plan<K: Disk>(
    store: &Store<K>,
    lanes: &Lanes,
    context: &RepairContext<'_>,
    copies: usize,
) -> Option<RepairPlan> {
    lacking_segments(store, lanes, copies).into_iter().find_map(|LackingSegment { segment, len, used }| {
        let adopt = |times_max| {
            let RepairContext { orphans, retired, until_ns } = *context;
            let to = orphans.for_segment((segment, &used), (times_max, until_ns), lanes, retired)?;
            Some(RepairPlan::Adopt { segment, lane: lanes.index_of(&to)?, to })
        };
        let take = || {
            let excluded_lanes: Vec<usize> =
                used.iter().copied().chain(context.orphans.lanes_of(segment, lanes)).collect();
            Some(RepairPlan::Take { segment, lane: *lanes.with_room(len, &excluded_lanes).first()?, len })
        };
        // A slab that was taken out again after it had been adopted is at a donor that is likely in trouble.
        adopt(1).or_else(take).or_else(|| adopt(u32::MAX))
    })
}

/// Missing copies that another donor could have, if there were one with room.
pub(super) fn without_room<K: Disk>(
    store: &Store<K>,
    lanes: &Lanes,
    orphans: &FormerCopies,
    copies: usize,
) -> Vec<LackingSegment> {
    if lanes.0.iter().any(DonorLane::may_gain_memory) {
        return Vec::new();
    }
    let has_none = |LackingSegment { segment, len, used }: &LackingSegment| {
        let others = lanes.with_room(0, used);
        let has_orphan = orphans.lanes_of(*segment, lanes).iter().any(|lane| others.contains(lane));
        !others.is_empty() && !has_orphan && lanes.with_room(*len, used).is_empty()
    };
    lacking_segments(store, lanes, copies).into_iter().filter(has_none).collect()
}

/// Whether a segment can be given back: it has no contents, what was promised to files has room elsewhere, and all its
/// donors are within reach. Clients may still write to a slab that was ever taken out, so its segment stays.
pub(super) fn may_be_given_back<K: Disk>(
    store: &Store<K>,
    lanes: &Lanes,
    orphans: &FormerCopies,
    number: u32,
    segment: &Segment,
) -> bool {
    store.space.is_free(number)
        && store.may_lose(segment.pages.into())
        && segment.members.iter().all(|member| lanes.reaches(member) && !orphans.has(member))
}

/// Chooses a segment without contents to be given back, so that there is room for this copy.
pub(super) fn segment_to_give_back<K: Disk>(
    store: &Store<K>,
    lanes: &Lanes,
    orphans: &FormerCopies,
    copy: &LackingSegment,
) -> Option<u32> {
    let LackingSegment { segment, len, ref used } = *copy;
    let may_go = |number, segment: &Segment| may_be_given_back(store, lanes, orphans, number, segment);
    if may_go(segment, &store.state.segments[&segment]) {
        return Some(segment);
    }
    let mut free_by_lane = vec![(None, 0); lanes.0.len()];
    for (number, segment) in store.state.segments.iter().filter(|(number, segment)| may_go(**number, segment)) {
        for lane in segment.members.iter().filter_map(|member| lanes.index_of(member)) {
            let (first, bytes) = &mut free_by_lane[lane];
            first.get_or_insert(*number);
            *bytes += u64::from(segment.pages) * PAGE as u64;
        }
    }
    let suffices = |(lane, (first, bytes)): (usize, (Option<u32>, u64))| {
        let known = &lanes.0[lane];
        let may_lend = known.is_ready() && !known.is_withdrawing();
        first.filter(|_| !used.contains(&lane) && may_lend && known.free + bytes >= len)
    };
    free_by_lane.into_iter().enumerate().find_map(suffices)
}

/// Segments with copies that an earlier service began and did not finish, each with its whole copies.
pub(super) fn abandoned<K>(store: &Store<K>, current: Option<&Repair>) -> Vec<(u32, Vec<Member>)> {
    let is_ours = |number: u32| current.is_some_and(|repair| repair.segment == number);
    let half = store
        .state
        .segments
        .iter()
        .filter(|(number, segment)| !is_ours(**number) && segment.members.iter().any(|member| !member.is_whole));
    let whole = |segment: &Segment| segment.members.iter().filter(|member| member.is_whole).copied().collect();
    half.map(|(number, segment)| (*number, whole(segment))).collect()
}

impl Repair {
    /// Records the new copy. From now on clients that write to the segment write to it, too.
    pub fn begin<K: Disk>(&mut self, store: &mut Store<K>, to: Member) -> bool {
        let Some(segment) = store.state.segments.get(&self.segment) else { return false };
        let members = segment.members.iter().copied().chain([to]).collect();
        self.to = Some(to);
        store.perform(&Op::Members { segment: self.segment, members }).is_ok()
    }

    /// Records that the copy has all pages, or that it is given up. Returns whether it was recorded.
    pub fn end<K: Disk>(&self, store: &mut Store<K>, is_whole: bool) -> bool {
        let (Some(segment), Some(to)) = (store.state.segments.get(&self.segment), self.to) else { return false };
        let is_target = |member: &Member| (member.donor, member.slab) == (to.donor, to.slab);
        if !segment.members.iter().any(is_target) {
            return false;
        }
        let mut members = segment.members.clone();
        members.retain(|member| is_whole || !is_target(member));
        members.iter_mut().filter(|member| is_target(member)).for_each(|member| member.is_whole = true);
        store.perform(&Op::Members { segment: self.segment, members }).is_ok()
    }

    /// The copy to copy from: a whole one within reach that is not among those `tried`.
    pub fn source(segment: &Segment, lanes: &Lanes, tried: &[Member]) -> Option<Member> {
        let may_be = |member: &&Member| member.is_whole && lanes.reaches(member) && !tried.contains(member);
        segment.members.iter().find(may_be).copied()
    }
}
