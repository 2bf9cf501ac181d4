//! The worker: finds requests, has them executed, and answers.

mod answers;
mod clients;

use std::ops::Range;
use std::slice::ChunksExactMut;
use std::sync::Arc;

use sinew_fabric::verbs::{Device, InlineOperation, PostError, ProtectionDomain, VerbsError};
use sinew_mem::SharedMemory;
use sinew_mem::atomic::plain::AtomicU64;

use crate::layout::{ANSWER_HEAD_LEN, Layout};
use crate::outbox::Outbox;
use crate::queue::{Outgoing, SendError};
use crate::server::{Change, WorkerSeed, check_answers};
use crate::service::{Request, Response, Service};
use crate::slot::{Slot, SlotDrop};
use crate::stats::WorkerStats;
use crate::{Exposed, Thread};
use answers::{AnswerRecord, Answers, KeptAnswer};
use clients::{ClientState, Clients};

/// Empty looks after which the pipeline moves without a new request (sigcomm14 4.1.1).
const NOOP_AFTER: u32 = 100;
/// Turns between two looks for news of clients.
const TURNS_PER_CHANGES: u32 = 64;
/// Turns between two searches for a retransmission, each in one slot.
const TURNS_PER_REPEAT: u32 = 8;
/// Requests in the pipeline of [`WorkerConfig::herd`].
const STAGES: usize = 2;

/// Configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Most requests executed together; 1 selects the pipeline of sigcomm14, in which they are executed one by one.
    pub batch: usize,
    /// Most requests of one client in a batch. (atc16 has 1, with many clients.)
    pub per_client: usize,
    /// UD queue pairs for answers, which are used in turn.
    pub response_queue_pairs: usize,
    /// Whether one doorbell starts all answers of a batch, instead of one for each. In either case, the first answer
    /// leaves when the last request of the batch was executed.
    pub doorbell_per_batch: bool,
    /// Longest answer that is sent inline, in bytes.
    pub inline_max: usize,
}

impl WorkerConfig {
    /// HERD as in sigcomm14.
    pub fn herd() -> Self {
        Self { batch: 1, per_client: 1, response_queue_pairs: 1, doorbell_per_batch: false, inline_max: 256 }
    }

    /// HERD as in atc16: with batches, one doorbell for each, and several queue pairs.
    pub fn herd_opt() -> Self {
        Self { batch: 32, per_client: 8, response_queue_pairs: 3, doorbell_per_batch: true, inline_max: 256 }
    }

    fn check(&self) -> Result<(), VerbsError> {
        for (what, asked, limit) in [
            ("requests of a batch", self.batch, 256),
            ("requests of a client in a batch", self.per_client, 256),
            ("response queue pairs", self.response_queue_pairs, 64),
        ] {
            if !(1..=limit).contains(&asked) {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }
}

/// A request taken from its slot.
#[derive(Clone, Copy, Debug, Default)]
struct AcceptedRequest {
    client: u32,
    /// The client's token; 0 once the client has left.
    token: u32,
    sequence: u32,
    attempt: u8,
    kind: u16,
    len: u16,
    /// The request has had its second step.
    is_advanced: bool,
    /// Its answer, once it has been executed.
    answer: KeptAnswer,
}

/// An accepted request and its job.
type Accepted<J> = (AcceptedRequest, J);

/// The places of requests, and those of their bodies.
type Places<'a, J> = (&'a mut [Accepted<J>], ChunksExactMut<'a, u8>);

impl AcceptedRequest {
    /// The request, whose body is at the start of its copy. The length was checked against that when the slot was read.
    /// Without a panic for one that is too long, the compiler can drop a service's step that does nothing.
    #[inline(always)]
    fn request<'a>(&self, copy: &'a [u8]) -> Request<'a> {
        debug_assert!(usize::from(self.len) <= copy.len());
        Request { client: self.client, kind: self.kind, body: copy.get(..usize::from(self.len)).unwrap_or_default() }
    }
}

