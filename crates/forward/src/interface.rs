//! Interfaces of a router: their names, links and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, MacAddress};

use crate::headers::ipv6;

/// Interfaces that a forwarder can have.
pub const INTERFACES_MAX: usize = 32;
/// Smallest MTU of an interface with IPv4 alone, in bytes (RFC 791).
const MTU_MIN: usize = 68;

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address on the network.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub len: u8,
}

/// Error in the text of a [`Network`] or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {problem}")]
pub struct NetworkError {
    /// The text that was read.
    pub text: String,
    /// Description of the problem.
    pub problem: String,
}

/// Bits of an address of this family.
fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            Ipv4Addr::from_bits(v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into()
        }
        IpAddr::V6(v6) => {
            Ipv6Addr::from_bits(v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)).into()
        }
    }
}

impl Network {
    /// Reads `10.0.0.1/24`.
    ///
    /// # Errors
    ///
    /// The address or the length cannot be read, or the prefix is longer than the address.
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let wrong = |problem: String| NetworkError { text: text.to_owned(), problem };
        let (address, len) = text.split_once('/').ok_or_else(|| wrong("write ADDRESS/LENGTH".to_owned()))?;
        let address: IpAddr = address.parse().map_err(|_| wrong(format!("`{address}` is no address")))?;
        let len: u8 = len.parse().map_err(|_| wrong(format!("`{len}` is no length of a prefix")))?;
        if len > address_bits(address) {
            return Err(wrong(format!(
                "a prefix of {len} bits is longer than the address, which has {}",
                address_bits(address)
            )));
        }
        Ok(Self { address, len })
    }

    /// Reads a prefix: a network whose bits beyond the prefix are zero.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`], and where bits beyond the length are set.
    pub fn parse_prefix(text: &str) -> Result<Self, NetworkError> {
        let network = Self::parse(text)?;
        if network.prefix() != network.address {
            let problem = format!(
                "it has bits beyond the first {}: did you mean {}/{}?",
                network.len,
                network.prefix(),
                network.len
            );
            return Err(NetworkError { text: text.to_owned(), problem });
        }
        Ok(network)
    }

    /// The network's first address.
    pub fn prefix(&self) -> IpAddr {
        masked(self.address, self.len)
    }

    /// Whether an address is on the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.len) == self.prefix()
    }

    /// The IPv4 addresses on the network that no host may have: the first and the last, if there are more than two.
    pub fn reserved(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let edges = match self.prefix() {
            IpAddr::V4(first) if self.len < 31 => {
                [first.to_bits(), first.to_bits() | u32::MAX >> self.len].map(Ipv4Addr::from_bits).to_vec()
            }
            _ => Vec::new(),
        };
        edges.into_iter()
    }
}

/// An interface of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name that routes use for it.
    pub name: String,
    /// Its Ethernet address.
    pub mac: MacAddress,
    /// Bytes of the longest packet that its link carries.
    pub mtu: usize,
    /// Its addresses, and the networks reached through it.
    pub networks: Vec<Network>,
}

/// Reason for refusing a set of interfaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// Two interfaces have the same name.
    #[error("two interfaces are called {name}: give each a name of its own")]
    Name {
        /// The name.
        name: String,
    },
    /// No host can have this address.
    #[error("interface {name}: {address} is no address that a host can have")]
    Address {
        /// Name of the interface.
        name: String,
        /// The address given for it.
        address: IpAddr,
    },
    /// The same address was given twice.
    #[error("interfaces {name} and {other} both have the address {address}")]
    Twice {
        /// Name of the interface.
        name: String,
        /// Name of the interface that had the address first.
        other: String,
        /// The address given for both.
        address: IpAddr,
    },
    /// The MTU of an interface is too small for its addresses.
    #[error("interface {name} carries packets of {mtu} bytes, and {} has to carry {least}", if *least == ipv6::MTU_MIN { "IPv6" } else { "IPv4" })]
    Mtu {
        /// Name of the interface.
        name: String,
        /// Its MTU, in bytes.
        mtu: usize,
        /// The smallest MTU allowed, in bytes.
        least: usize,
    },
    /// There are more than [`INTERFACES_MAX`].
    #[error("{count} interfaces are too many: there can be {INTERFACES_MAX}")]
    Count {
        /// Interfaces that were given.
        count: usize,
    },
}

