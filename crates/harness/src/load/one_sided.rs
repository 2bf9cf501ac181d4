//! Stores on verbs whose GETs are READs: an owner that serves, and a client that asks, of each design.

use anyhow::{Context, ensure};
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::{Worker, WorkerConfig};
use sinew::kv::drtm;
use sinew::kv::one_sided::{
    AskError, ChangeService, Client, ClientConfig, ClientError, Hello, Joining, Outcome, Owner, OwnerConfig, Status,
    Welcome,
};
use sinew::mem::SharedMemory;
use sinew::store::locked::{Layout, LockedTable};
use sinew::store::remote::{Index, Table, TableError};

use super::{Load, Slice, Span, State};
use crate::workload::{Request, Workload, check_value, fill_value, key_bytes};

/// Requests that are drawn ahead.
const TRACE: usize = 1 << 20;
/// Of so many answers the time of one is taken.
const SAMPLE_EVERY: u64 = 8;
/// A GET that finds nothing but changes for so long is given up.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// Far longer than the system lets a thread stand still.
const LEASE_NS: u64 = 10_000_000_000;

/// What a store is to be.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// How its owner serves.
    pub owner: OwnerConfig,
    /// Requests that its client has under way.
    pub window: usize,
    /// Keys that it will hold.
    pub keys: usize,
}

/// What a client did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ops {
    /// GETs, of all requests
    pub gets: u64,
    /// that are over.
    pub done: u64,
    /// READs,
    pub reads: u64,
    /// of which these were made again, since what they brought was changing.
    pub again: u64,
    /// WRITEs.
    pub writes: u64,
    /// Atomics.
    pub atomics: u64,
    /// Locks that were held.
    pub conflicts: u64,
    /// PUTs that were tried again.
    pub retries: u64,
}

impl Ops {
    /// What was done since.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            gets: self.gets - before.gets,
            done: self.done - before.done,
            reads: self.reads - before.reads,
            again: self.again - before.again,
            writes: self.writes - before.writes,
            atomics: self.atomics - before.atomics,
            conflicts: self.conflicts - before.conflicts,
            retries: self.retries - before.retries,
        }
    }
}

/// A store of one design.
pub trait Design<D: Device>: Send + Sync {
    /// Who owns the table.
    type Owner: Owns;
    /// Who asks it.
    type Client: Asks;

    /// Bytes of the first READ of a GET.
    fn read_len(&self) -> usize;

    /// The owner, of the calling thread. `fill` is handed what stores an item.
    ///
    /// # Errors
    ///
    /// What the device says, or that there is no room for an item.
    fn owner(
        &self,
        device: &D,
        plan: &StorePlan,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self::Owner>;

    /// A client of the calling thread, which `greet` introduces to the owner.
    ///
    /// # Errors
    ///
    /// What the device or the owner says.
    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client>;
}

/// An owner.
pub trait Owns {
    /// Serves; how many requests.
    fn turn(&mut self, now_ns: u64) -> usize;
    /// To be called now and then.
    fn tend(&mut self, now_ns: u64);
    /// Takes a client in.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome>;
}

/// A client.
pub trait Asks {
    /// Whether there is room for a GET, or a PUT.
    fn has_room(&self, is_get: bool) -> bool;
    /// Requests under way.
    fn in_flight(&self) -> usize;
    /// What it did so far.
    fn ops(&self) -> Ops;
    /// Begins a GET.
    ///
    /// # Errors
    ///
    /// As the store's client.
    fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError>;
    /// Begins a PUT.
    ///
    /// # Errors
    ///
    /// As the store's client.
    fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError>;
    /// Sends what was begun.
    fn flush(&mut self);
    /// Takes what is over; how many.
    ///
    /// # Errors
    ///
    /// As the store's client.
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError>;
}

/// Pilaf's and FaRM's: a table, and how others search it.
pub struct Searched<I, F> {
    /// Where what lies.
    pub index: I,
    /// Makes the table in exposed memory.
    pub table: F,
}

/// The owner of a [`Searched`].
pub struct SearchedOwner<D: Device, T: Table> {
    worker: Worker<D, ChangeService<T>>,
    owner: Owner<D>,
}

impl<D, I, T, F> Design<D> for Searched<I, F>
where
    D: Device,
    I: Index + Send + Sync,
    T: Table,
    F: Fn(SharedMemory) -> Result<T, TableError> + Send + Sync,
{
    type Owner = SearchedOwner<D, T>;
    type Client = Client<D, I>;

    fn read_len(&self) -> usize {
        self.index.search(&[0]).1.len
    }

    fn owner(
        &self,
        device: &D,
        plan: &StorePlan,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self::Owner> {
        let (owner, seed, memory) = Owner::new(device, &plan.owner, &self.index)?;
        let mut table = (self.table)(memory)?;
        fill(&mut |key, value| table.put(key, value).map(drop).context("filling the table"))?;
        let worker = Worker::new(seed, &WorkerConfig::herd_opt(), ChangeService::new(table))?;
        Ok(SearchedOwner { worker, owner })
    }

    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        let domain = device.protection_domain()?;
        let (window, read_len_max) = (plan.window, self.index.read_len_max());
        let config = ClientConfig { owner: plan.owner, window, read_len_max, give_up_ns: GIVE_UP_NS };
        let (joining, hello) = Joining::prepare(device, &domain, &config)?;
        Ok(joining.join(&greet(hello)?)?)
    }
}

impl<D: Device, T: Table> Owns for SearchedOwner<D, T> {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.worker.turn(now_ns)
    }

