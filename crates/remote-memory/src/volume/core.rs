//! A volume that is open: what it knows, and how what is over finds what it belongs to.

use std::collections::{HashMap, VecDeque};

use sinew_mem::{Frozen, MessageBuffer};

use super::config::{VolumeConfig, VolumeStats};
use super::donors::{Donors, Event};
use super::map::{Map, Place};
use super::record::{Member, Voter};
use super::requests::Requests;
use super::sequence::Sequence;
use super::slot::{CHUNK, HEADER, Shape, Version};
use super::slots::Slots;
use super::table::Table;
use crate::engine::Op;
use crate::store::{Finished, StoreError};

/// A set of lanes, a bit each.
pub(super) type Lanes = u64;

pub(super) fn bit(lane: u8) -> Lanes {
    1 << lane
}

/// A copy of a segment.
pub(super) struct Held {
    pub member: Member,
    /// By which it is reached; none where it is not.
    pub lane: Option<u8>,
    pub base: u64,
}

/// A copy that is being made.
pub(super) struct Joining {
    pub member: Member,
    pub lane: u8,
    pub base: u64,
    /// Chunks below have been copied: what changes there, changes in this copy as well.
    pub copied: u32,
}

/// As many slots on several donors.
pub(super) struct Segment {
    pub copies: Vec<Held>,
    pub slots: Slots,
    /// Runs in flight, of each chunk.
    pub busy: Vec<u32>,
    pub joining: Option<Joining>,
    /// Whether nobody looked what its slots hold, since no copy could be reached.
    pub unknown: bool,
}

impl Segment {
    pub fn new(copies: Vec<Held>, slots: u32) -> Self {
        let unknown = copies.iter().all(|copy| copy.lane.is_none());
        Self { unknown, copies, slots: Slots::new(slots), busy: vec![0; slots.div_ceil(CHUNK) as usize], joining: None }
    }

    /// The copies that can be reached.
    pub fn reached(&self) -> impl Iterator<Item = (u8, u64)> {
        self.copies.iter().filter_map(|copy| Some((copy.lane?, copy.base)))
    }

    pub fn is_dead(&self) -> bool {
        self.reached().next().is_none()
    }

    /// The copies that a change of these slots goes to.
    pub fn written(&self, slot: u32) -> impl Iterator<Item = (u8, u64)> {
        let joining = self.joining.iter().filter(move |joining| slot / CHUNK < joining.copied);
        self.reached().chain(joining.map(|joining| (joining.lane, joining.base)))
    }
}

pub(super) enum RunKind {
    Write {
        /// Whose.
        key: u32,
        first_seq: u64,
        headers: Frozen,
        /// Not yet, where pages have no checksums.
        headers_sent: bool,
    },
    Clear {
        /// Whose, if a discard's.
        owner: Option<u32>,
    },
}

/// A change of slots one behind the other, of one chunk, on all copies.
pub(super) struct Run {
    pub kind: RunKind,
    pub place: Place,
    pub count: u32,
    /// The first logical page; the others follow. None where nobody knows whose the slots are.
    pub page: Option<u64>,
    /// Operations that are not over.
    pub out: u32,
    pub lanes: Lanes,
    pub failed: Lanes,
    /// The generation of the record that must be kept before it is over: that says which copies have it.
    pub needs: u64,
}

/// Where a piece's pages go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// The request's own buffer, which is as long.
    Target,
    /// A buffer that is copied from.
    Staged,
    /// An edge of a change.
    Edge(u8),
}

/// A read of pages that lie one behind the other.
pub(super) struct Piece {
    pub key: u32,
    pub into: Into,
    pub page: u64,
    pub place: Place,
    pub count: u32,
    /// Copies that failed, or were bad.
    pub tried: Lanes,
    pub was_bad: bool,
    pub buffer: Option<MessageBuffer>,
}

pub(super) enum Owner {
    Run(u32),
    Piece(u32),
    Repair { of_headers: bool },
}

pub(super) struct Flight {
    pub owner: Owner,
    pub lane: u8,
    /// Of all operations that were ever sent: later ones have higher numbers.
    pub number: u64,
}

/// A call that has no answer yet.
pub(super) enum Called {
    Record { round: u64, lane: u8 },
    Take { segment: u32, lane: u8 },
    Free,
    Fence { lane: u8 },
    Beat { lane: u8 },
    Leave,
    Look { lane: u8 },
}

pub(super) struct Lane {
    /// Why it is not used, if so.
    pub down: Option<String>,
    /// Of the donor's run that it leads to.
    pub incarnation: Option<u64>,
    /// Operations that are not over.
    pub out: u32,
    /// Whether it is being reached again.
    pub is_asked: bool,
}

