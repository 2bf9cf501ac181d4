//! Donors are told now and then that the writer lives, and say whether they are still there. Those that failed and answer again: they are fenced anew, so that nothing that was sent to them before arrives any more, and then they are as new ones. What
//! they have of the volume counts only where it is a segment's last copy, which has missed nothing.

use super::core::{Called, Volume};
use super::donors::{CallFailed, Donors};
use crate::donor::{Answer, Call, Refusal};
use crate::store::StoreError;

impl<D: Donors> Volume<D> {
    pub(super) fn turn_revival(&mut self) {
        if self.ended.is_some() || self.now_ns < self.revive_at_ns {
            return;
        }
        self.revive_at_ns = self.now_ns + self.config.revive_ns;
        for lane in 0..self.lanes.len() {
            let state = &mut self.lanes[lane];
            let is_down = state.down.is_some();
            // All that was sent is over, so that nobody takes old news for new.
            if state.is_asked || is_down && state.out > 0 {
                continue;
            }
            state.is_asked = true;
            let (volume, epoch, number) = (self.id, self.epoch, lane as u8);
            let (called, call) = if is_down {
                (Called::Fence { lane: number }, Call::Fence { volume, epoch })
            } else {
                (Called::Beat { lane: number }, Call::Beat { volume, epoch })
            };
            let tag = self.calls.insert(called);
            self.donors.call(lane, u64::from(tag), call);
        }
    }

    /// Tells the donors that this writer ends, so that whoever comes next need not wait until it has been silent for its [lease](super::VolumeConfig::lease_ns). Nothing is submitted after
    /// this, and all is over that was; it is turned until it [has left](Self::has_left).
    pub fn leave(&mut self) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].down.is_none() && self.ended.is_none() {
                let (volume, epoch) = (self.id, self.epoch);
                let tag = self.calls.insert(Called::Leave);
                self.leaving += 1;
                self.donors.call(lane, u64::from(tag), Call::Leave { volume, epoch });
            }
        }
        // It gives no sign of life from now on.
        self.revive_at_ns = u64::MAX;
    }

    /// Whether all donors know that it [leaves](Self::leave), or do not answer.
    pub fn has_left(&self) -> bool {
        self.leaving == 0
    }

    /// A donor that is used says whether it is still there: one that started again has lost what it had, and nobody may have noticed.
    pub(super) fn looked_after(&mut self, lane: u8, result: Result<Answer, CallFailed>) {
        let state = &mut self.lanes[usize::from(lane)];
        state.is_asked = false;
        match result {
            Ok(Answer::Stat { incarnation, wants_back, .. }) if state.incarnation == Some(incarnation) => {
                self.give_way(lane, wants_back);
            }
            Ok(_) => self.lose(lane, "it has started again, and lost what it had".into()),
            Err(CallFailed::Refused(Refusal::Older { held })) => {
                self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
            }
            Err(error) => self.lose(lane, error.to_string()),
        }
    }

    /// A donor that failed says whether it is there again.
    pub(super) fn revived(&mut self, lane: u8, result: Result<Answer, CallFailed>) {
        let number = usize::from(lane);
        self.lanes[number].is_asked = false;
        let (incarnation, slabs) = match result {
            Ok(Answer::Fenced { incarnation, slabs, .. }) => (incarnation, slabs),
            Err(CallFailed::Refused(Refusal::Older { held })) => {
                return self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
            }
            _ => return,
        };
        (self.lanes[number].down, self.lanes[number].incarnation) = (None, Some(incarnation));
        self.repairing.full &= !super::core::bit(lane);
        let donor = self.donors.ids()[number];
        let mut strays = Vec::new();
        for lent in slabs {
            let mut is_named = false;
            for segment in &mut self.segments {
                let unknown = segment.unknown;
                let ours = segment.copies.iter_mut().find(|copy| {
                    copy.member.donor == donor
                        && copy.member.incarnation == incarnation
                        && copy.member.slab == lent.slab
                });
                if let Some(copy) = ours {
                    is_named = true;
                    // What nobody has looked through is for the next who opens the volume.
                    if !unknown && lent.len >= self.shape.slab_len() {
                        (copy.lane, copy.base) = (Some(lane), lent.base);
                    }
                }
            }
            if !is_named {
                strays.push(lent.slab);
            }
        }
        // The record that a majority has may still name them otherwise.
        if self.voting.durable == self.voting.generation {
            strays.into_iter().for_each(|slab| self.free_slab(lane, slab));
        }
        let unclean = std::mem::take(&mut self.unclean);
        for owed in unclean {
            if self.segments[owed.place.segment as usize].is_dead() {
                self.unclean.push(owed);
            } else {
                self.clear(owed.place, owed.count, owed.page, None);
            }
        }
    }
}
