//! Endpoints on a network in memory, in virtual time.
#![allow(dead_code, missing_docs)] // each test file uses its part

pub mod handmade;

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use sinew_conformance::sealing::{Sealed, seal};
use sinew_fabric::fault::{FaultConfig, Faulty};
use sinew_fabric::loopback::{LoopbackConfig, Network};
use sinew_fabric::{Clock, Job, ManualClock, PacketPort, SeededGenerator, WorkerPool};
use sinew_rpc::{
    CallId, CallOptions, Cause, Completion, DeferredCall, Nexus, RequestType, Rpc, SessionEvent, SessionId,
};
use sinew_wire::Kind;

pub const ECHO: RequestType = RequestType::new(1);
pub const BURST: RequestType = RequestType::new(2);
pub const WORKER: RequestType = RequestType::new(3);
pub const DROP: RequestType = RequestType::new(4);
pub const PANIC: RequestType = RequestType::new(5);
pub const LONG: RequestType = RequestType::new(6);
/// Calls of this type are kept until [`answer_kept`].
pub const DEFER: RequestType = RequestType::new(7);
/// Key with which both sides of [`World::sealed`] seal.
pub const SEAL_KEY: [u64; 2] = [11, 22];

thread_local! {
    static KEPT: RefCell<Vec<DeferredCall>> = const { RefCell::new(Vec::new()) };
}

/// The calls of type [`DEFER`] that have not been answered yet.
pub fn take_kept() -> Vec<DeferredCall> {
    KEPT.take()
}

/// Answers the kept calls with their requests.
pub fn answer_kept() -> usize {
    take_kept().into_iter().map(DeferredCall::reply_in_place).count()
}

/// The ports of these tests. The workspace's end-to-end tests run them again on ports whose packets other fabrics
/// carry.
#[cfg(not(carried))]
pub type TestPort = sinew_fabric::loopback::LoopbackPort;
#[cfg(carried)]
pub use crate::ports::TestPort;

pub type Endpoint<P = TestPort> = Rpc<P, ManualClock>;

/// A worker pool that a test runs by hand.
#[derive(Default)]
pub struct ManualPool {
    jobs: Mutex<Vec<Job>>,
    pub full: std::sync::atomic::AtomicBool,
}

impl ManualPool {
    pub fn run_all(&self) -> usize {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        let count = jobs.len();
        for job in jobs {
            job();
        }
        count
    }

    pub fn len(&self) -> usize {
        self.jobs.lock().unwrap().len()
    }
}

impl WorkerPool for ManualPool {
    fn submit(&self, job: Job) -> Result<(), Job> {
        if self.full.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(job);
        }
        self.jobs.lock().unwrap().push(job);
        Ok(())
    }
}

pub fn server_nexus(pool: Arc<ManualPool>, config: sinew_rpc::Config) -> Nexus {
    Nexus::builder()
        .config(config)
        .workers(pool)
        .handle(ECHO, |call| {
            let request = call.request();
            call.reply(request);
        })
        .handle_burst(BURST, |calls| {
            for index in 0..calls.len() {
                let reply: Vec<u8> = calls.request(index).iter().rev().copied().collect();
                calls.reply(index, &reply);
            }
        })
        .handle_worker(WORKER, |call| {
            let reply = call.request().to_ascii_uppercase();
            call.reply(&reply);
        })
        .handle(DEFER, |call| {
            if let Ok(deferred) = call.defer() {
                KEPT.with_borrow_mut(|kept| kept.push(deferred));
            }
        })
        .handle(DROP, |_call| {})
        .handle(PANIC, |_call| panic!("a handler that panics on purpose"))
        .handle(LONG, |call| {
            let len = u32::from_le_bytes(call.request()[..4].try_into().unwrap()) as usize;
            call.reply_with(len, |response| fill_pattern(response, len as u8));
        })
        .build()
        .unwrap()
}

pub fn fill_pattern(bytes: &mut [u8], seed: u8) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((index >> 8) as u8);
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_pattern(&mut bytes, seed);
    bytes
}

pub struct World {
    pub network: Network,
    pub clock: ManualClock,
    pub pool: Arc<ManualPool>,
}

