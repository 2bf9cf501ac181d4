//! Who has an address: ARP (RFC 826) for IPv4, and neighbour discovery (RFC 4861) for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::udp::{ETHERNET_LEN, TYPE_V6};

/// The type of an Ethernet frame that holds ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// Bytes of the longest frame that is written here.
pub const FRAME_LEN_MAX: usize = ETHERNET_LEN + V6_LEN + DISCOVERY_LEN;

const ARP_LEN: usize = 28;
const V6_LEN: usize = 40;
/// Type, code, checksum, flags, target, and an option with an Ethernet address.
const DISCOVERY_LEN: usize = 32;
const ICMP: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Only packets from the same link have it.
const HOPS: u8 = 255;
const BROADCAST: [u8; 6] = [0xFF; 6];

/// An address and the Ethernet address of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
}

/// What a frame asks or says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Who has the address?
    Question {
        /// The address.
        about: IpAddr,
        /// Who asks; without an address where it only looks whether it may take one.
        from: Neighbour,
    },
    /// Somebody has it.
    Answer(Neighbour),
}

/// A frame as it is written.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    bytes: [u8; FRAME_LEN_MAX],
    len: usize,
}

impl Written {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The question who has `about`, by `from`. `None` when the addresses are not of one version.
pub fn question(from: Neighbour, about: IpAddr) -> Option<Written> {
    match (from.address, about) {
        (IpAddr::V4(source), IpAddr::V4(about)) => Some(arp(1, (source, from.mac), (about, [0; 6]), BROADCAST)),
        (IpAddr::V6(source), IpAddr::V6(about)) => {
            let [.., a, b, c] = about.octets();
            let group = Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c]);
            let message = Discovery { kind: SOLICITATION, flags: 0, about, option: (SOURCE_OPTION, from.mac) };
            Some(message.write((source, from.mac), (group, [0x33, 0x33, 0xFF, a, b, c])))
        }
        _ => None,
    }
}

/// The answer to `to` that `from` has its address. `None` when the addresses are not of one version.
pub fn answer(from: Neighbour, to: Neighbour) -> Option<Written> {
    match (from.address, to.address) {
        (IpAddr::V4(source), IpAddr::V4(asked)) => Some(arp(2, (source, from.mac), (asked, to.mac), to.mac)),
        (IpAddr::V6(source), IpAddr::V6(asked)) => {
            const SOLICITED: u8 = 0x40;
            const OVERRIDE: u8 = 0x20;
            // Who only looks whether it may take the address has none to be answered at: all hear it.
            let all = (Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1), [0x33, 0x33, 0, 0, 0, 1]);
            let (to, flags) =
                if asked.is_unspecified() { (all, OVERRIDE) } else { ((asked, to.mac), SOLICITED | OVERRIDE) };
            let message = Discovery { kind: ADVERTISEMENT, flags, about: source, option: (TARGET_OPTION, from.mac) };
            Some(message.write((source, from.mac), to))
        }
        _ => None,
    }
}

fn ethernet(frame: &mut [u8], to: [u8; 6], from: [u8; 6], kind: u16) {
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&kind.to_be_bytes());
}

fn arp(operation: u8, from: (Ipv4Addr, [u8; 6]), about: (Ipv4Addr, [u8; 6]), to: [u8; 6]) -> Written {
    let mut bytes = [0; FRAME_LEN_MAX];
    ethernet(&mut bytes, to, from.1, TYPE_ARP);
    let arp = &mut bytes[ETHERNET_LEN..][..ARP_LEN];
    arp[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, operation]);
    arp[8..14].copy_from_slice(&from.1);
    arp[14..18].copy_from_slice(&from.0.octets());
    arp[18..24].copy_from_slice(&about.1);
    arp[24..28].copy_from_slice(&about.0.octets());
    Written { bytes, len: ETHERNET_LEN + ARP_LEN }
}

struct Discovery {
    kind: u8,
    flags: u8,
    about: Ipv6Addr,
    option: (u8, [u8; 6]),
}

