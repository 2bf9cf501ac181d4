//! Global identifiers (GIDs): a port's names on its network, the choice among them, and the sender of a datagram.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes before every UD message, which hold the sender's addresses.
pub const GRH_LEN: usize = 40;

/// Format of a GID's packets on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own; on Ethernet, RoCE v1, which routers do not carry.
    IbOrRoceV1,
    /// RoCE v2: UDP over IPv4 or IPv6.
    RoceV2,
    /// Unknown: the system does not say.
    Unknown,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the table.
    pub index: u8,
    /// Its 16 bytes: an IPv6 address, or an IPv4 address mapped into one.
    pub bytes: [u8; 16],
    /// Format of its packets.
    pub kind: GidKind,
    /// The network interface that it belongs to, on Ethernet.
    pub interface: Option<String>,
}

/// The text of a GID, which is an IP address.
pub fn text_of(bytes: [u8; 16]) -> String {
    match mapped(bytes) {
        Some(v4) => v4.to_string(),
        None => Ipv6Addr::from(bytes).to_string(),
    }
}

/// The subnet of an InfiniBand GID.
pub fn subnet_of(bytes: [u8; 16]) -> u64 {
    (u128::from_be_bytes(bytes) >> 64) as u64
}

fn mapped(bytes: [u8; 16]) -> Option<Ipv4Addr> {
    Ipv6Addr::from(bytes).to_ipv4_mapped()
}

fn is_link_local(bytes: [u8; 16]) -> bool {
    Ipv6Addr::from(bytes).is_unicast_link_local()
}

/// Whether packets can go between two GIDs: both addresses are of one family, and both or neither link-local.
pub fn can_reach(ours: [u8; 16], theirs: [u8; 16]) -> bool {
    mapped(ours).is_some() == mapped(theirs).is_some() && is_link_local(ours) == is_link_local(theirs)
}

impl Gid {
    /// Rank among the GIDs of a port on Ethernet; the least is best. RoCE v2 is routed and most widely used; IPv4
    /// addresses are the ones that administrators set up.
    fn rank(&self) -> u8 {
        let address = if mapped(self.bytes).is_some() {
            0
        } else if is_link_local(self.bytes) {
            2
        } else {
            1
        };
        match self.kind {
            GidKind::RoceV2 => address,
            GidKind::Unknown => 3 + address,
            GidKind::IbOrRoceV1 => 6 + address,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::RoceV2 => "RoCE v2",
            GidKind::IbOrRoceV1 => "IB or RoCE v1",
            GidKind::Unknown => "unknown kind",
        };
        write!(f, "{} (GID {}, {kind}", text_of(self.bytes), self.index)?;
        if let Some(interface) = &self.interface {
            write!(f, ", {interface}")?;
        }
        f.write_str(")")
    }
}

/// Chooses the GID that a port on Ethernet uses: RoCE v2 rather than v1; an IPv4 address, or else a global IPv6
/// address, or else a link-local one.
pub fn choose(gids: &[Gid]) -> Option<&Gid> {
    gids.iter().min_by_key(|gid| (gid.rank(), gid.index))
}

/// The sender of a datagram, from the bytes before it: an IPv6 header, which InfiniBand's own header is too, or 20
/// meaningless bytes and an IPv4 header. `None` if they are neither. (The rule is that of `ibv_init_ah_from_wc`.)
pub fn sender_of(grh: &[u8; GRH_LEN]) -> Option<[u8; 16]> {
    let v4 = &grh[20..];
    let looks_v6 = grh[0] >> 4 == 6;
    let is_v4 = if looks_v6 { v4[0] == 0x45 && has_good_checksum(v4) } else { v4[0] >> 4 == 4 };
    if is_v4 {
        let octets: [u8; 4] = *v4[12..].first_chunk()?;
        return Some(Ipv4Addr::from(octets).to_ipv6_mapped().octets());
    }
    if looks_v6 { grh[8..].first_chunk().copied() } else { None }
}

fn has_good_checksum(header: &[u8]) -> bool {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    (folded & 0xFFFF) + (folded >> 16) == 0xFFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: GidKind) -> Gid {
        let bytes = match address.parse::<Ipv4Addr>() {
            Ok(v4) => v4.to_ipv6_mapped().octets(),
            Err(_) => address.parse::<Ipv6Addr>().unwrap().octets(),
        };
        Gid { index, bytes, kind, interface: Some("eth0".into()) }
    }

    #[test]
    fn routable_roce_v2_is_preferred_whatever_its_place() {
        use GidKind::{IbOrRoceV1, RoceV2, Unknown};
        // The order in which mlx5 lists them, then each with the better ones taken away.
        let mut table = vec![
            gid(0, "fe80::1", IbOrRoceV1),
            gid(1, "fe80::1", RoceV2),
            gid(2, "10.0.0.1", IbOrRoceV1),
            gid(3, "10.0.0.1", RoceV2),
            gid(4, "2001:db8::1", IbOrRoceV1),
            gid(5, "2001:db8::1", RoceV2),
            gid(6, "10.0.0.1", Unknown),
            gid(7, "10.0.0.9", RoceV2),
        ];
        for best in [3, 7, 5, 1, 6, 2, 4, 0] {
            assert_eq!(choose(&table).unwrap().index, best);
            table.retain(|gid| gid.index != best);
        }
        assert_eq!(choose(&table), None);
    }

    #[test]
    fn addresses_of_other_families_and_reaches_are_out_of_reach() {
        let [v4, v6, local] = ["10.0.0.1", "2001:db8::1", "fe80::1"].map(|text| gid(0, text, GidKind::RoceV2).bytes);
        for (at, ours) in [v4, v6, local].into_iter().enumerate() {
            for (to, theirs) in [v4, v6, local].into_iter().enumerate() {
                assert_eq!(can_reach(ours, theirs), at == to, "{} {}", text_of(ours), text_of(theirs));
            }
        }
    }

    fn v4_header() -> [u8; 20] {
        // A header with a correct checksum.
        let mut header = [0; 20];
        header[0] = 0x45;
        header[12..16].copy_from_slice(&[10, 9, 0, 2]);
        let sum = 0x4500 + 0x0A09 + 0x0002;
        header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        header
    }

    #[test]
    fn the_sender_is_in_the_header_that_is_there() {
        let sender = Some(gid(0, "10.9.0.2", GidKind::RoceV2).bytes);
        let mut grh = [0; GRH_LEN];
        grh[20..].copy_from_slice(&v4_header());
        assert_eq!(sender_of(&grh), sender);
        // Stale bytes may look like the other kind of header.
        grh[0] = 0x60;
        assert_eq!(sender_of(&grh), sender);
        let v6 = gid(0, "2001:db8::7", GidKind::RoceV2).bytes;
        grh[8..24].copy_from_slice(&v6);
        assert_eq!(sender_of(&grh), Some(v6), "its last bytes are no header any more");
        assert_eq!(sender_of(&[0; GRH_LEN]), None);
        assert_eq!(sender_of(&[0xFF; GRH_LEN]), None);
    }

    #[test]
    fn a_text_says_which_gid_was_taken() {
        assert_eq!(gid(3, "10.0.0.1", GidKind::RoceV2).to_string(), "10.0.0.1 (GID 3, RoCE v2, eth0)");
    }
}
