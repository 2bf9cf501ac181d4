//! Endpoints of simulated hosts: calls that would block report an error, and no result is seen before it exists.
#![cfg(all(test, not(miri)))]

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use sinew_fabric::{Clock, SeededGenerator};
use sinew_rpc::{
    Call, ConnectError, DeferredCall, Error, HandleError, Nexus, Pending, Reply, RequestType, Rpc, RpcHandle, SessionId,
};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, SimClock, SimPort, Topology, WorkersConfig};

type Endpoint = Rpc<SimPort, SimClock>;

const ECHO: RequestType = RequestType::new(1);
const ASK: RequestType = RequestType::new(2);

/// An actor that turns an endpoint.
struct Turns(Endpoint);

impl Actor for Turns {
    fn turn(&mut self) -> ActorState {
        if self.0.turn() {
            return ActorState::Work;
        }
        match self.0.wait(None) {
            Ok(true) => ActorState::Idle,
            _ => ActorState::Work,
        }
    }
}

/// An actor that runs a closure every 10 us, until it returns true.
struct Polls<F>(F, SimClock);

impl<F: FnMut(u64) -> bool> Actor for Polls<F> {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.1.now_ns();
        if (self.0)(now_ns) { ActorState::Done } else { ActorState::IdleUntil(now_ns + 10_000) }
    }
}

struct World {
    network: Network,
    cluster: Cluster,
}

impl World {
    fn new() -> Self {
        let network = Network::new(Topology::star(4, 25.0, 200, 1500), 1).unwrap();
        Self { cluster: Cluster::new(&network), network }
    }

    fn open(&self, nexus: &Nexus, host: usize, name: &str) -> Endpoint {
        let config = PortConfig { arena_bytes: 1 << 20, ..PortConfig::default() };
        let port = self.network.open(HostId(host), name, config).unwrap();
        Rpc::new(nexus, port, self.network.clock(), Box::new(SeededGenerator::new(self.network.random())))
    }

    fn serve(&mut self, rpc: Endpoint) {
        let (name, place) = (rpc.address().to_string(), rpc.port().place());
        self.cluster.add(&name, [place], Box::new(Turns(rpc)));
    }

    fn poll(&mut self, check: impl FnMut(u64) -> bool + 'static) {
        let clock = self.network.clock();
        self.cluster.add("polls", [], Box::new(Polls(check, clock)));
    }
}

fn echo() -> Nexus {
    let echo = |call: Call| {
        let request = call.request();
        call.reply(request);
    };
    Nexus::builder().handle(ECHO, echo).build().unwrap()
}

fn is_unsupported(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Io(error) if error.kind() == ErrorKind::Unsupported)
}

#[test]
fn a_blocking_connect_beside_actors_ends_with_an_error_and_takes_nobodys_turn() {
    let mut world = World::new();
    let back = world.open(&echo(), 0, "back");
    world.serve(back);
    world.cluster.run_until(1_000);
    let mut client = world.open(&Nexus::client(), 1, "client");
    let error = client.connect("sim://back").unwrap_err();
    assert!(is_unsupported(&error) && error.to_string().contains("Cluster::run_until"), "{error}");
    // Everything is as before: the server serves, and the client can be an actor.
    let session = client.begin_connect(&"sim://back".parse().unwrap()).unwrap();
    let handle = client.remote_handle();
    world.serve(client);
    world.cluster.run_until(1_000_000);
    let mut pending = handle.call(session, ECHO, b"hello", 0).unwrap();
    world.cluster.run_until(2_000_000);
    assert_eq!(&*pending.try_take().unwrap().unwrap(), b"hello");
}

#[test]
fn a_blocking_connect_where_there_is_no_actor_lets_time_pass() {
    let world = World::new();
    let mut client = world.open(&Nexus::client(), 1, "client");
    let _nobody_turns_it = world.open(&echo(), 0, "back");
    let error = client.connect("sim://back").unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(world.network.now_ns() > 1_000_000);
}

#[test]
fn a_call_that_blocks_in_an_actors_turn_ends_with_an_error() {
    let mut world = World::new();
    let [back, client] = [(0, "back"), (1, "client")].map(|(host, name)| world.open(&echo(), host, name));
    let handle = client.remote_handle();
    world.serve(back);
    world.serve(client);
    let mut pending = handle.run(|rpc| rpc.connect("sim://back")).unwrap();
    world.cluster.run_until(1_000_000);
    let error = pending.try_take().unwrap().unwrap().unwrap_err();
    assert!(is_unsupported(&error), "{error}");
}

/// Returns when a result was made on one core, and when another core, which looks every 10 us, saw it.
fn made_and_seen(spends_ns: u64) -> (u64, u64) {
    let mut world = World::new();
    let (clock, a) = (world.network.clock(), world.open(&Nexus::client(), 0, "a"));
    let handle = a.remote_handle();
    world.serve(a);
    let seen = Rc::new(RefCell::new(None));
    let (saw, mut pending) = (Rc::clone(&seen), None::<Pending<u64>>);
    world.poll(move |now_ns| {
        if now_ns >= 100_000 {
            let clock = clock.clone();
            let make = move |_: &mut dyn sinew_rpc::Endpoint| {
                clock.spend_ns(spends_ns);
                clock.now_ns()
            };
            let made = pending.get_or_insert_with(|| handle.run(make).unwrap()).try_take();
            *saw.borrow_mut() = made.map(|made_ns| (made_ns.unwrap(), now_ns));
        }
        saw.borrow().is_some()
    });
    world.cluster.run_until(10_000_000);
    seen.take().expect("it came")
}

