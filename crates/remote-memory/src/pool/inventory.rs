//! An inventory of donors: which volumes have memory there, and which of them a writer uses.

use std::collections::BTreeMap;
use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};

use crate::donor::{Answer, Call, VOLUMES_PER_ANSWER, VolumeSummary};
use crate::volume::{CallFailed, DonorId, Donors, Event};

/// Tag of the first call to the first donor. That of any other is greater by the donor's lane.
const INVENTORY_TAG: u64 = 0x494E_0000;
/// Volumes that one donor is believed to have, at most.
const LISTED_MAX: usize = 1 << 20;

/// A volume that donors know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedVolume {
    /// Bytes that each donor lends it, in the donors' order; donors that lend it none are left out.
    pub lent: Vec<(DonorId, u64)>,
    /// Whether a donor keeps a record of it. File services keep theirs elsewhere.
    pub has_record: bool,
    /// Whether its writer sends heartbeats.
    pub is_in_use: bool,
}

impl ListedVolume {
    /// Bytes that all donors together lend it.
    pub fn bytes(&self) -> u64 {
        self.lent.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes))
    }
}

/// An inventory of all donors. If a writer may be alive, the donors are asked twice, with the time of a lease between.
pub struct Inventory<D: Donors> {
    donors: D,
    lease_ns: u64,
    /// Whether the donors are asked for the second time.
    is_second: bool,
    lanes: Vec<Lane>,
    /// When the donors are asked again.
    again_ns: Option<u64>,
    events: Vec<Event>,
}

#[derive(Default)]
struct Lane {
    listed: Vec<VolumeSummary>,
    /// Heartbeats of each volume at the first time.
    before: BTreeMap<u64, u64>,
    /// Lowest number that is asked for.
    from: u64,
    is_over: bool,
    failure: Option<CallFailed>,
}

impl Lane {
    /// Takes a part of the list. Returns whether there may be more.
    fn add(&mut self, part: Vec<VolumeSummary>) -> Result<bool, CallFailed> {
        let is_full = part.len() >= VOLUMES_PER_ANSWER;
        for summary in part {
            let is_next = summary.volume >= self.from
                && self.listed.last().is_none_or(|last| last.volume < summary.volume)
                && self.listed.len() < LISTED_MAX;
            if !is_next {
                return Err(CallFailed::Unreachable("its list of volumes makes no sense".into()));
            }
            self.listed.push(summary);
        }
        let next = self.listed.last().and_then(|last| last.volume.checked_add(1)).filter(|_| is_full);
        self.from = next.unwrap_or(0);
        Ok(next.is_some())
    }
}

impl<D: Donors> Inventory<D> {
    /// Asks all donors. A writer counts as alive if it sends a heartbeat within `lease_ns`.
    pub fn new(donors: D, lease_ns: u64) -> Self {
        let lanes = donors.ids().iter().map(|_| Lane::default()).collect();
        let mut inventory = Self { donors, lease_ns, is_second: false, lanes, again_ns: None, events: Vec::new() };
        inventory.ask_all();
        inventory
    }

    fn ask_all(&mut self) {
        (0..self.lanes.len()).for_each(|lane| self.ask(lane));
    }

    fn ask(&mut self, lane: usize) {
        self.donors.call(lane, INVENTORY_TAG + lane as u64, Call::Volumes { from: self.lanes[lane].from });
    }

    /// Makes progress. Returns true once every donor has answered, or been given up.
    pub fn turn(&mut self) -> bool {
        self.donors.turn();
        self.donors.poll(&mut self.events);
        for event in std::mem::take(&mut self.events) {
            let Event::CallAnswered { tag, result } = event else { continue };
            let lane = tag.wrapping_sub(INVENTORY_TAG) as usize;
            let Some(asked) = self.lanes.get_mut(lane).filter(|asked| !asked.is_over) else { continue };
            let added = match result {
                Ok(Answer::Volumes(part)) => asked.add(part),
                Ok(_) => Err(CallFailed::Unreachable("its answer is unexpected".into())),
                Err(error) => Err(error),
            };
            match added {
                Ok(true) => self.ask(lane),
                Ok(false) => asked.is_over = true,
                Err(error) => (asked.is_over, asked.failure) = (true, Some(error)),
            }
        }
        if self.again_ns.is_some_and(|again_ns| self.donors.now_ns() >= again_ns) {
            (self.again_ns, self.is_second) = (None, true);
            for lane in &mut self.lanes {
                let listed = std::mem::take(&mut lane.listed);
                lane.before = listed.iter().map(|summary| (summary.volume, summary.beats)).collect();
                (lane.from, lane.is_over, lane.failure) = (0, false, None);
            }
            self.ask_all();
        }
        if self.again_ns.is_some() || !self.lanes.iter().all(|lane| lane.is_over) {
            return false;
        }
        let may_live = || self.lanes.iter().flat_map(|lane| &lane.listed).any(|summary| summary.beats > 0);
        if !self.is_second && self.lease_ns > 0 && may_live() {
            self.again_ns = Some(self.donors.now_ns() + self.lease_ns);
            return false;
        }
        true
    }

    /// The volumes, by their numbers; those that have nothing and no writer are left out.
    pub fn volumes(&self) -> BTreeMap<u64, ListedVolume> {
        let mut volumes = BTreeMap::<u64, ListedVolume>::new();
        for (lane, donor) in self.lanes.iter().zip(self.donors.ids()) {
            for summary in &lane.listed {
                let volume = volumes.entry(summary.volume).or_default();
                if summary.bytes > 0 {
                    volume.lent.push((*donor, summary.bytes));
                }
                volume.has_record |= summary.has_record;
                let before = lane.before.get(&summary.volume).copied().filter(|before| *before > 0);
                volume.is_in_use |= before.is_some_and(|before| summary.beats > before);
            }
        }
        volumes.retain(|_, volume| !volume.lent.is_empty() || volume.is_in_use);
        volumes
    }

    /// For each donor, in their order, why its list is not known; `None` if it is.
    pub fn failures(&self) -> impl Iterator<Item = Option<&CallFailed>> {
        self.lanes.iter().map(|lane| lane.failure.as_ref())
    }
}

impl<D: Donors> Readiness for Inventory<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.donors.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let armed = self.donors.arm(now_ns)?;
        let due = Armed::Sleep { until_ns: self.again_ns }.on_clock(self.donors.now_ns(), now_ns);
        Ok(if let Armed::Sleep { until_ns } = due { armed.min_deadline(until_ns) } else { armed })
    }

    fn disarm(&mut self) -> bool {
        self.donors.disarm()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_does_not_go_forward_or_does_not_end_is_refused() {
        let summary = |volume| VolumeSummary { volume, fence: 1, bytes: 2, beats: 3, has_record: false };
        let part = |from: u64| (from..from + VOLUMES_PER_ANSWER as u64).map(summary).collect::<Vec<_>>();
        let mut lane = Lane::default();
        assert_eq!(lane.add(part(5)), Ok(true));
        assert_eq!(lane.from, 5 + VOLUMES_PER_ANSWER as u64);
        assert!(lane.add(vec![summary(7)]).is_err());
        assert_eq!(lane.add(vec![summary(u64::MAX)]), Ok(false));
        assert!(Lane::default().add(vec![summary(2), summary(2)]).is_err());
        let mut lane = Lane::default();
        let mut from = 0;
        while lane.add(part(from)) == Ok(true) {
            from += VOLUMES_PER_ANSWER as u64;
        }
        assert_eq!(lane.listed.len(), LISTED_MAX);
    }
}
