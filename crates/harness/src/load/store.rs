//! Load for stores on verbs: the windows of a thread's clients are kept full, and every answer is checked.

use anyhow::ensure;
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::kv::one_sided::{self, Outcome, Status};
use sinew::kv::{drtm, herd};
use sinew::store::remote::Index;

use super::{Load, Slice, Span, State};
use crate::workload::{Request, Workload, check_value, fill_value, key_bytes};

/// Requests drawn in advance.
const TRACE: usize = 1 << 20;
/// Sampling interval: the latency of one answer in this many is recorded.
const SAMPLE_EVERY: u64 = 8;

/// A client of a store.
pub trait StoreClient {
    /// Whether there is room for a GET or a PUT of a key.
    fn has_room(&self, key: &[u8], is_get: bool) -> bool;

    /// Requests in flight.
    fn in_flight(&self) -> usize;

    /// Begins a GET of a key, or, with a value, a PUT.
    ///
    /// # Errors
    ///
    /// Those of the store's client.
    fn ask(&mut self, tag: u64, key: &[u8], value: Option<&[u8]>, now_ns: u64) -> anyhow::Result<()>;

    /// Sends the requests begun.
    fn flush(&mut self);

    /// Takes the requests that are over. Returns their number.
    ///
    /// # Errors
    ///
    /// Those of the store's client.
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> anyhow::Result<usize>;
}

impl<D: Device> StoreClient for herd::CacheClient<D> {
    #[inline(always)]
    fn has_room(&self, key: &[u8], _: bool) -> bool {
        self.has_room(key)
    }

    fn in_flight(&self) -> usize {
        self.calls().in_flight()
    }

