//! One program on threads and in virtual time: it serves at two ports, with state, workers, and calls that it answers
//! later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sinew_fabric::{Address, Clock, PacketPort, SeededGenerator, WakeTarget, Waker, WorkerPool};
use sinew_mem::MessageBuffer;
use sinew_rpc::{Call, Config, DeferredCall, Nexus, RequestType, Rpc, SessionEvent, SessionId};
use sinew_sim::{
    Actor, ActorId, ActorState, Cluster, CoreTime, HostId, LinkFaults, Network, PortConfig, SimClock, SimPort,
    SimWorkers, Topology, WorkersConfig,
};

/// Request type: add a number, and answer with the sum of all.
const ADD: RequestType = RequestType::new(1);
/// Request type: a worker answers with the request's bytes reversed.
const TURN_AROUND: RequestType = RequestType::new(2);
/// Request type: answer once the disk, which is another thread, has kept the request.
const KEEP: RequestType = RequestType::new(3);
/// Request type: have the service's other port add.
const ADD_THERE: RequestType = RequestType::new(4);
const KINDS: [RequestType; 4] = [ADD, TURN_AROUND, KEEP, ADD_THERE];

/// Time in ns that a worker takes for a request, and that the disk takes.
const WORKER_NS: u64 = 20_000;
const DISK_NS: u64 = 50_000;

/// Keeps a simulated core busy for some ns, which the work by itself would not.
type Spend = Arc<dyn Fn(u64) + Send + Sync>;

/// State that the parts of the service share.
struct Shared {
    sum: Mutex<u64>,
    to_keep: Mutex<Vec<DeferredCall>>,
    to_ask: Mutex<Vec<DeferredCall>>,
    disk: Waker,
    kept: Mutex<u64>,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn nexus(shared: &Arc<Shared>, workers: Arc<dyn WorkerPool>, spend: Spend) -> Nexus {
    let [adds, keeps, asks] = [(); 3].map(|()| Arc::clone(shared));
    Nexus::builder()
        .config(Config::default())
        .workers(workers)
        .handle(ADD, move |call: Call| {
            let mut sum = adds.sum.lock().unwrap();
            *sum += number(call.request());
            call.reply(&sum.to_le_bytes());
        })
        .handle_worker(TURN_AROUND, move |call| {
            let response: Vec<u8> = call.request().iter().rev().copied().collect();
            spend(WORKER_NS);
            call.reply(&response);
        })
        .handle(KEEP, move |call: Call| {
            keeps.to_keep.lock().unwrap().push(call.defer().unwrap());
            keeps.disk.wake();
        })
        .handle(ADD_THERE, move |call: Call| asks.to_ask.lock().unwrap().push(call.defer().unwrap()))
        .build()
        .unwrap()
}

/// Turns the disk, which keeps requests and answers them. Returns whether there were any.
fn turn_disk(shared: &Shared, spend: &Spend) -> bool {
    let calls = std::mem::take(&mut *shared.to_keep.lock().unwrap());
    let any = !calls.is_empty();
    for call in calls {
        spend(DISK_NS);
        *shared.kept.lock().unwrap() += number(call.request());
        call.reply_in_place();
    }
    any
}

/// The service's loop, at its two ports.
struct Service<P: PacketPort, C: Clock> {
    front: Rpc<P, C>,
    back: Rpc<P, C>,
    to_back: SessionId,
    asked: BTreeMap<u64, DeferredCall>,
    next: u64,
    shared: Arc<Shared>,
}

impl<P: PacketPort, C: Clock> Service<P, C> {
    fn new(mut front: Rpc<P, C>, back: Rpc<P, C>, shared: Arc<Shared>) -> Self {
        let to_back = front.begin_connect(&back.address()).unwrap();
        Self { front, back, to_back, asked: BTreeMap::new(), next: 0, shared }
    }

