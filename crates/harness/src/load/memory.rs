//! Requests for memory that lies elsewhere, made by an engine that goes to a donor, or by a volume. A window of
//! requests is kept in flight, and what they return is checked.
//!
//! Each place holds its own address, so the first word and the last of each request are checked, and all words of one
//! in [`CHECK_EVERY`].

use anyhow::{Context, ensure};
use sinew::fabric::readiness::wait_on;
use sinew::fabric::verbs::Slice as Bytes;
use sinew::fabric::{Clock, PollPolicy, Poller, PollerStats, SeededGenerator, Step};
use sinew::host::HostClock;
use sinew::mem::{Arena, Frozen, MessageBuffer, SharedMemory};
use sinew::remote_memory::engine::{self, Engine, Path};
use sinew::remote_memory::store::{self, BLOCK, Store};
use sinew::remote_memory::volume::checksum;

use super::{Load, Slice, Span, State};

/// Interval of full checks: one read in this many is checked word by word.
pub const CHECK_EVERY: u64 = 64;
/// Length of a word, in bytes.
const WORD: usize = 8;
/// Most bytes that a request's buffer needs beside its contents.
const BESIDE: usize = 4096;

/// The word at an address.
#[inline]
fn word(at: u64) -> [u8; WORD] {
    at.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_ne_bytes()
}

/// Fills `bytes`, which lie at `at`, with their addresses.
pub fn fill(bytes: &mut [u8], at: u64) {
    let words = (at..).step_by(WORD);
    bytes.chunks_exact_mut(WORD).zip(words).for_each(|(bytes, at)| bytes.copy_from_slice(&word(at)));
}

/// Whether these bytes, which lie at `at`, are right: the first word and the last, or all.
fn is_right(bytes: &[u8], at: u64, all: bool) -> bool {
    let last = bytes.len() - WORD;
    if all {
        return bytes.chunks_exact(WORD).zip((at..).step_by(WORD)).all(|(bytes, at)| *bytes == word(at));
    }
    bytes[..WORD] == word(at) && bytes[last..] == word(at + last as u64)
}

/// Path that requests take.
pub trait RequestPath {
    /// Begins a read.
    ///
    /// # Errors
    ///
    /// It is refused.
    fn read(&mut self, tag: u64, at: u64, target: MessageBuffer) -> anyhow::Result<()>;

    /// Begins a write.
    ///
    /// # Errors
    ///
    /// It is refused.
    fn write(&mut self, tag: u64, at: u64, source: Frozen) -> anyhow::Result<()>;

    /// Called at the beginning of a slice.
    fn begin(&mut self) {}

    /// Does the work at hand, if need be after a sleep. Returns whether there was any.
    ///
    /// # Errors
    ///
    /// It cannot sleep.
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<bool>;

    /// Whether it has no work left that it must be turned for, including other users' requests.
    fn is_idle(&self) -> bool;

    /// Takes the requests that are over, and calls `on_completion` with each one's tag, and a read's target.
    ///
    /// # Errors
    ///
    /// A request failed.
    fn poll(&mut self, on_completion: impl FnMut(u64, Option<MessageBuffer>)) -> anyhow::Result<()>;
}

/// Longest sleep for completions, so that an interrupt of the program is noticed.
const SLEEP_MAX_NS: u64 = 10_000_000;

/// A thread's poller, for policies that sleep.
struct Sleeper {
    poller: Poller,
    clock: HostClock,
    /// Whether the thread is to sleep before its next turn.
    must_sleep: bool,
}

/// An engine as the path, with room for finished requests.
pub struct EnginePath<P: Path> {
    /// The engine.
    pub engine: Engine<P>,
    finished: Vec<engine::Finished>,
    sleeper: Option<Sleeper>,
}

impl<P: Path> EnginePath<P> {
    /// Carries requests by an engine, and waits for their completions by this policy.
    pub fn new(engine: Engine<P>, policy: PollPolicy) -> Self {
        let sleeper = || Sleeper { poller: Poller::new(policy), clock: HostClock::new(), must_sleep: false };
        let sleeper = (policy != PollPolicy::Busy).then(sleeper);
        Self { engine, finished: Vec::new(), sleeper }
    }

    /// Counters of the poller; all zero for a policy that never sleeps.
    pub fn poller_stats(&self) -> PollerStats {
        self.sleeper.as_ref().map(|sleeper| sleeper.poller.stats()).unwrap_or_default()
    }

    #[inline(never)]
    fn turn_by_policy(&mut self) -> anyhow::Result<bool> {
        let Some(Sleeper { poller, clock, must_sleep }) = &mut self.sleeper else { return Ok(false) };
        if std::mem::take(must_sleep) {
            let now_ns = clock.now_ns();
            wait_on(&mut [&mut self.engine], now_ns, Some(now_ns + SLEEP_MAX_NS)).context("sleeping on an engine")?;
            poller.woken(clock.now_ns());
        }
        let busy = self.engine.turn(clock.now_ns());
        *must_sleep = poller.step(clock.now_ns(), busy) == Step::Block;
        Ok(busy)
    }
}

