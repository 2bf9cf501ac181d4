//! Packet ports: opening, naming and waiting.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use sinew_fabric::{
    Address, AddressError, Armed, Caps, Descriptor, Dropped, MAX_BURST, PacketPort, PacketTx, Peer, PortError,
    PortEvent, PortStats, Readiness, Waker, sockets,
};
use sinew_mem::Arena;
use sinew_wire::udp::headers_len;

use crate::core::{Core, Local};
use crate::interface::{Attachment, Capture, Granted, chunks_promised, find, shared};
use crate::memory::{Memory, chunk_len_for};
use crate::options::{XdpAddress, XdpOptions};
use crate::queues::SHORT_PAUSE_NS;
use crate::rx::XdpRx;
use crate::sleeping::Sleeping;
use crate::sys::netlink::Netlink;
use crate::tx::{PAYLOAD_START, XdpTx};

/// Pause between checks for a neighbour's answer when a peer is resolved.
const RESOLVE_PAUSE: Duration = Duration::from_millis(1);
const RESOLVE_TRIES: u32 = 100;
/// UDP ports to choose from where none was named and the kernel is not asked.
const EPHEMERAL: std::ops::Range<u16> = 49_152..65_535;
/// Shortest sleep while a neighbour is waited for, in ns.
const WAITING_NS: u64 = 1_000_000;
/// Bytes of a packet that every IPv6 network carries (RFC 8200, section 5).
const V6_MTU_MIN: usize = 1280;
/// Ports for which an interface has memory by default.
const PORTS_USUAL: usize = 8;
/// Most chunks of its memory by default, unless one port needs more: all of them are pinned.
const CHUNKS_USUAL_MAX: usize = 1 << 17;

/// A packet port at an interface: UDP over IPv4 or IPv6, bypassing the kernel.
pub struct XdpPort {
    tx: XdpTx,
    rx: XdpRx,
    core: Rc<RefCell<Core>>,
    sleeping: Sleeping,
    arena: Arena,
    caps: Caps,
    local: SocketAddr,
    interface: String,
    granted: Granted,
    /// Keeps the UDP port from other programs where the kernel has the address. Nothing is received there.
    _reserved: Option<UdpSocket>,
}

impl XdpPort {
    /// Opens a port at an address: `xdp://INTERFACE/IP:PORT`. Without a port, or with port 0, a free one is chosen;
    /// without an IP address, the first of the interface's.
    ///
    /// An address that the kernel has stays the kernel's except for this UDP port. For any other address, the port
    /// answers ARP requests and neighbour discovery itself. Ports of one process share the interface; other processes
    /// cannot open it meanwhile.
    ///
    /// # Errors
    ///
    /// [`PortError`]: an invalid address or option, an interface that does not exist or whose frames another program
    /// has, a UDP port that is taken, or a user without permission.
    pub fn open(address: &Address) -> Result<Self, PortError> {
        let options = XdpOptions::of(address)?;
        let place = XdpAddress::of(address)?;
        let system = |doing: &str, source| PortError::System { doing: format!("{doing} for {address}"), source };
        let netlink = Netlink::open().map_err(|error| system("asking the kernel", error))?;
        let link = find(&netlink, &place.interface)?;
        let interface_addresses = netlink.addresses().map_err(|error| system("asking for addresses", error))?;
        let mut own_addresses =
            interface_addresses.iter().filter(|held| held.interface == link.index).map(|held| held.address);
        let ip = match place.address {
            Some(ip) => ip,
            None => own_addresses.find(|ip| is_default_address(*ip)).ok_or_else(|| PortError::Unavailable {
                fabric: "xdp",
                reason: format!("the interface {} has no address", place.interface),
                remedy: format!("name one: xdp://{}/10.0.0.1:7000; it need not be the kernel's", place.interface),
            })?,
        };
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err(PortError::Unavailable {
                fabric: "xdp",
                reason: format!("{ip} is not the address of one host on a network"),
                remedy: "name the address to which others send".to_owned(),
            });
        }
        if let Some(mtu @ ..V6_MTU_MIN) = options.mtu
            && ip.is_ipv6()
        {
            return Err(PortError::Address(AddressError::BadValue {
                address: address.to_string(),
                option: "mtu".to_owned(),
                value: mtu.to_string(),
                expected: format!("at least {V6_MTU_MIN} bytes for IPv6"),
            }));
        }
        let holder = interface_addresses.iter().find(|known| known.address == ip).map(|known| known.interface);
        if holder.is_some_and(|holder| holder != link.index) {
            return Err(PortError::Unavailable {
                fabric: "xdp",
                reason: format!("{ip} is the address of another interface than {}", place.interface),
                remedy: "name the interface that has it (`ip address` shows it)".to_owned(),
            });
        }
        let interface = shared(&place.interface, Capture::Places, options.interface, |mtu, queues| {
            let chunks = options.chunks.unwrap_or_else(|| chunks_usual(queues, options.interface.ring as usize));
            Memory::new(chunks, chunk_len_for(mtu))
        })?;
        let mut attachment = Attachment::new(interface, None)?;
        let is_kernels = holder.is_some();
        let reserved = match is_kernels {
            true => Some(reserve(address, ip, place.port.unwrap_or(0), link.index)?),
            false => None,
        };
        let port = match &reserved {
            Some(socket) => socket.local_addr().map_err(|error| system("reading the socket's address", error))?.port(),
            None => place.port.unwrap_or(0),
        };
        let port = take_place(&mut attachment, ip, port, address)?;
        // The port that has a whole address answers for it. A second port there could not be found once the first is
        // closed.
        if !is_kernels && !attachment.take_place(ip, None)? {
            return Err(PortError::Taken {
                address: format!("the address {ip}, which the kernel does not have, at {}", place.interface),
                holder: " by another port of this process, which answers for it".to_owned(),
            });
        }

