//! The scan of a volume's slots: finds, for each page, the highest version that is complete.

use std::collections::{HashMap, VecDeque};

use sinew_mem::MessageBuffer;

use super::config::VolumeConfig;
use super::core::{LaneState, Lanes, Parts, Segment, Volume, lane_bit};
use super::donors::Donors;
use super::drive::OPENING_TAG;
use super::map::{Map, Place};
use super::open_error::OpenError;
use super::record::Record;
use super::slot::{CHUNK, HEADER, Header, Shape, SlotState, Version, checksum};
use crate::engine::Op;
use crate::store::BLOCK;

/// Reads in flight, at most.
const JOBS_MAX: usize = 16;

/// A slot whose header names a page.
#[derive(Clone, Copy)]
struct Candidate {
    page: u64,
    version: Version,
    place: Place,
    sum: u64,
    /// Copies with this header.
    lanes: Lanes,
}

enum Job {
    Headers { unit: u32 },
    Page { suspect: usize },
}

/// A chunk of a segment whose headers are being read.
struct Unit {
    place: Place,
    count: u32,
    waiting: u32,
    copies: Vec<(u8, MessageBuffer)>,
}

/// A scan of all slots.
pub(super) struct Scan {
    volume: u64,
    pages: u64,
    shape: Shape,
    segments: Vec<Segment>,
    next: VecDeque<Place>,
    units: super::table::Table<Unit>,
    jobs: super::table::Table<(Job, u8)>,
    lost: Vec<Option<String>>,
    settled: Version,
    map: Map,
    versions: Vec<Version>,
    /// Pages that some copies lack, with the copies that have them.
    partial: HashMap<u64, Lanes>,
    /// Slots whose page may be incomplete.
    suspects: Vec<Candidate>,
    /// Next suspect to be read; `None` while headers are being read.
    checking: Option<usize>,
    /// Slots that are not free, but hold nothing that is needed. They are cleared once the volume is open.
    dirty: Vec<Place>,
}

impl Scan {
    pub fn new(volume: u64, pages: u64, shape: Shape, segments: Vec<Segment>) -> Self {
        let mut next = VecDeque::new();
        for (number, segment) in segments.iter().enumerate().filter(|(_, segment)| !segment.is_dead()) {
            let chunks = (0..segment.busy.len() as u32).map(|chunk| chunk * CHUNK);
            next.extend(chunks.map(|slot| Place { segment: number as u32, slot }));
        }
        Self {
            volume,
            pages,
            shape,
            segments,
            next,
            units: super::table::Table::default(),
            jobs: super::table::Table::default(),
            lost: vec![None; super::donors::DONORS_MAX],
            settled: Version::default(),
            map: Map::new(pages),
            versions: vec![Version::default(); pages as usize],
            partial: HashMap::new(),
            suspects: Vec::new(),
            checking: None,
            dirty: Vec::new(),
        }
    }

    fn reached(&self, segment: u32) -> Vec<(u8, u64)> {
        let reached = self.segments[segment as usize].reached();
        reached.filter(|(lane, _)| self.lost[usize::from(*lane)].is_none()).collect()
    }

    /// Makes progress. Returns true once everything is known.
    pub fn turn(&mut self, donors: &mut impl Donors) -> bool {
        while self.jobs.len() < JOBS_MAX && self.checking.is_none() {
            let Some(place) = self.next.pop_front() else { break };
            if !self.read_headers(donors, place) {
                self.next.push_front(place);
                break;
            }
        }
        if self.checking.is_none() && self.next.is_empty() && self.jobs.len() == 0 {
            self.accept_settled();
        }
        while let Some(suspect) =
            self.checking.filter(|suspect| *suspect < self.suspects.len() && self.jobs.len() < JOBS_MAX)
        {
            if !self.read_page(donors, suspect) {
                break;
            }
            self.checking = Some(suspect + 1);
        }
        self.checking.is_some_and(|suspect| suspect >= self.suspects.len()) && self.jobs.len() == 0
    }