impl Interface {
    /// The link-local IPv6 address that every interface has, derived from its Ethernet address (RFC 4291, appendix A).
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac.0;
        Ipv6Addr::from([0xFE, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }

    /// Whether this address belongs to the interface.
    pub fn has(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.address == address) || address == IpAddr::V6(self.link_local())
    }

    /// Whether an address can be reached on the interface's link.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        is_link_local || self.networks.iter().any(|network| network.contains(address))
    }

    /// The interface's IPv4 address on the network of `peer`; if it has none there, any of them.
    pub fn v4_for(&self, peer: Ipv4Addr) -> Option<Ipv4Addr> {
        let on_net = self.networks.iter().find(|network| network.contains(peer.into()));
        let v4 = |network: &Network| if let IpAddr::V4(v4) = network.address { Some(v4) } else { None };
        on_net.and_then(v4).or_else(|| self.networks.iter().find_map(v4))
    }

    /// The IPv6 address to use towards `near`: a global one, or the link-local one if `near` is link-local or there is
    /// no other.
    pub fn v6_for(&self, near: Ipv6Addr) -> Ipv6Addr {
        let v6 = |network: &Network| if let IpAddr::V6(v6) = network.address { Some(v6) } else { None };
        if near.is_unicast_link_local() {
            return self.link_local();
        }
        self.networks.iter().find_map(v6).unwrap_or_else(|| self.link_local())
    }

    /// Bytes of its longest frame, including the Ethernet header.
    pub fn frame_len_max(&self) -> usize {
        self.mtu + ETHERNET_HEADER_LEN
    }
}

/// Checks that these interfaces can belong to one router.
///
/// # Errors
///
/// [`InterfaceError`].
pub fn check(interfaces: &[Interface]) -> Result<(), InterfaceError> {
    if interfaces.len() > INTERFACES_MAX {
        return Err(InterfaceError::Count { count: interfaces.len() });
    }
    for (at, interface) in interfaces.iter().enumerate() {
        let name = || interface.name.clone();
        if interfaces[..at].iter().any(|other| other.name == interface.name) {
            return Err(InterfaceError::Name { name: name() });
        }
        let has_v6 = interface.networks.iter().any(|network| network.address.is_ipv6());
        let least = if has_v6 { ipv6::MTU_MIN } else { MTU_MIN };
        if interface.mtu < least {
            return Err(InterfaceError::Mtu { name: name(), mtu: interface.mtu, least });
        }
        for (nth, network) in interface.networks.iter().enumerate() {
            let address = network.address;
            let is_edge = matches!(address, IpAddr::V4(v4) if network.reserved().any(|edge| edge == v4));
            if !is_host(address) || is_edge {
                return Err(InterfaceError::Address { name: name(), address });
            }
            let other_owner =
                interfaces[..at].iter().find(|other| other.networks.iter().any(|network| network.address == address));
            let within = interface.networks[..nth].iter().any(|network| network.address == address);
            if let Some(other) = other_owner.or_else(|| within.then_some(interface)) {
                return Err(InterfaceError::Twice { name: name(), other: other.name.clone(), address });
            }
        }
    }
    Ok(())
}

/// Whether an address can belong to one host that others can reach.
pub fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_host_v4(v4),
        IpAddr::V6(v6) => is_host_v6(v6),
    }
}

/// Whether an address can belong to one host that others can reach.
#[inline(always)]
pub fn is_host_v4(address: Ipv4Addr) -> bool {
    // 0/8 is this network and 127/8 this host; multicast, reserved and broadcast addresses begin at 224/4.
    (1..224).contains(&address.octets()[0]) && !address.is_loopback()
}

