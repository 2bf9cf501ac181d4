//! Load for a cache over RPC: requests of a trace, many in flight, with each answer checked.

use anyhow::{Context, bail, ensure};
use sinew::Endpoint;
use sinew::fabric::Clock;
use sinew::kv::cache::Pipeline;
use sinew::kv::cache::protocol::{KEYS_MAX, Lookup, PutOptions, Response};

use super::{Drive, Load, Slice, Span, State};
use crate::workload::{self, KEY_LEN, Request, Sizes, Workload, check_value, fill_value, key_bytes};

/// Requests drawn in advance.
const TRACE: usize = 1 << 22;
/// Sampling interval: the latency of one batch in this many is recorded.
const SAMPLE_EVERY: u64 = 32;

/// Load that a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests in flight.
    pub window: usize,
    /// Requests enqueued together.
    pub batch: usize,
    /// Keys of one request, from 1 to [`KEYS_MAX`].
    pub keys_per_get: usize,
    /// Open loop: requests a second, whether or not answers come. Latencies then count from when a request was due, so
    /// that they include its wait for room in the window. `None`: closed loop, with the window always full.
    pub rate: Option<f64>,
}

/// A driver of a cache's client.
pub struct Cache<E: Endpoint, C> {
    pipeline: Pipeline<E>,
    clock: C,
    shape: Shape,
    sizes: Sizes,
    trace: Vec<Request>,
    /// Times between requests, in multiples of their mean.
    gaps: Vec<f64>,
    /// Index of the next request in the trace.
    at: usize,
    /// Counts PUTs, so that each stores another value.
    round: u64,
    value: Vec<u8>,
    /// Tags that are not in flight.
    idle: Vec<u32>,
    /// Requests in flight, by tag.
    in_flight: Vec<InFlight>,
    /// Keys of the requests, by tag, and by place in the request.
    keys: Vec<u32>,
    /// Tags whose value has arrived, and is to be stored anew.
    to_store: Vec<u32>,
    /// Keys still to be stored before the trace begins.
    filling: std::ops::Range<u64>,
    batches: u64,
    /// Time when the next request is due, in ns, if there is a rate.
    due_ns: f64,
    span: Span,
    slice: Slice,
}

#[derive(Clone, Copy)]
struct InFlight {
    /// Answers still to come.
    answers: u16,
    /// Whether a PUT of the same key follows.
    stores: bool,
    /// Time when it was enqueued, if its latency is recorded; else 0.
    began_ns: u64,
}

