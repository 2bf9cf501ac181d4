//! Engines by calls to a donor that answers, on the loopback network.

use sinew_fabric::loopback::{LoopbackPort, Network};
use sinew_fabric::{Clock, ManualClock, SeededGenerator};
use sinew_mem::{Arena, SharedMemory};
use sinew_remote_memory::engine::facts::Ground;
use sinew_remote_memory::engine::{ACCESS, Ranges, RpcPath, RpcPathConfig};
use sinew_remote_memory::engine_tests;
use sinew_rpc::{Config, Nexus, Rpc};

const LEN: usize = 4 << 20;

/// A donor and those who call it.
struct Calls {
    network: Network,
    clock: ManualClock,
    donor: Rpc<LoopbackPort, ManualClock>,
    memory: SharedMemory,
    key: u32,
    arena: Arena,
    clients: u64,
}

impl Calls {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let ranges = Ranges::new();
        let memory = SharedMemory::private(LEN).unwrap();
        let key = ranges.give(memory.clone());
        let nexus = Nexus::builder().handle(ACCESS, ranges.handler()).build().unwrap();
        let port = network.port("donor").unwrap();
        let donor = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(1)));
        let arena = Arena::private(256 << 20).unwrap();
        Self { network, clock, donor, memory, key, arena, clients: 0 }
    }
}

impl Ground for Calls {
    type Path = RpcPath<Rpc<LoopbackPort, ManualClock>>;

    fn len(&self) -> u64 {
        LEN as u64
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn path(&mut self) -> Self::Path {
        self.clients += 1;
        let config = Config { probe_interval_ns: 20_000_000, peer_timeout_ns: 100_000_000, ..Config::default() };
        let nexus = Nexus::builder().config(config).build().unwrap();
        let port = self.network.port(&format!("client{}", self.clients)).unwrap();
        let mut rpc = Rpc::new(&nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(1 + self.clients)));
        let session = rpc.begin_connect(&self.donor.address()).unwrap();
        while rpc.poll_event().is_none() {
            rpc.turn();
            self.pass();
        }
        RpcPath::new(rpc, session, self.key, &RpcPathConfig::default())
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn pass(&mut self) {
        self.donor.turn();
        self.clock.advance(2_000);
    }

    fn look(&self, at: u64, bytes: &mut [u8]) {
        self.memory.read(at as usize, bytes).unwrap();
    }

    fn kill(&mut self) {
        assert!(self.network.kill("donor"));
    }
}

engine_tests!(Calls::new());