impl Discovery {
    fn write(&self, from: (Ipv6Addr, [u8; 6]), to: (Ipv6Addr, [u8; 6])) -> Written {
        let mut bytes = [0; FRAME_LEN_MAX];
        ethernet(&mut bytes, to.1, from.1, TYPE_V6);
        let (ip, message) = bytes[ETHERNET_LEN..].split_at_mut(V6_LEN);
        ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, DISCOVERY_LEN as u8, ICMP, HOPS]);
        ip[8..24].copy_from_slice(&from.0.octets());
        ip[24..40].copy_from_slice(&to.0.octets());
        (message[0], message[4]) = (self.kind, self.flags);
        message[8..24].copy_from_slice(&self.about.octets());
        (message[24], message[25]) = (self.option.0, 1);
        message[26..32].copy_from_slice(&self.option.1);
        let checksum = icmp_sum(ip, message).checksum();
        message[2..4].copy_from_slice(&checksum);
        Written { bytes, len: FRAME_LEN_MAX }
    }
}

fn icmp_sum(ip: &[u8], message: &[u8]) -> Sum {
    Sum::default().with(&ip[8..40]).with_number(message.len() as u16).with_number(ICMP.into()).with(message)
}

/// What a frame asks or says; `None` when it does neither, or not as it should.
pub fn read(frame: &[u8]) -> Option<Said> {
    let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    match kind {
        TYPE_ARP => read_arp(frame.get(ETHERNET_LEN..)?),
        TYPE_V6 => read_discovery(frame.get(ETHERNET_LEN..)?),
        _ => None,
    }
}

fn unicast(mac: &[u8]) -> Option<[u8; 6]> {
    let mac: [u8; 6] = mac.try_into().ok()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

fn read_arp(arp: &[u8]) -> Option<Said> {
    let arp: &[u8; ARP_LEN] = arp.first_chunk()?;
    if arp[..6] != [0, 1, 8, 0, 6, 4] || arp[6] != 0 {
        return None;
    }
    let address = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
    let from = Neighbour { address: address(14).into(), mac: unicast(&arp[8..14])? };
    match arp[7] {
        1 => Some(Said::Question { about: address(24).into(), from }),
        2 => Some(Said::Answer(from)),
        _ => None,
    }
}

fn read_discovery(packet: &[u8]) -> Option<Said> {
    let (ip, rest) = packet.split_first_chunk::<V6_LEN>()?;
    let len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let message = rest.get(..len).filter(|message| message.len() >= 24)?;
    if ip[0] >> 4 != 6 || ip[6] != ICMP || ip[7] != HOPS || message[1] != 0 || !icmp_sum(ip, message).is_right() {
        return None;
    }
    let about = Ipv6Addr::from(*message[8..].first_chunk::<16>()?);
    let source = Ipv6Addr::from(*ip[8..].first_chunk::<16>()?);
    match message[0] {
        SOLICITATION => {
            // Who has no address yet says no Ethernet address either.
            let mac = option(message, SOURCE_OPTION).or_else(|| source.is_unspecified().then_some([0; 6]))?;
            Some(Said::Question { about: about.into(), from: Neighbour { address: source.into(), mac } })
        }
        ADVERTISEMENT => Some(Said::Answer(Neighbour { address: about.into(), mac: option(message, TARGET_OPTION)? })),
        _ => None,
    }
}

/// The Ethernet address in an option of a message.
fn option(message: &[u8], kind: u8) -> Option<[u8; 6]> {
    let mut rest = message.get(24..)?;
    while let [is, eights, ..] = *rest {
        let len = usize::from(eights) * 8;
        let whole = rest.get(..len).filter(|whole| !whole.is_empty())?;
        if is == kind {
            return unicast(whole.get(2..8)?);
        }
        rest = &rest[len..];
    }
    None
}

#[cfg(test)]
mod tests {
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
            assert_eq!(read(written.bytes()), Some(Said::Question { about: asked.address, from: asker }));
            let written = answer(asked, asker).unwrap();
            assert_eq!(read(written.bytes()), Some(Said::Answer(asked)));
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
