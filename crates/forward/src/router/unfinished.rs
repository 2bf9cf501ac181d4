//! Packets whose checksum a kernel left to a device. The router passes them on as they are and their receivers drop
//! them, so it reports the interfaces that such packets come from.

use sinew_wire::checksum::Sum;

use crate::headers::{ipv4::Ipv4, ipv6::Ipv6, protocol};

/// Such packets seen before an interface is reported: one in 65,536 correct checksums looks unfinished by chance.
const FOUND_MIN: u32 = 8;
/// An interface is reported if at least one in this many packets examined is unfinished.
const SHARE_MIN_INVERSE: u32 = 256;

/// Counts of one interface.
#[derive(Clone, Copy, Debug, Default)]
struct ChecksumCounts {
    examined: u32,
    unfinished: u32,
    is_reported: bool,
}

/// Counts of all interfaces.
#[derive(Debug)]
pub(super) struct UnfinishedChecksums {
    interfaces: Vec<ChecksumCounts>,
    has_new: bool,
}

/// Whether the checksum of TCP or UDP covers the pseudo-header alone, for a device to complete (`CHECKSUM_PARTIAL` on
/// Linux). `None` for other protocols.
fn is_unfinished(addresses: &[u8], carries: u8, upper: &[u8]) -> Option<bool> {
    let at = match carries {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let checksum = upper.get(at..at + 2)?;
    let sum = Sum::default().with(addresses).with_number(u16::from(carries)).with_number(upper.len() as u16);
    Some(checksum == sum.folded())
}

pub(super) fn of_v4(read: &Ipv4, packet: &[u8]) -> Option<bool> {
    let upper = packet.get(read.header_len..read.total_len).filter(|_| !read.is_fragment())?;
    is_unfinished(packet.get(12..20)?, read.protocol, upper)
}

pub(super) fn of_v6(read: &Ipv6, packet: &[u8]) -> Option<bool> {
    is_unfinished(packet.get(8..40)?, read.next, packet.get(40..read.total_len)?)
}

impl UnfinishedChecksums {
    pub fn new(interfaces: usize) -> Self {
        Self { interfaces: vec![ChecksumCounts::default(); interfaces], has_new: false }
    }

    /// Counts the result for a packet of this interface.
    #[inline]
    pub fn count(&mut self, interface: u16, is_unfinished: Option<bool>) {
        let (Some(found), Some(seen)) = (is_unfinished, self.interfaces.get_mut(usize::from(interface))) else {
            return;
        };
        seen.examined += 1;
        if found {
            seen.unfinished += 1;
            self.has_new |= !seen.is_reported
                && seen.unfinished >= FOUND_MIN
                && seen.unfinished >= seen.examined / SHARE_MIN_INVERSE;
        }
        if seen.examined == 1 << 16 {
            (seen.examined, seen.unfinished) = (seen.examined / 2, seen.unfinished / 2);
        }
    }

    /// An interface that unfinished packets come from. Each is reported once.
    #[inline]
    pub fn take_new(&mut self) -> Option<u16> {
        if !self.has_new {
            return None;
        }
        let is_new = |seen: &ChecksumCounts| {
            !seen.is_reported && seen.unfinished >= FOUND_MIN && seen.unfinished >= seen.examined / SHARE_MIN_INVERSE
        };
        let found = self.interfaces.iter().position(is_new);
        self.has_new = found.is_some();
        let at = found?;
        self.interfaces[at].is_reported = true;
        Some(at as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::ipv4;

    fn packet(carries: u8, number: u8) -> Vec<u8> {
        let header = ipv4::header([10, 0, 0, 1].into(), [10, 0, 1, 1].into(), carries, 64, 40);
        [&header[..], &[number; 40]].concat()
    }

    fn packet_left_partial(carries: u8, at: usize) -> Vec<u8> {
        let mut packet = packet(carries, 7);
        let sum = Sum::default().with(&packet[12..20]).with_number(u16::from(carries)).with_number(40);
        packet[20 + at..22 + at].copy_from_slice(&sum.folded());
        packet
    }

    fn examine(packet: &[u8]) -> Option<bool> {
        of_v4(&Ipv4::read(packet).unwrap(), packet)
    }

    #[test]
    fn what_a_kernel_left_is_told_from_what_it_finished_and_from_what_has_no_checksum() {
        for (carries, at) in [(protocol::TCP, 16), (protocol::UDP, 6)] {
            assert_eq!(examine(&packet_left_partial(carries, at)), Some(true));
            let mut finished = packet_left_partial(carries, at);
            finished[20 + at..22 + at].fill(0);
            let upper = Sum::of_pseudo_header(&finished[12..16], &finished[16..20], carries, 40).with(&finished[20..]);
            finished[20 + at..22 + at].copy_from_slice(&upper.checksum());
            assert_eq!(examine(&finished), Some(false));
        }
        assert_eq!(examine(&packet(protocol::ICMP, 7)), None);
    }

    #[test]
    fn an_interface_is_told_of_once_and_a_few_among_many_are_chance() {
        let mut unfinished = UnfinishedChecksums::new(2);
        (0..7).for_each(|_| unfinished.count(1, Some(true)));
        unfinished.count(1, None);
        assert_eq!(unfinished.take_new(), None);
        unfinished.count(1, Some(true));
        assert_eq!((unfinished.take_new(), unfinished.take_new()), (Some(1), None));
        (0..100).for_each(|_| unfinished.count(1, Some(true)));
        assert_eq!(unfinished.take_new(), None, "it was told");
        for at in 0..1_000_000 {
            unfinished.count(0, Some(at % 20_000 == 0));
        }
        assert_eq!(unfinished.take_new(), None, "one in 20,000 is chance");
    }
}
