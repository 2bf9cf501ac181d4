//! A server's thread: what it does with requests.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sinew::fabric::Waker;
use sinew::fabric::verbs::{Completion, CompletionQueue, Device, Opcode};

use super::link::{Domain, LinkAddress, NAP, Patience, Rig, Side, Way, is_arrival, link_of};
use super::message::{self, Exchange};
use super::plan::{Carrier, Form, Op, Plan, Wait, Work};
use crate::machine;

/// Messages of an unreliable transport that may be missing before the next that came, at most; one that fits none of them is wrong.
const LOST_MAX: u64 = 1 << 16;
/// How long messages that are on their way are waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// Orders are looked for every so many turns.
const TURNS_PER_LOOK: u32 = 64;

/// What a worker is told.
pub enum Order {
    /// Queue pairs to connect with.
    Connect(Vec<LinkAddress>),
    /// Work until the next order.
    Go,
    /// Rest, and say what came of each link's requests, of which so many were made in all.
    Check(Vec<u64>),
}

/// What it answers.
pub enum Answer {
    Addresses(Vec<LinkAddress>, Waker),
    Done,
    Checked(Findings),
}

/// What was found in memory, or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Messages that came.
    pub received: u64,
    /// Messages, or places in memory, that were looked at and did not hold what they must.
    pub wrong: u64,
    /// Places in memory that hold what an earlier WRITE of an unreliable transport left.
    pub lost: u64,
    /// Messages in memory that were looked at.
    pub looked: u64,
}

impl Findings {
    pub fn add(&mut self, other: Self) {
        self.received += other.received;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.looked += other.looked;
    }
}

/// How far a link is.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// The next message to come.
    next: u64,
    /// The same for each slot of an echo.
    slots: Vec<u64>,
    /// What was told last as a credit.
    credited: u64,
    findings: Findings,
    /// Up to which message memory was looked at.
    looked_until: u64,
    /// Answers sent.
    answers: u64,
    /// The message that was written last because it was asked for.
    written: u64,
}

struct Worker<D: Device> {
    rig: Rig<D>,
    progress: Vec<Progress>,
    credit_every: u64,
}

/// Runs a worker with `count` links, until nobody gives orders any more.
pub fn run<D: Device>(
    device: &D,
    domain: &Domain<D>,
    plan: &Plan,
    (cpu, count): (Option<usize>, usize),
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<anyhow::Result<Answer>>,
) {
    let obey = || -> anyhow::Result<()> {
        machine::pin(cpu)?;
        let mut rig = Rig::new(device, domain, plan, Side::Server, count)?;
        let addresses = rig.addresses()?;
        let waker = rig.cq.waker();
        // Nobody who asked is there any more: then there is nothing to do.
        let _ = answers.send(Ok(Answer::Addresses(addresses, waker)));
        let slots = if matches!(plan.work, Work::Echo(_)) { plan.window } else { 0 };
        let progress = Progress { slots: (0..slots as u64).collect(), ..Progress::default() };
        let credit_every = (plan.receives() as u64 / 4).max(1);
        Worker { rig, progress: vec![progress; count], credit_every }.serve(orders, answers)
    };
    if let Err(error) = obey() {
        let _ = answers.send(Err(error));
    }
}

