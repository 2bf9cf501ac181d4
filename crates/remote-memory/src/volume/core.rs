//! The state of an open volume.

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

/// A set of lanes, one bit each.
pub(super) type Lanes = u64;

pub(super) fn lane_bit(lane: u8) -> Lanes {
    1 << lane
}

/// A copy of a segment.
pub(super) struct SegmentCopy {
    pub member: Member,
    /// Lane to its donor; `None` if it cannot be reached.
    pub lane: Option<u8>,
    pub base: u64,
}

/// A copy that is being made by a repair.
pub(super) struct Joining {
    pub member: Member,
    pub lane: u8,
    pub base: u64,
    /// Chunks below this one have been copied, so changes in them go to this copy too.
    pub copied: u32,
}

/// A segment: the same slots on several donors.
pub(super) struct Segment {
    pub copies: Vec<SegmentCopy>,
    pub slots: Slots,
    /// Runs in flight, per chunk.
    pub busy: Vec<u32>,
    pub joining: Option<Joining>,
    /// Whether the contents of its slots are unknown, because no copy could be reached when the volume was opened.
    pub is_unknown: bool,
}

impl Segment {
    pub fn new(copies: Vec<SegmentCopy>, slots: u32) -> Self {
        let unknown = copies.iter().all(|copy| copy.lane.is_none());
        Self {
            is_unknown: unknown,
            copies,
            slots: Slots::new(slots),
            busy: vec![0; slots.div_ceil(CHUNK) as usize],
            joining: None,
        }
    }

    /// The copies that can be reached, each with its lane and its base.
    pub fn reached(&self) -> impl Iterator<Item = (u8, u64)> {
        self.copies.iter().filter_map(|copy| Some((copy.lane?, copy.base)))
    }

    pub fn is_dead(&self) -> bool {
        self.reached().next().is_none()
    }

    /// The copies to which a change of this slot goes.
    pub fn written(&self, slot: u32) -> impl Iterator<Item = (u8, u64)> {
        let joining = self.joining.iter().filter(move |joining| slot / CHUNK < joining.copied);
        self.reached().chain(joining.map(|joining| (joining.lane, joining.base)))
    }
}

pub(super) enum RunKind {
    Write {
        /// The request.
        key: u32,
        first_seq: u64,
        headers: Frozen,
        /// Where pages have no checksums, false until all pages are written.
        headers_sent: bool,
    },
    Clear {
        /// The request, for a discard.
        owner: Option<u32>,
    },
}

/// A change of consecutive slots of one chunk, on all copies.
pub(super) struct Run {
    pub kind: RunKind,
    pub place: Place,
    pub count: u32,
    /// First logical page; the others follow. `None` if the pages of the slots are not known.
    pub page: Option<u64>,
    /// Unfinished operations.
    pub outstanding: u32,
    pub lanes: Lanes,
    pub failed: Lanes,
    /// Generation that the durable record must reach before the run finishes: that record says which copies have it.
    pub needs: u64,
}

/// Destination of a piece's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// The request's own buffer, which has the same length.
    Target,
    /// A separate buffer, copied from afterwards.
    Staged,
    /// An edge of a change.
    Edge(u8),
}

