//! Removing a volume: its memory is given back, and no old record brings it back.

use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::config::VolumeConfig;
use super::donors::{CallFailed, Donors, Event};
use super::open::Opening;
use super::open_error::OpenError;
use crate::donor::{Answer, Call, VolumeSummary};

/// Times within a lease that the heartbeats of what is discarded are checked.
const LOOKS_PER_LEASE: u64 = 8;
/// Tags of the calls that discard a volume; the round and the lane are added.
const DISCARD_TAG: u64 = 1 << 62;

/// What a [`Removal`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Bytes of the slabs that were given back, over all donors.
    pub bytes: u64,
    /// The donors that may still have some, each with the reason; empty if there are none. Removing the volume again,
    /// once they answer, gives that back.
    pub left: String,
}

/// A volume that is being removed, unless its writer is [alive](VolumeConfig::lease_ns).
///
/// If no donor that answers has a record of it, it may be a file service's, or one that was never completed. Then its
/// slabs are discarded where they lie, if that [was asked for](Self::of_unrecorded); all donors must answer, because
/// one that does not may have the record. Only donors that vote, or did, have a volume's record, so all donors should
/// be named.
pub struct Removal<D: Donors> {
    stage: Stage<D>,
    id: u64,
    lease_ns: u64,
    /// Whether what has no record is discarded.
    discards: bool,
}

// One of it exists at a time.
#[allow(clippy::large_enum_variant)]
enum Stage<D: Donors> {
    Recorded(Opening<D>),
    Unrecorded(Discarding<D>),
    Over(Option<D>),
}

impl<D: Donors> Removal<D> {
    /// Begins to remove a volume. A removal can be repeated, and does again only what is left to do.
    pub fn new(donors: D, id: u64, config: VolumeConfig) -> Self {
        let lease_ns = config.lease_ns;
        Self { stage: Stage::Recorded(Opening::remove(donors, id, config)), id, lease_ns, discards: false }
    }

    /// As [`Self::new`], but slabs of which no donor has a record are discarded.
    pub fn of_unrecorded(donors: D, id: u64, config: VolumeConfig) -> Self {
        Self { discards: true, ..Self::new(donors, id, config) }
    }

    /// Makes progress. Returns what was done once that is all; from then on it does nothing more.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the volume cannot be removed, or is not found.
    pub fn turn(&mut self) -> Result<Option<Removed>, OpenError> {
        match &mut self.stage {
            Stage::Recorded(opening) => {
                let removed = match opening.turn() {
                    Err(error @ OpenError::NotFound(_)) if self.discards => {
                        let Stage::Recorded(opening) = std::mem::replace(&mut self.stage, Stage::Over(None)) else {
                            return Err(error);
                        };
                        let donors = opening.into_donors().ok_or(error)?;
                        self.stage = Stage::Unrecorded(Discarding::new(donors, self.id, self.lease_ns));
                        return Ok(None);
                    }
                    result => result.map(|_| opening.removed())?,
                };
                let Some((bytes, left)) = removed else { return Ok(None) };
                self.end();
                Ok(Some(Removed { bytes, left }))
            }
            Stage::Unrecorded(discarding) => {
                let removed = discarding.turn()?;
                if removed.is_some() {
                    self.end();
                }
                Ok(removed)
            }
            Stage::Over(_) => Ok(None),
        }
    }

    fn end(&mut self) {
        let donors = match std::mem::replace(&mut self.stage, Stage::Over(None)) {
            Stage::Recorded(opening) => opening.into_donors(),
            Stage::Unrecorded(discarding) => Some(discarding.donors),
            Stage::Over(donors) => donors,
        };
        self.stage = Stage::Over(donors);
    }

    /// Ends it, and returns the donors.
    pub fn into_donors(mut self) -> Option<D> {
        self.end();
        if let Stage::Over(donors) = self.stage { donors } else { None }
    }
}

