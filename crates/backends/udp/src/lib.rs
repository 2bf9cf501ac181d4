//! Packet ports over kernel UDP sockets.

pub mod frame;
mod options;
mod path;
mod peer;
mod port;
pub mod raw;
mod rx;
mod sys;
mod tx;

pub use options::{Coalesce, UdpOptions};
pub use port::UdpPort;
pub use rx::UdpRx;
pub use tx::UdpTx;

/// Bytes of the largest packet that a port takes by default.
pub const PACKET_LEN_MAX: usize = 8_000;

/// Datagrams that the kernel cuts one send into at most (64 until Linux 6.9).
const SEGMENTS_MAX: usize = 64;
