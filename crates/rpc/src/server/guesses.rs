//! Guesses at the tokens of sessions: who sends from a client's address, and does not know the session's 40 bits, may try them one by
//! one.
//!
//! Only packets that come from the session's own peer could ever be right, so misses are counted for each session and its peer. While there
//! are many, what was guessed right must also fit what came before: a request has one of the numbers that come next in its slot. A client's own
//! requests have one, so that it goes on as before, but for the first request of a slot, which waits for the end of the guessing. It need not be
//! the very next: calls that were cancelled, or whose deadlines passed, before they arrived have had numbers, too.

use sinew_fabric::Peer;
use sinew_wire::{CallName, SessionKey};

use super::Servers;
use crate::shared::Shared;
use crate::table::SlotId;

/// So many misses in a second are no late packets of a session that was there before. At this rate all tokens take 34 years.
const MISSES_MAX: u32 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;
/// So many calls in a row, less one, may never have come over a slot.
const NUMBERS_AHEAD: u64 = 64;

/// Misses of a session's token.
#[derive(Default)]
pub(super) struct Guesses {
    since_ns: u64,
    misses: u32,
    pub is_guarded: bool,
}

impl Servers {
    /// Notes that a packet named a session whose token it did not know.
    #[cold]
    pub fn note_miss(&mut self, shared: &mut Shared, key: SessionKey, from: Peer) {
        shared.stats.token_misses += 1;
        let index = key.index();
        let (Some(session), Some(cold)) = (self.table.entries.get_mut(index), self.cold.get_mut(index)) else { return };
        if session.peer != from || session.key.index() != index {
            return;
        }
        if shared.now_ns.saturating_sub(cold.guesses.since_ns) >= SECOND_NS {
            // A second with few of them is the end of the guessing.
            cold.guesses.is_guarded &= cold.guesses.misses > MISSES_MAX;
            (cold.guesses.since_ns, cold.guesses.misses) = (shared.now_ns, 0);
        }
        cold.guesses.misses += 1;
        // Every request is looked at closely while there are many.
        cold.guesses.is_guarded |= cold.guesses.misses > MISSES_MAX;
        self.settle(shared, index);
    }

    /// Whether a request may be a guess that hit.
    pub(super) fn may_be_guessed(&mut self, shared: &Shared, index: usize, id: SlotId, call: CallName) -> bool {
        let guesses = &mut self.cold[index].guesses;
        if !guesses.is_guarded {
            return false;
        }
        if shared.now_ns.saturating_sub(guesses.since_ns) >= 2 * SECOND_NS {
            guesses.is_guarded = false;
            self.settle(shared, index);
            return false;
        }
        let last = self.table.slots[id.at()].number;
        let furthest = last + NUMBERS_AHEAD * self.table.slots_per_entry() as u64;
        last == 0 || !(last..=furthest).contains(&call.number)
    }
}
