//! A database whose pages lie in a donor's memory, as far as the network sees it: threads that compute, read pages that are missing, and write others out.

use std::cell::RefCell;
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::verbs::Slice;
use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::histogram;
use sinew_mem::{Arena, MessageBuffer};
use sinew_remote_memory::engine::{EngineConfig, EngineStats, Finished, Mode, Op, Request, Unlimited};
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, Doing, SimClock};

use super::threads::{Charged, Ground, MEMORY, since};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a block that is written out (V-A).
pub const BLOCK: usize = 128 << 10;
/// Pages that are read together: Linux's default readahead of swap (`vm.page-cluster` is 3).
const PAGES: usize = 8;
/// Blocks that are written together: Linux's clusters of swap space, of 256 pages.
const BLOCKS: usize = 8;
/// Requests of a thread at most.
const DEPTH: usize = PAGES + BLOCKS;
/// How long a thread computes until it looks whether its engine has something to do for others, as an interrupt would have it do.
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
    /// Both.
    pub const ALL: [Self; 2] = [Self::Etc, Self::Sys];

    /// As figures have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etc => "ETC",
            Self::Sys => "SYS",
        }
    }

    /// Read pages for each written block: Table I's 13.2 M and 308 K, and a fifth of that where there are five times as many writes.
    fn pages_for_a_block(self) -> u64 {
        match self {
            Self::Etc => 43,
            Self::Sys => 9,
        }
    }
}

/// Where operations have their bytes (IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// In memory that was registered beforehand, and are copied (preMR).
    Copied,
    /// Where they are, which is registered for each operation (dynMR).
    InPlace,
}

/// A way to batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// In rows' names.
    pub id: &'static str,
    /// As figures have it.
    pub name: &'static str,
    /// What becomes of requests that gathered.
    pub mode: Mode,
    /// Where their bytes are.
    pub bytes: Bytes,
}

const fn way(id: &'static str, name: &'static str, mode: Mode, bytes: Bytes) -> Way {
    Way { id, name, mode, bytes }
}

/// The ways of Figure 6.
pub const WAYS: [Way; 7] = [
    way("single_pre", "Single preMR", Mode::Single, Bytes::Copied),
    way("merge_pre", "Merge preMR", Mode::Merge, Bytes::Copied),
    way("door_pre", "Door preMR", Mode::Doorbell, Bytes::Copied),
    way("single_dyn", "Single dynMR", Mode::Single, Bytes::InPlace),
    way("merge_dyn", "Merge dynMR", Mode::Merge, Bytes::InPlace),
    way("door_dyn", "Door dynMR", Mode::Doorbell, Bytes::InPlace),
    way("hybrid_dyn", "Hybrid dynMR", Mode::Hybrid, Bytes::InPlace),
];

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is read and written.
    pub workload: Workload,
    /// How it is batched.
    pub way: Way,
    /// Threads, each on a core of its own.
    pub threads: usize,
    /// How long each computes between two faults, on average.
    pub compute_ns: u64,
    /// What follows what.
    pub adjacent: Adjacent,
    /// For all that is random.
    pub seed: u64,
    /// What is not measured, and what is.
    pub warm_up_ns: u64,
    /// As above.
    pub measured_ns: u64,
}

/// How often, in a thousand, what is read or written together follows what comes before it.
#[derive(Clone, Copy, Debug)]
pub struct Adjacent {
    /// Pages that are read.
    pub pages: u64,
    /// Blocks that are written.
    pub blocks: u64,
}

impl Adjacent {
    /// So that merging with preMR leaves as many operations as in Table I.
    pub const CALIBRATED: Self = Self { pages: 146, blocks: 140 };
}

