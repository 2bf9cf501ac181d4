//! The port: opening it, resolving names, waiting.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use sinew_fabric::readiness::Alarm;
use sinew_fabric::{
    Address, Armed, Caps, Descriptor, MAX_BURST, PacketPort, PacketTx, Peer, PortError, PortEvent, PortStats,
    Readiness, Waker,
};
use sinew_mem::Arena;
use sinew_mem::atomic::plain::Arc;

use crate::frame::{BATCH_HEADER, FRAME_HEADER};
use crate::options::{Coalesce, UdpOptions};
use crate::path::{LOCAL_DATAGRAM, Paths};
use crate::shared::Shared;
use crate::sys::Socket;
use crate::{PACKET_LENS, peer, rx::UdpRx, tx, tx::UdpTx};

/// Receive buffer requested by default, in the kernel's accounting, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Send buffer requested by default, in bytes: enough for a few full messages, so that a burst is not cut off half-way.
const SEND_BUFFER: usize = 4 << 20;

/// Packets of a given length that the receive buffer must hold for that length to be the default.
const PACKETS_ENOUGH: usize = 48;

/// A packet port on a kernel UDP socket.
pub struct UdpPort {
    rx: UdpRx,
    tx: UdpTx,
    shared: Arc<Shared>,
    /// The alarm is readable when the socket is.
    alarm: Alarm,
    arena: Arena,
    local: SocketAddr,
    caps: Caps,
}

impl UdpPort {
    /// Opens a port at an address: `udp://host:port`, with port 0 or no port for one of the system's choice, or
    /// `udp://` for any port on every address of the host.
    ///
    /// A port opened as `udp://` reaches IPv6 and IPv4 peers alike where the host has IPv6, else IPv4 ones only.
    ///
    /// # Errors
    ///
    /// [`PortError`]: the address or an option is invalid, the address is taken or not this host's, or the system
    /// refuses something else.
    pub fn open(address: &Address) -> Result<Self, PortError> {
        let options = UdpOptions::of(address)?;
        let system = |doing: &str, source| PortError::System { doing: format!("{doing} for {address}"), source };
        let socket = bind(address)?;
        let local = socket.local_addr().map_err(|error| system("reading the socket's address", error))?;
        let receive_buffer = match options.receive_buffer {
            Some(bytes) => socket.set_receive_buffer(bytes),
            None => socket.grow_receive_buffer(RECEIVE_BUFFER),
        }
        .map_err(|error| system("setting the receive buffer", error))?;
        match options.send_buffer {
            Some(bytes) => socket.set_send_buffer(bytes),
            None => socket.grow_send_buffer(SEND_BUFFER),
        }
        .map_err(|error| system("setting the send buffer", error))?;
        socket.count_overflows();
        socket.report_errors();
        let can_segment = socket.can_segment();
        if options.coalesce != Coalesce::Off {
            socket.join_segments();
        }
        let alarm = Alarm::new()
            .and_then(|alarm| alarm.watch(socket.fd()).map(|()| alarm))
            .map_err(|error| system("making an epoll set and an eventfd", error))?;
        let arena = Arena::private(options.arena).map_err(|source| PortError::System {
            doing: format!("reserving {} bytes for message buffers (set ?arena=BYTES to reserve fewer)", options.arena),
            source,
        })?;
        let packet_len_max = options.packet_len_max.unwrap_or_else(|| packet_len_for(receive_buffer));
        let receive_packets = receive_capacity(receive_buffer, packet_len_max);
        let caps = Caps {
            packet_len_max,
            overhead: 0,
            copy_len_max: tx::COPY_LEN_MAX,
            burst_max: MAX_BURST,
            receive_packets,
            receive_packets_per_peer: receive_packets,
            lends_in_place: true,
        };
        let shared = Arc::new(Shared::new(socket));
        Ok(Self {
            rx: UdpRx::new(Arc::clone(&shared), packet_len_max),
            tx: UdpTx::new(Arc::clone(&shared), Paths::new(options.mtu), options.coalesce, can_segment, packet_len_max),
            shared,
            alarm,
            arena,
            local,
            caps,
        })
    }

    /// Address to which the socket is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the socket can send to IPv4 addresses, and whether to IPv6 ones.
    fn reachable_families(&self) -> (bool, bool) {
        match self.local.ip() {
            IpAddr::V4(_) => (true, false),
            IpAddr::V6(ip) => (ip.is_unspecified(), true),
        }
    }
}

/// The largest of [`PACKET_LENS`] for which a receive buffer of `granted` bytes holds [`PACKETS_ENOUGH`] packets, else
/// the smallest.
fn packet_len_for(granted: usize) -> usize {
    let enough = |packet_len: &usize| receive_capacity(granted, *packet_len) >= PACKETS_ENOUGH;
    PACKET_LENS.into_iter().find(enough).unwrap_or(PACKET_LENS[PACKET_LENS.len() - 1])
}

