//! Packet ports over kernel UDP sockets, IPv4 and IPv6.
//!
//! A [`UdpPort`] is one non-blocking socket. Addresses are `udp://host:port` with the options of [`UdpOptions`]:
//!
//! ```
//! use sinew_fabric::{PacketPort, PacketRx, PacketTx, RxBurst, TxData, TxPacket};
//! use sinew_udp::UdpPort;
//!
//! let mut server = UdpPort::open(&"udp://127.0.0.1:0".parse()?)?;
//! let mut client = UdpPort::open(&"udp://".parse()?)?;
//! let to = client.resolve(&server.address())?;
//! let (_, tx) = client.split();
//! tx.push(TxPacket { to, head: b"hello", data: TxData::None });
//! tx.submit();
//! server.wait(None)?;
//! let mut burst = RxBurst::new(0);
//! server.split().0.receive(&mut burst);
//! assert_eq!(burst.packets[0].head, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How packets share calls and datagrams
//!
//! The kernel takes some 3 us for each send on the loopback device, whatever its size, so a port's speed depends on how
//! many packets share a send. Four ways were measured with [`raw`]: 56-byte packets echoed between two spinning threads
//! on two virtual processors, and packets sent one way (millions of packets, or GB, per second; the machine was shared,
//! so compare the columns with each other):
//!
//! | | `sendto`, `recvmsg` | `sendmmsg`, `recvmmsg` | `UDP_SEGMENT`, `UDP_GRO` | one datagram |
//! | --- | --- | --- | --- | --- |
//! | echo, 60 in flight | 0.17 | 0.23 | 5.2 | 5.9 |
//! | echo, 512 in flight | 0.14 | 0.24 | 9.5 | 16 to 27 |
//! | one way, 60 x 56 B a call | 0.19 | 0.24 | 9.0 | 10.2 |
//! | one way, 44 x 1472 B a call | 0.07 GB/s | 0.30 GB/s | 3.1 GB/s | 3.4 GB/s |
//!
//! `sendmmsg` saves almost nothing, since nearly all of the cost is inside the kernel. Segmentation offload needs
//! packets of one length, at most 64 of them. Frames in one datagram have neither limit, and on a network they also
//! save headers and interrupts; their drawback is that the loss of one datagram loses all its packets. So, by default:
//!
//! - A single packet to a peer is sent unchanged with one plain `sendto`; while packets arrive one at a time they are
//!   received with one `recvmsg` each. The median round trip is within 7 % of the raw one.
//! - Several packets to one peer share datagrams, up to what the path carries without fragmentation: 65,000 bytes
//!   within the host, the path's MTU (1500 at most, unless `mtu` says more) on networks. The format is that of
//!   [`frame`]; every port accepts it, and plain packets as well.
//! - Runs of datagrams of one length to one peer are sent with one call, and the kernel or the device cuts them apart.
//!   Where it cannot, they are sent one by one.
//! - A receive call takes up to 64 datagrams, or about half a megabyte, when the previous call returned all that it
//!   asked for.
//!
//! With this, two ports echo at 0.7 to 0.8 of the rate of raw calls with the same window of 60 in flight, and move long
//! messages (with a copy into a message of their own) at 0.75 to 0.9 of raw `UDP_SEGMENT` and `UDP_GRO`. Without it
//! (`coalesce=off`) they reach 0.9 and more of raw `sendmmsg` and `recvmmsg`.
//!
//! # What is lost, and what is reported
//!
//! Datagrams are lost when a buffer is full: the sender's ([`Dropped::Full`](sinew_fabric::Dropped::Full), counted at
//! once) or the receiver's ([`Dropped::Overflow`](sinew_fabric::Dropped::Overflow), reported by the kernel with the
//! next packet). [`Caps::receive_packets`](sinew_fabric::Caps::receive_packets) is the number of packets of the
//! greatest length that the granted buffer holds in the worst case. A host's answer that nobody listens becomes
//! [`PeerLoss::Unreachable`](sinew_fabric::PeerLoss::Unreachable), at most once every 100 ms for a peer. Anybody who
//! sees the traffic can forge such answers, and senders' addresses too: they are hints, and the layer above decides
//! what they mean.

mod options;
mod path;
mod port;
pub mod raw;
mod rx;
mod shared;
mod sys;
mod tx;

use sinew_fabric::sockets as peer;

pub use options::{Coalesce, UdpOptions};
pub use port::UdpPort;
pub use rx::UdpRx;
pub use sinew_wire::batch as frame;
pub use tx::UdpTx;

/// Default limits on the packet length of a port, in bytes.
///
/// A port takes the first for which its receive buffer holds at least 48 packets. Each just fits a block of the
/// kernel's allocator together with the kernel's own data, so that no memory of the receive buffer is wasted. For peers
/// on a network the path's MTU limits packets as well.
pub const PACKET_LENS: [usize; 3] = [7_744, 3_648, 1_472];

/// Most datagrams into which the kernel cuts one send (64 until Linux 6.9).
const SEGMENTS_MAX: usize = 64;
