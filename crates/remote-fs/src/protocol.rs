//! What the clients of a file system and its metadata service say to each other.
//!
//! A client opens an `rpc` session and sends [`Message`]s as requests of type [`FILES`]; each is answered with one [`Reply`].
//!
//! # A client's way
//!
//! 1. [`Message::Greet`], and, where that is answered with a nonce, [`Message::Prove`] with the pool's key
//!    ([`Key::proof`](sinew_remote_memory::donor::Key::proof)). Both hold for the `rpc` session: a new session greets again.
//! 2. [`Message::Join`]. The answer, [`Joined`], has the client's number and a secret that all later requests carry, the service's epoch and the donors. The
//!    client has each donor admit it (volume, epoch and client number are in [`Joined`]).
//! 3. [`Message::Ask`], with an [`Envelope`] around each [`Request`].
//! 4. It sends something at least every third of [`Joined::lease_ns`] ([`Request::Heartbeat`] where there is nothing else). A client that was silent for the lease is
//!    dead: what it has open, its locks and its reservations are gone, and donors expel it.
//! 5. [`Request::Leave`] when it goes.
//!
//! [`Error::Rejoin`] says that the service has started again, or took the client for dead. The client joins again, with [`Join::before`], what it has open and its
//! locks. When [`Joined::is_known`], it keeps its number, all that was answered holds, and requests without an answer are sent again *with their sequence numbers*: each
//! is performed once. When not, it is another client: what it had open and locked is gone, and nobody knows about requests without an answer. In both cases reservations are
//! gone: pages that were not committed are written to new ones.
//!
//! # What holds
//!
//! - An answer to a request that changes something ([`Request::changes`]) comes after the change is on the service's disk. So there is no request for `fsync`: what a
//!   client has flushed and committed is kept.
//! - Such a request carries a sequence number that its client never used before, and [`Envelope::settled`]. It is performed once however often it is sent, and over restarts
//!   of the service. A client has at most [`IN_FLIGHT_MAX`] of them without an answer. Requests that change nothing carry 0.
//! - Requests under way at the same time are performed in any order. A client that needs an order waits for the answer.
//! - Pages are [`PAGE`] bytes. A page that was reserved is this client's alone until it is committed, given back, or the client is dead. A commit replaces pages of
//!   the file, all or none, in one step.
//! - The checksum of a page is [`checksum`](sinew_remote_memory::volume::checksum) of its [`PAGE`] bytes as they lie at the donors. Bytes that have it are right, wherever they were found. A
//!   reader that finds others asks for the layout again, since the page may belong to another file by now, and tries the other copies.
//!
//! # As bytes
//!
//! Values are written with `postcard`. Readers check every length, name and range; what makes no sense is an error and never a panic.

mod answer;
mod attr;
mod error;
mod limits;
mod page;
mod request;
mod wire;

pub use answer::{Answer, DonorPlace, Entry, Joined, Layout, Reply, Space};
pub use attr::{Attr, Caller, Ino, Kind, Time};
pub use error::Error;
pub use limits::{
    ANSWER_LEN_MAX, EXTENTS_MAX, FILE_LEN_MAX, GROUPS_MAX, IN_FLIGHT_MAX, LAYOUT_PAGES_MAX, LINK_LEN_MAX, LINKS_MAX,
    LOCKS_MAX, NAME_LEN_MAX, OPENS_MAX, PAGE, READDIR_MAX, REQUEST_LEN_MAX, RESERVE_PAGES_MAX, SECRET_LEN,
    SEGMENTS_MAX, XATTR_VALUE_MAX, XATTRS_LEN_MAX,
};
pub use page::{Extent, Fresh, Pages, Place, Replica, Run, Sums};
pub use request::{
    Access, Envelope, Held, Join, Lock, LockKind, LockOwner, Message, Mode, NodeKind, Request, SetAttr, SetTime,
    SetXattr,
};
pub use wire::{FILES, Malformed};
