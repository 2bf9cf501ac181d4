//! How calls end.

use std::sync::Arc;

use sinew_fabric::PacketTx;
use sinew_mem::MessageBuffer;

use super::{Outgoing, Queued, Reclaiming, Unfinished};
use crate::core::Core;
use crate::error::{CallError, Cause, Execution};
use crate::names::{Completion, SessionId};

impl Core {
    /// Ends a call and gives its slot to the next.
    #[inline]
    pub(super) fn finish(&mut self, index: usize, slot: usize, result: Result<(), (Cause, Execution)>) {
        let at = self.clients.table.slot_at(index, slot);
        let session = &mut self.clients.table.entries[index];
        let state = &mut self.clients.table.slots[at];
        // What is still on its way will be answered to nobody.
        session.credits += (state.sent - state.received) as u16;
        debug_assert!(session.credits <= session.credits_max);
        state.sent = state.received;
        if self.pacing.is_on() {
            self.pacing.forget(index, slot);
        }
        session.waiting &= !(1 << slot);
        session.free_slots |= 1 << slot;
        let (Some(request), Some(response)) = (state.request.take(), state.response.take()) else { return };
        let (tag, call) = (state.tag, state.call);
        let id = session.id();
        let (has_queue, has_waiting) = (session.has_queue, session.waiting != 0);
        match (result, request) {
            // By far the most common end, without a detour through memory.
            (Ok(()), Outgoing::Whole(request)) => {
                self.stats.calls_completed += 1;
                self.completions.push_back(Completion { session: id, tag, result: Ok(()), request, response, call });
            }
            (result, request) => {
                let result = result.map_err(|(cause, execution)| CallError {
                    peer: Arc::clone(&self.peers.get(session.peer_index).name),
                    cause,
                    execution,
                });
                self.complete(request, Unfinished { session: id, tag, call, result, response });
            }
        }
        if has_waiting {
            self.pump_waiting(index);
        }
        if has_queue {
            self.start_queued(index);
        }
    }

    #[inline(never)]
    fn complete(&mut self, request: Outgoing, unfinished: Unfinished) {
        let request = match request {
            Outgoing::Whole(request) => request,
            Outgoing::Shared(frozen) => match frozen.thaw() {
                Ok(request) => request,
                // The port may still read it (nsdi19 4.2.2): the buffer goes back once the port let go.
                Err(request) => {
                    self.clients.reclaiming.push(Reclaiming { request, completion: unfinished });
                    return;
                }
            },
        };
        self.push_completion(request, unfinished);
    }

    #[inline]
    pub(super) fn push_completion(&mut self, request: MessageBuffer, unfinished: Unfinished) {
        let Unfinished { session, tag, call, result, response } = unfinished;
        match result {
            Ok(()) => self.stats.calls_completed += 1,
            Err(_) => self.stats.calls_failed += 1,
        }
        self.completions.push_back(Completion { session, tag, result, request, response, call });
    }

    /// Has the port end its shares of requests whose calls are over, and completes them.
    pub(crate) fn reclaim(&mut self, tx: &mut impl PacketTx) {
        let mut waiting = std::mem::take(&mut self.clients.reclaiming);
        for Reclaiming { request, completion } in waiting.drain(..) {
            tx.reclaim(&request);
            match request.thaw() {
                Ok(request) => self.push_completion(request, completion),
                // Somebody else holds a share: not a port of ours. Try again next turn.
                Err(request) => self.clients.reclaiming.push(Reclaiming { request, completion }),
            }
        }
        if self.clients.reclaiming.is_empty() {
            self.clients.reclaiming = waiting;
        }
    }

    /// Cancels the calls of a session that `picks` says yes to, by tag and call; returns how many there were.
    pub(crate) fn cancel(
        &mut self,
        session: SessionId,
        cause: Cause,
        mut picks: impl FnMut(u64, u64) -> bool,
    ) -> usize {
        let Some(index) = self.clients.table.find(session.key()) else { return 0 };
        let peer = Arc::clone(&self.peers.get(self.clients.table.entries[index].peer_index).name);
        let mut cancelled = 0;
        // The queue first, so that a freed slot does not start a call that is to be cancelled too.
        let queue = std::mem::take(&mut self.clients.cold(index).queue);
        for queued in queue {
            if picks(queued.tag, queued.call) {
                cancelled += 1;
                let Queued { request, response, tag, call, .. } = queued;
                let result = Err(CallError { peer: Arc::clone(&peer), cause, execution: Execution::NeverSent });
                self.push_completion(request, Unfinished { session, tag, call, result, response });
            } else {
                self.clients.cold(index).queue.push_back(queued);
            }
        }
        let slots = self.clients.table.slots_per_entry();
        let picked = (0..slots).filter(|&slot| {
            let state = &self.clients.table.slots[self.clients.table.slot_at(index, slot)];
            state.request.is_some() && picks(state.tag, state.call)
        });
        let picked = picked.fold(0u64, |picked, slot| picked | 1 << slot);
        // Credits that come back must not send a call that is to be cancelled too.
        self.clients.table.entries[index].waiting &= !picked;
        for slot in 0..slots {
            let state = &self.clients.table.slots[self.clients.table.slot_at(index, slot)];
            if picked & 1 << slot != 0 {
                cancelled += 1;
                let execution = if state.may_have_run() { Execution::MayHaveRun } else { Execution::NeverSent };
                self.finish(index, slot, Err((cause, execution)));
            }
        }
        cancelled
    }
}
