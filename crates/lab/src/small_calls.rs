//! Small calls from all threads of a cluster to all others (nsdi19 6.2 and 6.3).

use std::cell::RefCell;
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::{Address, Clock, SeededGenerator};
use sinew_mem::MessageBuffer;
use sinew_rpc::{Config, Congestion, SessionEvent, SessionId};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, PrefetchStep, SimClock, Topology};

use crate::programs::{Endpoint, SHORT, SINK, nsdi19, sink, start, turn};

const MS: u64 = 1_000_000;
/// Sessions that a thread opens at a time: a connect request is as good as lost if a thousand arrive at once.
const OPENING_MAX: usize = 16;
/// Time by which all sessions must be open.
const SET_UP_NS: u64 = 1_000 * MS;

/// A run: each thread has a session to every other one, and keeps batches of calls in flight on random sessions.
#[derive(Clone, Copy, Debug)]
pub struct SmallCalls {
    /// Hosts of the cluster, from the first on.
    pub nodes: usize,
    /// Threads of each host, with an endpoint each.
    pub threads: usize,
    /// Calls of a batch. When all of them have completed, the next batch begins.
    pub batch: usize,
    /// Most calls in flight of each thread.
    pub window: usize,
    /// Rate of the links in Gb/s as congestion control assumes it; none runs without congestion control.
    pub rate_gbps: Option<f64>,
    /// Time before anything is counted, once all sessions are open.
    pub warm_up_ns: u64,
    /// Time that is counted.
    pub measured_ns: u64,
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Calls that were answered in the measured time.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Time from the beginning of a batch to the completion of each of its calls.
    pub latencies_ns: Histogram<u64>,
    /// Packets that clients retransmitted.
    pub retransmissions: u64,
    /// Packets that arrived at any host.
    pub delivered: u64,
    /// Sessions of each node on average, in both roles.
    pub sessions_per_node: f64,
    /// Time at which the last session was open.
    pub open_ns: u64,
}

impl SmallCalls {
    /// Value of `progress` in [`Self::run`] when counting begins.
    pub const COUNTED_FROM: f64 = 0.4;

    /// Calls that each node made per second, in millions.
    pub fn rate_mops(&self, outcome: &Outcome) -> f64 {
        outcome.calls as f64 * 1e3 / self.measured_ns as f64 / self.nodes as f64
    }

    /// Runs it. `progress` is called with the part that is done, from 0 to 1.
    pub fn run(&self, topology: Topology, progress: &mut dyn FnMut(f64)) -> Outcome {
        let network = Network::new(topology, 1).expect("the topology is the paper's");
        let mut cluster = Cluster::new(&network);
        let threads = self.nodes * self.threads;
        let config = Config {
            overcommit: true,
            sessions_max: 2 * threads,
            // Answers are short, and two million sessions have one each.
            preallocated_response_len: SHORT,
            congestion: self.rate_gbps.map(Congestion::timely),
            ..nsdi19()
        };
        let nexus = sink(config);
        let port = PortConfig { arena_bytes: 16 << 20, ..PortConfig::default() };
        let shared = Rc::new(RefCell::new(Shared::new()));
        for thread in 0..threads {
            start(&mut cluster, &nexus, HostId(thread % self.nodes), &name_of(thread), port, |rpc, clock| {
                Thread::new(rpc, clock, thread, threads, self, &shared)
            });
        }
        let all_open = |_: &Cluster| shared.borrow().ready == threads;
        for step in 1..=100 {
            let done = cluster.run_while(SET_UP_NS / 100 * step, all_open).expect("threads poll");
            progress(0.3 * shared.borrow().open as f64 / (threads * (threads - 1)) as f64);
            if done {
                break;
            }
        }
        assert!(all_open(&cluster), "{} sessions are open after {SET_UP_NS} ns", shared.borrow().open);
        // From here on, two million session ends are accessed at random. Huge pages are only a hint: nothing depends on
        // them.
        let _ = sinew_host::collapse_to_huge_pages();
        let open_ns = network.now_ns();
        cluster.run_until(open_ns + self.warm_up_ns);
        progress(Self::COUNTED_FROM);
        shared.borrow_mut().clear();
        let delivered = network.stats().delivered;
        for step in 1..=50 {
            cluster.run_until(open_ns + self.warm_up_ns + self.measured_ns / 50 * step);
            progress(Self::COUNTED_FROM + (1.0 - Self::COUNTED_FROM) / 50.0 * step as f64);
        }
        let mut shared = shared.borrow_mut();
        Outcome {
            calls: shared.calls,
            failed: shared.failed,
            latencies_ns: std::mem::replace(&mut shared.latencies_ns, histogram()),
            retransmissions: shared.retransmissions,
            delivered: network.stats().delivered - delivered,
            sessions_per_node: 2.0 * shared.open as f64 / self.nodes as f64,
            open_ns,
        }
    }
}

fn name_of(thread: usize) -> String {
    format!("thread{thread}")
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000 * MS, 3).expect("three digits of up to ten seconds")
}

/// State and counts of all threads.
struct Shared {
    open: usize,
    /// Threads whose sessions are all open.
    ready: usize,
    calls: u64,
    failed: u64,
    retransmissions: u64,
    latencies_ns: Histogram<u64>,
}

