//! Guessing of session tokens: an attacker who sends from a client's address may try the session's 40 bits of token one
//! by one.
//!
//! Only packets that come from the session's own peer can ever be right, so misses are counted for each session and its
//! peer. While there are many, a request with the right token must also fit what came before: its number must be one of
//! the next in its slot. A client's own requests fit, so it goes on as before, except for the first request of a slot,
//! which waits until the guessing has ended. The number need not be the very next one: calls that were cancelled before
//! they arrived, or whose deadlines passed, have used numbers too.

use sinew_fabric::Peer;
use sinew_wire::{CallName, SessionKey};

use super::Servers;
use crate::shared::Shared;
use crate::table::SlotId;

/// Misses in a second above which they are taken for guesses, not for late packets of an earlier session. At this rate
/// it takes 34 years to try all tokens.
const MISSES_MAX: u32 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Numbers of a slot, after its last, that a request may have: those before it may be of calls that never arrived.
const NUMBERS_AHEAD: u64 = 64;

/// Counts of packets that missed a session's token.
#[derive(Default)]
pub(super) struct Guesses {
    since_ns: u64,
    misses: u32,
    pub is_guarded: bool,
}

impl Servers {
    /// Counts a packet that named a session but had a wrong token.
    #[cold]
    pub fn note_miss(&mut self, shared: &mut Shared, key: SessionKey, from: Peer) {
        shared.stats.token_misses += 1;
        let index = key.index();
        let (Some(session), Some(cold)) = (self.table.entries.get_mut(index), self.cold.get_mut(index)) else { return };
        if session.peer != from || session.key.index() != index {
            return;
        }
        if shared.now_ns.saturating_sub(cold.guesses.since_ns) >= SECOND_NS {
            // A second with few misses ends the guessing.
            cold.guesses.is_guarded &= cold.guesses.misses > MISSES_MAX;
            (cold.guesses.since_ns, cold.guesses.misses) = (shared.now_ns, 0);
        }
        cold.guesses.misses += 1;
        // While there are many misses, every request is checked closely.
        cold.guesses.is_guarded |= cold.guesses.misses > MISSES_MAX;
        self.update_short_limits(shared, index);
    }

    /// Whether a request may be a successful guess.
    pub(super) fn may_be_guess(&mut self, shared: &Shared, index: usize, id: SlotId, call: CallName) -> bool {
        let guesses = &mut self.cold[index].guesses;
        if !guesses.is_guarded {
            return false;
        }
        if shared.now_ns.saturating_sub(guesses.since_ns) >= 2 * SECOND_NS {
            guesses.is_guarded = false;
            self.update_short_limits(shared, index);
            return false;
        }
        let last = self.table.slots[id.index()].number;
        let furthest = last + NUMBERS_AHEAD * self.table.slots_per_entry() as u64;
        last == 0 || !(last..=furthest).contains(&call.number)
    }
}
