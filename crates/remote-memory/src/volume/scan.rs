//! The scan of a volume's slots: finds, for each page, the highest version that is complete, and completes it on the
//! copies that lack it, at the same place. Nothing is cleared before that, so that a donor may fail at any time: the
//! scan is then [over](Scan::has_lost), and another one, of the other copies, finds what these hold.

use std::collections::{HashMap, VecDeque};

use sinew_mem::{Frozen, MessageBuffer};

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
    Filling { gap: usize },
}

/// A chunk of a segment whose headers are being read.
struct Unit {
    place: Place,
    count: u32,
    waiting: u32,
    copies: Vec<(u8, MessageBuffer)>,
}

/// A page that some copies lack.
struct Gap {
    page: u64,
    place: Place,
    /// Copies that have it.
    good: Lanes,
    /// The page, once it has been read from one of them.
    contents: Option<Frozen>,
    /// Whether the other copies have the page. Its header is written afterwards, so that it never stands for a page
    /// that was cut off.
    has_page: bool,
    /// Unfinished operations.
    waiting: u32,
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
    /// Epoch and sequence number of each page's version. Like the map, it takes memory only as pages are found.
    versions: Vec<[u64; 2]>,
    /// Pages that some copies lack, with the copies that have them.
    partial: HashMap<u64, Lanes>,
    /// Slots whose page may be incomplete.
    suspects: Vec<Candidate>,
    /// Next suspect to be read; `None` while headers are being read.
    checking: Option<usize>,
    /// What is to be completed; `None` while suspects are being read.
    gaps: Option<Vec<Gap>>,
    /// Gaps of which the next operations are due.
    due: VecDeque<usize>,
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
            lost: vec![None; super::DONORS_MAX],
            settled: Version::default(),
            map: Map::new(pages),
            versions: vec![[0; 2]; pages as usize],
            partial: HashMap::new(),
            suspects: Vec::new(),
            checking: None,
            gaps: None,
            due: VecDeque::new(),
            dirty: Vec::new(),
        }
    }

    fn reached(&self, segment: u32) -> Vec<(u8, u64)> {
        let reached = self.segments[segment as usize].reached();
        reached.filter(|(lane, _)| self.lost[usize::from(*lane)].is_none()).collect()
    }

    /// Whether a donor has failed during the scan, whose result is then of no use.
    pub fn has_lost(&self) -> bool {
        self.lost.iter().any(Option::is_some)
    }

    /// Lanes of the donors that failed during the scan, each with the reason.
    pub fn lost(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lost.iter().enumerate().filter_map(|(lane, why)| Some((lane, why.as_deref()?)))
    }

    /// Whether a segment has lost its last copy during the scan.
    pub fn has_lost_segment(&self) -> bool {
        let mut numbers = 0..self.segments.len() as u32;
        numbers.any(|number| !self.segments[number as usize].is_dead() && self.reached(number).is_empty())
    }

    /// Makes progress. Returns true once everything is known and complete, or a donor has failed; nothing is in flight
    /// then.
    pub fn turn(&mut self, donors: &mut impl Donors) -> bool {
        if self.has_lost() {
            return self.jobs.len() == 0;
        }
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
        let is_checked = self.checking.is_some_and(|suspect| suspect >= self.suspects.len());
        if is_checked && self.gaps.is_none() && self.jobs.len() == 0 && !self.has_lost() {
            self.find_gaps();
        }
        while self.jobs.len() < JOBS_MAX
            && let Some(gap) = self.due.pop_front()
        {
            // If there is no memory even while nothing is in flight, the page stays as it is.
            if !self.fill(donors, gap) && self.jobs.len() > 0 {
                self.due.push_front(gap);
                break;
            }
        }
        (self.gaps.is_some() || self.has_lost()) && self.due.is_empty() && self.jobs.len() == 0
    }

    /// Decides which version of each page counts, and finds the copies that lack it.
    fn find_gaps(&mut self) {
        for suspect in std::mem::take(&mut self.suspects) {
            if suspect.lanes == 0 {
                self.mark_dirty(suspect.place);
            } else {
                self.add(suspect);
            }
        }
        self.checking = Some(0);
        let mut pages_at = HashMap::new();
        for place in self.partial.keys().filter_map(|page| self.map.place(*page)) {
            *pages_at.entry((place.segment, place.slot)).or_insert(0) += 1;
        }
        let gap = |(page, good): (&u64, &Lanes)| {
            // If the copies hold different pages at a place, neither may be written over the other.
            let place = self.map.place(*page).filter(|place| pages_at[&(place.segment, place.slot)] == 1)?;
            Some(Gap { page: *page, place, good: *good, contents: None, has_page: false, waiting: 0 })
        };
        let gaps: Vec<Gap> = self.partial.iter().filter_map(gap).collect();
        self.due = (0..gaps.len()).collect();
        self.gaps = Some(gaps);
    }

    /// Takes the next step with a page that some copies lack: reads it from one that has it, writes it to the others,
    /// and then writes its header. Returns false if there is no memory for this now.
    fn fill(&mut self, donors: &mut impl Donors, number: usize) -> bool {
        let Some(gap) = self.gaps.as_ref().and_then(|gaps| gaps.get(number)) else { return true };
        let (page, place, good, has_page) = (gap.page, gap.place, gap.good, gap.has_page);
        let contents = gap.contents.clone();
        let copies = self.reached(place.segment);
        let (header_at, page_at) = (self.shape.header_at(place.slot), self.shape.page_at(place.slot));
        let Some(contents) = contents else {
            let Some((lane, base)) = copies.into_iter().find(|(lane, _)| good & lane_bit(*lane) != 0) else {
                return true;
            };
            let Ok(target) = donors.arena().alloc(BLOCK, BLOCK) else { return false };
            self.send(donors, lane, Job::Filling { gap: number }, Op::Read { at: base + page_at, target });
            return true;
        };
        let source = if has_page {
            let Ok(mut bytes) = donors.arena().alloc(HEADER, HEADER) else { return false };
            let (volume, [epoch, seq], sum) = (self.volume, self.versions[page as usize], self.map.sum(page));
            let version = Version { epoch: epoch as u32, seq };
            if let Some(bytes) = bytes.first_chunk_mut() {
                Header { volume, page, version, settled: self.settled, sum }.write(bytes);
            }
            bytes.freeze()
        } else {
            contents
        };
        let lacking: Vec<_> = copies.into_iter().filter(|(lane, _)| good & lane_bit(*lane) == 0).collect();
        if let Some(gap) = self.gaps.as_mut().and_then(|gaps| gaps.get_mut(number)) {
            gap.waiting = lacking.len() as u32;
        }
        for (lane, base) in lacking {
            let at = base + if has_page { header_at } else { page_at };
            self.send(donors, lane, Job::Filling { gap: number }, Op::Write { at, source: source.clone().into() });
        }
        true
    }

    /// Handles the end of an operation that fills a gap; a failed one has ended the scan.
    fn on_filled(&mut self, number: usize, lane: u8, target: Option<MessageBuffer>) {
        let Some(gap) = self.gaps.as_mut().and_then(|gaps| gaps.get_mut(number)) else { return };
        if gap.contents.is_none() {
            let sum = self.map.sum(gap.page);
            match target.filter(|target| sum == 0 || checksum(target) == sum) {
                Some(target) => gap.contents = Some(target.freeze()),
                None => gap.good &= !lane_bit(lane),
            }
        } else {
            gap.waiting -= 1;
            if gap.waiting > 0 {
                return;
            }
            if std::mem::replace(&mut gap.has_page, true) {
                self.partial.remove(&gap.page);
                gap.contents = None;
                return;
            }
        }
        // A page that has been begun is finished first, because it keeps its memory until then.
        self.due.push_front(number);
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
            Job::Filling { gap } if is_good => self.on_filled(gap, lane, target),
            Job::Filling { .. } => {}
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
        let version = [u64::from(version.epoch), version.seq];
        if *best_version >= version {
            return self.mark_dirty(place);
        }
        *best_version = version;
        self.partial.remove(&page);
        let before = self.map.set(page, Some(place), sum);
        let all = self.reached(place.segment).iter().fold(0, |all, (lane, _)| all | lane_bit(*lane));
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

    /// Makes the volume, which still has to clear slots.
    pub fn finish<D: Donors>(
        self: Box<Self>,
        donors: D,
        config: VolumeConfig,
        epoch: u32,
        record: &Record,
        lanes: Vec<LaneState>,
    ) -> Result<Volume<D>, OpenError> {
        let zeros = donors.arena().alloc(CHUNK as usize * HEADER, CHUNK as usize * HEADER);
        let mut zeros = zeros.map_err(|error| OpenError::Failed(error.to_string()))?;
        zeros[..].fill(0);
        let Self { shape, segments, map, settled, partial, dirty, .. } = *self;
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
        for place in dirty {
            volume.clear(place, 1, None, None);
        }
        // Pages that could not be completed where they are.
        for (page, lanes) in partial {
            volume.trusted.insert(page, lanes);
            volume.refresh(page);
        }
        Ok(volume)
    }
}
