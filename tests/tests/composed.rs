//! All interfaces at once. One program with one thread serves calls over two fabrics, with state of its own, and a
//! socket with mio. It calls another service through client libraries that share an endpoint, with deadlines, and
//! cancels one of their calls; that service calls it back over the same endpoint. It calls its own clients back, and
//! sleeps when there is nothing to do. Its service half is the same program as an actor in virtual time.

mod common;
mod composition;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::{PATIENCE, unique};
use composition::service::Done;
use composition::{Backend, Service, Visitor, config, number};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use sinew::fabric::{Address, Poller, Step, Waker};
use sinew::prelude::*;
use sinew::{Endpoint, Program};
use sinew_fabric::SeededGenerator;
use sinew_sim::{Actor, ActorState, Cluster, HostId, LinkFaults, Network, PortConfig, Topology};

fn open(address: &str) -> Rpc {
    Rpc::open_with(&Nexus::builder().config(config()).build().unwrap(), address).unwrap()
}

/// Observations of the thread.
#[derive(Default)]
struct Observed {
    sleeps: AtomicU64,
    slept_us: AtomicU64,
    done: Mutex<Done>,
}

/// The thread's program: the service, a socket that reports the number of values, and sleep on everything at once.
struct Thread {
    turns: u64,
    service: Service,
    poll: Poll,
    events: Events,
    poller: Poller,
    listener: TcpListener,
    streams: Vec<TcpStream>,
    seen: Arc<Observed>,
}

/// Turns after which a thread that does not sleep looks at its sockets, which takes a system call.
const TURNS_PER_CHECK: u64 = 64;

impl Thread {
    fn new(rpc: &Rpc, service: Service, seen: &Arc<Observed>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let thread = Self {
            turns: 0,
            service,
            poll: Poll::new()?,
            events: Events::with_capacity(8),
            poller: Poller::new(rpc.config().poller),
            listener,
            streams: Vec::new(),
            seen: Arc::clone(seen),
        };
        thread.watch(thread.listener.as_raw_fd())?;
        for descriptor in [rpc.descriptor(), thread.service.side.descriptor(), thread.service.out.descriptor()] {
            thread.watch(descriptor.unwrap().as_raw_fd())?;
        }
        Ok(thread)
    }

    fn watch(&self, fd: std::os::fd::RawFd) -> std::io::Result<()> {
        // All have the same token, since everything is looked at anyway.
        self.poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE)
    }

    fn serve_sockets(&mut self) -> std::io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            self.watch(stream.as_raw_fd())?;
            self.streams.push(stream);
        }
        let values = self.service.done().values;
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
        Ok(())
    }
}

impl Program for Thread {
    type Error = sinew::Error;

    fn turn(&mut self, rpc: &mut Rpc) -> sinew::Result<Flow> {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_PER_CHECK) || !self.events.is_empty() {
            self.serve_sockets()?;
        }
        self.events.clear();
        let flow = self.service.turn(rpc)?;
        *self.seen.done.lock().unwrap() = self.service.done();
        Ok(flow)
    }

    /// Arms everything once the thread's one poller says so, which is after a while without work.
    fn rest(&mut self, rpc: &mut Rpc, busy: bool, timeout_ns: Option<u64>) -> sinew::Result<()> {
        if self.poller.step(rpc.now_ns(), busy) == Step::Spin {
            return Ok(());
        }
        let Service { side, out, .. } = &mut self.service;
        let armed = [
            rpc.arm()?.timeout_ns(rpc.now_ns()),
            side.arm()?.timeout_ns(side.now_ns()),
            out.arm()?.timeout_ns(out.now_ns()),
        ];
        let timeout_ns = armed.into_iter().chain([timeout_ns]).flatten().min();
        let began = Instant::now();
        self.poll.poll(&mut self.events, timeout_ns.map(Duration::from_nanos))?;
        self.seen.slept_us.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.seen.sleeps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Starts the service at a name of shared memory, on a thread of its own; also returns its other address and its
/// socket's.
fn serve(backend: [Address; 2], seen: &Arc<Observed>) -> (ServerHandle, Address, SocketAddr) {
    let (sender, receiver) = mpsc::channel();
    let seen = Arc::clone(seen);
    let nexus = Nexus::builder().config(config()).build().unwrap();
    let server = nexus.server().at(format!("shm://{}", unique("composed"))).program(move |_endpoint, rpc| {
        let service = Service::new(rpc, open("udp://127.0.0.1:0"), open("udp://"), &backend)?;
        let thread = Thread::new(rpc, service, &seen)?;
        sender.send((thread.service.side.address(), thread.listener.local_addr()?)).unwrap();
        Ok(thread)
    });
    let server = server.start().unwrap();
    let (side, door) = receiver.recv_timeout(PATIENCE).unwrap();
    (server, side, door)
}

/// Ends a thread when dropped, also when the test fails.
struct Ends<'a>(&'a AtomicBool, Waker);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.wake();
    }
}

