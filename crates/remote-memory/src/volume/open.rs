//! Opening a volume: finds its record, wins a majority of its voters, ends its last writer's access, and then scans the
//! contents of its slots.

mod freeing;

use std::io;
use std::sync::Arc;

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::config::VolumeConfig;
use super::core::{LaneState, Lanes, Segment, SegmentCopy, Volume};
use super::donors::{CallFailed, Donors, Event};
use super::drive::OPENING_TAG;
use super::map::Map;
use super::open_error::OpenError;
use super::record::{DONORS_MAX, DonorId, Member, Record, Voter};
use super::scan::Scan;
use super::slot::Shape;
use super::voting::is_majority;
use crate::donor::{Answer, Call, LentSlab, Refusal, Stored};
use crate::store::Store;

/// Description of a volume that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Bytes of the volume, a multiple of a block.
    pub len: u64,
    /// Copies of every page.
    pub copies: u32,
    /// Bytes of a slab, at most.
    pub slab_len: u64,
    /// Donors of each segment's copies, one for each copy. The caller chooses them, because it knows which donors have
    /// room.
    pub segments: Vec<Vec<DonorId>>,
    /// Donors that vote: an odd number, three or more so that one may fail.
    pub voters: Vec<DonorId>,
    /// Random number of the volume, which tells it from every other volume, even one of the same name.
    pub number: u64,
}

impl NewVolume {
    /// Segments that a volume of `len` bytes needs.
    pub fn segments_for(len: u64, slab_len: u64) -> u64 {
        len.div_ceil(crate::store::BLOCK as u64).div_ceil(u64::from(Shape::within(slab_len).pages()).max(1))
    }
}

/// Times within a lease that the last writer's heartbeats are checked.
const INSPECTIONS_PER_LEASE: u64 = 8;
/// Tag of calls whose answers are ignored.
const UNAWAITED: usize = 0xFFFF_FFFF;

enum Step {
    Looking,
    Claiming,
    /// Waits until no earlier writer can be [confirmed](super::confirmation) any more.
    Outlasting,
    Fencing,
    /// Slabs are given back that no record names, or none any more.
    Freeing,
    Taking,
    Recording,
    /// The end of an opening that failed, or of a removal.
    Leaving,
    Scanning(Box<Scan>),
}

/// Facts known about a donor.
#[derive(Clone, Default)]
struct DonorReport {
    incarnation: Option<u64>,
    promised: u32,
    stored: Option<Stored>,
    beats: u64,
    /// When the donor's answer was first as it is now.
    since_ns: u64,
    slabs: Vec<LentSlab>,
    fenced: bool,
    why: String,
}

/// A watch for heartbeats of the last writer.
struct LeaseWatch {
    /// Heartbeats that each donor had counted at the last look, by lane.
    beats: Vec<u64>,
    /// Donors that have ever been seen to count heartbeats.
    counting: Lanes,
    until_ns: u64,
    /// When the donors are asked again; `None` while they are being asked.
    next_inspection_ns: Option<u64>,
}

/// Patience with donors that zero memory before they lend it.
struct ZeroingWatch {
    /// Least that was left to zero, in bytes, over all donors that were waited for.
    left: u64,
    /// When that has taken too long.
    until_ns: u64,
    /// When the donors are asked again; `None` while they are being asked.
    retry_ns: Option<u64>,
}

/// A volume that is being opened.
pub struct Opening<D: Donors> {
    donors: Option<D>,
    config: VolumeConfig,
    id: u64,
    new: Option<NewVolume>,
    /// Whether the volume is to be removed instead of opened.
    removes: bool,
    step: Step,
    reports: Vec<DonorReport>,
    epoch: u32,
    attempts: u32,
    claims: Lanes,
    acks: Lanes,
    waiting: u32,
    older: Option<u32>,
    record: Option<Record>,
    /// For each slab asked for, its lane and segment.
    takes: Vec<(usize, usize)>,
    taken: Vec<Option<(Member, u64)>>,
    /// For each slab asked for, how much its donor must zero before it lends it.
    zeroing: Vec<Option<u64>>,
    zeroing_watch: Option<ZeroingWatch>,
    /// Slabs to be given back, each with its lane.
    frees: Vec<(usize, LentSlab)>,
    freed_bytes: u64,
    /// Why the volume is not made; what was done is undone first.
    failure: Option<OpenError>,
    is_removed: bool,
    watching: Option<LeaseWatch>,
    /// When the last writer is fenced, at the earliest.
    fence_at_ns: u64,
    /// When the fences were sent.
    fenced_ns: u64,
    /// When the donors next get a heartbeat of this writer.
    next_heartbeat_ns: u64,
    /// A volume whose slots have been scanned, and that is being mended.
    mending_volume: Option<Volume<D>>,
    events: Vec<Event>,
}