impl<D: Device> Worker<D> {
    fn serve(
        &mut self,
        orders: &mpsc::Receiver<Order>,
        answers: &mpsc::Sender<anyhow::Result<Answer>>,
    ) -> anyhow::Result<()> {
        let (mut works, mut slept) = (false, false);
        let mut turns = 0u32;
        loop {
            turns = turns.wrapping_add(1);
            // One that has just slept was perhaps woken for an order.
            if !works || slept || turns.is_multiple_of(TURNS_PER_LOOK) {
                let answer = match orders.try_recv() {
                    Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
                    Err(mpsc::TryRecvError::Empty) => None,
                    Ok(Order::Connect(addresses)) => {
                        self.rig.connect(Side::Server, &addresses)?;
                        if self.is_passive() || self.rig.plan.fresh {
                            self.fill()?;
                        }
                        Some(Answer::Done)
                    }
                    Ok(Order::Go) => {
                        works = true;
                        Some(Answer::Done)
                    }
                    Ok(Order::Check(made)) => {
                        works = false;
                        Some(Answer::Checked(self.check(&made)?))
                    }
                };
                if let Some(answer) = answer {
                    let _ = answers.send(Ok(answer));
                }
            }
            slept = false;
            if self.turn()? == 0 {
                // Whoever only lends memory leaves the processor to others.
                let wait = match () {
                    () if !works || self.is_passive() => Wait::Events,
                    () if self.polls_memory() => Wait::Poll,
                    () => self.rig.plan.wait,
                };
                slept = self.rig.pass(wait)?;
            }
        }
    }

    fn is_passive(&self) -> bool {
        matches!(self.rig.plan.work, Work::Load(_)) && !self.rig.plan.takes_receives() && !self.rig.plan.fresh
    }

    fn polls_memory(&self) -> bool {
        matches!(self.rig.plan.work, Work::Echo(Form::Ww | Form::Ws)) || self.rig.plan.fresh
    }

    /// What READs find, and from where atomics count.
    fn fill(&mut self) -> anyhow::Result<()> {
        let layout = self.rig.layout;
        let mut message = vec![0; layout.size];
        message::write_body(&mut message);
        for link in &self.rig.links {
            let exposed = link.exposed.as_ref().context("nothing is exposed")?;
            if self.rig.plan.work == Work::Load(Op::Read) {
                for slot in 0..layout.slots {
                    message::stamp(&mut message, slot as u64 + 1);
                    exposed.write(layout.offset(slot), &message)?;
                }
            }
        }
        Ok(())
    }

    /// Looks for requests once and answers them; how many there were.
    #[inline]
    fn turn(&mut self) -> anyhow::Result<usize> {
        let mut found = 0;
        if self.rig.plan.fresh {
            return self.write_what_is_asked();
        }
        if self.polls_memory() {
            found = self.answer_writes()?;
            if !self.rig.links.iter().any(|link| link.flow.is_awaited()) {
                return Ok(found);
            }
        }
        self.rig.poll()?;
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
        // What came while an answer waited for room.
        completions.append(&mut self.rig.completions);
        self.rig.completions = completions;
        if found > 0 && self.rig.plan.has_credits() {
            self.give_credits()?;
        }
        Ok(found)
    }

    /// Writes messages that are about to be read; how many.
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

    /// Answers what was written.
    #[inline]
    fn answer_writes(&mut self) -> anyhow::Result<usize> {
        let mut found = 0;
        let layout = self.rig.layout;
        for index in 0..self.rig.links.len() {
            for slot in 0..layout.slots {
                let nth = self.progress[index].slots[slot];
                let (_, sequence) = layout.place(nth);
                let Some(exposed) = &self.rig.links[index].exposed else { continue };
                if !layout.arrived(exposed, slot, sequence, &mut self.rig.seen) {
                    continue;
                }
                found += 1;
                self.progress[index].slots[slot] = nth + layout.slots as u64;
                self.progress[index].findings.received += 1;
                let way = match self.rig.plan.work {
                    Work::Echo(Form::Ww) => Way::Write { slot, immediate: None },
                    _ => Way::Send { immediate: Some(nth as u32) },
                };
                self.answer(index, sequence, way)?;
            }
        }
        Ok(found)
    }