impl<P: Path> RequestPath for EnginePath<P> {
    #[inline]
    fn read(&mut self, tag: u64, at: u64, target: MessageBuffer) -> anyhow::Result<()> {
        Ok(self.engine.submit(engine::Request { tag, op: engine::Op::Read { at, target } })?)
    }

    #[inline]
    fn write(&mut self, tag: u64, at: u64, source: Frozen) -> anyhow::Result<()> {
        Ok(self.engine.submit(engine::Request { tag, op: engine::Op::Write { at, source: Bytes::from(source) } })?)
    }

    fn begin(&mut self) {
        // What the thread did meanwhile was no polling.
        if let Some(Sleeper { poller, clock, .. }) = &mut self.sleeper {
            poller.woken(clock.now_ns());
        }
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<bool> {
        if self.sleeper.is_some() { self.turn_by_policy() } else { Ok(self.engine.turn(now_ns)) }
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    #[inline]
    fn poll(&mut self, mut on_completion: impl FnMut(u64, Option<MessageBuffer>)) -> anyhow::Result<()> {
        self.engine.poll(&mut self.finished, usize::MAX);
        for engine::Finished { tag, result, target } in self.finished.drain(..) {
            result?;
            on_completion(tag, target);
        }
        Ok(())
    }
}

/// A store as the path.
pub struct StorePath<S> {
    store: S,
    finished: Vec<store::Finished>,
}

impl<S: Store> StorePath<S> {
    /// Carries requests by a store.
    pub fn new(store: S) -> Self {
        Self { store, finished: Vec::new() }
    }
}

impl<S: Store> RequestPath for StorePath<S> {
    fn read(&mut self, tag: u64, at: u64, target: MessageBuffer) -> anyhow::Result<()> {
        Ok(self.store.submit(store::Request { tag, job: store::Job::Read { at, target } })?)
    }

    fn write(&mut self, tag: u64, at: u64, source: Frozen) -> anyhow::Result<()> {
        Ok(self.store.submit(store::Request { tag, job: store::Job::Write { at, source: Bytes::from(source) } })?)
    }

    fn turn(&mut self, _: u64) -> anyhow::Result<bool> {
        Ok(self.store.turn())
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn poll(&mut self, mut on_completion: impl FnMut(u64, Option<MessageBuffer>)) -> anyhow::Result<()> {
        self.store.poll(&mut self.finished, usize::MAX);
        for store::Finished { tag, result, target } in self.finished.drain(..) {
            result?;
            on_completion(tag, target);
        }
        Ok(())
    }
}

/// Requests to make.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Bytes of the memory to use, from its beginning on.
    pub memory: u64,
    /// Length of a request in bytes: a multiple of 8.
    pub len: usize,
    /// Whether requests write.
    pub writes: bool,
    /// Whether they follow one another in memory; otherwise they are at random.
    pub follows: bool,
    /// Requests in flight.
    pub window: usize,
    /// Seed of the places.
    pub seed: u64,
}

impl Requests {
    /// Length of an arena that has room for a driver's buffers, in bytes.
    pub fn arena_len(&self) -> usize {
        2 * (self.window + 2) * (self.len + BESIDE) + (1 << 21)
    }

    /// Places of the requests. They follow from `seed` alone, so that others can use the same ones.
    fn places(&self) -> impl FnMut() -> u64 + use<> {
        let (slots, len, follows) = ((self.memory / self.len as u64).max(1), self.len as u64, self.follows);
        let mut random = SeededGenerator::new(self.seed);
        let mut next = if follows { random.below(slots) } else { 0 };
        move || {
            let slot = if follows { next } else { random.below(slots) };
            next = if slot + 1 < slots { slot + 1 } else { 0 };
            slot * len
        }
    }
}

/// A request's place, and its buffer while nobody else has it.
struct RequestSlot {
    at: u64,
    buffer: Option<MessageBuffer>,
    /// A reference to the buffer that is being written.
    source: Option<Frozen>,
    /// Whether it reads back what it has just written.
    reads_back: bool,
}

/// A driver for a thread.
pub struct Memory<C> {
    path: C,
    requests: Requests,
    next_place: Box<dyn FnMut() -> u64>,
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    completed: Vec<(u64, Option<MessageBuffer>)>,
    span: Span,
    slice: Slice,
    /// Requests whose bytes were checked, over the whole run.
    checked: u64,
}

impl<C: RequestPath> Memory<C> {
    /// A driver with its buffers.
    ///
    /// # Errors
    ///
    /// There is no memory for them.
    pub fn new(path: C, arena: &Arena, requests: Requests) -> anyhow::Result<Self> {
        let slot = |_| {
            let buffer = arena.alloc(requests.len, requests.len).context("allocating buffers")?;
            Ok(RequestSlot { at: 0, buffer: Some(buffer), source: None, reads_back: false })
        };
        Ok(Self {
            path,
            next_place: Box::new(requests.places()),
            slots: (0..requests.window).map(slot).collect::<anyhow::Result<_>>()?,
            free: (0..requests.window as u32).collect(),
            completed: Vec::new(),
            requests,
            span: Span::default(),
            slice: Slice::new(),
            checked: 0,
        })
    }

    /// The path of its requests.
    pub fn path(&mut self) -> &mut C {
        &mut self.path
    }

    /// Requests whose bytes were checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    fn start(&mut self, number: u32) -> anyhow::Result<()> {
        let slot = &mut self.slots[number as usize];
        slot.at = (self.next_place)();
        let Some(mut buffer) = slot.buffer.take() else { return Ok(()) };
        if !self.requests.writes {
            return self.path.read(u64::from(number), slot.at, buffer);
        }
        let last = buffer.len() - WORD;
        buffer[..WORD].copy_from_slice(&word(slot.at));
        buffer[last..].copy_from_slice(&word(slot.at + last as u64));
        let source = buffer.freeze();
        slot.source = Some(source.clone());
        self.path.write(u64::from(number), slot.at, source)
    }

    /// Handles a request that is over. Returns whether its place is free; it is not if the request goes on to read
    /// back.
    fn end(&mut self, tag: u64, target: Option<MessageBuffer>, counts: bool) -> anyhow::Result<bool> {
        let slot = &mut self.slots[tag as usize];
        let at = slot.at;
        if let Some(source) = slot.source.take() {
            self.slice.done += u64::from(counts);
            let buffer = source.thaw().ok().context("a write that is over still has its bytes")?;
            if self.slice.done.is_multiple_of(CHECK_EVERY) {
                slot.reads_back = true;
                self.path.read(tag, at, buffer)?;
                return Ok(false);
            }
            slot.buffer = Some(buffer);
            return Ok(true);
        }
        let reads_back = std::mem::take(&mut slot.reads_back);
        let target = target.context("a read came back without its buffer")?;
        let all = !self.requests.writes && self.checked.is_multiple_of(CHECK_EVERY);
        ensure!(is_right(&target, at, all), "{} bytes at {at} are not as they should be", target.len());
        self.checked += 1;
        self.slice.done += u64::from(counts && !reads_back);
        slot.buffer = Some(target);
        Ok(true)
    }
}

impl<C: RequestPath> Load for Memory<C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.path.begin();
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let may_start = self.span.may_start(now_ns, self.slice.done);
        if may_start {
            while let Some(number) = self.free.pop() {
                self.start(number)?;
            }
        } else if self.free.len() == self.slots.len() && self.path.is_idle() {
            return Ok(State::Over);
        }
        let busy = self.path.turn(now_ns)?;
        let mut completed = std::mem::take(&mut self.completed);
        self.path.poll(|tag, target| completed.push((tag, target)))?;
        let any = !completed.is_empty();
        for (tag, target) in completed.drain(..) {
            if self.end(tag, target, may_start)? {
                self.free.push(tag as u32);
            }
        }
        self.completed = completed;
        Ok(State::of(busy || any))
    }

    fn end(&mut self) -> Slice {
        self.slice.elapsed_ns = self.span.elapsed_ns();
        std::mem::take(&mut self.slice)
    }
}

