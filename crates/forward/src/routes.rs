//! Reader for routes in text form, one per line.
//!
//! ```text
//! # comment
//! 10.0.0.0/8      via 10.1.0.2 dev lan
//! 2001:db8::/32   via fe80::1 dev wan
//! default         via 10.1.0.1
//! 192.0.2.0/24    dev lan
//! 198.51.100.0/24 discard
//! ```
//!
//! `dev` may be left out if the next hop is on the network of exactly one interface. `default` is the zero-length
//! prefix of the next hop's family.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::interface::{Interface, Network, is_host};

/// Target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// To a router on the link of an interface.
    Via(u16, IpAddr),
    /// To the destination itself, on the link of an interface.
    Link(u16),
    /// Nowhere.
    Discard,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations that the route is for.
    pub prefix: Network,
    /// Target of the packets.
    pub target: Target,
    /// Line that the route was read from, counted from 1.
    pub line: usize,
}

/// A line that cannot be read, or contradicts another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct LineError {
    /// Line number, counted from 1; 0 if no single line is at fault.
    pub line: usize,
    /// Description of the problem.
    pub problem: String,
}

/// The lines of a text that are neither blank nor comments, split into words, with their numbers.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        (!words.is_empty()).then_some((at + 1, words))
    })
}

/// Index of the interface with this name.
pub(crate) fn position_of_name<'a>(name: &str, mut names: impl Iterator<Item = &'a str>) -> Result<u16, String> {
    let at = names.position(|other| other == name);
    at.map(|at| at as u16).ok_or_else(|| format!("there is no interface called {name}"))
}

fn interface(name: &str, interfaces: &[Interface]) -> Result<u16, String> {
    position_of_name(name, interfaces.iter().map(|interface| &*interface.name))
}

fn target(words: &[&str], interfaces: &[Interface]) -> Result<Target, String> {
    let via = |gateway: &str| {
        let address: IpAddr = gateway.parse().map_err(|_| format!("the next hop `{gateway}` is no address"))?;
        if !is_host(address) {
            return Err(format!("the next hop {address} is no address that a router can have"));
        }
        if let Some(own) = interfaces.iter().find(|interface| interface.has(address)) {
            return Err(format!("the next hop {address} is the address of interface {} itself", own.name));
        }
        Ok(address)
    };
    match words {
        ["discard"] => Ok(Target::Discard),
        ["dev", name] => Ok(Target::Link(interface(name, interfaces)?)),
        ["via", gateway, "dev", name] => {
            let (gateway, at) = (via(gateway)?, interface(name, interfaces)?);
            if !interfaces[usize::from(at)].reaches(gateway) {
                return Err(format!("the next hop {gateway} is on no network of interface {name}"));
            }
            Ok(Target::Via(at, gateway))
        }
        ["via", gateway] => {
            let gateway = via(gateway)?;
            let mut reaching = (0..).zip(interfaces).filter(|(_, interface)| interface.reaches(gateway));
            match (reaching.next(), reaching.next()) {
                (Some((at, _)), None) => Ok(Target::Via(at, gateway)),
                (None, _) => Err(format!("the next hop {gateway} is on no network of any interface")),
                _ => Err(format!(
                    "the next hop {gateway} is on networks of several interfaces: say which, as `dev NAME`"
                )),
            }
        }
        _ => Err("write PREFIX via NEXT-HOP dev INTERFACE, PREFIX dev INTERFACE, or PREFIX discard".to_owned()),
    }
}

