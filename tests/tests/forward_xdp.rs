//! A router over AF_XDP, between network stacks of the kernel: as a library, and as `sinew forward run`.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE, Process, run, sinew, text};
use rustix::process::Signal;
use serde_json::Value;
use sinew::fabric::Clock;
use sinew::fabric::frames::FramePort;
use sinew::forward::interface::{Interface, Network};
use sinew::forward::router::{Router, RouterConfig};
use sinew::forward::{Application, Counters, Fib, Forwarder};
use sinew::host::HostClock;
use sinew::xdp::testbed::{self, Pair, PairOptions, Path, PathNode, Side};
use sinew::xdp::{FrameOptions, InterfaceOptions, Memory, XdpFrames};
use sinew_conformance::skipped;

/// Makes two pairs whose ends `A` are hosts; each host reaches the other's network through the end `B` of its own pair.
fn pairs() -> Option<[Pair; 2]> {
    let mut pairs = Vec::new();
    for network in 0..2 {
        match Pair::new(PairOptions { network, ..PairOptions::default() }) {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                skipped(format_args!("no virtual pair can be made: {error}"));
                return None;
            }
        }
    }
    for (pair, other) in [(&pairs[0], &pairs[1]), (&pairs[1], &pairs[0])] {
        let (gateway, to) = (pair.options().v4(Side::B), other.options().v4(Side::A));
        let mut route = Command::new("ip");
        route.args(["route", "add", &to.to_string(), "via", &gateway.to_string()]);
        let added = pair.at(Side::A).within(|| run(&mut route)).unwrap();
        assert!(added.status.success(), "{}", text(&added.stderr));
    }
    pairs.try_into().ok()
}

/// Routes between both pairs until `over`, and returns the counters.
fn route(pairs: &[Pair; 2], over: &AtomicBool) -> Counters {
    let needed = |pair: &Pair| {
        let interface = (Side::B.interface(), InterfaceOptions::default());
        pair.at(Side::B).within(|| XdpFrames::memory_for([interface])).unwrap().unwrap().chunks()
    };
    let memory = Memory::new(pairs.iter().map(needed).sum(), 2_048).unwrap();
    let (mut ports, mut interfaces) = (Vec::new(), Vec::new());
    for pair in pairs {
        let open = || XdpFrames::open(Side::B.interface(), &memory, &FrameOptions::default());
        let port = pair.at(Side::B).within(open).unwrap().unwrap();
        let options = pair.options();
        let networks = vec![Network::parse(&format!("{}/24", options.v4(Side::B))).unwrap()];
        interfaces.push(Interface { name: format!("net{}", options.network), mac: port.mac(), mtu: 1_500, networks });
        ports.push(port);
    }
    let fib = Fib::new(&interfaces, &[]).unwrap();
    let router = Router::new(interfaces, fib, RouterConfig::default()).unwrap();
    let mut forwarder = Forwarder::new(ports, router).unwrap();
    let clock = HostClock::new();
    while !over.load(Ordering::Relaxed) {
        if forwarder.turn(clock.now_ns()) == 0 {
            thread::yield_now();
        }
    }
    forwarder.application().counters().clone()
}

#[test]
fn tcp_and_udp_of_the_kernel_pass_through_a_router() {
    let Some(pairs) = pairs() else { return };
    let over = AtomicBool::new(false);
    let [near, far] = [0, 1].map(|at: usize| IpAddr::from(pairs[at].options().v4(Side::A)));
    let counters = thread::scope(|scope| {
        let router = scope.spawn(|| route(&pairs, &over));
        // This runs on a thread of its own, so that the router ends even if it panics.
        let sent = scope.spawn(|| {
            let [host, other] = [pairs[0].at(Side::A), pairs[1].at(Side::A)];
            let listener = other.within(|| TcpListener::bind((far, 0))).unwrap().unwrap();
            let to = listener.local_addr().unwrap();
            let mut client = host.within(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap().unwrap();
            let (mut server, from) = listener.accept().unwrap();
            assert_eq!(from.ip(), near);
            let bytes: Vec<u8> = (0..4u32 << 20).map(|at| ((at * 31) >> 5) as u8).collect();
            thread::scope(|scope| {
                scope.spawn(|| client.write_all(&bytes).unwrap());
                server.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut got = vec![0; bytes.len()];
                server.read_exact(&mut got).unwrap();
                assert!(got == bytes);
            });
            let [client, server] =
                [(host, near), (other, far)].map(|(at, ip)| at.within(|| UdpSocket::bind((ip, 0))).unwrap().unwrap());
            client.send_to(b"hello", server.local_addr().unwrap()).unwrap();
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = [0; 16];
            let (len, from) = server.recv_from(&mut got).unwrap();
            assert_eq!((&got[..len], from), (&b"hello"[..], client.local_addr().unwrap()));
        });
        let sent = sent.join();
        over.store(true, Ordering::Relaxed);
        let counters = router.join().unwrap();
        sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        counters
    });
    // Four megabytes take about 2,800 packets of 1,500 bytes.
    assert!(counters.forwarded > 2_800, "{counters:?}");
}

/// Lines of a process's output, as they come.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| send.send(line)).ok();
    });
    receive
}

/// `sinew forward run` between two hosts that have the kernel's network stack.
struct Between {
    path: Path,
    process: Process,
    stdout_lines: Receiver<String>,
    complained: Receiver<String>,
}

