//! Threads of one host that write to and read from a donor's memory, each with an engine of its own.
//!
//! The engine is the one for real fabrics. The cost of its own code, other than verbs, is charged here: for each time
//! that a thread takes the lock of the shared state, and for each request that it puts into the queue.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, Slice};
use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::histogram;
use sinew_mem::atomic::Arc;
use sinew_mem::{Arena, MessageBuffer};
use sinew_remote_memory::engine::{
    Admission, DonorQueuePairs, Engine, EngineConfig, EngineStats, Finished, Mode, Op, Request, Shared, SharedConfig,
    VerbsPath, VerbsPathConfig,
};
use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Actor, ActorState, SimClock, SimDomain, SimExposed, SimVerbs};

use crate::nics::cluster::NicCluster;
use crate::services::charges::SharedWord;

/// Time for a request's way through the queue, beside the lock: an estimate, some hundred instructions.
pub const REQUEST_NS: u64 = 30;

/// Time of a turn in which a thread finds nothing and examines the queue, where others' requests wait for the window:
/// an estimate.
const EMPTY_TURN_NS: u64 = 50;

/// A run of threads.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads, each on a core of its own.
    pub threads: usize,
    /// Queue pairs of each thread.
    pub queue_pairs: usize,
    /// Requests of each thread that are in flight or in the queue.
    pub depth: usize,
    /// Bytes of each request.
    pub len: usize,
    /// Whether the requests write; otherwise they read.
    pub writes: bool,
    /// Treatment of requests that have gathered.
    pub mode: Mode,
    /// Chance in a thousand that a request lies right behind the one that its thread made before; the others have
    /// random places.
    pub adjacent: u64,
    /// Seed for the places.
    pub seed: u64,
    /// Time before the measurement.
    pub warm_up_ns: u64,
    /// Time that is measured.
    pub measured_ns: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct ThreadsResult {
    /// Requests per second, in thousands.
    pub kiops: f64,
    /// Time from a request's submission to its completion, in ns.
    pub latency: Histogram<u64>,
    /// Bytes in flight, on average.
    pub in_flight_bytes: f64,
    /// Share of work queue elements that the NIC had evicted before their turn came.
    pub wqe_misses: f64,
    /// Fetches of a queue pair's state per element.
    pub state_misses: f64,
    /// Use of the asking host's NIC.
    pub usage: NicUse,
    /// Operations per request.
    pub operations: f64,
}

/// Counts of all threads.
pub struct Tally {
    from_ns: u64,
    done: u64,
    latency: Histogram<u64>,
    samples: u64,
    bytes: u64,
}

/// The two hosts, and what the asking host's threads share.
pub struct Testbed {
    /// The hosts: the first asks, and the second lends.
    pub nics: NicCluster,
    /// The cluster's clock.
    pub clock: SimClock,
    lender: (SimVerbs, SimDomain),
    memory: SimExposed,
    shared: Arc<Shared>,
    lock: Rc<RefCell<SharedWord>>,
    /// Device handle and domain of each thread; each domain knows the memory of all threads.
    threads: Vec<(SimVerbs, SimDomain)>,
    arenas: Vec<Arena>,
    kept_alive: Vec<Box<dyn Any>>,
}

/// Bytes of the donor's memory. Only the addresses in the modelled translation caches depend on it.
pub const MEMORY: usize = 256 << 20;

impl Testbed {
    /// Two hosts with NICs of a profile: `threads` threads with `memory` bytes each, and the donor.
    pub fn new(
        profile: &Profile,
        admission: impl Admission + 'static,
        seed: u64,
        threads: usize,
        memory: usize,
    ) -> Self {
        let mut nics = NicCluster::new(profile, 2, seed);
        let clock = nics.clock();
        let mut open = |host| {
            let device = nics.open(host);
            let domain = device.protection_domain().expect("a domain");
            (device, domain)
        };
        let donor = open(1);
        let threads: Vec<_> = (0..threads).map(|_| open(0)).collect();
        let arenas: Vec<Arena> = threads.iter().map(|(_, domain)| domain.arena(memory).expect("an arena")).collect();
        for (own, (_, domain)) in threads.iter().enumerate() {
            let others = arenas.iter().enumerate().filter(|(number, _)| *number != own);
            others.for_each(|(_, arena)| domain.share_arena(arena));
        }
        let memory = donor.1.expose(MEMORY, Access::ALL).expect("memory");
        let shared = Shared::new("donor", MEMORY as u64, admission, SharedConfig::default());
        let lock = SharedWord::new(clock.clone(), &profile.core);
        Self { nics, clock, lender: donor, memory, shared, lock, threads, arenas, kept_alive: Vec::new() }
    }