/// Reads routes through these interfaces.
///
/// # Errors
///
/// The first line that is wrong: not a prefix, a prefix longer than its address, a next hop that no interface reaches,
/// or a prefix that was given before.
pub fn parse(text: &str, interfaces: &[Interface]) -> Result<Vec<Route>, LineError> {
    let mut routes = Vec::new();
    let mut seen = HashMap::new();
    for (line, words) in lines(text) {
        let wrong = |problem: String| LineError { line, problem };
        let target = target(&words[1..], interfaces).map_err(wrong)?;
        let prefix = match (words[0], target) {
            ("default", Target::Via(_, gateway)) => {
                let address =
                    if gateway.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                Network { address, len: 0 }
            }
            ("default", _) => {
                return Err(wrong("`default` wants a next hop: write 0.0.0.0/0 or ::/0 instead".to_owned()));
            }
            (text, _) => Network::parse_prefix(text).map_err(|error| wrong(error.to_string()))?,
        };
        if let Target::Via(_, gateway) = target
            && gateway.is_ipv4() != prefix.address.is_ipv4()
        {
            return Err(wrong(format!("the prefix {} and the next hop {gateway} are of different families", words[0])));
        }
        if let Some(first) = seen.insert((prefix.address, prefix.len), line) {
            return Err(wrong(format!("{} is already in line {first}", words[0])));
        }
        routes.push(Route { prefix, target, line });
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use sinew_fabric::frames::MacAddress;

    use super::*;

    fn interfaces() -> Vec<Interface> {
        let one = |name: &str, networks: &[&str], last| Interface {
            name: name.to_owned(),
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            mtu: 1500,
            networks: networks.iter().map(|text| Network::parse(text).unwrap()).collect(),
        };
        vec![one("lan", &["10.1.0.1/24", "2001:db8:1::1/64"], 1), one("wan", &["10.2.0.1/24"], 2)]
    }

    #[test]
    fn routes_are_read_line_by_line() {
        let text = "# all\n10.0.0.0/8 via 10.1.0.2 dev lan\n\n  2001:db8::/32  via fe80::1 dev wan # there\ndefault via 10.2.0.9\n192.0.2.0/24 dev lan\n198.51.100.0/24 discard\n";
        let routes = parse(text, &interfaces()).unwrap();
        let lines: Vec<usize> = routes.iter().map(|route| route.line).collect();
        assert_eq!(lines, [2, 4, 5, 6, 7]);
        let targets: Vec<Target> = routes.iter().map(|route| route.target).collect();
        let [first, second, third] = ["10.1.0.2", "fe80::1", "10.2.0.9"].map(|text| text.parse().unwrap());
        let expected =
            [Target::Via(0, first), Target::Via(1, second), Target::Via(1, third), Target::Link(0), Target::Discard];
        assert_eq!(targets, expected);
        assert_eq!(routes[2].prefix, Network::parse("0.0.0.0/0").unwrap());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, problem) in [
            ("10.0.0.0/33 via 10.1.0.2", "longer than the address"),
            ("10.0.0.1/8 via 10.1.0.2", "bits beyond the first 8"),
            ("10.0.0.0/8 via 10.9.0.2", "on no network of any interface"),
            ("10.0.0.0/8 via 10.1.0.2 dev wan", "on no network of interface wan"),
            ("10.0.0.0/8 via 10.1.0.2 dev dmz", "no interface called dmz"),
            ("10.0.0.0/8 via 10.1.0.1", "address of interface lan itself"),
            ("10.0.0.0/8 via fe80::1", "several interfaces"),
            ("10.0.0.0/8 via fe80::1 dev lan", "different families"),
            ("10.0.0.0/8 via 224.0.0.1", "no address that a router can have"),
            ("10.0.0.0/8 via x", "`x` is no address"),
            ("10.0.0.0/8", "write PREFIX via"),
            ("10.0.0.0/8 discard now", "write PREFIX via"),
            ("default dev lan", "wants a next hop"),
            ("10.8.0.0/16 discard", "is already in line 1"),
        ] {
            let text = format!("10.8.0.0/16 dev lan\n{text}\n");
            let error = parse(&text, &interfaces()).unwrap_err();
            assert!(error.line == 2 && error.problem.contains(problem), "{text}: {error}");
        }
    }
}
