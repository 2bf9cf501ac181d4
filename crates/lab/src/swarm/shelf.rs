//! Calls that a member keeps: its program answers them later, perhaps when their clients no longer wait, or drops them.
//!
//! The calls' reports about their clients are checked. A call is abandoned only if its client no longer waits or is
//! gone. It is certain to be abandoned if the client is gone, has a later call in each of its slots, has let the call's
//! deadline pass, or has said that it no longer waits and no packet was lost since.

use std::collections::BTreeMap;

use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::units::counted;
use sinew_rpc::{CallBackError, ClientId, DeferredCall};
use sinew_sim::SimClock;

use super::handlers::{self, Inbox};
use super::ledger::{Ledger, Moment, Shared};
use super::messages::ParsedRequest;
use super::scenario::one_of;
use crate::programs::Endpoint;

/// Times for which calls are kept, unless they are kept for as long as their clients wait.
const KEPT_NS: [u64; 5] = [0, 0, 30_000, 500_000, 3_000_000];
/// Share of calls from impatient clients that are kept until abandoned, and share of calls that are dropped without an
/// answer.
const KEPT_UNTIL_ABANDONED: f64 = 0.3;
const DROPPED_SHARE: f64 = 0.1;
/// Number of calls on the shelf from which further ones are answered at once, since kept calls take memory from others.
const KEPT_MAX: usize = 256;
/// A turn that begins this long after a call's deadline has ended the call: it looks at many deadlines at a time, and
/// then rests.
const DEADLINE_NS: u64 = 1_000_000;
/// A packet that is not lost arrives within this time, however long the queues are.
const ARRIVAL_NS: u64 = 300_000_000;

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is answered at this time, on the host's clock.
    Answered(u64),
    /// It is dropped at this time, on the host's clock.
    Dropped(u64),
    /// It is kept until its client no longer waits for it.
    Kept,
}

struct KeptCall {
    request: ParsedRequest,
    call: DeferredCall,
    fate: Fate,
    /// Time at which the program got it, on the cluster's clock.
    since_ns: u64,
    is_abandoned: bool,
}

/// Start of the endpoint's last turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnStart {
    /// On the host's clock.
    pub host_ns: u64,
    /// On the cluster's clock.
    pub time_ns: u64,
}

/// The calls that a member keeps.
pub struct Shelf {
    host: usize,
    slots: usize,
    inbox: Inbox,
    kept: Vec<KeptCall>,
    generator: SeededGenerator,
    clock: SimClock,
    ledger: Shared,
}

impl Shelf {
    /// The shelf of a host with this clock, for calls of sessions with `slots` slots.
    pub fn new(
        rpc: &mut Endpoint,
        host: usize,
        slots: u16,
        generator: SeededGenerator,
        clock: SimClock,
        ledger: Shared,
    ) -> Self {
        let inbox = handlers::keep(rpc, host, &ledger);
        Self { host, slots: slots.into(), inbox, kept: Vec::new(), generator, clock, ledger }
    }

    pub fn len(&self) -> usize {
        self.kept.len() + self.inbox.borrow().len()
    }

    /// When the next call is due, on the host's clock.
    pub fn due_ns(&self) -> Option<u64> {
        self.kept.iter().filter_map(|kept| kept.due_ns()).min()
    }

    /// Puts calls on the shelf that have arrived since the last time.
    pub fn take(&mut self, rpc: &mut Endpoint, time_ns: u64) {
        for (request, call) in self.inbox.take() {
            self.put(request, call, time_ns);
        }
        while let Some(call) = rpc.poll_request() {
            if call.is_abandoned() {
                self.ledger.lock().complain(|| format!("{call:?} is polled although it is abandoned"));
            }
            let request = handlers::run(call.request(), call.client(), self.host, &self.ledger);
            self.put(request, call, time_ns);
        }
    }

    fn put(&mut self, request: ParsedRequest, call: DeferredCall, since_ns: u64) {
        let mut ledger = self.ledger.lock();
        ledger.kept += 1;
        let draw = &mut self.generator;
        let (may_last, delay_ns) = (draw.chance(KEPT_UNTIL_ABANDONED), one_of(draw, &KEPT_NS));
        let is_full = self.kept.len() >= KEPT_MAX;
        let due_ns = self.clock.now_ns() + if is_full { 0 } else { delay_ns };
        let fate = match draw.chance(DROPPED_SHARE) {
            _ if may_last && !is_full && ledger.is_impatient(request.call) => Fate::Kept,
            true => Fate::Dropped(due_ns),
            false => Fate::Answered(due_ns),
        };
        self.kept.push(KeptCall { request, call, fate, since_ns, is_abandoned: false });
    }