impl<D: Donors> Opening<D> {
    /// Opens a volume, unless the writer that has it open is [alive](VolumeConfig::lease_ns).
    pub fn new(donors: D, id: u64, config: VolumeConfig) -> Self {
        let lanes = donors.ids().len().min(DONORS_MAX);
        let mut opening = Self {
            donors: Some(donors),
            config,
            id,
            new: None,
            removes: false,
            step: Step::Looking,
            reports: vec![DonorReport::default(); lanes],
            epoch: 0,
            attempts: 0,
            claims: 0,
            acks: 0,
            waiting: 0,
            older: None,
            record: None,
            takes: Vec::new(),
            taken: Vec::new(),
            zeroing: Vec::new(),
            zeroing_watch: None,
            frees: Vec::new(),
            freed_bytes: 0,
            failure: None,
            is_removed: false,
            watching: None,
            fence_at_ns: 0,
            fenced_ns: 0,
            next_heartbeat_ns: 0,
            mending_volume: None,
            events: Vec::new(),
        };
        opening.call_all(Step::Looking, |_| true, Call::Inspect { volume: id });
        opening
    }

    /// Makes a volume, and opens it. Slabs that an earlier attempt took are given back first. If the volume cannot be
    /// made, what was taken for it is given back.
    pub fn create(donors: D, id: u64, new: NewVolume, config: VolumeConfig) -> Self {
        let mut opening = Self::new(donors, id, config);
        opening.new = Some(new);
        opening
    }

    /// Makes progress. Returns the volume once it is open; from then on it does nothing more.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the volume cannot be opened or made.
    pub fn turn(&mut self) -> Result<Option<Volume<D>>, OpenError> {
        if let Some(volume) = &mut self.mending_volume {
            volume.turn();
            if let Some(error) = &volume.ended {
                return Err(OpenError::Failed(error.to_string()));
            }
            if !volume.is_idle() {
                return Ok(None);
            }
            if volume.segments.iter().all(|segment| !segment.is_dead()) {
                volume.settled_floor = None;
            }
            return Ok(self.mending_volume.take());
        }
        let Some(donors) = &mut self.donors else { return Ok(None) };
        donors.turn();
        let mut events = std::mem::take(&mut self.events);
        donors.poll(&mut events);
        for event in events.drain(..) {
            match event {
                Event::CallAnswered { tag, result } => {
                    // The step that an answer belongs to may be over.
                    let (attempt, number) = (tag >> 32 & 0x7FFF_FFFF, (tag & 0xFFFF_FFFF) as usize);
                    if attempt == u64::from(self.attempts) && number != UNAWAITED {
                        self.answered(number, result)?;
                    }
                }
                Event::OpFinished { tag, error, target } => {
                    if let Step::Scanning(scan) = &mut self.step {
                        scan.complete(tag, error, target);
                    }
                }
            }
        }
        self.events = events;
        self.inspect_or_heartbeat();
        self.take_again();
        if let (Step::Scanning(scan), Some(donors)) = (&mut self.step, &mut self.donors)
            && scan.turn(donors)
        {
            self.on_scanned()?;
        }
        Ok(None)
    }

    /// Gives up, and returns the donors.
    pub fn into_donors(self) -> Option<D> {
        self.donors.or_else(|| self.mending_volume.map(Volume::into_donors))
    }

    fn call(&mut self, lane: usize, number: usize, call: Call) {
        self.waiting += 1;
        self.send(lane, number, call);
    }

