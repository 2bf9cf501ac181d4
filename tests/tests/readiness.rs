//! Threads that sleep on endpoints and on other things at once, on real fabrics.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{ECHO, PATIENCE, config, echo, unique};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use sinew::fabric::readiness::{ForeignFd, wait_on};
use sinew::fabric::{Armed, Descriptor, PollPolicy, Poller, Readiness, Step, Waker};
use sinew::prelude::*;

fn server(address: &str) -> Rpc {
    Rpc::open_with(&echo(config()), address).unwrap()
}

/// Addresses of a server on each fabric.
fn addresses(test: &str) -> [String; 2] {
    [format!("shm://{}", unique(test)), "udp://127.0.0.1:0".to_owned()]
}

/// Echoes what a peer wrote to a socket; false when the peer is gone.
fn echo_socket(socket: &mut UnixStream) -> bool {
    let mut bytes = [0; 64];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return false,
            Ok(len) => socket.write_all(&bytes[..len]).unwrap(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes calls and writes to a socket in turn, sometimes after everybody has fallen asleep.
fn ask_all(addresses: &[String], mut socket: UnixStream) {
    let mut clients: Vec<_> = addresses
        .iter()
        .map(|address| {
            let mut rpc = Rpc::open(if address.starts_with("shm") { "shm://" } else { "udp://" }).unwrap();
            let session = rpc.connect(address).unwrap();
            (rpc, session)
        })
        .collect();
    for round in 0..60u64 {
        if round % 5 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let bytes = round.to_le_bytes();
        for (rpc, session) in &mut clients {
            assert_eq!(rpc.call(*session, ECHO, bytes).unwrap()[..], bytes, "round {round}");
        }
        socket.write_all(&bytes).unwrap();
        let mut answer = [0; 8];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, bytes);
    }
}

#[test]
fn one_thread_serves_endpoints_of_two_fabrics_and_a_socket_and_sleeps_on_all() {
    let (mut near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_nonblocking(true).unwrap();
    let mut servers = addresses("all").map(|address| server(&address));
    let addresses = servers.each_ref().map(|server| server.address().to_string());
    let asking = std::thread::spawn(move || ask_all(&addresses, far));
    let mut socket = ForeignFd(near.try_clone().unwrap().as_fd().try_clone_to_owned().unwrap().into());
    while echo_socket(&mut near) {
        let busy = servers.iter_mut().fold(false, |busy, server| server.turn() | busy);
        // The poller of one endpoint decides for all.
        let [a, b] = &mut servers;
        a.rest_beside(busy, &mut [b, &mut socket], None).unwrap();
    }
    asking.join().unwrap();
}

#[test]
fn the_poller_of_the_endpoint_that_rests_decides_when_all_are_armed() {
    /// Counts how often it was armed.
    struct Counted(u32);
    impl Readiness for Counted {
        fn descriptor(&self) -> Option<Descriptor> {
            None
        }

        fn arm(&mut self, _: u64) -> std::io::Result<Armed> {
            self.0 += 1;
            Ok(Armed::Ready)
        }
    }
    for (poller, armed) in [(PollPolicy::SPIN, 0), (PollPolicy::SLEEP, 1)] {
        let mut rpc = Rpc::open_with(&echo(Config { poller, ..config() }), "shm://").unwrap();
        let mut beside = [Counted(0), Counted(0)];
        for busy in [true, false] {
            let [a, b] = &mut beside;
            rpc.turn();
            rpc.rest_beside(busy, &mut [a, b], Some(0)).unwrap();
        }
        // The first is ready, so the second is not asked.
        assert_eq!(beside.map(|beside| beside.0), [armed, 0], "{poller:?}");
    }
}

/// mio reports changes only, which asks more of an endpoint than reporting its state.
#[test]
fn a_foreign_event_loop_drives_endpoints_beside_its_own_sockets() {
    let (mut near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    near.set_nonblocking(true).unwrap();
    let mut servers = addresses("foreign").map(|address| server(&address));
    let addresses = servers.each_ref().map(|server| server.address().to_string());
    let asking = std::thread::spawn(move || ask_all(&addresses, far));
    let mut poll = Poll::new().unwrap();
    let watch = |fd, token| poll.registry().register(&mut SourceFd(&fd), Token(token), Interest::READABLE).unwrap();
    for (token, server) in servers.iter().enumerate() {
        watch(server.descriptor().unwrap().as_raw_fd(), token);
    }
    watch(near.as_raw_fd(), 2);
    let mut events = Events::with_capacity(8);
    let mut poller = Poller::new(config().poller);
    while echo_socket(&mut near) {
        let busy = servers.iter_mut().fold(false, |busy, server| server.turn() | busy);
        if poller.step(servers[0].now_ns(), busy) == Step::Spin {
            continue;
        }
        let mut timeout_ns: Option<u64> = None;
        for server in &mut servers {
            let armed = server.arm().unwrap();
            timeout_ns = armed.timeout_ns(server.now_ns()).into_iter().chain(timeout_ns).min();
        }
        poll.poll(&mut events, timeout_ns.map(Duration::from_nanos)).unwrap();
    }
    asking.join().unwrap();
}

#[test]
fn a_call_that_is_enqueued_while_its_thread_may_sleep_wakes_it() {
    for address in addresses("enqueued") {
        let running = echo(config()).server().at(&address).start().unwrap();
        let to = running.addresses()[0].to_string();
        let mut rpc = Rpc::open(&format!("{}://", running.addresses()[0].scheme())).unwrap();
        let session = rpc.connect(&to).unwrap();
        let descriptor = rpc.descriptor().unwrap();
        for round in 0..10u64 {
            while rpc.arm().unwrap() == Armed::Ready {
                rpc.turn();
            }
            let (mut request, response) = (rpc.alloc(8).unwrap(), rpc.alloc(8).unwrap());
            request.fill(&round.to_le_bytes()).unwrap();
            rpc.enqueue_request(session, ECHO, request, response, round).unwrap();
            assert!(descriptor.wait(Some(0)).unwrap(), "{to}");
            let completion = loop {
                rpc.turn();
                if let Some(completion) = rpc.poll_completion() {
                    break completion;
                }
                let armed = rpc.arm().unwrap();
                descriptor.wait(armed.timeout_ns(rpc.now_ns())).unwrap();
            };
            assert_eq!((completion.result, completion.tag), (Ok(()), round));
        }
    }
}

/// Wake-ups of a server that sleeps on its descriptor.
#[derive(Default)]
struct Wakes {
    /// Wake-ups because something arrived.
    by_news: AtomicU64,
    /// Wake-ups because a time had come.
    by_time: AtomicU64,
    stopping: AtomicBool,
}

/// Serves until it is told to stop, and sleeps whenever there is nothing to do.
fn serve(mut server: Rpc, wakes: &Wakes) {
    let descriptor = server.descriptor().unwrap();
    let mut poller = Poller::new(PollPolicy::SLEEP);
    while !wakes.stopping.load(Ordering::Acquire) {
        let busy = server.turn();
        if poller.step(server.now_ns(), busy) == Step::Spin {
            continue;
        }
        let armed = server.arm().unwrap();
        if armed != Armed::Ready {
            let is_news = descriptor.wait(armed.timeout_ns(server.now_ns())).unwrap();
            let count = if is_news { &wakes.by_news } else { &wakes.by_time };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `test` with a client that has a session with a server at `address`, which sleeps on its descriptor.
fn sleeping_server(address: &str, test: impl FnOnce(&mut Rpc, SessionId, &Wakes)) {
    let wakes = Wakes::default();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let wakes = &wakes;
        scope.spawn(move || {
            let server = server(address);
            sender.send((server.address(), server.waker())).unwrap();
            serve(server, wakes);
        });
        let (to, waker) = receiver.recv().unwrap();
        let _stop = Stop(wakes, waker);
        let mut rpc = Rpc::open(&format!("{}://", to.scheme())).unwrap();
        let session = rpc.connect(&to.to_string()).unwrap();
        test(&mut rpc, session, wakes);
    });
}

/// Stops the server, however the test ends.
struct Stop<'a>(&'a Wakes, Waker);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stopping.store(true, Ordering::Release);
        self.1.wake();
    }
}

#[test]
fn a_server_that_nobody_calls_is_woken_by_its_timers_alone() {
    for address in addresses("idle") {
        sleeping_server(&address, |rpc, session, wakes| {
            rpc.call(session, ECHO, b"awake").unwrap();
            let counts = || (wakes.by_news.load(Ordering::Relaxed), wakes.by_time.load(Ordering::Relaxed));
            let (began, before) = (Instant::now(), counts());
            rpc.run_until(|_| began.elapsed() > Duration::from_secs(2)).unwrap();
            let (passed_ns, after) = (began.elapsed().as_nanos() as u64, counts());
            // The server probes sooner than the client does, since its peer time-out is short.
            let questions = passed_ns / config().probe_interval_ns;
            // There are two timers for each probe: its answer may come after the server has computed when half of the
            // peer time-out will have passed in silence.
            let timers = 2 * questions + 4;
            assert!(after.1 - before.1 <= timers, "{address}: {before:?} to {after:?}");
            // The client probes the server, and answers its probes.
            let signs = 2 * questions + 4;
            assert!(after.0 - before.0 <= signs, "{address}: {before:?} to {after:?}, {signs} signs of life");
        });
    }
}

#[test]
fn the_first_call_after_a_silence_wakes_a_server_once() {
    for address in addresses("first") {
        sleeping_server(&address, |rpc, session, wakes| {
            const ROUNDS: u64 = 20;
            let before = wakes.by_news.load(Ordering::Relaxed);
            for round in 0..ROUNDS {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(rpc.call(session, ECHO, round.to_le_bytes()).unwrap()[..], round.to_le_bytes());
            }
            // Now and then a probe wakes it as well.
            let woken = wakes.by_news.load(Ordering::Relaxed) - before;
            assert!(woken <= ROUNDS + ROUNDS / 2, "{address}: woken {woken} times for {ROUNDS} calls");
        });
    }
}

#[test]
fn descriptors_outlive_their_endpoints_harmlessly() {
    for address in addresses("gone") {
        let mut rpc = server(&address);
        let descriptor = rpc.descriptor().unwrap();
        let own = descriptor.as_fd().try_clone_to_owned().unwrap();
        let waker = rpc.waker();
        while rpc.arm().unwrap() == Armed::Ready {
            rpc.turn();
        }
        drop(rpc);
        waker.wake();
        let mut foreign = ForeignFd(own.into());
        for _ in 0..3 {
            descriptor.wait(Some(0)).unwrap();
            wait_on(&mut [&mut foreign], 0, Some(0)).unwrap();
        }
        assert!(!foreign.disarm());
        // The name is free again, although a descriptor is still held.
        server(&address);
    }
}

/// Has another thread hand closures and calls to a sleeping endpoint's thread, and wait for each. `sleep` turns the
/// endpoint and sleeps.
fn hand_over_to(address: &str, mut sleep: impl FnMut(&mut Rpc)) {
    let server = echo(config()).server().at(address).start().unwrap();
    let address = server.addresses()[0].to_string();
    let mut rpc = Rpc::open(&format!("{}://", server.addresses()[0].scheme())).unwrap();
    let handle = rpc.remote_handle();
    let asking = std::thread::spawn(move || {
        let opened = handle.run(move |endpoint| endpoint.begin_connect(&address.parse().unwrap()).unwrap());
        let session = opened.unwrap().wait().unwrap();
        for round in 0..100u64 {
            if round % 5 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut call = handle.call(session, ECHO, round.to_le_bytes(), 0).unwrap();
            let reply = call.wait_timeout(PATIENCE).expect("the endpoint was woken").unwrap();
            assert_eq!(&*reply, round.to_le_bytes());
        }
        handle.run(move |endpoint| endpoint.disconnect(session)).unwrap().wait().unwrap()
    });
    let began = Instant::now();
    while !asking.is_finished() {
        // When the other thread ends, it wakes nobody.
        sleep(&mut rpc);
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(asking.join().unwrap());
    server.stop().unwrap();
}

#[test]
fn what_another_thread_hands_over_wakes_an_endpoint_that_sleeps_in_its_loop_or_on_its_descriptor() {
    const NAP_NS: u64 = 20_000_000;
    for address in addresses("handed") {
        hand_over_to(&address, |rpc| {
            let busy = rpc.turn();
            rpc.rest(busy, Some(NAP_NS)).unwrap();
        });
        let mut poller = Poller::new(config().poller);
        hand_over_to(&address, |rpc| {
            let busy = rpc.turn();
            while rpc.poll_event().is_some() {}
            if poller.step(rpc.now_ns(), busy) == Step::Spin {
                return;
            }
            let armed = rpc.arm().unwrap();
            if armed != Armed::Ready {
                let timeout_ns = armed.timeout_ns(rpc.now_ns()).unwrap_or(NAP_NS).min(NAP_NS);
                rpc.descriptor().unwrap().wait(Some(timeout_ns)).unwrap();
            }
        });
    }
}
