//! Address resolution of IPv4 on Ethernet (RFC 826).

use std::net::Ipv4Addr;

/// Length of a message, in bytes.
pub const LEN: usize = 28;
const START: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// A message: a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether the message is a request.
    pub is_request: bool,
    /// Ethernet address of the sender.
    pub sender_mac: [u8; 6],
    /// IPv4 address of the sender.
    pub sender: Ipv4Addr,
    /// Ethernet address of the target; not known in a request.
    pub target_mac: [u8; 6],
    /// IPv4 address of the target.
    pub target: Ipv4Addr,
}

impl Arp {
    /// Reads a message, which other bytes may follow. `None` when it is cut short, or is not for IPv4 on Ethernet.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.first_chunk()?;
        if bytes[..6] != START || bytes[6] != 0 || !(1..=2).contains(&bytes[7]) {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        Some(Self {
            is_request: bytes[7] == 1,
            sender_mac: *bytes[8..].first_chunk()?,
            sender: address(14),
            target_mac: *bytes[18..].first_chunk()?,
            target: address(24),
        })
    }

    /// Bytes of the message, as they go on the wire.
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..6].copy_from_slice(&START);
        bytes[7] = if self.is_request { 1 } else { 2 };
        bytes[8..14].copy_from_slice(&self.sender_mac);
        bytes[14..18].copy_from_slice(&self.sender.octets());
        bytes[18..24].copy_from_slice(&self.target_mac);
        bytes[24..28].copy_from_slice(&self.target.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_as_it_was_written_and_others_are_refused() {
        let message = Arp {
            is_request: true,
            sender_mac: [2, 0, 0, 0, 0, 1],
            sender: [10, 0, 0, 1].into(),
            target_mac: [0; 6],
            target: [10, 0, 0, 2].into(),
        };
        let bytes = message.to_bytes();
        assert_eq!(bytes[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(Arp::read(&bytes), Some(message));
        for len in 0..LEN {
            assert_eq!(Arp::read(&bytes[..len]), None);
        }
        for (at, byte) in [(0, 1), (1, 6), (2, 0x86), (4, 8), (5, 16), (7, 0), (7, 3), (6, 1)] {
            let mut other = bytes;
            other[at] = byte;
            assert_eq!(Arp::read(&other), None, "byte {at} is {byte}");
        }
    }
}
