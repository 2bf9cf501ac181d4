//! A device's port: its link, and its names.

use std::ffi::CStr;
use std::fmt;
use std::path::Path;

use sinew_fabric::verbs::VerbsError;

use crate::abi::*;
use crate::gid::{self, Gid, GidKind};
use crate::library::{Library, error_of};

/// Kind of link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand fabric: packets go by local identifiers (LIDs), which a subnet manager gives out.
    InfiniBand,
    /// Ethernet: RDMA over converged Ethernet (RoCE).
    Ethernet,
    /// Neither, or the device does not say.
    Other,
}

/// A port, as the device describes it.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Kind of its link.
    pub link: Link,
    /// Its state in the words of the library, for example `active`.
    pub state: String,
    /// Most bytes of a packet, as the link is now.
    pub mtu: usize,
    /// Most bytes of a message.
    pub message_len_max: usize,
    /// Link rate in bits per second, where the device knows it.
    pub rate_bps: Option<u64>,
    /// InfiniBand: its local identifier, once a subnet manager has assigned one.
    pub lid: u16,
    /// Whether every packet must carry global identifiers. This matters on InfiniBand, where they are otherwise left
    /// out within a subnet.
    pub grh_required: bool,
    /// Its names: the entries in use of its GID table.
    pub gids: Vec<Gid>,
    /// The GID that Sinew uses unless told otherwise.
    pub chosen: Option<Gid>,
    /// Reason why it cannot be used, with a remedy; `None` if it can.
    pub trouble: Option<String>,
}

impl PortInfo {
    /// Asks the device `name` about its port.
    ///
    /// # Safety
    ///
    /// `context` is an open device of `library`.
    pub(crate) unsafe fn query(
        library: &Library,
        context: *mut ibv_context,
        name: &str,
        number: u8,
    ) -> Result<Self, VerbsError> {
        // SAFETY: zeros are a value of this plain structure.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device, as our caller promises, and room for the answer, which older libraries fill only in
        // part.
        let status = unsafe { (library.ibv_query_port)(context, number, &raw mut attributes) };
        if status != 0 {
            return Err(error_of(format!("asking {name} about its port {number}"), status));
        }
        // SAFETY: a constant string of the library's, for any number.
        let state = unsafe { CStr::from_ptr((library.ibv_port_state_str)(attributes.state)) };
        // SAFETY: as above; the device lives as long as its context.
        let sysfs = unsafe { text((*(*context).device).ibdev_path.as_ptr()) };
        let sysfs = Path::new(&sysfs).join("ports").join(number.to_string());
        let mut gids = Vec::new();
        // A work request has one byte for the index.
        for index in (0..=u8::MAX).take_while(|&index| i32::from(index) < attributes.gid_tbl_len) {
            let mut gid = ibv_gid::default();
            // SAFETY: as above. An entry that is not in use is an error or zero.
            let status = unsafe { (library.ibv_query_gid)(context, number, index.into(), &raw mut gid) };
            if status == 0 && gid.raw[8..] != [0; 8] {
                let (kind, interface) = read_gid_attributes(&sysfs, index);
                gids.push(Gid { index, bytes: gid.raw, kind, interface });
            }
        }
        let link = match attributes.link_layer {
            IBV_LINK_LAYER_INFINIBAND => Link::InfiniBand,
            IBV_LINK_LAYER_ETHERNET => Link::Ethernet,
            _ => Link::Other,
        };
        let chosen = match link {
            Link::Ethernet => gid::choose(&gids).cloned(),
            _ => gids.first().cloned(),
        };
        let mut port = Self {
            number,
            link,
            state: state.to_string_lossy().into_owned(),
            mtu: bytes_of_mtu(attributes.active_mtu).unwrap_or(0),
            message_len_max: attributes.max_msg_sz as usize,
            rate_bps: rate_bps(attributes.active_speed, attributes.active_width),
            lid: attributes.lid,
            grh_required: attributes.flags & IBV_QPF_GRH_REQUIRED != 0,
            gids,
            chosen,
            trouble: None,
        };
        port.trouble = port.find_trouble(name, attributes.state);
        Ok(port)
    }

    fn find_trouble(&self, name: &str, state: u32) -> Option<String> {
        let Self { number, link, .. } = self;
        let up = state == IBV_PORT_ACTIVE || state == IBV_PORT_ACTIVE_DEFER;
        match link {
            Link::Other => Some("it is neither on InfiniBand nor on Ethernet".into()),
            Link::InfiniBand if state == IBV_PORT_INIT || state == IBV_PORT_ARMED => {
                Some("no subnet manager has set the port up: start one (`opensm`) on some host of the fabric".into())
            }
            _ if !up => Some(format!(
                "the port is not active: connect its cable, and on Ethernet set its interface up (`ip link set IFACE up`; \
                 `rdma link show {name}/{number}` names it)"
            )),
            Link::InfiniBand if self.lid == 0 => {
                Some("the port has no LID: start a subnet manager (`opensm`) on some host of the fabric".into())
            }
            Link::Ethernet if self.chosen.is_none() => Some(
                "the port has no GID: give its network interface an address (`ip addr add 10.0.0.1/24 dev IFACE`)"
                    .into(),
            ),
            _ if self.mtu == 0 => Some("the port does not report its MTU".into()),
            _ => None,
        }
    }
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.link, &self.chosen) {
            (Link::InfiniBand, _) => write!(f, "InfiniBand, LID {}", self.lid),
            (_, Some(gid)) => write!(f, "{gid}"),
            (_, None) => f.write_str("no GID"),
        }
    }
}

