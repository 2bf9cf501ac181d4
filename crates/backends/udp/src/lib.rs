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

/// Lengths that the largest packet of a port may have by default, in bytes.
///
/// A port takes the first of which its receive buffer holds at least 48. Each just fits a block of the kernel's allocator
/// together with what the kernel adds, so that no memory of the receive buffer is wasted. Towards peers on a network the
/// path's MTU is the limit as well.
pub const PACKET_LENS: [usize; 3] = [7_744, 3_648, 1_472];

/// Datagrams that the kernel cuts one send into at most (64 until Linux 6.9).
const SEGMENTS_MAX: usize = 64;
