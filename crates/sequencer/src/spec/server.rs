//! The server's side, for one thread.

use std::sync::Arc;

use arrayvec::ArrayVec;
use sinew_fabric::Waker;
use sinew_fabric::verbs::{
    Attributes, Completion, CompletionQueue, Destination, Operation, QpAddress, QpConfig, QueuePair, Request, Scatter,
    Source, Status, ThreadDomain, Transport, VerbsError,
};

use super::flow::Flow;
use super::{NUMBER_LEN, REFUSAL_LEN, qkey_of};
use crate::error::ClientError;
use crate::sequence::Sequence;

/// Requests answered with one access to the shared word, and one doorbell.
const BURST: usize = 64;

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecServerStats {
    /// Requests that got a number.
    pub answered: u64,
    /// Those among them whose guess was wrong.
    pub corrected: u64,
    /// Requests refused because no numbers were left.
    pub refused: u64,
    /// Messages dropped because they were not requests.
    pub malformed: u64,
    /// Answers that could not be sent, because their clients are gone.
    pub unsent: u64,
}

/// One thread of a Spec-S0 server: a UD queue pair, whose address clients are given.
pub struct SpecServer<T: ThreadDomain> {
    qp: T::Qp,
    sends: T::Cq,
    receives: T::Cq,
    _thread: T,
    sequence: Arc<Sequence>,
    flow: Flow,
    completions: Vec<Completion>,
    has_doorbell_per_answer: bool,
    stats: SpecServerStats,
}

impl<T: ThreadDomain> SpecServer<T> {
    /// Makes a server with room for `receives` waiting requests, over all clients; those beyond it are lost.
    /// `attributes` are the device's.
    ///
    /// # Errors
    ///
    /// An error of the device.
    pub fn new(
        thread: T,
        attributes: &Attributes,
        sequence: Arc<Sequence>,
        receives: usize,
    ) -> Result<Self, VerbsError> {
        let receive_depth = receives.clamp(1, attributes.queue_depth_max);
        let send_depth = Flow::depth_for(BURST);
        let config = QpConfig {
            send_depth,
            receive_depth,
            inline_max: NUMBER_LEN,
            qkey: qkey_of(sequence.epoch()),
            ..QpConfig::new(Transport::Ud)
        };
        let (sends, receives) = (thread.completion_queue(send_depth)?, thread.completion_queue(receive_depth)?);
        let mut qp = thread.queue_pair(&config, &sends, &receives)?;
        qp.connect(None)?;
        for _ in 0..receive_depth {
            // No buffer: a header has no data.
            qp.post_receive(0, Scatter::new()).map_err(|refused| VerbsError::Device(refused.to_string()))?;
        }
        Ok(Self {
            qp,
            sends,
            receives,
            _thread: thread,
            sequence,
            flow: Flow::new(BURST),
            completions: Vec::with_capacity(BURST),
            has_doorbell_per_answer: false,
            stats: SpecServerStats::default(),
        })
    }

    /// Rings a doorbell for each answer, as the baseline of atc16 4.2.2 does, instead of one for each burst.
    #[must_use]
    pub fn with_doorbell_per_answer(self) -> Self {
        Self { has_doorbell_per_answer: true, ..self }
    }

    /// The address that clients need.
    pub fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// Counters so far.
    pub fn stats(&self) -> SpecServerStats {
        self.stats
    }

    /// Answers the requests that have arrived, at most a burst; returns the number of messages.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: the queue pair is broken.
    #[inline]
    pub fn turn(&mut self) -> Result<usize, ClientError> {
        if self.flow.room() < BURST {
            self.collect()?;
            if self.flow.room() < BURST {
                return Ok(0);
            }
        }
        let found = self.receives.poll(&mut self.completions, BURST);
        if found == 0 {
            return Ok(0);
        }
        let mut requests = ArrayVec::<(Destination, u32), BURST>::new();
        for completion in self.completions.drain(..) {
            match (completion.from, completion.immediate) {
                (Some(from), Some(guess)) if completion.status.is_success() && completion.len == 0 => {
                    requests.push((from, guess));
                }
                _ if completion.status == Status::Flushed => {
                    return Err(ClientError::Failed(completion.status));
                }
                _ => self.stats.malformed += 1,
            }
        }
        for _ in 0..found {
            self.qp.post_receive(0, Scatter::new()).map_err(|refused| refused.error)?;
        }
        let mut batch_next = self.sequence.take(requests.len() as u64);
        for (from, guess) in requests {
            let number = match &mut batch_next {
                Some(next) => {
                    *next += 1;
                    Some(*next - 1)
                }
                None => self.sequence.take(1),
            };
            self.answer(from, guess, number);
            if self.has_doorbell_per_answer {
                self.qp.doorbell();
            }
        }
        self.qp.doorbell();
        Ok(found)
    }

    /// Takes the completions of answers.
    fn collect(&mut self) -> Result<(), ClientError> {
        self.sends.poll(&mut self.completions, BURST);
        for completion in self.completions.drain(..) {
            if !completion.status.is_success() {
                return Err(ClientError::Failed(completion.status));
            }
            self.flow.completed();
        }
        Ok(())
    }

    #[inline]
    fn answer(&mut self, to: Destination, guess: u32, number: Option<u64>) {
        let number_bytes = number.unwrap_or(0).to_le_bytes();
        let (source, immediate) = match number {
            None => (Source::Inline(&number_bytes[..REFUSAL_LEN]), None),
            Some(number) if (number >> 32) as u32 == guess => (Source::Empty, Some(number as u32)),
            Some(_) => (Source::Inline(&number_bytes), None),
        };
        let corrects = number.is_some() && immediate.is_none();
        let mut request = Request::new(0, Operation::Send { source, immediate, to: Some(to) });
        request.signaled = self.flow.is_signal_due();
        if self.qp.push(request).is_err() {
            self.stats.unsent += 1;
            return;
        }
        self.flow.pushed();
        match number {
            Some(_) => self.stats.answered += 1,
            None => self.stats.refused += 1,
        }
        self.stats.corrected += u64::from(corrects);
    }

    /// Sleeps until something may have arrived, the waker was called, or `timeout_ns` has passed.
    ///
    /// # Errors
    ///
    /// An error of the system.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        self.receives.wait(timeout_ns)
    }

    /// Ends a [`Self::wait`], from any thread.
    pub fn waker(&self) -> Waker {
        self.receives.waker()
    }
}
