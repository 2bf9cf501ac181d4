//! Donors on modelled hosts: calls over `rpc`, memory by RDMA, in virtual time.
#![allow(dead_code)]

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_remote_memory::donor::{Key, Service, ServiceConfig};
use sinew_rpc::{Config, Nexus, Rpc};
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, Network, PortConfig, SimClock, SimPort, SimVerbs, Topology};

pub const DONORS: usize = 3;
pub const HOSTS: usize = DONORS + 3;
pub const MEMORY: usize = 16 << 20;

pub type Endpoint = Rpc<SimPort, SimClock>;
pub struct Donor {
    pub service: Service<SimVerbs>,
    pub rpc: Endpoint,
}

pub struct World {
    pub network: Network,
    pub donors: Vec<Option<Donor>>,
    pub opened: Rc<Cell<usize>>,
    pub key: Option<Key>,
}

pub fn address(lane: usize) -> String {
    format!("sim://donor{lane}")
}

impl World {
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

    pub fn donor(&self, lane: usize) -> Donor {
        let config = ServiceConfig::new(MEMORY, self.key.clone());
        let service = Service::new(&self.device(lane), config, self.random()).unwrap();
        Donor { service, rpc: self.endpoint(lane, &format!("donor{lane}")) }
    }

    /// Some time passes, and donors do what they have to.
    pub fn pass(&mut self) {
        for donor in self.donors.iter_mut().flatten() {
            let Donor { service, rpc } = donor;
            rpc.turn_with(|call| service.take(call));
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
