//! Echoes of test messages, calls with answers of another length, and large requests that a server checks.

use anyhow::{Context, anyhow, bail, ensure};
use sinew::Endpoint;
use sinew::fabric::Clock;
use sinew::prelude::*;
use sinew::rpc::EnqueueError;

use super::{Drive, Load, Slice, Span, State};
use crate::service::{self, Verdict};
use crate::{pattern, units};

/// Sampling interval: the latency of one batch in this many is recorded, beginning with the first. Reading the clock
/// for every batch would be most of what is measured.
const SAMPLE_EVERY: u64 = 32;
/// Size from which all latencies are recorded: moving such a message takes far longer than reading the clock.
const SAMPLE_ALL_FROM: usize = 4096;
/// Most sessions being opened at a time, so that a server's headroom for management packets suffices.
const CONNECTING_MAX: usize = 12;

/// Answer to each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request itself.
    Echo,
    /// As many bytes of the request, over and over. The request, which says how many, has at least 8 bytes.
    Bytes(usize),
    /// Whether the request was right, in 32 bytes; the server checks it. A sequence number comes before the request.
    Verdict,
}

/// Load that a slice keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Length of each request, in bytes.
    pub size: usize,
    /// Answer to each request.
    pub answer: Answer,
    /// Calls in flight.
    pub window: usize,
    /// Calls enqueued together.
    pub batch: usize,
}

impl Shape {
    /// Bytes before the test message in a request.
    fn head_len(&self) -> usize {
        match self.answer {
            Answer::Echo => 0,
            Answer::Bytes(_) => service::LEN_LEN,
            Answer::Verdict => service::SEQUENCE_LEN,
        }
    }

    fn request_len(&self) -> usize {
        self.size + if self.answer == Answer::Verdict { service::SEQUENCE_LEN } else { 0 }
    }

    fn response_len(&self) -> usize {
        match self.answer {
            Answer::Echo => self.size,
            Answer::Bytes(len) => len,
            Answer::Verdict => service::VERDICT_LEN,
        }
    }
}

/// A driver of calls over one endpoint.
pub struct Echo<E, C> {
    rpc: E,
    clock: C,
    sessions: Vec<SessionId>,
    sessions_used: usize,
    shape: Shape,
    random: u64,
    /// Sessions chosen for the next calls, whose state is being prefetched.
    upcoming: Vec<SessionId>,
    sequence: u64,
    /// Buffers of calls that are not in flight, with their tags.
    idle: Vec<(usize, MessageBuffer, MessageBuffer)>,
    /// Calls in flight, by tag.
    in_flight: Vec<InFlight>,
    batches: u64,
    span: Span,
    slice: Slice,
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    sequence: u64,
    /// Time when it was enqueued, if its latency is recorded; else 0.
    began_ns: u64,
}

/// Opens sessions to a server, several at a time, until all are open or `stop` returns true.
///
/// # Errors
///
/// A session could not be opened, or `stop` returned true.
pub fn open_sessions(
    rpc: &mut impl Endpoint,
    address: &str,
    sessions: usize,
    stop: impl Fn() -> bool,
) -> anyhow::Result<Vec<SessionId>> {
    let address = address.parse()?;
    let (mut open, mut asked) = (Vec::with_capacity(sessions), 0);
    let mut failure = None;
    while open.len() < sessions && failure.is_none() {
        while asked < sessions && asked - open.len() < CONNECTING_MAX {
            rpc.begin_connect(&address)?;
            asked += 1;
        }
        let waited_for = open.len();
        rpc.run_until(|rpc| {
            while let Some(event) = rpc.poll_event() {
                match event {
                    SessionEvent::Connected(session) => open.push(session),
                    SessionEvent::ConnectFailed { error, .. } => failure = Some(error),
                    _ => {}
                }
            }
            open.len() > waited_for || failure.is_some() || stop()
        })?;
        ensure!(!stop(), crate::run::Interrupted);
    }
    match failure {
        Some(error) => Err(error).with_context(|| format!("opening session {} of {sessions}", open.len() + 1)),
        None => Ok(open),
    }
}