/// Packets of `packet_len` bytes that a receive buffer of `granted` bytes holds for certain; at least 1.
///
/// The kernel charges for the memory of each datagram, not its length, and credits what was read only in steps of a
/// quarter of the buffer. Datagrams that share memory are usually charged less, but the capacity does not count on it:
/// it is that of the most expensive way in which the packets can arrive. (Some network drivers spend a whole page and
/// more on each small packet; with them, set a larger `rcvbuf` or `packet`.)
fn receive_capacity(granted: usize, packet_len: usize) -> usize {
    let costliest = (1..=LOCAL_DATAGRAM / packet_len.max(1)).map(|packets| {
        // A single packet is sent unchanged.
        let added = if packets == 1 { 0 } else { BATCH_HEADER + packets * FRAME_HEADER };
        charge(packets * packet_len + added).div_ceil(packets)
    });
    (granted / 4 * 3 / costliest.max().unwrap_or(charge(packet_len))).max(1)
}

/// Bytes that the kernel charges for one datagram: a descriptor, and a block whose size is a power of two for its
/// payload, headers and bookkeeping. Past 16 KiB the payload takes pages instead, charged by the byte, behind a small
/// block.
fn charge(datagram: usize) -> usize {
    const DESCRIPTOR: usize = 256;
    const BOOKKEEPING: usize = 320 + 128;
    match datagram + BOOKKEEPING {
        block @ ..=16_384 => DESCRIPTOR + block.next_power_of_two().max(512),
        paged => DESCRIPTOR + 1_024 + paged,
    }
}

fn look_up(address: &Address, host: &str, port: u16) -> Result<Vec<SocketAddr>, PortError> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    match (host, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(source) => Err(PortError::UnknownHost { address: address.to_string(), host: host.to_owned(), source }),
    }
}

fn bind(address: &Address) -> Result<Socket, PortError> {
    let (host, port) = address.host_and_port()?;
    let port = port.unwrap_or(0);
    let candidates = match host {
        Some(host) => look_up(address, host, port)?,
        // IPv6 is tried first: its wildcard accepts IPv4 too.
        None => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
    };
    let mut last = None;
    for candidate in candidates {
        match Socket::bind(candidate) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(PortError::Taken { address: address.to_string(), holder: String::new() });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) if error.kind() == io::ErrorKind::AddrNotAvailable => PortError::Unavailable {
            fabric: "udp",
            reason: format!("{address} is not an address of this host"),
            remedy: "name one of its addresses, or udp://0.0.0.0:PORT for all".to_owned(),
        },
        Some(source) => PortError::System { doing: format!("binding a socket to {address}"), source },
        None => PortError::NotFound { address: address.to_string(), looked_in: "the system's names".to_owned() },
    })
}

impl Readiness for UdpPort {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.alarm.descriptor())
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        // Packets held back must not wait while we sleep.
        self.tx.submit();
        // Datagrams in the kernel make the socket, and so the alarm, readable without our help.
        let is_quiet = !self.rx.has_news() && self.alarm.set();
        Ok(if is_quiet { Armed::Sleep { until_ns: None } } else { Armed::Ready })
    }

    fn disarm(&mut self) -> bool {
        if self.alarm.is_set() {
            self.rx.on_awake();
        }
        self.alarm.clear()
    }
}

impl PacketPort for UdpPort {
    type Rx = UdpRx;
    type Tx = UdpTx;

    fn caps(&self) -> Caps {
        self.caps
    }

    fn address(&self) -> Address {
        Address::new("udp", &self.local.to_string())
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    /// `0.0.0.0` and `::` mean this host. The system resolves a name, and the first of its addresses that this socket
    /// can reach is taken. Nothing is sent, so only sending shows whether anybody listens there.
    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        UdpOptions::of(address)?;
        let (host, port) = address.host_to_call()?;
        let (v4, v6) = self.reachable_families();
        let found = match host {
            Some(host) => look_up(address, host, port)?,
            None => vec![(Ipv4Addr::UNSPECIFIED, port).into()],
        };
        let reachable = found
            .iter()
            .map(|&found| peer::loopback_for_unspecified(found, v4, v6))
            .find(|found| if found.ip().to_canonical().is_ipv4() { v4 } else { v6 });
        match reachable {
            Some(found) => {
                let peer = peer::pack(found);
                self.tx.paths.get(peer);
                Ok(peer)
            }
            None => Err(PortError::Unavailable {
                fabric: "udp",
                reason: format!("{address} cannot be reached from a socket bound to {}", self.local),
                remedy: "open this side as udp://, which reaches IPv4 and IPv6 where the host has both".to_owned(),
            }),
        }
    }

    fn describe(&self, peer: Peer) -> String {
        match peer::unpack(peer) {
            Some(address) => format!("udp://{address}"),
            None => "udp://? (not a peer of this port)".to_owned(),
        }
    }

    fn packet_len_max(&self, peer: Peer) -> usize {
        let path = self.tx.paths.peek(peer);
        self.caps.packet_len_max.min(path.datagram_max)
    }

