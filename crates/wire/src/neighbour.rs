//! Address resolution on a link: ARP (RFC 826) for IPv4, and neighbour discovery (RFC 4861) for IPv6.

use std::net::{IpAddr, Ipv6Addr};

use crate::arp::{self, Arp};
use crate::checksum::Sum;
use crate::discovery::{self, ADVERTISEMENT, Discovery, SOLICITATION};
use crate::udp::{ETHERNET_LEN, TYPE_V6};

/// The type of an Ethernet frame that holds ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// Length in bytes of the longest frame written here.
pub const FRAME_LEN_MAX: usize = ETHERNET_LEN + V6_LEN + discovery::LEN_MAX;

const V6_LEN: usize = 40;
const ICMP: u8 = 58;
/// Hop limit that only packets from the same link can have.
const HOPS: u8 = 255;
const BROADCAST: [u8; 6] = [0xFF; 6];

/// A host's address and its Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Address of the host.
    pub address: IpAddr,
    /// Ethernet address of the host.
    pub mac: [u8; 6],
}

/// A question or an answer, as read from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// Somebody asks who has the address.
    Question {
        /// The address asked about.
        about: IpAddr,
        /// The asker; its address is unspecified when it only checks whether it may take the address.
        from: Neighbour,
    },
    /// A host says that it has an address.
    Answer(Neighbour),
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourFrame {
    bytes: [u8; FRAME_LEN_MAX],
    len: usize,
}

impl NeighbourFrame {
    /// Bytes of the frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The question from `from`: who has `target`? `None` when the addresses are not of one IP version.
pub fn question(from: Neighbour, target: IpAddr) -> Option<NeighbourFrame> {
    match (from.address, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let (sender_mac, target_mac) = (from.mac, [0; 6]);
            let message = Arp { is_request: true, sender_mac, sender: source, target_mac, target };
            Some(write_arp(message, BROADCAST))
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let [.., a, b, c] = target.octets();
            let group = Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c]);
            let [is_router, is_solicited, overrides] = [false; 3];
            let mac = Some(from.mac);
            let message = Discovery { is_solicitation: true, is_router, is_solicited, overrides, target, mac };
            Some(write_discovery(message, (source, from.mac), (group, [0x33, 0x33, 0xFF, a, b, c])))
        }
        _ => None,
    }
}

/// The answer to `to` that `from` has its address. `None` when the addresses are not of one IP version.
pub fn answer(from: Neighbour, to: Neighbour) -> Option<NeighbourFrame> {
    match (from.address, to.address) {
        (IpAddr::V4(source), IpAddr::V4(asker)) => {
            let (sender_mac, target_mac) = (from.mac, to.mac);
            let message = Arp { is_request: false, sender_mac, sender: source, target_mac, target: asker };
            Some(write_arp(message, to.mac))
        }
        (IpAddr::V6(source), IpAddr::V6(asker)) => {
            // A host that only checks whether it may take the address has none to be answered at, so the answer goes to
            // all.
            let all = (Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1), [0x33, 0x33, 0, 0, 0, 1]);
            let is_solicited = !asker.is_unspecified();
            let to = if is_solicited { (asker, to.mac) } else { all };
            let (is_solicitation, is_router, overrides, mac) = (false, false, true, Some(from.mac));
            let message = Discovery { is_solicitation, is_router, is_solicited, overrides, target: source, mac };
            Some(write_discovery(message, (source, from.mac), to))
        }
        _ => None,
    }
}

fn ethernet(frame: &mut [u8], to: [u8; 6], from: [u8; 6], kind: u16) {
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&kind.to_be_bytes());
}

fn write_arp(message: Arp, to: [u8; 6]) -> NeighbourFrame {
    let mut bytes = [0; FRAME_LEN_MAX];
    ethernet(&mut bytes, to, message.sender_mac, TYPE_ARP);
    bytes[ETHERNET_LEN..][..arp::LEN].copy_from_slice(&message.to_bytes());
    NeighbourFrame { bytes, len: ETHERNET_LEN + arp::LEN }
}

fn write_discovery(message: Discovery, from: (Ipv6Addr, [u8; 6]), to: (Ipv6Addr, [u8; 6])) -> NeighbourFrame {
    let mut bytes = [0; FRAME_LEN_MAX];
    ethernet(&mut bytes, to.1, from.1, TYPE_V6);
    let (message, len) = message.to_bytes();
    let (ip, into) = bytes[ETHERNET_LEN..].split_at_mut(V6_LEN);
    ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, len as u8, ICMP, HOPS]);
    ip[8..24].copy_from_slice(&from.0.octets());
    ip[24..40].copy_from_slice(&to.0.octets());
    into.copy_from_slice(&message);
    let checksum = icmp_sum(ip, &into[..len]).checksum();
    into[2..4].copy_from_slice(&checksum);
    NeighbourFrame { bytes, len: ETHERNET_LEN + V6_LEN + len }
}

