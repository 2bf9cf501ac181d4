//! Echoes: messages to the server and back, one in each slot of each link.

use std::collections::VecDeque;

use anyhow::{anyhow, ensure};
use sinew::fabric::Clock;
use sinew::fabric::verbs::{Completion, Device};

use super::link::{MessageOp, Rig, TurnOutcome, is_arrival, link_of};
use super::plan::EchoForm;
use crate::load::Slice;

/// Sampling interval: the latency of one echo in this many is recorded, if several are in flight.
const SAMPLE_EVERY: u64 = 32;

#[derive(Clone, Copy)]
struct Slot {
    /// Number of the message that is in flight, or is next.
    next: u64,
    /// Whether that message is in flight.
    is_asked: bool,
    /// Time when it began, if its latency is recorded; else 0.
    began_ns: u64,
}

pub struct Echoes {
    form: EchoForm,
    /// Slots, by link and slot number.
    slots: Vec<Slot>,
    /// Slots whose next message waits for room in the queue.
    waiting: VecDeque<usize>,
    /// Messages in flight.
    left: usize,
    count: u64,
}

impl Echoes {
    pub fn new<D: Device>(rig: &Rig<D>, form: EchoForm) -> Self {
        let of_link = (0..rig.layout.slots as u64).map(|next| Slot { next, is_asked: false, began_ns: 0 });
        let slots = (0..rig.links.len()).flat_map(|_| of_link.clone()).collect();
        Self { form, slots, waiting: VecDeque::new(), left: 0, count: 0 }
    }

    pub fn begin(&mut self) {
        self.waiting = (0..self.slots.len()).collect();
    }

    #[inline]
    pub fn turn<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        clock: &impl Clock,
        may_start: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<TurnOutcome> {
        if !may_start {
            self.waiting.clear();
        }
        for _ in 0..self.waiting.len() {
            let Some(at) = self.waiting.pop_front() else { break };
            self.ask(rig, at, clock.now_ns())?;
        }
        let mut arrivals = 0;
        let polls_memory = self.form == EchoForm::Ww;
        if polls_memory {
            for at in 0..self.slots.len() {
                let (index, slot) = (at / rig.layout.slots, at % rig.layout.slots);
                let Slot { next, is_asked, .. } = self.slots[at];
                if is_asked && rig.has_arrived(index, slot, rig.layout.place(next).1) {
                    arrivals += 1;
                    self.answered(rig, clock, at, may_start, slice)?;
                }
            }
        }
        if (!polls_memory || rig.links.iter().any(|link| link.flow.is_awaited())) && rig.poll()? > 0 {
            let mut completions = std::mem::take(&mut rig.completions);
            for completion in completions.drain(..) {
                let (index, _) = link_of(completion.id);
                if is_arrival(completion.opcode) {
                    arrivals += 1;
                    let slot = self.received(rig, index, completion)?;
                    self.answered(rig, clock, slot, may_start, slice)?;
                } else {
                    rig.links[index].flow.completed();
                }
            }
            rig.completions = completions;
        }
        Ok(TurnOutcome { is_busy: arrivals > 0, has_returned: arrivals > 0, is_drained: self.left == 0 })
    }

    /// Sends the next message of a slot, or has it wait for room; `began_ns` is 0 if its latency is not recorded.
    #[inline]
    fn ask<D: Device>(&mut self, rig: &mut Rig<D>, at: usize, began_ns: u64) -> anyhow::Result<()> {
        let nth = self.slots[at].next;
        let (slot, sequence) = rig.layout.place(nth);
        let message_op = match self.form {
            EchoForm::Ss => MessageOp::Send { immediate: Some(nth as u32) },
            EchoForm::Imm => MessageOp::Write { slot, immediate: Some(nth as u32) },
            EchoForm::Ww | EchoForm::Ws => MessageOp::Write { slot, immediate: None },
        };
        if rig.start(at / rig.layout.slots, sequence, message_op)? {
            self.slots[at] = Slot { next: nth, is_asked: true, began_ns };
            self.left += 1;
        } else {
            self.waiting.push_back(at);
        }
        Ok(())
    }

    /// Handles a message that is back: sends the next one of its slot, unless the time is over.
    #[inline]
    fn answered<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        clock: &impl Clock,
        at: usize,
        goes_on: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<()> {
        self.count += 1;
        let state = &mut self.slots[at];
        state.is_asked = false;
        state.next += rig.layout.slots as u64;
        self.left -= 1;
        // One reading of the clock ends one message and begins the next.
        let is_sampled = rig.layout.slots == 1 || self.count.is_multiple_of(SAMPLE_EVERY);
        let now_ns = if is_sampled || state.began_ns > 0 { clock.now_ns() } else { 0 };
        if state.began_ns > 0 {
            slice.latency.saturating_record((now_ns - state.began_ns).max(1));
        }
        if goes_on {
            slice.done += 1;
            self.ask(rig, at, if is_sampled { now_ns } else { 0 })?;
        }
        Ok(())
    }

    /// Checks a message that has come back. Returns its slot.
    #[inline]
    fn received<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        index: usize,
        mut completion: Completion,
    ) -> anyhow::Result<usize> {
        let (slots, low) = (rig.layout.slots, completion.immediate.unwrap_or(0));
        let first = index * slots;
        // The message's slot, if its number has no high half.
        let guess = first + low as usize % slots;
        let is_it = |&at: &usize| self.slots[at].is_asked && self.slots[at].next as u32 == low;
        let found = std::iter::once(guess).chain(first..first + slots).find(is_it);
        let wrong = || anyhow!("echo {low} is not a message that was sent: the fabric corrupts data");
        let found = found.ok_or_else(wrong)?;
        ensure!(rig.is_message(index, &completion, self.slots[found].next)?, wrong());
        completion.buffers.pop().map_or(Ok(()), |buffer| rig.post_receive(index, buffer))?;
        Ok(found)
    }
}
