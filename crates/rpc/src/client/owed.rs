//! Credits of calls that ended before they were answered.
//!
//! A call that is cancelled, or whose deadline passes, may have packets on their way: they lie in the server's receive queue all the same. Its
//! session has their credits back when the server answers them, which is then an answer to nobody, or when a time-out says that they, or their
//! answers, were lost. Otherwise a client that gives up calls would overrun its server, and other clients would lose packets by it.
//!
//! The server hears of such a call by a cancellation, which costs no credit: one of each session is on its way at a time. It is answered, too.

use std::collections::VecDeque;

use sinew_wire::management::{Features, Management};
use sinew_wire::{CallName, Meaning};

use super::Clients;
use crate::names::SessionId;
use crate::shared::Shared;

/// Of so many calls of a session that lack no credits the server is told; of more it is not, since that is a hint.
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
}

/// The calls of one session that ended before they were answered, the oldest first. Each has a credit or a cancellation of its own, so they are
/// not many.
#[derive(Default)]
pub(super) struct OwedCalls(Vec<Owed>);

/// When a call is looked at whose packets were not answered by then. By the time when they were noted, which is nearly that order.
#[derive(Default)]
pub(super) struct OwedUntil(VecDeque<(u64, SessionId, u64)>);

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
        owed.push(Owed { number, request_packets, sent, answered, telling });
        let (session, timeout_ns) = (self.table.entries[index].id(), self.timeout_ns(shared, index, 0));
        self.owed_until.0.push_back((shared.now_ns + timeout_ns, session, number));
        self.tell_next(shared, index);
    }

    /// Tells a server of the next call that ended here, unless it is being told of one.
    fn tell_next(&mut self, shared: &mut Shared, index: usize) {
        let owed = &mut self.cold[index].owed.0;
        if owed.iter().any(|owed| owed.telling == Telling::IsOnItsWay) {
            return;
        }
        let Some(next) = owed.iter_mut().find(|owed| owed.telling == Telling::Waits) else { return };
        next.telling = Telling::IsOnItsWay;
        let session = &self.table.entries[index];
        let name = CallName { session: session.remote_key, number: next.number, is_copy: false };
        shared.send(session.peer, Management::new(Meaning::Cancel.header(name), &[]));
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
        let Owed { request_packets, sent, answered: before, .. } = owed[at];
        let (now, is_end) = match answered(request_packets) {
            Some(answered) => (answered.clamp(before, sent), before < sent && answered >= sent),
            None => (sent, true),
        };
        owed[at].answered = now;
        if is_end {
            // A cancellation of it was answered by this, or needs no answer any more.
            owed.remove(at);
        }
        self.give_back(shared, index, now - before);
    }

    /// Gives up on answers to calls that ended long ago.
    pub(super) fn stop_waiting_for_owed(&mut self, shared: &mut Shared) {
        while let Some(&(until_ns, session, number)) = self.owed_until.0.front()
            && until_ns <= shared.now_ns
        {
            self.owed_until.0.pop_front();
            let Some(index) = self.table.find(session.key()) else { continue };
            let owed = &mut self.cold[index].owed.0;
            let Some(at) = owed.iter().position(|owed| owed.number == number) else { continue };
            if owed[at].telling == Telling::Waits {
                // Its turn has not come.
                let next_ns = shared.now_ns + self.timeout_ns(shared, index, 0);
                self.owed_until.0.push_back((next_ns, session, number));
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
