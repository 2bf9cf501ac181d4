//! Server's side of a measurement: answers requests, and checks them.

use std::collections::VecDeque;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use sinew::fabric::Waker;
use sinew::fabric::verbs::{Completion, CompletionQueue, Device, Opcode};

use super::link::{LinkAddress, MessageOp, Rig, is_arrival, link_of};
use super::message::{self, Exchange};
use super::mixed::MixedAnswers;
use super::plan::{EchoForm, Op, Side, TransportKind, VerbsPlan, Wait, WorkKind};
use crate::units;

/// Most messages of an unreliable transport that may be missing before the next one that arrives. A message that fits
/// none of these numbers is wrong.
const LOST_MAX: u64 = 1 << 16;

/// Findings about messages, in memory or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Messages received.
    pub received: u64,
    /// Messages, or places in memory, whose contents were wrong.
    pub wrong: u64,
    /// Places in memory that hold what an earlier WRITE of an unreliable transport left.
    pub lost: u64,
    /// Messages in memory that were checked.
    pub looked: u64,
}

impl Findings {
    /// Adds other findings.
    pub fn add(&mut self, other: Self) {
        self.received += other.received;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.looked += other.looked;
    }
}

/// Progress of a link.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Number of the next message.
    next: u64,
    /// Number of the next message in each slot of an echo.
    slots: Vec<u64>,
    /// Last credit that was sent.
    credited: u64,
    findings: Findings,
    /// Number of messages whose places in memory have been checked.
    checked_until: u64,
    /// Number of the last message that was written on request.
    written: u64,
}

impl Progress {
    /// Checks a message that was received.
    #[inline]
    fn check(&mut self, plan: &VerbsPlan, immediate: Option<u32>, bytes: &[u8]) {
        self.note(plan, immediate, bytes, bytes.len());
    }

    /// Notes a message of `len` bytes, of which these are checked.
    #[inline]
    fn note(&mut self, plan: &VerbsPlan, immediate: Option<u32>, bytes: &[u8], len: usize) {
        self.findings.received += 1;
        match identify_message(plan, self.next, immediate, bytes).filter(|_| len == plan.message_len()) {
            Some(nth) => self.next = nth + 1,
            None => self.findings.wrong += 1,
        }
    }
}

/// The queue pairs of a server's thread, and what came on them. Its owner turns it, however long nothing arrives.
pub struct Responder<D: Device> {
    rig: Rig<D>,
    progress: Vec<Progress>,
    /// Answers that wait for room in their link's queue: link, number, and operation.
    owed: VecDeque<(usize, u64, MessageOp)>,
    credit_every: u64,
    /// Link whose datagrams were looked at last.
    shown: usize,
    /// Answers to a mix of messages, if the plan has one.
    mixed: Option<MixedAnswers>,
}

impl<D: Device> Responder<D> {
    /// The side of the calling thread, with `count` links that are not connected yet, and their addresses for the other
    /// side.
    ///
    /// # Errors
    ///
    /// The device cannot do what the plan asks for, or has no room.
    pub fn new(
        device: &D,
        domain: &D::Domain,
        plan: &VerbsPlan,
        count: usize,
    ) -> anyhow::Result<(Self, Vec<LinkAddress>)> {
        let (mut rig, addresses) = Rig::new(device, domain, plan, Side::Server, count)?;
        if plan.work == WorkKind::Load(Op::Read) {
            fill(&mut rig)?;
        }
        let slots = if matches!(plan.work, WorkKind::Echo(_)) { plan.window } else { 0 };
        let progress = Progress { slots: (0..slots as u64).collect(), ..Progress::default() };
        let credit_every = (plan.receives() as u64 / 4).max(1);
        let (progress, mixed) = (vec![progress; count], plan.mix.map(|mix| MixedAnswers::new(mix, count)));
        Ok((Self { rig, progress, owed: VecDeque::new(), credit_every, shown: 0, mixed }, addresses))
    }

    /// Connects the links, in their order.
    ///
    /// # Errors
    ///
    /// The other side's addresses do not fit the plan.
    pub fn connect(&mut self, addresses: &[LinkAddress]) -> anyhow::Result<()> {
        self.rig.connect(addresses)
    }

    /// Wakes the thread from [`Self::rest`].
    pub fn waker(&self) -> Waker {
        self.rig.cq.waker()
    }

