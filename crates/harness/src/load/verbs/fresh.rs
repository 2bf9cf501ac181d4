//! One READ at a time, each of data that the server has written since the last one.

use anyhow::{Context, anyhow, ensure};
use sinew::fabric::Clock;
use sinew::fabric::verbs::{Device, Operation, QueuePair, Request, Source};
use sinew::host::serialize;
use sinew::mem::MessageBuffer;

use super::link::{Rig, TurnOutcome};
use super::message::Exchange;
use super::stream::{is_right, spoil};
use crate::load::Slice;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Resting,
    /// The server was asked to write; a READ looks whether it has.
    Asked,
    /// The READ that is timed, with the time when it began.
    Timed(u64),
}

pub struct Fresh {
    exchange: Exchange,
    step: Step,
    /// Buffers for the word that says what was written, and for the READ that is timed. Each is away while a READ fills
    /// it.
    word: Option<MessageBuffer>,
    target: Option<MessageBuffer>,
}

impl Fresh {
    pub fn new<D: Device>(rig: &Rig<D>) -> anyhow::Result<Self> {
        let (word, target) = (rig.arena.alloc(8, 8)?, rig.arena.alloc(rig.plan.size, rig.plan.size)?);
        let exchange = Exchange::of(rig.layout);
        Ok(Self { exchange, step: Step::Resting, word: Some(word), target: Some(target) })
    }

    #[inline]
    pub fn turn<D: Device>(
        &mut self,
        rig: &mut Rig<D>,
        clock: &impl Clock,
        may_start: bool,
        slice: &mut Slice,
    ) -> anyhow::Result<TurnOutcome> {
        let outcome = |has_returned| Ok(TurnOutcome { is_busy: has_returned, has_returned, is_drained: false });
        let sequence = rig.links[0].made + 1;
        if self.step == Step::Resting {
            if !may_start {
                return Ok(TurnOutcome { is_busy: false, has_returned: false, is_drained: true });
            }
            let source = &sequence.to_ne_bytes();
            let remote = rig.links[0].remote_at(self.exchange.asked)?;
            let operation = Operation::Write { source: Source::Inline(source), remote, immediate: None };
            post(rig, Request::new(sequence, operation).unsignaled())?;
            self.read_word(rig)?;
            self.step = Step::Asked;
        }
        if rig.poll()? == 0 {
            return outcome(false);
        }
        if self.step == Step::Asked {
            let word = self.word.insert(taken(rig)?);
            if word.first_chunk() != Some(&sequence.to_ne_bytes()) {
                self.read_word(rig)?;
                return outcome(false);
            }
            let mut target = self.target.take().context("no buffer for a result")?;
            spoil(&mut target);
            let remote = rig.links[0].remote_at(0)?;
            let operation = Operation::read(target, remote);
            let request = Request::new(sequence, operation);
            // As in the limit: keeps the reads from moving ahead of the clock, and the clock from moving ahead of the
            // wait.
            serialize();
            let began_ns = clock.now_ns();
            post(rig, request)?;
            self.step = Step::Timed(began_ns);
            if rig.poll()? == 0 {
                return outcome(false);
            }
        }
        if let Step::Timed(began_ns) = self.step {
            serialize();
            slice.latency.saturating_record((clock.now_ns() - began_ns).max(1));
            let target = self.target.insert(taken(rig)?);
            ensure!(
                is_right(target, sequence, sequence),
                "READ {sequence} did not return what is there: the fabric corrupts data"
            );
            rig.links[0].made += 1;
            slice.done += u64::from(may_start);
            self.step = Step::Resting;
        }
        outcome(true)
    }

    fn read_word<D: Device>(&mut self, rig: &mut Rig<D>) -> anyhow::Result<()> {
        let word = self.word.take().context("no buffer for a word")?;
        let remote = rig.links[0].remote_at(self.exchange.written)?;
        post(rig, Request::new(0, Operation::read(word, remote)))
    }
}

#[inline(always)]
fn post<D: Device>(rig: &mut Rig<D>, request: Request<'_>) -> anyhow::Result<()> {
    rig.links[0].qp.post(request).map_err(|refused| anyhow!("posting a request: {refused}"))
}

/// Buffer of the only READ, which has completed.
fn taken<D: Device>(rig: &mut Rig<D>) -> anyhow::Result<MessageBuffer> {
    let buffer = rig.completions.pop().and_then(|mut completion| completion.buffers.pop());
    buffer.context("a READ came back without its buffer")
}