        let interface = &attachment.interface;
        let mtu = (interface.frame_len_max() - 14).min(options.mtu.unwrap_or(usize::MAX));
        let datagram_max = (mtu - (headers_len(ip) - 14)).min(interface.memory.chunk_len() - PAYLOAD_START - 8);
        let receive_packets = interface.ring() as usize / 2;
        let caps = Caps {
            packet_len_max: datagram_max,
            overhead: 0,
            // Every packet is copied into a frame.
            copy_len_max: datagram_max,
            burst_max: MAX_BURST,
            receive_packets,
            receive_packets_per_peer: receive_packets,
            lends_in_place: true,
        };
        let local = Local {
            address: ip,
            port,
            mac: interface.mac(),
            is_kernels,
            gateway: options.gateway,
            frame_len_max: interface.link.mtu + 14,
        };
        let sleeping = Sleeping::new(&attachment)?;
        let arena = Arena::private(options.arena).map_err(|source| PortError::System {
            doing: format!("reserving {} bytes for message buffers (say ?arena=BYTES for fewer)", options.arena),
            source,
        })?;
        let granted = interface.granted;
        let core = Rc::new(RefCell::new(Core::new(local, attachment, netlink)));
        Ok(Self {
            tx: XdpTx::new(&core, options.coalesce, datagram_max),
            rx: XdpRx::new(&core, datagram_max),
            core,
            sleeping,
            arena,
            caps,
            local: SocketAddr::new(ip, port),
            interface: place.interface,
            granted,
            _reserved: reserved,
        })
    }

    /// The port's IP address and UDP port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The abilities of its interface.
    pub fn granted(&self) -> Granted {
        self.granted
    }
}

/// Whether a port may be opened at this address when none was named.
fn is_default_address(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Chunks that an interface has by default: those promised to its queues and to some ports, each of which has rings at
/// every queue.
fn chunks_usual(queues: usize, ring: usize) -> usize {
    let (kernel, port) = chunks_promised(queues, ring);
    let ports = (CHUNKS_USUAL_MAX.saturating_sub(kernel) / port).clamp(1, PORTS_USUAL);
    kernel + ports * port
}

/// Makes a UDP socket that reserves the place, and keeps the kernel from telling senders that the port is unreachable.
fn reserve(address: &Address, ip: IpAddr, port: u16, interface: u32) -> Result<UdpSocket, PortError> {
    let place = match ip {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { interface } else { 0 };
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
    };
    UdpSocket::bind(place).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => PortError::Taken { address: address.to_string(), holder: String::new() },
        _ => PortError::System { doing: format!("reserving the UDP port of {address}"), source },
    })
}

/// Takes the frames for a UDP port, or for a free one if `port` is 0; returns the port.
fn take_place(attachment: &mut Attachment, ip: IpAddr, port: u16, address: &Address) -> Result<u16, PortError> {
    let taken =
        || PortError::Taken { address: address.to_string(), holder: " by another port of this process".to_owned() };
    if port != 0 {
        return attachment.take_place(ip, Some(port))?.then_some(port).ok_or_else(taken);
    }
    // Two processes with the same address would conflict anyhow; different numbers avoid confusion when one follows the
    // other.
    let start = std::process::id() % u32::from(EPHEMERAL.end - EPHEMERAL.start);
    let (before, after) = EPHEMERAL.split_at_offset(start as u16);
    for port in after.chain(before) {
        if attachment.take_place(ip, Some(port))? {
            return Ok(port);
        }
    }
    Err(taken())
}

