//! The load drivers that measure this machine, as actors of a simulated cluster.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sinew::kv::cache::{self, ClientConfig, Connecting};
use sinew::sequencer::{self, Epoch, Sequence};
use sinew::store::cache::CacheConfig;
use sinew_fabric::{Clock, SeededGenerator};
use sinew_harness::load::cache::{Cache, Fills};
use sinew_harness::load::{Load, Slice, State, echo, sequencer::Sequencer};
use sinew_harness::service;
use sinew_harness::workload::Mix;
use sinew_lab::programs::{Endpoint, Server};
use sinew_rpc::{BurstCalls, Call, Nexus, NexusBuilder, Rpc, SessionEvent, SessionId};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, SimClock, Topology};

const SLICE_NS: u64 = 2_000_000;
/// Time in ns after which an idle driver looks again.
const LOOK_NS: u64 = 500;
/// A packet's time between the hosts, there and back, and the most that the cores add.
const ROUND_TRIP_NS: std::ops::Range<u64> = 2_000..20_000;

/// Makes a driver, as soon as its endpoint is connected.
type Make = Box<dyn FnMut() -> Option<Box<dyn Load>>>;

/// A driver that a simulated core turns, for one slice.
struct Driven {
    make: Make,
    load: Option<Box<dyn Load>>,
    clock: SimClock,
    came: Rc<RefCell<Option<Slice>>>,
}

impl Actor for Driven {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        let later = ActorState::IdleUntil(now_ns + LOOK_NS);
        let Some(load) = &mut self.load else {
            self.load = (self.make)();
            if let Some(load) = &mut self.load {
                load.begin(now_ns, now_ns + SLICE_NS).unwrap();
            }
            return later;
        };
        match load.turn(now_ns).unwrap() {
            State::Busy => ActorState::Work,
            State::Idle => later,
            State::Over => {
                *self.came.borrow_mut() = Some(load.end());
                ActorState::Done
            }
        }
    }
}

fn open(network: &Network, nexus: &Nexus, host: usize, name: &str) -> Endpoint {
    let config = PortConfig { arena_bytes: 16 << 20, ..PortConfig::default() };
    let port = network.open(HostId(host), name, config).unwrap();
    Rpc::new(nexus, port, network.clock(), Box::new(SeededGenerator::new(network.random())))
}

/// Whether a session of this endpoint is open by now; turns it.
fn is_open(rpc: &mut Endpoint) -> bool {
    rpc.turn();
    rpc.poll_event().is_some_and(|event| matches!(event, SessionEvent::Connected(_)))
}

/// Drives a slice from one host against `server` at another. Returns the slice and the hash of the network's trace.
fn driven(seed: u64, server: NexusBuilder, driver: impl FnOnce(Endpoint, SessionId, SimClock) -> Make) -> (Slice, u64) {
    let network = Network::new(Topology::star(2, 25.0, 200, 1500), seed).unwrap();
    let mut cluster = Cluster::new(&network);
    let rpc = open(&network, &server.build().unwrap(), 0, "server");
    cluster.add("server", [rpc.port().place()], Box::new(Server(rpc)));
    let mut rpc = open(&network, &Nexus::client(), 1, "client");
    let place = rpc.port().place();
    let session = rpc.begin_connect(&"sim://server".parse().unwrap()).unwrap();
    let (clock, came) = (network.clock(), Rc::default());
    let make = driver(rpc, session, clock.clone());
    cluster.add("client", [place], Box::new(Driven { make, load: None, clock, came: Rc::clone(&came) }));
    assert_eq!(cluster.run_while(1_000_000_000, |_| came.borrow().is_some()), Ok(true));
    (came.take().unwrap(), network.trace_hash())
}

/// Checks that a driver keeps `window` requests in flight for the whole slice, and that two runs are the same. Returns
/// the first slice.
fn check(window: u64, run: impl Fn(u64) -> (Slice, u64)) -> Slice {
    let (slice, trace) = run(1);
    let (again, trace_again) = run(1);
    assert_eq!((slice.done, slice.elapsed_ns, trace), (again.done, again.elapsed_ns, trace_again));
    assert!((SLICE_NS..SLICE_NS + SLICE_NS / 50).contains(&slice.elapsed_ns), "{} ns", slice.elapsed_ns);
    let median_ns = slice.latency.value_at_quantile(0.5);
    assert!(ROUND_TRIP_NS.contains(&median_ns), "{median_ns}");
    // As many are done as a window of requests with this mean latency allows.
    let expected = (window * slice.elapsed_ns) as f64 / slice.latency.mean();
    assert!((slice.done as f64 / expected - 1.0).abs() < 0.25, "{} rather than {expected}", slice.done);
    slice
}

#[test]
fn echoes_are_driven_in_virtual_time() {
    let server = || {
        Nexus::builder().handle(service::ECHO, |call: Call| {
            let request = call.request();
            call.reply(request);
        })
    };
    let shape = echo::Shape { size: 32, answer: echo::Answer::Echo, window: 8, batch: 1 };
    check(8, |seed| {
        driven(seed, server(), |rpc, session, clock| {
            let mut rpc = Some(rpc);
            Box::new(move || {
                let rpc = rpc.take_if(is_open)?;
                Some(Box::new(echo::Echo::new(rpc, clock.clone(), vec![session], shape)))
            })
        })
    });
}

#[test]
fn a_cache_is_filled_and_asked_in_virtual_time() {
    let workload = Mix::YcsbB.workload(500, 64, 7);
    let slice = check(4, |seed| {
        let config = CacheConfig { memory_bytes: 4 << 20, items: 1000, ..CacheConfig::default() };
        let service = cache::Service::new(1, &config).unwrap();
        let server = Nexus::builder().handle_burst_with(cache::REQUESTS, move |endpoint| service.handler(endpoint));
        driven(seed, server, |rpc, _, clock| {
            let connecting = Connecting::begin(rpc, ["sim://server".to_owned()], ClientConfig::default()).unwrap();
            let mut connecting = Some(connecting);
            Box::new(move || {
                let is_open = |connecting: &mut Connecting<Endpoint>| {
                    connecting.rpc_mut().turn();
                    connecting.poll().unwrap()
                };
                let pipeline = connecting.take_if(is_open)?.finish().unwrap();
                let shape = sinew_harness::load::cache::Shape { window: 4, batch: 1, keys_per_get: 1, rate: None };
                let mut load = Cache::new(pipeline, clock.clone(), shape, &workload);
                load.fill(0..500);
                Some(Box::new(load))
            })
        })
    });
    // The rest are the keys that were stored first.
    let (asked, gets) = (slice.done - 500, slice.gets);
    assert!(gets > asked * 9 / 10 && gets < asked && slice.hits == gets, "{gets} of {asked}, {} hits", slice.hits);
}

#[test]
fn a_sequencer_is_driven_in_virtual_time() {
    check(8, |seed| {
        let sequence = Arc::new(Sequence::new(0, Epoch(1), sequencer::COUNT_MAX_DEFAULT));
        let answer = sequencer::rpc::handler(sequence);
        let server =
            Nexus::builder().handle_burst(sequencer::rpc::NEXT, move |calls: &mut BurstCalls<'_, '_>| answer(calls));
        driven(seed, server, |rpc, session, clock| {
            let mut rpc = Some(rpc);
            Box::new(move || {
                let client = sequencer::rpc::RpcClient::new(rpc.take_if(is_open)?, session, 8, None).unwrap();
                Some(Box::new(Sequencer::new(client, clock.clone(), 8, 1)))
            })
        })
    });
}