#[test]
fn one_thread_serves_calls_sockets_and_clients_of_its_own_and_sleeps_when_there_is_nothing_to_do() {
    let backend_is_over = AtomicBool::new(false);
    let seen = Arc::<Observed>::default();
    std::thread::scope(|threads| {
        let (sender, receiver) = mpsc::channel();
        let backend_is_over = &backend_is_over;
        let backend = threads.spawn(move || {
            let mut backend = Backend::new(open("udp://127.0.0.1:0"), open("udp://127.0.0.1:0"));
            sender.send((backend.addresses(), backend.rpc.waker())).unwrap();
            while !backend_is_over.load(Ordering::Acquire) {
                let busy = backend.turn();
                backend.rpc.rest_beside(busy, &mut [&mut backend.unanswering], None).unwrap();
            }
            backend.kept()
        });
        let (addresses, waker) = receiver.recv_timeout(PATIENCE).unwrap();
        let backend_ends = Ends(backend_is_over, waker);
        let (server, side, door) = serve(addresses, &seen);

        let began = Instant::now();
        let mut visitors: Vec<_> = [&server.addresses()[0], &side]
            .into_iter()
            .zip(1..)
            .map(|(address, name)| Visitor::new(open(&format!("{}://", address.scheme())), address, name))
            .collect();
        while !visitors.iter().all(Visitor::is_over) {
            visitors.iter_mut().for_each(|visitor| _ = visitor.turn());
            let steps = || visitors.iter().map(|visitor| visitor.step).collect::<Vec<_>>();
            assert!(began.elapsed() < PATIENCE, "the visitors are at {:?}", steps());
        }
        let mut socket = TcpStream::connect(door).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut values = [0; 8];
        socket.write_all(b"?").unwrap();
        socket.read_exact(&mut values).unwrap();
        assert_eq!(number(&values), 2);

        // Nothing happens, except that peers probe each other.
        std::thread::sleep(Duration::from_millis(100));
        let look = || [&seen.sleeps, &seen.slept_us].map(|count| count.load(Ordering::Relaxed));
        let before = look();
        std::thread::sleep(Duration::from_millis(500));
        socket.write_all(b"?").unwrap();
        socket.read_exact(&mut values).unwrap();
        let [sleeps, slept_us] = look();
        let [sleeps, slept_us] = [sleeps - before[0], slept_us - before[1]];
        println!("{sleeps} sleeps, of {slept_us} us together, in half a second of nothing");
        assert!(sleeps < 50 && slept_us > 300_000, "{sleeps} sleeps of {slept_us} us in half a second of nothing");

        drop(visitors);
        server.stop().unwrap();
        let done = *seen.done.lock().unwrap();
        assert!(done.values == 2 && done.given == 2 && (2..=4).contains(&done.news_delivered), "{done:?}");
        drop(backend_ends);
        // Some of the requests kept had expired, and the others were cancelled.
        assert_eq!(backend.join().unwrap(), (4, 4));
    });
}

/// A program and its endpoints, as an actor; `sleep` returns whether there is nothing to do.
struct InCluster<T> {
    program: T,
    turn: fn(&mut T) -> bool,
    sleep: fn(&mut T) -> sinew::Result<bool>,
    observe: Box<dyn FnMut(&T)>,
}