    fn turn(&mut self) -> bool {
        let busy = self.front.turn() | self.back.turn();
        while self.front.poll_event().is_some() {}
        for call in std::mem::take(&mut *self.shared.to_ask.lock().unwrap()) {
            let (mut request, response) = (self.front.alloc(8).unwrap(), self.front.alloc(8).unwrap());
            request.copy_from_slice(call.request());
            self.front.enqueue_request(self.to_back, ADD, request, response, self.next).ok().unwrap();
            self.asked.insert(self.next, call);
            self.next += 1;
        }
        while let Some(completion) = self.front.poll_completion() {
            completion.result.unwrap();
            self.asked.remove(&completion.tag).unwrap().reply(&completion.response);
        }
        busy
    }

    /// Whether there is nothing to do at either port before one of them is woken.
    fn is_idle(&mut self) -> bool {
        self.front.wait(None).unwrap() & self.back.wait(None).unwrap()
    }
}

impl Actor for Service<SimPort, SimClock> {
    fn turn(&mut self) -> ActorState {
        if !self.turn() && self.is_idle() { ActorState::Idle } else { ActorState::Work }
    }
}

/// Results of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClientResult {
    answered: u64,
    /// Greatest sum that it was told.
    sum: u64,
    latencies_ns: BTreeMap<u16, Vec<u64>>,
}

/// Makes calls of some kinds in turn, a few at a time.
struct Client<P: PacketPort, C: Clock> {
    rpc: Rpc<P, C>,
    clock: C,
    session: SessionId,
    is_open: bool,
    kinds: &'static [RequestType],
    calls: u64,
    begun_ns: Vec<u64>,
    idle: Vec<(MessageBuffer, MessageBuffer)>,
    result: Rc<RefCell<ClientResult>>,
}

impl<P: PacketPort, C: Clock> Client<P, C> {
    fn new(
        mut rpc: Rpc<P, C>,
        clock: C,
        server: &Address,
        kinds: &'static [RequestType],
        calls: u64,
        window: usize,
    ) -> Self {
        let session = rpc.begin_connect(server).unwrap();
        let idle = (0..window).map(|_| (rpc.alloc(8).unwrap(), rpc.alloc(8).unwrap())).collect();
        let (is_open, begun_ns, result) = (false, Vec::new(), Rc::default());
        Self { rpc, clock, session, is_open, kinds, calls, begun_ns, idle, result }
    }

    fn is_over(&self) -> bool {
        self.result.borrow().answered == self.calls
    }

    fn turn(&mut self) -> bool {
        while let Some(event) = self.rpc.poll_event() {
            assert!(matches!(event, SessionEvent::Connected(_)), "{event:?}");
            self.is_open = true;
        }
        while let Some(completion) = self.rpc.poll_completion() {
            completion.result.unwrap();
            let mut result = self.result.borrow_mut();
            let kind = self.kinds[completion.tag as usize % self.kinds.len()];
            let (asked, answer) = (number(&completion.request), number(&completion.response));
            match kind {
                TURN_AROUND => assert_eq!(answer, asked.swap_bytes()),
                KEEP => assert_eq!(answer, asked),
                _ => result.sum = result.sum.max(answer),
            }
            result.answered += 1;
            let latency_ns = self.clock.now_ns() - self.begun_ns[completion.tag as usize];
            result.latencies_ns.entry(kind.number()).or_default().push(latency_ns);
            self.idle.push((completion.request, completion.response));
        }
        while self.is_open && (self.begun_ns.len() as u64) < self.calls {
            let Some((mut request, response)) = self.idle.pop() else { break };
            let tag = self.begun_ns.len() as u64;
            let kind = self.kinds[tag as usize % self.kinds.len()];
            request.copy_from_slice(&(tag + 1).to_le_bytes());
            self.begun_ns.push(self.clock.now_ns());
            self.rpc.enqueue_request(self.session, kind, request, response, tag).ok().unwrap();
        }
        self.rpc.turn()
    }
}

impl Actor for Client<SimPort, SimClock> {
    fn turn(&mut self) -> ActorState {
        if !self.turn() && self.rpc.wait(None).unwrap() { ActorState::Idle } else { ActorState::Work }
    }
}

