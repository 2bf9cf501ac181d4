//! A port's part of a queue pair's address: how others find it.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{QpAddress, VerbsError};

use crate::device::DeviceInner;
use crate::gid;
use crate::port::Link;

/// What the bytes begin with: of this fabric, in this version.
const MAGIC: [u8; 3] = *b"IB1";

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortAddress {
    pub infiniband: bool,
    pub lid: u16,
    /// READs and atomics that a queue pair there takes at once.
    pub reads_in: u8,
    pub gid: [u8; 16],
}

impl PortAddress {
    const LEN: usize = MAGIC.len() + 1 + 2 + 1 + 16;

    /// Where a device of ours is.
    pub fn of(device: &DeviceInner) -> Self {
        Self {
            infiniband: device.port.link == Link::InfiniBand,
            lid: device.port.lid,
            reads_in: device.reads_in,
            gid: device.gid.as_ref().map_or([0; 16], |gid| gid.bytes),
        }
    }

    pub fn to_bytes(self) -> ArrayVec<u8, { QpAddress::PORT_MAX }> {
        let mut bytes = ArrayVec::new();
        bytes.extend(MAGIC);
        bytes.push(self.infiniband.into());
        bytes.extend(self.lid.to_le_bytes());
        bytes.push(self.reads_in);
        bytes.extend(self.gid);
        bytes
    }

    /// The address in what a peer told.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk::<3>()?;
        let (&[link, low, high, reads_in], gid) = rest.split_first_chunk::<4>()?;
        let good = *magic == MAGIC && link <= 1;
        let gid = gid.try_into().ok()?;
        good.then_some(Self { infiniband: link == 1, lid: u16::from_le_bytes([low, high]), reads_in, gid })
    }

    /// Whether packets can go from a port of ours to this one.
    pub fn check_from(&self, ours: &Self) -> Result<(), VerbsError> {
        let wrong = |why: String| Err(VerbsError::Address(why));
        let link = |infiniband| if infiniband { "InfiniBand" } else { "Ethernet" };
        if self.infiniband != ours.infiniband {
            return wrong(format!("it is on {}, and this port is on {}", link(self.infiniband), link(ours.infiniband)));
        }
        if self.infiniband && (self.lid == 0 || self.lid >= 0xC000) {
            return wrong(format!("{} is no LID of a port", self.lid));
        }
        if !self.infiniband && !gid::can_reach(ours.gid, self.gid) {
            let (theirs, ours) = (gid::text_of(self.gid), gid::text_of(ours.gid));
            return wrong(format!(
                "{theirs} is not reached from {ours}; open both devices with GIDs of one kind (`?gid=3`)"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn at(octets: [u8; 4]) -> PortAddress {
        let gid = Ipv4Addr::from(octets).to_ipv6_mapped().octets();
        PortAddress { infiniband: false, lid: 0, reads_in: 16, gid }
    }

    #[test]
    fn an_address_survives_the_way_and_bad_ones_do_not() {
        let address = PortAddress { infiniband: true, lid: 0x1234, reads_in: 7, gid: [9; 16] };
        let bytes = address.to_bytes();
        assert_eq!(PortAddress::from_bytes(&bytes), Some(address));
        for len in 0..bytes.len() {
            assert_eq!(PortAddress::from_bytes(&bytes[..len]), None);
        }
        for (at, byte) in [(0, b'X'), (2, b'2'), (3, 2)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert_eq!(PortAddress::from_bytes(&bytes), None);
        }
    }

    #[test]
    fn ports_that_cannot_hear_each_other_are_told_apart() {
        let ours = at([10, 0, 0, 1]);
        assert!(at([10, 0, 0, 2]).check_from(&ours).is_ok());
        assert!(PortAddress { gid: [0x20; 16], ..ours }.check_from(&ours).is_err());
        let infiniband = PortAddress { infiniband: true, lid: 1, ..ours };
        assert!(infiniband.check_from(&ours).is_err() && ours.check_from(&infiniband).is_err());
        assert!(infiniband.check_from(&PortAddress { lid: 2, ..infiniband }).is_ok());
        for lid in [0, 0xC000] {
            assert!(PortAddress { lid, ..infiniband }.check_from(&infiniband).is_err(), "{lid}");
        }
    }
}
