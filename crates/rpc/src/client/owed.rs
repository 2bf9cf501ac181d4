//! Credits of calls that ended before they were answered.
//!
//! A call that is cancelled, or whose deadline passes, may have packets on their way: they lie in the server's receive queue all the same. Its
//! session has their credits back when the server answers them, which is then an answer to nobody, or when a time-out says that they, or their
//! answers, were lost. Otherwise a client that gives up calls would overrun its server, and other clients would lose packets by it.
//!
//! The server hears of such a call by a cancellation, which costs no credit: so one of each session is on its way at a time, until it is answered or
//! the time-out passes. (One that has overtaken its request is answered with that.) The others, and their credits, wait for their turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sinew_wire::management::{Features, Management};
use sinew_wire::{CallName, Meaning};

use super::Clients;
use crate::names::SessionId;
use crate::shared::Shared;

/// With so many calls of a session that are owed, the server is told of no more that lack no credits, since that is a hint.
const TOLD_MAX: usize = 64;

/// What the server is told of a call that ended here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Not,
    Waits,
    IsOnItsWay,
}

/// A call that ended before it was answered.
#[derive(Clone, Copy, Debug)]
struct Owed {
    number: u64,
    request_packets: u32,
    /// Packets of it that left, and those of them that were answered: the rest are what its session lacks.
    sent: u32,
    answered: u32,
    telling: Telling,
    /// Until then it is waited for, unless its turn to be told has not come.
    until_ns: u64,
}

/// The calls of one session that ended before they were answered, the oldest first. Each has a credit or a cancellation of its own, so they are
/// not many.
#[derive(Default)]
pub(super) struct OwedCalls(Vec<Owed>);

/// When a call is looked at that was not answered by then, the earliest first; some are over by then, or have a later time.
#[derive(Default)]
pub(super) struct OwedUntil(BinaryHeap<Reverse<(u64, SessionId, u64)>>);

impl OwedUntil {
    pub fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((until_ns, ..))| *until_ns)
    }
}

/// How far a call had come when it ended.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub request_packets: u32,
    pub sent: u32,
    pub answered: u32,
}

impl Clients {
    /// Notes that a call ended, and has the server told. The credits of what is not answered stay away from its session.
    pub(super) fn owe(&mut self, shared: &mut Shared, index: usize, number: u64, ended: Ended) {
        let Ended { request_packets, sent, answered } = ended;
        let tells = self.table.entries[index].features.has(Features::CANCEL);
        let telling = if tells { Telling::Waits } else { Telling::Not };
        let owed = &mut self.cold[index].owed.0;
        if sent == answered && (!tells || owed.len() >= TOLD_MAX) {
            return;
        }
        owed.push(Owed { number, request_packets, sent, answered, telling, until_ns: 0 });
        self.wait_on(shared, index, self.cold[index].owed.0.len() - 1);
        self.tell_next(shared, index);
    }

    /// Waits for answers to a call for a time-out from now on.
    fn wait_on(&mut self, shared: &Shared, index: usize, at: usize) {
        let until_ns = shared.now_ns.saturating_add(self.timeout_ns(shared, index, 0));
        let owed = &mut self.cold[index].owed.0[at];
        owed.until_ns = until_ns;
        self.owed_until.0.push(Reverse((until_ns, self.table.entries[index].id(), owed.number)));
    }

    /// Tells a server of the next call that ended here, unless it is being told of one.
    fn tell_next(&mut self, shared: &mut Shared, index: usize) {
        let owed = &mut self.cold[index].owed.0;
        if owed.iter().any(|owed| owed.telling == Telling::IsOnItsWay) {
            return;
        }
        let Some(at) = owed.iter().position(|owed| owed.telling == Telling::Waits) else { return };
        let next = &mut owed[at];
        next.telling = Telling::IsOnItsWay;
        let session = &self.table.entries[index];
        let name = CallName { session: session.remote_key, number: next.number, is_copy: false };
        shared.send(session.peer, Management::new(Meaning::Cancel.header(name), &[]));
        self.wait_on(shared, index, at);
    }

    /// The server has answered packets of a call that is over: as many of its request as `answered` says of so many request packets, or all.
    #[cold]
    pub(super) fn answered_late(
        &mut self,
        shared: &mut Shared,
        index: usize,
        number: u64,
        answered: impl FnOnce(u32) -> Option<u32>,
    ) {
        let owed = &mut self.cold[index].owed.0;
        let Some(at) = owed.iter().position(|owed| owed.number == number) else { return };
        let Owed { request_packets, sent, answered: before, telling, .. } = owed[at];
        let (now, is_end) = match answered(request_packets) {
            Some(answered) => {
                // A cancellation on its way has an answer of its own.
                (answered.clamp(before, sent), answered >= sent && before < sent && telling != Telling::IsOnItsWay)
            }
            None => (sent, true),
        };
        owed[at].answered = now;
        if is_end {
            owed.remove(at);
        }
        self.give_back(shared, index, now - before);
    }

    /// Gives up on answers to calls that ended long ago.
    pub(super) fn stop_waiting_for_owed(&mut self, shared: &mut Shared) {
        while let Some(&Reverse((until_ns, session, number))) = self.owed_until.0.peek()
            && until_ns <= shared.now_ns
        {
            self.owed_until.0.pop();
            let Some(index) = self.table.find(session.key()) else { continue };
            let owed = &mut self.cold[index].owed.0;
            let Some(at) = owed.iter().position(|owed| owed.number == number) else { continue };
            if owed[at].until_ns > until_ns {
                // It was told of since.
                continue;
            }
            if owed[at].telling == Telling::Waits {
                // Its turn has not come.
                self.wait_on(shared, index, at);
                continue;
            }
            let Owed { sent, answered, .. } = owed.remove(at);
            self.give_back(shared, index, sent - answered);
        }
    }

    /// A session has credits again, and can tell the server of another call.
    fn give_back(&mut self, shared: &mut Shared, index: usize, credits: u32) {
        let session = &mut self.table.entries[index];
        session.credits += credits as u16;
        debug_assert!(session.credits <= session.credits_max);
        self.tell_next(shared, index);
        self.let_others_go(shared, index);
    }

    /// Credits of a session that calls which are over have taken along.
    pub fn owed_credits(&self, index: usize) -> u16 {
        let calls = self.cold.get(index).map_or(&[][..], |cold| &cold.owed.0);
        calls.iter().map(|owed| (owed.sent - owed.answered) as u16).sum()
    }
}
