//! What loads a cache over RPC: requests of a trace, many in flight, each answer checked.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use sinew::Endpoint;
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::kv::cache::protocol::{KEYS_MAX, Lookup, PutOptions, Response};
use sinew::kv::cache::{ClientConfig, Connecting, Pipeline};

use crate::client::histogram;
use crate::machine::has_two_cpus;
use crate::workload::{self, KEY_LEN, Request, Sizes, Workload, check_value, fill_value, key_bytes};

/// Requests that are drawn ahead.
const TRACE: usize = 1 << 22;
/// Of every so many batches the latency of one is recorded.
const SAMPLE_EVERY: u64 = 32;
/// The clock is looked at every so many turns of the loop.
const TURNS_PER_LOOK: u64 = 16;

/// What a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in flight.
    pub window: usize,
    /// Requests that are enqueued together.
    pub batch: usize,
    /// Keys of one request; from 1 to [`KEYS_MAX`].
    pub keys_per_get: usize,
    /// Requests in a second, whether answers come or not; as many as can be when `None`. Latencies are then those from when a
    /// request should have been made, so that one that has to wait for others counts as slow as its user finds it.
    pub rate: Option<f64>,
}

/// What came of a slice.
pub struct Slice {
    /// Keys that were asked for or stored.
    pub keys: u64,
    /// Those that were asked for.
    pub gets: u64,
    /// Those that were there.
    pub hits: u64,
    pub elapsed_ns: u64,
    /// How long requests took, or a sample of them.
    pub latency: Histogram<u64>,
}

impl Slice {
    /// Millions of keys per second.
    pub fn mops(&self) -> f64 {
        self.keys as f64 * 1e3 / self.elapsed_ns.max(1) as f64
    }
}

/// A client of any fabric.
pub trait Loads {
    /// Stores every key of `from..to`.
    fn fill(&mut self, from: u64, to: u64) -> anyhow::Result<()>;
    /// Goes on with the trace.
    fn load(&mut self, duration: Duration) -> anyhow::Result<Slice>;
    /// Answers a server that asks whether anybody is there.
    fn keep_alive(&mut self);
}

/// A client on one fabric.
pub struct Loader<E: Endpoint> {
    pipeline: Pipeline<E>,
    load: Load,
    sizes: Sizes,
    trace: Vec<Request>,
    /// Times between requests, in multiples of their mean.
    gaps: Vec<f64>,
    /// Of the next request of the trace.
    at: usize,
    /// Differs from put to put, so that values do.
    round: u64,
    value: Vec<u8>,
    clock: HostClock,
    interrupt: Interrupt,
    /// Ctrl-C ends a sleep of the loop.
    _wake: WakeOnInterrupt,
    spins: bool,
    /// Tags that are not in flight.
    idle: Vec<u32>,
    /// By tag.
    in_flight: Vec<InFlight>,
    /// By tag and place in the request.
    keys: Vec<u32>,
    /// Tags whose values came, and are now to be stored anew.
    to_store: Vec<u32>,
}

#[derive(Clone, Copy)]
struct InFlight {
    /// Answers that are still to come.
    answers: u16,
    /// Whether a PUT of the same key is to follow.
    stores: bool,
    /// When it was enqueued, if its latency counts; else 0.
    began_ns: u64,
}

impl<E: Endpoint> Loader<E> {
    /// Connects to the cache whose threads are at these addresses.
    pub fn connect(
        rpc: E,
        addresses: Vec<String>,
        load: Load,
        workload: &Workload,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let wake = interrupt.wake_on_interrupt(rpc.waker());
        // A request for several keys takes a place for each partition.
        let places = addresses.len().min(load.keys_per_get);
        let config = ClientConfig { window: load.window * places, ..ClientConfig::default() };
        let pipeline = Connecting::begin(rpc, addresses, config)?.wait()?;
        let nothing = InFlight { answers: 0, stores: false, began_ns: 0 };
        Ok(Self {
            pipeline,
            load,
            sizes: workload.sizes,
            trace: workload.trace(TRACE),
            gaps: workload::gaps(workload.seed),
            at: 0,
            round: 0,
            value: vec![0; workload.sizes.max()],
            clock: HostClock::new(),
            interrupt,
            _wake: wake,
            spins: has_two_cpus(),
            idle: (0..load.window as u32).collect(),
            in_flight: vec![nothing; load.window],
            keys: vec![0; load.window * load.keys_per_get],
            to_store: Vec::with_capacity(load.window),
        })
    }

    fn check_interrupt(&self) -> anyhow::Result<()> {
        ensure!(!self.interrupt.is_set(), "interrupted");
        Ok(())
    }

