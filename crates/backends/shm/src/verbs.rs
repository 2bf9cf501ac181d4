//! Verbs over shared memory: between the threads of a process, and between processes of one user.
//!
//! - **One-sided operations** are performed by the initiator's own thread in the memory that its peer exposed, when the
//!   doorbell rings: a WRITE is a copy, and an atomic is the processor's. The target's processor has no part in them,
//!   and they are over when the doorbell returns.
//! - **Messages** travel as packets of a port that each thread has ([`crate::ShmPort`]), and are put into the posted
//!   buffers by the receiver, when it polls any completion queue of the thread. RC looks whether the peer has posted a
//!   receive before it sends, and is acknowledged; what UC and UD send to somebody who has posted no receive, or does
//!   not take packets from a full ring, is dropped and counted ([`ShmThread::discarded`]).
//!
//! One-sided operations do not wait until messages before them are acknowledged, which takes the receiver's poll. So
//! when a message turns out not to fit its receive, those behind it that were performed already complete as
//! [`Flushed`](sinew_fabric::verbs::Status::Flushed), and have taken effect all the same.
//!
//! # Devices
//!
//! [`ShmDevice::threads`] is a device of one process alone. [`ShmDevice::open`] makes one that processes of the same
//! user reach: `shm://name`, or `shm://`, for which a name is made up. (Queue pairs' addresses carry it.) Options:
//! `?ring=PACKETS` as for ports, and `?exposed=BYTES`, the address space from which exposed memory is taken. It takes
//! memory only where it is written. Such a device has a thread of its own, which gives the memory to other processes
//! and is on the way of no operation.
//!
//! # What holds when others misbehave
//!
//! An initiator is turned away, with [`Status::RemoteAccess`](sinew_fabric::verbs::Status), by a wrong key, another
//! protection domain, a range out of bounds, an access that was not allowed, memory whose exposure ended, and memory
//! whose owner is dead. Messages to the dead, and all requests to a living owner's queue pair that is gone, end with
//! `RetryExceeded`; so does a message that was spoiled on its way, or whose acknowledgement was, within some seconds.
//! One to a peer that is stopped, or does not poll, waits for as long as that takes. It delays those to no other peer.
//!
//! This guards processes of one user, which mean well, against errors. **It is no security boundary**: a process that
//! maps another's exposed memory can write all of it, and the directory over it, without asking. What such a process
//! writes there can make operations fail and bytes wrong, and nothing else: bounds are checked against the mapping,
//! packets as hostile.
//!
//! An exposure's end waits for initiators that are inside the region. One that was stopped there keeps the memory from
//! being used again for as long as it stays stopped ([`ShmDevice::quarantined`]), and delays nobody else.

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
