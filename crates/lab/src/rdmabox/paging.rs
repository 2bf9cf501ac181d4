//! A database whose pages lie in a donor's memory, as the network sees it: threads compute, read missing pages, and
//! write others out.

use std::cell::RefCell;
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::verbs::Slice;
use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::histogram;
use sinew_mem::{Arena, MessageBuffer};
use sinew_remote_memory::engine::{EngineConfig, EngineStats, Finished, Mode, Op, Request, Unlimited};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimClock};

use super::threads::{ChargedEngine, MEMORY, Testbed, since};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a block that is written out (V-A).
pub const BLOCK: usize = 128 << 10;
/// Pages that are read together: Linux's default swap readahead (`vm.page-cluster` is 3).
const PAGES: usize = 8;
/// Blocks that are written together: Linux's clusters of swap space, of 256 pages.
const BLOCKS: usize = 8;
/// Most requests of a thread.
const DEPTH: usize = PAGES + BLOCKS;
/// Time that a thread computes between two checks whether its engine has work for others; the checks stand for
/// interrupts.
const SLICE_NS: u64 = 1000;

/// Two workloads of YCSB (V-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// 95 % reads.
    Etc,
    /// 75 % reads.
    Sys,
}

impl Workload {
    /// Both workloads.
    pub const ALL: [Self; 2] = [Self::Etc, Self::Sys];

    /// Name in the figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etc => "ETC",
            Self::Sys => "SYS",
        }
    }

    /// Pages read for each block written: 13.2 M and 308 K in Table I, and a fifth of that for five times as many
    /// writes.
    fn pages_for_a_block(self) -> u64 {
        match self {
            Self::Etc => 43,
            Self::Sys => 9,
        }
    }
}

/// Place of operations' bytes (IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Copied to or from memory that was registered in advance (preMR).
    Copied,
    /// Left in place, where they are registered for each operation (dynMR).
    InPlace,
}

/// A kind of batching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Part of rows' names.
    pub id: &'static str,
    /// Name in the figures.
    pub name: &'static str,
    /// Treatment of requests that have gathered.
    pub mode: Mode,
    /// Place of the requests' bytes.
    pub bytes: Bytes,
}

const fn batching(id: &'static str, name: &'static str, mode: Mode, bytes: Bytes) -> Batching {
    Batching { id, name, mode, bytes }
}

/// The ways to batch in Figure 6.
pub const BATCHINGS: [Batching; 7] = [
    batching("single_pre", "Single preMR", Mode::Single, Bytes::Copied),
    batching("merge_pre", "Merge preMR", Mode::Merge, Bytes::Copied),
    batching("door_pre", "Door preMR", Mode::Doorbell, Bytes::Copied),
    batching("single_dyn", "Single dynMR", Mode::Single, Bytes::InPlace),
    batching("merge_dyn", "Merge dynMR", Mode::Merge, Bytes::InPlace),
    batching("door_dyn", "Door dynMR", Mode::Doorbell, Bytes::InPlace),
    batching("hybrid_dyn", "Hybrid dynMR", Mode::Hybrid, Bytes::InPlace),
];

/// A run of the database.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Reads and writes of the database.
    pub workload: Workload,
    /// Way to batch requests.
    pub batching: Batching,
    /// Threads, each on a core of its own.
    pub threads: usize,
    /// Mean time that each thread computes between two faults.
    pub compute_ns: u64,
    /// Chances that requests are adjacent.
    pub adjacent: Adjacent,
    /// Seed for everything random.
    pub seed: u64,
    /// Time before the measurement.
    pub warm_up_ns: u64,
    /// Time that is measured.
    pub measured_ns: u64,
}

/// Chance in a thousand that a page or block lies right behind the one before it, among those that are read or written
/// together.
#[derive(Clone, Copy, Debug)]
pub struct Adjacent {
    /// For pages that are read.
    pub pages: u64,
    /// For blocks that are written.
    pub blocks: u64,
}

