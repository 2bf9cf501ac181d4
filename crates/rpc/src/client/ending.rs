//! The end of calls, with or without a response.

use std::sync::Arc;

use sinew_fabric::PacketTx;
use sinew_mem::MessageBuffer;

use super::queue::{QueuedId, QueuedState, Queues};
use super::state::{ClientSession, ClientSlot, Form, Outgoing};
use super::{Clients, Reclaiming, Unfinished};
use crate::error::{CallError, Cause, Execution};
use crate::lanes::Lanes;
use crate::names::{CallId, Completion, RequestType, SessionId};
use crate::shared::Shared;
use crate::stats::Stats;
use crate::table::SlotId;

/// Ends a short call that has its response, and frees its slot.
#[inline(always)]
pub(super) fn finish_short(lanes: &mut Lanes, session: &mut ClientSession, slot: &mut ClientSlot, position: usize) {
    session.credits += 1;
    debug_assert!(session.credits <= session.credits_max);
    session.free_slots |= 1 << position;
    if let (Some(Outgoing::Whole(request)), Some(response)) = (slot.request.take(), slot.response.take()) {
        let (session, number, tag) = (session.id(), slot.number, slot.tag);
        lanes.push(slot.lane, Completion { session, number, tag, result: Ok(()), request, response });
    }
}

impl Clients {
    /// Gives the credits and the slot of a call that ended to calls that wait for them.
    #[inline(never)]
    pub(super) fn resume_waiting(&mut self, shared: &mut Shared, index: usize) {
        self.send_waiting(shared, index);
        if self.table.entries[index].has_queue {
            self.start_queued(shared, index);
        }
    }

    /// Ends a call, frees its slot, and returns its credits to its session.
    pub(super) fn finish(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        result: Result<(), (Cause, Execution)>,
    ) {
        self.finish_keeping(shared, index, id, result, 0);
    }

    /// As [`Self::finish`], but keeps back `owed` of its credits.
    fn finish_keeping(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        result: Result<(), (Cause, Execution)>,
        owed: u16,
    ) {
        let position = self.table.position_of(id);
        let view = self.view(id);
        let (session, slot, long) = (view.session, view.slot, view.long);
        let (credits, waited) = match slot.form {
            Form::Short | Form::ShortTimed => (1, None),
            Form::Long => ((long.sent - long.received) as u16, long.queued_id.take()),
        };
        session.credits += credits - owed;
        debug_assert!(session.credits <= session.credits_max);
        long.sent = long.received;
        if shared.pacing.is_on() {
            shared.pacing.remove_call(index, id);
        }
        session.waiting &= !(1 << position);
        session.free_slots |= 1 << position;
        let (Some(request), Some(response)) = (slot.request.take(), slot.response.take()) else { return };
        let result = result.map_err(|(cause, execution)| CallError {
            peer: Arc::clone(&shared.peers.get(session.peer_index).name),
            cause,
            execution,
            request_type: RequestType::new(slot.request_type),
        });
        let (session, number, lane, tag) = (session.id(), slot.number, slot.lane, slot.tag);
        let id = CallId { session, number: self.release_number(waited, number) };
        let unfinished = Unfinished { id, lane, tag, result, response };
        self.complete(&mut shared.stats, request, unfinished);
        self.resume_waiting(shared, index);
    }

    fn complete(&mut self, stats: &mut Stats, request: Outgoing, unfinished: Unfinished) {
        let request = match request {
            Outgoing::Whole(request) => request,
            Outgoing::Shared(frozen) => match frozen.thaw() {
                Ok(request) => request,
                // The port may still read it (nsdi19 4.2.2): the buffer is returned once the port has released it.
                Err(request) => {
                    self.reclaiming.push(Reclaiming { request, completion: unfinished });
                    return;
                }
            },
        };
        self.push_completion(stats, request, unfinished);
    }

    pub(super) fn push_completion(&mut self, stats: &mut Stats, request: MessageBuffer, unfinished: Unfinished) {
        let Unfinished { id: CallId { session, number }, lane, tag, result, response } = unfinished;
        match result {
            Ok(()) => stats.calls_completed += 1,
            Err(_) => stats.calls_failed += 1,
        }
        self.lanes.push(lane, Completion { session, number, tag, result, request, response });
    }

