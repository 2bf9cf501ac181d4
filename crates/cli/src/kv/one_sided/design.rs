//! What is measured alike: an owner that serves, and a client that asks.

use anyhow::Context;
use sinew::fabric::verbs::Device;
use sinew::herd::{Worker, WorkerConfig};
use sinew::kv::drtm;
use sinew::kv::one_sided::{
    AskError, ChangeService, Client, ClientConfig, ClientError, Hello, Joining, Outcome, Owner, Welcome,
};
use sinew::mem::SharedMemory;
use sinew::store::locked::{Layout, LockedTable};
use sinew::store::remote::{Index, Table, TableError};

use super::Plan;

/// A GET that finds nothing but changes for so long is given up.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// Far longer than the system lets a thread stand still.
const LEASE_NS: u64 = 10_000_000_000;

/// What a client did.
#[derive(Clone, Copy, Default)]
pub struct Ops {
    pub gets: u64,
    pub done: u64,
    pub reads: u64,
    pub again: u64,
    pub writes: u64,
    pub atomics: u64,
    pub conflicts: u64,
    pub retries: u64,
}

impl Ops {
    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            gets: join(self.gets, other.gets),
            done: join(self.done, other.done),
            reads: join(self.reads, other.reads),
            again: join(self.again, other.again),
            writes: join(self.writes, other.writes),
            atomics: join(self.atomics, other.atomics),
            conflicts: join(self.conflicts, other.conflicts),
            retries: join(self.retries, other.retries),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }

    pub fn since(self, before: Self) -> Self {
        self.with(before, |now, before| now - before)
    }
}

/// A store of one design.
pub trait Design<D: Device>: Sync {
    type Owner: Owns;
    type Client: Asks;

    /// Bytes of the first READ of a GET.
    fn read_len(&self) -> usize;

    /// The owner, of the calling thread. `fill` is handed what stores an item.
    fn owner(
        &self,
        device: &D,
        plan: &Plan,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self::Owner>;

    /// A client of the calling thread, which `greet` introduces to the owner.
    fn client(
        &self,
        device: &D,
        plan: &Plan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client>;
}

/// An owner.
pub trait Owns {
    /// Serves; how many requests.
    fn turn(&mut self, now_ns: u64) -> usize;
    /// To be called now and then.
    fn tend(&mut self, now_ns: u64);
    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome>;
}

/// A client.
pub trait Asks {
    fn has_room(&self, is_get: bool) -> bool;
    fn in_flight(&self) -> usize;
    fn ops(&self) -> Ops;
    fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError>;
    fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError>;
    fn flush(&mut self);
    fn poll(&mut self, now_ns: u64, take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError>;
}

/// Pilaf's and FaRM's: a table, and how others search it.
pub struct Searched<I, F> {
    pub index: I,
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
    I: Index + Sync,
    T: Table,
    F: Fn(SharedMemory) -> Result<T, TableError> + Sync,
{
    type Owner = SearchedOwner<D, T>;
    type Client = Client<D, I>;

    fn read_len(&self) -> usize {
        self.index.search(&[0]).1.len
    }

    fn owner(
        &self,
        device: &D,
        plan: &Plan,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self::Owner> {
        let (owner, seed, memory) = Owner::new(device, &plan.owner(), &self.index)?;
        let mut table = (self.table)(memory)?;
        fill(&mut |key, value| table.put(key, value).map(drop).context("filling the table"))?;
        let worker = Worker::new(seed, &WorkerConfig::herd_opt(), ChangeService::new(table))?;
        Ok(SearchedOwner { worker, owner })
    }

    fn client(
        &self,
        device: &D,
        plan: &Plan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        let domain = device.protection_domain()?;
        let (window, read_len_max) = (plan.window, self.index.read_len_max());
        let config = ClientConfig { owner: plan.owner(), window, read_len_max, give_up_ns: GIVE_UP_NS };
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
    fn calls(&self, plan: &Plan) -> sinew::kv::one_sided::OwnerConfig {
        drtm::calls(&self.0, 1, plan.window.next_power_of_two(), plan.workload.seed)
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
        plan: &Plan,
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
        plan: &Plan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        let domain = device.protection_domain()?;
        let (window, read_len_max) = (plan.window, self.0.read_len_max());
        let reads = ClientConfig { owner: self.calls(plan), window, read_len_max, give_up_ns: GIVE_UP_NS };
        // Half full, sets of four hardly ever lack a place.
        let config = drtm::ClientConfig::new(reads, 2 * plan.workload.keys);
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
