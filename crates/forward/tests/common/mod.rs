//! A router between two links, and frames made by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sinew_fabric::frames::{LentFrame, MacAddress};
use sinew_forward::headers::arp::Arp;
use sinew_forward::headers::discovery::Discovery;
use sinew_forward::headers::icmp;
use sinew_forward::headers::{self, ether_type, ipv4, ipv6, protocol};
use sinew_forward::interface::{Interface, Network};
use sinew_forward::router::{Router, RouterConfig};
use sinew_forward::{Application, Fate, Fates, Fib, Outbox, routes};

/// The router's Ethernet address on each link.
pub const LAN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
pub const WAN: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// A host on the first link, and the next router on the second.
pub const HOST: MacAddress = MacAddress([2, 0, 0, 0, 1, 1]);
pub const GATEWAY: MacAddress = MacAddress([2, 0, 0, 0, 2, 1]);

pub const ROUTES: &str = "\
default via 10.2.0.9 dev wan
10.9.0.0/16 discard
2001:db8:9::/48 via fe80::9 dev wan
2001:db8:8::/48 discard";

pub fn interfaces() -> Vec<Interface> {
    let one = |name: &str, mac, mtu, networks: &[&str]| Interface {
        name: name.to_owned(),
        mac,
        mtu,
        networks: networks.iter().map(|text| Network::parse(text).unwrap()).collect(),
    };
    vec![
        one("lan", LAN, 1500, &["10.1.0.1/24", "2001:db8:1::1/64"]),
        one("wan", WAN, 1280, &["10.2.0.1/24", "2001:db8:2::1/64"]),
    ]
}

pub fn fib(text: &str) -> Fib {
    let interfaces = interfaces();
    Fib::new(&interfaces, &routes::parse(text, &interfaces).unwrap()).unwrap()
}

pub fn router(config: RouterConfig) -> Router {
    Router::new(interfaces(), fib(ROUTES), config).unwrap()
}

/// A router that knows the host and the gateways.
pub fn router_with_neighbours(config: RouterConfig) -> Router {
    let mut router = router(config);
    let mut outbox = Outbox::new();
    let host = [v4("10.1.0.7").into(), v6("2001:db8:1::7").into()];
    let gateways: [IpAddr; 2] = [v4("10.2.0.9").into(), v6("fe80::9").into()];
    host.into_iter().for_each(|address| router.learn(0, address, HOST, 0, &mut outbox));
    gateways.into_iter().for_each(|address| router.learn(1, address, GATEWAY, 0, &mut outbox));
    assert!(outbox.is_empty());
    router
}

pub fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

pub fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// A frame that lies in a vector.
pub struct OwnedFrame(pub Vec<u8>);

impl LentFrame for OwnedFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// A UDP datagram with `len` bytes of payload, from the host.
pub fn udp4(from: &str, to: &str, ttl: u8, len: usize) -> Vec<u8> {
    let header = ipv4::header(v4(from), v4(to), protocol::UDP, ttl, 8 + len);
    let udp = [[0, 9, 0, 9], [0, 8, 0, 0]].concat();
    [&headers::ethernet(LAN, HOST, ether_type::IPV4)[..], &header, &udp, &vec![7; len]].concat()
}

pub fn udp6(from: &str, to: &str, hop_limit: u8, len: usize) -> Vec<u8> {
    let header = ipv6::header(v6(from), v6(to), protocol::UDP, hop_limit, 8 + len);
    let udp = [[0, 9, 0, 9], [0, 8, 0, 0]].concat();
    [&headers::ethernet(LAN, HOST, ether_type::IPV6)[..], &header, &udp, &vec![7; len]].concat()
}

pub fn icmp4(from: &str, to: &str, mut message: Vec<u8>) -> Vec<u8> {
    icmp::seal_v4(&mut message);
    let header = ipv4::header(v4(from), v4(to), protocol::ICMP, 64, message.len());
    [&headers::ethernet(LAN, HOST, ether_type::IPV4)[..], &header, &message].concat()
}

pub fn icmp6(from: &str, to: &str, hop_limit: u8, mac: MacAddress, mut message: Vec<u8>) -> Vec<u8> {
    icmp::seal_v6(&mut message, v6(from), v6(to));
    let header = ipv6::header(v6(from), v6(to), protocol::ICMPV6, hop_limit, message.len());
    [&headers::ethernet(mac, HOST, ether_type::IPV6)[..], &header, &message].concat()
}

pub fn arp(is_request: bool, from: (&str, MacAddress), target: &str, to: MacAddress) -> Vec<u8> {
    let message = Arp { is_request, sender_mac: from.1.0, sender: v4(from.0), target_mac: [0; 6], target: v4(target) };
    [&headers::ethernet(to, from.1, ether_type::ARP)[..], &message.to_bytes()].concat()
}

pub fn neighbour(is_solicitation: bool, target: &str, mac: Option<MacAddress>) -> Vec<u8> {
    let [is_router, is_solicited] = [!is_solicitation; 2];
    let (target, mac) = (v6(target), mac.map(|mac| mac.0));
    let discovery = Discovery { is_solicitation, is_router, is_solicited, overrides: true, target, mac };
    let (message, len) = discovery.to_bytes();
    message[..len].to_vec()
}

/// Outcome of a burst: frames that were made or released, then those that were sent on, each with its port.
pub fn process<A: Application>(router: &mut A, from: u16, now_ns: u64, frames: Vec<Vec<u8>>) -> Vec<(u16, Vec<u8>)> {
    let mut frames: Vec<OwnedFrame> = frames.into_iter().map(OwnedFrame).collect();
    let (mut fates, mut outbox) = (Fates::new(), Outbox::new());
    router.process(from, now_ns, &mut frames, &mut fates, &mut outbox);
    assert_eq!(fates.len(), frames.len());
    let made: Vec<_> = outbox.frames().map(|(to, frame)| (to, frame.to_vec())).collect();
    let sent = frames.into_iter().zip(fates).filter_map(|(frame, fate)| match fate {
        Fate::Drop => None,
        Fate::Forward(to) => Some((to, frame.0)),
        Fate::Shorten(to, len) => Some((to, frame.0[..len.into()].to_vec())),
        Fate::Flood => Some((u16::MAX, frame.0)),
    });
    made.into_iter().chain(sent).collect()
}

pub fn tick<A: Application>(router: &mut A, now_ns: u64) -> Vec<(u16, Vec<u8>)> {
    let mut outbox = Outbox::new();
    router.tick(now_ns, &mut outbox);
    outbox.frames().map(|(to, frame)| (to, frame.to_vec())).collect()
}
