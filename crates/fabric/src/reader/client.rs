//! The reader itself: gets in flight, and their outcomes.

mod errors;
mod join;
mod window;

use std::collections::VecDeque;

pub use errors::{AskError, GetError, JoinError};
pub(super) use join::arena_bytes;
pub use join::{Joining, ReaderConfig};
use window::{InFlightGet, Stage, Window};

use super::choice::{AccessMethod, Choice, CompletionMode, GetClass};
use super::load::{Load, Meter};
use super::message::{AnswerHead, GetRequest as Asked, Refusal};
use super::object::{Object, ObjectLimits, PointerChase, locate};
use super::policy::{Policy, Sample};
use super::sleeps::Sleeps;
use crate::poller::Step;
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::time::Generator;
use crate::verbs::{
    Completion, CompletionQueue, Device, Opcode, Operation, PostError, ProtectionDomain, QpState, QueuePair,
    RemoteMemory, Request, Scatter, Source, Status, ThreadDomain,
};
use sinew_mem::{Arena, MessageBuffer};

pub(super) type Domain<D> = <D as Device>::Domain;
pub(super) type Thread<D> = <Domain<D> as ProtectionDomain>::Thread;
pub(super) type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
pub(super) type Qp<D> = <Thread<D> as ThreadDomain>::Qp;

/// The most completions taken at a time.
const BURST: usize = 32;
/// Identifier of SENDs' completions. (READs complete with their get's number, which is less.)
const SEND_ID: u64 = u64::MAX;
const RECEIVE_ID: u64 = u64::MAX - 1;

/// Outcome of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Tag that the caller gave the get.
    pub tag: u64,
    /// The object's bytes, or the reason why there are none.
    pub result: Result<&'a [u8], &'a GetError>,
    /// Choice with which the get was made, from beginning to end.
    pub choice: Choice,
    /// Time at which it was asked, in nanoseconds.
    pub asked_ns: u64,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Gets that ended.
    pub ended: usize,
    /// Whether anything was done, including steps of gets that have not ended.
    pub found: bool,
    /// Gets that are still in flight.
    pub in_flight: usize,
    /// [`Step::Spin`]: turn again at once, because something was done or a get in flight polls. [`Step::Block`]:
    /// nothing needs the thread; it may [arm](Readiness::arm) the reader and sleep.
    pub step: Step,
}

/// Counters of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Gets begun, by [`Choice::index`].
    pub begun: [u64; Choice::COUNT],
    /// Gets that found their object.
    pub found: u64,
    /// Gets that ended with an error.
    pub failed: u64,
    /// Those of the failed gets whose deadline passed.
    pub expired: u64,
    /// READs and answers that came too late, when their get had already ended.
    pub late: u64,
    /// Answers that were malformed, or for which nothing was waiting.
    pub strange: u64,
    /// Gets with which the policy tried a choice that was not in use.
    pub tries: u64,
}

/// Gets objects of one server, each in the way that is best at the moment. A reader belongs to one thread.
///
/// [`Self::get`] begins a get. [`Self::turn`], called again and again, moves all gets on and hands out those that
/// ended. Between turns the owner spins or sleeps as [`Turn::step`] says. Once warm, neither call allocates.
pub struct Reader<D: Device, C, G> {
    window: Window,
    chase: C,
    generator: G,
    policy: Policy,
    meter: Meter,
    sleeps: Sleeps,
    forced: Option<Choice>,
    regions: Vec<RemoteMemory>,
    limits: ObjectLimits,
    peer: String,
    timeout_ns: u64,
    completions: Vec<Completion>,
    /// Receive buffers whose answers were taken.
    spent: VecDeque<MessageBuffer>,
    pushed: bool,
    /// SENDs since the last signaled one, and the number after which one is signaled.
    sends: (usize, usize),
    /// Whether the thread had reason to spin after the last turn.
    was_spinning: bool,
    /// Time until which the thread may sleep, once it is armed; `Some(None)` for no limit.
    asleep_until_ns: Option<Option<u64>>,
    server_lost: Option<Status>,
    stats: ReaderStats,
    qp: Qp<D>,
    cq: Cq<D>,
    _thread: Thread<D>,
    _arena: Arena,
}

