//! The client's side.

use std::collections::VecDeque;

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, Operation, QpAddress, QpConfig, QueuePair, Request, Source, Status,
    ThreadDomain, Transport, VerbsError,
};
use sinew_mem::{Arena, MessageBuffer};

use super::flow::Flow;
use super::{NUMBER_LEN, REFUSAL_LEN};
use crate::client::{Answer, Client, Numbers};
use crate::error::{CallError, ClientError, Refusal, RequestError};

/// Completions taken in one poll.
const BURST: usize = 64;
/// Divisor of [`SpecConfig::lost_after_ns`]: of a pause between two turns, no more than that counts as silence.
const TURNS_PER_LOSS: u64 = 4;

/// Window and time-out of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecConfig {
    /// Calls in flight, at most. The server needs a receive for each call in flight of each client.
    pub window: usize,
    /// Silence after which all calls in flight are given up, in nanoseconds. A pause between two turns counts as at
    /// most a quarter of this.
    pub lost_after_ns: u64,
}

impl Default for SpecConfig {
    fn default() -> Self {
        Self { window: 64, lost_after_ns: 200_000_000 }
    }
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecClientStats {
    /// Answers that corrected the guess.
    pub corrected: u64,
    /// Answers dropped because they came too late or in the wrong order; their numbers are gaps.
    pub out_of_order: u64,
    /// Messages dropped because they were not answers, or not from the server.
    pub malformed: u64,
    /// Calls given up.
    pub given_up: u64,
}

/// A client with a UD queue pair of its own.
pub struct SpecClient<T: ThreadDomain> {
    qp: T::Qp,
    sends: T::Cq,
    receives: T::Cq,
    thread: T,
    arena: Arena,
    config: SpecConfig,
    to: Destination,
    flow: Flow,
    /// Calls not sent yet, and calls in flight, oldest first.
    waiting: VecDeque<u64>,
    sent: VecDeque<u64>,
    /// The upper half expected now, and the one with which all calls in `sent` were sent.
    guess: u32,
    sent_with: u32,
    /// The greatest number so far.
    last_number: Option<u64>,
    /// Time at which something last arrived, or was sent to a server that owed nothing.
    last_heard_ns: u64,
    last_turn_ns: u64,
    answers: VecDeque<Answer>,
    completions: Vec<Completion>,
    stats: SpecClientStats,
}

fn qp_config(window: usize, qkey: u32) -> QpConfig {
    QpConfig {
        send_depth: Flow::depth_for(window),
        receive_depth: window,
        inline_max: 0,
        qkey,
        ..QpConfig::new(Transport::Ud)
    }
}

impl<T: ThreadDomain> SpecClient<T> {
    /// Makes a client of the server at `server`; its first guess is the upper half of `next`. `arena` must be one of
    /// the domain's.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Address`] when there is no server; other errors of the device.
    pub fn new(thread: T, arena: Arena, server: &QpAddress, next: u64, config: SpecConfig) -> Result<Self, VerbsError> {
        let config = SpecConfig { window: config.window.max(1), ..config };
        let window = config.window;
        // Twice as deep as one queue pair needs: for a moment there are two.
        let sends = thread.completion_queue(2 * Flow::depth_for(window))?;
        let receives = thread.completion_queue(2 * window)?;
        let to = thread.destination(server)?;
        let qp = open(&thread, &arena, (&sends, &receives), &qp_config(window, to.qkey))?;
        let guess = (next >> 32) as u32;
        Ok(Self {
            qp,
            sends,
            receives,
            thread,
            arena,
            config,
            to,
            flow: Flow::new(window),
            waiting: VecDeque::with_capacity(window),
            sent: VecDeque::with_capacity(window),
            guess,
            sent_with: guess,
            last_number: None,
            last_heard_ns: 0,
            last_turn_ns: 0,
            answers: VecDeque::with_capacity(window),
            completions: Vec::with_capacity(BURST),
            stats: SpecClientStats::default(),
        })
    }

    /// Counters so far.
    pub fn stats(&self) -> SpecClientStats {
        self.stats
    }

    /// Sends the waiting calls, unless calls with another guess are in flight.
    #[inline]
    fn send(&mut self, now_ns: u64) -> Result<bool, ClientError> {
        if self.waiting.is_empty() || (self.guess != self.sent_with && !self.sent.is_empty()) {
            return Ok(false);
        }
        self.sent_with = self.guess;
        if self.sent.is_empty() {
            self.last_heard_ns = now_ns;
        }
        if self.flow.room() < self.waiting.len() {
            self.sends.poll(&mut self.completions, BURST);
            for completion in self.completions.drain(..) {
                if !completion.status.is_success() {
                    return Err(ClientError::Failed(completion.status));
                }
                self.flow.completed();
            }
        }
        let mut is_pushed = false;
        while self.flow.room() > 0
            && let Some(tag) = self.waiting.pop_front()
        {
            let operation = Operation::Send { source: Source::Empty, immediate: Some(self.guess), to: Some(self.to) };
            let mut request = Request::new(tag, operation);
            request.signaled = self.flow.is_signal_due();
            if let Err(refused) = self.qp.push(request) {
                self.waiting.push_front(tag);
                return Err(refused.error.into());
            }
            self.flow.pushed();
            self.sent.push_back(tag);
            is_pushed = true;
        }
        if is_pushed {
            self.qp.doorbell();
        }
        Ok(is_pushed)
    }