/// Plain copies of the same bytes, between the same places and as many buffers: what the engine's thread could do with
/// nothing in between.
pub struct Copies {
    memory: SharedMemory,
    requests: Requests,
    sums_pages: bool,
    next_place: Box<dyn FnMut() -> u64>,
    buffers: Vec<Vec<u8>>,
    at: usize,
    span: Span,
    slice: Slice,
}

impl Copies {
    /// Copies out of this memory, or into it.
    pub fn new(memory: SharedMemory, requests: Requests) -> Self {
        Self {
            memory,
            next_place: Box::new(requests.places()),
            buffers: vec![vec![0; requests.len]; requests.window],
            requests,
            sums_pages: false,
            at: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// Sets whether it also computes a checksum of each page, as a volume does.
    pub fn sum_pages(&mut self, sums_pages: bool) {
        self.sums_pages = sums_pages;
    }
}

impl Load for Copies {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        if !self.span.may_start(now_ns, self.slice.done) {
            return Ok(State::Over);
        }
        let place = (self.next_place)();
        let buffer = &mut self.buffers[self.at];
        if self.requests.writes {
            let last = buffer.len() - WORD;
            buffer[..WORD].copy_from_slice(&word(place));
            buffer[last..].copy_from_slice(&word(place + last as u64));
            self.memory.write(place as usize, buffer).context("writing memory")?;
        } else {
            self.memory.read(place as usize, buffer).context("reading memory")?;
            ensure!(is_right(buffer, place, false), "memory is not as it was filled");
        }
        if self.sums_pages {
            buffer.chunks(BLOCK).for_each(|page| _ = std::hint::black_box(checksum(page)));
        }
        self.at = if self.at + 1 < self.buffers.len() { self.at + 1 } else { 0 };
        self.slice.done += 1;
        Ok(State::Busy)
    }

    fn end(&mut self) -> Slice {
        self.slice.elapsed_ns = self.span.elapsed_ns();
        std::mem::take(&mut self.slice)
    }
}

#[cfg(test)]
mod tests {
    use sinew::remote_memory::RamStore;

