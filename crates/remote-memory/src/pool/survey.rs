//! A survey of all donors: which answer, and how much memory they have free.

use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::place::DonorSpace;
use crate::donor::{Answer, Call};
use crate::volume::{CallFailed, Donors, Event};

/// Tag of the call to the first donor. That of any other is greater by the donor's lane.
const SURVEY_TAG: u64 = 0x5355_0000;

/// A survey of all donors, taken before a volume is made.
pub struct Survey<D: Donors> {
    donors: D,
    results: Vec<Option<Result<DonorSpace, CallFailed>>>,
    events: Vec<Event>,
}

impl<D: Donors> std::fmt::Debug for Survey<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Survey").field("said", &self.results).finish_non_exhaustive()
    }
}

impl<D: Donors> Survey<D> {
    /// Asks all donors.
    pub fn new(mut donors: D) -> Self {
        let lanes = donors.ids().len();
        (0..lanes).for_each(|lane| donors.call(lane, SURVEY_TAG + lane as u64, Call::Stat));
        Self { donors, results: vec![None; lanes], events: Vec::new() }
    }

    /// Makes progress. Returns true once every donor has answered, or been given up.
    pub fn turn(&mut self) -> bool {
        self.donors.turn();
        self.donors.poll(&mut self.events);
        for event in self.events.drain(..) {
            let Event::CallAnswered { tag, result } = event else { continue };
            let lane = tag.wrapping_sub(SURVEY_TAG) as usize;
            let Some(said) = self.results.get_mut(lane) else { continue };
            *said = Some(match result {
                Ok(Answer::Stat { free, .. }) => Ok(DonorSpace { donor: self.donors.ids()[lane], free }),
                Ok(_) => Err(CallFailed::Unreachable("its answer is unexpected".into())),
                Err(error) => Err(error),
            });
        }
        self.results.iter().all(Option::is_some)
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
