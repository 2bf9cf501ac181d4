//! A file system whose data lies in donors' memory, and whose names lie at one metadata service.
//!
//! - [`client`]: file access for a program on another host.
//! - [`map`]: the pages of donors' memory that hold a file's pages.
//! - [`protocol`]: requests of clients and answers of the service, as values and as bytes.
//! - [`tree`]: the names, as a state machine.
//! - [`space`]: free and used pages of the donors' memory, and their owners.
//!
//! Clients read and write pages at the donors directly, one-sided, and write only to memory that the service has
//! reserved for them. A commit tells the service which pages a file now has. Data is never overwritten in place, so an
//! interrupted write leaves the old contents, page by page.
//!
//! # Design
//!
//! The file system is not built on a volume, since a volume has one writer. Its clients write to reserved memory at the
//! donors and then commit; the service alone knows which pages a file has. A part uses only those listed before it, and
//! none of them except `disk::HostDisk` does I/O:
//!
//! - [`protocol`] is values and their encoding. A checksum covers a page's contents alone: bytes that match it are
//!   right wherever they were found, so even with a stale layout no client reads another file's bytes.
//! - [`tree`] (the names, with [`map`]s of pages) is changed by requests. [`durable_state`] is the tree with the
//!   clients, their unsettled answers and the segments, and is changed by operations, which are the [`journal`]'s
//!   records. So an answer that was lost is sent again after a restart.
//! - [`journal`]: a record names its predecessor's checksum, and how far the log was known to be durable. So a tail
//!   that was never made durable is truncated, whichever parts of it reached the disk, and a log damaged before that
//!   point is refused. Records of a turn are synced together; answers, including those to reads, wait until all records
//!   are durable. Log space is reserved before a change is made, so with a full disk changes are refused and nothing
//!   else is.
//! - [`space`] is not stored: used pages are those that belong to files. The reservations of a dead client are kept
//!   apart until every donor that has copies of them has expelled the client.
//! - [`service`] ties them together with the donors.
//!
//! A page that is truncated in its middle is not rewritten: the map says how many of its bytes are valid.
#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod durable_state;
pub mod locks;
pub mod map;
pub mod protocol;
pub mod service;
pub mod space;
pub mod tree;

pub use sinew_journal::{self as journal, disk};
