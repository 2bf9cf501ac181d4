//! The sequencer of atomics: clients add to a word of the server's memory, without its processor (atc16 4.2.3).
//!
//! It is here for comparison. On NICs it is the slowest by far, since a NIC's units lock the word for as long as PCIe
//! takes; over shared memory there is no such lock, and the atomic is the processor's own. Besides, a client can add
//! anything to the word, so clients must be trusted, and only its type limits the count of a range. The word wraps
//! around at the end of the numbers; a client accepts no number below earlier ones, and the server can tell
//! ([`SequencerWord::is_exhausted`]).

use std::collections::VecDeque;

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Exposed, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair,
    RemoteMemory, Request, ThreadDomain, Transport, VerbsError,
};
use sinew_mem::{Arena, MessageBuffer};

use crate::client::{Answer, Client, Numbers};
use crate::error::{CallError, ClientError, Refusal, RequestError};
use crate::sequence::LAST;

/// Completions taken in one poll.
const BURST: usize = 64;
/// Length of the word, in bytes.
const WORD: usize = 8;

/// The server's part: the word. Its queue pairs, one for each client, need no receives, and need not be driven where a
/// device serves atomics by itself.
pub struct SequencerWord<E: Exposed> {
    exposed: E,
    first: u64,
}

impl<E: Exposed> SequencerWord<E> {
    /// Exposes a word in `domain`, which starts at `first`.
    ///
    /// # Errors
    ///
    /// An error of the device.
    pub fn expose<D: ProtectionDomain<Exposed = E>>(domain: &D, first: u64) -> Result<Self, VerbsError> {
        let exposed = domain.expose(WORD, Access { write: false, read: true, atomic: true })?;
        exposed.store(0, first).map_err(|error| VerbsError::Device(error.to_string()))?;
        Ok(Self { exposed, first })
    }

    /// The address of the word, which clients need.
    pub fn remote(&self) -> RemoteMemory {
        self.exposed.remote()
    }

    /// Returns the next number.
    pub fn next(&self) -> u64 {
        self.exposed.load(0).unwrap_or(u64::MAX)
    }

    /// Whether the word has passed the last number, or wrapped around: then admit no more clients.
    pub fn is_exhausted(&self) -> bool {
        !(self.first..=LAST).contains(&self.next())
    }
}

/// Makes the server's end of a client's connection. It posts and receives nothing.
///
/// # Errors
///
/// An error of the device.
pub fn server_queue_pair<T: ThreadDomain>(thread: &T, cq: &T::Cq) -> Result<T::Qp, VerbsError> {
    thread.queue_pair(&config(1), cq, cq)
}

fn config(window: usize) -> QpConfig {
    QpConfig { send_depth: window, receive_depth: 1, inline_max: 0, ..QpConfig::new(Transport::Rc) }
}

/// A client with a queue pair of its own.
pub struct AtomicsClient<T: ThreadDomain> {
    qp: T::Qp,
    cq: T::Cq,
    _thread: T,
    window: usize,
    word: Option<RemoteMemory>,
    /// A lower bound for the word's value before the next call.
    floor: u64,
    /// Buffers for the word's old values.
    targets: Vec<MessageBuffer>,
    /// Tags and counts of calls in flight, in the order in which they complete.
    in_flight: VecDeque<(u64, u32)>,
    is_pushed: bool,
    answers: VecDeque<Answer>,
    completions: Vec<Completion>,
}

impl<T: ThreadDomain> AtomicsClient<T> {
    /// Makes a client with up to `window` calls in flight, to be connected. `arena` must be one of the domain's.
    ///
    /// # Errors
    ///
    /// An error of the device, or a lack of memory.
    pub fn new(thread: T, arena: &Arena, window: usize) -> Result<Self, VerbsError> {
        let window = window.max(1);
        let cq = thread.completion_queue(window + 1)?;
        let qp = thread.queue_pair(&config(window), &cq, &cq)?;
        let targets = (0..window).map(|_| arena.alloc(WORD, WORD)).collect::<Result<_, _>>()?;
        Ok(Self {
            qp,
            cq,
            _thread: thread,
            window,
            word: None,
            floor: 0,
            targets,
            in_flight: VecDeque::with_capacity(window),
            is_pushed: false,
            answers: VecDeque::with_capacity(window),
            completions: Vec::with_capacity(BURST),
        })
    }

    /// The client's address, which the server needs.
    pub fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// Connects to the server's queue pair, to add to its word, which the server last saw at `next`.
    ///
    /// # Errors
    ///
    /// An error of the device.
    pub fn connect(&mut self, server: &QpAddress, word: RemoteMemory, next: u64) -> Result<(), VerbsError> {
        self.qp.connect(Some(server))?;
        (self.word, self.floor) = (Some(word), next);
        Ok(())
    }
}

impl<T: ThreadDomain> Client for AtomicsClient<T> {
    fn window(&self) -> usize {
        self.window
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.in_flight.len() + self.answers.len()
    }

    #[inline]
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError> {
        if count == 0 {
            return Err(RequestError::Count { asked: count, max: u32::MAX });
        }
        let full = RequestError::WindowFull { window: self.window };
        // An answer that has not been taken counts as in flight, so there is always room for it.
        let target = if self.in_flight() < self.window { self.targets.pop() } else { None };
        let target = target.ok_or(full)?;
        // An unconnected client has no word, and its queue pair refuses the request.
        let remote = self.word.unwrap_or(RemoteMemory { address: 0, rkey: 0, len: 0 });
        let operation = Operation::FetchAdd { target, remote, add: count.into() };
        match self.qp.push(Request::new(tag, operation)) {
            Ok(()) => {
                self.in_flight.push_back((tag, count));
                self.is_pushed = true;
                Ok(())
            }
            Err(refused) => {
                self.targets.extend(refused.buffers);
                Err(refused.error.into())
            }
        }
    }

    #[inline]
    fn turn(&mut self, _now_ns: u64) -> Result<bool, ClientError> {
        if std::mem::take(&mut self.is_pushed) {
            self.qp.doorbell();
        }
        self.cq.poll(&mut self.completions, BURST);
        let (mut failed, is_busy) = (None, !self.completions.is_empty());
        for completion in self.completions.drain(..) {
            // Operations complete in the order in which they were pushed.
            let Some((tag, count)) = self.in_flight.pop_front() else { break };
            let word = completion.buffers.first().and_then(|buffer| buffer.first_chunk());
            let first = word.map_or(0, |word| u64::from_ne_bytes(*word));
            let result = if !completion.status.is_success() {
                failed = Some(completion.status);
                Err(CallError::Operation(completion.status))
            } else {
                let end = first.checked_add(count.into()).filter(|_| first >= self.floor);
                // Once the word has wrapped around, its values mean nothing.
                self.floor = end.unwrap_or(u64::MAX);
                end.map(|_| Numbers { first, count }).ok_or(CallError::Refused(Refusal::Exhausted))
            };
            self.targets.extend(completion.buffers);
            self.answers.push_back(Answer { tag, result });
        }
        failed.map_or(Ok(is_busy), |status| Err(ClientError::Failed(status)))
    }

    #[inline]
    fn answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
}
