//! The protocol between the clients of a file system and its metadata service.
//!
//! A client opens an `rpc` session and sends [`Message`]s as requests of type [`FILES`]. Each is answered with one
//! [`Reply`].
//!
//! # Life of a client
//!
//! 1. [`Message::Greet`], which a service of another [`VERSION`] refuses, and, if that is answered with a nonce,
//!    [`Message::Prove`] with the pool's key
//!    ([`Key::proof`](sinew_remote_memory::donor::Key::proof)). This admits the `rpc` session; over a new session the
//!    client greets again.
//! 2. [`Message::Join`]. The answer, [`Joined`], has the client's number, a secret that all later requests carry, the
//!    service's epoch and the donors. The client has each donor admit it ([`Joined`] has the volume, epoch and client
//!    number for that).
//! 3. [`Message::Request`], with an [`Envelope`] around each [`Request`].
//! 4. The client sends something at least every third of [`Joined::lease_ns`], a [`Request::Heartbeat`] if there is
//!    nothing else. A client that is silent for the whole lease is declared dead: its open handles, locks and
//!    reservations are gone, and donors expel it.
//! 5. [`Request::Leave`] at the end.
//!
//! [`Error::Rejoin`] means that the service has restarted, or declared the client dead. The client joins again, with
//! [`Join::before`], its open handles and its locks. If [`Joined::is_known`], it keeps its number, all answers remain
//! valid, and unanswered requests are sent again *with their sequence numbers*: each is performed once. If not, it is a
//! new client: its handles and locks are gone, and the outcome of unanswered requests is unknown. In both cases
//! reservations are gone: uncommitted pages must be written to newly reserved ones.
//!
//! # Guarantees
//!
//! - An answer to a request that changes something ([`Request::changes`]) is sent after the change is on the service's
//!   disk. So there is no request for `fsync`: everything that a client has flushed and committed is durable.
//! - A request that changes something carries a sequence number that its client never used before, and
//!   [`Envelope::settled`]. It is performed once, however often it is sent, even over restarts of the service. A client
//!   has at most [`IN_FLIGHT_MAX`] of them unanswered. Requests that change nothing carry the number 0.
//! - Requests in flight at the same time are performed in any order. A client that needs an order waits for the answer.
//! - Pages are [`PAGE`] bytes. A reserved page belongs to its client alone until it is committed or given back, or the
//!   client is declared dead. A commit replaces pages of the file, all or none, in one step.
//! - The checksum of a page is [`checksum`](sinew_remote_memory::volume::checksum) of its [`PAGE`] bytes as they lie at
//!   the donors. Bytes with the right checksum are right, wherever they were found. A reader that finds other bytes
//!   asks for the layout again, since the place may hold a page of another file by now, and tries the other copies.
//!
//! # Encoding
//!
//! Values are encoded with `postcard`. Readers check every length, name and range; invalid input is an error and never
//! a panic.

mod answer;
mod attr;
mod error;
mod limits;
mod page;
mod request;
mod wire;

pub use answer::{Answer, DonorInfo, Entry, Joined, Layout, Reply, Space};
pub use attr::{Attr, Caller, Ino, Kind, Time};
pub use error::Error;
pub use limits::{
    ANSWER_LEN_MAX, EXTENTS_MAX, FILE_LEN_MAX, GROUPS_MAX, IN_FLIGHT_MAX, LAYOUT_PAGES_MAX, LINK_LEN_MAX, LINKS_MAX,
    LOCK_WAIT_NS, LOCK_WAITS_MAX, LOCKS_MAX, NAME_LEN_MAX, OPENS_MAX, PAGE, READDIR_MAX, REQUEST_LEN_MAX,
    RESERVE_PAGES_MAX, SECRET_LEN, SEGMENTS_MAX, XATTR_VALUE_MAX, XATTRS_LEN_MAX,
};
pub use page::{Extent, Pages, Placement, Reservation, Run, SegmentCopy, Sums, contents_name};
pub use request::{
    Access, Envelope, Join, Lock, LockKind, LockOwner, Message, Mode, NodeKind, OpenFile, Request, SetAttr, SetTime,
    SetXattr,
};
pub use wire::{FILES, Malformed, VERSION};
