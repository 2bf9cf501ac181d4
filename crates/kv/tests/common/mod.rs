//! A cache and its clients on a network in memory, in virtual time.
#![allow(dead_code, missing_docs)] // each test file uses its part

use sinew_fabric::fault::{FaultConfig, Faulty};
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_kv::cache::{Answer, ClientConfig, Connecting, Error, Partition, Pipeline, REQUESTS, Service};
use sinew_rpc::{Config, Nexus, Rpc};
use sinew_store::cache::CacheConfig;

pub type Endpoint = Rpc<Faulty<LoopbackPort>, ManualClock>;
pub type TestPipeline = Pipeline<Endpoint>;

pub struct World {
    pub network: Network,
    pub clock: ManualClock,
    pub servers: Vec<Endpoint>,
    pub partitions: Vec<Partition>,
    pub now_s: u32,
    seed: u64,
}

impl World {
    /// A cache whose endpoints are `cache.0`, `cache.1`, and so on.
    pub fn new(partitions: usize, config: &CacheConfig) -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let mut world = Self { network, clock, servers: Vec::new(), partitions: Vec::new(), now_s: 1, seed: 1 };
        let service = Service::new(partitions, config).unwrap();
        for _ in 0..partitions {
            world.serve(&service);
        }
        world
    }

    /// Adds an endpoint for a partition of a service.
    pub fn serve(&mut self, service: &Service) {
        let config = Config { message_len_max: service.message_len_max() as u32, ..Config::default() };
        let nexus = Nexus::builder().config(config).build().unwrap();
        let index = self.servers.len();
        let mut endpoint = self.endpoint(&format!("cache.{index}"), &nexus, FaultConfig::NONE);
        let partition = service.claim(index).unwrap();
        endpoint.handle_burst(REQUESTS, partition.handler()).unwrap();
        self.servers.push(endpoint);
        self.partitions.push(partition);
    }

    pub fn endpoint(&mut self, name: &str, nexus: &Nexus, faults: FaultConfig) -> Endpoint {
        self.endpoint_with(name, 0, nexus, faults)
    }

    /// Makes an endpoint with this number, without faults.
    pub fn numbered_endpoint(&mut self, name: &str, index: usize, nexus: &Nexus) -> Endpoint {
        self.endpoint_with(name, index, nexus, FaultConfig::NONE)
    }

    fn endpoint_with(&mut self, name: &str, index: usize, nexus: &Nexus, faults: FaultConfig) -> Endpoint {
        self.seed += 1;
        let port = self.network.port_with(name, LoopbackConfig::default()).unwrap();
        let port = Faulty::new(port, faults, self.seed);
        Rpc::numbered(nexus, index, port, self.clock.clone(), Box::new(SeededGenerator::new(self.seed)))
    }

    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address().to_string()).collect()
    }

    /// Connects a client to these addresses.
    pub fn connect_to(
        &mut self,
        addresses: Vec<String>,
        config: ClientConfig,
        faults: FaultConfig,
    ) -> Result<TestPipeline, Error> {
        let rpc_config = Config { message_len_max: 4 << 20, ..Config::default() };
        let nexus = Nexus::builder().config(rpc_config).build().unwrap();
        let rpc = self.endpoint(&format!("client.{}", self.seed), &nexus, faults);
        let mut connecting = Connecting::begin(rpc, addresses, config)?;
        for _ in 0..100_000 {
            if connecting.poll()? {
                return connecting.finish();
            }
            connecting.rpc_mut().turn();
            self.turn();
        }
        panic!("no connection");
    }

    pub fn connect(&mut self, config: ClientConfig, faults: FaultConfig) -> TestPipeline {
        self.connect_to(self.addresses(), config, faults).unwrap()
    }

    /// Turns the servers, and lets time pass.
    pub fn turn(&mut self) {
        for partition in &self.partitions {
            partition.set_now_s(self.now_s);
        }
        for server in &mut self.servers {
            server.turn();
        }
        self.clock.advance(20_000);
    }

    /// Turns everything until the next answer arrives, and passes it to `take`.
    pub fn answer<T>(&mut self, pipeline: &mut TestPipeline, take: impl FnOnce(Answer<'_>) -> T) -> T {
        for _ in 0..100_000 {
            if let Some(answer) = pipeline.poll() {
                return take(answer);
            }
            pipeline.turn();
            self.turn();
        }
        panic!("no answer");
    }
}
