//! Requests to the kernel about interfaces, addresses, routes and neighbours, and to make virtual pairs for tests.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};
use sinew_fabric::frames::MacAddress;

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDR: u16 = 20;
const GET_ADDR: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGH: u16 = 28;
const GET_NEIGH: u16 = 30;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
const REPLACE: u16 = 0x100;

const ERROR: u16 = 2;
const DONE: u16 = 3;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;

/// States in which a neighbour's address can be used: reachable, stale, delay, probe, no ARP needed, permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NUD_PERMANENT: u16 = 0x80;
const NTF_USE: u8 = 1;

const IFF_UP: u32 = 1;

/// An interface.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub index: u32,
    pub mac: MacAddress,
    pub mtu: usize,
    /// Kind of a virtual interface, such as `veth`.
    pub kind: String,
    /// Number of receive queues that it was made with.
    pub rx_queues: u32,
    /// Number of the program that is attached to it.
    pub program: Option<u32>,
    /// Index of the interface at its other end, if it is one of a virtual pair and the other is in this namespace too.
    pub peer: Option<u32>,
    pub is_up: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub interface: u32,
    pub address: IpAddr,
}

/// The first hop of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub gateway: Option<IpAddr>,
    pub interface: Option<u32>,
    /// The address from which the kernel would send.
    pub source: Option<IpAddr>,
}

/// A request that is being built.
struct NetlinkRequest(Vec<u8>);

