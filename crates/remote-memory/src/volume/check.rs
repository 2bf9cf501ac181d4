//! A check of a volume: compares all slots of all copies, headers and pages, with what the volume knows and with each
//! other. Changes nothing.

use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::MessageBuffer;

use super::core::{Segment, Volume};
use super::donors::{Donors, Event};
use super::map::{Map, Place};
use super::slot::{CHUNK, HEADER, Header, Shape, SlotState, checksum};
use crate::donor::Call;
use crate::engine::Op;
use crate::store::BLOCK;

/// Tag of a check's operations and calls.
const CHECK_TAG: u64 = 1 << 62;
/// Tag of heartbeats, whose answers are ignored.
const HEARTBEAT_TAG: u64 = 1 << 61;

/// Result of a check. Slots are counted in each copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Logical pages that have been written and are there.
    pub pages: u64,
    /// Slots that hold their page as they should.
    pub good: u64,
    /// Slots that should hold a page, but are free.
    pub missing: u64,
    /// Slots whose page does not match the checksum in its header.
    pub torn: u64,
    /// Slots whose page differs from that in the first copy.
    pub differing: u64,
    /// Slots that hold an older version, or something that is not the volume's.
    pub stale: u64,
    /// Slots without a valid header.
    pub garbage: u64,
    /// Chunks of slots that could not be read, counted in each copy.
    pub unread: u64,
    /// Segments with fewer copies than they should have.
    pub degraded: u64,
    /// Segments without any copy that can be reached.
    pub lost: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        let Self { missing, torn, differing, stale, garbage, unread, degraded, lost, .. } = *self;
        [missing, torn, differing, stale, garbage, unread, degraded, lost].iter().all(|count| *count == 0)
    }
}

struct CopyBytes {
    headers: Option<MessageBuffer>,
    pages: Option<MessageBuffer>,
}

/// A check in progress.
pub struct Check<D: Donors> {
    donors: D,
    volume: u64,
    shape: Shape,
    map: Map,
    segments: Vec<Segment>,
    at: Place,
    /// Copies of the chunk that is being read.
    copies: Vec<CopyBytes>,
    waiting: u32,
    report: CheckReport,
    /// Epoch of the writer that opened the volume.
    epoch: u32,
    /// Lanes to the donors that are told at the end that the writer has left.
    lanes: Vec<usize>,
    revive_ns: u64,
    /// When the next heartbeat is due.
    next_heartbeat_ns: u64,
    events: Vec<Event>,
}

impl<D: Donors> std::fmt::Debug for Check<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("report", &self.report).finish_non_exhaustive()
    }
}

impl<D: Donors> Check<D> {
    /// Checks a volume that has been opened and not been used since.
    pub fn new(volume: Volume<D>) -> Self {
        let Volume { donors, id, shape, map, segments, copies, pages, epoch, config, ref lanes, .. } = volume;
        let lanes = (0..lanes.len()).filter(|lane| lanes[*lane].down.is_none()).collect();
        let lacks_copies = |segment: &&Segment| segment.reached().count() < copies as usize;
        let report = CheckReport {
            pages: (0..pages).filter(|page| map.place(*page).is_some()).count() as u64,
            degraded: segments.iter().filter(lacks_copies).count() as u64,
            lost: segments.iter().filter(|segment| segment.is_dead()).count() as u64,
            ..CheckReport::default()
        };
        let at = Place { segment: 0, slot: 0 };
        Self {
            donors,
            volume: id,
            shape,
            map,
            segments,
            at,
            copies: Vec::new(),
            waiting: 0,
            report,
            epoch,
            lanes,
            revive_ns: config.heartbeat_ns,
            next_heartbeat_ns: 0,
            events: Vec::new(),
        }
    }

    /// Makes progress. Returns the report once the check is complete. If this is not called for as long as the volume's
    /// [lease](super::VolumeConfig::lease_ns), another writer may take the volume over, and the rest counts as unread.
    pub fn turn(&mut self) -> Option<CheckReport> {
        self.donors.turn();
        self.send_heartbeats();
        let mut events = std::mem::take(&mut self.events);
        self.donors.poll(&mut events);
        for event in events.drain(..) {
            if let Event::CallAnswered { tag: CHECK_TAG, .. } = event {
                self.waiting -= 1;
            }
            if let Event::OpFinished { tag, error, target } = event
                && tag & CHECK_TAG != 0
                && let Some(copy) = self.copies.get_mut((tag & 0xFF) as usize)
            {
                self.waiting -= 1;
                let target = target.filter(|_| error.is_none());
                *(if tag & 0x100 == 0 { &mut copy.headers } else { &mut copy.pages }) = target;
            }
        }
        self.events = events;
        if self.waiting > 0 {
            return None;
        }
        if !self.copies.is_empty() {
            self.compare();
            self.copies.clear();
            self.at.slot += CHUNK;
        }
        while self.at.slot >= self.shape.slots
            || self.segments.get(self.at.segment as usize).is_some_and(Segment::is_dead)
        {
            self.at = Place { segment: self.at.segment + 1, slot: 0 };
            if self.at.segment as usize >= self.segments.len() {
                break;
            }
        }
        if self.at.segment as usize >= self.segments.len() {
            for lane in std::mem::take(&mut self.lanes) {
                self.waiting += 1;
                self.donors.call(lane, CHECK_TAG, Call::Leave { volume: self.volume, epoch: self.epoch });
            }
            return (self.waiting == 0).then_some(self.report);
        }
        self.read();
        None
    }

