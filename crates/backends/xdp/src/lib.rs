//! Frame ports and packet ports over AF_XDP, which takes frames from a network interface before the kernel processes
//! them.
//!
//! An [`XdpFrames`] takes an interface's frames, to forward or answer them. An [`XdpPort`] takes those of one UDP port
//! at one address, and services run over it: its addresses are `xdp://INTERFACE/IP:PORT` with the options of
//! [`XdpOptions`]. It can talk to ports of `udp://` and to any other UDP socket.
//!
//! ```no_run
//! use sinew_fabric::{PacketPort, PacketTx, TxData, TxPacket};
//! use sinew_xdp::XdpPort;
//!
//! let mut port = XdpPort::open(&"xdp://eth0/10.0.0.1:7000".parse()?)?;
//! let to = port.resolve(&"xdp://eth0/10.0.0.2:7000".parse()?)?;
//! let (_, tx) = port.split();
//! tx.push(TxPacket { to, head: b"hello", data: TxData::None });
//! tx.submit();
//! # Ok::<(), sinew_fabric::PortError>(())
//! ```
//!
//! It needs Linux 5.9 or later with AF_XDP, and root or the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. No
//! compiler is needed: the program on the interface is about a hundred instructions, which are assembled here.
//!
//! # What is taken from the kernel
//!
//! - An [`XdpPort`] takes the frames of its UDP port at its address, and no others. An address that the kernel has
//!   stays the kernel's: the kernel answers ARP requests and neighbour discovery, and the port asks it for neighbours
//!   and gateways by netlink. Meanwhile a UDP socket reserves the port number, so that no other program gets it.
//! - For an address that the kernel does not have, the port takes all frames to it, with ARP requests and neighbour
//!   discovery about it. It answers those itself, while its owner receives, and no second port can be at the address.
//!   On a device that filters by Ethernet address, a port that is to be found over IPv6 needs the device to accept
//!   multicast (`ip link set INTERFACE allmulticast on`).
//! - An [`XdpFrames`] takes all frames of the interface, or those to some addresses ([`FrameOptions::only`]).
//!
//! The program is attached by a link that ends with the process, however the process ends. An interface has one such
//! program: ports of one process share it, and another process gets an error that names the holder.
//!
//! # The path of a frame
//!
//! - Frames lie in a [`Memory`] of chunks that the kernel shares. Each chunk has one owner, and the kernel can give
//!   back only chunks that it owns. Ports of one memory, at one interface or several, forward frames without a copy.
//! - Ports at one queue share the rings by which chunks go to the kernel and back, behind a lock that each takes once
//!   per burst.
//! - The kernel is called only when it asks to be. Where it copies frames, it sends about thirty per call, and is
//!   called until it has sent all.
//! - Zero-copy is asked for where a program runs in the driver; [`XdpFrames::granted`] and [`XdpPort::granted`] report
//!   the outcome. It has not been tested, for lack of a device that has it.
//! - Small packets share datagrams as those of `udp://` do, in the same format ([`sinew_wire::batch`]).
//!
//! # Unfinished packets
//!
//! Between virtual interfaces, a kernel leaves checksums, and the segmentation of large packets, to a device that does
//! not exist. A port counts such packets as [`Dropped::Unfinished`](sinew_fabric::Dropped::Unfinished) instead of
//! trusting them. Make the sender's kernel finish them with `ethtool -K INTERFACE tx off gso off tso off` at the
//! sender's end; [`finishing_command`] says whether that is needed, where it can be known. The pairs of [`testbed`] are
//! set up this way.
//!
//! Other bad packets are also counted by reason: [`Malformed`](sinew_fabric::Dropped::Malformed),
//! [`BadChecksum`](sinew_fabric::Dropped::BadChecksum), [`Fragment`](sinew_fabric::Dropped::Fragment),
//! [`NotOurs`](sinew_fabric::Dropped::NotOurs).
//!
//! # Design
//!
//! - **The program is data and a few instructions.** It is assembled without a compiler, and tested, byte by byte, in a
//!   small interpreter that checks every access. A map says which port gets which frames, by places (an address and a
//!   UDP port) and by whole addresses. The program of a port that takes everything only redirects.
//! - **It is attached by a link**, so that a killed process leaves nothing behind. The link is the interface's only
//!   one: ports of a process share an interface, and a second process that opens the interface gets an error that names
//!   the first.
//! - **A chunk of memory is a token.** [`Memory`] gives out a `Chunk` for each, without a copy, and bytes are borrowed
//!   through it. The owner of a chunk that the kernel names is looked up, so neither corrupt rings nor a bug of ours
//!   can give one chunk two owners.
//! - **One lock per burst.** Sockets on one queue share a fill ring and a completion ring. Ports on several threads
//!   take a lock for these, for which a port that is alone never waits.
//! - **No list of chunks is kept at a port.** A received chunk goes back to the queue at the next receive, a forwarded
//!   one is replaced by a free one, and a sent one is free again. The number of chunks that a port and a queue may hold
//!   at a time is promised to them when they are opened, so that a port which nobody polls cannot starve another.
//! - **Sockets are watched only while a thread sleeps.** Each frame for a watched socket also wakes its epoll instance;
//!   on a virtual pair that is a quarter of the sender's cost for a frame.
//! - **Where the kernel has the address, neighbours are the kernel's.** The port asks by netlink, and up to 64 frames
//!   of packets wait for the answer. Senders of packets are remembered by the Ethernet address that they came from,
//!   except for neighbours that the port had asked for: those are asked for again. A neighbour unconfirmed for five
//!   seconds is probed again while traffic goes to it, and dropped after three unanswered probes. Since the kernel sees
//!   none of the packets, it is told each time that the neighbour is in use.
//! - **A router reads no checksums**, so it looks at the first packet of each burst for signs of unfinished ones.
//!   `sinew forward run` asks the driver of a pair's other end at the start, if that is in the same namespace.
//! - **Tests and benchmarks make their pairs in namespaces without names**, which end with their last user. The host's
//!   own interfaces are never touched.

mod bpf;
mod core;
mod frames;
mod interface;
mod memory;
mod neighbour_queries;
mod neighbours;
mod options;
mod port;
mod queues;
pub mod raw;
mod ring;
mod rx;
mod sleeping;
mod sys;
pub mod testbed;
mod tx;
mod unfinished;

pub use frames::{FrameOptions, Xdp, XdpFrame, XdpFrames, XdpFramesRx, XdpFramesTx};
pub use interface::{Granted, InterfaceOptions, Mode};
pub use memory::{CHUNK_LENS, Memory};
pub use options::{XdpAddress, XdpOptions};
pub use port::XdpPort;
pub use rx::XdpRx;
pub use tx::XdpTx;
pub use unfinished::finishing_command;
