//! IPv6 (RFC 8200).

use std::net::Ipv6Addr;

use super::{array_at, u16_at};
use crate::counters::Reason;

/// Length of the fixed header, in bytes.
pub const HEADER_LEN: usize = 40;
/// Smallest MTU of any link, in bytes.
pub const MTU_MIN: usize = 1280;
/// Extension headers walked, at most.
const EXTENSIONS_MAX: usize = 8;

/// The checked fields of a fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Length of the packet including the header, in bytes.
    pub total_len: usize,
    /// Type of the next header.
    pub next: u8,
    /// Routers that the packet may still pass.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
}

/// The upper-layer header behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Its protocol.
    pub protocol: u8,
    /// Its offset in the packet.
    pub at: usize,
    /// Whether the packet is a fragment. Except in the first one, the upper-layer header cannot be read.
    pub is_fragment: bool,
}

impl Ipv6 {
    /// Reads a packet's fixed header. Bytes behind the packet are allowed.
    ///
    /// # Errors
    ///
    /// The [`Reason`] to refuse the packet.
    #[inline]
    pub fn read(packet: &[u8]) -> Result<Self, Reason> {
        if packet.len() < HEADER_LEN {
            return Err(Reason::Truncated);
        }
        if packet[0] >> 4 != 6 {
            return Err(Reason::Version);
        }
        let total_len = HEADER_LEN + usize::from(u16_at(packet, 4));
        if packet.len() < total_len {
            return Err(Reason::Truncated);
        }
        Ok(Self {
            total_len,
            next: packet[6],
            hop_limit: packet[7],
            source: Ipv6Addr::from(array_at::<16>(packet, 8)),
            destination: Ipv6Addr::from(array_at::<16>(packet, 24)),
        })
    }

    /// Walks the extension headers of a packet that was read.
    ///
    /// # Errors
    ///
    /// [`Reason::Options`] when a header is cut off or there are too many, [`Reason::SourceRoute`] for a routing header
    /// of type 0 (RFC 5095).
    pub fn upper(&self, packet: &[u8]) -> Result<Upper, Reason> {
        let packet = &packet[..self.total_len];
        let mut upper = Upper { protocol: self.next, at: HEADER_LEN, is_fragment: false };
        for _ in 0..=EXTENSIONS_MAX {
            let rest = &packet[upper.at..];
            let len = match upper.protocol {
                // Hop-by-hop, destination options, routing, mobility.
                0 | 60 | 43 | 135 => {
                    let [_, len, kind, ..] = rest else { return Err(Reason::Options) };
                    if upper.protocol == 43 && *kind == 0 {
                        return Err(Reason::SourceRoute);
                    }
                    8 + usize::from(*len) * 8
                }
                44 => {
                    let [_, _, high, low, ..] = rest else { return Err(Reason::Options) };
                    upper.is_fragment = true;
                    if u16::from_be_bytes([*high, *low]) & 0xFFF8 != 0 {
                        return Ok(upper);
                    }
                    8
                }
                51 => {
                    let [_, len, ..] = rest else { return Err(Reason::Options) };
                    8 + usize::from(*len) * 4
                }
                _ => return Ok(upper),
            };
            if rest.len() < len {
                return Err(Reason::Options);
            }
            upper.protocol = rest[0];
            upper.at += len;
        }
        Err(Reason::Options)
    }
}

/// Decrements the hop limit of a packet that was [read](Ipv6::read).
#[inline(always)]
pub fn decrement_hop_limit(packet: &mut [u8]) {
    packet[7] = packet[7].wrapping_sub(1);
}

/// A fixed header. `payload_len` is at most 65,535.
pub fn header(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next: u8,
    hop_limit: u8,
    payload_len: usize,
) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(payload_len as u16).to_be_bytes());
    (header[6], header[7]) = (next, hop_limit);
    header[8..24].copy_from_slice(&source.octets());
    header[24..40].copy_from_slice(&destination.octets());
    header
}

/// The multicast group in which the owner of an address listens for solicitations (RFC 4291 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

/// The Ethernet address of a multicast group (RFC 2464 7).
pub fn group_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let header = header(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, next, 64, payload.len());
        [&header[..], payload].concat()
    }

    #[test]
    fn what_is_no_packet_is_refused_by_reason() {
        let good = packet(17, &[1; 20]);
        for len in 0..60 {
            assert_eq!(Ipv6::read(&good[..len]), Err(Reason::Truncated));
        }
        assert_eq!(Ipv6::read(&good).map(|read| read.total_len), Ok(60));
        assert_eq!(Ipv6::read(&[&good[..], &[0; 9]].concat()).map(|read| read.total_len), Ok(60));
        assert_eq!(Ipv6::read(&[0x45; 60]), Err(Reason::Version));
    }

    #[test]
    fn extension_headers_are_walked_to_their_end_and_no_further() {
        let upper = |next, payload: &[u8]| {
            let packet = packet(next, payload);
            Ipv6::read(&packet).and_then(|read| read.upper(&packet))
        };
        let found = |protocol, at, is_fragment| Ok(Upper { protocol, at, is_fragment });
        assert_eq!(upper(58, &[]), found(58, 40, false));
        assert_eq!(upper(0, &[60, 0, 1, 4, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0, 128]), found(58, 56, false));
        assert_eq!(upper(0, &[58, 1, 1, 4, 0, 0, 0, 0]), Err(Reason::Options), "it says that it is longer");
        assert_eq!(upper(0, &[]), Err(Reason::Options));
        assert_eq!(upper(0, &[58, 0]), Err(Reason::Options));
        assert_eq!(upper(44, &[58, 0, 0, 1, 0, 0, 0, 7]), found(58, 48, true));
        assert_eq!(upper(44, &[58, 0, 0, 8, 0, 0, 0, 7]), found(44, 40, true));
        assert_eq!(upper(43, &[58, 0, 0, 0, 0, 0, 0, 0]), Err(Reason::SourceRoute));
        let chain = |count: usize| [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        assert_eq!(upper(60, &chain(9)), Err(Reason::Options), "too many");
    }

    #[test]
    fn who_is_asked_for_listens_in_its_group() {
        let address: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        let group = solicited_node(address);
        assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), [0x33, 0x33, 0xFF, 0x12, 0x34, 0x56]);
    }
}