    /// Sends the donors a heartbeat when it is due.
    fn send_heartbeats(&mut self) {
        let now_ns = self.donors.now_ns();
        if now_ns < self.next_heartbeat_ns {
            return;
        }
        self.next_heartbeat_ns = now_ns + self.revive_ns;
        for lane in &self.lanes {
            self.donors.call(*lane, HEARTBEAT_TAG, Call::Heartbeat { volume: self.volume, epoch: self.epoch });
        }
    }

    /// Slots of segments checked so far, and in total.
    pub fn progress(&self) -> (u64, u64) {
        let slots = u64::from(self.shape.slots);
        let all = self.segments.len() as u64 * slots;
        let done = u64::from(self.at.segment) * slots + u64::from(self.at.slot).min(slots);
        (done.min(all), all)
    }

    fn count(&self) -> u32 {
        CHUNK.min(self.shape.slots - self.at.slot)
    }

    fn read(&mut self) {
        let reached: Vec<(u8, u64)> = self.segments[self.at.segment as usize].reached().collect();
        let count = self.count() as usize;
        for (index, (lane, base)) in reached.into_iter().enumerate() {
            self.copies.push(CopyBytes { headers: None, pages: None });
            let parts = [
                (0, count * HEADER, self.shape.header_at(self.at.slot)),
                (0x100, count * BLOCK, self.shape.page_at(self.at.slot)),
            ];
            for (kind, len, at) in parts {
                // What cannot be read now counts as unread.
                let Ok(target) = self.donors.arena().alloc(len, len) else { continue };
                let tag = CHECK_TAG | kind | index as u64;
                if self.donors.submit(usize::from(lane), tag, Op::Read { at: base + at, target }).is_ok() {
                    self.waiting += 1;
                }
            }
        }
    }

    fn compare(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        let first = copies.first().and_then(|copy| copy.pages.as_deref());
        for copy in &copies {
            let (Some(headers), Some(pages)) = (&copy.headers, &copy.pages) else {
                self.report.unread += 1;
                continue;
            };
            for (index, (header, page)) in
                headers.as_chunks::<HEADER>().0.iter().zip(pages.chunks_exact(BLOCK)).enumerate()
            {
                let place = self.at.plus(index as u32);
                let from = index * BLOCK;
                self.check_slot(place, Header::read(header), page, first.map(|first| &first[from..from + BLOCK]));
            }
        }
        self.copies = copies;
    }

    fn check_slot(&mut self, place: Place, found: SlotState, page: &[u8], first: Option<&[u8]>) {
        let is_live = |header: &Header| {
            header.volume == self.volume
                && self.map.place(header.page) == Some(place)
                && self.map.sum(header.page) == header.sum
        };
        let is_expected = self.segments[place.segment as usize].slots.is_taken(place.slot);
        let report = &mut self.report;
        match found {
            SlotState::Free if is_expected => report.missing += 1,
            SlotState::Free => {}
            SlotState::Garbage => report.garbage += 1,
            SlotState::Header(header) if !is_live(&header) => report.stale += 1,
            SlotState::Header(header) if header.sum != 0 && checksum(page) != header.sum => report.torn += 1,
            SlotState::Header(_) if first.is_some_and(|first| first != page) => report.differing += 1,
            SlotState::Header(_) => report.good += 1,
        }
    }

    /// Ends the check, and returns the donors.
    pub fn into_donors(self) -> D {
        self.donors
    }
}

/// A thread can sleep on it as on its donors.
impl<D: Donors> Readiness for Check<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.donors.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.waiting == 0 {
            return Ok(Armed::Ready);
        }
        let armed = self.donors.arm(now_ns)?;
        let beats = Armed::Sleep { until_ns: Some(self.next_heartbeat_ns) }.on_clock(self.donors.now_ns(), now_ns);
        Ok(if let Armed::Sleep { until_ns } = beats { armed.min_deadline(until_ns) } else { armed })
    }

    fn disarm(&mut self) -> bool {
        self.donors.disarm()
    }
}