/// Whether an address can belong to one host that others can reach.
#[inline(always)]
pub fn is_host_v6(address: Ipv6Addr) -> bool {
    // No host has an address in ::/96: it holds the unspecified address, loopback, and an obsolete form of IPv4
    // addresses.
    !address.is_multicast() && address.to_bits() >> 32 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, networks: &[&str]) -> Interface {
        let networks = networks.iter().map(|text| Network::parse(text).unwrap()).collect();
        Interface { name: name.to_owned(), mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu: 1500, networks }
    }

    #[test]
    fn networks_are_read_and_what_is_none_is_named() {
        let network = Network::parse("10.1.2.3/16").unwrap();
        assert_eq!(network.prefix(), IpAddr::from([10, 1, 0, 0]));
        assert!(network.contains([10, 1, 255, 1].into()) && !network.contains([10, 2, 0, 1].into()));
        assert!(!network.contains("::".parse().unwrap()));
        assert_eq!(network.reserved().collect::<Vec<_>>(), [[10, 1, 0, 0], [10, 1, 255, 255]].map(Ipv4Addr::from));
        assert_eq!(Network::parse("10.1.2.2/31").unwrap().reserved().count(), 0);
        assert!(Network::parse("0.0.0.0/0").unwrap().contains([1, 2, 3, 4].into()));
        for (text, problem) in [
            ("10.0.0.0/33", "longer than the address, which has 32"),
            ("::/129", "longer than the address, which has 128"),
            ("10.0.0/8", "`10.0.0` is no address"),
            ("10.0.0.0", "write ADDRESS/LENGTH"),
            ("10.0.0.0/x", "`x` is no length"),
            ("10.0.0.0/-1", "`-1` is no length"),
        ] {
            assert!(Network::parse(text).unwrap_err().to_string().contains(problem), "{text}");
        }
        assert!(Network::parse_prefix("10.0.0.1/8").unwrap_err().problem.contains("did you mean 10.0.0.0/8?"));
    }

    #[test]
    fn interfaces_that_contradict_each_other_are_refused() {
        let ok = [interface("a", &["10.0.0.1/24", "2001:db8::1/64"]), interface("b", &["10.0.1.1/24"])];
        assert_eq!(check(&ok), Ok(()));
        let wrong = |interfaces: &[Interface]| check(interfaces).unwrap_err();
        assert!(matches!(wrong(&[interface("a", &[]), interface("a", &[])]), InterfaceError::Name { .. }));
        let both = [interface("a", &["10.0.0.1/24"]), interface("b", &["10.0.0.1/8"])];
        assert!(matches!(wrong(&both), InterfaceError::Twice { .. }));
        for address in
            ["127.0.0.1/8", "224.0.0.1/4", "0.0.0.0/0", "ff02::1/64", "::1/128", "10.0.0.0/24", "10.0.0.255/24"]
        {
            assert!(matches!(wrong(&[interface("a", &[address])]), InterfaceError::Address { .. }), "{address}");
        }
        let small = Interface { mtu: 1279, ..interface("a", &["2001:db8::1/64"]) };
        assert!(wrong(&[small]).to_string().contains("IPv6 has to carry 1280"));
        let many: Vec<_> = (0..33).map(|at| interface(&at.to_string(), &[])).collect();
        assert!(matches!(wrong(&many), InterfaceError::Count { count: 33 }));
    }

    #[test]
    fn an_interface_knows_its_addresses_and_its_links() {
        let interface = interface("a", &["10.0.0.1/24", "10.1.0.1/24", "2001:db8::1/64"]);
        assert_eq!(interface.link_local(), "fe80::ff:fe00:1".parse::<Ipv6Addr>().unwrap());
        assert!(interface.has("fe80::ff:fe00:1".parse().unwrap()) && interface.has([10, 1, 0, 1].into()));
        assert!(interface.reaches([10, 1, 0, 9].into()) && !interface.reaches([10, 2, 0, 9].into()));
        assert!(interface.reaches("fe80::9".parse().unwrap()));
        assert_eq!(interface.v4_for([10, 1, 0, 9].into()), Some([10, 1, 0, 1].into()));
        assert_eq!(interface.v4_for([9, 9, 9, 9].into()), Some([10, 0, 0, 1].into()));
    }
}
