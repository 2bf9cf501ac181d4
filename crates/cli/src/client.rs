//! The side of a benchmark that calls, written against the public interface only.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::Value;
use sinew::fabric::{Clock, PacketPort};
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::prelude::*;
use sinew::rpc::{EnqueueError, Rpc as FabricRpc};

use crate::machine::has_two_cpus;
use crate::service::{self, Verdict};
use crate::{pattern, units};

/// Of every so many batches the latency of one is recorded, the first to begin with, since reading the clock for all would be
/// most of what is measured.
const SAMPLE_EVERY: u64 = 32;
/// Of messages from this size on all are recorded: moving one takes longer than reading the clock by far.
const SAMPLE_ALL_FROM: usize = 4096;
/// The clock is looked at every so many turns of the loop.
const TURNS_PER_LOOK: u64 = 16;
/// Sessions that are being opened at a time, so that a server's headroom for management packets suffices.
const CONNECTING_MAX: usize = 12;

/// What a slice of a measurement keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of each request; for echoes also of each response.
    pub size: usize,
    /// Calls in flight.
    pub window: usize,
    /// Calls that are enqueued together.
    pub batch: usize,
    /// Whether the server checks and answers 32 bytes, instead of echoing.
    pub sink: bool,
}

/// What came of a slice.
pub struct Slice {
    /// Calls that completed.
    pub calls: u64,
    /// In this time.
    pub elapsed_ns: u64,
    /// How long they took, or a sample of them.
    pub latency: Histogram<u64>,
}

impl Slice {
    /// Millions of calls per second.
    pub fn mops(&self) -> f64 {
        self.calls as f64 * 1e3 / self.elapsed_ns.max(1) as f64
    }
}

/// A histogram of nanoseconds up to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// A client of any fabric.
pub trait Calls {
    /// Makes one call at a time.
    fn latency(&mut self, size: usize, duration: Duration) -> anyhow::Result<Slice>;
    /// Keeps many calls in flight.
    fn load(&mut self, load: Load, duration: Duration) -> anyhow::Result<Slice>;
    /// The server's counters, and ours.
    fn report(&mut self) -> anyhow::Result<(Value, Value)>;
    /// Uses only the first so many sessions from now on.
    fn use_sessions(&mut self, sessions: usize);
    /// Answers a server that asks whether anybody is there.
    fn keep_alive(&mut self);
}

/// A client on one fabric.
pub struct Client<P: PacketPort> {
    rpc: FabricRpc<P, HostClock>,
    sessions: Vec<SessionId>,
    sessions_used: usize,
    clock: HostClock,
    interrupt: Interrupt,
    /// Ctrl-C ends a sleep of the loop.
    _wake: WakeOnInterrupt,
    random: u64,
    /// Sessions chosen for the next calls, whose state is on its way into the caches.
    upcoming: Vec<SessionId>,
    sequence: u64,
    spins: bool,
    size: usize,
    /// Buffers of calls that are not in flight, with their tags.
    idle: Vec<(usize, MessageBuffer, MessageBuffer)>,
    /// By tag.
    in_flight: Vec<InFlight>,
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    sequence: u64,
    /// When it was enqueued, if its latency counts; else 0.
    began_ns: u64,
}