/// Slots that are to be cleared, when their chunk is not held.
pub(super) struct Owed {
    pub place: Place,
    pub count: u32,
    pub page: Option<u64>,
    pub owner: Option<u32>,
}

/// Which record the voters have.
pub(super) struct Voting {
    pub voters: Vec<Voter>,
    /// As in the record that a majority has: while they change, a majority of both has to take it.
    pub durable_voters: Vec<Voter>,
    /// What it is now.
    pub generation: u64,
    /// What a majority has.
    pub durable: u64,
    /// The one that is being told.
    pub round: Option<Round>,
    pub rounds: u64,
    pub retry_at_ns: u64,
    pub failing_since_ns: Option<u64>,
}

pub(super) struct Round {
    pub number: u64,
    pub generation: u64,
    pub voters: Vec<Voter>,
    pub acks: Lanes,
    pub waiting: u32,
    pub older: Option<u32>,
    pub said: String,
}

/// A copy that is being made, one step at a time.
#[derive(Default)]
pub(super) struct Repairing {
    pub step: RepairStep,
    /// Donors that had no room.
    pub full: Lanes,
    /// Donors that want their memory back.
    pub leaving: Lanes,
    /// Slabs that are to be given back.
    pub left: Vec<Left>,
    /// Nothing before.
    pub not_before_ns: u64,
}

/// A slab that is given back when the record that does not name it is kept, and nothing that was sent to it before is on its way: its donor gives it to others.
pub(super) struct Left {
    pub lane: u8,
    pub slab: u64,
    pub generation: u64,
    /// Of the last operation before.
    pub number: u64,
}

#[derive(Default)]
pub(super) enum RepairStep {
    #[default]
    Idle,
    Taking,
    /// Waits until nothing of the chunk is in flight.
    Draining {
        segment: u32,
    },
    Reading {
        segment: u32,
        headers: Option<MessageBuffer>,
        pages: Option<MessageBuffer>,
        out: u32,
        failed: bool,
    },
    Writing {
        segment: u32,
        out: u32,
        failed: bool,
    },
    Joining {
        segment: u32,
        generation: u64,
    },
}

/// A volume that its one writer has open: a [`Store`](crate::Store); see [the module](super).
pub struct Volume<D: Donors> {
    pub(super) donors: D,
    pub(super) config: VolumeConfig,
    pub(super) id: u64,
    pub(super) number: u64,
    pub(super) epoch: u32,
    pub(super) pages: u64,
    pub(super) copies: u32,
    pub(super) shape: Shape,
    pub(super) lanes: Vec<Lane>,
    pub(super) segments: Vec<Segment>,
    pub(super) map: Map,
    pub(super) requests: Requests,
    pub(super) runs: Table<Run>,
    pub(super) pieces: Table<Piece>,
    pub(super) flights: Table<Flight>,
    pub(super) calls: Table<Called>,
    pub(super) voting: Voting,
    pub(super) repairing: Repairing,
    /// Versions that are handed out.
    pub(super) versions: Sequence,
    /// What is settled, where that is not told by the versions: see [`Header::settled`](super::Header::settled).
    pub(super) settled_floor: Option<Version>,
    /// Whether there are segments of which nothing is known.
    pub(super) has_unknown: bool,
    pub(super) next_copy: usize,
    /// Operations that no donor took yet.
    pub(super) backlog: VecDeque<(u8, u64, Op)>,
    /// Runs whose record is not kept yet.
    pub(super) gated: Vec<u32>,
    /// Changes that found no slot.
    pub(super) starved: VecDeque<u32>,
    /// Reads that found no memory.
    pub(super) deferred: VecDeque<u32>,
    /// Discards that wait for slots to be cleared.
    pub(super) waiting: Vec<u32>,
    /// Slots of segments of which no copy can be reached now, that are to be cleared when one can.
    pub(super) unclean: Vec<Owed>,
    /// When donors that failed are asked again.
    pub(super) revive_at_ns: u64,
    /// Once too few voters answered: the lanes of those that do again.
    pub(super) answering: Lanes,
    /// Donors that have been told that this writer leaves, and have not answered.
    pub(super) leaving: u32,
    /// Clearing that waits for a repair.
    pub(super) held_clears: VecDeque<Owed>,
    /// Pages of which old slots are being cleared, and how many.
    pub(super) clearing: HashMap<u64, u32>,
    /// Pages of which only these copies are known to be good.
    pub(super) trusted: HashMap<u64, Lanes>,
    pub(super) zeros: Frozen,
    pub(super) events: Vec<Event>,
    pub(super) finished: VecDeque<Finished>,
    pub(super) ended: Option<StoreError>,
    pub(super) stats: VolumeStats,
    pub(super) now_ns: u64,
    /// Whether the last turn found something, or something was asked for since.
    pub(super) was_busy: bool,
}