impl World {
    pub fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        Self { network: Network::new(clock.clone()), clock, pool: Arc::default() }
    }

    /// A port on the network.
    pub fn port(&self, name: &str, config: LoopbackConfig) -> TestPort {
        let port = self.network.port_with(name, config).unwrap();
        #[cfg(carried)]
        let port = crate::ports::port_on(port);
        port
    }

    pub fn endpoint(&self, name: &str, nexus: &Nexus, seed: u64) -> Endpoint {
        self.endpoint_with(name, nexus, seed, LoopbackConfig::default())
    }

    pub fn endpoint_with(&self, name: &str, nexus: &Nexus, seed: u64, config: LoopbackConfig) -> Endpoint {
        let port = self.port(name, config);
        Rpc::new(nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(seed)))
    }

    pub fn faulty(
        &self,
        name: &str,
        nexus: &Nexus,
        seed: u64,
        config: LoopbackConfig,
        faults: FaultConfig,
    ) -> Endpoint<Faulty<TestPort>> {
        let port = Faulty::new(self.port(name, config), faults, seed);
        Rpc::new(nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(seed)))
    }

    /// An endpoint whose packets are sealed; the faults are injected below the seal.
    pub fn sealed(
        &self,
        name: &str,
        nexus: &Nexus,
        config: LoopbackConfig,
        faults: FaultConfig,
    ) -> Endpoint<Sealed<Faulty<TestPort>>> {
        let number = self.clock.now_ns();
        let port = Faulty::new(self.port(name, config), faults, number);
        let port = seal(port, SEAL_KEY, number).unwrap();
        // Gives each endpoint a seed of its own.
        self.clock.advance(1);
        Rpc::new(nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(number)))
    }

    /// A server named `server`, without sessions.
    pub fn server(&self, config: sinew_rpc::Config, port: LoopbackConfig) -> Endpoint {
        self.endpoint_with("server", &server_nexus(Arc::clone(&self.pool), config), 1, port)
    }

    /// A client named `client`, without sessions.
    pub fn client(&self, config: sinew_rpc::Config, port: LoopbackConfig) -> Endpoint {
        let nexus = Nexus::builder().config(config).build().unwrap();
        self.endpoint_with("client", &nexus, 2, port)
    }

    /// A server named `server` and a client named `client` with a session.
    pub fn pair(&self, config: sinew_rpc::Config, port: LoopbackConfig) -> (Endpoint, Endpoint, SessionId) {
        self.pair_of((config.clone(), port), (config, port))
    }

    /// As [`Self::pair`], with a configuration and a port for each side, the client's first.
    pub fn pair_of(
        &self,
        of_client: (sinew_rpc::Config, LoopbackConfig),
        of_server: (sinew_rpc::Config, LoopbackConfig),
    ) -> (Endpoint, Endpoint, SessionId) {
        let mut server = self.server(of_server.0, of_server.1);
        let mut client = self.client(of_client.0, of_client.1);
        let session = connect(self, &mut client, &mut server);
        (client, server, session)
    }

    /// Loses everything that client and server send each other during `act`.
    pub fn losing<R>(&self, act: impl FnOnce() -> R) -> R {
        self.network.set_link("client", "server", false);
        let result = act();
        self.network.set_link("client", "server", true);
        result
    }
}

/// Takes the completions that are there already.
pub fn completions<P: PacketPort>(client: &mut Endpoint<P>) -> Vec<Completion> {
    std::iter::from_fn(|| client.poll_completion()).collect()
}

/// Takes the events that are there already.
pub fn events<P: PacketPort>(endpoint: &mut Endpoint<P>) -> Vec<SessionEvent> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

/// Turns both endpoints until nothing more is in flight, without letting time pass.
pub fn settle<P: PacketPort, Q: PacketPort>(a: &mut Endpoint<P>, b: &mut Endpoint<Q>) {
    for _ in 0..10_000 {
        let busy = a.turn();
        if !(b.turn() | busy) {
            return;
        }
    }
    panic!("two endpoints talk for ever");
}

/// Turns both endpoints for `ns` of virtual time, in steps of a millisecond.
pub fn pass_time<P: PacketPort, Q: PacketPort>(world: &World, a: &mut Endpoint<P>, b: &mut Endpoint<Q>, ns: u64) {
    for _ in 0..ns / 1_000_000 {
        world.clock.advance(1_000_000);
        a.turn();
        b.turn();
    }
}

pub fn connect<P: PacketPort, Q: PacketPort>(
    world: &World,
    client: &mut Endpoint<P>,
    server: &mut Endpoint<Q>,
) -> SessionId {
    let session = client.begin_connect(&server.address()).unwrap();
    for _ in 0..10_000 {
        client.turn();
        server.turn();
        match client.poll_event() {
            Some(SessionEvent::Connected(id)) if id == session => return session,
            Some(other) => panic!("{other:?}"),
            None => world.clock.advance(100_000),
        }
    }
    panic!("no session");
}

pub fn send<P: PacketPort>(
    client: &mut Endpoint<P>,
    session: SessionId,
    request_type: RequestType,
    data: &[u8],
    options: impl Into<CallOptions>,
) -> CallId {
    let mut request = client.alloc(data.len()).unwrap();
    request.fill(data).unwrap();
    let response = client.alloc(64).unwrap();
    client.enqueue_request(session, request_type, request, response, options).unwrap()
}

/// Turns both endpoints, and workers, until `count` calls are over.
pub fn run<P: PacketPort, Q: PacketPort>(
    world: &World,
    client: &mut Endpoint<P>,
    server: &mut Endpoint<Q>,
    count: usize,
) -> Vec<Completion> {
    let mut over = Vec::new();
    for _ in 0..200_000 {
        client.turn();
        server.turn();
        world.pool.run_all();
        while let Some(completion) = client.poll_completion() {
            over.push(completion);
        }
        if over.len() >= count {
            return over;
        }
        world.clock.advance(20_000);
    }
    panic!("{} of {count} calls completed", over.len());
}

/// Asserts that an endpoint has no session and reserves room for none.
pub fn assert_nothing_is_left<P: PacketPort>(endpoint: &Endpoint<P>) {
    assert_eq!((endpoint.sessions(), endpoint.committed_packets()), (0, 0));
}

/// Takes the one event that is there.
pub fn event(endpoint: &mut Endpoint) -> SessionEvent {
    let mut events = events(endpoint);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// Takes the event of the one session that was lost, and returns its cause.
pub fn lost(endpoint: &mut Endpoint, session: SessionId) -> Cause {
    match event(endpoint) {
        SessionEvent::Lost { session: id, cause, .. } if id == session => cause,
        other => panic!("{other:?}"),
    }
}

/// Kinds of the tapped packets, in order. (A repeated connect is also sent in the previous version of the protocol;
/// that packet is left out.)
pub fn kinds(network: &Network) -> Vec<Kind> {
    let tapped = network.take_tapped();
    let ours = tapped.iter().filter(|sent| sinew_wire::Header::read_other_version(&sent.bytes).is_none());
    ours.map(|sent| handmade::parse(&sent.bytes).0.kind).collect()
}