/// A worker with its service, which serves all clients of a [`crate::Server`]. It belongs to one thread, which must
/// call [`Worker::turn`] again and again.
pub struct Worker<D: Device, S: Service> {
    outbox: Outbox<D>,
    clients: Clients,
    answers: Answers,
    thread: Thread<D>,
    memory: SharedMemory,
    layout: Layout,
    slot_len: usize,
    index: usize,
    config: WorkerConfig,
    changes: std::sync::mpsc::Receiver<Change>,
    /// A ring of requests that have not been executed yet, with each one's job.
    accepted: Vec<Accepted<S::Job>>,
    /// Index of the oldest accepted request, and their number.
    oldest: usize,
    count: usize,
    /// Accepted requests whose clients have left.
    gone: usize,
    /// Private copies of the requests' bodies.
    bodies: Vec<u8>,
    body_stride: usize,
    service: S,
    stats: WorkerStats,
    turns: u32,
    /// Empty looks in a row.
    empty_polls: u32,
    // Last, so that it is dropped last: the region stays exposed as long as anything here reads it.
    _exposed: Arc<Exposed<D>>,
}

impl<D: Device, S: Service> Worker<D, S> {
    /// Makes a worker for the calling thread.
    ///
    /// # Errors
    ///
    /// An error of the device, or [`VerbsError::Limit`].
    pub fn new(seed: WorkerSeed<D>, config: &WorkerConfig, service: S) -> Result<Self, VerbsError> {
        config.check()?;
        let WorkerSeed { device, domain, exposed, layout, index, changes } = seed;
        check_answers(&device, &layout)?;
        let thread = domain.thread()?;
        let longest = layout.response_len_max + ANSWER_HEAD_LEN;
        let outbox = Outbox::new(&device, &domain, &thread, config.response_queue_pairs, config.inline_max, longest)?;
        let capacity = config.batch.max(STAGES + 1);
        // The starts of the copies should not share sets of the cache either.
        let body_stride = (layout.request_len_max.div_ceil(64) | 1) * 64;
        Ok(Self {
            outbox,
            clients: Clients::new(&layout, index),
            answers: Answers::new(&layout),
            thread,
            memory: SharedMemory::clone(&exposed),
            layout,
            slot_len: layout.slot_len(),
            index,
            config: *config,
            changes,
            accepted: (0..capacity).map(|_| <Accepted<S::Job>>::default()).collect(),
            oldest: 0,
            count: 0,
            gone: 0,
            bodies: vec![0; capacity * body_stride],
            body_stride,
            service,
            stats: WorkerStats::default(),
            turns: 0,
            empty_polls: 0,
            _exposed: exposed,
        })
    }

    /// Counters so far.
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Polls the next slot of each client once, and executes and answers the requests found; returns the number
    /// answered. `now_ns` is for the service. Never blocks.
    #[inline]
    pub fn turn(&mut self, now_ns: u64) -> usize {
        self.turn_limited(usize::MAX, now_ns)
    }