    #[inline(always)]
    fn ask(&mut self, tag: u64, key: &[u8], value: Option<&[u8]>, now_ns: u64) -> anyhow::Result<()> {
        Ok(match value {
            None => self.get(tag, key, now_ns),
            Some(value) => self.put(tag, key, value, now_ns),
        }?)
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> anyhow::Result<usize> {
        let come = self.poll(now_ns, |herd::Outcome { tag, status, value, asked_ns }| {
            let status = match status {
                Some(herd::Status::Found) => Some(Status::Found),
                Some(herd::Status::Absent) => Some(Status::Absent),
                Some(herd::Status::Stored) => Some(Status::Stored),
                _ => None,
            };
            take(Outcome { tag, status, value, asked_ns });
        });
        Ok(come?)
    }
}

impl<D: Device, I: Index> StoreClient for one_sided::OneSidedClient<D, I> {
    #[inline(always)]
    fn has_room(&self, _: &[u8], is_get: bool) -> bool {
        if is_get { self.has_room_to_get() } else { self.has_room_to_change() }
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    #[inline(always)]
    fn ask(&mut self, tag: u64, key: &[u8], value: Option<&[u8]>, now_ns: u64) -> anyhow::Result<()> {
        Ok(match value {
            None => self.get(tag, key, now_ns),
            Some(value) => self.put(tag, key, value, now_ns),
        }?)
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> anyhow::Result<usize> {
        Ok(self.poll(now_ns, take)?)
    }
}

impl<D: Device> StoreClient for drtm::DrtmClient<D> {
    #[inline(always)]
    fn has_room(&self, _: &[u8], _: bool) -> bool {
        self.has_room()
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    #[inline(always)]
    fn ask(&mut self, tag: u64, key: &[u8], value: Option<&[u8]>, now_ns: u64) -> anyhow::Result<()> {
        Ok(match value {
            None => self.get(tag, key, now_ns),
            Some(value) => self.put(tag, key, value, now_ns),
        }?)
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> anyhow::Result<usize> {
        Ok(self.poll(now_ns, take)?)
    }
}

/// A driver of the clients of one thread. Latencies run from a request to its answer, including the wait in the window.
pub struct Store<A, C> {
    clients: Vec<A>,
    clock: C,
    trace: Vec<Request>,
    at: usize,
    /// Counts rounds of the trace, so that each stores other values.
    round: u64,
    value: Vec<u8>,
    /// There is no table: READs are checked to come from the right place, and return nothing.
    is_emulated: bool,
    /// Keys that are asked for once before the trace begins, so that the client knows where all of them are, as in
    /// atc16.
    learning: std::ops::Range<u64>,
    /// Times when the requests were made whose latency is recorded, in ns.
    sampled: Vec<u64>,
    answers: u64,
    contended: u64,
    span: Span,
    slice: Slice,
}

impl<A: StoreClient, C: Clock> Store<A, C> {
    /// Sends a workload's requests by these clients; its values must all have the same length. The first slice asks for
    /// `learns` keys once before everything else.
    pub fn new(clients: Vec<A>, clock: C, workload: &Workload, is_emulated: bool, learns: u64) -> Self {
        Self::with_trace(clients, clock, workload, TRACE, is_emulated, learns)
    }

    /// As [`Self::new`], with `requests` requests drawn in advance.
    pub fn with_trace(
        clients: Vec<A>,
        clock: C,
        workload: &Workload,
        requests: usize,
        is_emulated: bool,
        learns: u64,
    ) -> Self {
        Self {
            clients,
            clock,
            trace: workload.trace(requests),
            at: 0,
            round: 1,
            value: vec![0; workload.sizes.max()],
            is_emulated,
            learning: 0..learns,
            sampled: Vec::with_capacity(64),
            answers: 0,
            contended: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// The clients.
    pub fn clients(&self) -> &[A] {
        &self.clients
    }

    /// PUTs so far that gave up because others were always quicker.
    pub fn contended(&self) -> u64 {
        self.contended
    }

    /// Sends requests until the client has no room for the next one. Returns whether it had room for any.
    #[inline(always)]
    fn ask(&mut self, which: usize, now_ns: u64) -> anyhow::Result<bool> {
        let client = &mut self.clients[which];
        let mut has_asked = false;
        loop {
            let request = self.trace[self.at];
            let (key, is_get) = (request.key(), request.is_get());
            let bytes = key_bytes(key);
            if !client.has_room(&bytes, is_get) {
                return Ok(has_asked);
            }
            has_asked = true;
            if !is_get {
                fill_value(&mut self.value, key, self.round);
            }
            client.ask(key << 1 | u64::from(is_get), &bytes, (!is_get).then_some(&self.value[..]), now_ns)?;
            self.at += 1;
            if self.at == self.trace.len() {
                (self.at, self.round) = (0, self.round + 1);
            }
        }
    }

    /// Asks for the next keys whose places are to be learned.
    fn learn(&mut self, which: usize, now_ns: u64) -> anyhow::Result<()> {
        while self.clients[which].has_room(&[], true) {
            let Some(key) = self.learning.next() else { break };
            self.clients[which].ask(key << 1 | 1, &key_bytes(key), None, now_ns)?;
        }
        Ok(())
    }
}

impl<A: StoreClient, C: Clock> Load for Store<A, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    #[inline]
    fn turn(&mut self, _: u64) -> anyhow::Result<State> {
        // Clients repeat requests that are not answered in time, so they need the exact time.
        let now_ns = self.clock.now_ns();
        let learns = !self.learning.is_empty();
        let may_start = learns || self.span.may_start(now_ns, self.slice.done);
        let (mut is_busy, mut left, mut wrong) = (learns, 0, 0u64);
        for index in 0..self.clients.len() {
            if learns {
                self.learn(index, now_ns)?;
            } else if may_start {
                is_busy |= self.ask(index, now_ns)?;
            }
            let Self { clients, slice, value, sampled, answers, is_emulated, contended, .. } = self;
            clients[index].flush();
            let completed = clients[index].poll(now_ns, |outcome| {
                let (key, is_get) = (outcome.tag >> 1, outcome.tag & 1 == 1);
                let mut is_hit = false;
                match outcome.status {
                    Some(Status::Found) if is_get => {
                        is_hit = true;
                        let is_right = outcome.value.len() == value.len() && check_value(outcome.value, key);
                        wrong += u64::from(!*is_emulated && !is_right);
                    }
                    Some(Status::Absent) if is_get => {}
                    Some(Status::Stored) if !is_get => {}
                    Some(Status::Contended) if !is_get => *contended += 1,
                    _ => wrong += 1,
                }
                *answers += 1;
                if may_start {
                    slice.done += 1;
                    slice.gets += u64::from(is_get);
                    slice.hits += u64::from(is_hit);
                    if answers.is_multiple_of(SAMPLE_EVERY) {
                        sampled.push(outcome.asked_ns);
                    }
                }
            })?;
            is_busy |= completed > 0;
            left += if may_start { 0 } else { clients[index].in_flight() };
        }
        ensure!(wrong == 0, "wrong answers: {wrong}");
        if !self.sampled.is_empty() {
            let done_ns = self.clock.now_ns();
            for asked_ns in self.sampled.drain(..) {
                self.slice.latency.saturating_record(done_ns.saturating_sub(asked_ns).max(1));
            }
        }
        if !may_start && left == 0 {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }
}
