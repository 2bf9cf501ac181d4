//! Socket addresses as [`Peer`]s: the whole address fits, so unknown senders cost no memory.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::address::Peer;

const V4: u64 = 4;
const V6: u64 = 6;
/// The upper half of an IPv4 address mapped into IPv6, `::ffff:a.b.c.d`.
const V4_MAPPED: u64 = 0xFFFF << 32;

/// Packs a socket address. An IPv4 address mapped into IPv6 becomes the IPv4 peer that it stands for, so that each peer
/// has one name on every kind of socket. Flow labels are dropped.
#[inline]
pub fn pack(address: SocketAddr) -> Peer {
    match address {
        SocketAddr::V4(address) => pack_v4(u32::from(*address.ip()), address.port()),
        SocketAddr::V6(address) => pack_v6(u128::from(*address.ip()), address.port(), address.scope_id()),
    }
}

/// Packs an IPv4 address and a port.
#[inline]
pub fn pack_v4(ip: u32, port: u16) -> Peer {
    Peer([0, V4_MAPPED | u64::from(ip), V4 << 16 | u64::from(port)])
}

/// Packs an IPv6 address, a port and a scope.
#[inline]
pub fn pack_v6(ip: u128, port: u16, scope: u32) -> Peer {
    let (high, low) = ((ip >> 64) as u64, ip as u64);
    if high == 0 && low & !0xFFFF_FFFF == V4_MAPPED {
        return pack_v4(low as u32, port);
    }
    Peer([high, low, u64::from(scope) << 32 | V6 << 16 | u64::from(port)])
}

/// The socket address of a peer; `None` for a `Peer` that did not come from [`pack`].
#[inline]
pub fn unpack(peer: Peer) -> Option<SocketAddr> {
    let Peer([high, low, rest]) = peer;
    let (port, scope) = (rest as u16, (rest >> 32) as u32);
    match (rest >> 16) as u16 as u64 {
        V4 if high == 0 && low & !0xFFFF_FFFF == V4_MAPPED && scope == 0 => {
            Some(SocketAddr::V4(SocketAddrV4::new((low as u32).into(), port)))
        }
        V6 => {
            let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
        }
        _ => None,
    }
}

/// The UDP port of a peer.
#[inline]
pub fn port_of(peer: Peer) -> u16 {
    peer.0[2] as u16
}

/// Turns `0.0.0.0` and `::`, which as destinations mean this host, into the loopback address that can be reached, given
/// whether IPv4 and IPv6 addresses can be.
pub fn loopback_for_unspecified(address: SocketAddr, reach_v4: bool, reach_v6: bool) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let v4 = if address.is_ipv4() { reach_v4 || !reach_v6 } else { !reach_v6 };
    let ip: IpAddr = if v4 { std::net::Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_survive_packing_with_port_and_scope() {
        for text in ["1.2.3.4:5", "255.255.255.255:65535", "[::]:0", "[::1]:7000", "[fe80::1%9]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(unpack(pack(address)), Some(address), "{text}");
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_peer_that_it_means() {
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:80".parse().unwrap();
        assert_eq!(pack(mapped), pack("127.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn this_host_means_a_loopback_address_that_can_be_reached() {
        let host = |text: &str, v4, v6| loopback_for_unspecified(text.parse().unwrap(), v4, v6).to_string();
        assert_eq!(host("0.0.0.0:1", true, false), "127.0.0.1:1");
        assert_eq!(host("0.0.0.0:1", true, true), "127.0.0.1:1");
        assert_eq!(host("0.0.0.0:1", false, true), "[::1]:1");
        assert_eq!(host("[::]:1", true, true), "[::1]:1");
        assert_eq!(host("[::]:1", true, false), "127.0.0.1:1");
        assert_eq!(host("9.9.9.9:1", true, true), "9.9.9.9:1");
    }

    proptest! {
        #[test]
        fn a_peer_from_elsewhere_is_refused_or_means_one_address(words in any::<[u64; 3]>(), family in 3u64..8) {
            let peer = Peer([words[0], words[1], words[2] & !0xFFFF_0000 | family << 16]);
            for peer in [Peer(words), peer] {
                if let Some(address) = unpack(peer) {
                    prop_assert_eq!(unpack(pack(address)).map(|a| a.ip().to_canonical()), Some(address.ip().to_canonical()));
                }
            }
        }
    }
}
