//! Packet ports, and [verbs], between threads and between processes of one host, over shared memory.
//!
//! Each pair of ports that communicate has a *link*: two single-producer rings ([`sinew_mem::ring`]), one each way, and
//! a view of each other's arena and board (which tells which rings have packets). A packet of up to
//! [`INLINE_MAX`](sinew_mem::ring::INLINE_MAX) bytes travels in the ring, a small one in a single cache line. A longer
//! one stays in its sender's arena, and the receiver copies it from there: one copy in all. Data outside the sender's
//! arena is copied into it first.
//!
//! # Addresses
//!
//! `shm://name` is a port that others find by its name; `shm://` is one without a name, which can talk to named ones
//! and is answered over the same link. Names belong to a user: they live in a directory that only the user can enter
//! (`$XDG_RUNTIME_DIR/sinew`, or `/tmp/sinew-UID`). Files that a killed process leaves there are removed when its name
//! is looked up, or when any name is claimed. Options:
//!
//! - `?ring=PACKETS`: packets of one sender that can wait at this port, whatever their length. Each of a link's two
//!   rings is as large as its *receiver* wants it, so both ports get the size they ask for.
//! - `?arena=BYTES`: address space for message buffers. It uses memory only where buffers do.
//!
//! Threads of one process need no names in the file system: a [`Hub`] makes ports whose links are private memory, where
//! received packets are lent in place.
//!
//! # Guarantees when others misbehave
//!
//! - Peers are processes of the same user. Memory that they can write is read only by copying it out; everything in it
//!   is checked, and a peer that breaks the rules loses its link.
//! - No peer holds anything that others wait for. A peer that is stopped or killed at any instruction delays only its
//!   own packets. The death of a peer is detected at once, and the packets that it had sent before are still delivered.
//! - After [`flush`](sinew_fabric::PacketTx::flush) no peer can receive bytes that were lent to it: each lent packet
//!   has a word that the sender changes and the receiver checks after its copy.
//!
//! # Costs
//!
//! Polling reads one word for all idle peers and one cache line for each busy one; sockets are checked every
//! [`LOOK_EVERY_NS`]. Sending writes one line for a small packet, and executes one fence for a burst.

#[cfg(not(target_os = "linux"))]
compile_error!("sinew-shm needs Linux: sealed memfds, pidfds and epoll");

mod barrier;
mod hello;
mod hub;
mod link;
mod names;
mod options;
mod peer_source;
mod port;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
pub mod verbs;

pub use hub::Hub;
pub use names::NAME_LEN_MAX;
pub use options::{ARENA_BYTES_DEFAULT, ARENA_BYTES_MAX, ARENA_BYTES_MIN, RING_PACKETS_DEFAULT, RING_PACKETS_MAX};
pub use port::ShmPort;
pub use rx::ShmRx;
pub use tx::ShmTx;

/// The largest packet, in bytes.
pub const PACKET_LEN_MAX: usize = 32 << 10;
/// The most links of one port.
pub const LINKS_MAX: usize = sinew_mem::ring::BOARD_LINKS_MAX;
/// Interval at which a polled port checks its sockets, in nanoseconds of its caller's clock.
pub const LOOK_EVERY_NS: u64 = 50_000;
