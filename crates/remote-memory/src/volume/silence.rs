//! A volume that ended because too few of its voters answered. Its writer does nothing more, and sends no heartbeats.
//! But it keeps asking the donors what became of the volume, so that nothing relies on what this writer last knew for
//! longer than necessary.

use super::core::{PendingCall, Volume, lane_bit};
use super::donors::{CallFailed, Donors};
use super::record::Record;
use super::voting::is_majority;
use crate::donor::{Answer, Call};
use crate::store::StoreError;

impl<D: Donors> Volume<D> {
    pub(super) fn inspect_after_silence(&mut self) {
        if !matches!(self.ended, Some(StoreError::NoAnswer(_))) || self.now_ns < self.revive_at_ns {
            return;
        }
        self.revive_at_ns = self.now_ns + self.config.heartbeat_ns;
        for lane in 0..self.lanes.len() {
            if !std::mem::replace(&mut self.lanes[lane].call_in_flight, true) {
                let tag = self.calls.insert(PendingCall::Inspect { lane: lane as u8 });
                self.donors.call(lane, u64::from(tag), Call::Inspect { volume: self.id });
            }
        }
    }

    /// Handles a donor's answer about what it knows of the volume.
    pub(super) fn on_inspect_answer(&mut self, lane: u8, result: Result<Answer, CallFailed>) {
        self.lanes[usize::from(lane)].call_in_flight = false;
        self.answering &= !lane_bit(lane);
        let Ok(Answer::Inspected { incarnation, promised, stored, .. }) = result else { return };
        let ids = self.donors.ids();
        let id = ids[usize::from(lane)];
        // A donor that has restarted knows nothing of this volume, unless a later writer has stored a record there
        // since.
        let is_voter =
            self.voting.durable_voters.iter().any(|voter| (voter.donor, voter.incarnation) == (id, incarnation));
        let recorded = stored.and_then(|stored| Record::read(&stored.record).ok());
        let recorded = recorded.filter(|record| record.number == self.number).map_or(0, |record| record.epoch);
        let held = if is_voter { recorded.max(promised) } else { recorded };
        if is_voter {
            self.answering |= lane_bit(lane);
        }
        if !matches!(self.ended, Some(StoreError::NoAnswer(_))) {
            return;
        }
        if held > self.epoch {
            self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
        } else if is_majority(&self.voting.durable_voters, ids, self.answering) {
            self.ended = Some(StoreError::Unavailable(
                "the volume has ended, since too few of its voters answered; enough of them answer now: open it again"
                    .into(),
            ));
        }
    }
}
