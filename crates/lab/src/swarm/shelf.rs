//! Calls that a member keeps: its program answers them later, perhaps when nobody waits any more, or lets them go.
//!
//! What they say of their clients is checked: a call is abandoned only when its client does not wait or is gone; and it is for certain
//! when the client is gone, has a later call in each of its slots, has let the call's deadline pass, or has said so and no packet was lost since.

use std::collections::BTreeMap;

use sinew_fabric::{Clock, SeededGenerator};
use sinew_rpc::{CallBackError, ClientId, DeferredCall};
use sinew_sim::SimClock;

use super::handlers::{self, Inbox};
use super::ledger::{Ledger, Moment, Shared};
use super::messages::Asked;
use super::scenario::one_of;
use crate::programs::Endpoint;

/// How long calls are kept that are not kept for as long as somebody waits for them.
const KEPT_NS: [u64; 5] = [0, 0, 30_000, 500_000, 3_000_000];
/// Of those whose clients will not wait for ever, and of those that are to be let go without an answer.
const KEPT_TO_THE_END: f64 = 0.3;
const LET_GO: f64 = 0.1;
/// With so many on the shelf, further ones are answered at once: what is kept takes memory from other calls.
const KEPT_MAX: usize = 256;
/// A turn that began so long after a deadline has ended the call: looks at many deadlines are followed by rests.
const DEADLINE_NS: u64 = 1_000_000;
/// What is not lost arrives within this time, however long the queues are.
const ARRIVAL_NS: u64 = 300_000_000;

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Answered at this time.
    Answered(u64),
    /// Let go at this time.
    LetGo(u64),
    /// Kept until nobody waits for it.
    Kept,
}

struct Kept {
    asked: Asked,
    call: DeferredCall,
    fate: Fate,
    /// When the program got it, on the cluster's clock.
    since_ns: u64,
    is_abandoned: bool,
}

/// When the endpoint's last turn began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turned {
    /// On the host's clock.
    pub host_ns: u64,
    /// On the cluster's.
    pub time_ns: u64,
}

/// See the module.
pub struct Shelf {
    host: usize,
    slots: usize,
    inbox: Inbox,
    kept: Vec<Kept>,
    generator: SeededGenerator,
    clock: SimClock,
    ledger: Shared,
}

impl Shelf {
    /// The shelf of a host with this clock, for calls of sessions with so many slots.
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

    /// When something is to be done with a call, on the host's clock.
    pub fn due_ns(&self) -> Option<u64> {
        self.kept.iter().filter_map(|kept| kept.due_ns()).min()
    }

    /// Puts on the shelf what has come since.
    pub fn take(&mut self, rpc: &mut Endpoint, time_ns: u64) {
        for (asked, call) in self.inbox.take() {
            self.put(asked, call, time_ns);
        }
        while let Some(call) = rpc.poll_request() {
            if call.is_abandoned() {
                self.ledger.lock().complain(|| format!("{call:?} is polled, and nobody waits for it"));
            }
            let asked = handlers::run(call.request(), call.client(), self.host, &self.ledger);
            self.put(asked, call, time_ns);
        }
    }

    fn put(&mut self, asked: Asked, call: DeferredCall, since_ns: u64) {
        let mut ledger = self.ledger.lock();
        ledger.kept += 1;
        let draw = &mut self.generator;
        let (may_last, delay_ns) = (draw.chance(KEPT_TO_THE_END), one_of(draw, &KEPT_NS));
        let is_full = self.kept.len() >= KEPT_MAX;
        let due_ns = self.clock.now_ns() + if is_full { 0 } else { delay_ns };
        let fate = match draw.chance(LET_GO) {
            _ if may_last && !is_full && ledger.is_impatient(asked.call) => Fate::Kept,
            true => Fate::LetGo(due_ns),
            false => Fate::Answered(due_ns),
        };
        self.kept.push(Kept { asked, call, fate, since_ns, is_abandoned: false });
    }

