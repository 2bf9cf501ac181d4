//! A port's part of a queue pair's address, by which others find it.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{QpAddress, VerbsError};

use crate::device::DeviceInner;
use crate::gid;
use crate::port::Link;
use crate::routes::Target;

/// First bytes of an address, for this fabric and version.
const MAGIC: [u8; 3] = *b"IB1";

/// The address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortAddress {
    pub infiniband: bool,
    pub lid: u16,
    /// READs and atomics that a queue pair there accepts at once.
    pub reads_in: u8,
    pub gid: [u8; 16],
}

impl PortAddress {
    const LEN: usize = MAGIC.len() + 1 + 2 + 1 + 16;

    /// The address of our own device's port.
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

    /// Reads an address that a peer sent.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (magic, rest) = bytes.split_first_chunk::<3>()?;
        let (&[link, low, high, reads_in], gid) = rest.split_first_chunk::<4>()?;
        let good = *magic == MAGIC && link <= 1;
        let gid = gid.try_into().ok()?;
        good.then_some(Self { infiniband: link == 1, lid: u16::from_le_bytes([low, high]), reads_in, gid })
    }

    /// Checks that packets can go from our own port to this one.
    pub fn check_from(&self, ours: &Self) -> Result<(), VerbsError> {
        let mismatch = |why: String| Err(VerbsError::Address(why));
        let link = |infiniband| if infiniband { "InfiniBand" } else { "Ethernet" };
        if self.infiniband != ours.infiniband {
            return mismatch(format!(
                "it is on {}, but this port is on {}",
                link(self.infiniband),
                link(ours.infiniband)
            ));
        }
        if self.infiniband && (self.lid == 0 || self.lid >= 0xC000) {
            return mismatch(format!("{} is not a port's LID", self.lid));
        }
        if self.infiniband && self.is_beyond_router(ours) {
            let (theirs, ours) = (gid::text_of(self.gid), gid::text_of(ours.gid));
            return mismatch(format!(
                "{theirs} is on another InfiniBand subnet than {ours}, and no router's LID is known: use hosts of one subnet"
            ));
        }
        if !self.infiniband && !gid::can_reach(ours.gid, self.gid) {
            let (theirs, ours) = (gid::text_of(self.gid), gid::text_of(ours.gid));
            return mismatch(format!(
                "{theirs} cannot be reached from {ours}; open both devices with GIDs of one kind (`?gid=3`)"
            ));
        }
        Ok(())
    }

    /// Whether it is on another subnet than ours, where its local identifier means nothing. (A port without a GID
    /// counts as on ours.)
    fn is_beyond_router(&self, ours: &Self) -> bool {
        let describes = |port: &Self| port.gid != [0; 16];
        describes(self) && describes(ours) && gid::subnet_of(self.gid) != gid::subnet_of(ours.gid)
    }

    /// The target of packets to a port that [`Self::check_from`] accepts. Some InfiniBand fabrics require global
    /// identifiers in every packet (`global`).
    pub fn target(&self, to: &Self, global: bool) -> Target {
        match to.infiniband {
            true if global => Target::Gid { gid: to.gid, lid: to.lid },
            true => Target::Lid(to.lid),
            false => Target::Gid { gid: to.gid, lid: 0 },
        }
    }

    /// The target of an answer to a datagram, from the sender's local identifier, which may be a router's, and its
    /// global one if the datagram carried one.
    pub fn target_of_sender(&self, lid: u16, gid: Option<[u8; 16]>, global: bool) -> Option<Target> {
        match gid {
            Some(gid) if !self.infiniband => gid::can_reach(self.gid, gid).then_some(Target::Gid { gid, lid: 0 }),
            Some(gid) if global || gid::subnet_of(gid) != gid::subnet_of(self.gid) => Some(Target::Gid { gid, lid }),
            _ => (self.infiniband && !global).then_some(Target::Lid(lid)),
        }
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
    fn on_subnet(prefix: u8, lid: u16) -> PortAddress {
        let mut gid = [lid as u8; 16];
        gid[..8].fill(prefix);
        PortAddress { infiniband: true, lid, reads_in: 16, gid }
    }

    #[test]
    fn a_lid_counts_within_its_subnet_alone() {
        let ours = on_subnet(1, 10);
        assert!(on_subnet(1, 11).check_from(&ours).is_ok());
        let refused = on_subnet(2, 11).check_from(&ours).unwrap_err().to_string();
        assert!(refused.contains("subnet"), "{refused}");
        // Ports without a GID have only their LID.
        let bare = PortAddress { gid: [0; 16], ..on_subnet(0, 11) };
        assert!(bare.check_from(&ours).is_ok() && ours.check_from(&bare).is_ok());
    }

    #[test]
    fn packets_are_global_where_they_must_be() {
        let (ours, near, far) = (on_subnet(1, 10), on_subnet(1, 11), on_subnet(2, 12));
        let global = |port: PortAddress| Target::Gid { gid: port.gid, lid: port.lid };
        assert_eq!(ours.target(&near, false), Target::Lid(11));
        assert_eq!(ours.target(&near, true), global(near));
        for (sender, must, answered) in [
            (Some(near), false, Some(Target::Lid(11))),
            (Some(near), true, Some(global(near))),
            (Some(far), false, Some(global(far))),
            (None, false, Some(Target::Lid(11))),
            (None, true, None),
        ] {
            let lid = sender.unwrap_or(near).lid;
            assert_eq!(ours.target_of_sender(lid, sender.map(|port| port.gid), must), answered, "{sender:?} {must}");
        }
        let (ours, theirs) = (at([10, 0, 0, 1]), at([10, 0, 0, 2]));
        assert_eq!(ours.target(&theirs, true), global(theirs));
        assert_eq!(ours.target_of_sender(0, Some(theirs.gid), true), Some(global(theirs)));
        assert_eq!(ours.target_of_sender(0, None, false), None);
    }
}