    /// Calls a donor, whose answer is not waited for.
    fn tell(&mut self, lane: usize, call: Call) {
        self.send(lane, UNAWAITED, call);
    }

    fn send(&mut self, lane: usize, number: usize, call: Call) {
        if let Some(donors) = &mut self.donors {
            donors.call(lane, OPENING_TAG | u64::from(self.attempts) << 32 | number as u64, call);
        }
    }

    fn call_all(&mut self, step: Step, includes: impl Fn(usize) -> bool, call: Call) {
        (self.step, self.waiting, self.acks) = (step, 0, 0);
        self.attempts += 1;
        for lane in (0..self.reports.len()).filter(|lane| includes(*lane)) {
            self.call(lane, lane, call.clone());
        }
    }

    fn ids(&self) -> &[DonorId] {
        self.donors.as_ref().map_or(&[], |donors| donors.ids())
    }

    fn lane_of(&self, donor: DonorId) -> Option<usize> {
        self.ids().iter().position(|id| *id == donor)
    }

    fn answered(&mut self, number: usize, result: Result<Answer, CallFailed>) -> Result<(), OpenError> {
        if self.waiting == 0 || number == UNAWAITED {
            return Ok(());
        }
        self.waiting -= 1;
        let lane = match self.step {
            Step::Taking => self.takes.get(number).map_or(0, |take| take.0),
            Step::Freeing => self.frees.get(number).map_or(0, |free| free.0),
            _ => number,
        };
        match (&self.step, result) {
            (_, Err(CallFailed::Refused(Refusal::OlderEpoch { held }))) => self.older = self.older.max(Some(held)),
            (Step::Looking | Step::Claiming, Ok(Answer::Inspected { incarnation, promised, stored, beats })) => {
                let now_ns = self.now_ns();
                let report = &mut self.reports[lane];
                let is_claimed = matches!(self.step, Step::Claiming);
                if is_claimed {
                    self.claims |= 1 << lane;
                }
                // After a writer has left, the count of heartbeats begins again, and may come to be the same; the next
                // writer's record differs.
                let order = |stored: &Option<Stored>| stored.as_ref().map(|stored| (stored.epoch, stored.generation));
                let has_other_record = order(&report.stored) != order(&stored);
                if report.beats != beats || has_other_record || report.promised != promised && !is_claimed {
                    report.since_ns = now_ns;
                }
                (report.incarnation, report.promised, report.stored) = (Some(incarnation), promised, stored);
                report.beats = beats;
                report.why.clear();
            }
            (Step::Fencing, Ok(Answer::Fenced { incarnation, slabs, .. }))
                if self.reports[lane].incarnation == Some(incarnation) =>
            {
                (self.reports[lane].slabs, self.reports[lane].fenced) = (slabs, true);
            }
            (Step::Taking, Ok(Answer::Taken { incarnation, lent })) => {
                let member = Member { donor: self.ids()[lane], incarnation, slab: lent.slab };
                if let Some(taken) = self.taken.get_mut(number) {
                    *taken = Some((member, lent.base));
                }
            }
            (Step::Taking, Err(CallFailed::Refused(Refusal::Zeroing { zeroing, .. }))) => {
                if let Some(of) = self.zeroing.get_mut(number) {
                    *of = Some(zeroing);
                }
            }
            (Step::Freeing, Ok(Answer::Freed)) => {
                self.freed_bytes += self.frees.get(number).map_or(0, |(_, lent)| lent.len);
            }
            (Step::Freeing, Err(CallFailed::Refused(Refusal::NoSlab { .. }))) | (Step::Leaving, Ok(Answer::Left)) => {}
            (Step::Recording, Ok(Answer::Recorded { incarnation }))
                if self.reports[lane].incarnation == Some(incarnation) =>
            {
                self.acks |= 1 << lane;
            }
            (_, Err(error)) => self.reports[lane].why = error.to_string(),
            (_, Ok(_)) => self.reports[lane].why = "it gave an unexpected answer".into(),
        }
        if self.waiting > 0 {
            return Ok(());
        }
        match self.step {
            Step::Looking => self.on_inspected(),
            Step::Claiming => self.on_claimed(),
            Step::Fencing => self.on_fenced(),
            Step::Freeing => self.on_freed(),
            Step::Taking => self.on_all_taken(),
            Step::Recording => self.on_recorded(),
            Step::Leaving => self.on_left(),
            Step::Outlasting | Step::Scanning(_) => Ok(()),
        }
    }

