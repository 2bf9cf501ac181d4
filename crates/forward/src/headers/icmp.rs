//! ICMP (RFC 792) and ICMPv6 (RFC 4443) messages, without the packets that carry them. Those of neighbour discovery are
//! in [`sinew_wire::discovery`].

use std::net::Ipv6Addr;

use sinew_wire::checksum::Sum;

/// Problem that a router reports about a packet that it does not forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no route.
    NoRoute,
    /// Nobody answers for the next hop.
    HostUnreachable,
    /// The packet is for the router, which does not handle its protocol.
    Protocol,
    /// The packet is for a port of the router on which nothing listens.
    Port,
    /// A route discards packets to the destination.
    Prohibited,
    /// The packet's time to live has run out.
    TimeExceeded,
    /// The packet exceeds the next link's MTU and must not be fragmented.
    TooBig {
        /// Bytes of the longest packet that the link carries.
        mtu: usize,
    },
}

impl Problem {
    /// Type, code and second word of the ICMP message.
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

    /// Type, code and second word of the ICMPv6 message. In place of an unreachable protocol, ICMPv6 has the parameter
    /// problem 'unknown next header'.
    pub fn v6(self) -> (u8, u8, u32) {
        match self {
            Self::NoRoute => (1, 0, 0),
            Self::Prohibited => (1, 1, 0),
            Self::HostUnreachable => (1, 3, 0),
            Self::Port => (1, 4, 0),
            Self::TooBig { mtu } => (2, 0, mtu as u32),
            Self::TimeExceeded => (3, 0, 0),
            // Offset of the next-header field in the fixed header.
            Self::Protocol => (4, 1, 6),
        }
    }
}

/// Whether an ICMP type reports an error. Such a message is never answered with another error (RFC 1122 3.2.2).
pub fn is_error_v4(kind: u8) -> bool {
    [3, 4, 5, 11, 12].contains(&kind)
}

/// Whether an ICMPv6 type reports an error (RFC 4443 2.1), or is a redirect, which is not answered with one either.
pub fn is_error_v6(kind: u8) -> bool {
    kind < 128 || kind == 137
}

/// The ICMPv6 types that a router handles.
pub mod v6 {
    /// Echo request.
    pub const ECHO: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    pub use sinew_wire::discovery::{ADVERTISEMENT, SOLICITATION};
}

/// Appends an error message without its checksum: an eight-byte header, then up to `quoted_max` bytes of the packet.
pub fn error(into: &mut Vec<u8>, (kind, code, word): (u8, u8, u32), packet: &[u8], quoted_max: usize) {
    into.extend([kind, code, 0, 0]);
    into.extend(word.to_be_bytes());
    into.extend(&packet[..packet.len().min(quoted_max)]);
}

/// Writes the checksum of an ICMP message.
pub fn seal_v4(message: &mut [u8]) {
    message[2..4].fill(0);
    let sum = Sum::default().with(message).checksum();
    message[2..4].copy_from_slice(&sum);
}

/// Writes the checksum of an ICMPv6 message.
pub fn seal_v6(message: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
    message[2..4].fill(0);
    let sum = sum_v6(message, source, destination).checksum();
    message[2..4].copy_from_slice(&sum);
}

/// The checksum's sum over an ICMPv6 message of up to 65,535 bytes and its pseudo-header.
pub fn sum_v6(message: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Sum {
    let len = message.len() as u16;
    Sum::of_pseudo_header(&source.octets(), &destination.octets(), super::protocol::ICMPV6, len).with(message)
}
