//! Neighbour discovery (RFC 4861): its ICMPv6 messages, without the packets that carry them.

use std::net::Ipv6Addr;

/// The type of a neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// The type of a neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Whether the message is a solicitation.
    pub is_solicitation: bool,
    /// In an advertisement: whether the host is a router.
    pub is_router: bool,
    /// In an advertisement: whether it answers a solicitation.
    pub is_solicited: bool,
    /// In an advertisement: whether it overrides what was known.
    pub overrides: bool,
    /// The address that is asked for, or that the advertisement is about.
    pub target: Ipv6Addr,
    /// The Ethernet address of a solicitation's sender or an advertisement's target, if the message gives it.
    pub mac: Option<[u8; 6]>,
}

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Bytes before the options.
const LEN: usize = 24;
/// Length in bytes of the longest message written here, which has the option with an Ethernet address.
pub const LEN_MAX: usize = LEN + 8;

impl Discovery {
    /// Reads an ICMPv6 message whose type is [`SOLICITATION`] or [`ADVERTISEMENT`] and whose checksum was checked.
    /// `None` when it is too short, its code is not 0, the target is a multicast address, or an option is cut short or
    /// has no length.
    pub fn read(message: &[u8]) -> Option<Self> {
        if message.len() < LEN || message[1] != 0 {
            return None;
        }
        let is_solicitation = message[0] == SOLICITATION;
        let target = Ipv6Addr::from(*message[8..].first_chunk::<16>()?);
        if target.is_multicast() {
            return None;
        }
        let wanted = if is_solicitation { SOURCE_OPTION } else { TARGET_OPTION };
        let (mut mac, mut options) = (None, &message[LEN..]);
        while !options.is_empty() {
            let [kind, units, ..] = options else { return None };
            let len = usize::from(*units) * 8;
            if len == 0 || len > options.len() {
                return None;
            }
            if *kind == wanted && len == 8 {
                mac = Some(*options[2..].first_chunk()?);
            }
            options = &options[len..];
        }
        let flags = message[4];
        Some(Self {
            is_solicitation,
            is_router: flags & ROUTER != 0,
            is_solicited: flags & SOLICITED != 0,
            overrides: flags & OVERRIDE != 0,
            target,
            mac,
        })
    }

    /// Bytes of the message, without its checksum, and their number.
    pub fn to_bytes(self) -> ([u8; LEN_MAX], usize) {
        let kind = if self.is_solicitation { SOLICITATION } else { ADVERTISEMENT };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let flags = flag(self.is_router, ROUTER) | flag(self.is_solicited, SOLICITED) | flag(self.overrides, OVERRIDE);
        let mut bytes = [0; LEN_MAX];
        (bytes[0], bytes[4]) = (kind, flags);
        bytes[8..LEN].copy_from_slice(&self.target.octets());
        let Some(mac) = self.mac else { return (bytes, LEN) };
        (bytes[LEN], bytes[LEN + 1]) = (if self.is_solicitation { SOURCE_OPTION } else { TARGET_OPTION }, 1);
        bytes[LEN + 2..].copy_from_slice(&mac);
        (bytes, LEN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbours_message_reads_as_it_was_written() {
        for is_solicitation in [true, false] {
            for mac in [None, Some([2, 0, 0, 0, 0, 9])] {
                let [is_router, is_solicited, overrides] = [!is_solicitation; 3];
                let target = "fe80::9".parse().unwrap();
                let message = Discovery { is_solicitation, is_router, is_solicited, overrides, target, mac };
                let (bytes, len) = message.to_bytes();
                let bytes = &bytes[..len];
                assert_eq!(Discovery::read(bytes), Some(message));
                // Options end where the message does.
                for len in 0..bytes.len() {
                    let is_whole = len == LEN;
                    assert_eq!(Discovery::read(&bytes[..len]).is_some(), is_whole, "{len} of {} bytes", bytes.len());
                }
            }
        }
    }

    #[test]
    fn an_option_without_a_length_ends_no_loop() {
        let target = "fe80::9".parse().unwrap();
        let [is_router, is_solicited, overrides] = [false; 3];
        let message = Discovery { is_solicitation: true, is_router, is_solicited, overrides, target, mac: None };
        let (bytes, len) = message.to_bytes();
        let mut bytes = bytes[..len].to_vec();
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Discovery::read(&bytes), None);
    }
}