impl Shared {
    fn new() -> Self {
        Self { open: 0, ready: 0, calls: 0, failed: 0, retransmissions: 0, latencies_ns: histogram() }
    }

    fn clear(&mut self) {
        (self.calls, self.failed, self.retransmissions) = (0, 0, 0);
        self.latencies_ns.reset();
    }
}

struct Batch {
    began_ns: u64,
    left: usize,
}

/// A thread, which is a client and a server of all others.
struct Thread {
    rpc: Endpoint,
    clock: SimClock,
    number: usize,
    threads: usize,
    /// Other threads to which it has begun to open a session.
    connects_begun: usize,
    sessions: Vec<SessionId>,
    batch: usize,
    batches: Vec<Batch>,
    /// Batches that may begin.
    idle: Vec<usize>,
    buffers: Vec<(MessageBuffer, MessageBuffer)>,
    /// Sessions of the calls that are about to be made.
    chosen: Vec<SessionId>,
    generator: SeededGenerator,
    retransmissions: u64,
    shared: Rc<RefCell<Shared>>,
}

impl Thread {
    fn new(
        rpc: Endpoint,
        clock: SimClock,
        number: usize,
        threads: usize,
        plan: &SmallCalls,
        shared: &Rc<RefCell<Shared>>,
    ) -> Self {
        let batches = plan.window / plan.batch;
        let buffer = || rpc.alloc(SHORT).expect("the arena is large enough");
        let buffers = (0..batches * plan.batch).map(|_| (buffer(), buffer())).collect();
        Self {
            clock,
            number,
            threads,
            connects_begun: 0,
            sessions: Vec::with_capacity(threads - 1),
            batch: plan.batch,
            batches: (0..batches).map(|_| Batch { began_ns: 0, left: 0 }).collect(),
            idle: (0..batches).collect(),
            buffers,
            chosen: Vec::new(),
            generator: SeededGenerator::new(number as u64),
            retransmissions: 0,
            shared: Rc::clone(shared),
            rpc,
        }
    }

    /// Opens sessions to the others, in turn, beginning with its neighbour.
    fn connect(&mut self) {
        let others = self.threads - 1;
        while let Some(event) = self.rpc.poll_event() {
            match event {
                SessionEvent::Connected(session) => self.sessions.push(session),
                other => panic!("no fault ends sessions here, and yet: {other:?}"),
            }
            let mut shared = self.shared.borrow_mut();
            shared.open += 1;
            shared.ready += usize::from(self.sessions.len() == others);
        }
        while self.connects_begun < others && self.connects_begun - self.sessions.len() < OPENING_MAX {
            self.connects_begun += 1;
            let name = name_of((self.number + self.connects_begun) % self.threads);
            let address: Address = format!("sim://{name}").parse().expect("an address");
            self.rpc.begin_connect(&address).expect("the others have ports");
        }
    }

    fn handle_completions(&mut self) {
        let mut shared = self.shared.borrow_mut();
        let now_ns = self.clock.now_ns();
        while let Some(completion) = self.rpc.poll_completion() {
            let batch = &mut self.batches[completion.tag as usize];
            match completion.result {
                Ok(()) => {
                    shared.calls += 1;
                    shared.latencies_ns.saturating_record(now_ns - batch.began_ns);
                }
                Err(_) => shared.failed += 1,
            }
            batch.left -= 1;
            if batch.left == 0 {
                self.idle.push(completion.tag as usize);
            }
            self.buffers.push((completion.request, completion.response));
        }
        let retransmissions = self.rpc.stats().retransmissions;
        shared.retransmissions += retransmissions - self.retransmissions;
        self.retransmissions = retransmissions;
    }

    fn begin_batches(&mut self) {
        // All sessions are prefetched before the first call: the sessions of a hundred nodes are in no cache.
        for _ in 0..self.idle.len() * self.batch {
            let session = self.sessions[self.generator.below(self.sessions.len() as u64) as usize];
            self.rpc.prefetch_session(session);
            self.chosen.push(session);
        }
        let mut chosen = self.chosen.drain(..);
        while let Some(batch) = self.idle.pop() {
            self.batches[batch] = Batch { began_ns: self.clock.now_ns(), left: self.batch };
            for session in chosen.by_ref().take(self.batch) {
                let (request, response) = self.buffers.pop().expect("each call of each batch has two buffers");
                let queued = self.rpc.enqueue_request(session, SINK, request, response, batch as u64);
                queued.expect("the session is open");
            }
        }
    }
}

impl Actor for Thread {
    fn turn(&mut self) -> ActorState {
        if self.sessions.len() < self.threads - 1 {
            self.connect();
        }
        if self.sessions.len() == self.threads - 1 {
            self.handle_completions();
            self.begin_batches();
        }
        turn(&mut self.rpc)
    }

    fn prefetch(&self, packet: &[u8], step: PrefetchStep) {
        match step {
            PrefetchStep::First => self.rpc.prefetch_packet(packet),
            PrefetchStep::Second => self.rpc.prefetch_buffers(packet),
        }
    }
}
