//! Verbs: the operations of an RDMA NIC, as one interface over whatever carries them.
//!
//! The terms are the field's. A [`Device`] gives [`ProtectionDomain`]s; a domain gives memory and, for each thread that
//! works with it, a [`ThreadDomain`] with that thread's completion queues and queue pairs. (No other thread can touch
//! those: sharing them costs more than it gives, atc16 3.2.)
//!
//! - **Memory for messages** is an ordinary [`Arena`] that the domain registered. A receive or the result of a READ
//!   takes [`MessageBuffer`]s, which are exclusive, and the completion gives them back. What is sent comes from
//!   [`Frozen`] shares, which can be read and posted again meanwhile, or is a slice, copied at once (inline). A user's
//!   own memory, a buffer of any arena or a vector, can be registered separately ([`Registered`],
//!   [`ProtectionDomain::register`]).
//! - **Parts of one memory** are [`OwnedRange`]s, which a buffer or a vector becomes and is split into. Each part can
//!   be the target of a READ or the source of a WRITE, many at the same time ([`Operation::ReadRange`],
//!   [`Operation::WriteRange`]). Joined again, they are the memory that they were made of.
//! - **Memory exposed to others** is [`Exposed`]: bytes that anybody may be writing, which are copied out or loaded
//!   word by word and never seen as a slice.
//! - **Requests** are pushed one by one and start with [`QueuePair::doorbell`], so a list of them costs one doorbell.
//!   Those of inline bytes have a short form that owns nothing ([`InlineRequest`]). READs into one buffer have short
//!   forms ([`QueuePair::push_read`], [`QueuePair::post_reads`]), and so have lists of receives
//!   ([`QueuePair::post_buffers`]). Devices that move bytes themselves perform lists of WRITEs without completions
//!   ([`QueuePair::write_at_once`]).
//! - **Messages that are read at once** need not leave their buffers: [`CompletionQueue::poll_messages`] shows them,
//!   and their receives stay posted.
//! - **Completions** come from a [`CompletionQueue`], with the standard statuses.
//!
//! [`port::UdPort`] is a UD queue pair as a packet port.
//!
//! Nothing here relies on destructors for its soundness: a table in the queue pair keeps what an operation needs until
//! the operation is over, and a queue pair that is forgotten keeps it for good.
//!
//! # What each transport allows
//!
//! | | SEND, RECV | WRITE | READ, atomics |
//! | --- | --- | --- | --- |
//! | RC (reliable connection) | yes | yes | yes |
//! | UC (unreliable connection) | yes | yes | no |
//! | UD (unreliable datagram) | yes, up to one MTU | no | no |
//!
//! (Table 1 of atc16 and of sigcomm14; [`Transport::allows`].) Anything else is refused when it is pushed.
//!
//! # Ordering
//!
//! Requests of one queue pair start, take effect and complete in the order in which they were pushed, with one
//! exception: the result of a READ or an atomic may arrive after a later SEND or WRITE has taken effect, unless that
//! one carries [`Request::fence`] (InfiniBand specification, volume 1, 10.8.3.3). Between queue pairs nothing is
//! ordered. A WRITE appears in ascending order of addresses, and no more than an aligned word of it at once: NICs that
//! write whole cache lines do more, but designs that need more than a word must find out whether what they read is
//! torn.
//!
//! # Failures
//!
//! Over a connected transport a request that fails completes with its status, requests behind it are flushed and take
//! no effect, and the queue pair goes to error. RC fails when the peer does not allow an access
//! ([`Status::RemoteAccess`]), has no room for a message ([`Status::RemoteInvalidRequest`]; its receive ends with
//! [`Status::LocalLength`]), has no receive for it after [`QpConfig::rnr_retries`] tries
//! ([`Status::RnrRetryExceeded`]), or does not answer ([`Status::RetryExceeded`]). An access to memory whose owner died
//! ends with [`Status::RetryExceeded`] where a device hears only silence, as NICs do, and with
//! [`Status::RemoteAccess`], as for memory that is no longer exposed, where it knows of the death. The sender of UC and
//! UD hears of none of these, unless its device happens to know (InfiniBand specification, volume 1, 9.9.2 and 9.9.3).
//!
//! One exception: if a device performs WRITEs, READs and atomics without waiting for the answer to an earlier message
//! (its documentation says so), those behind a message that fails may have taken effect although they complete as
//! flushed.
//!
//! `sinew_conformance::verbs` checks this, as one suite of facts for every device.
//!
//! # Design
//!
//! - **Buffers move.** What a request reads is a [`Frozen`] share or an inline slice; what it writes is a
//!   [`MessageBuffer`], which moves in and comes back with the completion. Both lie in a table of the queue pair until
//!   the operation is over. (For a real device, that table outlives the device's own queue pair.) So `mem::forget`
//!   loses memory, and never soundness.
//! - **A buffer can be registered by itself.** A buffer of an arena that the domain does not know can be registered
//!   with [`ProtectionDomain::register`], which keeps its *place* mapped, and not the buffer. That is sound, no matter
//!   who has the buffer: only what is posted is written, and the exclusive handle of that lies in a queue pair's table.
//!   [`Registered`] takes the buffer, and refuses to end while the buffer is in use ([`InUse`]). A queue pair looks
//!   among the registrations ([`Registry`]) when a buffer is of none of the domain's arenas.
//! - **A part of a buffer is no buffer.** A [`MessageBuffer`] is one pointer to a block whose description and first
//!   packet header lie in front of the data, so that a small message goes out in one piece; a part in the middle has no
//!   room for them. An [`OwnedRange`] is therefore a type of its own, bytes without headers, which no packet port
//!   takes. Ranges count the handles on their memory, and only the last one gives it back, so no table has to say who
//!   holds which part.
//! - **Exposed memory is never a slice.** `sinew_mem::SharedMemory` is copied out of, or loaded by words, for as long
//!   as anybody may write it.
//! - **A [`ThreadDomain`] holds what one thread owns**, so its completion queues and queue pairs take no locks (atc16
//!   3.2). Libibverbs has no such thing; there it only keeps the types from being sent.
//! - **[`QueuePair::push`] and [`QueuePair::doorbell`] are two calls**, so a list costs one doorbell. Once warm,
//!   posting neither allocates nor enters the kernel, except to wake a peer that sleeps.
//! - **An inline request is plain data.** A [`Request`] may own shares and buffers, so every function through which it
//!   passes checks whether to drop them. An [`InlineRequest`] owns nothing: a device reads its fields where the caller
//!   has them. Small WRITEs and SENDs, of which there are millions a second, are of this form.
//! - **A port that is a queue pair is found by [`Names`]**, since a queue pair's address is numbers that change with
//!   each start. With `sinew_host::TcpNames` a name is a place `HOST:PORT`, where a thread sends the same frame to
//!   every caller and closes. So the endpoint's loop never sees callers that only ask, and waits for none of them. The
//!   facade puts device, port and names together as `ibverbs://`; the tests do so over shared memory too.
//!
//! The machines on which Sinew was developed have no RDMA NIC. `cargo xtask guest` boots Debian's kernel in QEMU with a
//! soft-RoCE device, and CI runs there the tests that otherwise report `skipped: no device`. The tests of the RPC layer
//! run once more with each of their packets carried by a [`port::UdPort`] (`tests/tests/carried`).

mod completion;
mod error;
mod inline;
mod memory;
mod names;
pub mod port;
mod registered;
mod request;
mod shared_queues;
mod table;
mod traits;
mod types;

pub use completion::{Completion, Message, Status};
pub use error::{PostError, VerbsError};
pub use inline::{InlineOperation, InlineRequest};
pub use memory::{Exposed, RemoteMemory, Straggler};
pub use names::Names;
pub use registered::{InUse, RegisterError, Registered, Registrable, Registration, Registry};
pub use request::{
    Destination, GATHER_MAX, Gather, Operation, RefusedReceive, RefusedRequest, Request, Scatter, Slice, Source,
    check_receive,
};
pub use shared_queues::SharedQueues;
pub use table::{WorkEntry, WorkTable};
pub use traits::{CompletionQueue, Device, ProtectionDomain, QueuePair, ThreadDomain, show_messages};
pub use types::{Access, Attributes, Opcode, QpAddress, QpConfig, QpNumber, QpState, Transport, Verb};

// Named for the documentation above.
#[allow(unused_imports)]
use sinew_mem::{Arena, Frozen, MessageBuffer, OwnedRange};
