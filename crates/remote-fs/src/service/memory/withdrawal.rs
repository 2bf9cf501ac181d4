//! Giving memory back to a donor that asks for it.
//!
//! The donor lends no more. Segments without contents are given back, and the copies of the others are rebuilt at
//! other donors, as far as these have room (`repair.rs`). Clients that have not heard of that may still write to the
//! slabs that were left. So once no segment has a copy at the donor, it is told to cut off every client, for the rest
//! of the epoch, and only then are its slabs freed.

use std::collections::BTreeSet;

use sinew_remote_memory::volume::Donors;

use super::super::lanes::{Lanes, Withdrawal};
use super::super::repair;
use super::super::store::Store;
use super::Memory;
use crate::disk::Disk;
use crate::durable_state::{Member, Segment};

impl<D: Donors> Memory<D> {
    /// Does what withdrawals need now and then.
    pub(super) fn continue_withdrawals<K: Disk>(&mut self, store: &mut Store<K>) {
        if !self.lanes.0.iter().any(|lane| lane.is_withdrawing()) {
            return;
        }
        self.give_back_unused_segments(store);
        self.leave_copies(store);
        for lane in 0..self.lanes.0.len() {
            let known = &self.lanes.0[lane];
            if known.is_ready() && known.withdrawal == Withdrawal::Asked && !self.is_in_use(store, lane) {
                let clients = store.state.clients.keys().copied();
                let left: BTreeSet<u64> = clients.chain(self.retired.of_lane(lane)).collect();
                left.iter().for_each(|client| self.expel(lane, *client));
                self.lanes.0[lane].withdrawal = Withdrawal::CuttingOff { left };
                self.end_cutting_off(lane);
            }
        }
    }

    /// Whether a segment has a copy at a donor, or may get one there.
    fn is_in_use<K: Disk>(&self, store: &Store<K>, lane: usize) -> bool {
        let donor = self.lanes.0[lane].donor.0;
        self.growth.is_some()
            || self.repair.is_some_and(|repair| repair.lane == lane)
            || store.state.segments.values().flat_map(|segment| &segment.members).any(|member| member.donor == donor)
    }

    /// Gives back segments without contents that have a copy at a donor that withdraws.
    fn give_back_unused_segments<K: Disk>(&mut self, store: &mut Store<K>) {
        let is_unused = |(number, segment): &(&u32, &Segment)| {
            segment.members.iter().any(|member| self.lanes.is_withdrawing(member))
                && repair::may_be_given_back(store, &self.lanes, &self.orphans, **number, segment)
        };
        let unused: Vec<u32> = store.state.segments.iter().filter(is_unused).map(|(number, _)| *number).collect();
        for segment in unused {
            // Each leaves less room for what was promised to files.
            if store.may_lose(store.state.segments[&segment].pages.into()) {
                self.give_back_segment(store, segment);
            }
        }
    }

    /// Takes the copies at donors that withdraw out of the segments that have enough whole ones elsewhere.
    pub(super) fn leave_copies<K: Disk>(&mut self, store: &mut Store<K>) {
        let copies = self.config.copies.min(self.lanes.0.len());
        let has_enough = |segment: &Segment, lanes: &Lanes| {
            let stays = |member: &&Member| member.is_whole && !lanes.is_withdrawing(member) && lanes.reaches(member);
            segment.members.iter().any(|member| lanes.is_withdrawing(member))
                && segment.members.iter().filter(stays).count() >= copies
        };
        let enough = store.state.segments.iter().filter(|(_, segment)| has_enough(segment, &self.lanes));
        for segment in enough.map(|(number, _)| *number).collect::<Vec<_>>() {
            let members = &store.state.segments[&segment].members;
            let left: Vec<Member> =
                members.iter().filter(|member| self.lanes.is_withdrawing(member)).copied().collect();
            // What cannot be recorded now is retried later.
            if let Ok(count) = self.take_out(store, segment, |member| left.contains(member)) {
                store.stats.moved_copies += count as u64;
            }
        }
    }

    /// Clients that a donor must still cut off.
    pub(super) fn clients_to_expel(&self, lane: usize) -> BTreeSet<u64> {
        let mut clients: BTreeSet<u64> = self.retired.of_lane(lane).into_iter().collect();
        if let Withdrawal::CuttingOff { left } = &self.lanes.0[lane].withdrawal {
            clients.extend(left);
        }
        clients
    }

    /// Records that a donor has cut off a client.
    pub(super) fn note_cut_off(&mut self, lane: usize, client: u64) {
        self.retired.expelled(lane, Some(client));
        if let Withdrawal::CuttingOff { left } = &mut self.lanes.0[lane].withdrawal {
            left.remove(&client);
            self.end_cutting_off(lane);
        }
    }

    /// Once a donor has cut off all clients, it is fenced again: the answer lists all slabs to free.
    fn end_cutting_off(&mut self, lane: usize) {
        if matches!(&self.lanes.0[lane].withdrawal, Withdrawal::CuttingOff { left } if left.is_empty()) {
            self.lanes.0[lane].withdrawal = Withdrawal::CutOff;
            self.set_away(lane, self.now_ns);
        }
    }
}
