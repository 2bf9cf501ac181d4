//! All doors at once: one program, with one thread, serves calls over two fabrics with state of its own, a socket with mio, calls another
//! service through two client libraries that share an endpoint, ends calls in time or by their names, calls its clients back, and
//! sleeps when there is nothing to do. Its service half is the same program as an actor in virtual time.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, unique};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use sinew::fabric::Address;
use sinew::kv::cache::protocol::{PutOptions, Response};
use sinew::kv::cache::{ClientConfig, Connecting, Pipeline, REQUESTS, Service as Cache};
use sinew::rpc::{
    BurstCalls, Call, CallId, CallOptions, Cause, ClientId, Config, ConnectOptions, DeferredCall, Endpoint,
    RequestType, SessionEvent, SessionId, SharedEndpoint,
};
use sinew::sequencer::rpc::{NEXT, RpcClient, handler};
use sinew::sequencer::{Client as _, Epoch, Sequence};
use sinew::store::cache::CacheConfig;
use sinew_fabric::SeededGenerator;
use sinew_sim::{Actor, Cluster, Doing, HostId, LinkFaults, Network, PortConfig, Topology};

/// Of the service: hears of values that others remember.
const SUBSCRIBE: RequestType = RequestType::new(20);
/// Puts a value into the cache, under the next number of the sequencer, which is the answer.
const REMEMBER: RequestType = RequestType::new(21);
/// Gets the value of a number.
const RECALL: RequestType = RequestType::new(22);
/// Asks for what never comes, for a while; answers with what became of it.
const WAIT_IN_VAIN: RequestType = RequestType::new(23);
/// Asks for what never comes, and cancels that.
const CHANGE_ONES_MIND: RequestType = RequestType::new(24);
/// Of the clients: a value was remembered.
const NEWS: RequestType = RequestType::new(25);
/// Of the backend: never answered.
const NEVER: RequestType = RequestType::new(26);

const WINDOW: usize = 8;
/// What calls in vain wait for.
const IN_VAIN_NS: u64 = 3_000_000;

