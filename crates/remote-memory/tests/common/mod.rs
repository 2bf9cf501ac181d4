//! Donors on modelled hosts, in virtual time: calls over `rpc`, memory by RDMA or by calls.
#![allow(dead_code)]

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_remote_memory::donor::{CallsOnly, Key, MemoryProvider, Service, ServiceConfig};
use sinew_remote_memory::engine::{RpcPathConfig, VerbsPathConfig};
use sinew_remote_memory::pool::{AccessMethod, Calls, Verbs};
use sinew_rpc::{Config, Nexus, Rpc, SharedEndpoint};
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, Network, PortConfig, SimClock, SimPort, SimVerbs, Topology};

pub const DONORS: usize = 3;
pub const HOSTS: usize = DONORS + 3;
pub const MEMORY: usize = 16 << 20;

pub type Endpoint = Rpc<SimPort, SimClock>;

/// How memory is lent and reached.
pub trait AccessKind: Sized {
    type Lends: MemoryProvider + Clone;
    type Method: AccessMethod;

    fn lends(world: &World<Self>, host: usize) -> Self::Lends;

    fn access_method(world: &World<Self>, host: usize, rpc: &SharedEndpoint<Endpoint>) -> Self::Method;
}

/// Memory by RDMA.
pub struct ByVerbs;

impl AccessKind for ByVerbs {
    type Lends = SimVerbs;
    type Method = Verbs<SimVerbs>;

    fn lends(world: &World<Self>, host: usize) -> SimVerbs {
        world.device(host)
    }

    fn access_method(world: &World<Self>, host: usize, _: &SharedEndpoint<Endpoint>) -> Verbs<SimVerbs> {
        Verbs::new(&world.device(host), 64 << 20, VerbsPathConfig::default()).unwrap()
    }
}

/// Memory by calls alone.
pub struct ByCalls;

impl AccessKind for ByCalls {
    type Lends = CallsOnly;
    type Method = Calls<Endpoint>;

    fn lends(_: &World<Self>, _: usize) -> CallsOnly {
        CallsOnly
    }

    fn access_method(_: &World<Self>, _: usize, rpc: &SharedEndpoint<Endpoint>) -> Calls<Endpoint> {
        Calls::new(rpc, 64 << 20, RpcPathConfig::default()).unwrap()
    }
}

pub struct Donor<M: AccessKind> {
    pub service: Service<M::Lends>,
    pub rpc: Endpoint,
}

pub struct World<M: AccessKind> {
    pub network: Network,
    pub donors: Vec<Option<Donor<M>>>,
    pub opened: Rc<Cell<usize>>,
    pub key: Option<Key>,
}

/// Instantiates tests that are generic over the means.
#[macro_export]
macro_rules! with_all_means {
    ($($fact:ident),+ $(,)?) => {
        mod by_verbs {
            $(#[test] fn $fact() { super::$fact::<super::common::ByVerbs>(); })+
        }
        mod by_calls {
            $(#[test] fn $fact() { super::$fact::<super::common::ByCalls>(); })+
        }
    };
}

pub fn address(lane: usize) -> String {
    format!("sim://donor{lane}")
}

impl<M: AccessKind> World<M> {
    pub fn new(seed: u64) -> Self {
        let network = Network::new(Topology::star(HOSTS, 54.54, 10, 4096), seed).unwrap();
        let profile = Profile::built_in("cx3").unwrap();
        (0..HOSTS).for_each(|host| network.attach_nic(HostId(host), &profile).unwrap());
        let key = Key::new(b"a key of some bytes");
        let mut world = Self { network, donors: Vec::new(), opened: Rc::default(), key };
        for lane in 0..DONORS {
            let donor = world.donor(lane);
            world.donors.push(Some(donor));
        }
        world
    }

    pub fn device(&self, host: usize) -> SimVerbs {
        self.opened.set(self.opened.get() + 1);
        self.network.verbs(HostId(host), &format!("device {}", self.opened.get())).unwrap()
    }

    pub fn random(&self) -> Box<SeededGenerator> {
        Box::new(SeededGenerator::new(self.network.random()))
    }

    pub fn endpoint(&self, host: usize, name: &str) -> Endpoint {
        let config = PortConfig { arena_bytes: 8 << 20, ..PortConfig::default() };
        let port = self.network.open(HostId(host), name, config).unwrap();
        let nexus = Nexus::builder().config(Config::default()).build().unwrap();
        Rpc::new(&nexus, port, self.network.clock(), self.random())
    }

    pub fn donor(&self, lane: usize) -> Donor<M> {
        let config = ServiceConfig::new(MEMORY, self.key.clone());
        let service = Service::new(&M::lends(self, lane), config, self.random()).unwrap();
        Donor { service, rpc: self.endpoint(lane, &format!("donor{lane}")) }
    }

    /// Lets the donors do their work, and some time pass.
    pub fn advance(&mut self) {
        for donor in self.donors.iter_mut().flatten() {
            let Donor { service, rpc } = donor;
            rpc.turn_with(|call| service.handle_call(call));
            service.turn();
        }
        let step_ns = if self.network.in_flight() > 0 { 2_000 } else { 20_000 };
        self.network.run_until(self.network.now_ns() + step_ns);
    }

    pub fn kill(&mut self, lane: usize) {
        self.donors[lane] = None;
        self.cut(lane, true);
    }

    pub fn cut(&self, lane: usize, is_cut: bool) {
        (0..HOSTS).filter(|host| *host != lane).for_each(|host| {
            self.network.set_cut(HostId(lane), HostId(host), is_cut);
            self.network.set_cut(HostId(host), HostId(lane), is_cut);
        });
    }
}
