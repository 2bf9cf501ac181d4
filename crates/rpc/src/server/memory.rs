//! Accounting of the arena: memory for requests and responses, each peer's share of it, and the recovery of memory that
//! is stalled.
//!
//! # Isolation between peers
//!
//! - **A peer has a share** (`Config::peer_share_percent`, half) of the sessions, the receive capacity and the memory
//!   that others may ask us for. Memory is charged to a peer by blocks, from a request's first packet until its
//!   response is gone: to the slot while it is there, and to the `DeferredCall` while a handler or a worker keeps the
//!   request, whatever becomes of its slot, its session and the peer meanwhile. What is charged to a peer that leaves
//!   is charged again when it comes back from the same address; a new link of shared memory is another peer. A refusal
//!   names the limit that was reached.
//! - **Memory comes back.** When another call finds no memory, or its peer's share is used up, these are given up: a
//!   request that arrives too slowly, a long response that nobody fetches and, when that is not enough, the buffers of
//!   short responses that were answered long ago. A request for which there is still none is answered `Busy`: it did
//!   not run. One that is larger than a peer's whole share is answered `RequestTooLarge`, since waiting would not help.
//!
//! Other limits on what one peer can cost: `sending` (answers), `guesses` (wrong tokens), `sessions::watching`
//! (sessions that nobody uses). A slot cannot be made unusable either: retransmissions of a request that a later
//! one in its slot has overtaken are answered with an error.

use sinew_mem::{Arena, MessageBuffer};

use super::state::{Phase, Response};
use super::{Abandoned, Servers};
use crate::answer::{ErrorCode, ServerCallId};
use crate::peers::Share;
use crate::shared::Shared;
use crate::table::SlotId;

impl Servers {
    /// Allocates a buffer for a request or a response; `None` if there is no memory, even after stalled requests and
    /// responses were given up.
    #[inline]
    pub fn alloc(&mut self, shared: &mut Shared, len: usize, data_per_packet: usize) -> Option<MessageBuffer> {
        match shared.arena.alloc(len, data_per_packet) {
            Ok(buffer) => Some(buffer),
            Err(_) if self.give_up_stalled(shared, len, None) => shared.arena.alloc(len, data_per_packet).ok(),
            Err(_) => None,
        }
    }

    /// Whether a session's peer may hold a message of `len` bytes more, if need be after its stalled ones were given
    /// up.
    pub(super) fn fits_share(&mut self, shared: &mut Shared, index: usize, len: usize) -> bool {
        let block_len = Arena::block_len(len, self.table.entries[index].data_per_packet as usize);
        self.block_fits_share(shared, index, block_len)
    }

    /// As [`Self::fits_share`], for a block of the arena.
    pub(super) fn block_fits_share(&mut self, shared: &mut Shared, index: usize, more: usize) -> bool {
        let peer_index = self.table.entries[index].peer_index;
        let share = shared.memory_share();
        let fits = |shared: &Shared| shared.peers.get(peer_index).bytes_held().saturating_add(more) <= share;
        fits(shared) || more <= share && self.give_up_stalled(shared, more, Some(peer_index)) && fits(shared)
    }

    /// Charges a call's peer for the block in which a handler keeps its request. `None` if the peer's share is used up,
    /// or nobody waits for the call: since the handler's burst began, another call may have taken its slot, whose state
    /// must stay.
    pub fn keep_request(
        &mut self,
        shared: &mut Shared,
        call: ServerCallId,
        deadline_ns: Option<u64>,
        block_len: usize,
    ) -> Option<(Share, Abandoned)> {
        let (index, id) = self.find_unanswered(call)?;
        // Until now a long request was charged to its slot.
        self.charge(shared, index, id);
        let peer_index = self.table.entries[index].peer_index;
        if !self.block_fits_share(shared, index, block_len) {
            return None;
        }
        let share = shared.peers.get_mut(peer_index).keep(block_len);
        Some((share, self.begin_keeping(shared, (call, id), deadline_ns)))
    }

    /// Number of requests of a call's peer that wait to be polled; `None` if the peer has gone.
    pub fn requests_waiting(&self, shared: &Shared, call: ServerCallId) -> Option<u64> {
        let peer_index = self.table.entries[self.table.find(call.key)?].peer_index;
        Some(shared.peers.get(peer_index).requests_waiting() as u64)
    }

    /// Charges a slot's peer for what the slot holds now.
    pub(super) fn charge(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let slot = &mut self.table.slots[id.index()];
        let held = slot.response.len_held() + slot.arrival().map_or(0, |arrival| self.arrivals.get(arrival).len_held());
        let charged = slot.charged();
        if held != charged {
            let peer = shared.peers.get_mut(self.table.entries[index].peer_index);
            peer.charged = peer.charged - charged + held;
            slot.set_charged(held);
        }
    }

