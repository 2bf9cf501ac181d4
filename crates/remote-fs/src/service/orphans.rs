//! Former copies: slabs that were taken out of their segment while their donor still had them.
//!
//! Clients that have not heard of the removal may still write to such a slab, so it is not given back to its donor in
//! this epoch, unless the donor wants its memory back and cuts off all clients. Once their writes are over, it can
//! become a copy of the same segment again. So a segment has at most one slab at each donor.

use super::lanes::Lanes;
use super::retired_clients::RetiredClients;
use crate::durable_state::Member;

/// A slab that was taken out of a segment. It may be a copy again.
#[derive(Clone, Copy, Debug)]
struct FormerCopy {
    segment: u32,
    member: Member,
    /// How often it was taken out.
    attempts: u32,
    /// When it was last taken out.
    since_ns: u64,
}

impl FormerCopy {
    fn is(&self, member: &Member) -> bool {
        (self.member.donor, self.member.slab) == (member.donor, member.slab)
    }
}

/// All former copies.
#[derive(Debug, Default)]
pub(super) struct FormerCopies(Vec<FormerCopy>);

impl FormerCopies {
    /// Adds a slab that was taken out of a segment, unless its donor has forgotten it.
    pub fn add(&mut self, segment: u32, member: Member, lanes: &Lanes, now_ns: u64) {
        match self.0.iter_mut().find(|orphan| orphan.is(&member)) {
            Some(known) => (known.attempts, known.since_ns) = (known.attempts + 1, now_ns),
            None if lanes.is_fenced(&member) => {
                let member = Member { is_whole: false, ..member };
                self.0.push(FormerCopy { segment, member, attempts: 1, since_ns: now_ns });
            }
            None => {}
        }
    }

    /// A slab that can become a copy of a segment: one that was taken out at most `times_max` times, and before
    /// `until_ns`, whose donor is not among `used`, is within reach, does not want its memory back, and has cut off all
    /// clients that are gone.
    pub fn for_segment(
        &self,
        (segment, used): (u32, &[usize]),
        (times_max, until_ns): (u32, u64),
        lanes: &Lanes,
        retired: &RetiredClients,
    ) -> Option<Member> {
        let is_free = |orphan: &&FormerCopy| {
            let lane = lanes.index_of(&orphan.member).filter(|lane| !used.contains(lane));
            orphan.segment == segment
                && orphan.attempts <= times_max
                && orphan.since_ns <= until_ns
                && lanes.reaches(&orphan.member)
                && lane.is_some_and(|lane| !lanes.0[lane].is_withdrawing() && retired.of_lane(lane).is_empty())
        };
        self.0.iter().filter(is_free).min_by_key(|orphan| orphan.attempts).map(|orphan| orphan.member)
    }

    /// The donors with a slab that was taken out of a segment. Each of them gets no second one.
    pub fn lanes_of(&self, segment: u32, lanes: &Lanes) -> Vec<usize> {
        let of = |orphan: &FormerCopy| (orphan.segment == segment).then(|| lanes.index_of(&orphan.member)).flatten();
        self.0.iter().filter_map(of).collect()
    }

    /// Whether a slab was ever taken out.
    pub fn has(&self, member: &Member) -> bool {
        self.0.iter().any(|orphan| orphan.is(member))
    }

    /// Takes over what a donor says of its slabs when it is fenced again: `place` gives the address of each that it
    /// still has.
    pub fn update_places(&mut self, donor: u64, place: impl Fn(u64) -> Option<u64>) {
        self.0.retain_mut(|orphan| {
            if orphan.member.donor != donor {
                return true;
            }
            let base = place(orphan.member.slab);
            orphan.member.base = base.unwrap_or(orphan.member.base);
            base.is_some()
        });
    }

    /// Forgets the slabs of a donor, which were given back, or are gone.
    pub fn remove_donor(&mut self, donor: u64) {
        self.0.retain(|orphan| orphan.member.donor != donor);
    }
}
