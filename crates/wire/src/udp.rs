//! UDP over IPv4 and IPv6 in Ethernet frames: writing the headers, and checking received ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_LEN: usize = 14;
/// Length of all headers over IPv4, without options, in bytes.
pub const V4_HEADERS_LEN: usize = ETHERNET_LEN + V4_LEN + UDP_LEN;
/// Length of all headers over IPv6, without extensions, in bytes.
pub const V6_HEADERS_LEN: usize = ETHERNET_LEN + V6_LEN + UDP_LEN;
/// The type of an Ethernet frame that holds IPv4.
pub const TYPE_V4: u16 = 0x0800;
/// The type of an Ethernet frame that holds IPv6.
pub const TYPE_V6: u16 = 0x86DD;

const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const NEXT_FRAGMENT: u8 = 44;
const HOPS: u8 = 64;

/// One end of a datagram's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of its Ethernet interface, or of the next one on the path.
    pub mac: [u8; 6],
    /// IP address.
    pub address: IpAddr,
    /// UDP port.
    pub port: u16,
}

/// A datagram in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The sender, as the headers claim.
    pub from: Endpoint,
    /// The receiver.
    pub to: Endpoint,
    /// The payload.
    pub payload: &'a [u8],
}

/// Reason why a frame is not a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// It has an impossible version, length or address.
    Malformed,
    /// It is not UDP over IPv4 or IPv6.
    NotUdp,
    /// It is a fragment of a packet.
    Fragment,
    /// One of its checksums is wrong.
    BadChecksum,
    /// Its checksum is what a kernel leaves for a device to finish.
    Unfinished,
}

/// Length of all headers of a datagram to `address`, in bytes.
pub const fn headers_len(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => V4_HEADERS_LEN,
        IpAddr::V6(_) => V6_HEADERS_LEN,
    }
}

/// The pseudo-header's sum for a datagram of `len` bytes.
fn pseudo_header(from: &[u8], to: &[u8], len: u16) -> Sum {
    Sum::of_pseudo_header(from, to, PROTOCOL_UDP, len)
}

/// Writes a frame's headers before its payload, which begins at [`headers_len`] and ends where the frame ends.
///
/// # Panics
///
/// When the addresses are not of one IP version, or the frame is shorter than its headers, or longer than a packet can
/// be.
#[inline]
pub fn write_headers(frame: &mut [u8], from: &Endpoint, to: &Endpoint) {
    let (ethernet, rest) = frame.split_at_mut(ETHERNET_LEN);
    ethernet[..6].copy_from_slice(&to.mac);
    ethernet[6..12].copy_from_slice(&from.mac);
    match (from.address, to.address) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            ethernet[12..].copy_from_slice(&TYPE_V4.to_be_bytes());
            let total = u16::try_from(rest.len()).expect("a packet has at most 65,535 bytes");
            let (ip, udp) = rest.split_at_mut(V4_LEN);
            // Do not fragment: a part would be of no use.
            ip.copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, PROTOCOL_UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&target.octets());
            let checksum = Sum::default().with(ip).checksum();
            ip[10..12].copy_from_slice(&checksum);
            write_udp(udp, from.port, to.port, |len| pseudo_header(&source.octets(), &target.octets(), len));
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            ethernet[12..].copy_from_slice(&TYPE_V6.to_be_bytes());
            let (ip, udp) = rest.split_at_mut(V6_LEN);
            let len = u16::try_from(udp.len()).expect("a packet has at most 65,535 bytes");
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, PROTOCOL_UDP, HOPS]);
            ip[4..6].copy_from_slice(&len.to_be_bytes());
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&target.octets());
            write_udp(udp, from.port, to.port, |len| pseudo_header(&source.octets(), &target.octets(), len));
        }
        _ => panic!("both addresses of a packet must be of one IP version"),
    }
}