/// The system's attributes of an entry of the GID table, from files in the port's folder.
fn read_gid_attributes(port: &Path, index: u8) -> (GidKind, Option<String>) {
    let read = |what: &str| std::fs::read_to_string(port.join("gid_attrs").join(what).join(index.to_string()));
    let kind = match read("types").as_deref().map(str::trim_end) {
        Ok("RoCE v2") => GidKind::RoceV2,
        Ok("IB/RoCE v1") => GidKind::IbOrRoceV1,
        _ => GidKind::Unknown,
    };
    (kind, read("ndevs").ok().map(|name| name.trim_end().to_string()).filter(|name| !name.is_empty()))
}

/// Copies a string of the library's.
pub(crate) unsafe fn text(start: *const std::ffi::c_char) -> String {
    // SAFETY: our caller's promise.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}

/// Bytes of an MTU in the header's numbering.
fn bytes_of_mtu(mtu: u32) -> Option<usize> {
    (IBV_MTU_256..=IBV_MTU_4096).contains(&mtu).then(|| 128 << mtu)
}

/// The largest MTU, in the header's numbering, that both sides can take.
pub(crate) fn common_mtu(ours: usize, theirs: u32) -> Option<u32> {
    let most = ours.min(theirs as usize);
    (IBV_MTU_256..=IBV_MTU_4096).rev().find(|&mtu| bytes_of_mtu(mtu).is_some_and(|bytes| bytes <= most))
}

/// The rate of a link: its lanes, times the rate of each (InfiniBand specification, volume 1, 14.2.5.6).
fn rate_bps(speed: u8, width: u8) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let lane_mbps = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    Some(lanes * lane_mbps * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_mtu_is_the_smaller_of_both() {
        assert_eq!(common_mtu(4096, 4096), Some(5));
        assert_eq!(common_mtu(4096, 1024), Some(3));
        assert_eq!(common_mtu(1024, 4096), Some(3));
        assert_eq!(common_mtu(1024, 1500), Some(3));
        assert_eq!(
            (common_mtu(4096, 256), common_mtu(4096, 255), common_mtu(4096, u32::MAX)),
            (Some(1), None, Some(5))
        );
    }

    #[test]
    fn rates_are_lanes_times_their_speed() {
        assert_eq!(rate_bps(32, 2), Some(100_000_000_000));
        assert_eq!((rate_bps(0, 2), rate_bps(32, 3)), (None, None));
    }

    #[test]
    fn kinds_of_gids_are_read_from_the_ports_folder() {
        let folder = std::env::temp_dir().join(format!("sinew-gids-{}", std::process::id()));
        for (what, index, text) in
            [("types", 0, "IB/RoCE v1\n"), ("types", 1, "RoCE v2\n"), ("ndevs", 1, "eth7\n"), ("types", 2, "new\n")]
        {
            let path = folder.join("gid_attrs").join(what);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(index.to_string()), text).unwrap();
        }
        let read: Vec<_> = (0..4).map(|index| read_gid_attributes(&folder, index)).collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read[0], (GidKind::IbOrRoceV1, None));
        assert_eq!(read[1], (GidKind::RoceV2, Some("eth7".into())));
        assert_eq!((&read[2], &read[3]), (&(GidKind::Unknown, None), &(GidKind::Unknown, None)));
    }

    const DOWN: u32 = 1;

    fn port(link: Link, lid: u16, chosen: Option<Gid>) -> PortInfo {
        PortInfo {
            number: 1,
            link,
            state: String::new(),
            mtu: 4096,
            message_len_max: 1 << 30,
            rate_bps: None,
            lid,
            grh_required: false,
            gids: Vec::new(),
            chosen,
            trouble: None,
        }
    }

    #[test]
    fn what_keeps_a_port_from_being_used_comes_with_its_remedy() {
        let gid = Gid { index: 0, bytes: [1; 16], kind: GidKind::RoceV2, interface: None };
        let trouble = |link, lid, gid: &Option<Gid>, state| port(link, lid, gid.clone()).find_trouble("rxe0", state);
        let (gid, none) = (Some(gid), None);
        assert_eq!(trouble(Link::Ethernet, 0, &gid, IBV_PORT_ACTIVE), None);
        assert_eq!(trouble(Link::InfiniBand, 5, &none, IBV_PORT_ACTIVE), None);
        for (link, lid, gid, state, remedy) in [
            (Link::Ethernet, 0, &gid, DOWN, "ip link set"),
            (Link::Ethernet, 0, &none, IBV_PORT_ACTIVE, "ip addr add"),
            (Link::InfiniBand, 5, &gid, IBV_PORT_INIT, "opensm"),
            (Link::InfiniBand, 0, &gid, IBV_PORT_ACTIVE, "opensm"),
            (Link::InfiniBand, 5, &gid, DOWN, "cable"),
            (Link::Other, 5, &gid, IBV_PORT_ACTIVE, "neither"),
        ] {
            let why = trouble(link, lid, gid, state).unwrap();
            assert!(why.contains(remedy), "{why}");
        }
    }
}
