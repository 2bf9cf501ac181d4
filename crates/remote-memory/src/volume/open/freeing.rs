//! Giving slabs back: those of an earlier attempt to make the volume, those of an attempt that failed, and those of a
//! volume that is removed.

use super::{Opening, Step, ZeroingWatch, is_majority};
use crate::donor::{Call, LentSlab};
use crate::volume::core::Lanes;
use crate::volume::record::{Member, Record, Voter};
use crate::volume::slot::Shape;
use crate::volume::{Donors, OpenError, VolumeConfig};

impl<D: Donors> Opening<D> {
    /// Removes a volume, as its last writer does. It never yields an open volume: `turn` returns `None`, and once the
    /// volume is [removed](Self::removed), there is nothing more to do.
    pub(in crate::volume) fn remove(donors: D, id: u64, config: VolumeConfig) -> Self {
        let mut opening = Self::new(donors, id, config);
        opening.removes = true;
        opening
    }

    /// Bytes given back, and which donors may still have some and why, once the volume is removed.
    pub(in crate::volume) fn removed(&self) -> Option<(u64, String)> {
        self.is_removed.then(|| (self.freed_bytes, self.failures()))
    }

    /// Whether a record makes the volume exist for what is done here.
    pub(super) fn counts(&self, record: &Record) -> bool {
        self.removes || !record.is_removed()
    }

    /// Whether these voters can decide: a majority, or all that are left of a volume that has lost its majority for
    /// good, since the others have restarted. Nobody can open such a volume, but it can be removed.
    pub(super) fn suffices(&self, voters: &[Voter], lanes: Lanes) -> bool {
        let has_restarted = |voter: &&Voter| {
            let known = self.lane_of(voter.donor).and_then(|lane| self.reports[lane].incarnation);
            known.is_some_and(|found| found != voter.incarnation)
        };
        let is_lost = || voters.iter().filter(has_restarted).count() * 2 >= voters.len();
        is_majority(voters, self.ids(), lanes) || self.removes && is_lost()
    }

    /// All slabs that the donors had lent when they were fenced.
    pub(super) fn listed_slabs(&self) -> Vec<(usize, LentSlab)> {
        let fenced = self.reports.iter().enumerate().filter(|(_, known)| known.fenced);
        fenced.flat_map(|(lane, known)| known.slabs.iter().map(move |lent| (lane, *lent))).collect()
    }

    /// Slabs taken for a new volume.
    pub(super) fn taken_slabs(&self) -> Vec<(usize, LentSlab)> {
        let taken = self.takes.iter().zip(&self.taken);
        let slab = |((lane, _), taken): (&(usize, usize), &Option<(Member, u64)>)| {
            taken.map(|(member, base)| (*lane, LentSlab { slab: member.slab, base, len: 0 }))
        };
        taken.filter_map(slab).collect()
    }

    /// Gives these slabs back, and waits for the answers.
    pub(super) fn free(&mut self, slabs: Vec<(usize, LentSlab)>) -> Result<(), OpenError> {
        (self.step, self.waiting) = (Step::Freeing, 0);
        self.attempts += 1;
        self.frees = slabs;
        for (number, (lane, lent)) in self.frees.clone().into_iter().enumerate() {
            self.call(lane, number, Call::Free { volume: self.id, epoch: self.epoch, slab: lent.slab });
        }
        if self.waiting == 0 { self.on_freed() } else { Ok(()) }
    }

    pub(super) fn on_freed(&mut self) -> Result<(), OpenError> {
        if self.failure.is_none() && !self.removes {
            self.reports.iter_mut().for_each(|known| known.slabs.clear());
            return self.take_slabs();
        }
        let fenced: Vec<bool> = self.reports.iter().map(|known| known.fenced).collect();
        self.call_all(Step::Leaving, |lane| fenced[lane], Call::Leave { volume: self.id, epoch: self.epoch });
        if self.waiting == 0 { self.on_left() } else { Ok(()) }
    }

    pub(super) fn on_left(&mut self) -> Result<(), OpenError> {
        self.is_removed = self.removes;
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Ends the attempt to make a volume with this error, after what was taken for it is given back. A voter may have
    /// recorded the volume already, so the voters are told first that it is removed.
    pub(super) fn undo(&mut self, error: OpenError) -> Result<(), OpenError> {
        if self.older.is_some() {
            // Its donors obey another writer now.
            return Err(error);
        }
        self.failure = Some(error);
        if matches!(self.step, Step::Recording) { self.write_record() } else { self.free(self.taken_slabs()) }
    }

    /// Asks for a slab.
    pub(super) fn take(&mut self, number: usize) {
        let Some((lane, _)) = self.takes.get(number).copied() else { return };
        let len = self.new.as_ref().map_or(0, |new| Shape::within(new.slab_len).slab_len());
        self.call(lane, number, Call::Take { volume: self.id, epoch: self.epoch, len });
    }

    /// Whether slabs are asked for again later: they are all that is missing, and their donors make progress with
    /// zeroing.
    pub(super) fn waits_for_zeroing(&mut self) -> bool {
        let mut missing = self.taken.iter().zip(&self.zeroing).filter(|(taken, _)| taken.is_none());
        let is_waited_for = missing.clone().next().is_some() && missing.all(|(_, zeroing)| zeroing.is_some());
        let Some(donors) = self.donors.as_ref().filter(|_| is_waited_for) else {
            self.zeroing_watch = None;
            return false;
        };
        let now_ns = donors.now_ns();
        let left = self.zeroing.iter().flatten().fold(0u64, |all, zeroing| all.saturating_add(*zeroing));
        let (retry_ns, patient_until_ns) = (Some(now_ns + self.config.retry_ns), now_ns + self.config.vote_timeout_ns);
        let watch =
            self.zeroing_watch.get_or_insert(ZeroingWatch { left: u64::MAX, until_ns: patient_until_ns, retry_ns });
        if left < watch.left {
            (watch.left, watch.until_ns) = (left, patient_until_ns);
        }
        watch.retry_ns = retry_ns;
        let is_patient = now_ns < watch.until_ns;
        if !is_patient {
            let whys = self.zeroing.iter().zip(&self.takes).filter_map(|(left, (lane, _))| Some((*lane, (*left)?)));
            for (lane, left) in whys.collect::<Vec<_>>() {
                self.reports[lane].why = format!("it does not get on with zeroing {left} bytes that were given back");
            }
            self.zeroing_watch = None;
        }
        is_patient
    }

    /// Asks again for the slabs that were not zeroed yet.
    pub(super) fn take_again(&mut self) {
        let now_ns = self.donors.as_ref().map_or(0, |donors| donors.now_ns());
        let Some(watch) = &mut self.zeroing_watch else { return };
        if watch.retry_ns.is_none_or(|retry_ns| now_ns < retry_ns) {
            return;
        }
        watch.retry_ns = None;
        for number in 0..self.zeroing.len() {
            if self.zeroing[number].take().is_some() {
                self.take(number);
            }
        }
    }
}
