//! Packet ports, and [verbs], between threads and between processes of one host, over shared memory.
//!
//! Each pair of ports that talk has a *link*: two single-producer rings ([`sinew_mem::ring`]), one each way, and a view of each
//! other's arena and board. A packet up to [`INLINE_MAX`](sinew_mem::ring::INLINE_MAX) bytes travels in the ring, a small one
//! in a single cache line. A longer one stays where its sender has it, and the receiver copies it from there: one copy in
//! all. What is not in the sender's arena is copied there first.
//!
//! # Addresses
//!
//! `shm://name` is a port that others find by its name, `shm://` one without a name, which can talk to named ones and is
//! answered over the same link. Names belong to a user: they live in a directory that only the user can enter
//! (`$XDG_RUNTIME_DIR/sinew`, or `/tmp/sinew-UID`). What a killed process leaves there is removed when its name is looked up,
//! or any is taken. Options:
//!
//! - `?ring=PACKETS`: packets of one sender that can be waiting at this port, whatever their length. Each of a link's two
//!   rings is as large as its *receiver* wants it, so both ports' wishes hold.
//! - `?arena=BYTES`: address space for message buffers. It takes memory only where buffers are used.
//!
//! Threads of one process need no names in the file system: a [`Hub`] makes ports whose links are private memory, where received
//! packets are lent in place.
//!
//! # What holds when others misbehave
//!
//! - Peers are processes of the same user. Memory that they can write is read only by copying it out; everything in it is
//!   checked, and a peer that breaks the rules loses its link.
//! - Nobody holds anything that others wait for. A peer that is stopped or killed at any instruction delays its own packets
//!   only. The death of a peer is seen at once, and what it had sent before is still delivered.
//! - After [`flush`](sinew_fabric::PacketTx::flush) no peer can receive bytes that were lent to it: each such packet has a word
//!   that the sender changes and the receiver checks after its copy.
//!
//! # What it costs
//!
//! Polling looks at one word for all idle peers and at one line for each busy one; sockets are looked at every
//! [`LOOK_EVERY_NS`]. Sending is one line written for a small packet, and one fence for a burst.

#[cfg(not(target_os = "linux"))]
compile_error!("sinew-shm needs Linux: sealed memfds, pidfds and epoll");

mod barrier;
mod door;
mod hello;
mod hub;
mod link;
mod names;
mod options;
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
/// How often a port that is polled looks at its sockets, in nanoseconds of its caller's clock.
pub const LOOK_EVERY_NS: u64 = 50_000;