impl<D: Device, C, G> std::fmt::Debug for Reader<D, C, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, stats, server_lost, .. } = self;
        f.debug_struct("Reader")
            .field("peer", peer)
            .field("stats", stats)
            .field("lost", server_lost)
            .finish_non_exhaustive()
    }
}

impl<D: Device, C: PointerChase, G: Generator> Reader<D, C, G> {
    /// Begins a get, and returns how it is made. The get starts with the next [`Self::turn`] or [`Self::flush`], and
    /// ends in a turn, with `tag`, exactly once, by [`ReaderConfig::timeout_ns`] at the latest.
    ///
    /// # Errors
    ///
    /// [`AskError`]; nothing was begun then.
    pub fn get(&mut self, tag: u64, object: &Object, now_ns: u64) -> Result<Choice, AskError> {
        if let Some(status) = self.server_lost {
            return Err(AskError::PeerLost { peer: self.peer.clone(), status });
        }
        object.check(&self.limits)?;
        if locate(self.regions.iter().copied(), &object.start, object.access_len(0)).is_none() {
            return Err(AskError::OutOfBounds);
        }
        if !self.window.has_room() {
            return Err(AskError::Full(self.window.size()));
        }
        let class = GetClass::of(object.len, object.accesses);
        let (choice, is_chosen) = match self.forced {
            Some(choice) => (choice, false),
            None => {
                let picked = self.policy.choose(class, self.window.in_flight(), now_ns, &mut self.generator);
                self.stats.tries += u64::from(picked.is_try);
                (picked.choice, true)
            }
        };
        let place = InFlightGet {
            tag,
            object: *object,
            class,
            choice,
            is_by_policy: is_chosen,
            access: 0,
            started_ns: now_ns,
            deadline_ns: now_ns.saturating_add(self.timeout_ns),
            wasted_ns: self.meter.wasted_per_get_ns(),
            lost_ns: self.meter.load().lost_ns,
            polls_begun: 0,
            is_first_sleep: false,
            stage: Stage::Pending,
        };
        let number = self.window.begin(place);
        let pushed = match choice.method {
            AccessMethod::OneSided => self.push_read(number, object.start),
            AccessMethod::TwoSided => self.push_request(number, object),
        };
        if let Err(error) = pushed {
            self.window.abandon(number);
            if is_chosen {
                self.policy.record(class, choice, None, now_ns);
            }
            return Err(AskError::Refused(error));
        }
        self.stats.begun[choice.index()] += 1;
        Ok(choice)
    }

    fn push_read(&mut self, number: u64, from: RemoteMemory) -> Result<(), PostError> {
        let (place, spare) = self.window.with_buffer(number);
        let Some(mut buffer) = spare.take() else { return Err(PostError::QueueFull(0)) };
        let len = place.object.access_len(place.access) as usize;
        if buffer.resize(len).is_err() {
            let limit = buffer.capacity();
            *spare = Some(buffer);
            return Err(PostError::TooLong { len, limit });
        }
        let mut target = Scatter::new();
        target.push(buffer);
        match self.qp.push(Request::new(number, Operation::Read { target, remote: from })) {
            Ok(()) => {
                self.pushed = true;
                // Its completion also tells of the SENDs before it.
                self.sends.0 = 0;
                Ok(())
            }
            Err(mut refused) => {
                *spare = refused.buffers.pop();
                Err(refused.error)
            }
        }
    }