/// Returns the sum of the numbers added, and of the numbers kept, by `calls` calls of all kinds in turn.
fn totals(calls: u64) -> (u64, u64) {
    let of = |kinds: &[RequestType]| {
        (0..calls).filter(|tag| kinds.contains(&KINDS[*tag as usize % KINDS.len()])).map(|tag| tag + 1).sum()
    };
    (of(&[ADD, ADD_THERE]), of(&[KEEP]))
}

#[test]
fn the_program_serves_on_threads() {
    const CALLS: u64 = 400;
    struct Unpark(std::thread::Thread, AtomicBool);
    impl WakeTarget for Unpark {
        fn wake(&self) {
            self.1.store(true, Ordering::Release);
            self.0.unpark();
        }
    }
    fn endpoint(nexus: &Nexus) -> Rpc<sinew::udp::UdpPort, sinew::host::HostClock> {
        let port = sinew::udp::UdpPort::open(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
        Rpc::new(nexus, port, sinew::host::HostClock::new(), Box::new(sinew::host::SystemEntropy::new().unwrap()))
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let (address_sender, address) = std::sync::mpsc::channel();
    let over = Arc::clone(&is_over);
    // The disk's thread starts the service's, since the disk's is the one to be woken.
    let disk = std::thread::spawn(move || {
        let woken = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
        let shared = Arc::new(Shared {
            sum: Mutex::default(),
            to_keep: Mutex::default(),
            to_ask: Mutex::default(),
            disk: Waker::new(woken.clone()),
            kept: Mutex::default(),
        });
        let (served, ends, spend) = (Arc::clone(&shared), Arc::clone(&over), Arc::new(|_| ()) as Spend);
        let service = std::thread::spawn(move || {
            let pool = Arc::new(sinew::host::ThreadPool::new("worker", 2, 100).unwrap());
            let nexus = nexus(&served, pool, Arc::new(|_| ()));
            let mut service = Service::new(endpoint(&nexus), endpoint(&nexus), served);
            address_sender.send(service.front.address()).unwrap();
            while !ends.load(Ordering::Acquire) {
                if !service.turn() {
                    std::thread::yield_now();
                }
            }
            service.shared.disk.wake();
        });
        while !over.load(Ordering::Acquire) {
            if !woken.1.swap(false, Ordering::AcqRel) {
                std::thread::park();
            }
            turn_disk(&shared, &spend);
        }
        service.join().unwrap();
        let (sum, kept) = (*shared.sum.lock().unwrap(), *shared.kept.lock().unwrap());
        (sum, kept)
    });
    let clock = sinew::host::HostClock::new();
    let mut client = Client::new(endpoint(&Nexus::client()), clock, &address.recv().unwrap(), &KINDS, CALLS, 8);
    while !client.is_over() {
        if !client.turn() {
            std::thread::yield_now();
        }
    }
    is_over.store(true, Ordering::Release);
    assert_eq!(disk.join().unwrap(), totals(CALLS));
}

/// The service on a host of its own, its disk, and clients.
struct World {
    cluster: Cluster,
    shared: Arc<Shared>,
    server: ActorId,
    disk: ActorId,
    workers: SimWorkers,
    clients: Vec<Rc<RefCell<ClientResult>>>,
}

struct Disk {
    shared: Arc<Shared>,
    spend: Spend,
}

impl Actor for Disk {
    fn turn(&mut self) -> ActorState {
        // It sleeps until it is woken.
        if turn_disk(&self.shared, &self.spend) { ActorState::Work } else { ActorState::Idle }
    }
}

impl World {
    fn new(seed: u64, workers: usize) -> Self {
        let network = Network::new(Topology::star(4, 25.0, 200, 1500), seed).unwrap();
        let mut cluster = Cluster::new(&network);
        let (clock, source) = (cluster.clock(), network.wake_source());
        let spend: Spend = Arc::new(move |ns| clock.spend_ns(ns));
        let shared = Arc::new(Shared {
            sum: Mutex::default(),
            to_keep: Mutex::default(),
            to_ask: Mutex::default(),
            disk: source.waker(),
            kept: Mutex::default(),
        });
        let workers = cluster.workers("workers", WorkersConfig { workers, capacity: 100, job_ns: 500 });
        let nexus = nexus(&shared, Arc::new(workers.clone()), Arc::clone(&spend));
        let [front, back] = ["front", "back"].map(|name| open(&network, &nexus, 0, name));
        let places = [front.port().place(), back.port().place()];
        let service = Service::new(front, back, Arc::clone(&shared));
        let server = cluster.add("service", places, Box::new(service));
        let disk = cluster.add("disk", [], Box::new(Disk { shared: Arc::clone(&shared), spend }));
        cluster.listen(disk, &source);
        Self { cluster, shared, server, disk, workers, clients: Vec::new() }
    }

    fn client(&mut self, kinds: &'static [RequestType], calls: u64, window: usize) {
        let (host, network) = (1 + self.clients.len(), self.cluster.network());
        let rpc = open(network, &Nexus::client(), host, &format!("client{host}"));
        let place = rpc.port().place();
        let front: Address = "sim://front".parse().unwrap();
        let client = Client::new(rpc, network.clock(), &front, kinds, calls, window);
        self.clients.push(Rc::clone(&client.result));
        self.cluster.add("client", [place], Box::new(client));
    }

    /// Runs until this many calls are answered; returns each client's results.
    fn run(&mut self, calls: u64) -> Vec<ClientResult> {
        let clients = self.clients.clone();
        let over = |_: &Cluster| clients.iter().map(|found| found.borrow().answered).sum::<u64>() == calls;
        assert_eq!(self.cluster.run_while(1_000_000_000, over), Ok(true));
        clients.iter().map(|found| found.borrow().clone()).collect()
    }

    /// Returns the latencies of calls of one kind.
    fn latencies_of(&mut self, kind: RequestType, calls: u64) -> Vec<u64> {
        self.run(calls).iter().flat_map(|found| found.latencies_ns.get(&kind.number()).cloned()).flatten().collect()
    }
}

fn open(network: &Network, nexus: &Nexus, host: usize, name: &str) -> Rpc<SimPort, SimClock> {
    let config = PortConfig { arena_bytes: 16 << 20, ..PortConfig::default() };
    let port = network.open(HostId(host), name, config).unwrap();
    Rpc::new(nexus, port, network.clock(), Box::new(SeededGenerator::new(network.random())))
}

#[test]
fn the_program_serves_in_virtual_time_and_twice_in_the_same_way() {
    const CALLS: u64 = 400;
    let run = |seed| {
        let mut world = World::new(seed, 2);
        world.cluster.network().set_all_faults(LinkFaults::losing(0.002));
        (0..3).for_each(|_| world.client(&KINDS, CALLS, 8));
        let found = world.run(3 * CALLS);
        let (sum, kept) = totals(CALLS);
        assert_eq!((*world.shared.sum.lock().unwrap(), *world.shared.kept.lock().unwrap()), (3 * sum, 3 * kept));
        assert_eq!(found.iter().map(|found| found.sum).max(), Some(3 * sum));
        let cluster = &world.cluster;
        let cores = [world.server, world.disk].map(|actor| cluster.core_time(actor));
        let workers = world.workers.core_times();
        assert_eq!(cores[1].worked_ns, 3 * CALLS / 4 * DISK_NS);
        let of_jobs: u64 = workers.iter().map(|core| core.worked_ns).sum();
        assert_eq!(of_jobs, 3 * CALLS / 4 * (WORKER_NS + 500));
        let network = cluster.network();
        assert!(network.stats().lost > 0);
        (found, network.trace_hash(), network.stats(), network.now_ns(), cores, workers)
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.1, run(2).1);
}

/// Time in ns of a packet between two hosts, and the most that cores add.
const WAY_NS: u64 = 300 + 200 + 300 + 200 + 300;
const CORES_NS: u64 = 1_000;

#[test]
fn an_answer_of_a_worker_wakes_the_endpoint_that_sleeps() {
    let mut world = World::new(1, 1);
    world.client(&[TURN_AROUND], 50, 1);
    let latencies = world.latencies_of(TURN_AROUND, 50);
    let least_ns = 2 * WAY_NS + WORKER_NS + 500;
    assert!(latencies.iter().all(|ns| (least_ns..least_ns + CORES_NS).contains(ns)), "{latencies:?}");
}

#[test]
fn an_answer_given_in_another_actors_turn_wakes_the_endpoint_that_sleeps() {
    let mut world = World::new(1, 1);
    world.client(&[KEEP], 50, 1);
    let latencies = world.latencies_of(KEEP, 50);
    let least_ns = 2 * WAY_NS + DISK_NS;
    assert!(latencies.iter().all(|ns| (least_ns..least_ns + CORES_NS).contains(ns)), "{latencies:?}");
}

#[test]
fn answers_of_other_cores_arrive_no_earlier_where_the_endpoint_looks_all_the_time() {
    for (kind, takes_ns) in [(TURN_AROUND, WORKER_NS), (KEEP, DISK_NS)] {
        let mut world = World::new(1, 4);
        world.client(if kind == KEEP { &[KEEP] } else { &[TURN_AROUND] }, 50, 1);
        world.client(&[ADD], 10_000, 8);
        let latencies = world.latencies_of(kind, 10_050);
        assert!(latencies.iter().all(|ns| *ns >= 2 * WAY_NS + takes_ns), "{latencies:?}");
    }
}

#[test]
fn each_worker_has_one_call_at_a_time() {
    for workers in [1, 2, 4] {
        let mut world = World::new(1, workers);
        world.client(&[TURN_AROUND], 400, 8);
        world.run(400);
        let took_ns = world.cluster.network().now_ns() as f64;
        let least_ns = (400 / workers as u64 * (WORKER_NS + 500)) as f64;
        assert!((1.0..1.02).contains(&(took_ns / least_ns)), "{took_ns} with {workers} workers");
        let idle = |core: &CoreTime| core.polled_ns as f64 > 0.02 * took_ns;
        assert!(!world.workers.core_times().iter().any(idle), "{:?}", world.workers.core_times());
    }
}

#[test]
fn calls_that_no_worker_has_room_for_are_refused_busy() {
    let network = Network::new(Topology::star(2, 25.0, 200, 1500), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let workers = cluster.workers("workers", WorkersConfig { workers: 1, capacity: 2, job_ns: 1_000_000 });
    let nexus = Nexus::builder().workers(Arc::new(workers)).handle_worker(KEEP, |call| call.reply_in_place());
    let rpc = open(&network, &nexus.build().unwrap(), 0, "server");
    cluster.add("server", [rpc.port().place()], Box::new(sinew_lab::programs::Server(rpc)));
    let mut rpc = open(&network, &Nexus::client(), 1, "client");
    let session = rpc.begin_connect(&"sim://server".parse().unwrap()).unwrap();
    for tag in 0..8 {
        let (request, response) = (rpc.alloc(8).unwrap(), rpc.alloc(8).unwrap());
        rpc.enqueue_request(session, KEEP, request, response, tag).ok().unwrap();
    }
    struct Caller(Rpc<SimPort, SimClock>, Rc<RefCell<Vec<bool>>>);
    impl Actor for Caller {
        fn turn(&mut self) -> ActorState {
            while let Some(completion) = self.0.poll_completion() {
                let busy = |error: sinew_rpc::CallError| assert_eq!(error.cause, sinew_rpc::Cause::ServerBusy);
                self.1.borrow_mut().push(completion.result.map_err(busy).is_ok());
            }
            sinew_lab::programs::turn(&mut self.0)
        }
    }
    let answers = Rc::<RefCell<Vec<bool>>>::default();
    cluster.add("client", [rpc.port().place()], Box::new(Caller(rpc, Rc::clone(&answers))));
    let is_over = |_: &Cluster| answers.borrow().len() == 8;
    assert_eq!(cluster.run_while(100_000_000, is_over), Ok(true));
    assert_eq!(*answers.borrow(), [[false; 5].as_slice(), &[true; 3]].concat());
}