    /// State that the engines share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Memory of a thread.
    pub fn arena(&self, number: usize) -> &Arena {
        &self.arenas[number]
    }

    /// Makes the engine of a thread.
    pub fn engine(&mut self, number: usize, queue_pairs: usize, config: EngineConfig) -> ChargedEngine {
        let (device, domain) = &self.threads[number];
        // An engine copies to the first arena, which is the thread's own.
        let mut arenas = self.arenas.clone();
        arenas.swap(0, number);
        let path_config = VerbsPathConfig { queue_pairs, depth: 1024, ..VerbsPathConfig::default() };
        let mut path = VerbsPath::new(device, domain, &arenas, &path_config).expect("queue pairs");
        let lending =
            DonorQueuePairs::new(&self.lender.0, &self.lender.1, &path.addresses()).expect("the donor has as many");
        path.connect(&lending.addresses(), self.memory.remote()).expect("a connection");
        self.kept_alive.push(Box::new(lending));
        ChargedEngine {
            engine: Engine::new(&self.shared, path, config),
            lock: Rc::clone(&self.lock),
            core: number,
            clock: self.clock.clone(),
        }
    }

    /// Starts the actor of a thread.
    pub fn add(&mut self, number: usize, actor: impl Actor + 'static) {
        self.nics.add(&self.threads[number].0, actor);
    }
}

/// An engine whose core pays for the engine's own code.
pub struct ChargedEngine {
    engine: Engine<VerbsPath<SimVerbs>>,
    lock: Rc<RefCell<SharedWord>>,
    core: usize,
    clock: SimClock,
}

impl ChargedEngine {
    /// Puts a request into the queue.
    ///
    /// # Panics
    ///
    /// When there is no room, or when the request lies outside the memory.
    pub fn submit(&mut self, request: Request) {
        self.clock.spend_ns(REQUEST_NS);
        self.lock.borrow_mut().change(self.core);
        self.engine.submit(request).expect("there is room, and it lies in the memory");
    }

    /// Whether it has nothing to be turned for.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// Turns the engine and takes what has completed. Returns whether there was anything to do.
    pub fn turn(&mut self, finished: &mut Vec<Finished>) -> bool {
        let busy = self.engine.turn(self.clock.now_ns());
        if busy {
            self.lock.borrow_mut().change(self.core);
        }
        self.engine.poll(finished, usize::MAX);
        busy
    }
}

/// A thread that keeps as many requests in flight as it may.
struct Thread {
    plan: Plan,
    engine: ChargedEngine,
    clock: SimClock,
    random: SeededGenerator,
    shared: Arc<Shared>,
    targets: Vec<MessageBuffer>,
    source: Slice,
    /// Time at which each request was submitted, by its tag.
    submitted_ns: Vec<u64>,
    free: Vec<u64>,
    /// Address behind the last request.
    next: u64,
    finished: Vec<Finished>,
    tally: Rc<RefCell<Tally>>,
    is_fresh: bool,
}

impl Thread {
    fn next_address(&mut self) -> u64 {
        let len = self.plan.len as u64;
        // Nothing is drawn if no request is to follow another.
        let follows = self.plan.adjacent > 0 && self.random.below(1000) < self.plan.adjacent;
        let address = match follows && self.next + len <= MEMORY as u64 {
            true => self.next,
            false => self.random.below(MEMORY as u64 / len) * len,
        };
        self.next = address + len;
        address
    }

    fn submit(&mut self) -> bool {
        let has_free = !self.free.is_empty();
        while let Some(tag) = self.free.pop() {
            self.submitted_ns[tag as usize] = self.clock.now_ns();
            let at = self.next_address();
            let op = if self.plan.writes {
                Op::Write { at, source: self.source.clone() }
            } else {
                Op::Read { at, target: self.targets.pop().expect("as many as requests") }
            };
            self.engine.submit(Request { tag, op });
        }
        has_free
    }