/// A read of pages in consecutive slots.
pub(super) struct Piece {
    pub key: u32,
    pub destination: Destination,
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

pub(super) struct LaneOp {
    pub owner: Owner,
    pub lane: u8,
    /// Sequence number among all operations ever sent.
    pub number: u64,
}

/// A call without an answer yet.
pub(super) enum PendingCall {
    Record { round: u64, lane: u8 },
    Take { segment: u32, lane: u8 },
    Free,
    Fence { lane: u8 },
    Heartbeat { lane: u8 },
    Leave,
    Inspect { lane: u8 },
}

pub(super) struct LaneState {
    /// Reason why the lane is not used, if so.
    pub down: Option<String>,
    /// Run of the donor at the other end.
    pub incarnation: Option<u64>,
    /// Unfinished operations.
    pub in_flight: u32,
    /// Whether a call that tests the donor is unanswered.
    pub call_in_flight: bool,
    /// When the last heartbeat was sent.
    pub beat_sent_ns: u64,
    /// Until when the donor has [confirmed](super::confirmation) this writer; 0 if it has not yet.
    pub confirmed_until_ns: u64,
}

/// Slots still to be cleared, once their chunk is not held.
pub(super) struct PendingClear {
    pub place: Place,
    pub count: u32,
    pub page: Option<u64>,
    pub owner: Option<u32>,
}

/// State of the vote on the record.
pub(super) struct Voting {
    pub voters: Vec<Voter>,
    /// Voters of the record that a majority holds. While the voters change, a majority of both sets must accept the
    /// record.
    pub durable_voters: Vec<Voter>,
    /// Generation of the current record.
    pub generation: u64,
    /// Generation that a majority holds.
    pub durable: u64,
    /// The round in progress, if any.
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
    pub errors: String,
}

/// State of repair, which makes one copy at a time, step by step.
#[derive(Default)]
pub(super) struct Repairing {
    pub step: RepairStep,
    /// Donors that had no room.
    pub full: Lanes,
    /// Donors that want their memory back.
    pub leaving: Lanes,
    /// Slabs to be given back.
    pub slabs_to_free: Vec<SlabToFree>,
    /// No step begins before this time.
    pub not_before_ns: u64,
}

/// A slab to be given back, once the record that no longer names it is durable and no operation sent to it is
/// unfinished, because its donor may lend it to others at once.
pub(super) struct SlabToFree {
    pub lane: u8,
    pub slab: u64,
    pub generation: u64,
    /// Number of the last operation that may go to it.
    pub number: u64,
}

#[derive(Default)]
pub(super) enum RepairStep {
    #[default]
    Idle,
    /// Waits for a donor's answer to the request for a slab.
    Taking {
        lane: u8,
    },
    /// Waits until no run of the chunk is in flight.
    Draining {
        segment: u32,
    },
    Reading {
        segment: u32,
        headers: Option<MessageBuffer>,
        pages: Option<MessageBuffer>,
        outstanding: u32,
        failed: bool,
    },
    Writing {
        segment: u32,
        outstanding: u32,
        failed: bool,
    },
    Joining {
        segment: u32,
        generation: u64,
    },
}

/// A volume that its one writer has open. It is a [`Store`](crate::Store); see [the module](super).
pub struct Volume<D: Donors> {
    pub(super) donors: D,
    pub(super) config: VolumeConfig,
    pub(super) id: u64,
    pub(super) number: u64,
    pub(super) epoch: u32,
    pub(super) pages: u64,
    pub(super) copies: u32,
    pub(super) shape: Shape,
    pub(super) lanes: Vec<LaneState>,
    pub(super) segments: Vec<Segment>,
    pub(super) map: Map,
    pub(super) requests: Requests,
    pub(super) runs: Table<Run>,
    pub(super) pieces: Table<Piece>,
    pub(super) lane_ops: Table<LaneOp>,
    pub(super) calls: Table<PendingCall>,
    pub(super) voting: Voting,
    pub(super) repairing: Repairing,
    /// Sequence numbers of the versions.
    pub(super) versions: Sequence,
    /// The settled version, where `versions` does not determine it; see [`Header::settled`](super::Header::settled).
    pub(super) settled_floor: Option<Version>,
    /// Whether there are segments with unknown contents.
    pub(super) has_unknown: bool,
    pub(super) next_copy: usize,
    /// Operations that no donor has accepted yet.
    pub(super) backlog: VecDeque<(u8, u64, Op)>,
    /// Runs that wait for their record to become durable.
    pub(super) gated: Vec<u32>,
    /// Changes that found no slot.
    pub(super) starved: VecDeque<u32>,
    /// Pieces of reads that found no buffer.
    pub(super) deferred: VecDeque<u32>,
    /// Discards that wait for slots to be cleared.
    pub(super) waiting: Vec<u32>,
    /// Requests whose answers wait for [confirmation](super::confirmation).
    pub(super) unconfirmed: Vec<u32>,
    /// Until when a majority of the voters has confirmed this writer.
    pub(super) confirmed_until_ns: u64,
    /// Slots to be cleared once a copy of their segment can be reached again.
    pub(super) unclean: Vec<PendingClear>,
    /// When the donors are called next, for a heartbeat or to revive them.
    pub(super) revive_at_ns: u64,
    /// After too few voters answered: the lanes of those that answer again.
    pub(super) answering: Lanes,
    /// Donors that were told that this writer leaves, and have not answered.
    pub(super) leaving: u32,
    /// Clearing that waits for a repair.
    pub(super) held_clears: VecDeque<PendingClear>,
    /// Pages with old slots being cleared, and the number of those slots.
    pub(super) clearing: HashMap<u64, u32>,
    /// Pages of which only these copies are known to be good.
    pub(super) trusted: HashMap<u64, Lanes>,
    pub(super) zeros: Frozen,
    pub(super) events: Vec<Event>,
    pub(super) finished: VecDeque<Finished>,
    pub(super) ended: Option<StoreError>,
    pub(super) stats: VolumeStats,
    pub(super) now_ns: u64,
    /// Whether the last turn found work, or something was submitted since.
    pub(super) was_busy: bool,
}

impl<D: Donors> std::fmt::Debug for Volume<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("id", &self.id).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Parts from which a volume is made when it is opened.
pub(super) struct Parts<D> {
    pub donors: D,
    pub config: VolumeConfig,
    pub id: u64,
    pub number: u64,
    pub epoch: u32,
    pub pages: u64,
    pub copies: u32,
    pub shape: Shape,
    pub lanes: Vec<LaneState>,
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
        let has_unknown = segments.iter().any(|segment| segment.is_unknown);
        let mut volume = Self {
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
            lane_ops: Table::default(),
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
            unconfirmed: Vec::new(),
            confirmed_until_ns: 0,
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
        };
        volume.update_confirmation();
        volume
    }