impl<D: Donors> Readiness for Removal<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        match &self.stage {
            Stage::Recorded(opening) => opening.descriptor(),
            Stage::Unrecorded(discarding) => discarding.donors.descriptor(),
            Stage::Over(donors) => donors.as_ref()?.descriptor(),
        }
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        match &mut self.stage {
            Stage::Recorded(opening) => opening.arm(now_ns),
            Stage::Unrecorded(discarding) => {
                let armed = discarding.donors.arm(now_ns)?;
                let due = Armed::Sleep { until_ns: discarding.look_ns }.on_clock(discarding.donors.now_ns(), now_ns);
                Ok(if let Armed::Sleep { until_ns } = due { armed.min_deadline(until_ns) } else { armed })
            }
            Stage::Over(donors) => donors
                .as_mut()
                .map_or_else(|| Err(sinew_fabric::readiness::no_descriptor()), |donors| donors.arm(now_ns)),
        }
    }

    fn disarm(&mut self) -> bool {
        match &mut self.stage {
            Stage::Recorded(opening) => opening.disarm(),
            Stage::Unrecorded(discarding) => discarding.donors.disarm(),
            Stage::Over(donors) => donors.as_mut().is_some_and(|donors| donors.disarm()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Listing,
    Fencing,
    /// Looks whether another writer began meanwhile.
    Confirming,
    Discarding,
}

/// What a donor has of the volume.
#[derive(Clone, Default)]
struct Held {
    summary: Option<VolumeSummary>,
    /// Session of our fence.
    session: Option<u64>,
    is_discarded: bool,
    why: String,
}

/// Slabs of which no donor has a record, and that are being discarded.
struct Discarding<D: Donors> {
    donors: D,
    id: u64,
    lease_ns: u64,
    step: Step,
    held: Vec<Held>,
    round: u32,
    waiting: usize,
    /// When the last writer counts as dead.
    until_ns: Option<u64>,
    /// When the donors are asked again; `None` while they are being asked.
    look_ns: Option<u64>,
    events: Vec<Event>,
}

impl<D: Donors> Discarding<D> {
    fn new(donors: D, id: u64, lease_ns: u64) -> Self {
        let held = vec![Held::default(); donors.ids().len()];
        let (step, until_ns, look_ns) = (Step::Listing, None, None);
        let mut discarding =
            Self { donors, id, lease_ns, step, held, round: 0, waiting: 0, until_ns, look_ns, events: Vec::new() };
        discarding.call_all(Step::Listing, |_| Some(Call::Volumes { from: id }));
        discarding
    }

    fn call_all(&mut self, step: Step, call: impl Fn(&Held) -> Option<Call>) {
        self.step = step;
        self.round += 1;
        let calls: Vec<Option<Call>> = self.held.iter().map(call).collect();
        for (lane, call) in calls.into_iter().enumerate().filter_map(|(lane, call)| Some((lane, call?))) {
            self.waiting += 1;
            self.donors.call(lane, DISCARD_TAG | u64::from(self.round) << 16 | lane as u64, call);
        }
    }

    fn turn(&mut self) -> Result<Option<Removed>, OpenError> {
        self.donors.turn();
        self.donors.poll(&mut self.events);
        for event in std::mem::take(&mut self.events) {
            let Event::CallAnswered { tag, result } = event else { continue };
            let lane = (tag & 0xFFFF) as usize;
            if tag == DISCARD_TAG | u64::from(self.round) << 16 | lane as u64 && lane < self.held.len() {
                self.waiting = self.waiting.saturating_sub(1);
                self.answered(lane, result)?;
            }
        }
        if self.look_ns.is_some_and(|look_ns| self.donors.now_ns() >= look_ns) {
            self.look_ns = None;
            let from = self.id;
            self.call_all(Step::Listing, |_| Some(Call::Volumes { from }));
        }
        if self.waiting > 0 || self.look_ns.is_some() {
            return Ok(None);
        }
        let volume = self.id;
        match self.step {
            Step::Listing => return self.on_listed(),
            Step::Fencing => {
                self.call_all(Step::Confirming, |held| held.session.map(|_| Call::Volumes { from: volume }));
            }
            Step::Confirming => self.call_all(Step::Discarding, |held| {
                // Its fence was told to be below the highest epoch.
                let (epoch, session) = (held.summary?.fence + 1, held.session?);
                Some(Call::Discard { volume, epoch, session })
            }),
            Step::Discarding => return Ok(Some(self.outcome())),
        }
        // Where no donor was fenced, none is asked.
        Ok((self.waiting == 0).then(|| self.outcome()))
    }

    fn answered(&mut self, lane: usize, result: Result<Answer, CallFailed>) -> Result<(), OpenError> {
        let is_forced = self.lease_ns == 0;
        let held = &mut self.held[lane];
        match (self.step, result) {
            (Step::Listing, Ok(Answer::Volumes(volumes))) => {
                let found = volumes.first().filter(|first| first.volume == self.id).copied();
                let before = held.summary.map_or(0, |before| before.beats);
                let is_alive = before > 0 && found.is_some_and(|found| found.beats > before);
                held.summary = found;
                held.why.clear();
                if is_alive && self.until_ns.is_some() {
                    return Err(OpenError::InUse);
                }
            }
            (Step::Fencing, Ok(Answer::Fenced { session, .. })) => held.session = Some(session),
            (Step::Confirming, Ok(Answer::Volumes(volumes))) => {
                // A fence counts as a heartbeat. One of the same epoch may have come before ours or after it: a service
                // that starts again takes the next epoch, as this does.
                let ours = held.summary.map(|found| (self.id, found.fence + 1, found.beats.saturating_add(1)));
                let now = volumes.first().map(|found| {
                    // A writer that is ended by force may have sent heartbeats before the fence.
                    let beats = ours.filter(|_| is_forced).map_or(found.beats, |ours| ours.2);
                    (found.volume, found.fence, beats)
                });
                if now != ours {
                    return Err(OpenError::InUse);
                }
            }
            (Step::Discarding, Ok(Answer::Freed)) => held.is_discarded = true,
            (_, Ok(_)) => (held.session, held.why) = (None, "it gave an unexpected answer".into()),
            (_, Err(error)) => (held.session, held.why) = (None, error.to_string()),
        }
        Ok(())
    }

    fn failures(&self) -> String {
        let failed = self.donors.ids().iter().zip(&self.held).filter(|(_, held)| !held.why.is_empty());
        failed.map(|(id, held)| format!("donor {:016x}: {}", id.0, held.why)).collect::<Vec<_>>().join("; ")
    }

    fn on_listed(&mut self) -> Result<Option<Removed>, OpenError> {
        let failures = self.failures();
        if !failures.is_empty() {
            return Err(OpenError::Unanswered(failures));
        }
        let found = || self.held.iter().filter_map(|held| held.summary).filter(|found| found.bytes > 0);
        if found().next().is_none() {
            return Err(OpenError::NotFound(self.id));
        }
        if found().any(|found| found.fence == u32::MAX) {
            return Err(OpenError::Invalid("the volume has used up its epochs, one for each writer"));
        }
        let now_ns = self.donors.now_ns();
        let until_ns = *self.until_ns.get_or_insert(now_ns + self.lease_ns);
        let may_live = self.held.iter().filter_map(|held| held.summary).any(|found| found.beats > 0);
        if may_live && now_ns < until_ns {
            self.look_ns = Some(now_ns + self.lease_ns / LOOKS_PER_LEASE);
            return Ok(None);
        }
        let volume = self.id;
        self.call_all(Step::Fencing, |held| {
            let found = held.summary.filter(|found| found.bytes > 0)?;
            Some(Call::Fence { volume, epoch: found.fence + 1 })
        });
        Ok(None)
    }

    fn outcome(&self) -> Removed {
        let discarded = self.held.iter().filter(|held| held.is_discarded);
        let bytes = discarded.filter_map(|held| held.summary).map(|found| found.bytes).fold(0, u64::saturating_add);
        Removed { bytes, left: self.failures() }
    }
}
