//! Two hosts and a third between them, to measure forwarding.

use std::io;
use std::net::IpAddr;

use sinew_fabric::frames::MacAddress;

use super::{Namespace, PairOptions, Side, set_up, silence_kernel};
use crate::sys::netlink::Netlink;

/// A place on a [`Path`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathNode {
    /// The host at this side.
    Host(Side),
    /// The host between them.
    Middle,
}

/// Two virtual pairs in a row: a host at each end, whose interface has no addresses, and a third host between them,
/// with both pairs' other ends.
#[derive(Debug)]
pub struct Path {
    hosts: [Namespace; 2],
    middle: Namespace,
    options: PairOptions,
}

impl Path {
    /// The name of each host's interface.
    pub const HOST: &str = "veth-a";
    /// The names of the interfaces in the middle, towards the first host and towards the second.
    pub const MIDDLE: [&str; 2] = ["veth-l", "veth-r"];

    /// Makes a path. If the options ask for addresses, the interfaces in the middle get those of side `B` of pairs in
    /// the networks 0 and 1.
    ///
    /// # Errors
    ///
    /// As [`super::Pair::new`].
    pub fn new(options: PairOptions) -> io::Result<Self> {
        let path = Self { hosts: [Namespace::new()?, Namespace::new()?], middle: Namespace::new()?, options };
        path.middle.within(|| silence_kernel(options.addresses))??;
        for side in Side::ALL {
            let (host, between) = (path.at(PathNode::Host(side)), Self::MIDDLE[side as usize]);
            host.within(|| {
                silence_kernel(false)?;
                let netlink = Netlink::open()?;
                netlink.make_pair([Self::HOST, between], &path.middle.0, options.queues, options.mtu)
            })??;
            host.within(|| set_up(Self::HOST, options.finished, None))??;
            let options = PairOptions { network: side as u8, ..options };
            let addresses = [(options.v4(Side::B).into(), 24), (options.v6(Side::B).into(), 64)];
            let addresses = options.addresses.then_some(addresses);
            path.middle.within(|| set_up(between, options.finished, addresses))??;
        }
        Ok(path)
    }

    /// The namespace of a place.
    pub fn at(&self, place: PathNode) -> &Namespace {
        match place {
            PathNode::Host(side) => &self.hosts[side as usize],
            PathNode::Middle => &self.middle,
        }
    }

    /// The IPv4 address that a host is to use: it is in the network of the interface next to it, and the host's kernel
    /// does not have it.
    pub fn host_v4(&self, side: Side) -> std::net::Ipv4Addr {
        PairOptions { network: side as u8, ..self.options }.v4(Side::A)
    }

    /// The Ethernet addresses of the hosts.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn host_macs(&self) -> io::Result<[MacAddress; 2]> {
        let mac = || Netlink::open()?.link(Self::HOST).map(|link| link.mac);
        let of = |side| self.at(PathNode::Host(side)).within(mac)?;
        Ok([of(Side::A)?, of(Side::B)?])
    }

    /// The Ethernet addresses of the interfaces in the middle.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn middle_macs(&self) -> io::Result<[MacAddress; 2]> {
        self.middle.within(|| {
            let netlink = Netlink::open()?;
            Ok([netlink.link(Self::MIDDLE[0])?.mac, netlink.link(Self::MIDDLE[1])?.mac])
        })?
    }

    /// Makes the kernel in the middle route IPv4 from one host to the other, and tells it their Ethernet addresses.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn route_in_kernel(&self) -> io::Result<()> {
        let macs = self.host_macs()?;
        self.middle.within(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            let netlink = Netlink::open()?;
            for (side, mac) in Side::ALL.into_iter().zip(macs) {
                let index = netlink.link(Self::MIDDLE[side as usize])?.index;
                netlink.set_neighbour(index, IpAddr::from(self.host_v4(side)), mac)?;
            }
            Ok(())
        })?
    }
}