impl Between {
    fn start(args: &[&str]) -> Option<Self> {
        let path = match Path::new(PairOptions { addresses: false, ..PairOptions::default() }) {
            Ok(path) => path,
            Err(error) => {
                skipped(format_args!("no virtual pair can be made: {error}"));
                return None;
            }
        };
        for (at, side) in Side::ALL.into_iter().enumerate() {
            let (own, gateway) = (format!("10.83.{at}.1/24"), format!("10.83.{at}.2"));
            for args in [["address", "add", &own, "dev", Path::HOST], ["route", "add", "default", "via", &gateway]] {
                let done = path.at(PathNode::Host(side)).within(|| run(Command::new("ip").args(args))).unwrap();
                assert!(done.status.success(), "{}", text(&done.stderr));
            }
        }
        let [lan, wan] = Path::MIDDLE;
        let interfaces = [format!("lan=xdp://{lan},ip=10.83.0.2/24"), format!("wan=xdp://{wan},ip=10.83.1.2/24")];
        let mut command = sinew(&["forward", "run", "--json"]);
        command.args(interfaces.iter().flat_map(|interface| ["--interface", interface])).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = path.at(PathNode::Middle).within(|| command.spawn()).unwrap().unwrap();
        let (stdout_lines, complained) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        let process = Process(child);
        if stdout_lines.recv_timeout(PATIENCE).is_err() {
            panic!("{:?}", complained.iter().collect::<Vec<_>>());
        }
        Some(Self { path, process, stdout_lines, complained })
    }

    fn socket(&self, side: Side) -> UdpSocket {
        let bind = || UdpSocket::bind((self.path.host_v4(side), 0));
        let socket = self.path.at(PathNode::Host(side)).within(bind).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket
    }

    /// Stops it, and returns its counters.
    fn end(mut self) -> Value {
        self.process.signal(Signal::INT);
        assert!(self.process.wait().success());
        let last = self.stdout_lines.iter().last().unwrap();
        serde_json::from_str::<Value>(&last).unwrap()["forwarder"].clone()
    }
}

#[test]
fn routes_are_read_again_between_interfaces_without_a_lost_packet() {
    const PACKETS: u32 = 4000;
    const WINDOW: u32 = 32;
    let folder = Folder::new();
    let routes = folder.0.join("routes");
    let write = |text: &str| {
        let new = folder.0.join("routes.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &routes).unwrap();
    };
    write("10.83.1.1/32 via 10.83.1.1 dev wan\n");
    let Some(between) = Between::start(&["--table", routes.to_str().unwrap()]) else { return };
    let [from, to] = Side::ALL.map(|side| between.socket(side));
    from.connect(to.local_addr().unwrap()).unwrap();
    let began = Instant::now();
    // Until the router knows the host, it keeps only a few packets for it.
    from.send(b"first").unwrap();
    while to.recv(&mut [0; 8]).is_err() {
        assert!(began.elapsed() < PATIENCE, "nothing came");
    }
    let (mut sent, mut came, mut reloads) = (0, 0, 0);
    while came < PACKETS {
        while sent < PACKETS && sent - came < WINDOW {
            from.send(&sent.to_be_bytes()).unwrap();
            sent += 1;
        }
        let mut got = [0; 8];
        match to.recv(&mut got) {
            Ok(len) => {
                assert_eq!(got[..len], came.to_be_bytes(), "the next packet");
                came += 1;
            }
            Err(_) => assert!(began.elapsed() < PATIENCE, "{came} of {sent} came"),
        }
        if came / 250 > reloads {
            reloads = came / 250;
            write(match reloads % 3 {
                0 => "10.83.1.1/32 via 10.83.1.1 dev wan\n10.9.0.0/16 discard\n",
                1 => "10.83.1.0/28 dev wan\n",
                _ => "10.0.0.0/33 via 10.83.1.1\n",
            });
            between.process.signal(Signal::HUP);
        }
    }
    let counted = between.end();
    assert!(counted["reloads"].as_u64() > Some(0) && counted["reloads_refused"].as_u64() > Some(0), "{counted}");
    assert!(counted["forwarded"].as_u64() >= Some(u64::from(PACKETS)), "{counted}");
    for interface in counted["interfaces"].as_array().unwrap() {
        assert_eq!(interface["dropped"], serde_json::json!({}), "{counted}");
    }
}

#[test]
fn tcp_whose_kernel_leaves_the_cutting_to_hardware_is_counted_until_it_does_that_itself() {
    let Some(between) = Between::start(&[]) else { return };
    let [host, other] = Side::ALL.map(|side| between.path.at(PathNode::Host(side)));
    let far = between.path.host_v4(Side::B);
    let listener = other.within(|| TcpListener::bind((far, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = host.within(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    host.within(|| testbed::finish(Path::HOST, false)).unwrap().unwrap();
    let bytes: Vec<u8> = (0..1u32 << 20).map(|at| ((at * 31) >> 5) as u8).collect();
    let sending = thread::spawn({
        let bytes = bytes.clone();
        move || client.write_all(&bytes)
    });
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut got = vec![0; bytes.len()];
    assert!(server.read(&mut got[..1]).is_err(), "what is unfinished does not arrive");
    // The forwarder complains only after enough packets to rule out chance.
    let [from, to] = Side::ALL.map(|side| between.socket(side));
    let began = Instant::now();
    let command = "ethtool -K PEER tx off gso off tso off, where PEER is the interface at the other end of ";
    loop {
        from.send_to(b"unfinished", to.local_addr().unwrap()).unwrap();
        match between.complained.recv_timeout(Duration::from_millis(2)) {
            Ok(line) if line.contains("interface lan: ") && line.contains(command) => break,
            _ => assert!(began.elapsed() < PATIENCE, "nobody complained"),
        }
    }
    // Does what the complaint advises.
    host.within(|| testbed::finish(Path::HOST, true)).unwrap().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut got).unwrap();
    assert!(got == bytes);
    sending.join().unwrap().unwrap();
    let counted = between.end();
    assert!(counted["interfaces"][0]["dropped"]["unfinished"].as_u64() > Some(0), "{counted}");
}