#[test]
fn what_a_closure_returns_is_there_when_its_core_has_come_so_far_and_not_before() {
    for spends_ns in [0, 9_000, 1_000_000] {
        let (made_ns, seen_ns) = made_and_seen(spends_ns);
        assert!(made_ns >= 100_000 + spends_ns, "{made_ns}");
        assert!((made_ns..made_ns + 10_010).contains(&seen_ns), "made at {made_ns}, seen at {seen_ns}");
    }
}

#[test]
fn an_answer_is_there_when_its_core_has_come_so_far_and_whoever_awaits_it_is_woken_then() {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};

    struct Notes(Mutex<Vec<u64>>, SimClock);
    impl Wake for Notes {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().push(self.1.now_ns());
        }
    }

    let mut world = World::new();
    let [back, a] = [(0, "back"), (1, "a")].map(|(host, name)| world.open(&echo(), host, name));
    let (handle, clock) = (a.remote_handle(), world.network.clock());
    world.serve(back);
    let mut a = Turns(a);
    let session = a.0.begin_connect(&"sim://back".parse().unwrap()).unwrap();
    let (place, late) = (a.0.port().place(), clock.clone());
    // An endpoint whose turns each begin by taking 3 us.
    struct Slow(Turns, SimClock);
    impl Actor for Slow {
        fn turn(&mut self) -> ActorState {
            self.1.spend_ns(3_000);
            self.0.turn()
        }
    }
    world.cluster.add("a", [place], Box::new(Slow(a, late)));
    world.cluster.run_until(1_000_000);
    let mut pending: Pending<Reply, Error> = handle.call(session, ECHO, b"hello", 0).unwrap();
    let notes = Arc::new(Notes(Mutex::default(), clock.clone()));
    let waker = Waker::from(Arc::clone(&notes));
    assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
    let mut turns_ns = 1_000_000;
    while notes.0.lock().unwrap().is_empty() {
        turns_ns += 1;
        assert!(turns_ns < 2_000_000, "no answer");
        assert!(pending.try_take().is_none());
        world.cluster.run_until(turns_ns);
    }
    assert_eq!(*notes.0.lock().unwrap(), [turns_ns]);
    let Poll::Ready(reply) = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) else { panic!("woken") };
    assert_eq!(&*reply.unwrap(), b"hello");
    // The turn that delivered it had begun 3 us before.
    assert!(turns_ns > 1_003_000);
}

#[test]
fn what_is_promised_by_an_endpoint_that_goes_ends_at_once() {
    let mut world = World::new();
    let a = world.open(&Nexus::client(), 0, "a");
    let (handle, place, clock) = (a.remote_handle(), a.port().place(), world.network.clock());
    let actor = world.cluster.add("a", [place], Box::new(Turns(a)));
    world.cluster.run_until(1_000);
    let mut made = handle.run(move |_| clock.spend_ns(1_000_000)).unwrap();
    world.cluster.run_until(2_000);
    let mut pending = handle.run(|_| ()).unwrap();
    drop(world.cluster.crash(actor));
    assert_eq!(pending.try_take(), Some(Err(HandleError::EndpointGone)));
    assert_eq!(made.try_take(), None, "it ran, which others see at its time");
    // A cluster that ends takes its pending effects with it.
    drop(world);
    assert_eq!(made.try_take(), Some(Err(HandleError::EndpointGone)));
    assert_eq!(handle.run(|_| ()).unwrap_err(), HandleError::EndpointGone);
}

#[test]
fn a_workers_job_in_virtual_time_cannot_wait_for_a_handle_and_is_told_why() {
    let mut world = World::new();
    let workers = world.cluster.workers("workers", WorkersConfig { workers: 1, capacity: 10, job_ns: 100 });
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let handler = move |endpoint: &sinew_rpc::EndpointInfo| {
        let (handle, hears): (RpcHandle, _) = (endpoint.remote_handle(), Arc::clone(&hears));
        move |call: DeferredCall| {
            hears.lock().unwrap().push(handle.run(|_| ()).unwrap().wait());
            call.reply(b"");
        }
    };
    let nexus = Nexus::builder().workers(Arc::new(workers)).handle_worker_with(ASK, handler).build().unwrap();
    let front = world.open(&nexus, 1, "front");
    world.serve(front);
    let mut client = world.open(&Nexus::client(), 2, "client");
    let session: SessionId = client.begin_connect(&"sim://front".parse().unwrap()).unwrap();
    let (request, response) = (client.alloc(1).unwrap(), client.alloc(8).unwrap());
    client.enqueue_request(session, ASK, request, response, 0).ok().unwrap();
    world.serve(client);
    world.cluster.run_until(10_000_000);
    let heard = heard.lock().unwrap();
    assert_eq!(heard.as_slice(), [Err(HandleError::VirtualTime)]);
    assert!(heard[0].as_ref().unwrap_err().to_string().contains("virtual time"));
}