    fn tend(&mut self, _: u64) {
        self.owner.tend();
    }

    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome> {
        Ok(self.owner.admit(hello)?.1)
    }
}

impl<D: Device, I: Index> Asks for Client<D, I> {
    #[inline(always)]
    fn has_room(&self, is_get: bool) -> bool {
        if is_get { self.has_room_to_get() } else { self.has_room_to_change() }
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    fn ops(&self) -> Ops {
        let stats = self.stats();
        let done = stats.gets + self.calls().stats().answered;
        Ops { gets: stats.gets, done, reads: stats.reads, again: stats.again, ..Ops::default() }
    }

    #[inline(always)]
    fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.get(tag, key, now_ns)
    }

    #[inline(always)]
    fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.put(tag, key, value, now_ns)
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        self.poll(now_ns, take)
    }
}

/// DrTM-KV's.
pub struct Locked(pub Layout);

impl Locked {
    fn calls(&self, plan: &StorePlan) -> sinew::kv::one_sided::OwnerConfig {
        drtm::calls(&self.0, 1, plan.window.next_power_of_two(), plan.owner.seed)
    }
}

/// The owner of a [`Locked`].
pub struct LockedOwner<D: Device> {
    worker: Worker<D, drtm::ChangeService>,
    owner: drtm::Owner<D>,
}

impl<D: Device> Design<D> for Locked {
    type Owner = LockedOwner<D>;
    type Client = drtm::Client<D>;

    fn read_len(&self) -> usize {
        self.0.record_len()
    }

    fn owner(
        &self,
        device: &D,
        plan: &StorePlan,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self::Owner> {
        let config = drtm::OwnerConfig { calls: self.calls(plan), lease_ns: LEASE_NS };
        let (owner, seed, memory) = drtm::Owner::new(device, &config, &self.0)?;
        let mut table = LockedTable::new(self.0, memory)?;
        fill(&mut |key, value| table.insert(key, value).map(drop).context("filling the table"))?;
        let worker = Worker::new(seed, &WorkerConfig::herd_opt(), drtm::ChangeService::new(table))?;
        Ok(LockedOwner { worker, owner })
    }

    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        let domain = device.protection_domain()?;
        let (window, read_len_max) = (plan.window, self.0.read_len_max());
        let reads = ClientConfig { owner: self.calls(plan), window, read_len_max, give_up_ns: GIVE_UP_NS };
        // Half full, sets of four hardly ever lack a place.
        let config = drtm::ClientConfig::new(reads, 2 * plan.keys);
        let (joining, hello) = drtm::Joining::prepare(device, &domain, &config)?;
        Ok(joining.join(&greet(hello)?)?)
    }
}

impl<D: Device> Owns for LockedOwner<D> {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.worker.turn(now_ns)
    }

    fn tend(&mut self, now_ns: u64) {
        self.owner.tend(self.worker.service().table(), now_ns);
    }

    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome> {
        Ok(self.owner.admit(hello)?.1)
    }
}

impl<D: Device> Asks for drtm::Client<D> {
    #[inline(always)]
    fn has_room(&self, _: bool) -> bool {
        self.has_room()
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }

    fn ops(&self) -> Ops {
        let drtm::ClientStats { done, gets, reads, again, atomics, writes, conflicts, retries, .. } = *self.stats();
        Ops { gets, done, reads, again, writes, atomics, conflicts, retries }
    }

