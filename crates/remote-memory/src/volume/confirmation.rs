//! Confirmation: what a writer answers from its map alone, such as zeros for a page that it never wrote, is right only
//! as long as no later writer has the volume, and no donor would tell it, because it asks none.
//!
//! So a writer gives such answers only while a majority of the voters has confirmed it: while each of these has
//! answered a heartbeat that was sent within the last lease. A voter that has voted for a later writer answers none.
//! And that writer waits, once it has the votes, until every voter that counts heartbeats has seen none for a lease. As
//! two majorities have a voter in common, the confirmation of the last writer is over by then. A writer that was
//! stopped notices it by the time.
//!
//! In normal operation this takes no message besides the heartbeats, and no time: an answer that lacks the confirmation
//! waits for one.

use super::DONORS_MAX;
use super::config::VolumeConfig;
use super::core::Volume;
use super::donors::Donors;

impl VolumeConfig {
    /// Time for which an answered heartbeat confirms a writer, from its sending on. It is shorter than a lease, because
    /// the clocks of two programs may run at different speeds. A writer that took its volume by force does not know
    /// the lease of the next one, but it is longer than two heartbeats.
    pub(super) fn confirmation_ns(&self) -> u64 {
        if self.lease_ns > 0 { self.lease_ns - self.lease_ns / 8 } else { self.heartbeat_ns.saturating_mul(2) }
    }
}

impl<D: Donors> Volume<D> {
    /// Whether no later writer can have had the volume when this turn began.
    #[inline]
    pub(super) fn is_confirmed(&self) -> bool {
        self.now_ns < self.confirmed_until_ns
    }

    /// Notes that a donor has answered a heartbeat.
    pub(super) fn confirm(&mut self, lane: u8) {
        let state = &mut self.lanes[usize::from(lane)];
        state.confirmed_until_ns = state.beat_sent_ns.saturating_add(self.config.confirmation_ns());
        let is_old = state.confirmed_until_ns <= self.now_ns;
        self.update_confirmation();
        if is_old && !self.unconfirmed.is_empty() {
            // It was sent before the writer was stopped; the next one need not wait.
            self.revive_at_ns = self.now_ns;
        }
    }

    /// Finds until when a majority of the voters has confirmed this writer.
    pub(super) fn update_confirmation(&mut self) {
        let ids = self.donors.ids();
        let until_ns = |voter: &super::record::Voter| {
            let lane = ids.iter().position(|id| *id == voter.donor);
            let lane = lane.and_then(|lane| self.lanes.get(lane));
            lane.filter(|lane| lane.incarnation == Some(voter.incarnation)).map_or(0, |lane| lane.confirmed_until_ns)
        };
        let voters = &self.voting.durable_voters;
        // While voters are replaced there may be one more than usual.
        let mut all = arrayvec::ArrayVec::<u64, { DONORS_MAX + 1 }>::new();
        all.extend(voters.iter().map(until_ns).take(DONORS_MAX + 1));
        all.sort_unstable_by_key(|until_ns| std::cmp::Reverse(*until_ns));
        self.confirmed_until_ns = all.get(voters.len() / 2).copied().unwrap_or(0);
    }

    /// Has a request wait whose answer rests on the map alone.
    pub(super) fn await_confirmation(&mut self, key: u32) {
        if self.unconfirmed.is_empty() {
            self.revive_at_ns = self.now_ns;
        }
        self.unconfirmed.push(key);
    }

    /// Goes on with requests that waited, if this writer is confirmed now, or has ended.
    pub(super) fn end_unconfirmed(&mut self) {
        if self.ended.is_none() && !self.is_confirmed() {
            return;
        }
        for key in std::mem::take(&mut self.unconfirmed) {
            self.requests.get_mut(key).parts = 1;
            self.complete_part(key, self.ended.clone());
        }
    }
}
