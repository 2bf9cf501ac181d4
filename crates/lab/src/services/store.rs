//! Stores that clients READ: emulations of Pilaf and FaRM (sigcomm14 5.1), and DrTM-KV (atc16 4.3.2).

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_harness::load::one_sided::{Design, Locked, Ops, Owns, Searched, StorePlan};
use sinew_harness::load::store::Store;
use sinew_harness::workload::{Distribution, KEY_LEN, Order, Sizes, Workload};
use sinew_kv::one_sided::{Emulation, NoTable, OwnerConfig};
use sinew_kv::{drtm, farm, pilaf};
use sinew_mem::SharedMemory;
use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Actor, ActorState, SimClock, SimVerbs};

use super::{Driven, DriverResults, Hosts, Windowed};

/// Requests that a client draws in advance. DrTM-KV's clients learn the places of their keys while they warm up, and
/// repeat the same requests again and again.
const TRACE: usize = 4096;
const TRACE_DRTM: usize = 256;
/// Time between two looks of an owner that found nothing.
const POLL_NS: u64 = 500;
/// Latest end of a run.
const END_NS: u64 = 10_000_000_000;
/// Turns after which an owner looks after its clients.
const TENDING: u32 = 1 << 14;

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Pilaf-em-OPT.
    Pilaf,
    /// FaRM-em.
    Farm,
    /// FaRM-em-VAR.
    FarmVar,
    /// DrTM-KV, with a real table. Clients know the places of the keys.
    Drtm,
}

/// A run of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreRun {
    /// The store.
    pub kind: StoreKind,
    /// Hosts of clients.
    pub hosts: usize,
    /// Clients, spread over them.
    pub clients: usize,
    /// Requests in flight of each client.
    pub window: usize,
    /// Number of keys.
    pub keys: usize,
    /// Percentage of GETs.
    pub get_percent: f64,
    /// Bytes of a value.
    pub value_len: usize,
    /// Time before anything is counted.
    pub warm_up_ns: u64,
    /// Time that is counted.
    pub measured_ns: u64,
    /// Seed of the run.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct StoreResult {
    /// Requests per second, in millions.
    pub mops: f64,
    /// Mean time of a request, in ns.
    pub mean_ns: f64,
    /// 5th and 95th percentiles of the times.
    pub percentiles_ns: [u64; 2],
    /// Operations of all clients.
    pub ops: Ops,
    /// Use of the server's NIC.
    pub usage: NicUse,
    /// Hash of everything that the network did.
    pub trace_hash: u64,
}

impl StoreRun {
    /// sigcomm14's run: 51 clients on 17 hosts, items of 48 B (5.1).
    pub fn sigcomm14(kind: StoreKind) -> Self {
        Self {
            kind,
            hosts: 17,
            clients: 51,
            window: 4,
            keys: 6 * 4096,
            get_percent: 95.0,
            value_len: 32,
            warm_up_ns: 50_000,
            measured_ns: 500_000,
            seed: 1,
        }
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// When an answer is wrong.
    pub fn run(&self, profile: &Profile) -> StoreResult {
        let (items, value_len) = (self.keys as u32, self.value_len as u32);
        let emulated = |index: Emulation| Searched {
            index,
            table: move |memory: SharedMemory| {
                index.fill(&memory);
                Ok(NoTable)
            },
        };
        match self.kind {
            StoreKind::Pilaf => self.of(profile, &emulated(pilaf::emulation(items, value_len)), true),
            StoreKind::Farm => {
                self.of(profile, &emulated(farm::emulation(items, KEY_LEN as u32, value_len, true)), true)
            }
            StoreKind::FarmVar => {
                self.of(profile, &emulated(farm::emulation(items, KEY_LEN as u32, value_len, false)), true)
            }
            StoreKind::Drtm => {
                self.of(profile, &Locked(drtm::layout(items, KEY_LEN as u32, value_len, self.seed)), false)
            }
        }
    }

    fn of<S: Design<SimVerbs>>(&self, profile: &Profile, design: &S, is_emulated: bool) -> StoreResult {
        let mut hosts = Hosts::new(profile, self.hosts, self.seed);
        let clock = hosts.clock();
        let owner = OwnerConfig {
            clients: self.clients,
            window: self.window.next_power_of_two(),
            item_len_max: KEY_LEN + self.value_len,
            seed: self.seed,
        };
        let plan = StorePlan { owner, window: self.window, keys: self.keys, interrupt: None };
        let device = hosts.server();
        let mut owner = design.owner(&device, &plan).expect("there is room");
        let found = Rc::<RefCell<DriverResults>>::default();
        let ops = Rc::<RefCell<Ops>>::default();
        let is_drtm = self.kind == StoreKind::Drtm;
        let (trace, look_ns) = if is_drtm { (TRACE_DRTM, 500) } else { (TRACE, 100_000) };
        for number in 0..self.clients {
            let device = hosts.client(number);
            let client = design.client(&device, &plan, |hello| owner.admit(&hello)).expect("it has a place");
            let client = Windowed { client, window: self.window };
            let workload = Workload {
                keys: self.keys,
                distribution: Distribution::Uniform,
                get_percent: self.get_percent,
                order: Order::Alike,
                sizes: Sizes::Fixed(self.value_len),
                seed: self.seed << 16 | number as u64,
            };
            let load = Store::with_trace(vec![client], clock.clone(), &workload, trace, is_emulated, 0);
            let slices_ns = [self.warm_up_ns, self.measured_ns];
            let driven = Driven::new(load, clock.clone(), &slices_ns, look_ns, &found).at_end({
                let ops = Rc::clone(&ops);
                move |load: &mut Store<Windowed<S::Client>, SimClock>| {
                    let (sum, did) = (&mut *ops.borrow_mut(), S::ops(&load.clients()[0].client));
                    add(sum, &did);
                }
            });
            hosts.cluster.add(&format!("client{number}"), [device.place()], Box::new(driven));
        }
        let look_ns = profile.core.look_ns * self.clients as u64;
        let actor = OwnerActor { owner, clock, look_ns, turns: 0 };
        hosts.cluster.add("owner", [device.place()], Box::new(actor));
        DriverResults::wait(&found, &mut hosts.cluster, END_NS);
        let (found, sum) = (found.borrow(), found.borrow().sum());
        StoreResult {
            mops: found.mops(),
            mean_ns: sum.latency.mean(),
            percentiles_ns: [0.05, 0.95].map(|part| sum.latency.value_at_quantile(part)),
            ops: *ops.borrow(),
            usage: hosts.usage(),
            trace_hash: hosts.network.trace_hash(),
        }
    }
}

fn add(sum: &mut Ops, did: &Ops) {
    sum.gets += did.gets;
    sum.done += did.done;
    sum.reads += did.reads;
    sum.writes += did.writes;
    sum.atomics += did.atomics;
    sum.conflicts += did.conflicts;
    sum.retries += did.retries;
}

/// The owner of a table, which polls on a core of its own.
struct OwnerActor<O> {
    owner: O,
    clock: SimClock,
    look_ns: u64,
    turns: u32,
}

impl<O: Owns> Actor for OwnerActor<O> {
    fn turn(&mut self) -> ActorState {
        self.turns = self.turns.wrapping_add(1);
        self.clock.spend_ns(self.look_ns);
        let now_ns = self.clock.now_ns();
        if self.turns.is_multiple_of(TENDING) {
            self.owner.tend(now_ns);
        }
        if self.owner.turn(now_ns) > 0 {
            ActorState::Work
        } else {
            ActorState::IdleUntil(self.clock.now_ns() + POLL_NS)
        }
    }
}