    /// Waits for requests, when the owner has nothing else to do. Returns whether it has slept.
    ///
    /// # Errors
    ///
    /// The device is gone.
    #[inline]
    pub fn rest(&mut self) -> anyhow::Result<bool> {
        let plan = &self.rig.plan;
        let is_passive = matches!(plan.work, WorkKind::Load(_)) && !plan.takes_receives() && !plan.fresh;
        // A thread that only lends memory leaves the processor to others.
        self.rig.rest(match plan.wait {
            _ if is_passive => Wait::Events,
            _ if self.polls_memory() => Wait::Poll,
            wait => wait,
        })
    }

    fn polls_memory(&self) -> bool {
        matches!(self.rig.plan.work, WorkKind::Echo(EchoForm::Ww | EchoForm::Ws)) || self.rig.plan.fresh
    }

    /// Whether what arrives are datagrams that are only checked, so that they need not leave their receives.
    fn shows_datagrams(&self) -> bool {
        let plan = &self.rig.plan;
        plan.work == WorkKind::Load(Op::Send) && plan.carrier == TransportKind::Ud
    }

    /// Polls, and checks the datagrams of the next link where they lie. Returns their number with that of the
    /// completions.
    #[inline]
    fn look_at_datagrams(&mut self) -> anyhow::Result<usize> {
        self.shown = if self.shown + 1 < self.progress.len() { self.shown + 1 } else { 0 };
        let progress = &mut self.progress[self.shown];
        self.rig.poll_messages(self.shown, |plan, message| progress.check(plan, message.immediate, message.bytes))
    }

    /// Polls for requests once, and answers them. Returns their number.
    ///
    /// # Errors
    ///
    /// A request failed, or the device is gone.
    #[inline]
    pub fn turn(&mut self) -> anyhow::Result<usize> {
        let mut found = 0;
        if let Some(mixed) = &mut self.mixed {
            return mixed.turn(&mut self.rig);
        }
        if self.rig.plan.fresh {
            return self.write_what_is_asked();
        }
        for _ in 0..self.owed.len() {
            let Some((index, sequence, message_op)) = self.owed.pop_front() else { break };
            self.answer(index, sequence, message_op)?;
        }
        if self.polls_memory() {
            found = self.answer_writes()?;
            if !self.rig.links.iter().any(|link| link.flow.is_awaited()) {
                return Ok(found);
            }
        }
        let polled = if self.shows_datagrams() { self.look_at_datagrams()? } else { self.rig.poll()? };
        if polled == 0 {
            return Ok(found);
        }
        found += polled - self.rig.completions.len();
        let mut completions = std::mem::take(&mut self.rig.completions);
        for completion in completions.drain(..) {
            let (index, _) = link_of(completion.id);
            if is_arrival(completion.opcode) {
                found += 1;
                self.take(index, completion)?;
            } else {
                self.rig.links[index].flow.completed();
            }
        }
        self.rig.completions = completions;
        if found > 0 && self.rig.plan.has_credits() {
            self.give_credits()?;
        }
        Ok(found)
    }

    /// Writes the messages that were asked for, and are about to be read. Returns their number.
    #[inline]
    fn write_what_is_asked(&mut self) -> anyhow::Result<usize> {
        let (exchange, mut found) = (Exchange::of(self.rig.layout), 0);
        for (link, progress) in self.rig.links.iter().zip(&mut self.progress) {
            let Some(exposed) = &link.exposed else { continue };
            let written = exchange.answer(exposed, &mut self.rig.message, progress.written)?;
            found += usize::from(written != progress.written);
            progress.written = written;
        }
        Ok(found)
    }

    /// Answers messages that were written.
    #[inline]
    fn answer_writes(&mut self) -> anyhow::Result<usize> {
        let (mut found, layout) = (0, self.rig.layout);
        for index in 0..self.rig.links.len() {
            for slot in 0..layout.slots {
                let nth = self.progress[index].slots[slot];
                let (_, sequence) = layout.place(nth);
                if !self.rig.has_arrived(index, slot, sequence) {
                    continue;
                }
                found += 1;
                self.progress[index].slots[slot] = nth + layout.slots as u64;
                self.progress[index].findings.received += 1;
                let message_op = match self.rig.plan.work {
                    WorkKind::Echo(EchoForm::Ww) => MessageOp::Write { slot, immediate: None },
                    _ => MessageOp::Send { immediate: Some(nth as u32) },
                };
                self.answer(index, sequence, message_op)?;
            }
        }
        Ok(found)
    }

    /// Answers a message, or queues the answer until there is room for it.
    #[inline]
    fn answer(&mut self, index: usize, sequence: u64, message_op: MessageOp) -> anyhow::Result<()> {
        if !self.rig.start(index, sequence, message_op)? {
            self.owed.push_back((index, sequence, message_op));
        }
        Ok(())
    }

