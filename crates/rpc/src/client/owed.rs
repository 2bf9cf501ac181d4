//! Credits of calls that ended before they were answered.
//!
//! A call that is cancelled, or whose deadline passes, may have packets in flight: these occupy the server's receive
//! queue all the same. Its session gets their credits back when the server answers them, although nobody waits for that
//! answer, or when a time-out shows that they, or their answers, were lost. Otherwise a client that gives up calls
//! would overrun its server, and make other clients lose packets.
//!
//! The server learns of such a call from a cancellation, which costs no credit. So a session has only one cancellation
//! in flight at a time, until it is answered or the time-out passes. (A cancellation that has overtaken its request is
//! not answered.) The other calls, and their credits, wait for their turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sinew_wire::management::{Features, Management};
use sinew_wire::{CallName, Meaning};

use super::Clients;
use crate::names::SessionId;
use crate::shared::Shared;

/// Once a session owes this many calls, a call whose credits are all back is not cancelled at the server: its
/// cancellation would be only a hint.
const OWED_HINTS_MAX: usize = 64;

/// State of the cancellation of a call that ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancellation {
    NotSent,
    Waiting,
    InFlight,
}

/// A call that ended before it was answered.
#[derive(Clone, Copy, Debug)]
struct OwedCall {
    number: u64,
    request_packets: u32,
    /// Packets of the call that left, and how many of them were answered: the session lacks the credits of the
    /// difference.
    sent: u32,
    answered: u32,
    cancellation: Cancellation,
    /// The call is waited for until this time, unless its cancellation still waits for its turn.
    until_ns: u64,
}

/// The calls of one session that ended before they were answered, oldest first. Each has credits or a cancellation of
/// its own, so they are few.
#[derive(Default)]
pub(super) struct OwedCalls(Vec<OwedCall>);

/// Times at which unanswered calls are checked, earliest first. Some of the calls will be over by then, or have a later
/// time.
#[derive(Default)]
pub(super) struct OwedUntil(BinaryHeap<Reverse<(u64, SessionId, u64)>>);

impl OwedUntil {
    pub fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((until_ns, ..))| *until_ns)
    }
}

/// Progress of a call when it ended.
#[derive(Clone, Copy)]
pub(super) struct CallProgress {
    pub request_packets: u32,
    pub sent: u32,
    pub answered: u32,
}

impl Clients {
    /// Notes that a call ended, and has the server told. The credits of its unanswered packets are kept from the
    /// session.
    pub(super) fn owe(&mut self, shared: &mut Shared, index: usize, number: u64, ended: CallProgress) {
        let CallProgress { request_packets, sent, answered } = ended;
        let is_cancellable = self.table.entries[index].features.has(Features::CANCEL);
        let cancellation = if is_cancellable { Cancellation::Waiting } else { Cancellation::NotSent };
        let owed = &mut self.cold[index].owed.0;
        if sent == answered && (!is_cancellable || owed.len() >= OWED_HINTS_MAX) {
            return;
        }
        owed.push(OwedCall { number, request_packets, sent, answered, cancellation, until_ns: 0 });
        self.wait_for_answer(shared, index, self.cold[index].owed.0.len() - 1);
        self.send_next_cancel(shared, index);
    }

    /// Waits for answers to a call for one time-out from now on.
    fn wait_for_answer(&mut self, shared: &Shared, index: usize, position: usize) {
        let until_ns = shared.now_ns.saturating_add(self.timeout_ns(shared, index, 0));
        let owed = &mut self.cold[index].owed.0[position];
        owed.until_ns = until_ns;
        self.owed_until.0.push(Reverse((until_ns, self.table.entries[index].id(), owed.number)));
    }

    /// Sends the next cancellation of a session, unless one is in flight.
    fn send_next_cancel(&mut self, shared: &mut Shared, index: usize) {
        let owed = &mut self.cold[index].owed.0;
        if owed.iter().any(|owed| owed.cancellation == Cancellation::InFlight) {
            return;
        }
        let Some(position) = owed.iter().position(|owed| owed.cancellation == Cancellation::Waiting) else { return };
        let next = &mut owed[position];
        next.cancellation = Cancellation::InFlight;
        let session = &self.table.entries[index];
        let name = CallName { session: session.remote_key, number: next.number, is_copy: false };
        shared.send(session.peer, Management::new(Meaning::Cancel.header(name), &[]));
        self.wait_for_answer(shared, index, position);
    }

    /// Handles the answer to packets of a call that is over: `answered` returns their number, given the number of
    /// request packets, or `None` for all of the call's packets.
    #[cold]
    pub(super) fn on_late_answer(
        &mut self,
        shared: &mut Shared,
        index: usize,
        number: u64,
        answered: impl FnOnce(u32) -> Option<u32>,
    ) {
        let owed = &mut self.cold[index].owed.0;
        let Some(position) = owed.iter().position(|owed| owed.number == number) else { return };
        let OwedCall { request_packets, sent, answered: answered_before, cancellation, .. } = owed[position];
        let (now, is_end) = match answered(request_packets) {
            Some(answered) => {
                // A cancellation in flight gets an answer of its own.
                (
                    answered.clamp(answered_before, sent),
                    answered >= sent && answered_before < sent && cancellation != Cancellation::InFlight,
                )
            }
            None => (sent, true),
        };
        owed[position].answered = now;
        if is_end {
            owed.remove(position);
        }
        self.return_credits(shared, index, now - answered_before);
    }

    /// Stops waiting for calls whose answers are overdue.
    pub(super) fn expire_owed(&mut self, shared: &mut Shared) {
        while let Some(&Reverse((until_ns, session, number))) = self.owed_until.0.peek()
            && until_ns <= shared.now_ns
        {
            self.owed_until.0.pop();
            let Some(index) = self.table.find(session.key()) else { continue };
            let owed = &mut self.cold[index].owed.0;
            let Some(position) = owed.iter().position(|owed| owed.number == number) else { continue };
            if owed[position].until_ns > until_ns {
                // Its cancellation was sent since.
                continue;
            }
            if owed[position].cancellation == Cancellation::Waiting {
                // Its cancellation still waits for its turn.
                self.wait_for_answer(shared, index, position);
                continue;
            }
            let OwedCall { sent, answered, .. } = owed.remove(position);
            self.return_credits(shared, index, sent - answered);
        }
    }

    /// Returns credits to a session, and sends its next cancellation.
    fn return_credits(&mut self, shared: &mut Shared, index: usize, credits: u32) {
        let session = &mut self.table.entries[index];
        session.credits += credits as u16;
        debug_assert!(session.credits <= session.credits_max);
        self.send_next_cancel(shared, index);
        self.resume_waiting(shared, index);
    }

    /// Credits of a session that calls which are over still hold.
    pub fn owed_credits(&self, index: usize) -> u16 {
        let calls = self.cold.get(index).map_or(&[][..], |cold| &cold.owed.0);
        calls.iter().map(|owed| (owed.sent - owed.answered) as u16).sum()
    }
}