impl<P: PacketPort> Client<P> {
    /// Opens `sessions` sessions to a server.
    pub fn connect(
        mut rpc: FabricRpc<P, HostClock>,
        address: &str,
        sessions: usize,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let address = address.parse()?;
        let wake = interrupt.wake_on_interrupt(rpc.waker());
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
                open.len() > waited_for || failure.is_some() || interrupt.is_set()
            })?;
            ensure!(!interrupt.is_set(), "interrupted");
        }
        if let Some(error) = failure {
            return Err(error).with_context(|| format!("opening session {} of {sessions}", open.len() + 1));
        }
        Ok(Self {
            rpc,
            sessions_used: open.len(),
            sessions: open,
            clock: HostClock::new(),
            interrupt,
            _wake: wake,
            random: 0x2545_F491_4F6C_DD1D,
            upcoming: Vec::new(),
            sequence: 0,
            spins: has_two_cpus(),
            size: 0,
            idle: Vec::new(),
            in_flight: Vec::new(),
        })
    }

    #[inline]
    fn random_session(&mut self) -> SessionId {
        // xorshift64: a session for each call, as clients of many servers would.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let index = ((self.random >> 32) * self.sessions_used as u64) >> 32;
        self.sessions[index as usize]
    }

    /// Makes sure of buffers for `window` calls of this load.
    fn prepare(&mut self, load: Load) -> anyhow::Result<()> {
        let request_len = load.size + if load.sink { service::SEQUENCE_LEN } else { 0 };
        let response_len = if load.sink { service::VERDICT_LEN } else { load.size };
        if self.size != request_len || self.idle.len() != load.window {
            self.idle.clear();
            let alloc = |len| {
                self.rpc.alloc(len).with_context(|| {
                    let (calls, size) = (load.window, units::size(load.size));
                    format!("{calls} calls of {size}: lower --window or --size, or raise --options arena=BYTES")
                })
            };
            for tag in 0..load.window {
                let mut request = alloc(request_len)?;
                pattern::write_body(&mut request[request_len - load.size..]);
                let mut response = alloc(response_len)?;
                response[..].fill(0);
                self.idle.push((tag, request, response));
            }
            self.size = request_len;
            self.in_flight = vec![InFlight::default(); load.window];
        }
        Ok(())
    }

    /// Enqueues one call with the buffers of an idle one.
    #[inline]
    fn start(&mut self, sink: bool, began_ns: u64) -> anyhow::Result<()> {
        let Some((tag, mut request, response)) = self.idle.pop() else { bail!("no idle call") };
        self.sequence += 1;
        let sequence = self.sequence;
        let request_type = if sink {
            let (head, message) = request.split_at_mut(service::SEQUENCE_LEN);
            head.copy_from_slice(&sequence.to_le_bytes());
            pattern::write_stamps(message, sequence);
            service::SINK
        } else {
            pattern::write_stamps(&mut request, sequence);
            service::ECHO
        };
        self.in_flight[tag] = InFlight { sequence, began_ns };
        let session = self.upcoming.pop().unwrap_or_else(|| self.random_session());
        match self.rpc.enqueue_request(session, request_type, request, response, tag as u64) {
            Ok(_) => Ok(()),
            Err(rejected) => Err(self.why_refused(rejected.error)),
        }
    }

    /// Why a call was not taken: when its session was lost while nothing was in flight, what became of that.
    #[cold]
    fn why_refused(&mut self, error: EnqueueError) -> anyhow::Error {
        while let Some(event) = self.rpc.poll_event() {
            if let SessionEvent::Lost { peer, cause, .. } = event {
                return anyhow!("the session with {peer} was lost: {cause}");
            }
        }
        error.into()
    }

    /// Takes a call that is over: checks its answer and keeps its buffers.
    #[inline]
    fn finish(&mut self, completion: Completion, sink: bool) -> anyhow::Result<InFlight> {
        let call = self.in_flight[completion.tag as usize];
        completion.result?;
        let good = if sink {
            Verdict::read(&completion.response).is_some_and(|verdict| {
                let len = (self.size - service::SEQUENCE_LEN) as u64;
                verdict == Verdict { sequence: call.sequence, len, good: true }
            })
        } else {
            completion.response.len() == self.size && pattern::check(&completion.response, call.sequence)
        };
        ensure!(good, "the answer to call {} is wrong: {} bytes", call.sequence, completion.response.len());
        self.idle.push((completion.tag as usize, completion.request, completion.response));
        Ok(call)
    }

    /// One turn; with nothing to do and no processor to spare it sleeps.
    #[inline]
    fn turn(&mut self) -> anyhow::Result<()> {
        if !self.rpc.turn() && !self.spins {
            self.rpc.wait(Some(10_000_000))?;
        }
        Ok(())
    }

    fn check_interrupt(&self) -> anyhow::Result<()> {
        ensure!(!self.interrupt.is_set(), "interrupted");
        Ok(())
    }
}