impl Plan {
    /// The database with all that Table I and Figures 6 and 7 have in common.
    pub fn new(workload: Workload, way: Way) -> Self {
        Self {
            workload,
            way,
            threads: 8,
            compute_ns: 20_000,
            adjacent: Adjacent::CALIBRATED,
            seed: 1,
            warm_up_ns: 2_000_000,
            measured_ns: 120_000_000,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Faults with what the thread computed between them, in thousands a second.
    pub kops: f64,
    /// How long each took.
    pub latency: Histogram<u64>,
    /// What the engines did.
    pub stats: EngineStats,
    /// The parts of the time that the links to and from the host were busy, and its NIC's requesters.
    pub busy: [f64; 3],
}

impl Found {
    /// Operations for each read, and each write.
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
    /// It has so much to compute.
    Computes(u64),
    Faults,
    Waits,
}

struct Thread {
    plan: Plan,
    engine: Charged,
    clock: SimClock,
    copy_line_ns: u64,
    random: SeededGenerator,
    pages: Vec<MessageBuffer>,
    block: Slice,
    phase: Phase,
    began_ns: u64,
    /// Requests that are not over.
    awaited: usize,
    finished: Vec<Finished>,
    tally: Rc<RefCell<Tally>>,
}

impl Thread {
    fn copies(&self, bytes: usize) {
        if self.plan.way.bytes == Bytes::Copied {
            self.clock.spend_ns(bytes.div_ceil(64) as u64 * self.copy_line_ns);
        }
    }

    /// So many places of this length from `from` on, each of which follows the one before it so often.
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
    fn turn(&mut self) -> Doing {
        match self.phase {
            Phase::Computes(0) => {
                self.phase = Phase::Faults;
                Doing::Work
            }
            Phase::Computes(left_ns) => {
                if !self.engine.is_idle() {
                    self.engine.turn(&mut self.finished);
                }
                let slice_ns = left_ns.min(SLICE_NS);
                self.clock.spend_ns(slice_ns);
                self.phase = Phase::Computes(left_ns - slice_ns);
                Doing::Work
            }
            // What is submitted in one turn is posted in the next, so that others have time to bring theirs (Figure 4).
            Phase::Faults => {
                self.fault();
                self.phase = Phase::Waits;
                Doing::Work
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
                    return Doing::Work;
                }
                if busy { Doing::Work } else { Doing::Idle }
            }
        }
    }
}

/// Runs a plan on hosts with such NICs.
pub fn run(profile: &Profile, plan: &Plan) -> Found {
    // What engines copy has room for all threads' requests in flight.
    let memory = plan.threads * BLOCKS * 2 * (BLOCK + 4096) + (4 << 20);
    let mut ground = Ground::new(profile, Unlimited, plan.seed, plan.threads, memory);
    let tally = Rc::new(RefCell::new(Tally { from_ns: plan.warm_up_ns, done: 0, latency: histogram() }));
    for number in 0..plan.threads {
        // Copies are of any length, as the paper's are.
        let config = EngineConfig { mode: plan.way.mode, copied_piece_max: BLOCK, ..EngineConfig::default() };
        let engine = ground.engine(number, 4, config);
        let foreign = Arena::private((DEPTH + 2) * (PAGE + 512) * 2 + 2 * BLOCK + (1 << 21)).expect("an arena");
        let arena = if plan.way.bytes == Bytes::Copied { &foreign } else { ground.arena(number) };
        let thread = Thread {
            plan: *plan,
            engine,
            clock: ground.clock.clone(),
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
        ground.add(number, thread);
    }
    ground.nics.cluster.run_until(plan.warm_up_ns);
    let before = ground.shared().stats();
    ground.nics.cluster.run_until(plan.warm_up_ns + plan.measured_ns);
    let usage = ground.nics.nic(0).1;
    let tally = tally.borrow();
    Found {
        kops: tally.done as f64 * 1e6 / plan.measured_ns as f64,
        latency: tally.latency.clone(),
        stats: since(&ground.shared().stats(), &before),
        busy: [usage.receive, usage.transmit, usage.requesters],
    }
}
