//! Load for a replicated store: PUTs of random keys (nsdi19 7.1), or reads of one key that a member answers alone. Each
//! answer is checked.

use anyhow::{Context, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sinew::Endpoint;
use sinew::fabric::Clock;
use sinew::replica::client::{Client, RequestOutcome};
use sinew::replica::client_wire::Freshness;
use sinew::replica::kv::{Command, CommandResult, Query, QueryResult};
use sinew::replica::wire;

use super::{Load, Slice, Span, State};

/// Key that is read. It is stored before anything else.
const READ_KEY: &[u8] = b"bench";

/// Load that a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests in flight.
    pub window: usize,
    /// Keys to draw from, of 16 bytes each.
    pub keys: u64,
    /// Length of a value, in bytes.
    pub value_len: usize,
    /// Longest time for an answer, in ns.
    pub timeout_ns: u64,
}

/// Kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRequest {
    /// PUTs.
    Puts,
    /// Stale reads of one key.
    Reads,
}

#[derive(Clone, Copy)]
struct InFlight {
    kind: ReplicaRequest,
    began_ns: u64,
    /// Latest revision that was known when it began.
    after: u64,
}

/// A driver of a replicated store's client.
pub struct Replica<E: Endpoint, C> {
    client: Client<E>,
    clock: C,
    shape: Shape,
    kind: ReplicaRequest,
    value: Vec<u8>,
    random: SmallRng,
    /// Whether [`READ_KEY`] is stored.
    is_ready: bool,
    /// Latest revision that is known.
    revision: u64,
    /// Tags that are not in flight.
    idle: Vec<u64>,
    /// Requests in flight, by tag.
    in_flight: Vec<InFlight>,
    bytes: Vec<u8>,
    span: Span,
    slice: Slice,
}

impl<E: Endpoint, C: Clock> Replica<E, C> {
    /// Sends requests by a client that nothing else uses. Keys are drawn from `seed`.
    pub fn new(client: Client<E>, clock: C, shape: Shape, seed: u64) -> Self {
        let nothing = InFlight { kind: ReplicaRequest::Puts, began_ns: 0, after: 0 };
        Self {
            client,
            clock,
            shape,
            kind: ReplicaRequest::Puts,
            value: vec![b'v'; shape.value_len],
            random: SmallRng::seed_from_u64(seed),
            is_ready: false,
            revision: 0,
            idle: (0..shape.window as u64).collect(),
            in_flight: vec![nothing; shape.window],
            bytes: Vec::new(),
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// Returns the client, for example to close its session.
    pub fn into_client(self) -> Client<E> {
        self.client
    }

    /// Sets the kind of requests, from the next slice on.
    pub fn set_kind(&mut self, kind: ReplicaRequest) {
        self.kind = kind;
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let Some(tag) = self.idle.pop() else { bail!("no idle request") };
        let kind = if self.is_ready { self.kind } else { ReplicaRequest::Puts };
        self.in_flight[tag as usize] = InFlight { kind, began_ns: self.clock.now_ns(), after: self.revision };
        self.bytes.clear();
        let timeout_ns = self.shape.timeout_ns;
        if kind == ReplicaRequest::Reads {
            wire::encode(&Query::Get { key: READ_KEY }, &mut self.bytes);
            return Ok(self.client.read(tag, Freshness::Stale, &self.bytes, timeout_ns)?);
        }
        let drawn = format!("{:016x}", self.random.random_range(0..self.shape.keys));
        let key = if self.is_ready { drawn.as_bytes() } else { READ_KEY };
        wire::encode(&Command::Put { key, value: &self.value }, &mut self.bytes);
        Ok(self.client.run(tag, &self.bytes, timeout_ns)?)
    }

    /// Takes and checks the answers that have arrived, and counts them if they came in time.
    fn take_answers(&mut self, counts: bool) -> anyhow::Result<()> {
        while let Some((tag, answer)) = self.client.poll() {
            let InFlight { kind, began_ns, after } = self.in_flight[tag as usize];
            match (kind, answer?) {
                (ReplicaRequest::Puts, RequestOutcome::CommandAnswer(done)) => match wire::decode(&done) {
                    Ok(CommandResult::Changed { revision }) => {
                        ensure!(revision > after, "a PUT has revision {revision}, and an earlier one had {after}");
                        self.revision = self.revision.max(revision);
                    }
                    other => bail!("a PUT was answered by {other:?}"),
                },
                (ReplicaRequest::Reads, RequestOutcome::QueryAnswer(found)) => match wire::decode(&found) {
                    Ok(QueryResult::Item { item, .. }) => {
                        let item = item.context("a key that was stored is missing")?;
                        ensure!(item.value == self.value, "the store gave a wrong value");
                    }
                    other => bail!("a read was answered by {other:?}"),
                },
                (_, other) => bail!("an answer to another request: {other:?}"),
            }
            if counts && self.is_ready {
                self.slice.done += 1;
                self.slice.latency.saturating_record(self.clock.now_ns().saturating_sub(began_ns));
            }
            self.is_ready = true;
            self.idle.push(tag);
        }
        Ok(())
    }
}

impl<E: Endpoint, C: Clock> Load for Replica<E, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let may_start = !self.is_ready || self.span.may_start(now_ns, self.slice.done);
        let mut is_busy = false;
        // A single request finds out who leads, before the time counts.
        let window = if self.is_ready { self.shape.window } else { 1 };
        while may_start && self.shape.window - self.idle.len() < window {
            self.start()?;
            is_busy = true;
        }
        is_busy |= self.client.turn();
        if !self.is_ready {
            self.take_answers(false)?;
            if self.is_ready {
                let now_ns = self.clock.now_ns();
                self.span = self.span.begun_anew(now_ns);
            }
            return Ok(State::of(is_busy));
        }
        self.take_answers(may_start)?;
        if !may_start && self.idle.len() == self.shape.window {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy))
    }

    fn rest(&mut self) -> anyhow::Result<bool> {
        let next_ns = self.client.next_turn_ns();
        let rpc = self.client.rpc();
        let wait_ns = next_ns.map(|next_ns| next_ns.saturating_sub(rpc.now_ns()));
        rpc.rest(false, wait_ns)?;
        Ok(true)
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }

    fn tend(&mut self) {
        // A bounded number of turns, whatever keeps arriving.
        let _ = (0..1000).take_while(|_| self.client.turn()).count();
    }
}