    /// As [`Self::turn`], but the pipeline polls at most `clients` clients, in turn: the fewer clients, the more
    /// exactly the caller knows when each answer left. A batch always covers all clients.
    #[inline(always)]
    pub fn turn_limited(&mut self, clients: usize, now_ns: u64) -> usize {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CHANGES) {
            self.process_changes();
        }
        if self.turns.is_multiple_of(TURNS_PER_REPEAT) {
            self.check_for_repeat();
        }
        if self.config.batch == 1 { self.pipeline(clients, now_ns) } else { self.batch(now_ns) }
    }

    /// Whether the pipeline holds requests. Further requests, which would move them on, may never come, so keep calling
    /// [`Self::turn`] until this is false. (Turns also look for news and for retransmissions.)
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.count > 0
    }

    /// Number of clients that are polled.
    #[inline]
    pub fn clients(&self) -> usize {
        self.clients.present()
    }

    /// Collects a batch, takes it through the three steps, and answers it (atc16 4.3.1).
    #[inline(always)]
    fn batch(&mut self, now_ns: u64) -> usize {
        let WorkerConfig { batch, per_client, .. } = self.config;
        let batch_max = batch.min(self.outbox.room(&mut self.stats));
        // A batch is executed as a whole, so it begins at the ring's start.
        debug_assert_eq!((self.oldest, self.count), (0, 0));
        let (mut intake, clients, (accepted, mut bodies)) = self.intake();
        let mut places = accepted[..batch_max].iter_mut();
        let (mut place, mut count) = (places.next().zip(bodies.next()), 0);
        for _ in 0..clients.present() {
            if place.is_none() {
                break;
            }
            let client = clients.next();
            let state = clients.get_mut(client);
            for _ in 0..per_client {
                let Some(free) = &mut place else { break };
                if !intake.accept(client, state, free) {
                    break;
                }
                (place, count) = (places.next().zip(bodies.next()), count + 1);
            }
        }
        self.count = count;
        if count == 0 {
            return 0;
        }
        let bodies = self.bodies.chunks_exact(self.body_stride);
        for ((accepted, job), body) in self.accepted[..count].iter_mut().zip(bodies) {
            self.service.advance(&accepted.request(body), job);
        }
        self.execute(count, now_ns)
    }

    /// The parts that take requests from their slots, the clients, and the places for requests with their bodies.
    #[inline(always)]
    fn intake(&mut self) -> (Intake<'_, S>, &mut Clients, Places<'_, S::Job>) {
        let Self { memory, layout, service, stats, clients, accepted, bodies, .. } = self;
        let intake = Intake { words: memory.words(), layout, slot_len: self.slot_len, service, stats };
        (intake, clients, (accepted, bodies.chunks_exact_mut(self.body_stride)))
    }

    /// Runs the pipeline: each request found moves the earlier ones by one step (sigcomm14 4.1.1).
    #[inline(always)]
    fn pipeline(&mut self, clients: usize, now_ns: u64) -> usize {
        let mut answered = 0;
        for _ in 0..self.clients.present().min(clients) {
            if self.outbox.room(&mut self.stats) == 0 {
                return answered;
            }
            if self.accept_next() {
                self.empty_polls = 0;
                answered += self.step(self.count - 1, now_ns);
            } else {
                self.empty_polls = self.empty_polls.saturating_add(1);
            }
        }
        // All clients may be waiting for answers to requests in the pipeline, so it must move without a new one.
        let is_due = self.empty_polls >= NOOP_AFTER || self.clients.present() == 0;
        if self.count > 0 && is_due && self.outbox.room(&mut self.stats) > 0 {
            self.stats.noops += 1;
            answered += self.step(self.count, now_ns);
        }
        answered
    }

    /// Moves the oldest `older` requests in the pipeline one step; returns the number answered.
    #[inline(always)]
    fn step(&mut self, older: usize, now_ns: u64) -> usize {
        let ready = usize::from(older > 0 && self.accepted[self.index_of(0)].0.is_advanced);
        (ready..older).for_each(|nth| self.advance(nth));
        if ready > 0 { self.execute(ready, now_ns) } else { 0 }
    }

    /// Index of the `nth` oldest request.
    #[inline(always)]
    fn index_of(&self, nth: usize) -> usize {
        let index = self.oldest + nth;
        if index < self.accepted.len() { index } else { index - self.accepted.len() }
    }

    /// Takes the next request of the next client into the first free place of the ring, as [`Intake::accept`] does.
    #[inline(always)]
    fn accept_next(&mut self) -> bool {
        let index = self.index_of(self.count);
        let (mut intake, clients, (accepted, mut bodies)) = self.intake();
        let client = clients.next();
        let place = accepted.get_mut(index).zip(bodies.nth(index));
        let is_accepted = place.is_some_and(|mut place| intake.accept(client, clients.get_mut(client), &mut place));
        self.count += usize::from(is_accepted);
        is_accepted
    }

    /// Does the second step of the `nth` oldest request.
    #[inline(always)]
    fn advance(&mut self, nth: usize) {
        let index = self.index_of(nth);
        let (accepted, job) = &mut self.accepted[index];
        accepted.is_advanced = true;
        self.service.advance(&accepted.request(&self.bodies[index * self.body_stride..]), job);
    }

    /// Executes the `count` oldest requests, which lie side by side, and answers them.
    #[inline(always)]
    fn execute(&mut self, count: usize, now_ns: u64) -> usize {
        // A batch begins at the ring's start, and the pipeline executes one request at a time.
        let executed = self.oldest..self.oldest + count;
        let is_gone = |accepted: &&Accepted<S::Job>| accepted.0.token == 0;
        let gone = if self.gone == 0 { 0 } else { self.accepted[executed.clone()].iter().filter(is_gone).count() };
        let present = count - gone;
        self.service.begin(present, now_ns);
        self.gone -= gone;
        self.count -= count;
        self.oldest = if self.count == 0 || executed.end == self.accepted.len() { 0 } else { executed.end };
        self.stats.executed += present as u64;
        let Self { accepted, bodies, answers, service, stats, layout, .. } = self;
        let bodies = bodies[executed.start * self.body_stride..].chunks_exact(self.body_stride);
        for ((accepted, job), body) in accepted[executed.clone()].iter_mut().zip(bodies) {
            let job = std::mem::take(job);
            if accepted.token == 0 {
                stats.drop(SlotDrop::Gone);
                continue;
            }
            let AcceptedRequest { client, sequence, attempt, .. } = *accepted;
            let (record, start, room) = answers.get_mut(client, layout.slot_of(sequence));
            let (header, room) = room.split_at_mut(ANSWER_HEAD_LEN);
            let mut response = Response::new(room);
            service.execute(&accepted.request(body), job, &mut response);
            let (kind, len) = (response.kind, ANSWER_HEAD_LEN + response.len());
            header.copy_from_slice(&answer_head(sequence, self.index, kind));
            *record = AnswerRecord { sequence, attempt, len: len as u32 };
            accepted.answer = KeptAnswer { start, len };
        }
        if !self.config.doorbell_per_batch {
            executed.for_each(|index| self.send_answer(index));
        } else if present > 0 {
            self.send_answers(executed);
        }
        present
    }

    /// Sends the kept answer to an executed request, with a doorbell of its own.
    #[inline(always)]
    fn send_answer(&mut self, index: usize) {
        let AcceptedRequest { client, token, answer, .. } = self.accepted[index].0;
        if token != 0 {
            self.send(client, token, answer);
        }
    }

    /// Sends the kept answers to executed requests, whose clients are all here (they leave between batches), with one
    /// doorbell unless one answer is long or is refused.
    #[inline(always)]
    fn send_answers(&mut self, executed: Range<usize>) {
        let mut first = executed.start;
        while first < executed.end {
            let Self { accepted, answers, clients, outbox, .. } = self;
            let mut left = accepted[first..executed.end].iter();
            let posted = outbox.post(left.by_ref().map(|(accepted, _)| {
                let AcceptedRequest { client, token, answer, .. } = *accepted;
                answer_to(client, token, answer, answers, clients)
            }));
            first = executed.end - left.len();
            if let Err(error) = posted {
                // The last answer that was taken is the one that was refused.
                self.count_unsent(self.accepted[first - 1].0.client, error);
            }
        }
        self.outbox.ring_doorbell(true, &mut self.stats);
    }

    /// Sends a kept answer, with a doorbell.
    fn send(&mut self, client: u32, token: u32, answer: KeptAnswer) {
        let Self { answers, clients, outbox, .. } = self;
        if let Err(error) = outbox.push(answer_to(client, token, answer, answers, clients)) {
            self.count_unsent(client, error);
        }
        self.outbox.ring_doorbell(true, &mut self.stats);
    }

    /// Counts an answer that was not sent, and looks up the client's destination again if it is unknown.
    #[cold]
    fn count_unsent(&mut self, client: u32, error: SendError) {
        self.stats.unsent += 1;
        let state = self.clients.get_mut(client);
        if state.to.is_none() || error == SendError::Post(PostError::UnknownDestination) {
            state.resolve_destination(&self.thread);
        }
    }

    /// Looks in one more slot for a retransmission of an answered request, whose answer was lost or is late.
    #[inline(never)]
    fn check_for_repeat(&mut self) {
        let Some((client, slot)) = self.clients.next_to_check(self.layout.window) else { return };
        let end = self.layout.slot_end(self.index, client as usize, slot);
        let Some(found) = Slot::new(self.memory.words(), end, self.slot_len) else { return };
        let tail = found.tail();
        let state = self.clients.get_mut(client);
        let (record, start, _) = self.answers.get_mut(client, slot as usize);
        if tail.0 == 0 || *record == AnswerRecord::default() {
            return;
        }
        if tail.sequence() != record.sequence {
            let is_next = tail.sequence() == record.sequence.wrapping_add(self.layout.window as u32);
            if !is_next && state.out_of_turn_tail != tail {
                state.out_of_turn_tail = tail;
                self.stats.drop(SlotDrop::OutOfTurn);
            }
        } else if tail.attempt() != record.attempt && found.head().token() == state.token {
            record.attempt = tail.attempt();
            let (token, answer) = (state.token, KeptAnswer { start, len: record.len as usize });
            if self.outbox.room(&mut self.stats) > 0 {
                self.stats.repeated += 1;
                self.send(client, token, answer);
            }
        }
    }

    /// Processes arrivals and departures of clients, and completions of answers. Turns do so now and then; call it to
    /// have it done at once.
    #[inline(never)]
    pub fn process_changes(&mut self) {
        self.outbox.process_completions(&mut self.stats);
        while let Ok(change) = self.changes.try_recv() {
            match change {
                Change::Join { id, answers } => {
                    self.answers.forget(id.index);
                    self.clients.join(id, answers, &self.thread);
                }
                Change::Leave(id) => self.clients.leave(id),
            }
            self.mark_gone();
        }
    }

    /// Marks the accepted requests whose clients have left, so that nobody has to look for the client of every request.
    #[cold]
    fn mark_gone(&mut self) {
        for nth in 0..self.count {
            let index = self.index_of(nth);
            let accepted = &mut self.accepted[index].0;
            if accepted.token != 0 && self.clients.get(accepted.client).token != accepted.token {
                accepted.token = 0;
                self.gone += 1;
            }
        }
    }
}