    fn send(&mut self, donors: &mut impl Donors, lane: u8, job: Job, op: Op) {
        let tag = self.jobs.insert((job, lane));
        if let Err(op) = donors.submit(usize::from(lane), OPENING_TAG | u64::from(tag), op) {
            let target = if let Op::Read { target, .. } = op { Some(target) } else { None };
            self.complete(OPENING_TAG | u64::from(tag), Some("it takes no operation".into()), target);
        }
    }

    fn read_headers(&mut self, donors: &mut impl Donors, place: Place) -> bool {
        let count = CHUNK.min(self.shape.slots - place.slot);
        let copies = self.reached(place.segment);
        let len = count as usize * HEADER;
        let buffers: Result<Vec<_>, _> = copies.iter().map(|_| donors.arena().alloc(len, len)).collect();
        let Ok(buffers) = buffers else { return false };
        let unit = self.units.insert(Unit { place, count, waiting: copies.len() as u32, copies: Vec::new() });
        for ((lane, base), target) in copies.into_iter().zip(buffers) {
            let at = base + self.shape.header_at(place.slot);
            self.send(donors, lane, Job::Headers { unit }, Op::Read { at, target });
        }
        true
    }

    fn read_page(&mut self, donors: &mut impl Donors, suspect: usize) -> bool {
        let Candidate { place, lanes, sum, .. } = self.suspects[suspect];
        if sum == 0 {
            // Without checksums, the header was written after the page.
            return true;
        }
        let copies = self.reached(place.segment);
        let buffers: Result<Vec<_>, _> = copies.iter().map(|_| donors.arena().alloc(BLOCK, BLOCK)).collect();
        let Ok(buffers) = buffers else { return false };
        for ((lane, base), target) in copies.into_iter().zip(buffers) {
            if lanes & lane_bit(lane) != 0 {
                let at = base + self.shape.page_at(place.slot);
                self.send(donors, lane, Job::Page { suspect }, Op::Read { at, target });
            }
        }
        true
    }

    /// Handles the end of a read.
    pub fn complete(&mut self, tag: u64, error: Option<String>, target: Option<MessageBuffer>) {
        let Some((job, lane)) = self.jobs.remove((tag & 0xFFFF_FFFF) as u32) else { return };
        let is_good = error.is_none();
        if let Some(error) = error {
            self.lost[usize::from(lane)].get_or_insert(error);
        }
        match job {
            Job::Page { suspect } => {
                let candidate = &mut self.suspects[suspect];
                if !target.is_some_and(|page| is_good && checksum(&page) == candidate.sum) {
                    candidate.lanes &= !lane_bit(lane);
                }
            }
            Job::Headers { unit } => {
                let Some(entry) = self.units.get_mut(unit) else { return };
                entry.waiting -= 1;
                entry.copies.extend(target.filter(|_| is_good).map(|target| (lane, target)));
                if entry.waiting == 0
                    && let Some(entry) = self.units.remove(unit)
                {
                    self.compare(&entry);
                }
            }
        }
    }

    fn belongs(&self, header: &Header, place: Place) -> bool {
        let home = header.page / u64::from(self.shape.pages());
        header.volume == self.volume && header.page < self.pages && home == u64::from(place.segment)
    }

    /// Compares the headers of one chunk on all copies.
    fn compare(&mut self, unit: &Unit) {
        for index in 0..unit.count {
            let place = unit.place.plus(index);
            let mut found: [Option<Candidate>; 2] = [None, None];
            let mut is_dirty = false;
            for (lane, headers) in &unit.copies {
                let Some(bytes) = headers.as_chunks::<HEADER>().0.get(index as usize) else { continue };
                let header = match Header::read(bytes) {
                    SlotState::Free => continue,
                    SlotState::Header(header) if self.belongs(&header, place) => header,
                    _ => {
                        is_dirty = true;
                        continue;
                    }
                };
                self.settled = self.settled.max(header.settled);
                let Header { page, version, sum, .. } = header;
                let same = found.iter_mut().flatten().find(|found| found.version == version && found.page == page);
                if let Some(same) = same {
                    same.lanes |= lane_bit(*lane);
                } else {
                    let place_for = if found[0].is_none() { 0 } else { 1 };
                    // A third, different header of a slot cannot occur.
                    found[place_for] = Some(Candidate { page, version, place, sum, lanes: lane_bit(*lane) });
                }
            }
            if is_dirty && found[0].is_none() {
                self.mark_dirty(place);
            }
            for candidate in found.into_iter().flatten() {
                if candidate.version < self.settled {
                    self.add(candidate);
                } else {
                    self.suspects.push(candidate);
                }
            }
        }
    }