    /// Latest record that a donor has reported.
    fn latest(&self) -> Result<Option<Record>, OpenError> {
        let stored = self.reports.iter().filter_map(|known| known.stored.as_ref());
        let Some(latest) = stored.max_by_key(|stored| (stored.epoch, stored.generation)) else { return Ok(None) };
        Ok(Some(Record::read(&latest.record)?))
    }

    fn failures(&self) -> String {
        let whys = self.ids().iter().zip(&self.reports).filter(|(_, known)| !known.why.is_empty());
        whys.map(|(id, known)| format!("donor {:016x}: {}", id.0, known.why)).collect::<Vec<_>>().join("; ")
    }

    /// Lists the voters that do not answer as such, as far as it is known why.
    fn lacking_voters(&self, voters: &[Voter]) -> String {
        let has_restarted = |voter: &&Voter| {
            let known = self.lane_of(voter.donor).map(|lane| &self.reports[lane]);
            known.is_some_and(|known| known.incarnation.is_some_and(|found| found != voter.incarnation))
        };
        let restarted = voters.iter().filter(has_restarted);
        let mut whys: Vec<String> = Some(self.failures()).filter(|whys| !whys.is_empty()).into_iter().collect();
        whys.extend(restarted.map(|voter| format!("donor {:016x}: it has restarted", voter.donor.0)));
        let unnamed = voters.iter().filter(|voter| self.lane_of(voter.donor).is_none()).count();
        if unnamed > 0 {
            whys.push(format!("not named: {unnamed} of the {} donors that vote", voters.len()));
        }
        whys.join("; ")
    }

    fn no_majority(&self, voters: &[Voter]) -> OpenError {
        match self.older {
            None => OpenError::NoMajority(self.lacking_voters(voters)),
            Some(held) => OpenError::TakenOver { held },
        }
    }

    /// Lanes to the voters that have not restarted since they became voters.
    fn voting_lanes(&self, voters: &[Voter]) -> Lanes {
        let lane = |voter: &Voter| {
            let lane = self.lane_of(voter.donor)?;
            (self.reports[lane].incarnation == Some(voter.incarnation)).then_some(1 << lane)
        };
        voters.iter().filter_map(lane).fold(0, |all: Lanes, lane: Lanes| all | lane)
    }

    fn now_ns(&self) -> u64 {
        self.donors.as_ref().map_or(0, |donors| donors.now_ns())
    }

    /// Asks the donors again for heartbeats of the last writer, and sends them this writer's, once it has access.
    fn inspect_or_heartbeat(&mut self) {
        let now_ns = self.now_ns();
        if matches!(self.step, Step::Outlasting) && now_ns >= self.fence_at_ns {
            self.fence();
        }
        if let (Step::Looking, Some(watching)) = (&self.step, &mut self.watching)
            && watching.next_inspection_ns.is_some_and(|look_ns| now_ns >= look_ns)
        {
            watching.next_inspection_ns = None;
            self.call_all(Step::Looking, |_| true, Call::Inspect { volume: self.id });
        }
        if self.sends_heartbeats() && now_ns >= self.next_heartbeat_ns {
            self.next_heartbeat_ns = now_ns + self.config.heartbeat_ns;
            for lane in (0..self.reports.len()).filter(|lane| self.reports[*lane].fenced).collect::<Vec<_>>() {
                self.tell(lane, Call::Heartbeat { volume: self.id, epoch: self.epoch });
            }
        }
    }

    /// Whether this writer has access, and is not about to leave.
    fn sends_heartbeats(&self) -> bool {
        matches!(self.step, Step::Freeing | Step::Taking | Step::Recording | Step::Scanning(_))
    }

