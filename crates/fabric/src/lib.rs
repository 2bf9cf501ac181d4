//! The interface between services and the fabrics that carry them.
//!
//! A *packet port* ([`PacketPort`]) moves unreliable datagrams in bursts and is owned by one thread. Everything above
//! this crate is written against the port, everything below implements it, and nothing here names an implementation: a
//! port's capabilities are data ([`Caps`]). The crate `sinew-conformance` has the test suite that each implementation
//! must pass.
//!
//! - [`port`]: the traits, the bursts, the pieces to transmit.
//! - [`address`]: how a fabric's names are written and what a resolved peer is.
//! - [`time`]: the clock and the random generator, which are passed to library code.
//! - [`poller`]: when to spin and when to sleep, by one of several policies.
//! - [`readiness`]: how to sleep, on several things at once.
//! - [`worker`]: a pool for long work.
//! - [`loopback`]: a deterministic network in memory, for tests.
//! - [`verbs`]: the operations of an RDMA NIC.
//! - [`reader`]: objects in another host's memory, fetched in whichever way is best at the moment.
//! - [`share`]: a fair share of a NIC for each class of requests within a process.
//! - [`frames`]: ports for raw Ethernet frames.
//! - [`datagrams`], [`hold`], [`sockets`]: parts that ports over UDP have in common.
//! - [`layer`]: ports around ports, such as [`fault`], [`trace`] and [`pcap`].
#![forbid(unsafe_code)]

pub mod address;
pub mod datagrams;
pub mod fault;
pub mod frames;
pub mod hold;
pub mod layer;
pub mod loopback;
pub mod pcap;
pub mod poller;
pub mod port;
pub mod reader;
pub mod readiness;
pub mod share;
pub mod sockets;
pub mod time;
pub mod trace;
pub mod verbs;
mod waker;
pub mod worker;

pub use address::{Address, AddressError, Peer};
pub use poller::{PollPolicy, Poller, PollerStats, Step};
pub use port::{
    Caps, Dropped, MAX_BURST, PACKET_LEN_MIN, PacketPort, PacketRx, PacketTx, PeerLoss, PortError, PortEvent,
    PortStats, RxBurst, RxPacket, TxData, TxPacket,
};
pub use readiness::{Armed, Descriptor, Readiness};
pub use time::{Clock, Generator, ManualClock, SeededGenerator};
pub use waker::{WakeTarget, Waker};
pub use worker::{Job, WorkerPool};