    /// Takes a message that was received.
    #[inline]
    fn take(&mut self, index: usize, mut completion: Completion) -> anyhow::Result<()> {
        let is_written = completion.opcode == Opcode::ReceiveWrite;
        let progress = &mut self.progress[index];
        if matches!(self.rig.plan.work, WorkKind::Echo(_)) {
            progress.findings.received += 1;
            // The low half of its number is all that is needed, since windows are far shorter.
            let low = completion.immediate.unwrap_or(0);
            let (nth, immediate) = (nearest(progress.next, low), Some(low));
            progress.next = nth;
            progress.findings.wrong += u64::from(!self.rig.is_message(index, &completion, nth)?);
            completion.buffers.pop().map_or(Ok(()), |buffer| self.rig.post_receive(index, buffer))?;
            let (slot, sequence) = self.rig.layout.place(nth);
            let message_op =
                if is_written { MessageOp::Write { slot, immediate } } else { MessageOp::Send { immediate } };
            return self.answer(index, sequence, message_op);
        }
        let Some(buffer) = completion.buffers.pop() else { return Ok(()) };
        if is_written {
            // WRITEs are checked when the slice is over: by now the next one may have overwritten this one.
            progress.note(&self.rig.plan, completion.immediate, &[], completion.len);
        } else {
            progress.check(&self.rig.plan, completion.immediate, &buffer[..completion.len]);
        }
        self.rig.post_receive(index, buffer)
    }

    /// Tells senders how far their messages were received, long before they run out of credit.
    #[inline]
    fn give_credits(&mut self) -> anyhow::Result<()> {
        for (index, progress) in self.progress.iter_mut().enumerate() {
            if progress.next >= progress.credited + self.credit_every && self.rig.links[index].flow.has_room() {
                self.rig.push_credit(index, progress.next as u32)?;
                progress.credited = progress.next;
            }
        }
        Ok(())
    }