    /// Number of the volume, derived from its name.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number that no other volume has, of this name or another: it was drawn at random when the volume was made.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The error that ended the volume, if any. [`StoreError::NoAnswer`] may change once, when donors answer again and
    /// tell what became of the volume.
    pub fn ended(&self) -> Option<&StoreError> {
        self.ended.as_ref()
    }

    /// Epoch of the volume's writer.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Copies of everything that the volume should have.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// Counters of the volume.
    pub fn stats(&self) -> VolumeStats {
        self.stats
    }

    /// The volume's donors.
    pub fn donors(&mut self) -> &mut D {
        &mut self.donors
    }

    /// Abandons the volume; operations in flight may take effect or not.
    pub fn into_donors(self) -> D {
        self.donors
    }

    /// Segment in which a page lives, and the number of pages from this one on that live there too.
    #[inline]
    pub(super) fn home_segment(&self, page: u64) -> (u32, u64) {
        let pages = u64::from(self.shape.pages());
        ((page / pages) as u32, pages - page % pages)
    }

    /// Settled version that new headers name.
    pub(super) fn settled(&self) -> Version {
        self.settled_floor.unwrap_or(Version { epoch: self.epoch, seq: self.versions.all_below() })
    }

    /// From now on no later version counts as settled, because a write failed and may have left parts of its pages.
    pub(super) fn pin_settled(&mut self) {
        self.settled_floor = Some(self.settled());
    }

    pub(super) fn send(&mut self, lane: u8, owner: Owner, op: Op) {
        self.stats.operations += 1;
        let number = self.stats.operations;
        let tag = u64::from(self.lane_ops.insert(LaneOp { owner, lane, number }));
        self.lanes[usize::from(lane)].in_flight += 1;
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