    /// Frees what a slot's last call holds, since its client has a new call for the slot.
    pub(super) fn free_last_call(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let slot = &mut self.table.slots[id.index()];
        if matches!(slot.response, Response::Long(_)) {
            slot.response = Response::None;
        }
        self.end_arrival(id);
        self.charge(shared, index, id);
    }

    /// Gives up requests that arrive too slowly or not at all, and long responses that nobody fetches. If that is not
    /// enough, also gives up the buffers of short responses that were sent long ago: a client must not keep the memory
    /// of others for as long as it lives. A client that continues such a call gets an error. Returns whether any memory
    /// was freed. With `peer`, only what it holds is given up.
    #[cold]
    fn give_up_stalled(&mut self, shared: &mut Shared, len: usize, peer: Option<u32>) -> bool {
        let next_ns = peer.map_or(self.next_give_up_ns, |peer| shared.peers.get(peer).next_give_up_ns);
        if shared.now_ns < next_ns {
            return false;
        }
        // More than is needed now, so that the next calls need not search again.
        let len_wanted = len.saturating_mul(2).max(shared.arena.capacity() / 16);
        let mut freed = self.give_up(shared, len_wanted, false, peer);
        if freed < len_wanted {
            freed += self.give_up(shared, len_wanted - freed, true, peer);
        }
        if freed == 0 {
            let next_ns = shared.now_ns + shared.config.stalled_request_ns / 10;
            *peer.map_or(&mut self.next_give_up_ns, |peer| &mut shared.peers.get_mut(peer).next_give_up_ns) = next_ns;
        }
        freed > 0
    }

    /// Gives up what is stalled until `len_wanted` bytes are free: short responses, or everything else. Returns the
    /// number of bytes freed.
    fn give_up(&mut self, shared: &mut Shared, len_wanted: usize, short_responses: bool, peer: Option<u32>) -> usize {
        let mut freed = 0;
        for index in 0..self.table.entries.len() {
            // Few of the sessions are this peer's: the slots of the others need not be read.
            if peer.is_some_and(|peer| self.table.entries[index].peer_index != peer) {
                continue;
            }
            for id in self.table.slots_of(index) {
                if freed >= len_wanted {
                    return freed;
                }
                freed += self.give_up_slot(shared, index, id, short_responses);
            }
        }
        freed
    }

    /// With `short_responses`, gives up a slot's short or medium response if it is stalled. Otherwise gives up its long
    /// response if that is stalled, or its arriving request if that is stalled or too slow. Returns the number of bytes
    /// freed.
    fn give_up_slot(&mut self, shared: &mut Shared, index: usize, id: SlotId, short_responses: bool) -> usize {
        let slot = &self.table.slots[id.index()];
        let charged = slot.charged();
        if charged == 0 {
            return 0;
        }
        let is_stalled = shared.now_ns.saturating_sub(slot.progress_ns) >= shared.config.stalled_request_ns;
        let code = match (slot.phase, &slot.response) {
            (Phase::Receiving, _) if !short_responses && (is_stalled || self.is_slow(shared, index, id)) => {
                shared.stats.requests_given_up += 1;
                self.end_arrival(id);
                ErrorCode::Busy
            }
            (Phase::Answered, Response::Long(_)) if !short_responses && is_stalled => {
                shared.stats.responses_given_up += 1;
                ErrorCode::NoMemory
            }
            (Phase::Answered, Response::Short(_) | Response::Medium(_)) if short_responses && is_stalled => {
                shared.stats.responses_given_up += 1;
                ErrorCode::NoMemory
            }
            _ => return 0,
        };
        let slot = &mut self.table.slots[id.index()];
        slot.response = Response::Error(code);
        slot.phase = Phase::Answered;
        self.charge(shared, index, id);
        charged - self.table.slots[id.index()].charged()
    }

    /// Whether a request arrives more slowly than the configured rate.
    fn is_slow(&self, shared: &Shared, index: usize, id: SlotId) -> bool {
        let Some(arrival) = self.table.slots[id.index()].arrival() else { return false };
        let arrival = self.arrivals.get(arrival);
        let age_ns = shared.now_ns.saturating_sub(arrival.begun_ns);
        let due = u128::from(age_ns) * u128::from(shared.config.request_rate_min_bytes_per_s) / 1_000_000_000;
        let data_per_packet = self.table.entries[index].data_per_packet as usize;
        age_ns >= shared.config.stalled_request_ns && (arrival.received_len(data_per_packet) as u128) < due
    }
}