    /// Whether the last writer must still be waited for.
    fn watch_lease(&mut self) -> Result<bool, OpenError> {
        let lease_ns = self.config.lease_ns;
        let beats = || self.reports.iter().map(|known| known.beats);
        let counting = beats().enumerate().filter(|(_, beats)| *beats > 0).fold(0, |all, (lane, _)| all | 1 << lane);
        let now_ns = self.now_ns();
        let Some(watching) = &mut self.watching else {
            if lease_ns > 0 && beats().any(|beats| beats > 0) {
                let look_ns = Some(now_ns + lease_ns / INSPECTIONS_PER_LEASE);
                self.watching = Some(LeaseWatch {
                    beats: beats().collect(),
                    counting,
                    until_ns: now_ns + lease_ns,
                    next_inspection_ns: look_ns,
                });
            }
            return Ok(self.watching.is_some());
        };
        let mut all = watching.beats.iter_mut().zip(&self.reports);
        // Only a donor that answered before can show progress.
        let lives = all.any(|(before, known)| *before > 0 && known.beats > *before);
        watching.beats.iter_mut().zip(&self.reports).for_each(|(before, known)| *before = known.beats);
        if lives {
            return Err(OpenError::InUse);
        }
        if counting & !watching.counting != 0 {
            // It may be the only one that hears the writer. Each donor extends the watch once.
            (watching.counting, watching.until_ns) = (watching.counting | counting, now_ns + lease_ns);
        }
        let is_over = now_ns >= watching.until_ns || beats().all(|beats| beats == 0);
        watching.next_inspection_ns = (!is_over).then_some(now_ns + lease_ns / INSPECTIONS_PER_LEASE);
        Ok(!is_over)
    }

    fn on_inspected(&mut self) -> Result<(), OpenError> {
        let latest = self.latest()?;
        let earlier = latest.as_ref().map_or(0, |record| record.epoch);
        let record = latest.filter(|record| self.counts(record));
        let voters = match (&record, &self.new) {
            (Some(_), Some(_)) => return Err(OpenError::Exists(self.id)),
            (Some(record), None) => record.voters.clone(),
            (None, None) => return Err(OpenError::NotFound(self.id)),
            (None, Some(new)) => {
                let voter = |donor: &DonorId| {
                    let lane = self.lane_of(*donor)?;
                    Some(Voter { donor: *donor, incarnation: self.reports[lane].incarnation? })
                };
                new.voters.iter().filter_map(voter).collect()
            }
        };
        record.iter().try_for_each(|record| self.check_map(record))?;
        // A volume that is made may have had a writer, too, which did not come to record it.
        if self.watch_lease()? {
            return Ok(());
        }
        let lanes = self.voting_lanes(&voters);
        if !self.suffices(&voters, lanes) {
            return Err(OpenError::NoMajority(self.lacking_voters(&voters)));
        }
        let promised = self.reports.iter().map(|known| known.promised).max().unwrap_or(0);
        self.epoch = promised
            .max(earlier)
            .checked_add(1)
            .ok_or(OpenError::Invalid("the volume has used up its epochs, one for each writer"))?;
        if self.new.is_some() {
            self.record = Some(self.new_record(voters)?);
        }
        (self.claims, self.older) = (0, None);
        let call = Call::Claim { volume: self.id, epoch: self.epoch };
        self.call_all(Step::Claiming, |lane| lanes >> lane & 1 == 1, call);
        if self.waiting == 0 { self.on_claimed() } else { Ok(()) }
    }

    /// Checks that there is room for the map of the volume's pages, which a removal does not need.
    fn check_map(&self, record: &Record) -> Result<(), OpenError> {
        if self.removes || Map::has_room(record.pages) {
            return Ok(());
        }
        Err(OpenError::Invalid("there is too little memory here for a map of the volume's pages"))
    }