    use super::*;

    const MEMORY: u64 = 1 << 20;

    fn requests(writes: bool) -> Requests {
        Requests { memory: MEMORY, len: 4096, writes, follows: false, window: 8, seed: 3 }
    }

    fn run(load: &mut impl Load) -> anyhow::Result<Slice> {
        load.begin(0, 1000)?;
        for now_ns in 0.. {
            if load.turn(now_ns)? == State::Over {
                break;
            }
        }
        Ok(load.end())
    }

    #[test]
    fn what_was_written_is_read_back_and_memory_that_is_otherwise_is_found() {
        let store = RamStore::new(MEMORY as usize, 16 << 20).unwrap();
        let arena = store.arena().clone();
        let mut writing = Memory::new(StorePath::new(store), &arena, requests(true)).unwrap();
        assert!(run(&mut writing).unwrap().done > 100 && writing.checked() > 1);
        // The rest of the memory is zeros.
        let mut reading = Memory { requests: requests(false), ..writing };
        let error = run(&mut reading).unwrap_err().to_string();
        assert!(error.contains("not as they should be"), "{error}");
    }

    #[test]
    fn a_driver_is_over_once_it_has_done_what_it_took_from_another() {
        use sinew::fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
        use sinew::remote_memory::engine::{
            DonorQueuePairs, EngineConfig, Shared, SharedConfig, Unlimited, VerbsPath, VerbsPathConfig,
        };
        use sinew::shm::verbs::ShmDevice;

        let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        let domain = device.protection_domain().unwrap();
        let exposed = domain.expose(MEMORY as usize, Access::ALL).unwrap();
        let shared = Shared::new("donor", MEMORY, Unlimited, SharedConfig::default());
        let arenas = [0, 1].map(|_| domain.arena(requests(true).arena_len()).unwrap());
        let mut keep = Vec::new();
        let mut loads = [0, 1].map(|number: usize| {
            let mut path = VerbsPath::new(&device, &domain, &arenas, &VerbsPathConfig::default()).unwrap();
            let lending = DonorQueuePairs::new(&device, &domain, &path.addresses()).unwrap();
            path.connect(&lending.addresses(), exposed.remote()).unwrap();
            keep.push(lending);
            let engine = Engine::new(&shared, path, EngineConfig::default());
            Memory::new(EnginePath::new(engine, PollPolicy::SPIN), &arenas[number], requests(true)).unwrap()
        });
        loads.iter_mut().for_each(|load| load.begin(0, 100).unwrap());
        // The first takes what the second has submitted, and must end with it.
        loads[0].turn(0).unwrap();
        loads[1].start(7).unwrap();
        let mut over = [false; 2];
        for now_ns in 0..100_000 {
            for (load, over) in loads.iter_mut().zip(&mut over).filter(|(_, over)| !**over) {
                *over = load.turn(now_ns).unwrap() == State::Over;
            }
        }
        assert_eq!((over, shared.unfinished()), ([true; 2], 0));
    }

    #[test]
    fn memory_that_was_filled_is_right_for_requests_of_any_length() {
        let mut bytes = vec![0; 1 << 16];
        fill(&mut bytes, 1 << 20);
        for (from, len) in [(0, 8), (8, 4096), (4096, 32768)] {
            let at = (1 << 20) + from as u64;
            assert!(is_right(&bytes[from..from + len], at, true) && is_right(&bytes[from..from + len], at, false));
            assert!(!is_right(&bytes[from..from + len], at + 8, false));
        }
    }

    #[test]
    fn copies_go_where_requests_do() {
        let memory = SharedMemory::private(MEMORY as usize).unwrap();
        let mut bytes = vec![0; MEMORY as usize];
        fill(&mut bytes, 0);
        memory.write(0, &bytes).unwrap();
        for writes in [false, true] {
            assert!(run(&mut Copies::new(memory.clone(), requests(writes))).unwrap().done > 100);
        }
    }
}