impl<P: PacketPort> Calls for Client<P> {
    fn latency(&mut self, size: usize, duration: Duration) -> anyhow::Result<Slice> {
        self.prepare(Load { size, window: 1, batch: 1, sink: false })?;
        let mut latency = histogram();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let mut now_ns = began_ns;
        let mut calls = 0;
        while now_ns < end_ns {
            self.start(false, now_ns)?;
            let completion = loop {
                self.turn()?;
                if let Some(completion) = self.rpc.poll_completion() {
                    break completion;
                }
            };
            let done_ns = self.clock.now_ns();
            latency.saturating_record(done_ns - now_ns);
            self.finish(completion, false)?;
            calls += 1;
            // The check of the answer is not part of the next call's latency.
            now_ns = self.clock.now_ns();
            self.check_interrupt()?;
        }
        Ok(Slice { calls, elapsed_ns: now_ns - began_ns, latency })
    }

    fn load(&mut self, load: Load, duration: Duration) -> anyhow::Result<Slice> {
        self.prepare(load)?;
        let mut latency = histogram();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let mut now_ns = began_ns;
        let (mut turns, mut look_at, mut batches, mut calls) = (0u64, TURNS_PER_LOOK, 0u64, 0u64);
        // At least one call comes back, however little of the time others leave us.
        while now_ns < end_ns || calls == 0 {
            while self.idle.len() >= load.batch {
                let sampled = batches.is_multiple_of(SAMPLE_EVERY) || load.sink || load.size >= SAMPLE_ALL_FROM;
                batches += 1;
                let stamp_ns = if sampled { self.clock.now_ns() } else { 0 };
                for _ in 0..load.batch {
                    self.start(load.sink, stamp_ns)?;
                }
                // The next batch's sessions, while this one is sent and answers are taken.
                for _ in 0..load.batch {
                    let session = self.random_session();
                    self.rpc.prefetch_session(session);
                    self.upcoming.push(session);
                }
                self.turn()?;
                calls += self.take_completions(load, &mut latency)?;
                turns += 1;
                if turns >= look_at {
                    break;
                }
            }
            if self.idle.len() < load.batch {
                self.turn()?;
                calls += self.take_completions(load, &mut latency)?;
                turns += 1;
            }
            if turns >= look_at || load.sink {
                look_at = turns + TURNS_PER_LOOK;
                now_ns = self.clock.now_ns();
                self.check_interrupt()?;
            }
        }
        let elapsed_ns = now_ns - began_ns;
        while self.idle.len() < load.window {
            self.turn()?;
            self.take_completions(load, &mut latency)?;
            self.check_interrupt()?;
        }
        Ok(Slice { calls, elapsed_ns, latency })
    }

    fn report(&mut self) -> anyhow::Result<(Value, Value)> {
        let theirs =
            self.rpc.call(self.sessions[0], service::REPORT, b"").context("asking the server for its counters")?;
        let theirs = serde_json::from_slice(&theirs).context("reading the server's counters")?;
        Ok((theirs, service::counters(&self.rpc.stats(), &self.rpc.port_stats(), self.rpc.sessions())))
    }

    fn use_sessions(&mut self, sessions: usize) {
        self.sessions_used = sessions.clamp(1, self.sessions.len());
        self.upcoming.clear();
    }

    fn keep_alive(&mut self) {
        // No more than that, whatever keeps coming.
        let _ = (0..1000).take_while(|_| self.rpc.turn()).count();
    }
}

impl<P: PacketPort> Client<P> {
    #[inline]
    fn take_completions(&mut self, load: Load, latency: &mut Histogram<u64>) -> anyhow::Result<u64> {
        let mut calls = 0;
        while let Some(completion) = self.rpc.poll_completion() {
            let call = self.finish(completion, load.sink)?;
            if call.began_ns != 0 {
                latency.saturating_record(self.clock.now_ns().saturating_sub(call.began_ns));
            }
            calls += 1;
        }
        Ok(calls)
    }
}