    fn new_record(&self, voters: Vec<Voter>) -> Result<Record, OpenError> {
        let new = self.new.as_ref().ok_or(OpenError::NotFound(self.id))?;
        let shape = Shape::within(new.slab_len);
        let is_good = new.len > 0
            && new.len.is_multiple_of(crate::store::BLOCK as u64)
            && new.copies > 0
            && new.segments.len() as u64 == NewVolume::segments_for(new.len, new.slab_len)
            && new.segments.iter().all(|donors| donors.len() == new.copies as usize);
        if shape.pages() == 0 || !is_good {
            return Err(OpenError::Invalid(
                "a volume has whole blocks, at least one copy, and a donor for each copy of each segment",
            ));
        }
        if voters.len() < new.voters.len() {
            return Err(OpenError::NoMajority(self.failures()));
        }
        let member = |donor: &DonorId| Member { donor: *donor, incarnation: 0, slab: 0 };
        let placed = new.segments.iter().map(|donors| donors.iter().map(member).collect()).collect();
        let record = Record {
            volume: self.id,
            number: new.number,
            epoch: self.epoch,
            generation: 0,
            pages: new.len / crate::store::BLOCK as u64,
            slots: shape.slots,
            copies: new.copies,
            voters,
            segments: placed,
        };
        if !record.is_sound() {
            return Err(OpenError::Invalid(
                "a volume has copies and voters at different donors, slabs of up to 1 TiB, and less than 16 TiB in all",
            ));
        }
        self.check_map(&record)?;
        Ok(Record { segments: Vec::new(), ..record })
    }

    fn on_claimed(&mut self) -> Result<(), OpenError> {
        if self.new.is_none() {
            // An answer may have brought a later record, with other voters.
            self.record = self.latest()?.filter(|record| self.counts(record));
        } else if self.latest()?.is_some_and(|record| self.counts(&record)) {
            return Err(OpenError::Exists(self.id));
        }
        let Some(record) = &self.record else { return Err(OpenError::NotFound(self.id)) };
        self.check_map(record)?;
        if !self.suffices(&record.voters, self.claims) {
            return Err(self.no_majority(&record.voters));
        }
        self.older = None;
        self.fence_at_ns = self.silent_at_ns();
        if self.new.is_none() && self.now_ns() < self.fence_at_ns {
            self.step = Step::Outlasting;
        } else {
            self.fence();
        }
        Ok(())
    }

    /// When none of the donors that gave their votes has answered a heartbeat for a lease. As a rule the watch has made
    /// sure of that, but a writer may have begun, or gone on, between a donor's last look and its vote.
    fn silent_at_ns(&self) -> u64 {
        let lease_ns = self.config.lease_ns;
        let voted = self.reports.iter().enumerate().filter(|(lane, _)| lease_ns > 0 && self.claims >> lane & 1 == 1);
        voted.filter(|(_, known)| known.beats > 0).map(|(_, known)| known.since_ns + lease_ns).max().unwrap_or(0)
    }

    fn fence(&mut self) {
        self.fenced_ns = self.now_ns();
        let answers: Vec<bool> = self.reports.iter().map(|known| known.incarnation.is_some()).collect();
        let call = Call::Fence { volume: self.id, epoch: self.epoch };
        self.call_all(Step::Fencing, |lane| answers[lane], call);
    }

    fn on_fenced(&mut self) -> Result<(), OpenError> {
        if let Some(held) = self.older {
            return Err(OpenError::TakenOver { held });
        }
        if self.new.is_none() {
            return self.write_record();
        }
        // No record names what an earlier attempt to make the volume took.
        self.free(self.listed_slabs())
    }

    fn take_slabs(&mut self) -> Result<(), OpenError> {
        let Some(new) = self.new.clone() else { return Err(OpenError::NotFound(self.id)) };
        (self.step, self.waiting) = (Step::Taking, 0);
        self.attempts += 1;
        self.takes.clear();
        for (segment, donors) in new.segments.iter().enumerate() {
            for donor in donors {
                let Some(lane) = self.lane_of(*donor).filter(|lane| self.reports[*lane].fenced) else {
                    let why = self.lane_of(*donor).map_or("", |lane| &*self.reports[lane].why);
                    let why = if why.is_empty() { "it does not answer" } else { why };
                    return self.undo(OpenError::Full(format!("donor {:016x}: {why}", donor.0)));
                };
                self.takes.push((lane, segment));
            }
        }
        self.taken = vec![None; self.takes.len()];
        self.zeroing = vec![None; self.takes.len()];
        (0..self.takes.len()).for_each(|number| self.take(number));
        Ok(())
    }