    #[inline(always)]
    fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.get(tag, key, now_ns)
    }

    #[inline(always)]
    fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.put(tag, key, value, now_ns)
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.flush();
    }

    #[inline(always)]
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        self.poll(now_ns, take)
    }
}

/// A driver of a client.
pub struct OneSided<A: Asks, C> {
    client: A,
    clock: C,
    trace: Vec<Request>,
    at: usize,
    /// Differs from round to round of the trace, so that values do.
    round: u64,
    value: Vec<u8>,
    /// There is no table: READs are checked to come from where they should, and hold nothing.
    is_emulated: bool,
    /// Keys that are asked for once before the trace begins, so that the client knows where all of them are, as atc16 has it.
    learning: std::ops::Range<u64>,
    /// When answers were asked for whose time is taken.
    sampled: Vec<u64>,
    answers: u64,
    before: Ops,
    /// PUTs of the slice that others were quicker than all the time.
    contended: u64,
    span: Span,
    slice: Slice,
}

impl<A: Asks, C: Clock> OneSided<A, C> {
    /// Asks for the keys of a workload, whose values are all as long. The first slice asks for `learns` keys once before all else.
    pub fn new(client: A, clock: C, workload: &Workload, is_emulated: bool, learns: u64) -> Self {
        Self {
            client,
            clock,
            trace: workload.trace(TRACE),
            at: 0,
            round: 1,
            value: vec![0; workload.sizes.max()],
            is_emulated,
            learning: 0..learns,
            sampled: Vec::with_capacity(64),
            answers: 0,
            before: Ops::default(),
            contended: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// What the client did since the slice began, and how many of its PUTs were given up.
    pub fn ops(&self) -> (Ops, u64) {
        (self.client.ops().since(self.before), self.contended)
    }

    /// Asks until there is no room for the next request; whether there was room for any.
    #[inline(always)]
    fn ask(&mut self, now_ns: u64) -> anyhow::Result<bool> {
        let mut has_asked = false;
        loop {
            let request = self.trace[self.at];
            let (key, is_get) = (request.key(), request.is_get());
            if !self.client.has_room(is_get) {
                break;
            }
            has_asked = true;
            let tag = key << 1 | u64::from(is_get);
            if is_get {
                self.client.get(tag, &key_bytes(key), now_ns)?;
            } else {
                fill_value(&mut self.value, key, self.round);
                self.client.put(tag, &key_bytes(key), &self.value, now_ns)?;
            }
            self.at += 1;
            if self.at == self.trace.len() {
                (self.at, self.round) = (0, self.round + 1);
            }
        }
        self.client.flush();
        Ok(has_asked)
    }

    /// Asks for the next keys that are to be known.
    fn learn(&mut self, now_ns: u64) -> anyhow::Result<()> {
        while self.client.has_room(true) {
            let Some(key) = self.learning.next() else { break };
            self.client.get(key << 1 | 1, &key_bytes(key), now_ns)?;
        }
        self.client.flush();
        Ok(())
    }
}

impl<A: Asks, C: Clock> Load for OneSided<A, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        (self.before, self.contended) = (self.client.ops(), 0);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, _: u64) -> anyhow::Result<State> {
        let now_ns = self.clock.now_ns();
        let learns = !self.learning.is_empty();
        let goes_on = learns || self.span.goes_on(now_ns, self.slice.done);
        let mut is_busy = false;
        if learns {
            self.learn(now_ns)?;
            is_busy = true;
        } else if goes_on {
            is_busy = self.ask(now_ns)?;
        }
        let Self { client, slice, value, sampled, answers, is_emulated, contended, .. } = self;
        let mut wrong = 0u64;
        let came = client.poll(now_ns, |outcome| {
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
            if goes_on {
                slice.done += 1;
                slice.gets += u64::from(is_get);
                slice.hits += u64::from(is_hit);
                if answers.is_multiple_of(SAMPLE_EVERY) {
                    sampled.push(outcome.asked_ns);
                }
            }
        })?;
        ensure!(wrong == 0, "{wrong} answers were wrong");
        if !self.sampled.is_empty() {
            let done_ns = self.clock.now_ns();
            for asked_ns in self.sampled.drain(..) {
                self.slice.latency.saturating_record(done_ns.saturating_sub(asked_ns).max(1));
            }
        }
        if !goes_on && self.client.in_flight() == 0 {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy || came > 0))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }
}