    /// Does what is due.
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

    fn end(&mut self, rpc: &mut Endpoint, kept: Kept) {
        let Kept { asked, call, fate, .. } = kept;
        // What it was when it came it is still, however long that was ago.
        let again = Asked::read(call.request());
        let is_same = again.is_intact && again.call == asked.call;
        if !is_same {
            self.ledger.lock().complain(|| format!("the request of call {} changed while it was kept", asked.call));
        }
        if matches!(fate, Fate::LetGo(_)) {
            self.ledger.lock().drop_unanswered(asked.call);
            return drop(call);
        }
        let answer = asked.answer();
        match self.generator.below(4) {
            0 => call.reply(&answer),
            1 => call.reply_up_to(answer.len() + 7, |_, target| {
                target[..answer.len()].copy_from_slice(&answer);
                answer.len()
            }),
            _ => rpc.reply(call, &answer),
        }
    }

    /// Looks at what calls say of their clients, after a turn that began then.
    pub fn look(&mut self, rpc: &Endpoint, now: Moment, turned: Turned) {
        let now_ns = self.clock.now_ns();
        let shared = self.ledger.clone();
        let mut ledger = shared.lock();
        let mut waited_for: BTreeMap<ClientId, usize> = BTreeMap::new();
        for kept in &mut self.kept {
            let (number, client) = (kept.asked.call, kept.call.client());
            let was_abandoned = kept.is_abandoned;
            let is_there = rpc.session_to(client) != Err(CallBackError::NoSuchClient);
            kept.is_abandoned = kept.call.is_abandoned();
            if kept.is_abandoned {
                if !was_abandoned {
                    ledger.abandon(number, is_there, now.time_ns);
                }
                if matches!(kept.fate, Fate::Kept) {
                    // Some are answered all the same.
                    let late_ns = now_ns + one_of(&mut self.generator, &KEPT_NS);
                    let answers = self.generator.chance(0.5);
                    kept.fate = if answers { Fate::Answered(late_ns) } else { Fate::LetGo(late_ns) };
                }
                continue;
            }
            *waited_for.entry(client).or_default() += 1;
            if let Some(why) = kept.must_be_abandoned(&ledger, is_there, was_abandoned, now, turned) {
                ledger.complain(|| format!("call {number}, which host {} keeps, is not abandoned, {why}", self.host));
            }
        }
        if let Some((client, calls)) = waited_for.iter().find(|(_, calls)| **calls > self.slots) {
            let (host, slots) = (self.host, self.slots);
            ledger.complain(|| format!("host {host} keeps {calls} calls of {client:?}, which has {slots} slots"));
        }
    }
}

impl Kept {
    fn due_ns(&self) -> Option<u64> {
        match self.fate {
            Fate::Answered(due_ns) | Fate::LetGo(due_ns) => Some(due_ns),
            Fate::Kept => None,
        }
    }

    /// Why it is wrong that the call is not abandoned, if it is.
    fn must_be_abandoned(
        &self,
        ledger: &Ledger,
        is_there: bool,
        was_abandoned: bool,
        now: Moment,
        turned: Turned,
    ) -> Option<&'static str> {
        if was_abandoned {
            return Some("and it was");
        }
        if !is_there {
            return Some("and its client has left");
        }
        if self.call.deadline_ns().is_some_and(|deadline_ns| turned.host_ns >= deadline_ns.saturating_add(DEADLINE_NS))
        {
            return Some("and its deadline has passed");
        }
        // Only what was said when the call was here already finds it.
        let stopped = ledger.stopped(self.asked.call).filter(|stopped| stopped.time_ns > self.since_ns)?;
        let has_come = stopped.lost == now.lost && turned.time_ns >= stopped.time_ns + ARRIVAL_NS;
        has_come.then_some("and its client has said that it does not wait")
    }
}