    /// Makes the port end its shares of requests whose calls are over, and completes these calls.
    #[cold]
    pub fn reclaim(&mut self, stats: &mut Stats, tx: &mut impl PacketTx) {
        let mut waiting = std::mem::take(&mut self.reclaiming);
        for Reclaiming { request, completion } in waiting.drain(..) {
            tx.reclaim(&request);
            match request.thaw() {
                Ok(request) => self.push_completion(stats, request, completion),
                // Somebody other than our port holds a share. Try again next turn.
                Err(request) => self.reclaiming.push(Reclaiming { request, completion }),
            }
        }
        if self.reclaiming.is_empty() {
            self.reclaiming = waiting;
        }
    }

    /// Ends all calls of a session, whatever their lane.
    pub fn end_calls(&mut self, shared: &mut Shared, session: SessionId, cause: Cause) {
        let Some(index) = self.table.find(session.key()) else { return };
        // The queue first, so that a freed slot does not start a call that is about to end too.
        while let Some(queued_id) = self.queues.first(&self.cold[index].queue) {
            self.end_waiting(shared, index, queued_id, cause);
        }
        // Nor may returned credits send packets of such a call.
        self.table.entries[index].waiting = 0;
        for id in self.table.slots_of(index) {
            if self.table.slots[id.index()].request.is_some() {
                self.give_up(shared, index, id, cause);
            }
        }
    }

    /// Ends one call because its caller no longer waits, and tells the server. Returns whether the call was still under
    /// way.
    pub fn cancel(&mut self, shared: &mut Shared, call: CallId) -> bool {
        let Some(index) = self.table.find(call.session.key()) else { return false };
        if Queues::is_number(call.number) {
            return match self.queues.find(index, call.number) {
                Some(QueuedState::Waiting(place)) => self.end_waiting(shared, index, place, Cause::Cancelled),
                Some(QueuedState::Started(id)) => self.cancel_slot(shared, index, id),
                None => false,
            };
        }
        let id = self.table.slot_of(index, call.number);
        let slot = &self.table.slots[id.index()];
        // A call that had to wait goes by another number.
        let is_found = slot.number == call.number && slot.request.is_some();
        is_found && self.cancel_slot(shared, index, id)
    }

    /// Ends the calls of a lane.
    pub fn cancel_lane(&mut self, shared: &mut Shared, lane: u32) {
        let waiting = self.queues.waiting().filter(|(_, _, queued)| queued.call.lane == lane);
        let waiting: Vec<_> = waiting.map(|(place, index, _)| (place, index)).collect();
        for (place, index) in waiting {
            self.end_waiting(shared, index, place, Cause::Cancelled);
        }
        let is_of_lane = |slot: &ClientSlot| slot.lane == lane && slot.request.is_some();
        let picked: Vec<_> =
            self.listed.iter().copied().filter(|id| is_of_lane(&self.table.slots[id.index()])).collect();
        for id in picked {
            let index = self.table.entry_of(id);
            self.cancel_slot(shared, index, id);
        }
    }

    fn cancel_slot(&mut self, shared: &mut Shared, index: usize, id: SlotId) -> bool {
        self.abandon(shared, index, id, Cause::Cancelled);
        true
    }

    /// Ends a call whose caller no longer waits, while its session goes on, and tells the server.
    pub(super) fn abandon(&mut self, shared: &mut Shared, index: usize, id: SlotId, cause: Cause) {
        let held_back = if shared.pacing.is_on() { shared.pacing.remove_call(index, id) } else { 0 };
        let view = self.view(id);
        if !view.was_sent() {
            return self.give_up(shared, index, id, cause);
        }
        let (number, mut ended) = (view.slot.number, view.progress());
        ended.sent = ended.sent.saturating_sub(held_back).max(ended.answered);
        let execution = if view.may_have_run() { Execution::MayHaveRun } else { Execution::NeverSent };
        self.finish_keeping(shared, index, id, Err((cause, execution)), (ended.sent - ended.answered) as u16);
        self.owe(shared, index, number, ended);
    }

    /// Ends a call from which nothing more is expected.
    pub(super) fn give_up(&mut self, shared: &mut Shared, index: usize, id: SlotId, cause: Cause) {
        let execution = if self.view(id).may_have_run() { Execution::MayHaveRun } else { Execution::NeverSent };
        self.finish(shared, index, id, Err((cause, execution)));
    }

    /// Ends a call that waits for a slot.
    pub(super) fn end_waiting(&mut self, shared: &mut Shared, index: usize, place: QueuedId, cause: Cause) -> bool {
        let Some(queued) = self.queues.remove(&mut self.cold[index].queue, place) else { return false };
        self.complete_unsent(shared, index, (Some(place), 0), queued, cause);
        true
    }
}
