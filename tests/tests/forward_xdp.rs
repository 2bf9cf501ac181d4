//! A router over AF_XDP, between network stacks of the kernel.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{PATIENCE, run, text};
use sinew::fabric::Clock;
use sinew::fabric::frames::FramePort;
use sinew::forward::interface::{Interface, Network};
use sinew::forward::router::{Router, RouterConfig};
use sinew::forward::{Application, Counters, Fib, Forwarder};
use sinew::host::HostClock;
use sinew::xdp::testbed::{Pair, PairOptions, Side};
use sinew::xdp::{FrameOptions, InterfaceOptions, Memory, XdpFrames};
use sinew_conformance::skipped;

/// Two pairs, whose ends `A` are hosts; each has the other's network behind the end `B` of its own.
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

/// Routes between both pairs until `over`, and returns what it counted.
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
        // Whatever fails here, the router ends.
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
    // Four megabytes in packets of 1,500 bytes.
    assert!(counters.forwarded > 2_800, "{counters:?}");
}
