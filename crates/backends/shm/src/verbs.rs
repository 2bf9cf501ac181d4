//! Verbs over shared memory: between the threads of a process, and between processes of one user.
//!
//! - **One-sided operations** are performed by the initiator's own thread, in the memory that its peer exposed, when
//!   the doorbell rings: a WRITE is a copy, and an atomic is a processor instruction. The target's processor takes no
//!   part in them, and they are complete when the doorbell returns.
//! - **Messages** travel as packets between ports ([`crate::ShmPort`]), of which each thread has one. The receiver puts
//!   them into the posted buffers when it polls any completion queue of the thread. RC checks that the peer has posted
//!   a receive before it sends a message, and waits for its acknowledgement. A UC or UD message is dropped and counted
//!   ([`ShmThread::discarded`]) when the receiver has posted no receive, or takes no packets from a full ring.
//!
//! One-sided operations do not wait until earlier messages are acknowledged, since that takes a poll by the receiver.
//! So when a message turns out not to fit its receive, later operations that were already performed complete as
//! [`Flushed`](sinew_fabric::verbs::Status::Flushed), although they have taken effect.
//!
//! # Devices
//!
//! [`ShmDevice::threads`] makes a device for one process alone. [`ShmDevice::open`] makes one that processes of the
//! same user can reach: `shm://name`, or `shm://`, for which a name is made up. (Queue pairs' addresses contain it.)
//! Options: `?ring=PACKETS`, as for ports, and `?exposed=BYTES`, the address space from which exposed memory is taken.
//! It uses memory only where it is written. Such a device has a thread of its own, which gives the memory to other
//! processes and takes part in no operation.
//!
//! # Guarantees when others misbehave
//!
//! An initiator is refused, with [`Status::RemoteAccess`](sinew_fabric::verbs::Status), for a wrong key, another
//! protection domain, a range out of bounds, an access that was not allowed, memory whose exposure has ended, and
//! memory whose owner is dead. Messages to a dead peer, and all requests to a queue pair that is gone although its
//! owner lives, end with `RetryExceeded`. A message also ends so, within some seconds, if it or its acknowledgement was
//! overwritten in transit. A message to a peer that is stopped, or does not poll, waits until the peer takes it, and
//! delays messages to no other peer.
//!
//! This guards well-meaning processes of one user against errors. **It is no security boundary**: a process that maps
//! another's exposed memory can write all of it, and the directory that describes it, without asking. Whatever such a
//! process writes there can only make operations fail and bytes wrong: bounds are checked against the mapping, and
//! packets are treated as hostile.
//!
//! The end of an exposure waits for initiators that are inside the region. One that was stopped there keeps the memory
//! from being reused for as long as it stays stopped ([`ShmDevice::quarantined`]), and delays nobody else.
//!
//! # Why operations are cheap
//!
//! **Work that operations share is done once.** The gate of a queue pair proves that requests may go now (its
//! state, room, nothing unfinished before them) and then grants as many as there is room for, until something takes the
//! grants away. A list of inline requests
//! ([`post_inline_list`](sinew_fabric::verbs::QueuePair::post_inline_list)) is performed as it comes, and its datagrams
//! are announced together. Requests that may not go now are queued, and so are all requests that are neither inline
//! nor READs into one buffer (`push_read`, `post_read`,
//! [`post_reads`](sinew_fabric::verbs::QueuePair::post_reads)). READs of a list are done when it is posted, and WRITEs
//! by [`write_at_once`](sinew_fabric::verbs::QueuePair::write_at_once) when it returns: they have no completions and
//! take no places in the queue.
//!
//! **A region is entered once** for up to 64 WRITEs of a list, and for a list of READs. The initiator enters and leaves
//! a *seat* that the owner can see. To end an exposure, the owner waits until no seat says that an initiator works
//! there, and does not reuse memory in which a stopped initiator still sits. Memory whose owner died is refused like
//! memory that is not exposed, where a NIC would get no answer. The words that record all this are compared with their
//! values on entry before each READ, before each WRITE that reports its completion, and after a list of WRITEs at once.
//! (They change once, unless a peer resets its queue pair and connects it to the same one again, which did not reset.)
//!
//! **A datagram takes a short path.** Between queue pairs with one key, as nearly all have, its header is two words, so
//! 40 bytes of message fill a line of the ring. The header is copied and checked, and then the message goes straight
//! from the ring to its buffer, with one look at the queue pair for all datagrams of a burst. Receives are posted as
//! lists ([`post_buffers`](sinew_fabric::verbs::QueuePair::post_buffers)).
//!
//! **Datagrams that are read at once** ([`poll_messages`](sinew_fabric::verbs::CompletionQueue::poll_messages)) all
//! pass through the buffer of the oldest receive, which stays posted. No completion is written for them.
//!
//! **A completion is written once**, where its user reads it: a poll swaps the list in which completions were written
//! for the user's empty one. A poll that receives packets lends its list to their completions.
//!
//! Instructions, with the completion where there is one (`cargo xtask cost`): a WRITE of 32 B in a list of 16 takes 71,
//! and 40 by `write_at_once`, a READ of 32 B in such a list 98, and 301 by `post_read`, a SEND over UD 109, its receive
//! 107 by `poll_messages`, and 212 by `poll` with the posting of the next.

mod address;
mod clock;
mod completion;
mod control;
mod counts;
mod device;
mod directory;
mod domain;
mod engine;
mod exposed;
mod fifo;
mod initiator;
mod life;
mod memory;
mod packet;
mod posting;
mod queue_pair;
mod queues;
mod ranges;
#[cfg(test)]
mod tests;
mod thread;
mod waiting;
mod wire;

pub use completion::ShmCompletionQueue;
pub use counts::Discarded;
pub use device::{EXPOSED_BYTES_DEFAULT, EXPOSED_BYTES_MAX, MESSAGE_LEN_MAX, MTU, ShmDevice, ShmDomain};
pub use exposed::ShmExposed;
pub use posting::ShmQueuePair;
pub use thread::ShmThread;