impl NetlinkRequest {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        Self(bytes)
    }

    /// Appends fields after the header.
    fn body(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((value.len() as u16 + 4).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute that holds others.
    fn nested(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        let mut question = inside(self);
        let len = (question.0.len() - start) as u16;
        question.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        question
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// `ifinfomsg`.
fn link_body(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..16].copy_from_slice(&change.to_ne_bytes());
    body
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The attributes in `bytes`, up to the first malformed one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)? & 0x3FFF);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// A connection to the kernel, in the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Sends a request, and hands each answer's body to `each`.
    fn request(&self, request: NetlinkRequest, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let question = request.finish();
        let flags = u16_at(&question, 6).unwrap_or(0);
        let is_dump = flags & DUMP == DUMP;
        send(&self.0, &question, SendFlags::empty())?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (len, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = buffer.get(..len).unwrap_or(&[]);
            let bad = || io::Error::new(io::ErrorKind::InvalidData, "a malformed answer from netlink");
            if rest.is_empty() {
                return Err(bad());
            }
            while !rest.is_empty() {
                let (len, kind) = (u32_at(rest, 0).ok_or_else(bad)? as usize, u16_at(rest, 4).ok_or_else(bad)?);
                let body = rest.get(16..len).ok_or_else(bad)?;
                match kind {
                    DONE => return Ok(()),
                    ERROR => {
                        let errno = u32_at(body, 0).ok_or_else(bad)? as i32;
                        return if errno == 0 {
                            Ok(())
                        } else {
                            Err(io::Error::from_raw_os_error(errno.wrapping_neg()))
                        };
                    }
                    kind => each(kind, body),
                }
                if !is_dump && flags & ACK == 0 {
                    return Ok(());
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }

    /// The interface of this name.
    pub fn link(&self, name: &str) -> io::Result<Link> {
        let mut found = None;
        let question = NetlinkRequest::new(GET_LINK, 0)
            .body(&link_body(0, 0, 0))
            .attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        self.request(question, |_, body| found = read_link(body))?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The name of the interface with this index.
    pub fn name(&self, index: u32) -> io::Result<String> {
        let mut found = None;
        self.request(NetlinkRequest::new(GET_LINK, 0).body(&link_body(index, 0, 0)), |_, body| {
            let name = attributes(body.get(16..).unwrap_or(&[])).find(|(kind, _)| *kind == IFLA_IFNAME);
            found = name.map(|(_, name)| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned());
        })?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// All addresses of all interfaces.
    pub fn addresses(&self) -> io::Result<Vec<InterfaceAddress>> {
        let mut all = Vec::new();
        self.request(NetlinkRequest::new(GET_ADDR, DUMP).body(&[0; 8]), |kind, body| {
            let interface = u32_at(body, 4).filter(|_| kind == NEW_ADDR);
            let (mut local, mut address) = (None, None);
            for (kind, value) in attributes(body.get(8..).unwrap_or(&[])) {
                match kind {
                    IFA_LOCAL => local = address_of(value),
                    IFA_ADDRESS => address = address_of(value),
                    _ => {}
                }
            }
            if let (Some(interface), Some(address)) = (interface, local.or(address)) {
                all.push(InterfaceAddress { interface, address });
            }
        })?;
        Ok(all)
    }

    /// The route by which the kernel would send to `to` from this interface, or from any.
    pub fn route(&self, to: IpAddr, interface: Option<u32>) -> io::Result<Route> {
        let mut body = [0; 12];
        body[0] = family(to);
        let bytes = octets(to);
        body[1] = bytes.len() as u8 * 8;
        let mut question = NetlinkRequest::new(GET_ROUTE, 0).body(&body).attribute(RTA_DST, &bytes);
        if let Some(interface) = interface {
            question = question.attribute(RTA_OIF, &interface.to_ne_bytes());
        }
        let mut route = Route::default();
        self.request(question, |kind, body| {
            for (attribute, value) in attributes(body.get(12..).unwrap_or(&[])).take_while(|_| kind == NEW_ROUTE) {
                match attribute {
                    RTA_GATEWAY => route.gateway = address_of(value),
                    RTA_OIF => route.interface = u32_at(value, 0),
                    RTA_PREFSRC => route.source = address_of(value),
                    _ => {}
                }
            }
        })?;
        Ok(route)
    }

    /// The Ethernet address of a neighbour, if the kernel knows it.
    pub fn neighbour(&self, interface: u32, address: IpAddr) -> Option<MacAddress> {
        let question = NetlinkRequest::new(GET_NEIGH, 0)
            .body(&neighbour_body(interface, address, 0, 0))
            .attribute(NDA_DST, &octets(address));
        let mut found = None;
        let asked = self.request(question, |kind, body| {
            let state = u16_at(body, 8).filter(|_| kind == NEW_NEIGH).unwrap_or(0);
            if state & NUD_VALID != 0 {
                let mut values = attributes(body.get(12..).unwrap_or(&[]));
                found = values.find(|(kind, _)| *kind == NDA_LLADDR).and_then(|(_, value)| value.try_into().ok());
            }
        });
        asked.ok().and(found).map(MacAddress)
    }

    /// Makes the kernel find out the address of a neighbour.
    pub fn probe(&self, interface: u32, address: IpAddr) -> io::Result<()> {
        let question = NetlinkRequest::new(NEW_NEIGH, ACK | CREATE | REPLACE)
            .body(&neighbour_body(interface, address, 0, NTF_USE))
            .attribute(NDA_DST, &octets(address));
        self.request(question, |_, _| {})
    }

    /// Tells the kernel the address of a neighbour, which holds until it is told another.
    pub fn set_neighbour(&self, interface: u32, address: IpAddr, mac: MacAddress) -> io::Result<()> {
        let question = NetlinkRequest::new(NEW_NEIGH, ACK | CREATE | REPLACE)
            .body(&neighbour_body(interface, address, NUD_PERMANENT, 0))
            .attribute(NDA_DST, &octets(address))
            .attribute(NDA_LLADDR, &mac.0);
        self.request(question, |_, _| {})
    }

    /// Makes a pair of virtual interfaces, the second in another namespace. Both have `queues` queues.
    pub fn make_pair(&self, [here, there]: [&str; 2], other: &File, queues: u32, mtu: u32) -> io::Result<()> {
        let named = |question: NetlinkRequest, name: &str| {
            question
                .attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat())
                .attribute(IFLA_MTU, &mtu.to_ne_bytes())
                .attribute(IFLA_NUM_TX_QUEUES, &queues.to_ne_bytes())
                .attribute(IFLA_NUM_RX_QUEUES, &queues.to_ne_bytes())
        };
        let question = NetlinkRequest::new(NEW_LINK, ACK | CREATE | EXCLUSIVE).body(&link_body(0, 0, 0));
        let question = named(question, here).nested(IFLA_LINKINFO, |question| {
            question.attribute(IFLA_INFO_KIND, b"veth\0").nested(IFLA_INFO_DATA, |question| {
                question.nested(VETH_INFO_PEER, |question| {
                    named(question.body(&link_body(0, 0, 0)), there)
                        .attribute(IFLA_NET_NS_FD, &(other.as_raw_fd() as u32).to_ne_bytes())
                })
            })
        });
        self.request(question, |_, _| {})
    }

    /// Switches an interface on.
    pub fn set_up(&self, interface: u32) -> io::Result<()> {
        self.switch(interface, true)
    }

    /// Switches an interface on or off.
    pub fn switch(&self, interface: u32, on: bool) -> io::Result<()> {
        let flags = if on { IFF_UP } else { 0 };
        self.request(NetlinkRequest::new(NEW_LINK, ACK).body(&link_body(interface, flags, IFF_UP)), |_, _| {})
    }

    /// Gives an interface an address with a prefix of `prefix` bits, which can be used at once.
    pub fn add_address(&self, interface: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut body = [0; 8];
        (body[0], body[1]) = (family(address), prefix);
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let bytes = octets(address);
        let question = NetlinkRequest::new(NEW_ADDR, ACK | CREATE | EXCLUSIVE)
            .body(&body)
            .attribute(IFA_LOCAL, &bytes)
            .attribute(IFA_ADDRESS, &bytes)
            .attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        self.request(question, |_, _| {})
    }
}

/// `ndmsg`.
fn neighbour_body(interface: u32, address: IpAddr, state: u16, flags: u8) -> [u8; 12] {
    let mut body = [0; 12];
    body[0] = family(address);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[8..10].copy_from_slice(&state.to_ne_bytes());
    body[10] = flags;
    body
}

fn read_link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: u32_at(body, 4)?,
        mac: MacAddress::default(),
        mtu: 0,
        kind: String::new(),
        rx_queues: 1,
        program: None,
        peer: None,
        is_up: u32_at(body, 8)? & IFF_UP != 0,
    };
    let mut is_elsewhere = false;
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_LINK => link.peer = u32_at(value, 0),
            IFLA_LINK_NETNSID => is_elsewhere = true,
            IFLA_ADDRESS => link.mac = value.try_into().map(MacAddress).unwrap_or_default(),
            IFLA_MTU => link.mtu = u32_at(value, 0)? as usize,
            IFLA_NUM_RX_QUEUES => link.rx_queues = u32_at(value, 0)?,
            IFLA_XDP => {
                let id = attributes(value).find(|(kind, _)| *kind == IFLA_XDP_PROG_ID);
                link.program = id.and_then(|(_, value)| u32_at(value, 0)).filter(|&id| id != 0);
            }
            IFLA_LINKINFO => {
                if let Some((_, name)) = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND) {
                    link.kind = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
                }
            }
            _ => {}
        }
    }
    link.peer = link.peer.filter(|_| link.kind == "veth" && !is_elsewhere);
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let question =
            NetlinkRequest::new(GET_LINK, 0).nested(7, |question| question.attribute(1, b"abc").attribute(2, &[9; 4]));
        let bytes = question.finish();
        let (kind, inside) = attributes(&bytes[16..]).next().unwrap();
        assert_eq!(kind, 7);
        assert_eq!(attributes(inside).collect::<Vec<_>>(), [(1, &b"abc"[..]), (2, &[9; 4])]);
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
    }

    #[test]
    fn the_loopback_interface_is_there_and_has_its_address() {
        let netlink = Netlink::open().unwrap();
        let link = netlink.link("lo").unwrap();
        assert!(link.index > 0 && link.mtu > 1000);
        assert!(netlink.link("no-such-if").is_err());
        if link.is_up {
            let held = InterfaceAddress { interface: link.index, address: Ipv4Addr::LOCALHOST.into() };
            assert!(netlink.addresses().unwrap().contains(&held));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_link(&bytes);
            prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
