//! Engines that use calls to a donor, on the loopback network.

use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{Clock, ManualClock, SeededGenerator};
use sinew_mem::{Arena, SharedMemory};
use sinew_remote_memory::engine::facts::TestSetup;
use sinew_remote_memory::engine::{
    ACCESS, Engine, EngineConfig, Op, Ranges, Request, RpcPath, RpcPathConfig, Shared, SharedConfig, Unlimited,
};
use sinew_remote_memory::engine_tests;
use sinew_rpc::{Config, Nexus, Rpc};

const LEN: usize = 4 << 20;

/// A donor and its callers.
struct CallsSetup {
    network: Network,
    clock: ManualClock,
    donor: Rpc<LoopbackPort, ManualClock>,
    memory: SharedMemory,
    key: u64,
    arena: Arena,
    clients: u64,
    client_arena_bytes: usize,
}

impl CallsSetup {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let ranges = Ranges::new();
        let memory = SharedMemory::private(LEN).unwrap();
        let key = ranges.offer(memory.clone());
        let nexus = Nexus::builder().handle(ACCESS, ranges.handler()).build().unwrap();
        let port = network.port("donor").unwrap();
        let donor = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(1)));
        let arena = Arena::private(256 << 20).unwrap();
        Self { network, clock, donor, memory, key, arena, clients: 0, client_arena_bytes: 64 << 20 }
    }
}

impl TestSetup for CallsSetup {
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
        let arena = LoopbackConfig { arena_bytes: self.client_arena_bytes, ..LoopbackConfig::default() };
        let port = self.network.port_with(&format!("client{}", self.clients), arena).unwrap();
        let mut rpc = Rpc::new(&nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(1 + self.clients)));
        let session = rpc.begin_connect(&self.donor.address()).unwrap();
        while rpc.poll_event().is_none() {
            rpc.turn();
            self.advance();
        }
        RpcPath::new(rpc, session, self.key, &RpcPathConfig::default())
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn advance(&mut self) {
        self.donor.turn();
        self.clock.advance(2_000);
    }

    fn read_donor(&self, at: u64, bytes: &mut [u8]) {
        self.memory.read(at as usize, bytes).unwrap();
    }

    fn kill_donor(&mut self) {
        assert!(self.network.kill("donor"));
    }
}

engine_tests!(CallsSetup::new());

#[test]
fn calls_that_find_no_memory_wait_for_those_under_way() {
    const EACH: usize = 48 << 10;
    let mut calls = CallsSetup { client_arena_bytes: 1 << 20, ..CallsSetup::new() };
    let shared = Shared::new("donor", LEN as u64, Unlimited, SharedConfig::default());
    let mut engine = Engine::new(&shared, calls.path(), EngineConfig::default());
    let mut finished = Vec::new();
    for round in 1..=2u8 {
        for number in 0..64 {
            let mut buffer = calls.arena.alloc(EACH, EACH).unwrap();
            buffer[..].fill(number as u8 ^ round);
            // Gaps keep the requests from being merged.
            let at = number * 60_000;
            let op = if round == 1 {
                Op::Write { at, source: buffer.freeze().into() }
            } else {
                Op::Read { at, target: buffer }
            };
            engine.submit(Request { tag: number, op }).unwrap();
        }
        for _ in 0..100_000 {
            engine.turn(calls.clock.now_ns());
            engine.poll(&mut finished, usize::MAX);
            calls.advance();
        }
        assert_eq!(finished.len(), 64, "round {round}");
        for one in finished.drain(..) {
            one.result.unwrap();
            if let Some(target) = one.target {
                assert!(target.iter().all(|byte| *byte == one.tag as u8 ^ 1), "{}", one.tag);
            }
        }
    }
}