    /// Whether everything has arrived that the requests made on each link leave here.
    fn is_settled(&mut self, made: &[u64]) -> anyhow::Result<bool> {
        let (work, layout) = (self.rig.plan.work, self.rig.layout);
        let awaits = matches!(work, WorkKind::Load(_)) && self.rig.plan.takes_receives();
        let is_awaited = |(progress, made): (&Progress, &u64)| progress.findings.received < *made;
        if awaits && self.progress.iter().zip(made).any(is_awaited) {
            return Ok(false);
        }
        // On UC a completion says that the data was sent, not that it has arrived.
        let is_written = matches!(work, WorkKind::Load(Op::Write | Op::WriteImm));
        for (index, last) in made.iter().enumerate().filter_map(|(index, made)| Some((index, made.checked_sub(1)?))) {
            let (slot, sequence) = layout.place(last);
            if is_written && !self.rig.holds(index, slot, sequence)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks what the requests have left, given the number made on each link. Returns all findings since the
    /// beginning. While `is_patient` returns true, waits for what is still in flight.
    ///
    /// # Errors
    ///
    /// The other side counts a different number of links.
    pub fn check(&mut self, made: &[u64], mut is_patient: impl FnMut() -> bool) -> anyhow::Result<Findings> {
        ensure!(
            made.len() == self.rig.links.len(),
            "the other side counts {}, not as many as this one",
            units::counted(made.len(), "link")
        );
        while !self.is_settled(made)? && is_patient() {
            self.turn()?;
        }
        let mut sum = Findings::default();
        for (index, &made) in made.iter().enumerate() {
            let found = self.check_memory(index, made)?;
            self.progress[index].findings.add(found);
            if let Some(mixed) = &self.mixed {
                self.progress[index].findings.received = mixed.received(index);
            }
            self.progress[index].checked_until = made;
            sum.add(self.progress[index].findings);
        }
        Ok(sum)
    }

    /// Finds places in a link's memory that do not hold what `made` requests must have left there.
    fn check_memory(&mut self, index: usize, made: u64) -> anyhow::Result<Findings> {
        let (layout, mut found) = (self.rig.layout, Findings::default());
        let Some(exposed) = &self.rig.links[index].exposed else { return Ok(found) };
        match self.rig.plan.work {
            WorkKind::Load(Op::Write | Op::WriteImm) => {
                let in_place = made.saturating_sub(layout.slots as u64);
                for nth in in_place.max(self.progress[index].checked_until)..made {
                    found.looked += 1;
                    let (slot, sequence) = layout.place(nth);
                    exposed.read(layout.offset(slot), &mut self.rig.seen)?;
                    if !message::is_all_good(&self.rig.seen, sequence) {
                        let may_be_lost = self.rig.plan.carrier != TransportKind::Rc;
                        let is_lost = may_be_lost && message::is_mixed(&self.rig.seen, layout, nth);
                        found.wrong += u64::from(!is_lost);
                        found.lost += u64::from(is_lost);
                    }
                }
            }
            WorkKind::Load(Op::FetchAdd | Op::CompareSwap) => found.wrong = u64::from(exposed.load(0)? != made),
            _ => {}
        }
        Ok(found)
    }
}

/// Writes the data for READs.
fn fill<D: Device>(rig: &mut Rig<D>) -> anyhow::Result<()> {
    let Rig { links, layout, message, .. } = rig;
    for exposed in links.iter().filter_map(|link| link.exposed.as_ref()) {
        for slot in 0..layout.slots {
            message::stamp(message, slot as u64 + 1);
            exposed.write(layout.offset(slot), message)?;
        }
    }
    Ok(())
}

/// Number of the message that has arrived, among those that can be next. `bytes` is empty for a WRITE.
#[inline]
fn identify_message(plan: &VerbsPlan, next: u64, immediate: Option<u32>, bytes: &[u8]) -> Option<u64> {
    // A reliable connection loses and reorders no message.
    let lost_max = if plan.carrier == TransportKind::Rc { 0 } else { LOST_MAX };
    if !plan.is_numbered() {
        return (next..=next + lost_max).find(|&nth| message::is_good(bytes, nth + 1));
    }
    let missing = u64::from(immediate?.wrapping_sub(next as u32));
    (missing <= lost_max && message::is_good(bytes, next + missing + 1)).then_some(next + missing)
}

/// The number nearest to `around` that has these low bits.
fn nearest(around: u64, low: u32) -> u64 {
    let distance = low.wrapping_sub(around as u32) as i32;
    around.saturating_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents of the `nth` message of a plan.
    fn bytes(plan: &VerbsPlan, nth: u64) -> Vec<u8> {
        let mut message = vec![0; plan.message_len()];
        message::write_body(&mut message);
        message::stamp(&mut message, nth + 1);
        message
    }

    #[test]
    fn on_a_reliable_connection_only_the_next_message_is_right() {
        for size in [1, 7, 8, 33] {
            let plan = VerbsPlan::new(WorkKind::Load(Op::Send), TransportKind::Rc, size);
            assert_eq!(identify_message(&plan, 10, None, &bytes(&plan, 10)), Some(10));
            for other in [9, 11, 12] {
                assert_eq!(identify_message(&plan, 10, None, &bytes(&plan, other)), None, "{size} {other}");
            }
        }
        let plan = VerbsPlan { header_only: true, ..VerbsPlan::new(WorkKind::Load(Op::Send), TransportKind::Rc, 32) };
        assert_eq!(
            [9, 10, 11].map(|immediate| identify_message(&plan, 10, Some(immediate), &[])),
            [None, Some(10), None]
        );
    }

    #[test]
    fn where_messages_are_lost_a_later_one_is_right_but_no_earlier_one_and_no_byte_by_chance() {
        for (carrier, size) in
            [(TransportKind::Uc, 1), (TransportKind::Ud, 7), (TransportKind::Ud, 8), (TransportKind::Uc, 33)]
        {
            let plan = VerbsPlan::new(WorkKind::Load(Op::Send), carrier, size);
            let came =
                |nth: u64, bytes: &[u8]| identify_message(&plan, 10, plan.is_numbered().then_some(nth as u32), bytes);
            for (nth, expected) in [(9, None), (10, Some(10)), (50_000, Some(50_000)), (70_000, None)] {
                assert_eq!(came(nth, &bytes(&plan, nth)), expected, "{size} {nth}");
            }
            for at in 0..size {
                for changed in [1, 0x80] {
                    let mut wrong = bytes(&plan, 12);
                    // With 33 bytes every one belongs to a stamp.
                    wrong[at] ^= changed;
                    assert_eq!(came(12, &wrong), None, "{size} {at} {changed}");
                }
            }
            assert_eq!(plan.is_numbered(), size < 8);
            assert_eq!(identify_message(&plan, 10, None, &bytes(&plan, 10)).is_none(), plan.is_numbered());
        }
    }

    #[test]
    fn numbers_are_completed_from_their_low_half() {
        for (around, low, expected) in
            [(0, 5, 5), (5, 0, 0), ((1 << 32) - 1, 2, (1 << 32) + 2), ((1 << 32) + 2, u32::MAX, (1 << 32) - 1)]
        {
            assert_eq!(nearest(around, low), expected);
        }
    }
}
