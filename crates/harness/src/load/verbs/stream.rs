//! Requests of one kind, with a window of them in flight on each link.

use anyhow::{Context, anyhow, bail, ensure};
use sinew::fabric::Clock;
use sinew::fabric::verbs::{Completion, Device, Opcode, Operation, QueuePair, RemoteMemory, Request};
use sinew::mem::MessageBuffer;

use super::link::{MessageOp, Rig, TurnOutcome, id, link_of};
use super::message;
use super::plan::{Op, POINTER, READS_MAX};
use crate::load::Slice;

/// Silence after which messages of an unreliable transport count as lost, in ns.
const LOST_AFTER_NS: u64 = 20_000_000;

pub struct Stream {
    op: Op,
    /// Messages of each link that were received, according to credits.
    credits: Vec<u64>,
    /// Time since when a link that may send no more has waited for a credit.
    blocked_ns: Vec<Option<u64>>,
    /// Messages that the other side has room for.
    receives: u64,
    /// Buffers for results of READs and atomics.
    targets: Vec<MessageBuffer>,
    /// Buffers of READs that were performed when they were posted.
    filled: Vec<MessageBuffer>,
    /// Whether each request is timed.
    times: bool,
    /// Time when the request in flight began, which is when the one before it ended.
    began_ns: Option<u64>,
}

/// Overwrites both ends of a buffer, so that an old result cannot pass for a new one.
#[inline(always)]
pub fn spoil(target: &mut [u8]) {
    let len = target.len();
    target[..len.min(8)].fill(0xEE);
    target[len - len.min(8)..].fill(0xEE);
}

/// Whether the result of the `nth` READ is message number `sequence`.
#[inline]
pub fn is_right(buffer: &[u8], nth: u64, sequence: u64) -> bool {
    if nth.is_multiple_of(message::FULL_CHECK_EVERY) {
        message::is_all_good(buffer, sequence)
    } else {
        message::is_good(buffer, sequence)
    }
}

impl Stream {
    pub fn new<D: Device>(rig: &Rig<D>, op: Op, times: bool) -> anyhow::Result<Self> {
        let (plan, count) = (&rig.plan, rig.links.len());
        let mut targets = Vec::new();
        if matches!(op, Op::Read | Op::FetchAdd | Op::CompareSwap) {
            for _ in 0..count * plan.window {
                let capacity = plan.size.max(POINTER);
                let mut target = rig.arena.alloc(capacity, capacity)?;
                target.resize(plan.size)?;
                targets.push(target);
            }
        }
        let receives = if plan.has_credits() { plan.receives() as u64 } else { u64::MAX / 2 };
        let (credits, blocked_ns) = (vec![0; count], vec![None; count]);
        let filled = Vec::with_capacity(plan.window);
        Ok(Self { op, credits, blocked_ns, receives, targets, filled, times, began_ns: None })
    }

    pub fn begin(&mut self) {
        self.blocked_ns.fill(None);
        self.began_ns = None;
    }

