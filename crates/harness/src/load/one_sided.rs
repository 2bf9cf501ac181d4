//! Stores on verbs whose GETs are READs: an owner that serves and a client, for each design.

use anyhow::{Context, ensure};
use sinew::fabric::verbs::Device;
use sinew::herd::{Worker, WorkerConfig};
use sinew::host::Interrupt;
use sinew::kv::drtm;
use sinew::kv::one_sided::{ChangeService, ClientConfig, Hello, Joining, OneSidedClient, Owner, OwnerConfig, Welcome};
use sinew::mem::SharedMemory;
use sinew::store::locked::{Layout, LockedTable};
use sinew::store::remote::{Index, Table, TableError};

use super::store::StoreClient;
use crate::run::Interrupted;
use crate::workload::{KEY_LEN, fill_value, key_bytes};

/// Time after which a GET is given up that always finds its item changing, in ns.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// Lease of a lock in ns: far longer than a thread waits for its processor.
const LEASE_NS: u64 = 10_000_000_000;

/// Plan of a store.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// Configuration of its owner.
    pub owner: OwnerConfig,
    /// Requests of its client in flight.
    pub window: usize,
    /// Keys that it will hold.
    pub keys: usize,
    /// Interrupt that ends the filling of the store, if there is one.
    pub interrupt: Option<Interrupt>,
}

impl StorePlan {
    /// Stores all keys.
    fn fill(&self, mut store: impl FnMut(&[u8], &[u8]) -> Result<(), TableError>) -> anyhow::Result<()> {
        let mut value = vec![0; self.owner.item_len_max - KEY_LEN];
        for key in 0..self.keys as u64 {
            fill_value(&mut value, key, 0);
            store(&key_bytes(key), &value).context("filling the table")?;
            ensure!(key % (1 << 16) != 0 || !self.interrupt.is_some_and(|interrupt| interrupt.is_set()), Interrupted);
        }
        Ok(())
    }

    fn client(&self, owner: OwnerConfig, read_len_max: usize) -> ClientConfig {
        ClientConfig { owner, window: self.window, read_len_max, give_up_ns: GIVE_UP_NS }
    }
}

/// Operations of a client so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ops {
    /// GETs among the requests that are over.
    pub gets: u64,
    /// Requests that are over.
    pub done: u64,
    /// READs.
    pub reads: u64,
    /// READs that were repeated, since what they read was changing.
    pub repeated_reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Atomics.
    pub atomics: u64,
    /// Locks that were found held.
    pub conflicts: u64,
    /// PUTs that were retried.
    pub retries: u64,
    /// PUTs that were given up.
    pub puts_given_up: u64,
}

impl Ops {
    /// Operations since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            gets: self.gets - before.gets,
            done: self.done - before.done,
            reads: self.reads - before.reads,
            repeated_reads: self.repeated_reads - before.repeated_reads,
            writes: self.writes - before.writes,
            atomics: self.atomics - before.atomics,
            conflicts: self.conflicts - before.conflicts,
            retries: self.retries - before.retries,
            puts_given_up: self.puts_given_up - before.puts_given_up,
        }
    }
}

/// A store of one design.
pub trait Design<D: Device>: Clone + Send + 'static {
    /// Owner of the table.
    type Owner: Owns;
    /// Client of the store.
    type Client: StoreClient + 'static;

    /// Length of the first READ of a GET, in bytes.
    fn read_len(&self) -> usize;

    /// Makes the owner, on the calling thread, with all keys stored.
    ///
    /// # Errors
    ///
    /// Those of the device; there is no room for an item; or an interrupt.
    fn owner(&self, device: &D, plan: &StorePlan) -> anyhow::Result<Self::Owner>;

    /// Makes a client, on the calling thread. `greet` introduces it to the owner.
    ///
    /// # Errors
    ///
    /// Those of the device or the owner.
    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client>;

    /// Operations of a client.
    fn ops(client: &Self::Client) -> Ops;
}

/// An owner of a table.
pub trait Owns {
    /// Serves requests. Returns their number.
    fn turn(&mut self, now_ns: u64) -> usize;
    /// Does rare work; to be called now and then.
    fn tend(&mut self, now_ns: u64);
    /// Admits a client.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome>;
}

