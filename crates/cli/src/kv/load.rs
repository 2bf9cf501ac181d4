//! What loads a cache over RPC: requests of a trace, many in flight, each answer checked.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use sinew::fabric::{Clock, PacketPort};
use sinew::host::{HostClock, Interrupt, WakeOnInterrupt};
use sinew::kv::cache::protocol::{KEYS_MAX, Lookup, PutOptions, Response};
use sinew::kv::cache::{ClientConfig, Connecting, Pipeline};
use sinew::rpc::Rpc as FabricRpc;

use crate::client::histogram;
use crate::machine::has_two_cpus;
use crate::workload::{KEY_LEN, Request, Workload, check_value, fill_value, key_bytes};

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
    /// Bytes of each value.
    pub value_size: usize,
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
pub struct Loader<P: PacketPort> {
    pipeline: Pipeline<P, HostClock>,
    load: Load,
    trace: Vec<Request>,
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
}

#[derive(Clone, Copy)]
struct InFlight {
    keys: [u32; KEYS_MAX],
    /// Answers that are still to come.
    answers: u16,
    /// When it was enqueued, if its latency counts; else 0.
    began_ns: u64,
}

impl<P: PacketPort> Loader<P> {
    /// Connects to the cache whose threads are at these addresses.
    pub fn connect(
        rpc: FabricRpc<P, HostClock>,
        addresses: Vec<String>,
        load: Load,
        workload: &Workload,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        let wake = interrupt.wake_on_interrupt(rpc.waker());
        // A request for several keys takes a place for each partition.
        let places = addresses.len().min(load.keys_per_get);
        let config = ClientConfig { window: load.window * places, sessions: 0 };
        let pipeline = Connecting::begin(rpc, addresses, config)?.wait()?;
        let nothing = InFlight { keys: [0; KEYS_MAX], answers: 0, began_ns: 0 };
        Ok(Self {
            pipeline,
            load,
            trace: workload.trace(TRACE),
            at: 0,
            round: 0,
            value: vec![0; load.value_size],
            clock: HostClock::new(),
            interrupt,
            _wake: wake,
            spins: has_two_cpus(),
            idle: (0..load.window as u32).collect(),
            in_flight: vec![nothing; load.window],
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

    /// Enqueues the next request of the trace; returns how many keys it is for.
    #[inline]
    fn start(&mut self, began_ns: u64) -> anyhow::Result<u64> {
        let Some(tag) = self.idle.pop() else { bail!("no idle request") };
        if self.at + KEYS_MAX >= self.trace.len() {
            self.at = 0;
        }
        let request = self.trace[self.at];
        self.at += 1;
        let state = &mut self.in_flight[tag as usize];
        (state.answers, state.began_ns, state.keys[0]) = (1, began_ns, request.key() as u32);
        let bytes = key_bytes(request.key());
        if !request.is_get() {
            self.round += 1;
            fill_value(&mut self.value, request.key(), self.round);
            self.pipeline.put(&bytes, &self.value, PutOptions::default(), u64::from(tag))?;
            return Ok(1);
        }
        if self.load.keys_per_get == 1 {
            self.pipeline.get(&bytes, u64::from(tag))?;
            return Ok(1);
        }
        // As many gets as follow, up to what one request is for.
        let mut count = 1;
        while count < self.load.keys_per_get && self.trace[self.at].is_get() {
            state.keys[count] = self.trace[self.at].key() as u32;
            self.at += 1;
            count += 1;
        }
        let mut all = [[0; KEY_LEN]; KEYS_MAX];
        for (bytes, key) in all.iter_mut().zip(&state.keys[..count]) {
            *bytes = key_bytes(u64::from(*key));
        }
        let all = all.each_ref().map(|bytes| &bytes[..]);
        state.answers = self.pipeline.get_many(&all[..count], u64::from(tag))? as u16;
        Ok(count as u64)
    }

    /// Takes the answers that are there, and checks them. Returns keys that were answered, those of gets, and hits.
    #[inline]
    fn take_answers(&mut self, latency: &mut Histogram<u64>) -> anyhow::Result<[u64; 3]> {
        let mut counts = [0; 3];
        let len = self.load.value_size;
        while let Some(answer) = self.pipeline.poll() {
            let tag = answer.tag as usize;
            let state = &mut self.in_flight[tag];
            let good = |value: &[u8], key: u32| value.len() == len && check_value(value, u64::from(key));
            let (all_good, [keys, gets, hits]) = match answer.response.context("a request failed")? {
                Response::Value(value) => (good(value, state.keys[0]), [1, 1, 1]),
                Response::Miss => (true, [1, 1, 0]),
                Response::Stored { .. } => (true, [1, 0, 0]),
                Response::Values(values) => {
                    let (mut all_good, mut hits) = (true, 0);
                    for (index, lookup) in answer.keys.iter().zip(values.iter()) {
                        match lookup {
                            Lookup::Hit(value) => {
                                hits += 1;
                                all_good &= good(value, state.keys[usize::from(*index)]);
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
            if state.answers == 0 {
                if state.began_ns != 0 {
                    latency.saturating_record(self.clock.now_ns().saturating_sub(state.began_ns));
                }
                self.idle.push(tag as u32);
            }
        }
        Ok(counts)
    }
}

impl<P: PacketPort> Loads for Loader<P> {
    fn fill(&mut self, from: u64, to: u64) -> anyhow::Result<()> {
        let mut ignored = histogram();
        let mut next = from;
        while next < to || self.idle.len() < self.load.window {
            for _ in 0..self.load.batch {
                if next >= to {
                    break;
                }
                let Some(tag) = self.idle.pop() else { break };
                fill_value(&mut self.value, next, 0);
                self.in_flight[tag as usize].answers = 1;
                self.in_flight[tag as usize].began_ns = 0;
                self.pipeline.put(&key_bytes(next), &self.value, PutOptions::default(), u64::from(tag))?;
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
        // At least one answer comes back, however little of the time others leave us.
        while now_ns < end_ns || counts[0] == 0 {
            if self.idle.len() >= batch {
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
