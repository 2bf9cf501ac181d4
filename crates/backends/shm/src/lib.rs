//! Packet ports, and [verbs], between threads and between processes of one host, over shared memory.
//!
//! Each pair of ports that communicate has a *link*: two single-producer rings ([`sinew_mem::ring`]), one each way, and
//! a view of each other's arena and board. A packet of up to [`INLINE_MAX`](sinew_mem::ring::INLINE_MAX) bytes travels
//! in the ring, a small one in a single cache line. A longer one stays in its sender's arena, and the receiver copies
//! it from there: one copy in all. Data outside the sender's arena is copied into it first, and so is a packet of up to
//! a kilobyte, for which each link has some buffers of its own: a copy costs less than a share.
//!
//! # Terms
//!
//! Of ports:
//!
//! - **Link** (`link.rs`): the shared memory of two ports, with a ring each way. The *initiator* resolved the name of
//!   the *acceptor*, and made the memory.
//! - **Arena** (`port.rs`): a port's memory for message buffers; its peers map it to read long packets.
//! - **Board** (`mem/src/ring/board.rs`): a port's memory in which each sender has a bit, set while the sender's ring
//!   is polled. The board also tells senders that the port sleeps.
//! - **Doorbell** (`mem/src/ring/board.rs`): a sender's view of its receiver's board. Ringing it sets the sender's bit,
//!   and shows whether the receiver must be woken.
//! - **Bell** (`hello.rs`): a one-byte message over a link's socket, which wakes a sleeping port of another process.
//! - **Hello** and **welcome** (`hello.rs`): the first message over a link's socket and its answer, which carry the
//!   descriptors of the link's memory, arenas and boards.
//! - **Pending connection** (`peer_source.rs`): one that has not sent its hello.
//! - **Hub** (`hub.rs`): the directory in which the threads of one process find each other's ports.
//! - **Mailbox** (`hub.rs`): a port's queue of control messages from other ports of its hub, and what they map.
//! - **Hot** link (`rx.rs`): one whose ring the receiver polls at each turn.
//! - **Upkeep** (`rx/upkeep.rs`): the occasional check of everything but the hot rings, in passes.
//! - **Lent** and **staged** packets (`tx.rs`): long packets whose bytes stay in the sender's arena until the receiver
//!   has taken them. A staged packet's bytes were copied into a buffer of the port's own.
//! - **Copies** (`copies.rs`): packets of up to a kilobyte, copied into buffers of the link's own.
//! - **Sweep** (`names/sweep.rs`): the removal of files that killed processes left in the directory of names.
//!
//! Of verbs:
//!
//! - **Exposed memory** (`verbs/memory.rs`): a device's memory from which the regions that others may access are taken.
//! - **Directory** (`verbs/directory.rs`): a device's shared table of exposed regions, queue pairs and seats.
//! - **Seat** (`verbs/directory.rs`): a line of the directory that belongs to one initiator's thread. While the thread
//!   works in a region, the seat says in which.
//! - **Straggler** (`verbs/directory.rs`): an initiator that was stopped in the middle of a change.
//! - **Quarantine** (`verbs/memory.rs`): ranges that are not reused yet, because a stopped initiator may be inside.
//! - **Life** (`verbs/life.rs`): a word that the kernel changes when the device's owner dies.
//! - **Engine** (`verbs/engine.rs`): a thread's port, queue pairs and completion queues.
//! - **Probe** (`verbs/queue_pair/watch.rs`): an acknowledgement without news; by probes a sender counts its peer's
//!   turns.
//!
//! # Addresses
//!
//! `shm://name` is a port that others find by its name; `shm://` is one without a name, which can talk to named ones
//! and is answered over the same link. Names belong to a user: they live in a directory that only the user can enter
//! (`$XDG_RUNTIME_DIR/sinew`, or `/tmp/sinew-UID`). Files that a killed process leaves there are removed when its name
//! is looked up, or when any name is claimed. Options:
//!
//! - `?ring=PACKETS`: packets of one sender that can wait at this port, whatever their length. Each of a link's two
//!   rings has the size that its *receiver* asks for.
//! - `?arena=BYTES`: address space for message buffers. Memory is used only where there are buffers.
//!
//! Threads of one process need no names in the file system: a [`Hub`] makes ports whose links are private memory, where
//! received packets are lent in place.
//!
//! # Guarantees when peers misbehave
//!
//! - Peers are processes of the same user. Memory that they can write is read only by copying it out; everything in it
//!   is checked, and a peer that breaks the rules loses its link.
//! - No peer holds anything for which others wait. A peer that is stopped or killed at any instruction delays only its
//!   own packets. The death of a peer is detected at once, and the packets that it had sent before are still delivered.
//! - After [`flush`](sinew_fabric::PacketTx::flush) no peer can receive bytes that were lent to it: each lent packet
//!   has a word that the sender changes and the receiver checks after its copy.
//!
//! # Costs
//!
//! Polling reads one word for all idle peers and one cache line for each busy one; sockets are checked every
//! [`UPKEEP_EVERY_NS`]. Sending writes one line for a small packet, and executes one fence for a burst.

#[cfg(not(target_os = "linux"))]
compile_error!("sinew-shm needs Linux: sealed memfds, pidfds and epoll");

mod barrier;
mod copies;
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
pub const UPKEEP_EVERY_NS: u64 = 50_000;
