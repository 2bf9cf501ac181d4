//! Pairs of virtual interfaces between two new network namespaces, for tests and measurements.
//!
//! The namespaces have no names: they and their interfaces are gone when no process is in them any more, however the
//! process ended. The host's own interfaces are not touched.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::sys::netlink::Netlink;
use crate::sys::{ethtool, namespace};

mod path;

pub use path::{Path, PathNode};

/// A network namespace that exists as long as this value does, and as long as sockets and processes are in it.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new namespace with only a loopback interface.
    ///
    /// # Errors
    ///
    /// The system's error; permission is needed (CAP_SYS_ADMIN).
    pub fn new() -> io::Result<Self> {
        std::thread::spawn(|| {
            namespace::enter_new()?;
            let netlink = Netlink::open()?;
            netlink.set_up(netlink.link("lo")?.index)?;
            namespace::current().map(Self)
        })
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that makes a namespace panicked")))
    }

    /// Runs `work` in the namespace, on the calling thread. Sockets that it makes, and processes and threads that it
    /// starts, stay there.
    ///
    /// # Errors
    ///
    /// The system's error on entering the namespace.
    ///
    /// # Panics
    ///
    /// When the thread cannot go back: it must not continue in a namespace that its owner does not expect.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        struct RestoreNamespace(File);
        impl Drop for RestoreNamespace {
            fn drop(&mut self) {
                namespace::enter(&self.0).expect("a thread can go back to the namespace that it came from");
            }
        }
        let back = namespace::current()?;
        namespace::enter(&self.0)?;
        let _back = RestoreNamespace(back);
        Ok(work())
    }

    /// Moves the calling thread into the namespace for good.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn enter(&self) -> io::Result<()> {
        namespace::enter(&self.0)
    }
}

/// Configuration of a pair.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// The MTU of both interfaces, in bytes.
    pub mtu: u32,
    /// Queues of each interface.
    pub queues: u32,
    /// Number of the network that their addresses are in, to tell several pairs apart.
    pub network: u8,
    /// Whether the interfaces have the addresses of [`PairOptions::v4`] and [`PairOptions::v6`]. Without them, only
    /// frames can be used.
    pub addresses: bool,
    /// Whether the kernel finishes the packets that it sends. Otherwise it leaves checksums and cutting to the
    /// interfaces, which do neither.
    pub finished: bool,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self { mtu: 1500, queues: 1, network: 0, addresses: true, finished: true }
    }
}

impl PairOptions {
    /// The IPv4 address of a [`Side`]'s interface, in a network with a prefix of 24 bits.
    pub fn v4(self, side: Side) -> Ipv4Addr {
        Ipv4Addr::new(10, 83, self.network, 1 + side as u8)
    }

    /// The IPv6 address of a [`Side`]'s interface, in a network with a prefix of 64 bits.
    pub fn v6(self, side: Side) -> Ipv6Addr {
        Ipv6Addr::new(0xFD83, 0, 0, self.network.into(), 0, 0, 0, 1 + side as u16)
    }
}

/// A side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first side.
    A = 0,
    /// The second side.
    B = 1,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The name of its interface.
    pub fn interface(self) -> &'static str {
        ["veth-a", "veth-b"][self as usize]
    }
}

/// Two interfaces, each in a namespace of its own. Each receives what the other sends.
#[derive(Debug)]
pub struct Pair {
    namespaces: [Namespace; 2],
    options: PairOptions,
}

impl Pair {
    /// Makes a pair.
    ///
    /// # Errors
    ///
    /// The system's error. Making a pair takes root, or the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN, and a kernel
    /// with `veth`.
    pub fn new(options: PairOptions) -> io::Result<Self> {
        let namespaces = [Namespace::new()?, Namespace::new()?];
        let pair = Self { namespaces, options };
        for side in Side::ALL {
            // Neighbour discovery and the like would send frames that no test asked for.
            pair.at(side).within(|| silence_kernel(options.addresses))??;
        }
        let names = Side::ALL.map(Side::interface);
        let other = &pair.at(Side::B).0;
        pair.at(Side::A).within(|| Netlink::open()?.make_pair(names, other, options.queues, options.mtu))??;
        for side in Side::ALL {
            let (v4, v6) = (options.v4(side).into(), options.v6(side).into());
            let addresses = options.addresses.then_some([(v4, 24), (v6, 64)]);
            pair.at(side).within(|| set_up(side.interface(), options.finished, addresses))??;
        }
        Ok(pair)
    }

    /// The pair's configuration.
    pub fn options(&self) -> PairOptions {
        self.options
    }

    /// Switches the interface of a side on or off. While it is off, the other side's has no carrier.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn switch(&self, side: Side, on: bool) -> io::Result<()> {
        self.at(side).within(|| {
            let netlink = Netlink::open()?;
            netlink.switch(netlink.link(side.interface())?.index, on)
        })?
    }

    /// The namespace of a side.
    pub fn at(&self, side: Side) -> &Namespace {
        &self.namespaces[side as usize]
    }
}

/// Makes the kernel finish the packets that it sends to an interface of a pair in the thread's namespace, or leave
/// checksums and cutting to the interface, as it does on pairs that others make.
///
/// # Errors
///
/// The system's error.
pub fn finish(interface: &str, finish: bool) -> io::Result<()> {
    ethtool::finish_in_kernel(interface, finish)
}

/// Switches an interface on, with these addresses and the lengths of their networks' prefixes.
fn set_up(interface: &str, finished: bool, addresses: Option<[(IpAddr, u8); 2]>) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let link = netlink.link(interface)?;
    if finished {
        ethtool::finish_in_kernel(interface, true)?;
    }
    netlink.set_up(link.index)?;
    for (address, prefix) in addresses.into_iter().flatten() {
        netlink.add_address(link.index, address, prefix).or_else(|error| {
            // The kernel may have no IPv6.
            let is_missing = address.is_ipv6() && error.raw_os_error() == Some(libc::EOPNOTSUPP);
            if is_missing { Ok(()) } else { Err(error) }
        })?;
    }
    Ok(())
}

/// Stops the kernel from sending packets of its own on new interfaces, as far as it has IPv6.
fn silence_kernel(addresses: bool) -> io::Result<()> {
    let settings: &[(&str, &str)] =
        if addresses { &[("accept_dad", "0"), ("router_solicitations", "0")] } else { &[("disable_ipv6", "1")] };
    for interface in ["all", "default"] {
        for (name, value) in settings {
            let path = format!("/proc/sys/net/ipv6/conf/{interface}/{name}");
            match std::fs::write(path, value) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}