fn icmp_sum(ip: &[u8], message: &[u8]) -> Sum {
    Sum::of_pseudo_header(&ip[8..24], &ip[24..40], ICMP, message.len() as u16).with(message)
}

/// Reads the question or answer in a frame; `None` when it holds neither, or is malformed.
pub fn read(frame: &[u8]) -> Option<NeighbourMessage> {
    let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    match kind {
        TYPE_ARP => read_arp(frame.get(ETHERNET_LEN..)?),
        TYPE_V6 => read_discovery(frame.get(ETHERNET_LEN..)?),
        _ => None,
    }
}

fn unicast(mac: [u8; 6]) -> Option<[u8; 6]> {
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

fn read_arp(bytes: &[u8]) -> Option<NeighbourMessage> {
    let message = Arp::read(bytes)?;
    let from = Neighbour { address: message.sender.into(), mac: unicast(message.sender_mac)? };
    Some(if message.is_request {
        NeighbourMessage::Question { about: message.target.into(), from }
    } else {
        NeighbourMessage::Answer(from)
    })
}

fn read_discovery(packet: &[u8]) -> Option<NeighbourMessage> {
    let (ip, rest) = packet.split_first_chunk::<V6_LEN>()?;
    let len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let bytes = rest.get(..len)?;
    if ip[0] >> 4 != 6 || ip[6] != ICMP || ip[7] != HOPS || !icmp_sum(ip, bytes).is_right() {
        return None;
    }
    if ![SOLICITATION, ADVERTISEMENT].contains(bytes.first()?) {
        return None;
    }
    let message = Discovery::read(bytes)?;
    let (address, mac) = (message.target.into(), message.mac.and_then(unicast));
    if !message.is_solicitation {
        return Some(NeighbourMessage::Answer(Neighbour { address, mac: mac? }));
    }
    let source = Ipv6Addr::from(*ip[8..].first_chunk::<16>()?);
    // An asker without an address yet gives no Ethernet address either.
    let mac = mac.or_else(|| source.is_unspecified().then_some([0; 6]))?;
    Some(NeighbourMessage::Question { about: address, from: Neighbour { address: source.into(), mac } })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use proptest::prelude::*;

    fn neighbours(v6: bool) -> [Neighbour; 2] {
        [1, 2].map(|number| Neighbour {
            address: if v6 {
                Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0x12, number).into()
            } else {
                Ipv4Addr::new(10, 0, 0, number as u8).into()
            },
            mac: [2, 0, 0, 0, 0, number as u8],
        })
    }

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        for v6 in [false, true] {
            let [asker, asked] = neighbours(v6);
            let written = question(asker, asked.address).unwrap();
            assert_eq!(read(written.bytes()), Some(NeighbourMessage::Question { about: asked.address, from: asker }));
            let written = answer(asked, asker).unwrap();
            assert_eq!(read(written.bytes()), Some(NeighbourMessage::Answer(asked)));
            assert_eq!(written.bytes()[..6], asker.mac);
            for len in 0..written.bytes().len() {
                assert_eq!(read(&written.bytes()[..len]), None, "{len} bytes");
            }
        }
        assert!(question(neighbours(false)[0], neighbours(true)[0].address).is_none());
    }

    #[test]
    fn a_question_goes_to_those_who_may_have_the_address() {
        let [asker, asked] = neighbours(true);
        let written = question(asker, asked.address).unwrap();
        assert_eq!(written.bytes()[..6], [0x33, 0x33, 0xFF, 0x12, 0, 2]);
        let written = question(neighbours(false)[0], neighbours(false)[1].address).unwrap();
        assert_eq!(written.bytes()[..6], [0xFF; 6]);
    }

    #[test]
    fn who_looks_whether_an_address_is_free_is_answered_before_all() {
        let [nobody, asked] = neighbours(true);
        let nobody = Neighbour { address: Ipv6Addr::UNSPECIFIED.into(), ..nobody };
        let written = answer(asked, nobody).unwrap();
        assert_eq!(written.bytes()[..6], [0x33, 0x33, 0, 0, 0, 1]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..100), v6 in any::<bool>(), at in 0usize..86, byte: u8) {
            let _ = read(&bytes);
            let mut frame = question(neighbours(v6)[0], neighbours(v6)[1].address).unwrap().bytes().to_vec();
            let at = at % frame.len();
            frame[at] = byte;
            let _ = read(&frame);
        }
    }
}