fn config() -> Config {
    Config { message_len_max: 4 << 20, ..Config::default() }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// A cache, a sequencer, and calls that are kept for ever.
struct Backend<E: Endpoint> {
    rpc: E,
    kept: Rc<RefCell<Vec<DeferredCall>>>,
}

impl<E: Endpoint> Backend<E> {
    fn new(mut rpc: E) -> Self {
        let cache =
            Cache::new(1, &CacheConfig { items: 1024, memory_bytes: 4 << 20, ..CacheConfig::default() }).unwrap();
        let numbers = handler(Arc::new(Sequence::new(1, Epoch(1), 100)));
        let kept = Rc::<RefCell<Vec<DeferredCall>>>::default();
        let keeps = Rc::clone(&kept);
        let requests = cache.handler(rpc.info());
        rpc.handle_burst(REQUESTS, Box::new(requests)).unwrap();
        rpc.handle_burst(NEXT, Box::new(move |calls: &mut BurstCalls<'_, '_>| numbers(calls))).unwrap();
        rpc.handle(NEVER, Box::new(move |call: Call<'_>| keeps.borrow_mut().push(call.defer().unwrap()))).unwrap();
        Self { rpc, kept }
    }

    /// Calls that are kept, and how many of them nobody waits for.
    fn kept(&self) -> (usize, usize) {
        let kept = self.kept.borrow();
        (kept.len(), kept.iter().filter(|call| call.is_abandoned()).count())
    }
}

/// What the handlers leave for the service's loop.
#[derive(Default)]
struct Desk {
    subscribers: BTreeSet<(usize, ClientId)>,
    to_do: Vec<(usize, RequestType, DeferredCall)>,
}

/// What the service thinks of a call in vain.
enum Doubt {
    Waits,
    /// It leaves with the next turn, and is cancelled after that.
    Leaves(CallId),
    Cancels(CallId),
}

/// The service: its endpoints, its clients of the backend on one more endpoint, and its state.
struct Service<E: Endpoint> {
    fronts: Vec<E>,
    out: SharedEndpoint<E>,
    connecting: Option<Connecting<SharedEndpoint<E>>>,
    cache: Option<Pipeline<SharedEndpoint<E>>>,
    sequencer: RpcClient<SharedEndpoint<E>>,
    backend: SessionId,
    desk: Rc<RefCell<Desk>>,
    /// Calls that wait for the sequencer or the cache, and where they came from, by tag.
    asked: BTreeMap<u64, (usize, DeferredCall)>,
    numbered: BTreeMap<u64, u64>,
    in_vain: BTreeMap<u64, (usize, DeferredCall, Doubt)>,
    next_tag: u64,
    values: u64,
    news_heard: u64,
}

impl<E: Endpoint> Service<E> {
    fn new(mut fronts: Vec<E>, out: E, backend: &Address) -> Self {
        let desk = Rc::<RefCell<Desk>>::default();
        for (front, rpc) in fronts.iter_mut().enumerate() {
            let subscribes = Rc::clone(&desk);
            let subscribe = move |call: Call<'_>| {
                subscribes.borrow_mut().subscribers.insert((front, call.client()));
                call.reply(b"");
            };
            rpc.handle(SUBSCRIBE, Box::new(subscribe)).unwrap();
            for kind in [REMEMBER, RECALL, WAIT_IN_VAIN, CHANGE_ONES_MIND] {
                let keeps = Rc::clone(&desk);
                let keep = move |call: Call<'_>| keeps.borrow_mut().to_do.push((front, kind, call.defer().unwrap()));
                rpc.handle(kind, Box::new(keep)).unwrap();
            }
        }
        let mut out = SharedEndpoint::new(out);
        let session = out.begin_connect(backend).unwrap();
        let mut for_numbers = out.share();
        let numbers = for_numbers.begin_connect(backend).unwrap();
        let sequencer = RpcClient::new(for_numbers, numbers, WINDOW, None).unwrap();
        let config = ClientConfig { window: WINDOW, ..ClientConfig::default() };
        let connecting = Connecting::begin(out.share(), [backend.to_string()], config).unwrap();
        Self {
            fronts,
            out,
            connecting: Some(connecting),
            cache: None,
            sequencer,
            backend: session,
            desk,
            asked: BTreeMap::new(),
            numbered: BTreeMap::new(),
            in_vain: BTreeMap::new(),
            next_tag: 0,
            values: 0,
            news_heard: 0,
        }
    }

    /// Turns everything once, without waiting. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        let mut busy = self.out.turn();
        for front in &mut self.fronts {
            busy |= front.turn();
        }
        if let Some(mut connecting) = self.connecting.take() {
            match connecting.poll().unwrap() {
                true => self.cache = Some(connecting.finish().unwrap()),
                false => self.connecting = Some(connecting),
            }
        }
        while let Some(event) = self.out.poll_event() {
            assert!(matches!(event, SessionEvent::Connected(id) if id == self.backend), "{event:?}");
        }
        if self.cache.is_some() {
            busy |= self.begin_all();
        }
        busy |= self.hear_numbers() | self.hear_cache() | self.hear_out();
        for front in &mut self.fronts {
            // Clients that were told of news.
            while let Some(over) = front.poll_completion() {
                self.news_heard += u64::from(over.result.is_ok());
                busy = true;
            }
        }
        busy
    }

    fn begin_all(&mut self) -> bool {
        let to_do = std::mem::take(&mut self.desk.borrow_mut().to_do);
        let any = !to_do.is_empty();
        for (front, kind, call) in to_do {
            self.next_tag += 1;
            let tag = self.next_tag;
            match kind {
                REMEMBER => self.sequencer.request(tag, 1).unwrap(),
                RECALL => _ = self.cache.as_mut().unwrap().get(call.request(), tag).unwrap(),
                _ => {
                    self.ask_in_vain(front, kind == CHANGE_ONES_MIND, call, tag);
                    continue;
                }
            }
            self.asked.insert(tag, (front, call));
        }
        any
    }

    fn ask_in_vain(&mut self, front: usize, changes_mind: bool, call: DeferredCall, tag: u64) {
        let (request, response) = (self.out.alloc(0).unwrap(), self.out.alloc(8).unwrap());
        let options = CallOptions::tag(tag);
        let options = if changes_mind { options } else { options.timeout_ns(IN_VAIN_NS) };
        let name = self.out.enqueue_request(self.backend, NEVER, request, response, options).unwrap();
        let doubt = if changes_mind { Doubt::Leaves(name) } else { Doubt::Waits };
        self.in_vain.insert(tag, (front, call, doubt));
    }

    /// A number is the key of a value.
    fn hear_numbers(&mut self) -> bool {
        let mut any = false;
        while let Some(answer) = self.sequencer.answer() {
            any = true;
            let (_, call) = &self.asked[&answer.tag];
            let number = answer.result.unwrap().first;
            self.numbered.insert(answer.tag, number);
            let cache = self.cache.as_mut().unwrap();
            cache.put(&number.to_le_bytes(), call.request(), PutOptions::default(), answer.tag).unwrap();
        }
        any
    }

    fn hear_cache(&mut self) -> bool {
        let Some(mut cache) = self.cache.take() else { return false };
        let mut any = false;
        while let Some(answer) = cache.poll() {
            any = true;
            let (front, call) = self.asked.remove(&answer.tag).unwrap();
            match answer.response.unwrap() {
                Response::Value(value) => self.fronts[front].reply(call, value),
                Response::Stored { .. } => {
                    let number = self.numbered.remove(&answer.tag).unwrap();
                    self.values += 1;
                    self.tell(call.request());
                    self.fronts[front].reply(call, &number.to_le_bytes());
                }
                other => panic!("{other:?}"),
            }
        }
        self.cache = Some(cache);
        any
    }

    /// Calls back all who subscribed, and forgets those who went.
    fn tell(&mut self, value: &[u8]) {
        let fronts = &mut self.fronts;
        self.desk.borrow_mut().subscribers.retain(|&(front, client)| {
            let rpc = &mut fronts[front];
            let Ok(session) = rpc.session_to(client) else { return false };
            let (mut news, response) = (rpc.alloc(value.len()).unwrap(), rpc.alloc(8).unwrap());
            news.fill(value).unwrap();
            rpc.enqueue_request(session, NEWS, news, response, 0.into()).is_ok()
        });
    }

    /// What became of calls that are never answered.
    fn hear_out(&mut self) -> bool {
        let mut any = false;
        for (_, _, doubt) in self.in_vain.values_mut() {
            match *doubt {
                Doubt::Waits => continue,
                Doubt::Leaves(name) => *doubt = Doubt::Cancels(name),
                Doubt::Cancels(name) => {
                    assert!(self.out.cancel(name));
                    *doubt = Doubt::Waits;
                }
            }
            any = true;
        }
        while let Some(over) = self.out.poll_completion() {
            any = true;
            let (front, call, _) = self.in_vain.remove(&over.tag).unwrap();
            let cause = over.result.unwrap_err().cause;
            self.fronts[front].reply(call, format!("{cause:?}").as_bytes());
        }
        any
    }
}

/// A client of the service: asks one thing after another, and hears of news meanwhile.
struct Visitor<E: Endpoint> {
    rpc: E,
    session: SessionId,
    name: u64,
    step: usize,
    remembered: Option<u64>,
    news: Rc<RefCell<Vec<Vec<u8>>>>,
}

/// A visitor's questions, in order.
const STEPS: [RequestType; 5] = [SUBSCRIBE, REMEMBER, RECALL, WAIT_IN_VAIN, CHANGE_ONES_MIND];

impl<E: Endpoint> Visitor<E> {
    fn new(mut rpc: E, service: &Address, name: u64) -> Self {
        let news = Rc::<RefCell<Vec<Vec<u8>>>>::default();
        let hears = Rc::clone(&news);
        let hear = move |call: Call<'_>| {
            hears.borrow_mut().push(call.request().to_vec());
            call.reply(b"");
        };
        rpc.handle(NEWS, Box::new(hear)).unwrap();
        let session = rpc.begin_connect_with(service, ConnectOptions::new().call_back(4)).unwrap();
        Self { rpc, session, name, step: 0, remembered: None, news }
    }

    fn value(&self) -> Vec<u8> {
        // Of more than a packet.
        self.name.to_le_bytes().repeat(500)
    }

    fn is_over(&self) -> bool {
        self.step > STEPS.len() && self.news.borrow().contains(&self.value())
    }

    fn ask(&mut self) {
        let Some(kind) = STEPS.get(self.step) else {
            self.step += 1;
            return;
        };
        let data = match *kind {
            REMEMBER => self.value(),
            RECALL => self.remembered.unwrap().to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        let (mut request, response) = (self.rpc.alloc(data.len()).unwrap(), self.rpc.alloc(8).unwrap());
        request.fill(&data).unwrap();
        self.rpc.enqueue_request(self.session, *kind, request, response, (self.step as u64).into()).unwrap();
        self.step += 1;
    }

    fn turn(&mut self) -> bool {
        let mut busy = self.rpc.turn();
        while let Some(event) = self.rpc.poll_event() {
            assert!(matches!(event, SessionEvent::Connected(_)), "{event:?}");
            self.ask();
        }
        while let Some(over) = self.rpc.poll_completion() {
            busy = true;
            over.result.unwrap();
            match STEPS[over.tag as usize] {
                REMEMBER => self.remembered = Some(number(&over.response)),
                RECALL => assert!(*over.response == self.value()),
                WAIT_IN_VAIN => assert_eq!(*over.response, *format!("{:?}", Cause::DeadlinePassed).as_bytes()),
                CHANGE_ONES_MIND => assert_eq!(*over.response, *format!("{:?}", Cause::Cancelled).as_bytes()),
                _ => {}
            }
            self.ask();
        }
        busy
    }
}

/// The thread's other half: a socket that says how many values there are, and sleep on everything at once.
struct Thread {
    service: Service<sinew::Rpc>,
    poll: Poll,
    listener: TcpListener,
    streams: Vec<TcpStream>,
    turns: Arc<AtomicU64>,
}

impl Thread {
    fn new(service: Service<sinew::Rpc>, listener: TcpListener, turns: Arc<AtomicU64>) -> Self {
        listener.set_nonblocking(true).unwrap();
        let thread = Self { service, poll: Poll::new().unwrap(), listener, streams: Vec::new(), turns };
        thread.watch(thread.listener.as_raw_fd());
        thread.watch(thread.service.out.descriptor().unwrap().as_raw_fd());
        for front in &thread.service.fronts {
            thread.watch(front.descriptor().unwrap().as_raw_fd());
        }
        thread
    }

    fn watch(&self, fd: std::os::fd::RawFd) {
        // Nobody asks which it was: everything is looked at.
        self.poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE).unwrap();
    }

    fn serve_sockets(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            self.watch(stream.as_raw_fd());
            self.streams.push(stream);
        }
        let values = self.service.values;
        self.streams.retain_mut(|stream| {
            let mut question = [0; 1];
            loop {
                match stream.read(&mut question) {
                    Ok(0) => return false,
                    Ok(_) => stream.write_all(&values.to_le_bytes()).unwrap(),
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
        });
    }

    fn run(&mut self, is_over: &AtomicBool) {
        let mut events = Events::with_capacity(8);
        while !is_over.load(Ordering::Acquire) {
            self.turns.fetch_add(1, Ordering::Relaxed);
            self.serve_sockets();
            if !self.service.turn() {
                self.sleep(&mut events);
            }
        }
    }

    fn sleep(&mut self, events: &mut Events) {
        let Service { fronts, out, .. } = &mut self.service;
        let mut timeout_ns = out.arm().unwrap().timeout_ns(out.now_ns());
        for front in fronts {
            let armed = front.arm().unwrap().timeout_ns(front.now_ns());
            timeout_ns = timeout_ns.into_iter().chain(armed).min();
        }
        self.poll.poll(events, timeout_ns.map(Duration::from_nanos)).unwrap();
    }
}

#[test]
fn one_thread_serves_calls_sockets_and_clients_of_its_own_and_sleeps_when_there_is_nothing_to_do() {
    fn open(address: &str) -> sinew::Rpc {
        sinew::Rpc::open_with(&sinew::Nexus::builder().config(config()).build().unwrap(), address).unwrap()
    }
    // Of the backend, and of the service.
    let are_over = [AtomicBool::new(false), AtomicBool::new(false)];
    let turns = Arc::new(AtomicU64::new(0));
    std::thread::scope(|threads| {
        let [backend_is_over, service_is_over] = &are_over;
        /// Ends a thread when it is dropped, also by a test that fails.
        struct Ends<'a>(&'a AtomicBool, sinew::fabric::Waker);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
                self.1.wake();
            }
        }
        let (tell, told) = std::sync::mpsc::channel();
        let backend = threads.spawn(move || {
            let mut backend = Backend::new(open("udp://127.0.0.1:0"));
            tell.send((backend.rpc.address(), backend.rpc.waker())).unwrap();
            while !backend_is_over.load(Ordering::Acquire) {
                backend.rpc.turn_or_wait().unwrap();
            }
            backend.kept()
        });
        let (backend_address, waker) = told.recv_timeout(PATIENCE).unwrap();
        let backend_ends = Ends(backend_is_over, waker);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = listener.local_addr().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let counted = Arc::clone(&turns);
        let service = threads.spawn(move || {
            let fronts = [format!("shm://{}", unique("composed")), "udp://127.0.0.1:0".to_owned()];
            let fronts = fronts.iter().map(|address| open(address)).collect::<Vec<_>>();
            let addresses = fronts.iter().map(Endpoint::address).collect::<Vec<_>>();
            tell.send((addresses, fronts[0].waker())).unwrap();
            let service = Service::new(fronts, open("udp://"), &backend_address);
            let mut thread = Thread::new(service, listener, counted);
            thread.run(service_is_over);
            (thread.service.values, thread.service.news_heard)
        });
        let (addresses, waker) = told.recv_timeout(PATIENCE).unwrap();
        let service_ends = Ends(service_is_over, waker);

        let began = Instant::now();
        let mut visitors: Vec<_> = addresses
            .iter()
            .zip(1..)
            .map(|(address, name)| Visitor::new(open(&format!("{}://", address.scheme())), address, name))
            .collect();
        while !visitors.iter().all(Visitor::is_over) {
            visitors.iter_mut().for_each(|visitor| _ = visitor.turn());
            assert!(
                began.elapsed() < PATIENCE,
                "the visitors are at {:?}",
                visitors.iter().map(|v| v.step).collect::<Vec<_>>()
            );
        }
        let mut socket = TcpStream::connect(door).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut values = [0; 8];
        socket.write_all(b"?").unwrap();
        socket.read_exact(&mut values).unwrap();
        assert_eq!(number(&values), 2);

        // Nothing happens, but that peers look after each other.
        std::thread::sleep(Duration::from_millis(100));
        let before = turns.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(500));
        let idle_turns = turns.load(Ordering::Relaxed) - before;
        println!("{idle_turns} turns in half a second of nothing");
        assert!(idle_turns < 50, "{idle_turns} turns in half a second of nothing");
        socket.write_all(b"?").unwrap();
        socket.read_exact(&mut values).unwrap();

        drop(visitors);
        drop(service_ends);
        let (values, news_heard) = service.join().unwrap();
        assert!(values == 2 && (2..=4).contains(&news_heard), "{values} {news_heard}");
        drop(backend_ends);
        // Those that were given up, and those that were cancelled.
        assert_eq!(backend.join().unwrap(), (4, 4));
    });
}

