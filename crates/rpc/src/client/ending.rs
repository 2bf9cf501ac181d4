//! How calls end.

use std::sync::Arc;

use sinew_fabric::PacketTx;
use sinew_mem::MessageBuffer;

use super::state::{ClientSession, ClientSlot, Form, Outgoing, Queued};
use super::{Clients, Reclaiming, Unfinished};
use crate::error::{CallError, Cause, Execution};
use crate::fifo::Fifo;
use crate::names::{Completion, SessionId};
use crate::shared::Shared;
use crate::stats::Stats;
use crate::table::SlotId;

/// Ends a short call whose response is there, and gives its slot to the next.
#[inline(always)]
pub(super) fn finish_short(
    completions: &mut Fifo<Completion>,
    session: &mut ClientSession,
    slot: &mut ClientSlot,
    place: usize,
) {
    session.credits += 1;
    debug_assert!(session.credits <= session.credits_max);
    session.free_slots |= 1 << place;
    if let (Some(Outgoing::Whole(request)), Some(response)) = (slot.request.take(), slot.response.take()) {
        let (session, tag, lane) = (session.id(), slot.tag, slot.lane);
        completions.push(Completion { session, tag, result: Ok(()), request, response, lane });
    }
}

impl Clients {
    /// Gives what a call that ended had to those that wait for it.
    #[inline(never)]
    pub(super) fn let_others_go(&mut self, shared: &mut Shared, index: usize) {
        self.pump_waiting(shared, index);
        if self.table.entries[index].has_queue {
            self.start_queued(shared, index);
        }
    }

    /// Ends a call and gives its slot to the next.
    pub(super) fn finish(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        result: Result<(), (Cause, Execution)>,
    ) {
        let place = self.table.place_of(id);
        let view = self.view(id);
        let (session, slot, travel) = (view.session, view.slot, view.travel);
        // What is still on its way will be answered to nobody.
        session.credits += match slot.form {
            Form::Short => 1,
            Form::Long => (travel.sent - travel.received) as u16,
        };
        debug_assert!(session.credits <= session.credits_max);
        travel.sent = travel.received;
        if shared.pacing.is_on() {
            shared.pacing.forget(index, id);
        }
        session.waiting &= !(1 << place);
        session.free_slots |= 1 << place;
        let (Some(request), Some(response)) = (slot.request.take(), slot.response.take()) else { return };
        let result = result.map_err(|(cause, execution)| CallError {
            peer: Arc::clone(&shared.peers.get(session.peer_index).name),
            cause,
            execution,
        });
        let unfinished = Unfinished { session: session.id(), lane: slot.lane, tag: slot.tag, result, response };
        self.complete(&mut shared.stats, request, unfinished);
        self.let_others_go(shared, index);
    }

    fn complete(&mut self, stats: &mut Stats, request: Outgoing, unfinished: Unfinished) {
        let request = match request {
            Outgoing::Whole(request) => request,
            Outgoing::Shared(frozen) => match frozen.thaw() {
                Ok(request) => request,
                // The port may still read it (nsdi19 4.2.2): the buffer goes back once the port let go.
                Err(request) => {
                    self.reclaiming.push(Reclaiming { request, completion: unfinished });
                    return;
                }
            },
        };
        self.push_completion(stats, request, unfinished);
    }

    pub(super) fn push_completion(&mut self, stats: &mut Stats, request: MessageBuffer, unfinished: Unfinished) {
        let Unfinished { session, lane, tag, result, response } = unfinished;
        match result {
            Ok(()) => stats.calls_completed += 1,
            Err(_) => stats.calls_failed += 1,
        }
        self.completions.push(Completion { session, tag, result, request, response, lane });
    }

    /// Has the port end its shares of requests whose calls are over, and completes them.
    #[cold]
    pub fn reclaim(&mut self, stats: &mut Stats, tx: &mut impl PacketTx) {
        let mut waiting = std::mem::take(&mut self.reclaiming);
        for Reclaiming { request, completion } in waiting.drain(..) {
            tx.reclaim(&request);
            match request.thaw() {
                Ok(request) => self.push_completion(stats, request, completion),
                // Somebody else holds a share: not a port of ours. Try again next turn.
                Err(request) => self.reclaiming.push(Reclaiming { request, completion }),
            }
        }
        if self.reclaiming.is_empty() {
            self.reclaiming = waiting;
        }
    }

    /// Cancels the calls of a session that `picks` says yes to, by lane and tag; returns how many there were.
    pub fn cancel(
        &mut self,
        shared: &mut Shared,
        session: SessionId,
        cause: Cause,
        mut picks: impl FnMut(u8, u64) -> bool,
    ) -> usize {
        let Some(index) = self.table.find(session.key()) else { return 0 };
        let peer = Arc::clone(&shared.peers.get(self.table.entries[index].peer_index).name);
        let mut cancelled = 0;
        // The queue first, so that a freed slot does not start a call that is to be cancelled too.
        let queue = std::mem::take(&mut self.cold(index).queue);
        for queued in queue {
            if picks(queued.call.lane, queued.call.tag) {
                cancelled += 1;
                let Queued { call, request, response } = queued;
                let result = Err(CallError { peer: Arc::clone(&peer), cause, execution: Execution::NeverSent });
                let unfinished = Unfinished { session, lane: call.lane, tag: call.tag, result, response };
                self.push_completion(&mut shared.stats, request, unfinished);
            } else {
                self.cold(index).queue.push_back(queued);
            }
        }
        let picked = self.table.slots_of(index).filter(|id| {
            let slot = &self.table.slots[id.at()];
            slot.request.is_some() && picks(slot.lane, slot.tag)
        });
        let picked = picked.fold(0u64, |picked, id| picked | 1 << self.table.place_of(id));
        // Credits that come back must not send a call that is to be cancelled too.
        self.table.entries[index].waiting &= !picked;
        for id in self.table.slots_of(index) {
            if picked & 1 << self.table.place_of(id) != 0 {
                cancelled += 1;
                let may_have_run = self.view(id).may_have_run();
                let execution = if may_have_run { Execution::MayHaveRun } else { Execution::NeverSent };
                self.finish(shared, index, id, Err((cause, execution)));
            }
        }
        cancelled
    }
}