    #[inline]
    fn split(&mut self) -> (&mut UdpRx, &mut UdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        if self.shared.take_narrow_path_note() {
            self.tx.paths.clear();
        }
        self.rx.poll_event()
    }

    fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    fn stats(&self) -> PortStats {
        self.rx.stats.merged(&self.tx.stats)
    }
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpPort").field("local", &self.local).field("caps", &self.caps).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use sinew_fabric::{Dropped, PacketTx, TxData, TxPacket};
    use std::net::UdpSocket;

    /// Sends `packets` over a path that carries `datagram_max` bytes and returns the datagrams that arrive.
    fn over_a_narrow_path(
        coalesce: &str,
        datagram_max: usize,
        packets: &[Vec<u8>],
        prepare: fn(&Socket),
    ) -> (Vec<Vec<u8>>, PortStats) {
        let mut port = UdpPort::open(&format!("udp://127.0.0.1:0?coalesce={coalesce}").parse().unwrap()).unwrap();
        prepare(&port.shared.socket);
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = port.resolve(&Address::new("udp", &receiver.local_addr().unwrap().to_string())).unwrap();
        port.tx.paths.narrow(to, datagram_max);
        for packet in packets {
            port.tx.push(TxPacket { to, head: packet, data: TxData::None });
        }
        port.tx.submit();
        receiver.set_nonblocking(true).unwrap();
        let mut buffer = vec![0; 1 << 16];
        // On the loopback device a datagram has arrived when its send returns.
        let datagrams =
            std::iter::from_fn(|| receiver.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect();
        (datagrams, port.stats())
    }

    fn packets(lens: &[usize]) -> Vec<Vec<u8>> {
        lens.iter().enumerate().map(|(index, &len)| vec![index as u8; len]).collect()
    }

    #[test]
    fn batches_are_no_longer_than_what_the_path_carries() {
        let sent = packets(&[&[56; 100][..], &[700, 700, 56, 1472, 1472, 1472, 56, 1]].concat());
        let (datagrams, stats) = over_a_narrow_path("on", 1_472, &sent, |_| {});
        assert!(datagrams.iter().all(|datagram| datagram.len() <= 1_472));
        let of_full: Vec<_> = datagrams.iter().filter(|datagram| datagram.len() == 1_472).collect();
        assert_eq!(of_full.len(), 3, "packets that fill the path are sent unchanged");
        assert!(datagrams.len() < 12, "{}", datagrams.len());
        assert_eq!((stats.tx_packets, stats.dropped_total()), (108, 0));
    }

    #[test]
    fn runs_of_equal_packets_arrive_as_they_were_pushed() {
        let sent = packets(&[1472, 1472, 1472, 100, 1472, 1000, 1000, 1472]);
        let (datagrams, _) = over_a_narrow_path("gso", 1_472, &sent, |_| {});
        assert_eq!(datagrams, sent);
    }

    #[test]
    fn a_device_that_cannot_cut_gets_datagrams_one_by_one() {
        let sent = packets(&[1472, 1472, 1472, 100, 56, 56, 56]);
        let (datagrams, stats) = over_a_narrow_path("gso", 1_472, &sent, Socket::refuse_to_segment);
        assert_eq!(datagrams, sent);
        assert_eq!((stats.tx_packets, stats.dropped_total()), (7, 0));
    }

    #[test]
    fn a_forged_sender_with_port_0_gets_nothing_and_disturbs_nobody() {
        let mut port = UdpPort::open(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
        let forged = peer::pack("127.0.0.1:0".parse().unwrap());
        (0..3).for_each(|_| port.tx.push(TxPacket { to: forged, head: b"answer", data: TxData::None }));
        port.tx.submit();
        assert_eq!(port.stats().dropped(Dropped::NoSuchPeer), 3);
    }

    #[test]
    fn the_usual_packets_just_fill_what_the_kernel_gives_them() {
        // One byte more would double the block.
        for packet_len in PACKET_LENS {
            assert!(charge(packet_len + 1) >= charge(packet_len), "{packet_len}");
        }
        assert_eq!((charge(7_744), charge(7_745)), (8_448, 16_640));
        assert_eq!((charge(56), charge(0)), (768, 768));
    }

    #[test]
    fn capacity_counts_the_dearest_way_to_arrive() {
        // Three packets of 1472 bytes in one datagram take a block of 8 KiB; a single one takes 2 KiB.
        assert!(receive_capacity(1 << 20, 1_472) < (1 << 20) / 4 * 3 / charge(1_472));
        assert_eq!(receive_capacity(0, 1_472), 1);
    }

    #[test]
    fn small_buffers_make_small_packets() {
        assert_eq!(packet_len_for(8 << 20), PACKET_LENS[0]);
        // An untuned system grants twice 212,992 bytes.
        assert_eq!(packet_len_for(425_984), 3_648);
        assert_eq!(packet_len_for(4_096), 1_472);
    }
}