/// Pilaf's and FaRM's design: a table, and how others search it.
#[derive(Clone)]
pub struct Searched<I, F> {
    /// Layout of the table, for searches.
    pub index: I,
    /// Makes the table in exposed memory.
    pub table: F,
}

impl<D, I, T, F> Design<D> for Searched<I, F>
where
    D: Device + 'static,
    I: Index + Clone + Send + 'static,
    T: Table,
    F: Fn(SharedMemory) -> Result<T, TableError> + Clone + Send + 'static,
{
    type Owner = (Worker<D, ChangeService<T>>, Owner<D>);
    type Client = OneSidedClient<D, I>;

    fn read_len(&self) -> usize {
        self.index.search(&[0]).1.len
    }

    fn owner(&self, device: &D, plan: &StorePlan) -> anyhow::Result<Self::Owner> {
        let (owner, seed, memory) = Owner::new(device, &plan.owner, &self.index)?;
        let mut table = (self.table)(memory)?;
        plan.fill(|key, value| table.put(key, value).map(drop))?;
        Ok((Worker::new(seed, &WorkerConfig::herd_opt(), ChangeService::new(table))?, owner))
    }

    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        let config = plan.client(plan.owner, self.index.read_len_max());
        let (joining, hello) = Joining::prepare(device, &device.protection_domain()?, &config)?;
        Ok(joining.join(&greet(hello)?)?)
    }

    fn ops(client: &Self::Client) -> Ops {
        let stats = client.stats();
        let done = stats.gets + client.calls().stats().answered;
        Ops { gets: stats.gets, done, reads: stats.reads, repeated_reads: stats.reads_repeated, ..Ops::default() }
    }
}

impl<D: Device, T: Table> Owns for (Worker<D, ChangeService<T>>, Owner<D>) {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.0.turn(now_ns)
    }

    fn tend(&mut self, _: u64) {
        self.1.tend();
    }

    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome> {
        Ok(self.1.admit(hello)?.1)
    }
}

/// DrTM-KV's design.
#[derive(Clone)]
pub struct Locked(pub Layout);

impl Locked {
    fn calls(&self, plan: &StorePlan) -> OwnerConfig {
        drtm::calls(&self.0, plan.owner.clients, plan.window.next_power_of_two(), plan.owner.seed)
    }
}

impl<D: Device + 'static> Design<D> for Locked {
    type Owner = (Worker<D, drtm::ChangeService>, drtm::Owner<D>);
    type Client = drtm::DrtmClient<D>;

    fn read_len(&self) -> usize {
        self.0.record_len()
    }

    fn owner(&self, device: &D, plan: &StorePlan) -> anyhow::Result<Self::Owner> {
        let config = drtm::OwnerConfig { calls: self.calls(plan), lease_ns: LEASE_NS };
        let (owner, seed, memory) = drtm::Owner::new(device, &config, &self.0)?;
        let mut table = LockedTable::new(self.0, memory)?;
        plan.fill(|key, value| table.insert(key, value).map(drop))?;
        Ok((Worker::new(seed, &WorkerConfig::herd_opt(), drtm::ChangeService::new(table))?, owner))
    }

    fn client(
        &self,
        device: &D,
        plan: &StorePlan,
        greet: impl FnOnce(Hello) -> anyhow::Result<Welcome>,
    ) -> anyhow::Result<Self::Client> {
        // In a table that is half full, sets of four hardly ever lack a place.
        let config = drtm::ClientConfig::new(plan.client(self.calls(plan), self.0.read_len_max()), 2 * plan.keys);
        let (joining, hello) = drtm::Joining::prepare(device, &device.protection_domain()?, &config)?;
        Ok(joining.join(&greet(hello)?)?)
    }

    fn ops(client: &Self::Client) -> Ops {
        let drtm::ClientStats { done, gets, reads, reads_repeated, atomics, writes, conflicts, retries, .. } =
            *client.stats();
        Ops { gets, done, reads, repeated_reads: reads_repeated, atomics, writes, conflicts, retries, puts_given_up: 0 }
    }
}

impl<D: Device> Owns for (Worker<D, drtm::ChangeService>, drtm::Owner<D>) {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.0.turn(now_ns)
    }

    fn tend(&mut self, now_ns: u64) {
        self.1.tend(self.0.service().table(), now_ns);
    }

    fn admit(&mut self, hello: &Hello) -> anyhow::Result<Welcome> {
        Ok(self.1.admit(hello)?.1)
    }
}