    fn push_request(&mut self, number: u64, object: &Object) -> Result<(), PostError> {
        let bytes = Asked { number, object: *object }.to_bytes();
        let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None, to: None };
        let (since, every) = self.sends;
        let signaled = since + 1 >= every;
        let request = Request { id: SEND_ID, operation, signaled, fence: false, solicited: true };
        self.qp.push(request).map_err(|refused| refused.error)?;
        self.sends.0 = if signaled { 0 } else { since + 1 };
        self.pushed = true;
        Ok(())
    }

    /// Starts what was begun. A turn does this too.
    #[inline]
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.qp.doorbell();
        }
    }

    /// Takes completions, moves the gets on, and hands `take` those that ended. Never blocks.
    ///
    /// When the server is lost, all gets end with [`GetError::PeerLost`], and no more can begin.
    pub fn turn(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> Turn {
        self.flush();
        let ended_before = self.stats.found + self.stats.failed;
        let in_flight = self.window.in_flight();
        let mut count = if self.server_lost.is_none() { self.cq.poll(&mut self.completions, BURST) } else { 0 };
        let mut found = count;
        // Before gets end: time that the thread lost is no part of what they took.
        self.measure_load(now_ns, found > 0, in_flight);
        while count > 0 {
            self.take_completions(now_ns, &mut take);
            if count < BURST || self.server_lost.is_some() {
                break;
            }
            count = self.cq.poll(&mut self.completions, BURST);
            found += count;
        }
        if self.server_lost.is_some() {
            self.drain();
        }
        if found == 0 && self.server_lost.is_none() && self.qp.state() == QpState::Error {
            self.fail_all(Status::Flushed, &mut take);
        }
        self.expire(now_ns, &mut take);
        self.repost();
        self.flush();
        let ended = (self.stats.found + self.stats.failed - ended_before) as usize;
        let step = if found > 0 || ended > 0 || self.window.polling() > 0 { Step::Spin } else { Step::Block };
        self.was_spinning = step == Step::Spin;
        Turn { ended, found: found > 0, in_flight: self.window.in_flight(), step }
    }

    /// Takes flushed completions after the server was lost, since a thread cannot sleep on the queue while they are
    /// there.
    fn drain(&mut self) {
        while self.cq.poll(&mut self.completions, BURST) > 0 {
            self.completions.clear();
        }
    }

    fn measure_load(&mut self, now_ns: u64, found: bool, in_flight: usize) {
        let slept = self.asleep_until_ns.take();
        let spun = self.was_spinning && slept.is_none();
        if let Some((last_ns, is_lost)) = self.meter.record_turn(now_ns, found, spun, in_flight) {
            self.policy.record_poll(last_ns, now_ns, is_lost);
        }
        let mut has_changed = false;
        if let Some(Some(until_ns)) = slept
            && until_ns <= now_ns
            && !found
        {
            has_changed |= self.meter.record_wake(until_ns, now_ns);
        }
        if has_changed {
            self.policy.forget();
        }
    }

    fn take_completions(&mut self, now_ns: u64, take: &mut impl FnMut(Outcome<'_>)) {
        let mut completions = std::mem::take(&mut self.completions);
        let failures = completions.iter().map(|completion| completion.status).filter(|status| !status.is_success());
        // A flushed request does not show the cause; another failure does.
        let lost = failures.min_by_key(|status| *status == Status::Flushed);
        for mut completion in completions.drain(..).filter(|completion| completion.status.is_success()) {
            let Some(buffer) = completion.buffers.pop() else { continue };
            match completion.opcode {
                Opcode::Read => self.advance(completion.id, buffer, now_ns, take),
                _ => self.take_answer(buffer, now_ns, take),
            }
        }
        self.completions = completions;
        if let Some(status) = lost {
            self.fail_all(status, take);
        }
    }

    /// Handles the completion of a READ.
    fn advance(&mut self, number: u64, buffer: MessageBuffer, now_ns: u64, take: &mut impl FnMut(Outcome<'_>)) {
        let Some(stage) = self.window.stage(number) else { return };
        if stage == Stage::Ended {
            self.stats.late += 1;
            self.window.free(number);
            return self.window.give_buffer(number, buffer);
        }
        let (place, spare) = self.window.with_buffer(number);
        let access = place.access;
        if access + 1 >= place.object.accesses {
            self.end_get(number, Ok(&buffer), now_ns, take);
            return self.window.give_buffer(number, buffer);
        }
        let next = self.chase.next(access, &buffer);
        *spare = Some(buffer);
        let error = match next {
            None => GetError::NoNext { access },
            Some(to) => {
                place.access = access + 1;
                let len = place.object.access_len(access + 1);
                if locate(self.regions.iter().copied(), &to, len).is_none() {
                    GetError::OutOfBounds { access: access + 1 }
                } else {
                    match self.push_read(number, to) {
                        Ok(()) => return,
                        Err(error) => GetError::Refused(error),
                    }
                }
            }
        };
        self.end_get(number, Err(&error), now_ns, take);
    }

    /// Handles an answer.
    fn take_answer(&mut self, buffer: MessageBuffer, now_ns: u64, take: &mut impl FnMut(Outcome<'_>)) {
        let answer = AnswerHead::from_bytes(&buffer);
        let waiting = answer.and_then(|(head, object)| {
            let stage = self.window.stage(head.number)?;
            let place = self.window.with_buffer(head.number).0;
            let is_fit = head.refusal.is_some() || object.len() == place.object.len as usize;
            (place.choice.method == AccessMethod::TwoSided && is_fit).then_some((head, object, stage))
        });
        match waiting {
            None => self.stats.strange += 1,
            Some((head, _, Stage::Ended)) => {
                self.stats.late += 1;
                self.window.free(head.number);
            }
            Some((head, object, Stage::Pending)) => {
                if let Some(is_shared) = head.is_shared {
                    self.policy.set_servers_shared(is_shared, now_ns);
                }
                let error = head.refusal.map(|(refusal, access)| refused(refusal, access.into()));
                let result = error.as_ref().map_or(Ok(object), Err);
                self.end_get(head.number, result, now_ns, take);
            }
        }
        self.spent.push_back(buffer);
    }

    /// Ends a get and frees its place.
    fn end_get(
        &mut self,
        number: u64,
        result: Result<&[u8], &GetError>,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) {
        let place = self.window.end(number);
        self.window.free(number);
        let sample = result.is_ok().then(|| Sample {
            latency_ns: now_ns.saturating_sub(place.started_ns),
            spun_ns: self.meter.wasted_per_get_ns() - place.wasted_ns,
            lost_ns: self.meter.load().lost_ns - place.lost_ns,
            is_first_sleep: place.is_first_sleep,
            is_pure: place.choice.mode == CompletionMode::Polling
                || self.window.has_not_polled_since(place.polls_begun),
        });
        self.report_result(&place, result, sample, now_ns, take);
    }

    fn report_result(
        &mut self,
        place: &InFlightGet,
        result: Result<&[u8], &GetError>,
        sample: Option<Sample>,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) {
        if place.is_by_policy {
            self.policy.record(place.class, place.choice, sample, now_ns);
        }
        match result {
            Ok(_) => self.stats.found += 1,
            Err(_) => self.stats.failed += 1,
        }
        take(Outcome { tag: place.tag, result, choice: place.choice, asked_ns: place.started_ns });
    }

    /// Ends gets whose deadline has passed. Their places become free once what they wait for has come.
    fn expire(&mut self, now_ns: u64, take: &mut impl FnMut(Outcome<'_>)) {
        if !self.window.is_any_due(now_ns) {
            return;
        }
        while let Some(number) = self.window.next_due(now_ns) {
            let place = self.window.end(number);
            let after_ns = now_ns.saturating_sub(place.started_ns);
            let error = GetError::Deadline { peer: self.peer.clone(), after_ns };
            self.stats.expired += 1;
            // A lower bound (a censored sample): without its deadline, the get would have taken at least this long.
            let sample = Sample {
                latency_ns: after_ns,
                spun_ns: self.meter.wasted_per_get_ns() - place.wasted_ns,
                lost_ns: 0,
                is_first_sleep: false,
                is_pure: true,
            };
            self.report_result(&place, Err(&error), Some(sample), now_ns, take);
        }
    }

    fn fail_all(&mut self, status: Status, take: &mut impl FnMut(Outcome<'_>)) {
        self.server_lost = Some(status);
        let error = GetError::PeerLost { peer: self.peer.clone(), status };
        while let Some(number) = self.window.any_live() {
            let place = self.window.end(number);
            self.report_result(&place, Err(&error), None, place.started_ns, take);
        }
    }

    /// Posts again the receives whose answers were taken.
    fn repost(&mut self) {
        while let Some(mut buffer) = self.spent.pop_front() {
            let whole = buffer.capacity();
            // Cannot fail: it is within the capacity.
            let _ = buffer.resize(whole);
            if let Err(mut refused) = self.qp.post_buffer(RECEIVE_ID, buffer) {
                self.spent.extend(refused.buffers.pop());
                return;
            }
        }
    }

    /// Makes all gets from now on with this choice, or as the policy picks for `None`. Gets in flight end as they
    /// began, and forced ones are not measured.
    pub fn force(&mut self, choice: Option<Choice>) {
        self.forced = choice;
    }

    /// The policy, with its measurements.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Uses of the thread's time.
    pub fn load(&self) -> &Load {
        self.meter.load()
    }

    /// Reports that the thread slept, and that what woke it happened at `ready_ns`: for owners that know, such as
    /// simulated ones. (If a sleep was to end at a deadline, the reader measures by itself how late it ended.)
    pub fn woken(&mut self, ready_ns: u64, now_ns: u64) {
        if self.meter.record_wake(ready_ns, now_ns) {
            self.policy.forget();
        }
    }

    /// Reports that the thread slept for `slept_ns`, during which its processor was idle for `idle_ns`, as the system
    /// counts it (`sinew_host::IdleTime`). Owners that can tell do so after each sleep, or after several with their
    /// sums. A reader that is told notices within a few sleeps that a program competes with it for the processor, or
    /// that the program has gone. Otherwise it learns of a program from the slices that it loses, and after the last
    /// one keeps sleeping for up to the length of 16 slices.
    pub fn slept(&mut self, slept_ns: u64, idle_ns: u64, now_ns: u64) {
        if let Some(is_shared) = self.sleeps.record_sleep(slept_ns, idle_ns) {
            self.policy.set_ours_shared(is_shared, now_ns);
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> &ReaderStats {
        &self.stats
    }

    /// Gets in flight.
    pub fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// Whether another get can begin.
    pub fn has_room(&self) -> bool {
        self.window.has_room() && self.server_lost.is_none()
    }

    /// The most that the server takes.
    pub fn limits(&self) -> &ObjectLimits {
        &self.limits
    }

    /// The regions in which the server's objects lie.
    pub fn regions(&self) -> &[RemoteMemory] {
        &self.regions
    }
}

fn refused(refusal: Refusal, access: u32) -> GetError {
    match refusal {
        Refusal::NoNext => GetError::NoNext { access },
        Refusal::OutOfBounds => GetError::OutOfBounds { access },
        other => GetError::Server(other),
    }
}

impl<D: Device, C, G> Readiness for Reader<D, C, G> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.cq.descriptor()
    }

    /// [`Armed::Ready`] while a get in flight polls; otherwise the sleep lasts no longer than to the next deadline.
    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        if std::mem::take(&mut self.pushed) {
            self.qp.doorbell();
        }
        if self.window.polling() > 0 {
            return Ok(Armed::Ready);
        }
        let deadline_ns = self.window.next_deadline_ns();
        let armed = self.cq.arm(now_ns)?.min_deadline(deadline_ns);
        if let Armed::Sleep { until_ns } = armed {
            self.asleep_until_ns = Some(until_ns);
        }
        Ok(armed)
    }

    fn disarm(&mut self) -> bool {
        self.cq.disarm()
    }
}
