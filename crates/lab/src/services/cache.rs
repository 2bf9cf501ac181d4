//! HERD's cache (sigcomm14 4, atc16 4.3.1).

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::verbs::Device;
use sinew_harness::load::store::Store;
use sinew_harness::workload::{Distribution, KEY_LEN, Order, Sizes, Workload, fill_value, key_bytes};
use sinew_herd::{Client, ClientConfig, Server, ServerConfig, Worker, WorkerConfig};
use sinew_kv::Partitions;
use sinew_kv::herd::{CacheClient, CacheService};
use sinew_sim::nic::{NicUse, Profile};
use sinew_store::cache::{Cache, CacheConfig, Put};

use super::charges::{Accesses, Charged};
use super::{Driven, DriverResults, Hosts, Serving, Windowed, Working};

/// Requests that a client draws in advance.
const TRACE: usize = 4096;
/// Time after which a driver that was idle looks again.
const IDLE_TURN_NS: u64 = 100_000;
/// Latest end of a run.
const END_NS: u64 = 1_000_000_000;

/// A run of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheRun {
    /// Configuration of the workers.
    pub worker: WorkerConfig,
    /// Workers, each with a core and a partition of the keys.
    pub workers: usize,
    /// Hosts of clients.
    pub hosts: usize,
    /// Clients, spread over them.
    pub clients: usize,
    /// Requests in flight of each client, over all workers.
    pub window: usize,
    /// Keys, over all partitions.
    pub keys: usize,
    /// Distribution of requests over the keys.
    pub distribution: Distribution,
    /// Percentage of GETs.
    pub get_percent: f64,
    /// Bytes of a value.
    pub value_len: usize,
    /// Time that is counted.
    pub measured_ns: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct CacheResult {
    /// Requests per second, in millions.
    pub mops: f64,
    /// Mean time of a request, in ns.
    pub mean_ns: f64,
    /// 5th and 95th percentiles of the times.
    pub percentiles_ns: [u64; 2],
    /// Requests that each worker answered.
    pub answered: Vec<u64>,
    /// Mean number of answers per doorbell.
    pub batch: f64,
    /// Percentage of GETs that found their key.
    pub hit_percent: f64,
    /// Use of the server's NIC.
    pub usage: NicUse,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

impl CacheRun {
    /// HERD as in sigcomm14: six workers, 51 clients on 17 hosts with four requests in flight each, items of 48 B
    /// (5.1).
    pub fn sigcomm14() -> Self {
        Self {
            worker: WorkerConfig::herd(),
            workers: 6,
            hosts: 17,
            clients: 51,
            window: 4,
            keys: 6 * 4096,
            distribution: Distribution::Uniform,
            get_percent: 95.0,
            value_len: 32,
            measured_ns: 500_000,
            seed: 1,
        }
    }

    /// A GET or a PUT accesses memory twice: bucket and item.
    const ACCESSES: Accesses = Accesses { first: 1, second: 1, unforeseen: 0 };

    fn workload(&self, seed: u64) -> Workload {
        Workload {
            keys: self.keys,
            distribution: self.distribution,
            get_percent: self.get_percent,
            order: Order::Alike,
            sizes: Sizes::Fixed(self.value_len),
            seed,
        }
    }

    /// Services of the filled partitions.
    fn services(&self) -> Vec<CacheService> {
        let partitions = Partitions::new(self.workers);
        let item = 16 + KEY_LEN + self.value_len.next_multiple_of(8);
        let mut caches: Vec<Cache> = (0..self.workers)
            .map(|worker| {
                let config = CacheConfig {
                    items: 2 * self.keys / self.workers + 1024,
                    memory_bytes: (4 * self.keys / self.workers + 1024) * item,
                    value_len_max: 1000,
                    seed: self.seed + worker as u64,
                    ..CacheConfig::default()
                };
                Cache::new(&config).expect("there is memory")
            })
            .collect();
        let mut value = vec![0; self.value_len];
        for key in 0..self.keys as u64 {
            fill_value(&mut value, key, 0);
            let bytes = key_bytes(key);
            let cache = &mut caches[partitions.of(&bytes)];
            let key = cache.hasher().clone();
            cache.put(&key.key(&bytes), &value, &Put::default(), 1).expect("there is room");
        }
        let service = |(index, cache)| CacheService::new(cache, partitions.clone(), index);
        caches.into_iter().enumerate().map(service).collect()
    }

    /// Runs it with each of some windows, and returns the run with the highest rate.
    pub fn best(&self, profile: &Profile, windows: &[usize]) -> CacheResult {
        let runs = windows.iter().map(|window| Self { window: *window, ..*self }.run(profile));
        runs.max_by(|a, b| a.mops.total_cmp(&b.mops)).expect("there are windows")
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// When an answer is wrong.
    pub fn run(&self, profile: &Profile) -> CacheResult {
        let mut hosts = Hosts::new(profile, self.hosts, self.seed);
        let layout = sinew_kv::herd::layout(self.workers, self.clients, self.window.next_power_of_two());
        let device = hosts.server();
        let config = ServerConfig { layout, seed: self.seed };
        let (mut server, seeds) = Server::new(&device, &config).expect("there is room");
        let (clock, core) = (hosts.clock(), profile.core);
        let workers: Vec<_> = seeds
            .into_iter()
            .zip(self.services())
            .map(|(seed, service)| {
                let service = Charged::new(service, clock.clone(), core, Self::ACCESSES);
                Worker::new(seed, &self.worker, service).expect("the NIC takes it")
            })
            .collect();
        let found = Rc::<RefCell<DriverResults>>::default();
        let mut drivers = Vec::new();
        for number in 0..self.clients {
            let device = hosts.client(number);
            let domain = device.protection_domain().expect("there is memory");
            let (joining, hello) = Client::prepare(&device, &domain, &ClientConfig::new(layout)).expect("as above");
            let (_, welcome) = server.admit(&hello).expect("it has a place");
            let client = CacheClient::new(joining.join(&welcome).expect("both are of one layout"));
            let client = Windowed { client, window: self.window };
            let workload = self.workload(self.seed << 16 | number as u64);
            let load = Store::with_trace(vec![client], clock.clone(), &workload, TRACE, false, 0);
            drivers.push((device.place(), Driven::new(load, clock.clone(), &[self.measured_ns], IDLE_TURN_NS, &found)));
        }
        let mut servings = Vec::new();
        for (index, worker) in workers.into_iter().enumerate() {
            let serving = Rc::<Serving>::default();
            let working = Working::new(worker, &self.worker, clock.clone(), core.look_ns, &serving);
            servings.push(serving);
            hosts.cluster.add(&format!("worker{index}"), [], Box::new(working));
        }
        for (index, (place, driver)) in drivers.into_iter().enumerate() {
            hosts.cluster.add(&format!("client{index}"), [place], Box::new(driver));
        }
        DriverResults::wait(&found, &mut hosts.cluster, END_NS);
        let (found, sum) = (found.borrow(), found.borrow().sum());
        let answered: Vec<u64> = servings.iter().map(|serving| serving.answered.get()).collect();
        let batches: u64 = servings.iter().map(|serving| serving.batches.get()).sum();
        CacheResult {
            mops: found.mops(),
            mean_ns: sum.latency.mean(),
            percentiles_ns: [0.05, 0.95].map(|part| sum.latency.value_at_quantile(part)),
            batch: answered.iter().sum::<u64>() as f64 / batches.max(1) as f64,
            answered,
            hit_percent: sum.hit_percent(),
            usage: hosts.usage(),
            trace_hash: hosts.network.trace_hash(),
        }
    }
}
