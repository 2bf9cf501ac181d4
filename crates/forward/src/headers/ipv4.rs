//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use sinew_wire::checksum::{self, Sum};

use super::{array_at, u16_at};
use crate::counters::Reason;

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// Bit of the fragment word: the packet must not be fragmented.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Bit of the fragment word: more fragments follow.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// Bits of the fragment word: offset of the fragment, in units of 8 bytes.
pub const OFFSET: u16 = 0x1FFF;

/// Options for loose and strict source routing. They are refused, as routers should (RFC 7126 4.3, 4.4).
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// The checked fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Length of the header with its options, in bytes.
    pub header_len: usize,
    /// Length of the packet including the header, in bytes.
    pub total_len: usize,
    /// Fragment word: flags and offset.
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

impl Ipv4 {
    /// Reads a packet's header. Bytes behind the packet are allowed.
    ///
    /// # Errors
    ///
    /// The [`Reason`] to refuse the packet.
    #[inline]
    pub fn read(packet: &[u8]) -> Result<Self, Reason> {
        if packet.len() < HEADER_LEN {
            return Err(Reason::Truncated);
        }
        if packet[0] >> 4 != 4 {
            return Err(Reason::Version);
        }
        let header_len = usize::from(packet[0] & 0xF) * 4;
        let total_len = usize::from(u16_at(packet, 2));
        if header_len < HEADER_LEN || total_len < header_len {
            return Err(Reason::Length);
        }
        if packet.len() < total_len {
            return Err(Reason::Truncated);
        }
        if !Sum::default().with(&packet[..header_len]).is_right() {
            return Err(Reason::Checksum);
        }
        if header_len > HEADER_LEN {
            check_options(&packet[HEADER_LEN..header_len])?;
        }
        Ok(Self {
            header_len,
            total_len,
            fragment: u16_at(packet, 6),
            ttl: packet[8],
            protocol: packet[9],
            source: Ipv4Addr::from(array_at::<4>(packet, 12)),
            destination: Ipv4Addr::from(array_at::<4>(packet, 16)),
        })
    }

    /// Whether it is a fragment, the first included.
    pub fn is_fragment(&self) -> bool {
        self.fragment & (OFFSET | MORE_FRAGMENTS) != 0
    }
}

fn check_options(mut options: &[u8]) -> Result<(), Reason> {
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (0, _) => return Ok(()),
            (1, rest) => rest,
            (kind, _) if SOURCE_ROUTES.contains(&kind) => return Err(Reason::SourceRoute),
            (_, [len, ..]) if (2..=options.len()).contains(&usize::from(*len)) => &options[usize::from(*len)..],
            _ => return Err(Reason::Options),
        };
    }
    Ok(())
}

/// Decrements the time to live of a packet that was [read](Ipv4::read), and adjusts the checksum.
#[inline(always)]
pub fn decrement_ttl(packet: &mut [u8]) {
    let old: [u8; 2] = array_at(packet, 8);
    let new = [old[0].wrapping_sub(1), old[1]];
    let sum = checksum::adjusted(array_at(packet, 10), old, new);
    packet[8..10].copy_from_slice(&new);
    packet[10..12].copy_from_slice(&sum);
}

/// Writes the checksum of a header.
pub fn seal(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = Sum::default().with(header).checksum();
    header[10..12].copy_from_slice(&sum);
}

/// A header without options, with its checksum and the bit against fragmentation set. `payload_len` is at most 65,515.
pub fn header(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, ttl: u8, payload_len: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((HEADER_LEN + payload_len) as u16).to_be_bytes());
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    (header[8], header[9]) = (ttl, protocol);
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    seal(&mut header);
    header
}

