//! Hostile frames made of arbitrary bytes. Nothing panics, every frame sent is well-formed, and every frame has a fate.

use std::cell::Cell;

use super::common::*;
use sinew_fabric::frames::MacAddress;
use sinew_forward::headers::icmp;
use sinew_forward::headers::ipv4::{self, Ipv4};
use sinew_forward::headers::ipv6::{self, Ipv6};
use sinew_forward::headers::{self, ether_type, ndn};
use sinew_forward::named::{self, NameForwarder};
use sinew_forward::router::{Router, RouterConfig};
use sinew_forward::switch::Switch;
use sinew_forward::{Application, Fib, Form};

thread_local! {
    /// Tables take long to build, so they are passed on from one router to the next.
    static TABLES: Cell<Option<Fib>> = const { Cell::new(None) };
}

/// Nearly valid frames, as starting points.
fn templates() -> Vec<Vec<u8>> {
    let group = MacAddress([0x33, 0x33, 0xFF, 0, 0, 1]);
    let extended = |next: u8, extension: [u8; 8]| {
        let header = ipv6::header(v6("2001:db8:1::7"), v6("2001:db8:1::1"), next, 64, 24);
        [&headers::ethernet(LAN, HOST, ether_type::IPV6)[..], &header, &extension, &[128, 0, 0, 0], &[0; 12]].concat()
    };
    let mut with_options = udp4("10.1.0.7", "192.0.2.1", 64, 1400);
    with_options[14] = 0x48;
    with_options[20..22].fill(0);
    with_options[34..46].copy_from_slice(&[7, 7, 4, 0, 0, 0, 0, 0x82, 4, 0, 0, 1]);
    vec![
        udp4("10.1.0.7", "192.0.2.1", 64, 30),
        udp4("10.1.0.7", "10.2.0.77", 2, 30),
        udp4("10.1.0.7", "10.1.0.1", 64, 3),
        udp4("10.1.0.7", "10.9.0.1", 64, 600),
        with_options,
        udp6("2001:db8:1::7", "2001:db8:9::1", 64, 30),
        udp6("2001:db8:1::7", "2001:db8:2::77", 2, 30),
        udp6("2001:db8:1::7", "2001:db8:9::1", 64, 1400),
        icmp4("10.1.0.7", "10.1.0.1", vec![8, 0, 0, 0, 1, 2, 3, 4, 5]),
        icmp6("2001:db8:1::7", "2001:db8:1::1", 64, LAN, vec![128, 0, 0, 0, 1, 2, 3, 4, 5]),
        icmp6("2001:db8:1::7", "ff02::1:ff00:1", 255, group, neighbour(true, "2001:db8:1::1", Some(HOST))),
        icmp6("fe80::9", "fe80::ff:fe00:1", 255, LAN, neighbour(false, "fe80::9", Some(GATEWAY))),
        arp(true, ("10.1.0.7", HOST), "10.1.0.1", MacAddress::BROADCAST),
        arp(false, ("10.1.0.8", HOST), "10.1.0.1", LAN),
        extended(0, [58, 0, 1, 4, 0, 0, 0, 0]),
        extended(43, [58, 0, 4, 0, 0, 0, 0, 0]),
        extended(44, [58, 0, 0, 1, 0, 0, 0, 7]),
        [&headers::ethernet(LAN, HOST, ether_type::NDN)[..], &ndn::interest(&[b"org", b"a"], 9)].concat(),
    ]
}

/// Turns bytes into frames: each is a template with some bytes changed, cut or extended, and with its checksums
/// corrected or not.
fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let templates = templates();
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let [which, how, after @ ..] = rest {
        rest = after;
        let mut frame = templates[usize::from(*which) % templates.len()].clone();
        for _ in 0..how & 7 {
            let [high, at, value, after @ ..] = rest else { break };
            rest = after;
            let at = usize::from(u16::from_be_bytes([high & 7, *at])) % frame.len();
            frame[at] = *value;
        }
        if how & 8 != 0
            && let [len, after @ ..] = rest
        {
            rest = after;
            frame.resize(usize::from(*len) * 2, *len);
        }
        if how & 16 != 0 && frame.len() >= 34 && frame[12..14] == [8, 0] {
            let end = (14 + usize::from(frame[14] & 0xF).max(5) * 4).min(frame.len());
            ipv4::seal(&mut frame[14..end]);
        }
        if how & 32 != 0 && frame.len() > 62 && frame[12..14] == [0x86, 0xDD] {
            let (from, to) = (headers_v6(&frame, 22), headers_v6(&frame, 38));
            let end = frame.len().min(54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))).max(58);
            icmp::seal_v6(&mut frame[54..end], from, to);
        }
        frames.push(frame);
    }
    frames
}

fn headers_v6(frame: &[u8], at: usize) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap())
}

/// Checks that a frame leaving a router comes from its interface, holds a readable packet and fits the link.
fn check(to: u16, frame: &[u8]) {
    let interface = &interfaces()[usize::from(to)];
    assert!(frame.len() <= interface.frame_len_max(), "{} bytes", frame.len());
    assert_eq!(headers::source(frame), interface.mac);
    let packet = &frame[14..];
    match headers::type_of(frame) {
        ether_type::IPV4 => {
            let read = Ipv4::read(packet).unwrap();
            assert!(read.ttl > 0);
        }
        ether_type::IPV6 => {
            let read = Ipv6::read(packet).unwrap();
            assert!(read.hop_limit > 0);
        }
        other => assert_eq!(other, ether_type::ARP),
    }
}

/// Sends bursts of such frames to a router, a switch and a named-data forwarder. The first byte sets the burst size and
/// the pace of time.
pub fn forwarders(bytes: &[u8]) {
    let [pace, bytes @ ..] = bytes else { return };
    let fib = TABLES.take().unwrap_or_else(|| fib(ROUTES));
    let mut router = Router::new(interfaces(), fib, RouterConfig::default()).unwrap();
    let mut switch = Switch::new(&vec![(HOST, 0)], 8, true, Form::default(), 1).unwrap();
    let prefixes = named::parse("/org dev b", ["a", "b"].into_iter()).unwrap();
    let mut named = NameForwarder::new(&prefixes, Form::default(), 1).unwrap();
    let frames = frames(bytes);
    let mut received = 0;
    for (turn, burst) in (0u64..).zip(frames.chunks(1 + usize::from(pace & 31))) {
        let now_ns = turn * (u64::from(pace >> 5) << 28);
        let from = (turn % 2) as u16;
        received += burst.len() as u64;
        for (to, frame) in process(&mut router, from, now_ns, burst.to_vec()) {
            check(to, &frame);
        }
        process(&mut switch, from, now_ns, burst.to_vec());
        process(&mut named, from, now_ns, burst.to_vec());
        tick(&mut router, now_ns).iter().for_each(|(to, frame)| check(*to, frame));
    }
    let counters = router.counters();
    assert_eq!(counters.received, received);
    let waiting = router.neighbours().1 as u64;
    assert!(
        counters.forwarded + counters.handled_locally + counters.dropped_total() + waiting <= received + counters.made
    );
    for counters in [switch.counters(), named.counters()] {
        assert_eq!(counters.forwarded + counters.dropped_total(), received);
    }
    TABLES.set(Some(router.install(Fib::new(&[], &[]).unwrap())));
}