/// The parts of a worker that take requests from their slots.
struct Intake<'a, S> {
    /// The request region.
    words: &'a [AtomicU64],
    layout: &'a Layout,
    slot_len: usize,
    service: &'a mut S,
    stats: &'a mut WorkerStats,
}

impl<S: Service> Intake<'_, S> {
    /// Takes the next request of a client into a free place, if the request is there and valid, and prefetches for it.
    #[inline(always)]
    fn accept(
        &mut self,
        client: u32,
        state: &mut ClientState,
        (place, body): &mut (&mut Accepted<S::Job>, &mut [u8]),
    ) -> bool {
        let sequence = state.next;
        let end = state.slots_start + (self.layout.slot_of(sequence) + 1) * self.slot_len;
        let Some(slot) = Slot::new(self.words, end, self.slot_len) else { return false };
        let tail = slot.tail();
        if tail.sequence() != sequence {
            return false;
        }
        let head = match slot.read(tail, state.token, self.layout.request_len_max, body) {
            Ok(head) => head,
            Err(reason) => {
                // The slot is polled again and again, but counted once.
                if state.refused_tail != tail {
                    state.refused_tail = tail;
                    self.stats.drop(reason);
                }
                return false;
            }
        };
        state.next = sequence.wrapping_add(1);
        let (accepted, job) = &mut **place;
        *accepted = AcceptedRequest {
            client,
            token: state.token,
            sequence,
            attempt: tail.attempt(),
            kind: head.kind(),
            len: head.len() as u16,
            is_advanced: false,
            answer: accepted.answer,
        };
        *job = self.service.prefetch(&accepted.request(body));
        true
    }
}

/// The kept answer to a request.
#[inline(always)]
fn answer_to<'a>(client: u32, token: u32, answer: KeptAnswer, answers: &'a Answers, clients: &Clients) -> Outgoing<'a> {
    let bytes = answers.get(answer);
    // Without a destination, the queue pair refuses it.
    let operation = InlineOperation::Send(clients.get(client).to);
    Outgoing { bytes, operation, immediate: Some(token) }
}

/// Encodes the head of an answer: the request's number, the worker, and the answer's kind.
#[inline(always)]
fn answer_head(sequence: u32, worker: usize, kind: u16) -> [u8; ANSWER_HEAD_LEN] {
    (u64::from(sequence) | (worker as u64) << 32 | u64::from(kind) << 48).to_le_bytes()
}
