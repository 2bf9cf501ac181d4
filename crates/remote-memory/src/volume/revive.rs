//! Heartbeats to the donors, which also tell whether a donor is still there. A donor that failed is fenced again when
//! it answers again, so that nothing sent to it earlier can still take effect; from then on it counts as a new donor.
//! Its old copy is used only if it is the last one of its segment, because then it has missed no write.

use super::core::{PendingCall, RepairStep, Volume};
use super::donors::{CallFailed, Donors};
use crate::donor::{Answer, Call, Refusal};
use crate::store::StoreError;

impl<D: Donors> Volume<D> {
    pub(super) fn turn_revival(&mut self) {
        if self.ended.is_some() || self.now_ns < self.revive_at_ns {
            return;
        }
        self.revive_at_ns = self.now_ns + self.config.heartbeat_ns;
        for lane in 0..self.lanes.len() {
            let state = &mut self.lanes[lane];
            let is_down = state.down.is_some();
            // Everything sent to it must have ended first, so that old events are not taken for new ones, and so that a
            // slab that it has given is known before a fence shows it as one that no copy has.
            let is_giving =
                matches!(self.repairing.step, RepairStep::Taking { lane: from } if usize::from(from) == lane);
            if state.call_in_flight || is_down && (state.in_flight > 0 || is_giving) {
                continue;
            }
            state.call_in_flight = true;
            let (volume, epoch, number) = (self.id, self.epoch, lane as u8);
            let (called, call) = if is_down {
                (PendingCall::Fence { lane: number }, Call::Fence { volume, epoch })
            } else {
                state.beat_sent_ns = self.now_ns;
                (PendingCall::Heartbeat { lane: number }, Call::Heartbeat { volume, epoch })
            };
            let tag = self.calls.insert(called);
            self.donors.call(lane, u64::from(tag), call);
        }
    }

    /// Tells the donors that this writer leaves, so that the next one need not wait until it has been silent for its
    /// [lease](super::VolumeConfig::lease_ns). Everything submitted must have finished, and nothing may be submitted
    /// afterwards; the volume must be turned until it [has left](Self::has_left).
    pub fn leave(&mut self) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].down.is_none() && self.ended.is_none() {
                let (volume, epoch) = (self.id, self.epoch);
                let tag = self.calls.insert(PendingCall::Leave);
                self.leaving += 1;
                self.donors.call(lane, u64::from(tag), Call::Leave { volume, epoch });
            }
        }
        // No heartbeats from now on.
        self.revive_at_ns = u64::MAX;
    }

    /// Whether every donor has been told that this writer [leaves](Self::leave), or does not answer.
    pub fn has_left(&self) -> bool {
        self.leaving == 0
    }

    /// Handles a donor's answer to a heartbeat. A donor that has restarted has lost its memory, perhaps unnoticed.
    pub(super) fn on_heartbeat_answer(&mut self, lane: u8, result: Result<Answer, CallFailed>) {
        let state = &mut self.lanes[usize::from(lane)];
        state.call_in_flight = false;
        match result {
            Ok(Answer::Stat { incarnation, is_withdrawing, .. }) if state.incarnation == Some(incarnation) => {
                self.confirm(lane);
                self.set_leaving(lane, is_withdrawing);
            }
            Ok(_) => self.drop_lane(lane, "it has restarted, and lost its contents".into()),
            Err(CallFailed::Refused(Refusal::OlderEpoch { held })) => {
                self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
            }
            Err(error) => self.drop_lane(lane, error.to_string()),
        }
    }

    /// Handles the answer of a failed donor to its new fence.
    pub(super) fn on_revival_answer(&mut self, lane: u8, result: Result<Answer, CallFailed>) {
        let number = usize::from(lane);
        self.lanes[number].call_in_flight = false;
        let (incarnation, slabs) = match result {
            Ok(Answer::Fenced { incarnation, slabs, .. }) => (incarnation, slabs),
            Err(CallFailed::Refused(Refusal::OlderEpoch { held })) => {
                return self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
            }
            _ => return,
        };
        let state = &mut self.lanes[number];
        if state.incarnation != Some(incarnation) {
            // It was another run that confirmed this writer.
            state.confirmed_until_ns = 0;
        }
        (state.down, state.incarnation) = (None, Some(incarnation));
        self.update_confirmation();
        if !self.unconfirmed.is_empty() {
            self.revive_at_ns = self.now_ns;
        }
        self.repairing.full &= !super::core::lane_bit(lane);
        let donor = self.donors.ids()[number];
        let mut strays = Vec::new();
        for lent in slabs {
            let mut is_named = false;
            for segment in &mut self.segments {
                let unknown = segment.is_unknown;
                let own_copy = segment.copies.iter_mut().find(|copy| {
                    copy.member.donor == donor
                        && copy.member.incarnation == incarnation
                        && copy.member.slab == lent.slab
                });
                if let Some(copy) = own_copy {
                    is_named = true;
                    // A copy with unknown contents is left to the next writer that opens the volume.
                    if !unknown && self.shape.fits(&lent) {
                        (copy.lane, copy.base) = (Some(lane), lent.base);
                    }
                }
            }
            if !is_named {
                strays.push(lent.slab);
            }
        }
        // Until the record is durable, the majority's record may still name these slabs.
        strays.into_iter().for_each(|slab| self.defer_free(lane, slab, self.voting.generation));
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