    /// One turn; with nothing to do and no processor to spare it is a short sleep.
    #[inline]
    fn turn(&mut self) {
        if !self.pipeline.turn() && !self.spins {
            std::thread::sleep(Duration::from_micros(20));
        }
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
        let first = tag as usize * self.load.keys_per_get;
        self.keys[first] = request.key() as u32;
        let stores = request.is_read_first();
        self.in_flight[tag as usize] = InFlight { answers: 1, stores, began_ns };
        if !request.is_get() {
            self.round += 1;
            self.store(tag, request.key(), self.round)?;
            return Ok(());
        }
        if self.load.keys_per_get == 1 || stores {
            self.pipeline.get(&key_bytes(request.key()), u64::from(tag))?;
            return Ok(());
        }
        // As many gets as follow, up to what one request is for.
        let mut count = 1;
        while count < self.load.keys_per_get && self.trace[self.at].is_get() && !self.trace[self.at].is_read_first() {
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

    /// Takes the answers that are there, and checks them. Returns keys that were answered, those of gets, and hits.
    #[inline]
    fn take_answers(&mut self, latency: &mut Histogram<u64>) -> anyhow::Result<[u64; 3]> {
        let mut counts = [0; 3];
        let sizes = self.sizes;
        while let Some(answer) = self.pipeline.poll() {
            let tag = answer.tag as usize;
            let state = &mut self.in_flight[tag];
            let asked = &self.keys[tag * self.load.keys_per_get..];
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
                other => bail!("an answer to something else: {other:?}"),
            };
            ensure!(all_good, "the cache gave a wrong value");
            counts = [counts[0] + keys, counts[1] + gets, counts[2] + hits];
            state.answers -= 1;
            if std::mem::take(&mut state.stores) {
                self.to_store.push(tag as u32);
            } else if state.answers == 0 {
                if state.began_ns != 0 {
                    latency.saturating_record(self.clock.now_ns().saturating_sub(state.began_ns));
                }
                self.idle.push(tag as u32);
            }
        }
        while let Some(tag) = self.to_store.pop() {
            self.in_flight[tag as usize].answers = 1;
            self.round += 1;
            let key = self.keys[tag as usize * self.load.keys_per_get];
            self.store(tag, u64::from(key), self.round)?;
        }
        Ok(counts)
    }
}

impl<E: Endpoint> Loads for Loader<E> {
    fn fill(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let mut ignored = histogram();
        let mut next = from;
        while next < to || self.idle.len() < self.load.window {
            for _ in 0..self.load.batch {
                if next >= to {
                    break;
                }
                let Some(tag) = self.idle.pop() else { break };
                self.in_flight[tag as usize] = InFlight { answers: 1, stores: false, began_ns: 0 };
                self.store(tag, next, 0)?;
                next += 1;
            }
            self.turn();
            self.take_answers(&mut ignored)?;
            self.check_interrupt()?;
        }
        Ok(())
    }

    fn load(&mut self, duration: Duration) -> anyhow::Result<Slice> {
        let mut latency = histogram();
        let batch = self.load.batch;
        let mut counts = [0; 3];
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let mut now_ns = began_ns;
        let (mut turns, mut batches) = (0u64, 0u64);
        let mean_gap_ns = self.load.rate.map(|rate| 1e9 / rate);
        let mut due_ns = began_ns as f64;
        // At least one answer comes back, however little of the time others leave us.
        while now_ns < end_ns || counts[0] == 0 {
            if let Some(mean_gap_ns) = mean_gap_ns {
                now_ns = self.clock.now_ns();
                while due_ns <= now_ns as f64 && !self.idle.is_empty() {
                    self.start(due_ns as u64)?;
                    batches += 1;
                    due_ns += mean_gap_ns * self.gaps[batches as usize % self.gaps.len()];
                }
            } else if self.idle.len() >= batch {
                let stamp_ns = if batches.is_multiple_of(SAMPLE_EVERY) { self.clock.now_ns() } else { 0 };
                batches += 1;
                for _ in 0..batch {
                    self.start(stamp_ns)?;
                }
            }
            self.turn();
            let more = self.take_answers(&mut latency)?;
            counts = std::array::from_fn(|at| counts[at] + more[at]);
            turns += 1;
            if turns.is_multiple_of(TURNS_PER_LOOK) {
                now_ns = self.clock.now_ns();
                self.check_interrupt()?;
            }
        }
        let elapsed_ns = now_ns - began_ns;
        while self.idle.len() < self.load.window {
            self.turn();
            self.take_answers(&mut latency)?;
            self.check_interrupt()?;
        }
        let [keys, gets, hits] = counts;
        Ok(Slice { keys, gets, hits, elapsed_ns, latency })
    }

    fn keep_alive(&mut self) {
        // No more than that, whatever keeps coming.
        let _ = (0..1000).take_while(|_| self.pipeline.turn()).count();
    }
}
