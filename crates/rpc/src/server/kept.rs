//! Calls that their handlers keep, to answer them later, and whether anybody still waits for them.

use std::num::NonZeroU64;
use std::sync::Arc;

use sinew_mem::atomic::{AtomicBool, Ordering};

use super::Servers;
use crate::answer::{ErrorCode, ServerCallId};
use crate::shared::Shared;
use crate::table::SlotId;

/// A call's place among [`KeptCalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptId(pub(super) u32);

/// Whether nobody waits for a call any more. Its endpoint sets this for the thread that holds the call.
#[derive(Clone, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    // Relaxed, here and below: this is a hint, and no other memory is read on the strength of it.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, is_abandoned: bool) {
        self.0.store(is_abandoned, Ordering::Relaxed);
    }

    /// Whether nobody else holds it.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

struct KeptCall {
    call: ServerCallId,
    deadline_ns: Option<u64>,
    abandoned: Abandoned,
    /// Whether a slot names this place.
    is_used: bool,
}

/// The calls that handlers keep, apart from their slots.
#[derive(Default)]
pub(super) struct KeptCalls {
    calls: Vec<KeptCall>,
    free: Vec<KeptId>,
}

impl KeptCalls {
    fn add(&mut self, call: ServerCallId, deadline_ns: Option<u64>) -> (KeptId, Abandoned) {
        let Some(id) = self.free.pop() else {
            let abandoned = Abandoned::default();
            self.calls.push(KeptCall { call, deadline_ns, abandoned: abandoned.clone(), is_used: true });
            return (KeptId(self.calls.len() as u32 - 1), abandoned);
        };
        let kept = &mut self.calls[id.0 as usize];
        // A handler may still hold the flag of the place's last call.
        if !kept.abandoned.is_free() {
            kept.abandoned = Abandoned::default();
        }
        kept.abandoned.set(false);
        (kept.call, kept.deadline_ns, kept.is_used) = (call, deadline_ns, true);
        (id, kept.abandoned.clone())
    }

    fn free(&mut self, id: KeptId) {
        self.calls[id.0 as usize].is_used = false;
        self.free.push(id);
    }
}

impl Servers {
    /// Notes that a handler keeps a call.
    pub(super) fn begin_keeping(
        &mut self,
        shared: &mut Shared,
        (call, id): (ServerCallId, SlotId),
        deadline_ns: Option<u64>,
    ) -> Abandoned {
        let (kept, abandoned) = self.kept.add(call, deadline_ns);
        shared.note_deadline(deadline_ns.and_then(NonZeroU64::new));
        self.table.slots[id.index()].set_kept(kept);
        abandoned
    }

    /// Notes that a slot's call was answered, or that its handler did not get it.
    #[inline]
    pub(super) fn end_keeping(&mut self, id: SlotId) {
        if let Some(kept) = self.table.slots[id.index()].take_kept() {
            self.kept.free(kept);
        }
    }

    /// Notes that nobody waits for the answer to a slot's call: a handler that keeps it can see that.
    #[inline]
    pub(super) fn abandon(&mut self, id: SlotId) {
        if let Some(kept) = self.table.slots[id.index()].take_kept() {
            self.kept.calls[kept.0 as usize].abandoned.set(true);
            self.kept.free(kept);
        }
    }

    /// Ends kept calls and arriving requests whose deadlines have passed; returns the next deadline.
    pub fn end_expired(&mut self, shared: &mut Shared) -> Option<u64> {
        let mut next_ns: Option<u64> = None;
        for place in 0..self.arrivals.entries_len() {
            let Some((id, deadline_ns)) = self.arrivals.deadline_of(place) else { continue };
            if deadline_ns > shared.now_ns {
                next_ns = Some(next_ns.map_or(deadline_ns, |next_ns| next_ns.min(deadline_ns)));
                continue;
            }
            shared.stats.requests_too_late += 1;
            self.end_unanswered(shared, self.table.entry_of(id), id, ErrorCode::ExpiredOnArrival);
        }
        for position in 0..self.kept.calls.len() {
            let KeptCall { call, deadline_ns: Some(deadline_ns), is_used: true, .. } = self.kept.calls[position] else {
                continue;
            };
            if deadline_ns > shared.now_ns {
                next_ns = Some(next_ns.map_or(deadline_ns, |next_ns| next_ns.min(deadline_ns)));
                continue;
            }
            if let Some(index) = self.table.find(call.key) {
                self.abandon(self.table.slot_of(index, call.number));
            }
            self.answer_error(shared, call, ErrorCode::DeadlinePassed);
        }
        next_ns
    }

    /// Number of calls that [`Self::end_expired`] checks.
    pub fn expiring(&self) -> usize {
        self.kept.calls.len() + self.arrivals.entries_len()
    }
}