    fn on_all_taken(&mut self) -> Result<(), OpenError> {
        if let Some(held) = self.older {
            return Err(OpenError::TakenOver { held });
        }
        if self.waits_for_zeroing() {
            return Ok(());
        }
        let segments = self.new.as_ref().map_or(0, |new| new.segments.len());
        let mut members = vec![Vec::new(); segments];
        for ((lane, segment), taken) in self.takes.clone().into_iter().zip(self.taken.clone()) {
            let Some((member, base)) = taken else { return self.undo(OpenError::Full(self.failures())) };
            self.reports[lane].slabs.push(LentSlab { slab: member.slab, base, len: u64::MAX });
            members[segment].push(member);
        }
        if let Some(record) = &mut self.record {
            record.segments = members;
        }
        self.write_record()
    }

    /// Lane and base of a copy, if it is as the record says.
    fn reachable_at(&self, member: &Member, shape: Shape) -> Option<(u8, u64)> {
        let lane = self.lane_of(member.donor)?;
        let known = &self.reports[lane];
        let is_there = known.fenced && known.incarnation == Some(member.incarnation);
        let lent = known.slabs.iter().find(|lent| is_there && lent.slab == member.slab && shape.fits(lent))?;
        Some((lane as u8, lent.base))
    }

    /// Sends this writer's record to the voters, without the copies that cannot be reached.
    fn write_record(&mut self) -> Result<(), OpenError> {
        let Some(mut record) = self.record.take() else { return Err(OpenError::NotFound(self.id)) };
        // A record of a new epoch counts as later, whatever its number.
        let generation = if record.epoch == self.epoch { record.generation.saturating_add(1) } else { 1 };
        (record.epoch, record.generation) = (self.epoch, generation);
        if self.removes || self.failure.is_some() {
            record.remove();
        }
        let shape = Shape { slots: record.slots };
        for members in &mut record.segments {
            if members.iter().any(|member| self.reachable_at(member, shape).is_some()) {
                members.retain(|member| self.reachable_at(member, shape).is_some());
            }
        }
        let mut lanes = self.voting_lanes(&record.voters);
        if self.removes {
            // Nor may an earlier record stay at donors that vote no more.
            let keeps = |(_, known): &(usize, &DonorReport)| known.fenced && known.stored.is_some();
            lanes |= self.reports.iter().enumerate().filter(keeps).fold(0, |all, (lane, _)| all | 1 << lane);
        }
        let bytes: Arc<[u8]> = record.to_bytes().into();
        let call = Call::Record { volume: self.id, epoch: self.epoch, generation: record.generation, record: bytes };
        self.record = Some(record);
        self.call_all(Step::Recording, |lane| lanes >> lane & 1 == 1, call);
        if self.waiting == 0 { self.on_recorded() } else { Ok(()) }
    }

    fn on_recorded(&mut self) -> Result<(), OpenError> {
        if self.failure.is_some() {
            return self.free(self.taken_slabs());
        }
        let Some(record) = self.record.clone() else { return Err(OpenError::NotFound(self.id)) };
        let acks = self.acks & self.voting_lanes(&record.voters);
        if !self.suffices(&record.voters, acks) {
            let error = self.no_majority(&record.voters);
            return if self.new.is_some() { self.undo(error) } else { Err(error) };
        }
        if self.removes {
            return self.free(self.listed_slabs());
        }
        self.free_orphans(&record);
        let shape = Shape { slots: record.slots };
        if shape.pages() == 0 || (record.segments.len() as u64) < record.pages.div_ceil(u64::from(shape.pages())) {
            return Err(OpenError::BadRecord(super::record::BadRecord));
        }
        let hold = |member: &Member| {
            let (lane, base) = self.reachable_at(member, shape).unzip();
            SegmentCopy { member: *member, lane, base: base.unwrap_or(0) }
        };
        let segments: Vec<Segment> = record
            .segments
            .iter()
            .map(|members| Segment::new(members.iter().map(hold).collect(), record.slots))
            .collect();
        self.step = Step::Scanning(Box::new(Scan::new(self.id, record.pages, shape, segments)));
        Ok(())
    }