#[inline]
fn write_udp(udp: &mut [u8], from: u16, to: u16, pseudo: impl FnOnce(u16) -> Sum) {
    let len = udp.len() as u16;
    udp[..2].copy_from_slice(&from.to_be_bytes());
    udp[2..4].copy_from_slice(&to.to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
    udp[6..8].fill(0);
    let checksum = pseudo(len).with(udp).checksum();
    // Zero would mean that there is no checksum.
    let checksum = if checksum == [0; 2] { [0xFF; 2] } else { checksum };
    udp[6..8].copy_from_slice(&checksum);
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads a frame and checks everything that can be checked. Bytes behind the packet, as in padded frames, are left out.
///
/// # Errors
///
/// [`DatagramError`].
#[inline]
pub fn read(frame: &[u8]) -> Result<Datagram<'_>, DatagramError> {
    let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_LEN>().ok_or(DatagramError::Malformed)?;
    let [t0, t1, t2, t3, t4, t5, f0, f1, f2, f3, f4, f5, k0, k1] = *ethernet;
    let (to_mac, from_mac) = ([t0, t1, t2, t3, t4, t5], [f0, f1, f2, f3, f4, f5]);
    let (from, to, udp) = match u16::from_be_bytes([k0, k1]) {
        TYPE_V4 => read_v4(rest)?,
        TYPE_V6 => read_v6(rest)?,
        _ => return Err(DatagramError::NotUdp),
    };
    let (header, _) = udp.split_first_chunk::<UDP_LEN>().ok_or(DatagramError::Malformed)?;
    let [p0, p1, p2, p3, l0, l1, c0, c1] = *header;
    let len = u16::from_be_bytes([l0, l1]);
    let udp = udp.get(..len.into()).filter(|udp| udp.len() >= UDP_LEN).ok_or(DatagramError::Malformed)?;
    let pseudo = match (&from, &to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => pseudo_header(&from.octets(), &to.octets(), len),
        (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_header(&from.octets(), &to.octets(), len),
        _ => return Err(DatagramError::Malformed),
    };
    let is_left_out = [c0, c1] == [0; 2] && from.is_ipv4();
    if !is_left_out && !pseudo.with(udp).is_right() {
        let is_unfinished = [c0, c1] == pseudo.folded();
        return Err(if is_unfinished { DatagramError::Unfinished } else { DatagramError::BadChecksum });
    }
    Ok(Datagram {
        from: Endpoint { mac: from_mac, address: from, port: u16::from_be_bytes([p0, p1]) },
        to: Endpoint { mac: to_mac, address: to, port: u16::from_be_bytes([p2, p3]) },
        payload: &udp[UDP_LEN..],
    })
}

type Packet<'a> = (IpAddr, IpAddr, &'a [u8]);

fn read_v4(packet: &[u8]) -> Result<Packet<'_>, DatagramError> {
    let first = *packet.first().ok_or(DatagramError::Malformed)?;
    let header_len = usize::from(first & 15) * 4;
    let total = usize::from(u16_at(packet, 2).ok_or(DatagramError::Malformed)?);
    let packet = packet.get(..total).ok_or(DatagramError::Malformed)?;
    let header = packet.get(..header_len).filter(|header| header.len() >= V4_LEN).ok_or(DatagramError::Malformed)?;
    if first >> 4 != 4 {
        return Err(DatagramError::Malformed);
    }
    if !Sum::default().with(header).is_right() {
        return Err(DatagramError::BadChecksum);
    }
    if u16_at(header, 6).is_none_or(|fragment| fragment & 0x3FFF != 0) {
        return Err(DatagramError::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(DatagramError::NotUdp);
    }
    let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (from, to) = (address(12), address(16));
    if from.is_unspecified() || from.is_multicast() || from.is_broadcast() {
        return Err(DatagramError::Malformed);
    }
    Ok((from.into(), to.into(), &packet[header_len..]))
}

fn read_v6(packet: &[u8]) -> Result<Packet<'_>, DatagramError> {
    let (header, rest) = packet.split_first_chunk::<V6_LEN>().ok_or(DatagramError::Malformed)?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let rest = rest.get(..len).ok_or(DatagramError::Malformed)?;
    if header[0] >> 4 != 6 {
        return Err(DatagramError::Malformed);
    }
    match header[6] {
        PROTOCOL_UDP => {}
        NEXT_FRAGMENT => return Err(DatagramError::Fragment),
        _ => return Err(DatagramError::NotUdp),
    }
    let address = |at: usize| header[at..].first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
    let (Some(from), Some(to)) = (address(8), address(24)) else { return Err(DatagramError::Malformed) };
    if from.is_unspecified() || from.is_multicast() {
        return Err(DatagramError::Malformed);
    }
    Ok((from.into(), to.into(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(v6: bool) -> [Endpoint; 2] {
        let end = |mac: u8, v4: [u8; 4], last: u16, port| Endpoint {
            mac: [mac; 6],
            address: if v6 { Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, last).into() } else { Ipv4Addr::from(v4).into() },
            port,
        };
        [end(2, [10, 0, 0, 1], 1, 7000), end(4, [10, 0, 0, 2], 2, 7001)]
    }

    fn frame(v6: bool, payload: &[u8]) -> Vec<u8> {
        let [from, to] = ends(v6);
        let mut frame = vec![0; headers_len(to.address)];
        frame.extend(payload);
        write_headers(&mut frame, &from, &to);
        frame
    }

    /// Corrects the checksum of an IPv4 header.
    fn fix_checksum(frame: &mut [u8]) {
        frame[24..26].fill(0);
        let checksum = Sum::default().with(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum);
    }

    #[test]
    fn a_frame_is_laid_out_as_the_standards_say() {
        let expected = [
            &[4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 8, 0][..],
            // The checksums are checked below.
            &[0x45, 0, 0, 31, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
            &[0x1B, 0x58, 0x1B, 0x59, 0, 11, 0, 0, b'a', b'b', b'c'],
        ];
        let frame = frame(false, b"abc");
        assert_eq!(frame[..24], expected.concat()[..24]);
        assert_eq!(frame[26..40], expected.concat()[26..40]);
        assert_eq!(frame[42..], expected.concat()[42..]);
        // The checksums, computed another way: word by word.
        let words = |bytes: &[u8]| {
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum::<u32>()
        };
        let fold = |sum: u32| (sum >> 16) + (sum & 0xFFFF);
        assert_eq!(fold(fold(words(&frame[14..34]))), 0xFFFF);
        assert_eq!(fold(fold(words(&frame[26..34]) + words(&frame[34..]) + 17 + 11)), 0xFFFF);
    }

    #[test]
    fn every_way_to_be_wrong_is_told_from_the_others() {
        for v6 in [false, true] {
            let good = frame(v6, b"hello");
            for len in 0..good.len() {
                assert_eq!(read(&good[..len]), Err(DatagramError::Malformed), "{len} bytes");
            }
            let with = |at: usize, byte: u8| {
                let mut frame = good.clone();
                frame[at] = byte;
                frame
            };
            assert_eq!(read(&with(good.len() - 1, b'O')), Err(DatagramError::BadChecksum));
            assert_eq!(read(&with(13, 0x06)), Err(DatagramError::NotUdp));
            let udp = headers_len(ends(v6)[0].address) - UDP_LEN;
            assert_eq!(read(&with(udp + 5, 7)), Err(DatagramError::Malformed), "a length below the header's");
            assert_eq!(read(&with(udp + 5, 14)), Err(DatagramError::Malformed), "a length beyond the packet");
            assert!(read(&[&good[..], &[0; 9]].concat()).is_ok(), "filled up");
        }
        let mut fragment = frame(false, b"hello");
        fragment[20] = 0x20;
        assert_eq!(read(&fragment), Err(DatagramError::BadChecksum), "of the header");
        fix_checksum(&mut fragment);
        assert_eq!(read(&fragment), Err(DatagramError::Fragment));
        for (at, byte, why) in
            [(14, 0x44, DatagramError::Malformed), (14, 0x65, DatagramError::Malformed), (23, 6, DatagramError::NotUdp)]
        {
            let mut frame = frame(false, b"hello");
            frame[at] = byte;
            fix_checksum(&mut frame);
            assert_eq!(read(&frame), Err(why));
        }
        let mut of_many = frame(false, b"hello");
        of_many[26] = 224;
        fix_checksum(&mut of_many);
        assert_eq!(read(&of_many), Err(DatagramError::Malformed));
        let mut fragment = frame(true, b"hello");
        fragment[20] = NEXT_FRAGMENT;
        assert_eq!(read(&fragment), Err(DatagramError::Fragment));
    }

    #[test]
    fn a_checksum_that_a_kernel_left_to_a_device_is_known() {
        for v6 in [false, true] {
            let mut frame = frame(v6, b"hello");
            let udp = headers_len(ends(v6)[0].address) - UDP_LEN;
            let addresses = if v6 { 22..54 } else { 26..34 };
            let pseudo = Sum::default().with(&frame[addresses]).with_number(13).with_number(17);
            frame[udp + 6..udp + 8].copy_from_slice(&pseudo.folded());
            assert_eq!(read(&frame), Err(DatagramError::Unfinished));
        }
    }

    #[test]
    fn only_ipv4_may_leave_the_checksum_out() {
        for (v6, expected) in [(false, true), (true, false)] {
            let mut frame = frame(v6, b"hello");
            let udp = headers_len(ends(v6)[0].address) - UDP_LEN;
            frame[udp + 6..udp + 8].fill(0);
            assert_eq!(read(&frame).is_ok(), expected);
        }
    }

    proptest! {
        #[test]
        fn a_datagram_arrives_as_it_went(payload in prop::collection::vec(any::<u8>(), 0..1500), v6 in any::<bool>()) {
            let [from, to] = ends(v6);
            let frame = frame(v6, &payload);
            prop_assert_eq!(read(&frame), Ok(Datagram { from, to, payload: &payload }));
        }

        #[test]
        fn any_bytes_are_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6 in any::<bool>(), changes in 0usize..4) {
            let _ = read(&bytes);
            // A good frame with some of its bytes changed.
            let mut good = frame(v6, b"hello");
            bytes.resize(12, 7);
            for change in bytes.chunks(3).take(changes) {
                let at = usize::from(change[0]) % good.len();
                good[at] = change[1];
            }
            if let Ok(datagram) = read(&good) {
                prop_assert!(datagram.payload.len() <= 5);
            }
        }
    }
}
