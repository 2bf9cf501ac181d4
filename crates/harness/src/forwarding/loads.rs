//! Tables and frames, made by fixed rules. The tables are those of [`crate::lookups`], with four ports behind them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use sinew::fabric::frames::MacAddress;
use sinew::forward::echo::Echo;
use sinew::forward::headers::{self, ether_type, ipv4, ipv6, ndn, protocol};
use sinew::forward::interface::{Interface, Network, is_host_v4};
use sinew::forward::named::NameForwarder;
use sinew::forward::router::{Router, RouterConfig};
use sinew::forward::routes::{Route, Target};
use sinew::forward::switch::Switch;
use sinew::forward::{Fib, Form, Outbox};
use sinew::store::lookup::names::{Name, NameTable};

use super::Pipeline;
use crate::lookups::{NAME_LEN, ipv4_prefix, ipv6_prefix, mixed, name_text, station};

/// Ports of each application.
pub(super) const PORTS: u16 = 4;
/// Routers behind each port.
const GATEWAYS: u64 = 16;
const HOST: MacAddress = MacAddress([2, 0xFF, 0, 0, 0, 1]);

/// Frames that name each of four ports equally often.
///
/// # Errors
///
/// None; the signature is that of the others.
pub fn echo(frames: usize) -> anyhow::Result<Pipeline<Echo>> {
    let numbers = (0..frames as u64).map(|at| (mixed(at + 1) as u32).to_be_bytes().to_vec()).collect();
    let template = headers::ethernet(own(0), HOST, 0x88B5).to_vec();
    Pipeline::new(Echo::new(PORTS), 0, [template, vec![0; 4]].concat(), 14, numbers)
}

fn own(port: u16) -> MacAddress {
    MacAddress([2, 0xFE, 0, 0, 0, port as u8])
}

fn interfaces() -> anyhow::Result<Vec<Interface>> {
    let one = |port: u16| {
        let networks = [format!("192.168.{port}.1/24"), format!("fd00:{port}::1/64")];
        let networks = networks.iter().map(|text| Network::parse(text)).collect::<Result<_, _>>()?;
        Ok(Interface { name: port.to_string(), mac: own(port), mtu: 1500, networks })
    };
    (0..PORTS).map(one).collect()
}

/// Target of a route: a router behind a port.
fn via(at: u64, is_v4: bool) -> Target {
    let (port, gateway) = (at % u64::from(PORTS), at / u64::from(PORTS) % GATEWAYS);
    let address: IpAddr = if is_v4 {
        Ipv4Addr::new(192, 168, port as u8, 2 + gateway as u8).into()
    } else {
        Ipv6Addr::new(0xFD00, port as u16, 0, 0, 0, 0, 0, 2 + gateway as u16).into()
    };
    Target::Via(port as u16, address)
}

/// A router with these prefixes and a default route, which knows all its neighbours. Returns the size of its table in
/// bytes, too.
fn router(prefixes: impl Iterator<Item = (IpAddr, u8)>, is_v4: bool) -> anyhow::Result<(Router, usize)> {
    let of = |(at, (address, len)): (u64, (IpAddr, u8))| {
        let prefix = Network { address, len };
        let prefix = Network { address: prefix.prefix(), len };
        Route { prefix, target: via(mixed(at + 1), is_v4), line: at as usize }
    };
    let all = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv6Addr::UNSPECIFIED) };
    let routes: Vec<Route> = (0..).zip(prefixes.chain([(all, 0)])).map(of).collect();
    let interfaces = interfaces()?;
    let fib = Fib::new(&interfaces, &routes).context("filling the tables")?;
    let bytes = fib.bytes();
    let mut router = Router::new(interfaces, fib, RouterConfig::default())?;
    let mut outbox = Outbox::new();
    for at in 0..u64::from(PORTS) * GATEWAYS {
        if let Target::Via(port, address) = via(at, is_v4) {
            router.learn(port, address, MacAddress([2, 0xFD, 0, 0, 0, at as u8]), 0, &mut outbox);
        }
    }
    Ok((router, bytes))
}