impl Adjacent {
    /// Chances with which merging with preMR leaves as many operations as in Table I.
    pub const CALIBRATED: Self = Self { pages: 146, blocks: 140 };
}

impl Plan {
    /// The database with the parameters that Table I and Figures 6 and 7 share.
    pub fn new(workload: Workload, batching: Batching) -> Self {
        Self {
            workload,
            batching,
            threads: 8,
            compute_ns: 20_000,
            adjacent: Adjacent::CALIBRATED,
            seed: 1,
            warm_up_ns: 2_000_000,
            measured_ns: 120_000_000,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct PagingResult {
    /// Faults per second, in thousands, with the computing between them.
    pub kops: f64,
    /// Time of each fault, in ns.
    pub latency: Histogram<u64>,
    /// Counters of the engines.
    pub stats: EngineStats,
    /// Shares of the time for which the link to the host, the link from it and its NIC's requesters were busy.
    pub busy: [f64; 3],
}

impl PagingResult {
    /// Operations per read, and per write.
    pub fn operations(&self) -> [f64; 2] {
        let EngineStats { reads, writes, read_ops, write_ops, .. } = self.stats;
        [(read_ops, reads), (write_ops, writes)].map(|(ops, requests)| ops as f64 / requests.max(1) as f64)
    }
}

struct Tally {
    from_ns: u64,
    done: u64,
    latency: Histogram<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It computes for this many ns more.
    Computes(u64),
    Faults,
    Waits,
}

struct Thread {
    plan: Plan,
    engine: ChargedEngine,
    clock: SimClock,
    copy_line_ns: u64,
    random: SeededGenerator,
    pages: Vec<MessageBuffer>,
    block: Slice,
    phase: Phase,
    began_ns: u64,
    /// Requests that are not complete.
    awaited: usize,
    finished: Vec<Finished>,
    tally: Rc<RefCell<Tally>>,
}

impl Thread {
    fn copies(&self, bytes: usize) {
        if self.plan.batching.bytes == Bytes::Copied {
            self.clock.spend_ns(bytes.div_ceil(64) as u64 * self.copy_line_ns);
        }
    }

    /// Chooses `count` places of `len` bytes in the half of the memory at `from`, each of which follows the one before
    /// it `adjacent` times in a thousand.
    fn places(&mut self, from: usize, len: usize, count: usize, adjacent: u64) -> Vec<u64> {
        let (first, slots) = (from as u64, (MEMORY / 2 / len) as u64);
        let mut places: Vec<u64> = Vec::with_capacity(count);
        for _ in 0..count {
            let next = places
                .last()
                .map(|last| last + len as u64)
                .filter(|next| next + len as u64 <= first + (MEMORY / 2) as u64);
            let follows = self.random.below(1000) < adjacent;
            let place = next.filter(|_| follows).unwrap_or_else(|| first + self.random.below(slots) * len as u64);
            places.push(place);
        }
        places
    }

    fn fault(&mut self) {
        let Adjacent { pages, blocks } = self.plan.adjacent;
        for at in self.places(0, PAGE, PAGES, pages) {
            let target = self.pages.pop().expect("as many as a fault reads");
            self.submit(Op::Read { at, target });
        }
        let bursts = self.plan.workload.pages_for_a_block() * (BLOCKS / PAGES) as u64;
        if self.random.below(bursts) == 0 {
            for at in self.places(MEMORY / 2, BLOCK, BLOCKS, blocks) {
                self.copies(BLOCK);
                let source = self.block.clone();
                self.submit(Op::Write { at, source });
            }
        }
    }

    fn submit(&mut self, op: Op) {
        self.awaited += 1;
        self.engine.submit(Request { tag: 0, op });
    }

    fn take(&mut self) {
        for Finished { result, target, .. } in std::mem::take(&mut self.finished) {
            result.expect("nothing fails");
            self.awaited -= 1;
            if let Some(target) = target {
                self.copies(PAGE);
                self.pages.push(target);
            }
        }
    }
}

impl Actor for Thread {
    fn turn(&mut self) -> ActorState {
        match self.phase {
            Phase::Computes(0) => {
                self.phase = Phase::Faults;
                ActorState::Work
            }
            Phase::Computes(left_ns) => {
                if !self.engine.is_idle() {
                    self.engine.turn(&mut self.finished);
                }
                let slice_ns = left_ns.min(SLICE_NS);
                self.clock.spend_ns(slice_ns);
                self.phase = Phase::Computes(left_ns - slice_ns);
                ActorState::Work
            }
            // Requests submitted in one turn are posted in the next, so that other threads have time to add theirs
            // (Figure 4).
            Phase::Faults => {
                self.fault();
                self.phase = Phase::Waits;
                ActorState::Work
            }
            Phase::Waits => {
                let busy = self.engine.turn(&mut self.finished);
                self.take();
                if self.awaited == 0 {
                    let now_ns = self.clock.now_ns();
                    let mut tally = self.tally.borrow_mut();
                    if now_ns >= tally.from_ns {
                        tally.done += 1;
                        let _ = tally.latency.record((now_ns - self.began_ns).max(1));
                    }
                    drop(tally);
                    self.began_ns = now_ns;
                    self.phase = Phase::Computes(self.random.below(2 * self.plan.compute_ns));
                    return ActorState::Work;
                }
                if busy { ActorState::Work } else { ActorState::Idle }
            }
        }
    }
}

/// Runs a plan on hosts with NICs of a profile.
pub fn run(profile: &Profile, plan: &Plan) -> PagingResult {
    // The memory that engines copy to has room for all threads' requests in flight.
    let memory = plan.threads * BLOCKS * 2 * (BLOCK + 4096) + (4 << 20);
    let mut testbed = Testbed::new(profile, Unlimited, plan.seed, plan.threads, memory);
    let tally = Rc::new(RefCell::new(Tally { from_ns: plan.warm_up_ns, done: 0, latency: histogram() }));
    for number in 0..plan.threads {
        // A copy may be of any length, as in the paper.
        let config = EngineConfig { mode: plan.batching.mode, copied_piece_max: BLOCK, ..EngineConfig::default() };
        let engine = testbed.engine(number, 4, config);
        let foreign = Arena::private((DEPTH + 2) * (PAGE + 512) * 2 + 2 * BLOCK + (1 << 21)).expect("an arena");
        let arena = if plan.batching.bytes == Bytes::Copied { &foreign } else { testbed.arena(number) };
        let thread = Thread {
            plan: *plan,
            engine,
            clock: testbed.clock.clone(),
            copy_line_ns: profile.core.copy_line_ns,
            random: SeededGenerator::new(plan.seed.wrapping_mul(1000) + number as u64),
            pages: (0..PAGES).map(|_| arena.alloc(PAGE, PAGE).expect("room")).collect(),
            block: Slice::from(arena.alloc(BLOCK, BLOCK).expect("room").freeze()),
            phase: Phase::Computes(number as u64 * plan.compute_ns / plan.threads as u64),
            began_ns: 0,
            awaited: 0,
            finished: Vec::new(),
            tally: Rc::clone(&tally),
        };
        testbed.add(number, thread);
    }
    testbed.nics.cluster.run_until(plan.warm_up_ns);
    let before = testbed.shared().stats();
    testbed.nics.cluster.run_until(plan.warm_up_ns + plan.measured_ns);
    let usage = testbed.nics.nic(0).1;
    let tally = tally.borrow();
    PagingResult {
        kops: tally.done as f64 * 1e6 / plan.measured_ns as f64,
        latency: tally.latency.clone(),
        stats: since(&testbed.shared().stats(), &before),
        busy: [usage.receive, usage.transmit, usage.requesters],
    }
}