impl<T> Actor for InCluster<T> {
    fn turn(&mut self) -> ActorState {
        let busy = (self.turn)(&mut self.program);
        (self.observe)(&self.program);
        if !busy && (self.sleep)(&mut self.program).unwrap() { ActorState::Idle } else { ActorState::Work }
    }
}

/// Runs the service, its backend and two visitors in virtual time; returns what happened, and a hash of it.
fn simulate(seed: u64) -> (Done, (usize, usize), u64) {
    let network = Network::new(Topology::star(4, 25.0, 200, 1500), seed).unwrap();
    network.set_all_faults(LinkFaults::losing(0.01));
    let mut cluster = Cluster::new(&network);
    // As on a thread, except for the port, the clock and the random numbers.
    let open = |host: usize, name: &str| {
        let port = network.open(HostId(host), name, PortConfig::default()).unwrap();
        let place = port.place();
        let nexus = Nexus::builder().config(config()).build().unwrap();
        let generator = Box::new(SeededGenerator::new(seed ^ name.len() as u64 ^ (host as u64) << 8));
        let endpoint: Box<dyn Endpoint> = Box::new(sinew::rpc::Rpc::new(&nexus, port, network.clock(), generator));
        (Rpc::from(endpoint), place)
    };
    let kept = Rc::new(Cell::new((0, 0)));
    let ((rpc, place), (unanswering, deaf_place)) = (open(0, "backend"), open(0, "deaf"));
    let backend = Backend::new(rpc, unanswering);
    let addresses = backend.addresses();
    let sees = Rc::clone(&kept);
    let backend = InCluster {
        program: backend,
        turn: Backend::turn,
        sleep: |backend| Ok(backend.rpc.wait(None)? & backend.unanswering.wait(None)?),
        observe: Box::new(move |backend| sees.set(backend.kept())),
    };
    cluster.add("backend", [place, deaf_place], Box::new(backend));

    let [(mut rpc, place), (side, side_place), (out, out_place)] = ["front", "side", "out"].map(|name| open(1, name));
    let fronts = [rpc.address(), side.address()];
    let service = Service::new(&mut rpc, side, out, &addresses).unwrap();
    let done = Rc::<Cell<Done>>::default();
    let sees = Rc::clone(&done);
    let service = InCluster {
        program: (rpc, service),
        turn: |(rpc, service)| service.turn(rpc).unwrap() == Flow::Busy,
        sleep: |(rpc, service)| Ok(rpc.wait(None)? & service.side.wait(None)? & service.out.wait(None)?),
        observe: Box::new(move |(_, service)| sees.set(service.done())),
    };
    cluster.add("service", [place, side_place, out_place], Box::new(service));

    let finished = Rc::new(RefCell::new(BTreeSet::new()));
    for (host, address) in (2..).zip(&fronts) {
        let (rpc, place) = open(host, &format!("visitor{host}"));
        let sees = Rc::clone(&finished);
        let visitor = InCluster {
            program: Visitor::new(rpc, address, host as u64),
            turn: Visitor::turn,
            sleep: |visitor| visitor.rpc.wait(None),
            observe: Box::new(move |visitor| {
                if visitor.is_over() {
                    sees.borrow_mut().insert(visitor.name);
                }
            }),
        };
        cluster.add("visitor", [place], Box::new(visitor));
    }
    cluster.run_until(500_000_000);
    assert_eq!(finished.borrow().len(), 2, "at {} ns", network.now_ns());
    (done.get(), kept.get(), network.trace_hash())
}

#[test]
fn its_service_half_runs_in_virtual_time_the_same_each_time() {
    let first = simulate(1);
    let (done, (kept, abandoned), _) = first;
    // A request that is lost and then cancelled never arrives.
    assert!(done.values == 2 && done.given == 2 && (2..=4).contains(&done.news_delivered), "{first:?}");
    assert!((2..=4).contains(&kept) && abandoned == kept, "{first:?}");
    assert_eq!(first, simulate(1));
    assert_ne!(first.2, simulate(2).2);
}