impl<D: Donors> std::fmt::Debug for Volume<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("id", &self.id).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// What a volume is opened with.
pub(super) struct Parts<D> {
    pub donors: D,
    pub config: VolumeConfig,
    pub id: u64,
    pub number: u64,
    pub epoch: u32,
    pub pages: u64,
    pub copies: u32,
    pub shape: Shape,
    pub lanes: Vec<Lane>,
    pub segments: Vec<Segment>,
    pub map: Map,
    pub voters: Vec<Voter>,
    pub generation: u64,
    pub settled: Version,
    pub zeros: Frozen,
}

impl<D: Donors> Volume<D> {
    pub(super) fn new(parts: Parts<D>) -> Self {
        let Parts {
            donors,
            config,
            id,
            number,
            epoch,
            pages,
            copies,
            shape,
            lanes,
            segments,
            map,
            voters,
            generation,
            ..
        } = parts;
        let has_unknown = segments.iter().any(|segment| segment.unknown);
        Self {
            donors,
            config,
            id,
            number,
            epoch,
            pages,
            copies,
            shape,
            lanes,
            segments,
            map,
            requests: Requests::new(config.depth),
            runs: Table::default(),
            pieces: Table::default(),
            flights: Table::default(),
            calls: Table::default(),
            voting: Voting {
                durable_voters: voters.clone(),
                voters,
                generation,
                durable: generation,
                round: None,
                rounds: 0,
                retry_at_ns: 0,
                failing_since_ns: None,
            },
            repairing: Repairing::default(),
            versions: Sequence::new(1),
            settled_floor: Some(parts.settled),
            has_unknown,
            next_copy: 0,
            backlog: VecDeque::new(),
            gated: Vec::new(),
            starved: VecDeque::new(),
            deferred: VecDeque::new(),
            waiting: Vec::new(),
            unclean: Vec::new(),
            revive_at_ns: 0,
            answering: 0,
            leaving: 0,
            held_clears: VecDeque::new(),
            clearing: HashMap::new(),
            trusted: HashMap::new(),
            zeros: parts.zeros,
            events: Vec::new(),
            finished: VecDeque::new(),
            ended: None,
            stats: VolumeStats::default(),
            now_ns: 0,
            was_busy: true,
        }
    }

    /// Its name.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What no other volume has, of the same name or another: it was drawn by lot when this one was made.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Why nothing is done any more, if so. After [`StoreError::Silent`] it may change once: when donors that answer again say what became of the volume.
    pub fn ended(&self) -> Option<&StoreError> {
        self.ended.as_ref()
    }

    /// Its writer's epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Copies that it has of everything, when it is whole.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// What it did and saw.
    pub fn stats(&self) -> VolumeStats {
        self.stats
    }

    /// Its donors.
    pub fn donors(&mut self) -> &mut D {
        &mut self.donors
    }

    /// Gives it up; what is in flight may be done or not.
    pub fn into_donors(self) -> D {
        self.donors
    }

    /// The segment that a page lives in, and how many pages from this on live there as well.
    #[inline]
    pub(super) fn home(&self, page: u64) -> (u32, u64) {
        let pages = u64::from(self.shape.pages());
        ((page / pages) as u32, pages - page % pages)
    }

    /// What new headers say is settled.
    pub(super) fn settled(&self) -> Version {
        self.settled_floor.unwrap_or(Version { epoch: self.epoch, seq: self.versions.all_below() })
    }

    /// From now on no later version counts as settled: a write has failed, and may be half there.
    pub(super) fn pin_settled(&mut self) {
        self.settled_floor = Some(self.settled());
    }

    pub(super) fn send(&mut self, lane: u8, owner: Owner, op: Op) {
        self.stats.operations += 1;
        let number = self.stats.operations;
        let tag = u64::from(self.flights.insert(Flight { owner, lane, number }));
        self.lanes[usize::from(lane)].out += 1;
        if !self.backlog.is_empty() {
            self.backlog.push_back((lane, tag, op));
        } else if let Err(op) = self.donors.submit(usize::from(lane), tag, op) {
            self.backlog.push_back((lane, tag, op));
        }
    }

    pub(super) fn send_backlog(&mut self) {
        while let Some((lane, tag, op)) = self.backlog.pop_front() {
            if let Err(op) = self.donors.submit(usize::from(lane), tag, op) {
                self.backlog.push_front((lane, tag, op));
                return;
            }
        }
    }

    /// Zeros for the headers of up to a chunk of slots.
    pub(super) fn zero_headers(&self, count: u32) -> sinew_fabric::verbs::Slice {
        sinew_fabric::verbs::Slice { buffer: self.zeros.clone(), start: 0, len: count as usize * HEADER }
    }
}
