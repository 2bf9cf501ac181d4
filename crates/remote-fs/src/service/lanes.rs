//! The donors, each as far as it is known.

use sinew_remote_memory::donor::Refusal;
use sinew_remote_memory::volume::DonorId;

use crate::kept::{Member, Segment};
use crate::protocol::DonorPlace;

/// How a donor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It does not answer; it is asked again at this time.
    Away { again_ns: u64 },
    /// A fence is under way.
    Fencing,
    /// It is fenced under our epoch, and there is a way to its memory.
    Ready,
}

/// A donor.
#[derive(Debug)]
pub(super) struct Lane {
    pub donor: DonorId,
    pub name: String,
    pub state: State,
    /// Its run that is fenced under our epoch.
    pub incarnation: Option<u64>,
    /// Bytes that are nobody's, as far as is known.
    pub free: u64,
    /// Whether it has said so since it was fenced.
    pub knows_free: bool,
    pub look_ns: u64,
    pub is_looked_at: bool,
    /// When it is told again of clients whom it could not cut off.
    pub expel_again_ns: Option<u64>,
    /// Why it does not cut somebody off, since it was told to last.
    pub refusal: Option<Refusal>,
    /// Since when it has not answered.
    pub away_since_ns: Option<u64>,
    /// Whether its copies have been taken out for that.
    pub is_given_up: bool,
}

impl Lane {
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Whether it may have more to lend than is known.
    pub fn is_coming(&self) -> bool {
        !(self.is_given_up || self.is_ready() && self.knows_free)
    }
}

/// All donors, in the order in which they were named.
#[derive(Debug)]
pub(super) struct Lanes(pub Vec<Lane>);

impl Lanes {
    pub fn new(donors: impl IntoIterator<Item = (DonorId, String)>) -> Self {
        let lane = |(donor, name)| Lane {
            donor,
            name,
            state: State::Away { again_ns: 0 },
            incarnation: None,
            free: 0,
            knows_free: false,
            look_ns: 0,
            is_looked_at: false,
            expel_again_ns: None,
            refusal: None,
            away_since_ns: None,
            is_given_up: false,
        };
        Self(donors.into_iter().map(lane).collect())
    }

    /// The lane of a copy, if its donor is one of ours.
    pub fn of(&self, member: &Member) -> Option<usize> {
        self.0.iter().position(|lane| lane.donor.0 == member.donor)
    }

    /// Whether the copy can be read and written now.
    pub fn reaches(&self, member: &Member) -> bool {
        let lane = self.of(member).map(|lane| &self.0[lane]);
        lane.is_some_and(|lane| lane.is_ready() && lane.incarnation == Some(member.incarnation))
    }

    /// Whether the copy's donor was fenced under our epoch: nobody of an earlier one writes there.
    pub fn is_fenced(&self, member: &Member) -> bool {
        self.of(member).is_some_and(|lane| self.0[lane].incarnation == Some(member.incarnation))
    }

    /// Whether pages of a segment may be reserved.
    pub fn is_usable(&self, segment: &Segment) -> bool {
        let members = &segment.members;
        members.iter().all(|member| self.is_fenced(member))
            && members.iter().any(|member| member.is_whole && self.reaches(member))
    }

    /// As clients are told.
    pub fn places(&self) -> Vec<DonorPlace> {
        let place = |lane: &Lane| DonorPlace {
            donor: lane.donor,
            address: lane.name.clone(),
            incarnation: lane.incarnation.filter(|_| lane.is_ready()),
        };
        self.0.iter().map(place).collect()
    }

    /// Donors that count: those that are there, and those that are missed and may come back.
    pub fn counting(&self) -> usize {
        self.0.iter().filter(|lane| lane.is_ready() || !lane.is_given_up).count()
    }

    /// The donors that have most free of those that have so much, and none of `not`, most first.
    pub fn with_room(&self, bytes: u64, not: &[usize]) -> Vec<usize> {
        let has_room = |lane: &usize| self.0[*lane].is_ready() && self.0[*lane].free >= bytes && !not.contains(lane);
        let mut lanes: Vec<usize> = (0..self.0.len()).filter(has_room).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(self.0[*lane].free));
        lanes
    }
}