/// Packets to random addresses, at a router with `routes` routes of IPv4, whose lengths are distributed about as in
/// BGP.
///
/// # Errors
///
/// There is no room for the routes.
pub fn ipv4(routes: usize, frames: usize) -> anyhow::Result<Pipeline<Router>> {
    let prefixes = (1..=routes as u64).map(ipv4_prefix).map(|(prefix, len)| (prefix.into(), len));
    let (router, bytes) = router(prefixes, true)?;
    let addresses = (1..).map(|at| Ipv4Addr::from_bits(mixed(at) as u32));
    let goes_on = |address: &Ipv4Addr| is_host_v4(*address) && address.octets()[..2] != [192, 168];
    let source = Ipv4Addr::new(192, 168, 0, 200);
    let packet = |address: Ipv4Addr| ipv4::header(source, address, protocol::UDP, 64, 26);
    let template = [&headers::ethernet(own(0), HOST, ether_type::IPV4)[..], &packet(source), &[0; 26]].concat();
    // From the checksum on.
    let differences = addresses.filter(goes_on).take(frames).map(|address| packet(address)[10..].to_vec()).collect();
    Pipeline::new(router, bytes, template, 14 + 10, differences)
}

/// Packets to addresses of random prefixes of 48 to 64 bits, at a router with `routes` such routes of IPv6.
///
/// # Errors
///
/// There is no room for the routes.
pub fn ipv6(routes: usize, frames: usize) -> anyhow::Result<Pipeline<Router>> {
    // Moves a prefix into the global unicast addresses, 2000::/3.
    let global = |(prefix, len): (Ipv6Addr, u8)| (Ipv6Addr::from_bits(prefix.to_bits() >> 3 | 1 << 125), len);
    let prefixes = (1..=routes as u64).map(move |at| global(ipv6_prefix(at)));
    let (router, bytes) = router(prefixes.map(|(prefix, len)| (prefix.into(), len)), false)?;
    let address = |at: u64| {
        let (prefix, _) = global(ipv6_prefix(1 + mixed(at) % routes.max(1) as u64));
        Ipv6Addr::from_bits(prefix.to_bits() | u128::from(mixed(!at)) >> 4)
    };
    let source = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 200);
    let packet = ipv6::header(source, source, protocol::UDP, 64, 8);
    let template = [&headers::ethernet(own(0), HOST, ether_type::IPV6)[..], &packet, &[0; 8]].concat();
    let differences = (1..=frames as u64).map(|at| address(at).octets().to_vec()).collect();
    Pipeline::new(router, bytes, template, 14 + 24, differences)
}

/// Frames to random ones of `stations` stations, at a switch that learns nothing: as in the paper, each frame takes one
/// lookup.
///
/// # Errors
///
/// There is no room for the stations.
pub fn switch(stations: usize, frames: usize) -> anyhow::Result<Pipeline<Switch>> {
    let known = (0..stations as u64)
        .map(|at| (MacAddress(station(at)), 1 + (mixed(at) % u64::from(PORTS - 1)) as u16))
        .collect();
    let switch = Switch::new(&known, stations, false, Form::Plain, 1)?;
    let template = headers::ethernet(HOST, HOST, 0x88B5).to_vec();
    let to = (1..=frames as u64).map(|at| station(mixed(at) % stations.max(1) as u64).to_vec()).collect();
    Pipeline::new(switch, stations * 64 / 7, template, 0, to)
}

/// Interests for names of four components of eight letters, at a forwarder with `prefixes` prefixes of two or three
/// components.
///
/// # Errors
///
/// There is no room for the prefixes.
pub fn names(prefixes: usize, frames: usize) -> anyhow::Result<Pipeline<NameForwarder>> {
    let mut table = NameTable::new(prefixes, prefixes.saturating_mul(40), 1)?;
    for at in 1..=prefixes as u64 {
        let text = name_text(at);
        let len = if at % 2 == 0 { NAME_LEN / 2 } else { NAME_LEN / 4 * 3 };
        table
            .insert(Name::new(&text[..len])?, 1 + (mixed(at) % u64::from(PORTS - 1)) as u16)
            .with_context(|| format!("prefix {at}"))?;
    }
    let packet = |at: u64| {
        let text = name_text(at);
        let components: Vec<&[u8]> = text.chunks_exact(9).map(|component| &component[1..]).collect();
        ndn::interest(&components, 64)
    };
    let template = [&headers::ethernet(own(0), HOST, ether_type::NDN)[..], &packet(1)].concat();
    let differences = (1..=frames as u64).map(|at| packet(1 + mixed(at) % prefixes.max(1) as u64)).collect();
    Pipeline::new(
        NameForwarder::with_table(table, Form::Plain),
        prefixes * (16 * 8 / 7 + 40),
        template,
        14,
        differences,
    )
}