    /// Frees slabs that a writer took but that no record names.
    fn free_orphans(&mut self, record: &Record) {
        let mut orphans = Vec::new();
        for (lane, known) in self.reports.iter().enumerate() {
            let donor = self.ids()[lane];
            let is_member = |lent: &LentSlab| {
                record.segments.iter().flatten().any(|member| member.donor == donor && member.slab == lent.slab)
            };
            orphans.extend(
                known.slabs.iter().filter(|lent| known.fenced && !is_member(lent)).map(|lent| (lane, lent.slab)),
            );
        }
        for (lane, slab) in orphans {
            self.tell(lane, Call::Free { volume: self.id, epoch: self.epoch, slab });
        }
    }

    /// Begins again without the donors that failed during the scan: it may have found pages that only they have, which
    /// nobody was told of.
    fn scan_again(&mut self, scan: &Scan) -> Result<(), OpenError> {
        for (lane, why) in scan.lost() {
            (self.reports[lane].fenced, self.reports[lane].why) = (false, why.to_owned());
        }
        if scan.has_lost_segment() {
            return Err(OpenError::Failed(self.failures()));
        }
        self.write_record()
    }

    fn on_scanned(&mut self) -> Result<(), OpenError> {
        let Step::Scanning(scan) = std::mem::replace(&mut self.step, Step::Looking) else { return Ok(()) };
        if scan.has_lost() {
            return self.scan_again(&scan);
        }
        let (Some(donors), Some(record)) = (self.donors.take(), self.record.take()) else { return Ok(()) };
        // A fence counts as a heartbeat; the record shows that no later writer had the vote then.
        let until_ns = self.fenced_ns.saturating_add(self.config.confirmation_ns());
        let is_confirmed = |lane: usize| self.reports[lane].fenced && self.acks >> lane & 1 == 1;
        let lanes = self.reports.iter().enumerate().map(|(lane, known)| LaneState {
            down: (!known.fenced).then(|| format!("it did not answer when the volume was opened: {}", known.why)),
            incarnation: known.fenced.then_some(known.incarnation).flatten(),
            in_flight: 0,
            call_in_flight: false,
            beat_sent_ns: 0,
            confirmed_until_ns: if is_confirmed(lane) { until_ns } else { 0 },
        });
        let volume = scan.finish(donors, self.config, self.epoch, &record, lanes.collect())?;
        self.mending_volume = Some(volume);
        Ok(())
    }
}

/// A thread can sleep on it as on its donors; once the volume is open, or opening has failed, there is nothing to sleep
/// on.
impl<D: Donors> Readiness for Opening<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        match (&self.donors, &self.mending_volume) {
            (Some(donors), _) => donors.descriptor(),
            (None, Some(volume)) => volume.descriptor(),
            (None, None) => None,
        }
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let beats = self.sends_heartbeats().then_some(self.next_heartbeat_ns);
        match (&mut self.donors, &mut self.mending_volume) {
            (Some(donors), _) => {
                let armed = donors.arm(now_ns)?;
                let looks = self.watching.as_ref().and_then(|watching| watching.next_inspection_ns);
                let takes = self.zeroing_watch.as_ref().and_then(|watch| watch.retry_ns);
                let fences = matches!(self.step, Step::Outlasting).then_some(self.fence_at_ns);
                let due_ns = [looks, beats, takes, fences].into_iter().flatten().min();
                let next = Armed::Sleep { until_ns: due_ns }.on_clock(donors.now_ns(), now_ns);
                Ok(if let Armed::Sleep { until_ns } = next { armed.min_deadline(until_ns) } else { armed })
            }
            (None, Some(volume)) => volume.arm(now_ns),
            (None, None) => Err(sinew_fabric::readiness::no_descriptor()),
        }
    }

    fn disarm(&mut self) -> bool {
        match (&mut self.donors, &mut self.mending_volume) {
            (Some(donors), _) => donors.disarm(),
            (None, Some(volume)) => volume.disarm(),
            (None, None) => false,
        }
    }
}