    #[inline]
    pub fn turn<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        clock: &impl Clock,
        (now_ns, may_start): (u64, bool),
        slice: &mut Slice,
    ) -> anyhow::Result<TurnOutcome> {
        if rig.plan.starts_together {
            return self.turn_with_lists(rig, may_start, slice);
        }
        let mut is_busy = false;
        for index in 0..rig.links.len() {
            let flow = &rig.links[index].flow;
            if may_start && flow.has_room() && self.may_send(rig, index, now_ns) {
                is_busy = true;
                if self.times {
                    self.began_ns.get_or_insert_with(|| clock.now_ns());
                }
                if rig.posts_lists() {
                    rig.post_messages(index)?;
                    continue;
                }
                for nth in 1..=rig.plan.doorbell {
                    let signaled = rig.links[index].flow.is_signal_due(nth == rig.plan.doorbell);
                    self.push(rig, index, signaled)?;
                }
                rig.links[index].qp.doorbell();
            } else if !may_start && flow.has_silent_tail() {
                // Otherwise the completion of the last requests would go unreported.
                self.push(rig, index, true)?;
                rig.links[index].qp.doorbell();
            }
        }
        let has_returned = rig.poll()? > 0;
        let done = if has_returned { self.collect(rig)? } else { 0 };
        if done > 0 && self.times {
            let done_ns = clock.now_ns();
            let began_ns = self.began_ns.replace(done_ns).unwrap_or(done_ns);
            slice.latency.saturating_record((done_ns - began_ns).max(1));
        }
        if may_start {
            slice.done += done;
        }
        let is_drained = rig.links.iter().all(|link| link.flow.in_flight == 0);
        Ok(TurnOutcome { is_busy: is_busy || has_returned, has_returned, is_drained })
    }

    /// Starts all READs for which there is room on each link. Those that the device performs at once are over then, and
    /// the queue is polled only for others.
    #[inline]
    fn turn_with_lists<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        may_start: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<TurnOutcome> {
        let (mut done, mut in_flight) = (0, 0);
        for index in 0..rig.links.len() {
            if may_start {
                done += self.post_reads(rig, index)?;
            }
            in_flight += rig.links[index].flow.in_flight;
        }
        if (in_flight > 0 || done == 0) && rig.poll()? > 0 {
            let collected = self.collect(rig)?;
            done += collected;
            in_flight -= collected as usize;
        }
        if may_start {
            slice.done += done;
        }
        Ok(TurnOutcome { is_busy: done > 0, has_returned: done > 0, is_drained: in_flight == 0 })
    }

    /// Posts as many READs as there is room for on a link, as a list. Returns the number of those that are over.
    #[inline]
    fn post_reads<D: Device>(&mut self, rig: &mut Rig<D>, index: usize) -> anyhow::Result<u64> {
        let Self { targets, filled, .. } = self;
        let layout = rig.layout;
        let link = &mut rig.links[index];
        let count = link.flow.room().min(targets.len());
        if count == 0 {
            return Ok(0);
        }
        let RemoteMemory { address, rkey, len } = link.remote.context("the other side exposes no memory")?;
        let first = link.made;
        let reads = (first..first + count as u64).zip(targets.drain(targets.len() - count..)).map(|(nth, target)| {
            let mut target = target;
            spoil(&mut target);
            let offset = layout.offset(layout.place(nth).0) as u64;
            // The other side's memory has room for the whole layout, and the device checks bounds.
            let remote = RemoteMemory { address: address.wrapping_add(offset), rkey, len: len.saturating_sub(offset) };
            (id(index, nth * READS_MAX as u64), target, remote)
        });
        let mut wrong = None;
        let posted = link.qp.post_reads(reads, |id, target| {
            let nth = link_of(id).1 / READS_MAX as u64;
            if !is_right(&target, nth, nth % layout.slots as u64 + 1) {
                wrong = Some(nth);
            }
            filled.push(target);
        });
        posted.map_err(|refused| anyhow!("posting READs after {first}: {refused}"))?;
        if let Some(nth) = wrong {
            bail!("READ {nth} did not return what is there: the fabric corrupts data");
        }
        let done = filled.len();
        targets.append(filled);
        link.made += count as u64;
        link.flow.in_flight += count - done;
        Ok(done as u64)
    }

    /// Whether the other side has room for a batch on a link.
    #[inline(always)]
    fn may_send<D: Device>(&mut self, rig: &Rig<D>, index: usize, now_ns: u64) -> bool {
        let made = rig.links[index].made;
        if made + rig.plan.doorbell as u64 <= self.credits[index] + self.receives {
            self.blocked_ns[index] = None;
            return true;
        }
        let since_ns = *self.blocked_ns[index].get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) > LOST_AFTER_NS {
            // Messages that were lost at the end of the window are never credited.
            self.credits[index] = made;
        }
        false
    }

    /// Pushes the next request of a link.
    #[inline]
    fn push<D: Device>(&mut self, rig: &mut Rig<D>, index: usize, signaled: bool) -> anyhow::Result<()> {
        let nth = rig.links[index].made;
        match self.op {
            Op::Send => {
                let immediate = rig.plan.is_numbered().then_some(nth as u32);
                return rig.push_message(index, nth + 1, MessageOp::Send { immediate }, signaled);
            }
            Op::Write | Op::WriteImm => {
                let (slot, sequence) = rig.layout.place(nth);
                let immediate = (self.op == Op::WriteImm).then_some(nth as u32);
                return rig.push_message(index, sequence, MessageOp::Write { slot, immediate }, signaled);
            }
            Op::Read => {
                let target = self.targets.pop().context("no buffer for a result")?;
                push_read(rig, index, nth, 0, target, signaled)?;
            }
            Op::FetchAdd | Op::CompareSwap => {
                let mut target = self.targets.pop().context("no buffer for a result")?;
                spoil(&mut target);
                let link = &mut rig.links[index];
                let remote = link.remote.context("the other side exposes no memory")?;
                let operation = match self.op {
                    Op::FetchAdd => Operation::FetchAdd { target, remote, add: 1 },
                    _ => Operation::CompareSwap { target, remote, expected: nth, desired: nth + 1 },
                };
                let request = Request { signaled, ..Request::new(id(index, nth), operation) };
                link.qp.push(request).map_err(|refused| anyhow!("posting request {nth}: {refused}"))?;
            }
        }
        rig.links[index].made += 1;
        rig.links[index].flow.pushed(signaled);
        Ok(())
    }

    /// Takes what has arrived. Returns the number of requests that are over.
    #[inline]
    fn collect<D: Device>(&mut self, rig: &mut Rig<D>) -> anyhow::Result<u64> {
        let mut done = 0;
        let mut completions = std::mem::take(&mut rig.completions);
        for mut completion in completions.drain(..) {
            let (index, nth) = link_of(completion.id);
            match completion.opcode {
                Opcode::Receive => self.take_credit(rig, index, completion)?,
                Opcode::Read => done += self.take_read(rig, index, nth, completion)?,
                _ => {
                    done += rig.links[index].flow.completed() as u64;
                    if let Some(buffer) = completion.buffers.pop() {
                        let is_right = buffer.first_chunk().is_some_and(|word| u64::from_ne_bytes(*word) == nth);
                        ensure!(is_right, "atomic {nth} did not find {nth}: the fabric corrupts data");
                        self.targets.push(buffer);
                    }
                }
            }
        }
        rig.completions = completions;
        Ok(done)
    }

    fn take_credit<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        index: usize,
        mut completion: Completion,
    ) -> anyhow::Result<()> {
        let (known, reported) = (self.credits[index], completion.immediate.unwrap_or(0));
        let more = u64::from(reported.wrapping_sub(known as u32));
        // Whatever a peer sends, no more can be received than was made.
        if more <= rig.links[index].made - known {
            self.credits[index] += more;
            self.blocked_ns[index] = None;
        }
        completion.buffers.pop().map_or(Ok(()), |buffer| rig.post_receive(index, buffer))
    }

    /// Handles a READ that is over: starts the next one of its object, unless it was the last. Returns the number of
    /// requests that are over.
    #[inline]
    fn take_read<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        index: usize,
        id: u64,
        mut completion: Completion,
    ) -> anyhow::Result<u64> {
        let (nth, step) = (id / READS_MAX as u64, (id % READS_MAX as u64) as usize);
        let Some(buffer) = completion.buffers.pop() else { bail!("a READ came back without its buffer") };
        let sequence = nth % rig.layout.slots as u64 + 1;
        let is_last = step + 1 >= rig.plan.reads;
        let is_good = if is_last {
            is_right(&buffer, nth, sequence)
        } else {
            // The beginning of the object, as far as it goes.
            buffer.len() == POINTER && (rig.plan.size < POINTER || buffer[..] == message::first_word(sequence))
        };
        ensure!(is_good, "READ {nth} did not return what is there: the fabric corrupts data");
        if is_last {
            self.targets.push(buffer);
            return Ok(rig.links[index].flow.completed() as u64);
        }
        // It takes the place of the one before in the queue pair's flow.
        push_read(rig, index, nth, step + 1, buffer, true)?;
        rig.links[index].qp.doorbell();
        Ok(0)
    }
}

/// Pushes one of the READs of an object: those before the last have [`POINTER`] bytes.
#[inline]
fn push_read<D: Device>(
    rig: &mut Rig<D>,
    index: usize,
    nth: u64,
    step: usize,
    mut target: MessageBuffer,
    signaled: bool,
) -> anyhow::Result<()> {
    let (reads, size) = (rig.plan.reads, rig.plan.size);
    if reads > 1 {
        target.resize(if step + 1 < reads { POINTER } else { size })?;
    }
    spoil(&mut target);
    let link = &mut rig.links[index];
    let remote = link.remote_at(rig.layout.offset(rig.layout.place(nth).0))?;
    let id = id(index, nth * READS_MAX as u64 + step as u64);
    let mut request = Request::new(id, Operation::read(target, remote));
    request.signaled = signaled;
    let pushed = link.qp.push(request);
    pushed.map_err(|refused| anyhow!("posting READ {nth}: {refused}"))
}
