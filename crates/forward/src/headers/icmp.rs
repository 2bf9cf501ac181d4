//! ICMP (RFC 792) and ICMPv6 (RFC 4443): messages, without the packets that carry them. Those of neighbour discovery are in [`sinew_wire::discovery`].

use std::net::Ipv6Addr;

use sinew_wire::checksum::Sum;

/// What a router says of a packet that it does not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no route.
    NoRoute,
    /// Nobody answers for the next hop.
    HostUnreachable,
    /// It is for the router, which has nothing that takes it.
    Protocol,
    /// It is for a port of the router, where nobody listens.
    Port,
    /// A route says that nobody may go there.
    Prohibited,
    /// It passed as many routers as it may.
    TimeExceeded,
    /// The next link carries at most so many bytes of a packet, and it may not be cut.
    TooBig {
        /// Bytes that the link carries.
        mtu: usize,
    },
}

impl Problem {
    /// Type, code and the word after the checksum of the message for IPv4.
    pub fn v4(self) -> (u8, u8, u32) {
        match self {
            Self::NoRoute => (3, 0, 0),
            Self::HostUnreachable => (3, 1, 0),
            Self::Protocol => (3, 2, 0),
            Self::Port => (3, 3, 0),
            Self::TooBig { mtu } => (3, 4, mtu.min(0xFFFF) as u32),
            Self::Prohibited => (3, 13, 0),
            Self::TimeExceeded => (11, 0, 0),
        }
    }

    /// The same for IPv6. What stands in a protocol's place there is the parameter problem of an unknown next header.
    pub fn v6(self) -> (u8, u8, u32) {
        match self {
            Self::NoRoute => (1, 0, 0),
            Self::Prohibited => (1, 1, 0),
            Self::HostUnreachable => (1, 3, 0),
            Self::Port => (1, 4, 0),
            Self::TooBig { mtu } => (2, 0, mtu as u32),
            Self::TimeExceeded => (3, 0, 0),
            // The octet of the fixed header that names it.
            Self::Protocol => (4, 1, 6),
        }
    }
}

/// Whether a type of ICMP tells of an error: such a message is never answered with another (RFC 1122 3.2.2).
pub fn is_error_v4(kind: u8) -> bool {
    [3, 4, 5, 11, 12].contains(&kind)
}

/// Whether a type of ICMPv6 tells of an error (RFC 4443 2.1), or that there is a better way, which is not answered either.
pub fn is_error_v6(kind: u8) -> bool {
    kind < 128 || kind == 137
}

/// Types of ICMPv6 that are looked at.
pub mod v6 {
    /// Echo request.
    pub const ECHO: u8 = 128;
    /// Its answer.
    pub const ECHO_REPLY: u8 = 129;
    pub use sinew_wire::discovery::{ADVERTISEMENT, SOLICITATION};
}

/// An error message without its checksum: eight bytes, then as much of the packet as fits.
pub fn error(into: &mut Vec<u8>, (kind, code, word): (u8, u8, u32), packet: &[u8], quoted_max: usize) {
    into.extend([kind, code, 0, 0]);
    into.extend(word.to_be_bytes());
    into.extend(&packet[..packet.len().min(quoted_max)]);
}

/// Writes the checksum of a message of ICMP.
pub fn seal_v4(message: &mut [u8]) {
    message[2..4].fill(0);
    let sum = Sum::default().with(message).checksum();
    message[2..4].copy_from_slice(&sum);
}

/// Writes the checksum of a message of ICMPv6.
pub fn seal_v6(message: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
    message[2..4].fill(0);
    let sum = sum_v6(message, source, destination).checksum();
    message[2..4].copy_from_slice(&sum);
}

/// The sum of a message of ICMPv6, of up to 65,535 bytes, with its pseudo-header.
pub fn sum_v6(message: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Sum {
    let len = message.len() as u16;
    Sum::of_pseudo_header(&source.octets(), &destination.octets(), super::protocol::ICMPV6, len).with(message)
}