trait SplitRange: Sized {
    fn split_at_offset(self, offset: u16) -> (Self, Self);
}

impl SplitRange for std::ops::Range<u16> {
    fn split_at_offset(self, offset: u16) -> (Self, Self) {
        let middle = self.start + offset;
        (self.start..middle, middle..self.end)
    }
}

impl Readiness for XdpPort {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.sleeping.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        // No packet is held back from a peer during a sleep.
        self.tx.submit();
        let mut core = self.core.borrow_mut();
        core.sender.submit();
        if self.rx.has_news() || core.has_news() || !self.sleeping.set()? {
            return Ok(Armed::Ready);
        }
        let waiting = core.waiting_pause_ns(now_ns).map(|pause| pause.max(WAITING_NS));
        let short = core.receiver.is_short().then_some(SHORT_PAUSE_NS);
        let pause = waiting.into_iter().chain(short).chain(core.sender.unsent_pause_ns()).min();
        Ok(Armed::Sleep { until_ns: pause.map(|pause| now_ns.saturating_add(pause)) })
    }

    fn disarm(&mut self) -> bool {
        self.sleeping.clear()
    }
}

impl PacketPort for XdpPort {
    type Rx = XdpRx;
    type Tx = XdpTx;

    fn caps(&self) -> Caps {
        self.caps
    }

    fn address(&self) -> Address {
        Address::new("xdp", &format!("{}/{}", self.interface, self.local))
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Resolves a peer. The interface in the address is the peer's, on its own host, and plays no role here. The
    /// neighbour, or the gateway on the way, is asked for, and waited for up to a tenth of a second; a host that has
    /// not answered by then is looked for again when something is sent to it.
    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        XdpOptions::of(address)?;
        let place = XdpAddress::of(address)?;
        let own = || format!("xdp://{}/{}", self.interface, self.local);
        let unavailable =
            |reason: String, remedy: &str| PortError::Unavailable { fabric: "xdp", reason, remedy: remedy.to_owned() };
        let (Some(ip), Some(port @ 1..)) = (place.address, place.port) else {
            return Err(unavailable(
                format!("{address} does not say whom to call"),
                "write xdp://INTERFACE/IP:PORT with the address and the port that the server listens on",
            ));
        };
        if ip.is_ipv6() != self.local.is_ipv6() {
            return Err(unavailable(
                format!("{address} cannot be reached from {}, which uses the other version of IP", own()),
                "open this side at an address of the same version",
            ));
        }
        if ip == self.local.ip() {
            return Err(unavailable(
                format!(
                    "{address} is at the address of this port, {}, and frames to oneself do not go over an interface",
                    own()
                ),
                "call it by shm:// or udp://, or from another host",
            ));
        }
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err(unavailable(
                format!("{ip} is not the address of one host on a network"),
                "name the server's address",
            ));
        }
        let mut core = self.core.borrow_mut();
        core.ask(ip);
        for tries in 1..=RESOLVE_TRIES {
            if core.is_resolved(ip) {
                break;
            }
            std::thread::sleep(RESOLVE_PAUSE);
            // The kernel does not notify us once it knows; other hosts are asked less often.
            if core.local.is_kernels || tries % 20 == 0 {
                core.ask(ip);
            }
        }
        Ok(sockets::pack(SocketAddr::new(ip, port)))
    }

    fn describe(&self, peer: Peer) -> String {
        match sockets::unpack(peer) {
            Some(address) => format!("xdp://{}/{address}", self.interface),
            None => "xdp://? (no peer of this port)".to_owned(),
        }
    }

    #[inline]
    fn split(&mut self) -> (&mut XdpRx, &mut XdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        None
    }

    fn waker(&self) -> Waker {
        self.sleeping.waker()
    }

    /// Counters of the port. Frames for which the kernel had no room count as [`Dropped::Overflow`], and those longer
    /// than the interface carries as [`Dropped::Unfinished`].
    fn stats(&self) -> PortStats {
        let core = self.core.borrow();
        let mut stats = core.rx_stats.merged(&core.tx_stats).merged(&self.rx.stats);
        let lost = core.attachment.borrow().lost();
        stats.count_dropped(Dropped::Overflow, lost.no_room);
        stats.count_dropped(Dropped::Unfinished, lost.too_long);
        stats.count_dropped(Dropped::Malformed, core.receiver.refused());
        stats
    }
}

impl std::fmt::Debug for XdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpPort")
            .field("local", &self.local)
            .field("interface", &self.interface)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}