    #[inline]
    fn answer(&mut self, index: usize, sequence: u64, way: Way) -> anyhow::Result<()> {
        let mut patience = Patience::new(PATIENCE);
        while !self.rig.links[index].flow.has_room() {
            ensure!(!patience.is_over(), "answers to the client do not get through");
            self.rig.cq.poll(&mut self.rig.completions, 1);
            // What else came is kept for the next turn.
            let flow_completions = self
                .rig
                .completions
                .iter()
                .position(|completion| completion.status.is_success() && !is_arrival(completion.opcode));
            if let Some(at) = flow_completions {
                let completion = self.rig.completions.remove(at);
                let (index, _) = link_of(completion.id);
                self.rig.links[index].flow.completed();
            }
        }
        let signaled = self.rig.links[index].flow.is_signal_due();
        let nth = self.progress[index].answers;
        self.progress[index].answers += 1;
        self.rig.push_message(index, nth, sequence, way, signaled)?;
        self.rig.links[index].flow.pushed(signaled);
        self.rig.ring(index, way);
        Ok(())
    }

    /// Takes a message.
    #[inline]
    fn take(&mut self, index: usize, mut completion: Completion) -> anyhow::Result<()> {
        let (Some(buffer), len) = (completion.buffers.pop(), completion.len) else { return Ok(()) };
        let plan = &self.rig.plan;
        let good_len = len == plan.message_len();
        let progress = &mut self.progress[index];
        progress.findings.received += 1;
        if matches!(plan.work, Work::Echo(_)) {
            // The low half of its number is all that is needed: no window is as long.
            let low = completion.immediate.unwrap_or(0);
            let (nth, immediate) = (nearest(progress.next, low), Some(low));
            progress.next = nth;
            let (slot, sequence) = self.rig.layout.place(nth);
            let (good, way) = if completion.opcode == Opcode::ReceiveWrite {
                (self.rig.holds(index, slot, sequence)?, Way::Write { slot, immediate })
            } else {
                (message::is_good(&buffer[..len], sequence), Way::Send { immediate })
            };
            self.progress[index].findings.wrong += u64::from(!(good_len && good));
            self.rig.post_receive(index, buffer)?;
            return self.answer(index, sequence, way);
        }
        // What was written is looked at when the slice is over: by now the next may be there.
        let bytes = if completion.opcode == Opcode::ReceiveWrite { &[][..] } else { &buffer[..len] };
        match which(plan, progress.next, completion.immediate, bytes).filter(|_| good_len) {
            Some(nth) => progress.next = nth + 1,
            None => progress.findings.wrong += 1,
        }
        self.rig.post_receive(index, buffer)
    }

    /// Tells senders how far their messages were received, long before they may send no more.
    #[inline]
    fn give_credits(&mut self) -> anyhow::Result<()> {
        for index in 0..self.progress.len() {
            let Progress { next, credited, .. } = self.progress[index];
            if next >= credited + self.credit_every && self.rig.links[index].flow.has_room() {
                let signaled = self.rig.links[index].flow.is_signal_due();
                self.rig.push_credit(index, next as u32, signaled)?;
                self.progress[index].credited = next;
            }
        }
        Ok(())
    }

    /// Looks at what the requests have left.
    fn check(&mut self, made: &[u64]) -> anyhow::Result<Findings> {
        ensure!(made.len() == self.rig.links.len(), "the other side counts {} links", made.len());
        let mut patience = Patience::new(PATIENCE);
        let is_awaited = |progress: &[Progress]| {
            progress.iter().zip(made).any(|(progress, made)| progress.findings.received < *made)
        };
        // Messages may be on their way.
        let awaits = matches!(self.rig.plan.work, Work::Load(_)) && self.rig.plan.takes_receives();
        while awaits && is_awaited(&self.progress) && !patience.is_over() {
            self.turn()?;
        }
        let mut sum = Findings::default();
        for (index, &made) in made.iter().enumerate() {
            let found = self.look_at_memory(index, made)?;
            self.progress[index].findings.add(found);
            self.progress[index].looked_until = made;
            sum.add(self.progress[index].findings);
        }
        Ok(sum)
    }