    /// Answers or drops the calls that are due.
    pub fn serve(&mut self, rpc: &mut Endpoint) {
        let now_ns = self.clock.now_ns();
        let mut at = 0;
        while at < self.kept.len() {
            if self.kept[at].due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
                let kept = self.kept.swap_remove(at);
                self.end(rpc, kept);
            } else {
                at += 1;
            }
        }
    }

    fn end(&mut self, rpc: &mut Endpoint, kept: KeptCall) {
        let KeptCall { request, call, fate, .. } = kept;
        // The request must still be what it was when it came, however long ago that was.
        let again = ParsedRequest::read(call.request());
        let is_same = again.is_intact && again.call == request.call;
        if !is_same {
            self.ledger.lock().complain(|| format!("the request of call {} changed while it was kept", request.call));
        }
        if matches!(fate, Fate::Dropped(_)) {
            self.ledger.lock().drop_unanswered(request.call);
            return drop(call);
        }
        let answer = request.answer();
        match self.generator.below(4) {
            0 => call.reply(&answer),
            1 => call.reply_up_to(answer.len() + 7, |_, target| {
                target[..answer.len()].copy_from_slice(&answer);
                answer.len()
            }),
            _ => rpc.reply(call, &answer),
        }
    }

    /// Checks what calls report of their clients, after the turn that began at `turn_start`.
    pub fn check(&mut self, rpc: &Endpoint, now: Moment, turn_start: TurnStart) {
        let now_ns = self.clock.now_ns();
        let shared = self.ledger.clone();
        let mut ledger = shared.lock();
        let mut waiting: BTreeMap<ClientId, usize> = BTreeMap::new();
        for kept in &mut self.kept {
            let (number, client) = (kept.request.call, kept.call.client());
            let was_abandoned = kept.is_abandoned;
            let is_connected = rpc.session_to(client) != Err(CallBackError::NoSuchClient);
            kept.is_abandoned = kept.call.is_abandoned();
            if kept.is_abandoned {
                if !was_abandoned {
                    ledger.abandon(number, is_connected, now.time_ns);
                }
                if matches!(kept.fate, Fate::Kept) {
                    // Some are answered nevertheless.
                    let late_ns = now_ns + one_of(&mut self.generator, &KEPT_NS);
                    let answers = self.generator.chance(0.5);
                    kept.fate = if answers { Fate::Answered(late_ns) } else { Fate::Dropped(late_ns) };
                }
                continue;
            }
            *waiting.entry(client).or_default() += 1;
            if let Some(why) = kept.why_abandon(&ledger, is_connected, was_abandoned, now, turn_start) {
                ledger.complain(|| format!("call {number}, which host {} keeps, is not abandoned, {why}", self.host));
            }
        }
        if let Some((client, calls)) = waiting.iter().find(|(_, calls)| **calls > self.slots) {
            let (host, calls, slots) = (self.host, counted(*calls, "call"), counted(self.slots, "slot"));
            ledger.complain(|| format!("host {host} keeps {calls} of {client:?}, which has {slots}"));
        }
    }
}

impl KeptCall {
    fn due_ns(&self) -> Option<u64> {
        match self.fate {
            Fate::Answered(due_ns) | Fate::Dropped(due_ns) => Some(due_ns),
            Fate::Kept => None,
        }
    }

    /// Reason why the call should be abandoned although it is not, if there is one.
    fn why_abandon(
        &self,
        ledger: &Ledger,
        is_connected: bool,
        was_abandoned: bool,
        now: Moment,
        turn_start: TurnStart,
    ) -> Option<&'static str> {
        if was_abandoned {
            return Some("and it was");
        }
        if !is_connected {
            return Some("and its client has left");
        }
        if self
            .call
            .deadline_ns()
            .is_some_and(|deadline_ns| turn_start.host_ns >= deadline_ns.saturating_add(DEADLINE_NS))
        {
            return Some("and its deadline has passed");
        }
        // A cancellation finds a call only if it was sent after the call had come.
        let stopped = ledger.stopped(self.request.call).filter(|stopped| stopped.time_ns > self.since_ns)?;
        let has_arrived = stopped.lost == now.lost && turn_start.time_ns >= stopped.time_ns + ARRIVAL_NS;
        has_arrived.then_some("and its client has said that it does not wait")
    }
}
