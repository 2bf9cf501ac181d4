//! The donors, and what is known of each.

use std::collections::BTreeSet;

use sinew_remote_memory::donor::Refusal;
use sinew_remote_memory::volume::DonorId;

use crate::durable_state::{Member, Segment};
use crate::protocol::DonorInfo;

/// State of a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneState {
    /// It does not answer. It will be fenced again at this time.
    Away { again_ns: u64 },
    /// A fence is in flight.
    Fencing,
    /// It is fenced under our epoch, and its memory can be reached.
    Ready,
}

/// How far a donor has come that wants its memory back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// This run of the donor has not asked for it.
    None,
    /// It has asked, and has copies of segments.
    Asked,
    /// It has no copies any more, and is told to cut off all clients that could have access.
    CuttingOff {
        /// Clients that it has not cut off yet.
        left: BTreeSet<u64>,
    },
    /// No client has access any more: its slabs can be freed.
    CutOff,
    /// It has all of its memory.
    Ended,
}

/// A donor.
#[derive(Debug)]
pub(super) struct DonorLane {
    pub donor: DonorId,
    pub name: String,
    pub state: LaneState,
    /// The run of the donor that is fenced under our epoch.
    pub incarnation: Option<u64>,
    /// Free bytes, as far as known.
    pub free: u64,
    /// Length of a slab that it refused, and the free bytes that it then had: not in one piece.
    pub note_refusal: Option<(u64, u64)>,
    /// Whether the donor has reported its free bytes since it was fenced.
    pub knows_free: bool,
    /// Bytes that were given back to it and are free once it has zeroed them.
    pub zeroing: u64,
    pub next_stat_ns: u64,
    pub stat_in_flight: bool,
    /// When to ask it again to cut off the clients that it could not cut off.
    pub expel_again_ns: Option<u64>,
    /// Reason why it could not cut a client off, if it refused the last request.
    pub refusal: Option<Refusal>,
    /// Reason why it could not be fenced at the last attempt.
    pub away_reason: Option<String>,
    /// Time since which it has not answered.
    pub away_since_ns: Option<u64>,
    /// Whether its copies have been removed because it does not answer.
    pub is_given_up: bool,
    pub withdrawal: Withdrawal,
}

impl DonorLane {
    pub fn is_ready(&self) -> bool {
        self.state == LaneState::Ready
    }

    /// Whether it wants its memory back.
    pub fn is_withdrawing(&self) -> bool {
        self.withdrawal != Withdrawal::None
    }

    /// Records that the donor refused a slab of `len` bytes, although it has `free` bytes.
    pub fn refuse(&mut self, len: u64, free: u64) {
        (self.free, self.note_refusal) = (free, Some((len, free)));
    }

    /// Takes over the free bytes that the donor reports.
    pub fn set_free(&mut self, free: u64) {
        self.note_refusal = self.note_refusal.filter(|(_, then)| *then == free);
        self.free = free;
    }

    /// Longest slab that it may have, as far as known.
    pub fn room(&self) -> u64 {
        self.note_refusal.map_or(self.free, |(len, _)| self.free.min(len.saturating_sub(1)))
    }

    /// Whether it may have more to lend than is known.
    pub fn may_gain_memory(&self) -> bool {
        !(self.is_given_up || self.is_ready() && self.knows_free && self.zeroing == 0)
    }
}

/// All donors, in the order in which they were given.
#[derive(Debug)]
pub(super) struct Lanes(pub Vec<DonorLane>);

impl Lanes {
    pub fn new(donors: impl IntoIterator<Item = (DonorId, String)>) -> Self {
        let lane = |(donor, name)| DonorLane {
            donor,
            name,
            state: LaneState::Away { again_ns: 0 },
            incarnation: None,
            free: 0,
            note_refusal: None,
            knows_free: false,
            zeroing: 0,
            next_stat_ns: 0,
            stat_in_flight: false,
            expel_again_ns: None,
            refusal: None,
            away_reason: None,
            away_since_ns: None,
            is_given_up: false,
            withdrawal: Withdrawal::None,
        };
        Self(donors.into_iter().map(lane).collect())
    }

    /// The lane of a copy, if its donor is among ours.
    pub fn index_of(&self, member: &Member) -> Option<usize> {
        self.0.iter().position(|lane| lane.donor.0 == member.donor)
    }

    /// Whether a copy can be read and written now.
    pub fn reaches(&self, member: &Member) -> bool {
        let lane = self.index_of(member).map(|lane| &self.0[lane]);
        lane.is_some_and(|lane| lane.is_ready() && lane.incarnation == Some(member.incarnation))
    }

    /// Whether a copy is at a donor that wants its memory back.
    pub fn is_withdrawing(&self, member: &Member) -> bool {
        self.index_of(member).is_some_and(|lane| self.0[lane].is_withdrawing())
    }

    /// Whether a copy's donor is fenced under our epoch, so that no client of an earlier one writes there.
    pub fn is_fenced(&self, member: &Member) -> bool {
        self.index_of(member).is_some_and(|lane| self.0[lane].incarnation == Some(member.incarnation))
    }

    /// Whether pages of a segment may be reserved.
    pub fn is_usable(&self, segment: &Segment) -> bool {
        let members = &segment.members;
        members.iter().all(|member| self.is_fenced(member))
            && members.iter().any(|member| member.is_whole && self.reaches(member))
    }

    /// The donors, as clients are told.
    pub fn places(&self) -> Vec<DonorInfo> {
        let place = |lane: &DonorLane| DonorInfo {
            donor: lane.donor,
            address: lane.name.clone(),
            incarnation: lane.incarnation.filter(|_| lane.is_ready()),
        };
        self.0.iter().map(place).collect()
    }

    /// Number of donors that count for new segments: those that are there, and those that may come back. A donor that
    /// wants its memory back is not among them.
    pub fn usable_count(&self) -> usize {
        self.0.iter().filter(|lane| (lane.is_ready() || !lane.is_given_up) && !lane.is_withdrawing()).count()
    }

    /// The donors that lend, have at least `bytes` free, and are not in `except`, those with the most first.
    pub fn with_room(&self, bytes: u64, except: &[usize]) -> Vec<usize> {
        let has_room = |index: &usize| {
            let lane = &self.0[*index];
            lane.is_ready() && !lane.is_withdrawing() && lane.room() >= bytes && !except.contains(index)
        };
        let mut lanes: Vec<usize> = (0..self.0.len()).filter(has_room).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(self.0[*lane].free));
        lanes
    }
}
