//! Costs of a worker's core other than verbs.
//!
//! All times are the profile's:
//!
//! - a look at a slot: `look_ns`;
//! - copying a request's bytes out, and an answer's: `copy_line_ns` for each 64 bytes;
//! - an access to a table's memory: what is left of `memory_ns` since it was prefetched, with at most [`MISSES_MAX`] in
//!   progress at a time (sigcomm14 4.1.1);
//! - a word that several cores change: `contended_ns` if another core changed it last, one change at a time; else
//!   `look_ns`.
//!
//! Tables are small in simulations, and each access is charged as a miss of all caches: the papers' tables had
//! gigabytes. The time of the code itself is not charged: the profiles' `post_ns` and `completion_ns` include a
//! request's other costs.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_herd::{Request, Response, Service};
use sinew_sim::SimClock;
use sinew_sim::nic::Core;

/// Most cache misses that a core has in progress: its line fill buffers (Intel's optimisation manual, for Sandy Bridge
/// and Haswell).
pub const MISSES_MAX: usize = 10;
/// Slots of a word's calendar that are kept.
const SLOTS_KEPT: u64 = 4096;

/// A core's path to memory.
#[derive(Debug)]
pub struct Memory {
    clock: SimClock,
    memory_ns: u64,
    /// When each of the misses in progress ends, oldest first.
    ends_ns: VecDeque<u64>,
}

impl Memory {
    /// The path of a core with these costs.
    pub fn new(clock: SimClock, core: &Core) -> Self {
        Self { clock, memory_ns: core.memory_ns, ends_ns: VecDeque::with_capacity(MISSES_MAX) }
    }

    /// Prefetches lines, and returns when all have arrived. A line that finds all buffers taken waits for the oldest.
    pub fn prefetch(&mut self, lines: usize) -> u64 {
        let now_ns = self.clock.now_ns();
        let mut end_ns = now_ns;
        for _ in 0..lines {
            let begins_ns = if self.ends_ns.len() < MISSES_MAX {
                now_ns
            } else {
                self.ends_ns.pop_front().expect("it is full").max(now_ns)
            };
            end_ns = begins_ns + self.memory_ns;
            self.ends_ns.push_back(end_ns);
        }
        end_ns
    }

    /// Spends the time until `until_ns`.
    pub fn wait(&self, until_ns: u64) {
        self.clock.spend_ns(until_ns.saturating_sub(self.clock.now_ns()));
    }
}

/// A word that several cores change, one after the other.
///
/// Turns run one after another, each to its end, so changes do not come in the order of time: each takes the first free
/// slot from its own time on.
#[derive(Debug)]
pub struct SharedWord {
    clock: SimClock,
    contended_ns: u64,
    look_ns: u64,
    /// Owner of the word in each slot of `contended_ns`.
    taken: BTreeMap<u64, usize>,
}

impl SharedWord {
    /// A word shared by cores with these costs.
    pub fn new(clock: SimClock, core: &Core) -> Rc<RefCell<Self>> {
        let (contended_ns, look_ns) = (core.contended_ns.max(1), core.look_ns);
        Rc::new(RefCell::new(Self { clock, contended_ns, look_ns, taken: BTreeMap::new() }))
    }

    /// Changes the word from the core with this number, which is the core at work, and spends the time that it takes.
    pub fn change(&mut self, core: usize) {
        let now_ns = self.clock.now_ns();
        let mut slot = now_ns / self.contended_ns;
        if self.taken.range(..=slot).next_back().is_none_or(|(_, owner)| *owner == core) {
            self.taken.insert(slot, core);
            return self.clock.spend_ns(self.look_ns);
        }
        while self.taken.contains_key(&slot) {
            slot += 1;
        }
        self.taken.insert(slot, core);
        let begins_ns = now_ns.max(slot * self.contended_ns);
        self.clock.spend_ns(begins_ns + self.contended_ns - now_ns);
        // No turn is that far behind another.
        let old = slot.saturating_sub(SLOTS_KEPT);
        while let Some(first) = self.taken.first_entry().filter(|first| *first.key() < old) {
            first.remove();
        }
    }
}

/// Memory accesses in the steps of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Lines that the first step prefetches, and the second reads.
    pub first: usize,
    /// Lines that the second step prefetches, and the third reads.
    pub second: usize,
    /// Lines that the third step reads one after the other, without a prefetch.
    pub unforeseen: usize,
}

/// A service whose costs are charged to its core.
pub struct Charged<S> {
    inner: S,
    clock: SimClock,
    core: Core,
    accesses: Accesses,
    memory: Memory,
    /// The word that each batch changes once, and the number of the core.
    word: Option<(Rc<RefCell<SharedWord>>, usize)>,
}

impl<S> Charged<S> {
    /// A service on a core with these costs.
    pub fn new(inner: S, clock: SimClock, core: Core, accesses: Accesses) -> Self {
        let memory = Memory::new(clock.clone(), &core);
        Self { inner, clock, core, accesses, memory, word: None }
    }

    /// Charges each batch with a change of this word by the core with this number.
    #[must_use]
    pub fn with_word(self, word: &Rc<RefCell<SharedWord>>, core: usize) -> Self {
        Self { word: Some((Rc::clone(word), core)), ..self }
    }

    /// Returns the inner service.
    pub fn inner(&mut self) -> &mut S {
        &mut self.inner
    }

    fn copy(&self, len: usize) {
        self.clock.spend_ns(len.div_ceil(64) as u64 * self.core.copy_line_ns);
    }
}

impl<S: Service> Service for Charged<S> {
    /// The inner job, and when its prefetched lines have arrived.
    type Job = (S::Job, u64);

    fn prefetch(&mut self, request: &Request<'_>) -> Self::Job {
        self.copy(request.body.len());
        let job = self.inner.prefetch(request);
        (job, self.memory.prefetch(self.accesses.first))
    }

    fn advance(&mut self, request: &Request<'_>, (job, there_ns): &mut Self::Job) {
        self.memory.wait(*there_ns);
        self.inner.advance(request, job);
        *there_ns = self.memory.prefetch(self.accesses.second);
    }

    fn begin(&mut self, requests: usize, now_ns: u64) {
        if let Some((word, core)) = &self.word
            && requests > 0
        {
            word.borrow_mut().change(*core);
        }
        self.inner.begin(requests, now_ns);
    }

    fn execute(&mut self, request: &Request<'_>, (job, there_ns): Self::Job, response: &mut Response<'_>) {
        self.memory.wait(there_ns);
        self.clock.spend_ns(self.accesses.unforeseen as u64 * self.core.memory_ns);
        self.inner.execute(request, job, response);
        self.copy(response.len());
    }
}