    fn handle_finished(&mut self) {
        let now_ns = self.clock.now_ns();
        let mut tally = self.tally.borrow_mut();
        for Finished { tag, result, target } in self.finished.drain(..) {
            result.expect("nothing fails");
            self.targets.extend(target);
            self.free.push(tag);
            if now_ns >= tally.from_ns {
                tally.done += 1;
                let _ = tally.latency.record((now_ns - self.submitted_ns[tag as usize]).max(1));
            }
        }
        if now_ns >= tally.from_ns {
            tally.samples += 1;
            tally.bytes += self.shared.in_flight_bytes();
        }
    }
}

impl Actor for Thread {
    fn turn(&mut self) -> ActorState {
        // Requests submitted in one turn are posted in the next, so that other threads have time to add theirs (Figure
        // 4).
        if std::mem::take(&mut self.is_fresh) && self.submit() {
            return ActorState::Work;
        }
        let busy = self.engine.turn(&mut self.finished);
        self.handle_finished();
        self.is_fresh = !self.free.is_empty();
        if busy || self.is_fresh {
            return ActorState::Work;
        }
        if self.shared.unfinished() as u64 * self.plan.len as u64 > self.shared.in_flight_bytes() {
            // The window may open when others' requests complete.
            return ActorState::IdleUntil(self.clock.now_ns() + EMPTY_TURN_NS);
        }
        ActorState::Idle
    }
}

/// Runs a plan on hosts with NICs of a profile.
pub fn run(profile: &Profile, plan: &Plan, admission: impl Admission + 'static) -> ThreadsResult {
    let memory = (plan.depth + 2) * (plan.len + 512) * 2 + (1 << 21);
    let mut testbed = Testbed::new(profile, admission, plan.seed, plan.threads, memory);
    let tally =
        Rc::new(RefCell::new(Tally { from_ns: plan.warm_up_ns, done: 0, latency: histogram(), samples: 0, bytes: 0 }));
    for number in 0..plan.threads {
        let config = EngineConfig { mode: plan.mode, ..EngineConfig::default() };
        let engine = testbed.engine(number, plan.queue_pairs, config);
        let arena = testbed.arena(number);
        let buffer = |_| arena.alloc(plan.len, plan.len).expect("room");
        let targets = if plan.writes { Vec::new() } else { (0..plan.depth).map(buffer).collect() };
        let thread = Thread {
            plan: *plan,
            engine,
            clock: testbed.clock.clone(),
            random: SeededGenerator::new(plan.seed.wrapping_mul(1000) + number as u64),
            shared: Arc::clone(&testbed.shared),
            targets,
            source: Slice::from(buffer(0).freeze()),
            submitted_ns: vec![0; plan.depth],
            free: (0..plan.depth as u64).collect(),
            next: 0,
            finished: Vec::new(),
            tally: Rc::clone(&tally),
            is_fresh: true,
        };
        testbed.add(number, thread);
    }
    testbed.nics.cluster.run_until(plan.warm_up_ns);
    let (before, engines_before) = (testbed.nics.nic(0).0, testbed.shared.stats());
    testbed.nics.cluster.run_until(plan.warm_up_ns + plan.measured_ns);
    let (nic, usage) = testbed.nics.nic(0);
    let engines = since(&testbed.shared.stats(), &engines_before);
    let requests = (nic.requests - before.requests).max(1) as f64;
    let tally = tally.borrow();
    ThreadsResult {
        kiops: tally.done as f64 * 1e6 / plan.measured_ns as f64,
        latency: tally.latency.clone(),
        in_flight_bytes: tally.bytes as f64 / tally.samples.max(1) as f64,
        wqe_misses: (nic.wqe_misses - before.wqe_misses) as f64 / requests,
        state_misses: (nic.requester_misses - before.requester_misses) as f64 / requests,
        usage,
        operations: (engines.read_ops + engines.write_ops) as f64 / (engines.reads + engines.writes).max(1) as f64,
    }
}

/// Counters of engines between two moments.
pub fn since(now: &EngineStats, before: &EngineStats) -> EngineStats {
    let mut stats = *now;
    stats.reads -= before.reads;
    stats.writes -= before.writes;
    stats.bytes -= before.bytes;
    stats.read_ops -= before.read_ops;
    stats.write_ops -= before.write_ops;
    stats.merged -= before.merged;
    stats.copied -= before.copied;
    stats.chained -= before.chained;
    stats.doorbells -= before.doorbells;
    stats.ordered -= before.ordered;
    stats.held_back -= before.held_back;
    stats
}