/// Cuts a packet into fragments of at most `mtu` bytes, and hands the header and payload of each to `emit`. Options
/// that are not copied into every fragment stay in the first (RFC 791 3.1). The packet must have been
/// [read](Ipv4::read), and `mtu` have room for a header and 8 bytes.
pub fn fragment(packet: &[u8], read: &Ipv4, mtu: usize, mut emit: impl FnMut(&[u8], &[u8])) {
    let mut header = [0; 60];
    header[..read.header_len].copy_from_slice(&packet[..read.header_len]);
    let mut header_len = read.header_len;
    let payload = &packet[read.header_len..read.total_len];
    let (offset, more) = (read.fragment & OFFSET, read.fragment & MORE_FRAGMENTS);
    let mut at = 0;
    while at < payload.len() {
        let room = mtu.saturating_sub(header_len) & !7;
        let len = room.max(8).min(payload.len() - at);
        let is_last = at + len == payload.len();
        let more = if is_last { more } else { MORE_FRAGMENTS };
        let flags = (offset + (at / 8) as u16) & OFFSET | more;
        header[2..4].copy_from_slice(&((header_len + len) as u16).to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        seal(&mut header[..header_len]);
        emit(&header[..header_len], &payload[at..at + len]);
        if at == 0 {
            header_len = keep_copied_options(&mut header, header_len);
        }
        at += len;
    }
}

/// Keeps only the options that belong in every fragment. Returns the header's new length.
fn keep_copied_options(header: &mut [u8; 60], header_len: usize) -> usize {
    const COPIED: u8 = 0x80;
    let old = *header;
    let (mut at, mut end) = (HEADER_LEN, HEADER_LEN);
    while at < header_len && old[at] != 0 {
        let len = if old[at] == 1 { 1 } else { usize::from(old[(at + 1).min(59)]).max(2).min(header_len - at) };
        if old[at] & COPIED != 0 {
            header[end..end + len].copy_from_slice(&old[at..at + len]);
            end += len;
        }
        at += len;
    }
    let padded = end.next_multiple_of(4);
    header[end..padded].fill(0);
    header[0] = 0x40 | (padded / 4) as u8;
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: usize) -> Vec<u8> {
        let header = header([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 64, payload);
        header.into_iter().chain((0..payload).map(|at| at as u8)).collect()
    }

    #[test]
    fn what_is_no_packet_is_refused_by_reason() {
        let good = packet(30);
        let with = |at: usize, byte: u8, sealed: bool| {
            let mut packet = good.clone();
            packet[at] = byte;
            if sealed {
                seal(&mut packet[..20]);
            }
            Ipv4::read(&packet)
        };
        assert!(Ipv4::read(&good).is_ok());
        for len in 0..50 {
            assert_eq!(Ipv4::read(&good[..len]), Err(Reason::Truncated));
        }
        assert_eq!(with(0, 0x65, true), Err(Reason::Version));
        assert_eq!(with(0, 0x44, true), Err(Reason::Length));
        assert_eq!(with(3, 19, true), Err(Reason::Length));
        assert_eq!(with(3, 51, true), Err(Reason::Truncated));
        assert_eq!(with(8, 63, false), Err(Reason::Checksum));
    }

    #[test]
    fn options_are_walked_and_source_routes_are_refused() {
        let with = |options: [u8; 4]| {
            let mut packet = packet(30);
            packet[0] = 0x46;
            packet[20..24].copy_from_slice(&options);
            seal(&mut packet[..24]);
            Ipv4::read(&packet).map(|read| read.header_len)
        };
        assert_eq!(with([1, 1, 1, 0]), Ok(24));
        assert_eq!(with([7, 4, 0, 0]), Ok(24));
        assert_eq!(with([7, 5, 0, 0]), Err(Reason::Options), "longer than what is left");
        assert_eq!(with([7, 1, 0, 0]), Err(Reason::Options), "shorter than itself");
        assert_eq!(with([1, 1, 1, 7]), Err(Reason::Options), "no room for its length");
        assert_eq!(with([131, 3, 4, 0]), Err(Reason::SourceRoute));
    }

    #[test]
    fn a_packet_passed_on_has_one_hop_less_and_a_good_checksum() {
        let mut packet = packet(9);
        for ttl in (0..64).rev() {
            decrement_ttl(&mut packet);
            assert_eq!(Ipv4::read(&packet).map(|read| read.ttl), Ok(ttl));
        }
    }

    #[test]
    fn pieces_put_together_are_the_packet() {
        for (payload, mtu) in [(100, 68), (1480, 576), (64, 84), (65, 84), (4000, 1500)] {
            let mut packet = packet(payload);
            packet[6..8].fill(0);
            packet[0] = 0x46;
            // One option for every fragment, and one for the first.
            packet[20..24].copy_from_slice(&[0x82, 2, 1, 0]);
            seal(&mut packet[..24]);
            let read = Ipv4::read(&packet).unwrap();
            let mut together = vec![0; payload - 4];
            let (mut count, mut whole_at) = (0, None);
            fragment(&packet, &read, mtu, |header, piece| {
                let bytes = [header, piece].concat();
                assert!(bytes.len() <= mtu);
                let piece_read = Ipv4::read(&bytes).unwrap();
                let at = usize::from(piece_read.fragment & OFFSET) * 8;
                together[at..at + piece.len()].copy_from_slice(piece);
                if piece_read.fragment & MORE_FRAGMENTS == 0 {
                    whole_at = Some(at + piece.len());
                }
                assert_eq!(piece_read.header_len, 24);
                count += 1;
            });
            assert_eq!((together.as_slice(), whole_at), (&packet[24..], Some(payload - 4)), "{count} pieces");
        }
    }
}