    /// Accepts the settled pages, which are complete; the other candidates are to be read.
    fn accept_settled(&mut self) {
        let settled = self.settled;
        let (known, suspects) =
            std::mem::take(&mut self.suspects).into_iter().partition(|one: &Candidate| one.version < settled);
        self.suspects = suspects;
        let known: Vec<Candidate> = known;
        known.into_iter().for_each(|candidate| self.add(candidate));
        self.checking = Some(0);
    }

    fn mark_dirty(&mut self, place: Place) {
        let slots = &mut self.segments[place.segment as usize].slots;
        if !slots.is_taken(place.slot) {
            slots.mark_taken(place.slot);
            self.dirty.push(place);
        }
    }

    /// Puts a page into the map, unless a later version lies elsewhere.
    fn add(&mut self, candidate: Candidate) {
        let Candidate { page, version, place, sum, lanes } = candidate;
        let best_version = &mut self.versions[page as usize];
        if *best_version >= version {
            return self.mark_dirty(place);
        }
        *best_version = version;
        self.partial.remove(&page);
        let before = self.map.set(page, Some(place), sum);
        let reached = self.segments[place.segment as usize].reached();
        let all = reached.filter(|(lane, _)| self.lost[usize::from(*lane)].is_none());
        let all = all.fold(0, |all, (lane, _)| all | lane_bit(lane));
        if lanes & all != all {
            self.partial.insert(page, lanes);
        }
        if let Some(before) = before
            && before != place
        {
            self.dirty.push(before);
        }
        let slots = &mut self.segments[place.segment as usize].slots;
        if slots.is_taken(place.slot) {
            self.dirty.retain(|dirty| *dirty != place);
        }
        self.segments[place.segment as usize].slots.mark_taken(place.slot);
    }

    /// Makes the volume, which still has to mend pages that some copies lack, and to clear slots.
    pub fn finish<D: Donors>(
        mut self: Box<Self>,
        donors: D,
        config: VolumeConfig,
        epoch: u32,
        record: &Record,
        lanes: Vec<LaneState>,
    ) -> Result<Volume<D>, OpenError> {
        for suspect in std::mem::take(&mut self.suspects) {
            if suspect.lanes == 0 {
                self.mark_dirty(suspect.place);
            } else {
                self.add(suspect);
            }
        }
        let zeros = donors.arena().alloc(CHUNK as usize * HEADER, CHUNK as usize * HEADER);
        let mut zeros = zeros.map_err(|error| OpenError::Failed(error.to_string()))?;
        zeros[..].fill(0);
        let Self { shape, segments, map, settled, partial, dirty, lost, .. } = *self;
        let dead = segments.iter().filter(|segment| segment.is_dead()).count();
        let mut volume = Volume::new(Parts {
            donors,
            config,
            id: record.volume,
            number: record.number,
            epoch,
            pages: record.pages,
            copies: record.copies,
            shape,
            lanes,
            segments,
            map,
            voters: record.voters.clone(),
            generation: record.generation,
            settled,
            zeros: zeros.freeze(),
        });
        for (lane, why) in lost.into_iter().enumerate() {
            if let Some(why) = why {
                volume.drop_lane(lane as u8, why);
            }
        }
        if volume.segments.iter().filter(|segment| segment.is_dead()).count() > dead {
            return Err(OpenError::Failed(volume.describe_down()));
        }
        for place in dirty {
            volume.clear(place, 1, None, None);
        }
        for (page, lanes) in partial {
            volume.trusted.insert(page, lanes);
            volume.refresh(page);
        }
        Ok(volume)
    }
}
