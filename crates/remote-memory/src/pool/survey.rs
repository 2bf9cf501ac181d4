//! A survey of all donors: which answer, and how much memory they have free.

use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::place::DonorSpace;
use crate::donor::{Answer, Call};
use crate::volume::{CallFailed, Donors, Event};

/// Tags of calls; the lane is added.
const SPACE_TAG: u64 = 0x5355_0000;
const HELD_TAG: u64 = 0x5356_0000;

/// A survey of all donors, taken before a volume is made.
pub struct Survey<D: Donors> {
    donors: D,
    volume: Option<u64>,
    results: Vec<Option<Result<DonorSpace, CallFailed>>>,
    /// Bytes that each donor has lent to the volume already.
    held: Vec<Option<u64>>,
    events: Vec<Event>,
}

impl<D: Donors> std::fmt::Debug for Survey<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Survey").field("said", &self.results).finish_non_exhaustive()
    }
}

impl<D: Donors> Survey<D> {
    /// Asks all donors for their free memory: what can be lent now, and what can be once it is zeroed.
    pub fn new(donors: D) -> Self {
        Self::ask(donors, None)
    }

    /// Asks all donors for the memory that is free for this volume, which is not recorded anywhere: what an earlier
    /// attempt to make it has taken counts as free, because the next one gives it back first.
    pub fn for_volume(donors: D, volume: u64) -> Self {
        Self::ask(donors, Some(volume))
    }

    fn ask(mut donors: D, volume: Option<u64>) -> Self {
        let lanes = donors.ids().len();
        for lane in 0..lanes {
            donors.call(lane, SPACE_TAG + lane as u64, Call::Stat);
            if let Some(from) = volume {
                donors.call(lane, HELD_TAG + lane as u64, Call::Volumes { from });
            }
        }
        let held = vec![volume.is_none().then_some(0); lanes];
        Self { donors, volume, results: vec![None; lanes], held, events: Vec::new() }
    }

    /// Makes progress. Returns true once every donor has answered, or been given up.
    pub fn turn(&mut self) -> bool {
        self.donors.turn();
        self.donors.poll(&mut self.events);
        for event in std::mem::take(&mut self.events) {
            let Event::CallAnswered { tag, result } = event else { continue };
            let (lane, is_held) = match tag.checked_sub(HELD_TAG) {
                Some(lane) => (lane as usize, true),
                None => (tag.wrapping_sub(SPACE_TAG) as usize, false),
            };
            if lane >= self.results.len() {
                continue;
            }
            let failure = match result {
                Ok(Answer::Stat { free, zeroing, .. }) if !is_held => {
                    let (donor, free) = (self.donors.ids()[lane], free.saturating_add(zeroing));
                    self.results[lane].get_or_insert(Ok(DonorSpace { donor, free }));
                    continue;
                }
                Ok(Answer::Volumes(volumes)) if is_held => {
                    let own = volumes.first().filter(|first| Some(first.volume) == self.volume);
                    self.held[lane] = Some(own.map_or(0, |own| own.bytes));
                    continue;
                }
                Ok(_) => CallFailed::Unreachable("its answer is unexpected".into()),
                Err(error) => error,
            };
            (self.results[lane], self.held[lane]) = (Some(Err(failure)), Some(0));
        }
        let is_over = self.results.iter().all(Option::is_some) && self.held.iter().all(Option::is_some);
        if is_over {
            for (result, held) in self.results.iter_mut().zip(&mut self.held) {
                if let Some(Ok(space)) = result {
                    space.free = space.free.saturating_add(held.replace(0).unwrap_or(0));
                }
            }
        }
        is_over
    }

    /// Results of the donors that have answered or been given up so far, in the donors' order.
    pub fn results(&self) -> impl Iterator<Item = &Result<DonorSpace, CallFailed>> {
        self.results.iter().flatten()
    }

    /// Ends the survey, and returns the donors.
    pub fn into_donors(self) -> D {
        self.donors
    }
}

impl<D: Donors> Readiness for Survey<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.donors.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.donors.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.donors.disarm()
    }
}