impl<E: Endpoint, C: Clock> Cache<E, C> {
    /// Sends requests over a pipeline whose window is at least [`Self::window_for`].
    pub fn new(pipeline: Pipeline<E>, clock: C, shape: Shape, workload: &Workload) -> Self {
        let nothing = InFlight { answers: 0, stores: false, began_ns: 0 };
        Self {
            pipeline,
            clock,
            shape,
            sizes: workload.sizes,
            trace: workload.trace(TRACE),
            gaps: workload::gaps(workload.seed),
            at: 0,
            round: 0,
            value: vec![0; workload.sizes.max()],
            idle: (0..shape.window as u32).collect(),
            in_flight: vec![nothing; shape.window],
            keys: vec![0; shape.window * shape.keys_per_get],
            to_store: Vec::with_capacity(shape.window),
            filling: 0..0,
            batches: 0,
            due_ns: 0.0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// Window that a pipeline needs: a request for several keys takes a place for each of the partitions.
    pub fn window_for(shape: Shape, partitions: usize) -> usize {
        shape.window * partitions.min(shape.keys_per_get)
    }

    /// Enqueues the next request of the trace.
    #[inline]
    fn start(&mut self, began_ns: u64) -> anyhow::Result<()> {
        let Some(tag) = self.idle.pop() else { bail!("no idle request") };
        if self.at + KEYS_MAX >= self.trace.len() {
            self.at = 0;
        }
        let request = self.trace[self.at];
        self.at += 1;
        let first = tag as usize * self.shape.keys_per_get;
        self.keys[first] = request.key() as u32;
        let stores = request.is_read_first();
        self.in_flight[tag as usize] = InFlight { answers: 1, stores, began_ns };
        if !request.is_get() {
            self.round += 1;
            return self.store(tag, request.key(), self.round);
        }
        if self.shape.keys_per_get == 1 || stores {
            self.pipeline.get(&key_bytes(request.key()), u64::from(tag))?;
            return Ok(());
        }
        // Combine the gets that follow, up to the keys of one request.
        let mut count = 1;
        while count < self.shape.keys_per_get && self.trace[self.at].is_get() && !self.trace[self.at].is_read_first() {
            self.keys[first + count] = self.trace[self.at].key() as u32;
            self.at += 1;
            count += 1;
        }
        let mut all = [[0; KEY_LEN]; KEYS_MAX];
        for (bytes, key) in all.iter_mut().zip(&self.keys[first..first + count]) {
            *bytes = key_bytes(u64::from(*key));
        }
        let all = all.each_ref().map(|bytes| &bytes[..]);
        self.in_flight[tag as usize].answers = self.pipeline.get_many(&all[..count], u64::from(tag))? as u16;
        Ok(())
    }

    #[inline]
    fn store(&mut self, tag: u32, key: u64, round: u64) -> anyhow::Result<()> {
        let value = &mut self.value[..self.sizes.of(key)];
        fill_value(value, key, round);
        self.pipeline.put(&key_bytes(key), value, PutOptions::default(), u64::from(tag))?;
        Ok(())
    }

    /// Starts the requests that are due. Returns whether there were any.
    #[inline]
    fn start_due(&mut self) -> anyhow::Result<bool> {
        let Some(rate) = self.shape.rate else {
            if self.idle.len() < self.shape.batch {
                return Ok(false);
            }
            let stamp_ns = if self.batches.is_multiple_of(SAMPLE_EVERY) { self.clock.now_ns() } else { 0 };
            self.batches += 1;
            (0..self.shape.batch).try_for_each(|_| self.start(stamp_ns))?;
            return Ok(true);
        };
        let now_ns = self.clock.now_ns();
        let mut starts = false;
        while self.due_ns <= now_ns as f64 && !self.idle.is_empty() {
            self.start(self.due_ns as u64)?;
            self.batches += 1;
            self.due_ns += 1e9 / rate * self.gaps[self.batches as usize % self.gaps.len()];
            starts = true;
        }
        Ok(starts)
    }

    /// Stores the next keys of those that must be there before the trace begins.
    fn fill_on(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.shape.batch.min(self.idle.len()) {
            let Some(key) = self.filling.next() else { break };
            let Some(tag) = self.idle.pop() else { break };
            self.in_flight[tag as usize] = InFlight { answers: 1, stores: false, began_ns: 0 };
            self.store(tag, key, 0)?;
        }
        Ok(())
    }

    /// Takes and checks the answers that have arrived, and counts them if they came in time.
    #[inline]
    fn take_answers(&mut self, counts: bool) -> anyhow::Result<()> {
        let sizes = self.sizes;
        while let Some(answer) = self.pipeline.poll() {
            let tag = answer.tag as usize;
            let state = &mut self.in_flight[tag];
            let asked = &self.keys[tag * self.shape.keys_per_get..];
            let good =
                |value: &[u8], key: u32| value.len() == sizes.of(u64::from(key)) && check_value(value, u64::from(key));
            let (all_good, [keys, gets, hits]) = match answer.response.context("a request failed")? {
                Response::Value(value) => (good(value, asked[0]), [1, 1, 1]),
                Response::Miss => (true, [1, 1, 0]),
                Response::Stored { .. } => (true, [1, 0, 0]),
                Response::Values(values) => {
                    let (mut all_good, mut hits) = (true, 0);
                    for (index, lookup) in answer.keys.iter().zip(values.iter()) {
                        match lookup {
                            Lookup::Hit(value) => {
                                hits += 1;
                                all_good &= good(value, asked[usize::from(*index)]);
                            }
                            Lookup::Miss => {}
                            Lookup::Omitted => all_good = false,
                        }
                    }
                    (all_good, [values.count() as u64, values.count() as u64, hits])
                }
                other => bail!("an answer to another request: {other:?}"),
            };
            ensure!(all_good, "the cache gave a wrong value");
            if counts {
                self.slice.done += keys;
                self.slice.calls += 1;
                self.slice.gets += gets;
                self.slice.hits += hits;
            }
            state.answers -= 1;
            if std::mem::take(&mut state.stores) {
                self.to_store.push(tag as u32);
            } else if state.answers == 0 {
                if state.began_ns != 0 {
                    self.slice.latency.saturating_record(self.clock.now_ns().saturating_sub(state.began_ns));
                }
                self.idle.push(tag as u32);
            }
        }
        while let Some(tag) = self.to_store.pop() {
            self.in_flight[tag as usize].answers = 1;
            self.round += 1;
            let key = self.keys[tag as usize * self.shape.keys_per_get];
            self.store(tag, u64::from(key), self.round)?;
        }
        Ok(())
    }
}

/// Orders for a driver of a cache's client.
pub trait Fills: Drive {
    /// Has the next slice store these keys, and end once they are stored.
    fn fill(&mut self, keys: std::ops::Range<u64>);
}

impl<E: Endpoint, C: Clock> Fills for Cache<E, C> {
    fn fill(&mut self, keys: std::ops::Range<u64>) {
        self.filling = keys;
    }
}

impl<E: Endpoint, C: Clock> Load for Cache<E, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        (self.batches, self.due_ns) = (0, now_ns as f64);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let fills = !self.filling.is_empty();
        let may_start = fills || self.span.may_start(now_ns, self.slice.done);
        let mut is_busy = false;
        if fills {
            self.fill_on()?;
            is_busy = true;
        } else if may_start {
            is_busy = self.start_due()?;
        }
        is_busy |= self.pipeline.turn();
        self.take_answers(may_start)?;
        if !may_start && self.idle.len() == self.shape.window {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }

    fn tend(&mut self) {
        // A bounded number of turns, whatever keeps arriving.
        let _ = (0..1000).take_while(|_| self.pipeline.turn()).count();
    }
}