    /// Decodes a message: a number or a refusal; `None` if it is not an answer.
    #[inline]
    fn read(&self, completion: &Completion) -> Option<Result<u64, Refusal>> {
        let is_from_server = completion.from.is_some_and(|from| from.number == self.to.number);
        if !completion.status.is_success() || !is_from_server {
            return None;
        }
        match (completion.immediate, completion.len) {
            (Some(low), 0) => Some(Ok(u64::from(self.sent_with) << 32 | u64::from(low))),
            (None, NUMBER_LEN) => {
                let bytes = completion.buffers.first()?.first_chunk()?;
                Some(Ok(u64::from_le_bytes(*bytes)))
            }
            (None, REFUSAL_LEN) => Some(Err(Refusal::Exhausted)),
            _ => None,
        }
    }

    /// Processes a message and posts its buffer again.
    #[inline]
    fn take(&mut self, mut completion: Completion) -> Result<(), ClientError> {
        if completion.status == Status::Flushed {
            return Err(ClientError::Failed(completion.status));
        }
        let answer = self.read(&completion);
        if let Some(buffer) = completion.buffers.pop() {
            post(&mut self.qp, buffer)?;
        }
        let Some(answer) = answer else {
            self.stats.malformed += 1;
            return Ok(());
        };
        if let Ok(number) = answer {
            if self.last_number.is_some_and(|greatest| number <= greatest) || self.sent.is_empty() {
                self.stats.out_of_order += 1;
                return Ok(());
            }
            self.last_number = Some(number);
            self.guess = (number >> 32) as u32;
            self.stats.corrected += u64::from(completion.immediate.is_none());
        }
        // With nothing in flight, a refusal concerns no call.
        if let Some(tag) = self.sent.pop_front() {
            let result = answer.map(|first| Numbers { first, count: 1 }).map_err(CallError::Refused);
            self.answers.push_back(Answer { tag, result });
        }
        Ok(())
    }

    /// Gives up all calls in flight, and goes on with a new queue pair, which their answers do not reach.
    #[cold]
    fn give_up(&mut self, waited_ns: u64) -> Result<(), ClientError> {
        self.stats.given_up += self.sent.len() as u64;
        for tag in self.sent.drain(..) {
            self.answers.push_back(Answer { tag, result: Err(CallError::NoAnswer { waited_ns }) });
        }
        let config = qp_config(self.config.window, self.to.qkey);
        // Made before the old one is dropped, so that it cannot get the same number.
        self.qp = open(&self.thread, &self.arena, (&self.sends, &self.receives), &config)?;
        self.flow = Flow::new(self.config.window);
        Ok(())
    }
}

/// Makes a queue pair with all of its receives posted.
fn open<T: ThreadDomain>(
    thread: &T,
    arena: &Arena,
    (sends, receives): (&T::Cq, &T::Cq),
    config: &QpConfig,
) -> Result<T::Qp, VerbsError> {
    let mut qp = thread.queue_pair(config, sends, receives)?;
    qp.connect(None)?;
    for _ in 0..config.receive_depth {
        let buffer = arena.alloc(NUMBER_LEN, NUMBER_LEN)?;
        post(&mut qp, buffer).map_err(|error| VerbsError::Device(error.to_string()))?;
    }
    Ok(qp)
}

#[inline]
fn post(qp: &mut impl QueuePair, mut buffer: MessageBuffer) -> Result<(), ClientError> {
    // Cannot fail: the buffer had this length before it was shortened to the message.
    let _ = buffer.resize(NUMBER_LEN);
    qp.post_buffer(0, buffer).map_err(|refused| refused.error.into())
}

impl<T: ThreadDomain> Client for SpecClient<T> {
    fn window(&self) -> usize {
        self.config.window
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.waiting.len() + self.sent.len() + self.answers.len()
    }

    #[inline]
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError> {
        if count != 1 {
            return Err(RequestError::Count { asked: count, max: 1 });
        }
        if self.in_flight() >= self.config.window {
            return Err(RequestError::WindowFull { window: self.config.window });
        }
        self.waiting.push_back(tag);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> Result<bool, ClientError> {
        // Answers that arrived during a long pause may not be found at once, so most of it does not count as silence.
        let pause_ns =
            now_ns.saturating_sub(self.last_turn_ns).saturating_sub(self.config.lost_after_ns / TURNS_PER_LOSS);
        self.last_turn_ns = now_ns;
        self.last_heard_ns = self.last_heard_ns.saturating_add(pause_ns).min(now_ns);
        let is_sent = self.send(now_ns)?;
        let found = self.receives.poll(&mut self.completions, BURST);
        if found > 0 {
            self.last_heard_ns = now_ns;
            // Processed one by one, so that each buffer is posted again at once.
            let mut completions = std::mem::take(&mut self.completions);
            let result = completions.drain(..).try_for_each(|completion| self.take(completion));
            self.completions = completions;
            result?;
        } else if !self.sent.is_empty() && now_ns.saturating_sub(self.last_heard_ns) >= self.config.lost_after_ns {
            self.give_up(now_ns.saturating_sub(self.last_heard_ns))?;
            return Ok(true);
        }
        Ok(is_sent || found > 0)
    }

    #[inline]
    fn answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
}
