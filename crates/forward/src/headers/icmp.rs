//! ICMP (RFC 792), ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861): messages, without the packets that carry them.

use std::net::Ipv6Addr;

use sinew_fabric::frames::MacAddress;

use super::{array_at, checksum};
use crate::counters::Reason;

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
    /// Neighbour solicitation.
    pub const SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const ADVERTISEMENT: u8 = 136;
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
    let sum = checksum::of(message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the checksum of a message of ICMPv6.
pub fn seal_v6(message: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) {
    message[2..4].fill(0);
    let sum = checksum::of_ipv6(source, destination, super::protocol::ICMPV6, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Whether it asks.
    pub is_solicitation: bool,
    /// Of an advertisement: whether it answers a question.
    pub is_solicited: bool,
    /// Of an advertisement: whether it counts more than what was known.
    pub overrides: bool,
    /// The address that is asked for, or that the advertisement is about.
    pub target: Ipv6Addr,
    /// Of a solicitation the sender's Ethernet address, of an advertisement the target's, if it is said.
    pub mac: Option<MacAddress>,
}

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Bytes before the options.
const NEIGHBOUR_LEN: usize = 24;

impl Neighbour {
    /// Reads a message of ICMPv6 whose type is [`v6::SOLICITATION`] or [`v6::ADVERTISEMENT`], and whose checksum was checked.
    ///
    /// # Errors
    ///
    /// It is too short, its code is not 0, the target is a group, or an option is cut off or has no length.
    pub fn read(message: &[u8]) -> Result<Self, Reason> {
        if message.len() < NEIGHBOUR_LEN || message[1] != 0 {
            return Err(Reason::Discovery);
        }
        let is_solicitation = message[0] == v6::SOLICITATION;
        let target = Ipv6Addr::from(array_at::<16>(message, 8));
        if target.is_multicast() {
            return Err(Reason::Discovery);
        }
        let wanted = if is_solicitation { 1 } else { 2 };
        let (mut mac, mut options) = (None, &message[NEIGHBOUR_LEN..]);
        while !options.is_empty() {
            let [kind, units, ..] = options else { return Err(Reason::Discovery) };
            let len = usize::from(*units) * 8;
            if len == 0 || len > options.len() {
                return Err(Reason::Discovery);
            }
            if *kind == wanted && len == 8 {
                mac = Some(MacAddress(array_at(options, 2)));
            }
            options = &options[len..];
        }
        let flags = message[4];
        Ok(Self {
            is_solicitation,
            is_solicited: flags & SOLICITED != 0,
            overrides: flags & OVERRIDE != 0,
            target,
            mac,
        })
    }

    /// The message without its checksum; an advertisement says that it is a router's.
    pub fn write(self, into: &mut Vec<u8>) {
        let kind = if self.is_solicitation { v6::SOLICITATION } else { v6::ADVERTISEMENT };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let flags =
            flag(!self.is_solicitation, ROUTER) | flag(self.is_solicited, SOLICITED) | flag(self.overrides, OVERRIDE);
        into.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
        into.extend(self.target.octets());
        if let Some(mac) = self.mac {
            into.extend([if self.is_solicitation { 1 } else { 2 }, 1]);
            into.extend(mac.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbours_message_reads_as_it_was_written() {
        for is_solicitation in [true, false] {
            for mac in [None, Some(MacAddress([2, 0, 0, 0, 0, 9]))] {
                let (is_solicited, overrides) = (!is_solicitation, !is_solicitation);
                let target = "fe80::9".parse().unwrap();
                let message = Neighbour { is_solicitation, is_solicited, overrides, target, mac };
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                assert_eq!(Neighbour::read(&bytes), Ok(message));
                // Options end where the message does.
                for len in 0..bytes.len() {
                    let is_whole = len == NEIGHBOUR_LEN;
                    assert_eq!(Neighbour::read(&bytes[..len]).is_ok(), is_whole, "{len} of {} bytes", bytes.len());
                }
            }
        }
    }

    #[test]
    fn an_option_without_a_length_ends_no_loop() {
        let mut bytes = Vec::new();
        let target = "fe80::9".parse().unwrap();
        Neighbour { is_solicitation: true, is_solicited: false, overrides: false, target, mac: None }.write(&mut bytes);
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Neighbour::read(&bytes), Err(Reason::Discovery));
    }
}