struct InCluster<T> {
    program: T,
    turn: fn(&mut T) -> bool,
    sleep: fn(&mut T) -> bool,
    looks: Box<dyn FnMut(&T)>,
}

impl<T> Actor for InCluster<T> {
    fn turn(&mut self) -> Doing {
        let busy = (self.turn)(&mut self.program);
        (self.looks)(&self.program);
        if !busy && (self.sleep)(&mut self.program) { Doing::Idle } else { Doing::Work }
    }
}

type Simulated = sinew::rpc::Rpc<sinew_sim::SimPort, sinew_sim::SimClock>;

/// Runs the service, its backend and two visitors in virtual time; gives what happened.
fn simulate(seed: u64) -> (u64, u64, (usize, usize), u64) {
    let network = Network::new(Topology::star(4, 25.0, 200, 1500), seed).unwrap();
    network.set_all_faults(LinkFaults::losing(0.01));
    let mut cluster = Cluster::new(&network);
    let open = |host: usize, name: &str| {
        let port = network.open(HostId(host), name, PortConfig::default()).unwrap();
        let place = port.place();
        let nexus = sinew::rpc::Nexus::builder().config(config()).build().unwrap();
        let generator = Box::new(SeededGenerator::new(seed ^ name.len() as u64 ^ (host as u64) << 8));
        (Simulated::new(&nexus, port, network.clock(), generator), place)
    };
    let kept = Rc::new(RefCell::new((0, 0)));
    let (rpc, place) = open(0, "backend");
    let address = rpc.address();
    let sees = Rc::clone(&kept);
    let backend = InCluster {
        program: Backend::new(rpc),
        turn: |backend| backend.rpc.turn(),
        sleep: |backend| backend.rpc.wait(None).unwrap(),
        looks: Box::new(move |backend| *sees.borrow_mut() = backend.kept()),
    };
    cluster.add("backend", [place], Box::new(backend));

    let (fronts, mut places): (Vec<_>, Vec<_>) = [open(1, "front"), open(1, "side")].into_iter().unzip();
    let addresses = fronts.iter().map(Endpoint::address).collect::<Vec<_>>();
    let (out, place) = open(1, "out");
    places.push(place);
    let told = Rc::new(RefCell::new((0, 0)));
    let sees = Rc::clone(&told);
    let service = InCluster {
        program: Service::new(fronts, out, &address),
        turn: Service::turn,
        sleep: |service| {
            let fronts = service.fronts.iter_mut().all(|front| front.wait(None).unwrap());
            fronts & service.out.wait(None).unwrap()
        },
        looks: Box::new(move |service| *sees.borrow_mut() = (service.values, service.news_heard)),
    };
    cluster.add("service", places, Box::new(service));

    let over = Rc::new(RefCell::new(BTreeSet::new()));
    for (host, address) in (2..).zip(&addresses) {
        let (rpc, place) = open(host, &format!("visitor{host}"));
        let sees = Rc::clone(&over);
        let visitor = InCluster {
            program: Visitor::new(rpc, address, host as u64),
            turn: Visitor::turn,
            sleep: |visitor| visitor.rpc.wait(None).unwrap(),
            looks: Box::new(move |visitor| {
                if visitor.is_over() {
                    sees.borrow_mut().insert(visitor.name);
                }
            }),
        };
        cluster.add("visitor", [place], Box::new(visitor));
    }
    cluster.run_until(500_000_000);
    assert_eq!(over.borrow().len(), 2, "at {} ns", network.now_ns());
    let ((values, news_heard), kept) = (*told.borrow(), *kept.borrow());
    (values, news_heard, kept, network.trace_hash())
}

#[test]
fn its_service_half_runs_in_virtual_time_the_same_each_time() {
    let first = simulate(1);
    let (values, news_heard, (kept, abandoned), _) = first;
    // A request that is lost and then cancelled never comes.
    assert!(values == 2 && (2..=4).contains(&news_heard) && (2..=4).contains(&kept) && abandoned == kept, "{first:?}");
    assert_eq!(first, simulate(1));
    assert_ne!(first.3, simulate(2).3);
}