impl<E: Endpoint, C: Clock> Echo<E, C> {
    /// Makes calls over these sessions, each of which leads to a server of [`service`].
    pub fn new(rpc: E, clock: C, sessions: Vec<SessionId>, shape: Shape) -> Self {
        Self {
            rpc,
            clock,
            sessions_used: sessions.len(),
            sessions,
            shape,
            random: 0x2545_F491_4F6C_DD1D,
            upcoming: Vec::new(),
            sequence: 0,
            idle: Vec::new(),
            in_flight: Vec::new(),
            batches: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    #[inline]
    fn random_session(&mut self) -> SessionId {
        // xorshift64. A session is chosen for each call, as by a client of many servers.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let index = ((self.random >> 32) * self.sessions_used as u64) >> 32;
        self.sessions[index as usize]
    }

    /// Allocates buffers for all calls, unless that was done.
    fn prepare(&mut self) -> anyhow::Result<()> {
        let Shape { size, window, answer, .. } = self.shape;
        let (request_len, response_len) = (self.shape.request_len(), self.shape.response_len());
        if self.idle.len() == window {
            return Ok(());
        }
        ensure!(
            !matches!(answer, Answer::Bytes(_)) || size >= 2 * service::LEN_LEN,
            "a request of {size} bytes is too short to say how long its answer is"
        );
        let alloc = |len| {
            self.rpc.alloc(len).with_context(|| {
                let (calls, size) = (units::counted(window, "call"), units::size(size));
                format!("{calls} of {size}: lower --window or --size, or raise --options arena=BYTES")
            })
        };
        for tag in 0..window {
            let mut request = alloc(request_len)?;
            pattern::write_body(&mut request[self.shape.head_len()..]);
            if let (Answer::Bytes(len), Some(head)) = (answer, request.first_chunk_mut()) {
                *head = u32::try_from(len)?.to_le_bytes();
            }
            let mut response = alloc(response_len)?;
            response[..].fill(0);
            self.idle.push((tag, request, response));
        }
        self.in_flight = vec![InFlight::default(); window];
        Ok(())
    }

    /// Enqueues one call with the buffers of an idle one.
    #[inline]
    fn start(&mut self, began_ns: u64) -> anyhow::Result<()> {
        let Some((tag, mut request, response)) = self.idle.pop() else { bail!("no idle call") };
        self.sequence += 1;
        let sequence = self.sequence;
        let request_type = match self.shape.answer {
            Answer::Echo => {
                pattern::write_stamps(&mut request, sequence);
                service::ECHO
            }
            Answer::Bytes(_) => {
                pattern::write_stamps(&mut request[service::LEN_LEN..], sequence);
                service::REPEAT
            }
            Answer::Verdict => {
                let (head, message) = request.split_at_mut(service::SEQUENCE_LEN);
                head.copy_from_slice(&sequence.to_le_bytes());
                pattern::write_stamps(message, sequence);
                service::SINK
            }
        };
        self.in_flight[tag] = InFlight { sequence, began_ns };
        let session = self.upcoming.pop().unwrap_or_else(|| self.random_session());
        match self.rpc.enqueue_request(session, request_type, request, response, (tag as u64).into()) {
            Ok(_) => Ok(()),
            Err(rejected) => Err(self.why_refused(rejected.error)),
        }
    }

    /// Reason for a refused call. If its session was lost while nothing was in flight, that is the reason.
    #[cold]
    fn why_refused(&mut self, error: EnqueueError) -> anyhow::Error {
        while let Some(event) = self.rpc.poll_event() {
            if let SessionEvent::Lost { peer, cause, .. } = event {
                return anyhow!("the session with {peer} was lost: {cause}");
            }
        }
        error.into()
    }

    /// Starts a batch, and chooses the sessions of the next one.
    #[inline]
    fn start_batch(&mut self) -> anyhow::Result<()> {
        let Shape { size, window, batch, answer } = self.shape;
        let is_large = answer == Answer::Verdict || size >= SAMPLE_ALL_FROM;
        let sampled = self.batches.is_multiple_of(SAMPLE_EVERY) || is_large || window == 1;
        self.batches += 1;
        let stamp_ns = if sampled { self.clock.now_ns() } else { 0 };
        for _ in 0..batch {
            self.start(stamp_ns)?;
        }
        if window == 1 {
            return Ok(());
        }
        // Their state is prefetched while this batch is sent and answers are taken.
        for _ in 0..batch {
            let session = self.random_session();
            self.rpc.prefetch_session(session);
            self.upcoming.push(session);
        }
        Ok(())
    }

    /// Handles a completed call: checks its answer and keeps its buffers.
    #[inline]
    fn finish(&mut self, completion: Completion) -> anyhow::Result<()> {
        let InFlight { sequence, began_ns } = self.in_flight[completion.tag as usize];
        // Checking an answer is not part of its latency.
        let now_ns = if began_ns == 0 { 0 } else { self.clock.now_ns() };
        completion.result?;
        let is_good = match self.shape.answer {
            Answer::Echo => {
                completion.response.len() == self.shape.size && pattern::check(&completion.response, sequence)
            }
            Answer::Bytes(len) => {
                let (request, mut parts) = (&completion.request, completion.response.chunks(self.shape.size));
                completion.response.len() == len && parts.all(|part| *part == request[..part.len()])
            }
            Answer::Verdict => {
                let expected = Verdict { sequence, len: self.shape.size as u64, good: true };
                Verdict::read(&completion.response) == Some(expected)
            }
        };
        ensure!(is_good, "the answer to call {sequence} is wrong: {} bytes", completion.response.len());
        if began_ns != 0 {
            self.slice.latency.saturating_record(now_ns.saturating_sub(began_ns));
        }
        self.idle.push((completion.tag as usize, completion.request, completion.response));
        Ok(())
    }
}

/// Orders for a driver of calls.
pub trait Calls: Drive {
    /// Uses only the first `sessions` sessions from now on.
    fn use_sessions(&mut self, sessions: usize);

    /// Returns the server's counters, and ours.
    ///
    /// # Errors
    ///
    /// The server does not send them.
    fn report(&mut self) -> anyhow::Result<[serde_json::Value; 2]>;
}

impl<E: Endpoint, C: Clock> Calls for Echo<E, C> {
    fn use_sessions(&mut self, sessions: usize) {
        self.sessions_used = sessions.clamp(1, self.sessions.len());
        self.upcoming.clear();
    }

    fn report(&mut self) -> anyhow::Result<[serde_json::Value; 2]> {
        let theirs =
            self.rpc.call(self.sessions[0], service::REPORT, b"").context("asking the server for its counters")?;
        let theirs = serde_json::from_slice(&theirs).context("reading the server's counters")?;
        Ok([theirs, service::counters(&self.rpc.stats(), &self.rpc.port_stats(), self.rpc.sessions())])
    }
}

impl<E: Endpoint, C: Clock> Load for Echo<E, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.prepare()?;
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        self.batches = 0;
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let may_start = self.span.may_start(now_ns, self.slice.done);
        let starts = may_start && self.idle.len() >= self.shape.batch;
        if starts {
            self.start_batch()?;
        }
        let is_busy = self.rpc.turn();
        while let Some(completion) = self.rpc.poll_completion() {
            self.finish(completion)?;
            self.slice.done += u64::from(may_start);
        }
        if !may_start && self.idle.len() == self.shape.window {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy || starts))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }

    fn tend(&mut self) {
        // A bounded number of turns, whatever keeps arriving.
        let _ = (0..1000).take_while(|_| self.rpc.turn()).count();
    }
}