    /// Looks for places in the memory of a link that do not hold what `made` requests must have left there.
    fn look_at_memory(&mut self, index: usize, made: u64) -> anyhow::Result<Findings> {
        let (layout, work) = (self.rig.layout, self.rig.plan.work);
        let mut found = Findings::default();
        let Some(exposed) = &self.rig.links[index].exposed else { return Ok(found) };
        let slots = layout.slots as u64;
        match work {
            Work::Load(Op::Write | Op::WriteImm) => {
                for nth in made.saturating_sub(slots).max(self.progress[index].looked_until)..made {
                    found.looked += 1;
                    let (slot, sequence) = layout.place(nth);
                    // On UC a completion says that the bytes have left, not that they are there.
                    let mut patience = Patience::new(NAP);
                    loop {
                        exposed.read(layout.offset(slot), &mut self.rig.seen)?;
                        if message::is_all_good(&self.rig.seen, sequence) {
                            break;
                        }
                        if patience.is_over() {
                            let may_be_lost = self.rig.plan.carrier != Carrier::Rc;
                            let is_lost = may_be_lost && message::is_mixed(&self.rig.seen, layout, nth);
                            found.wrong += u64::from(!is_lost);
                            found.lost += u64::from(is_lost);
                            break;
                        }
                    }
                }
            }
            Work::Load(Op::FetchAdd | Op::CompareSwap) => found.wrong = u64::from(exposed.load(0)? != made),
            _ => {}
        }
        Ok(found)
    }
}

/// Which message it is that came, of those that can be the next one; bytes that were written are none of it.
#[inline]
fn which(plan: &Plan, next: u64, immediate: Option<u32>, bytes: &[u8]) -> Option<u64> {
    // On a reliable connection none is lost and none overtakes another.
    let lost_max = if plan.carrier == Carrier::Rc { 0 } else { LOST_MAX };
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

    /// The bytes of the `nth` message of a plan.
    fn bytes(plan: &Plan, nth: u64) -> Vec<u8> {
        let mut message = vec![0; plan.message_len()];
        message::write_body(&mut message);
        message::stamp(&mut message, nth + 1);
        message
    }

    #[test]
    fn on_a_reliable_connection_only_the_next_message_is_right() {
        for size in [1, 7, 8, 33] {
            let plan = Plan::new(Work::Load(Op::Send), Carrier::Rc, size);
            assert_eq!(which(&plan, 10, None, &bytes(&plan, 10)), Some(10));
            for other in [9, 11, 12] {
                assert_eq!(which(&plan, 10, None, &bytes(&plan, other)), None, "{size} {other}");
            }
        }
        let plan = Plan { header_only: true, ..Plan::new(Work::Load(Op::Send), Carrier::Rc, 32) };
        assert_eq!([9, 10, 11].map(|immediate| which(&plan, 10, Some(immediate), &[])), [None, Some(10), None]);
    }

    #[test]
    fn where_messages_are_lost_a_later_one_is_right_but_no_earlier_one_and_no_byte_by_chance() {
        for (carrier, size) in [(Carrier::Uc, 1), (Carrier::Ud, 7), (Carrier::Ud, 8), (Carrier::Uc, 33)] {
            let plan = Plan::new(Work::Load(Op::Send), carrier, size);
            let came = |nth: u64, bytes: &[u8]| which(&plan, 10, plan.is_numbered().then_some(nth as u32), bytes);
            for (nth, expected) in [(9, None), (10, Some(10)), (50_000, Some(50_000)), (70_000, None)] {
                assert_eq!(came(nth, &bytes(&plan, nth)), expected, "{size} {nth}");
            }
            for at in 0..size {
                for changed in [1, 0x80] {
                    let mut wrong = bytes(&plan, 12);
                    // Of 33 bytes every one is a stamp.
                    wrong[at] ^= changed;
                    assert_eq!(came(12, &wrong), None, "{size} {at} {changed}");
                }
            }
            assert_eq!(plan.is_numbered(), size < 8);
            assert_eq!(which(&plan, 10, None, &bytes(&plan, 10)).is_none(), plan.is_numbered());
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
