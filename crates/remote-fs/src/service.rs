//! The metadata service of a file system, as a state machine.
//!
//! [`Service::take`] is given a client's bytes and the time, and answers at once or later. [`Service::turn`] works with
//! the donors, makes changes durable, and then releases the answers that waited for that. The service has no thread and
//! reads no clock. It reaches its donors through any [`Donors`](sinew_remote_memory::volume::Donors), and stores its
//! state on any [`Disk`](crate::disk::Disk), or nowhere.
//!
//! It consists of these parts:
//!
//! - *Store*: the durable state, the journal, and the free pages. A change is recorded as it is made, and nothing that
//!   depends on it is sent before it is durable: all requests of a turn share one sync.
//! - *Sessions*: open handles of clients, and whether the clients are alive.
//! - *Quota*: limits on the memory that names, inodes and extended attributes take.
//! - *Memory*: the donors. Each is fenced under the service's epoch before pages that it holds are reserved. Segments
//!   are made ahead of need, and missing copies are restored in the background.
//! - *Retired clients*: the reservations of dead clients, which become free once every donor has cut the client off.
//!
//! # Design
//!
//! - **Fencing.** A donor is fenced under the service's epoch before its pages are reserved. Once a slab is taken out
//!   of a segment, writes to it may still be in flight. So within that epoch it can only become a copy of the same
//!   segment again, unless its donor cuts off all clients; the next epoch's fence frees it.
//! - **Room.** If no donor has room for a missing copy, segments without contents are given back, as far as files were
//!   not promised their pages.
//! - **Promised room** (`fallocate`) is a number of pages, not particular ones: a file's map lists the holes that room
//!   was promised to. Free pages beyond that number, and beyond those kept for overwrites, are granted to anyone.
//!   A page that is reserved *to overwrite* counts as free: its commit frees the page that it replaces, or keeps a
//!   promise. So what is granted for that purpose never takes room away, and the sum of free pages and of those, less
//!   the promised ones, changes only with new contents (`store.rs`).
//! - **Kept for overwrites**: a sixty-fourth of all pages, at most 16 MiB. Data is written beside what it replaces, so
//!   without these a full file system could not be overwritten. A client that finds none left waits until others have
//!   committed, or were declared dead.
//! - **Withdrawal.** A donor that wants its memory back gets no new copies, and those that it has are rebuilt
//!   elsewhere. Its slabs are freed within the epoch, since it first cuts off all clients for the rest of it
//!   (`memory/withdrawal.rs`).
//! - **New copies.** Clients write to a new copy from its first moment, while the service fills it, step by step, with
//!   the pages of files. (A commit names the generation of the copies that were written, so a client that did not know
//!   of the new copy is refused.) Pages that become free during a step wait for its end, so that the step overwrites
//!   nothing newer. Each page is checked by its checksum before it is copied; one that is wrong is looked for in the
//!   other copies, and put right in those where it was wrong (`memory/filling.rs`). The checksums of a segment's pages
//!   are collected from the maps of all files before it is filled, a bounded number at each turn (`page_sums.rs`).
//!   While a copy that may have the right bytes is out of reach, the new one does not count.
//! - **After a restart**, inodes without a name stay until all clients have come back or are dead, since a client may
//!   have them open. Inodes that have lost their name since then are dropped at once.
//! - **Blame.** When a client blames a donor, that donor's copy is removed only if the service itself reaches another
//!   whole copy: one that the state lists may be lost by now.
//! - **Locks** are not stored: clients report theirs after a restart. A client whose lock conflicts asks again until it
//!   has it, and says that it waits. So the service knows all waits of all hosts, and refuses the request that would
//!   close a circle of `fcntl` owners which wait for each other (`locks/waits.rs`). A search looks at a bounded number
//!   of locks.
//! - **Bounds.** Options limit the inodes and the bytes of extended attributes, and the protocol's limits bound the
//!   rest. The options' limits are checked before a change is made, so that state written under other limits can still
//!   be read. The bound on an answer includes the places of segments that layouts and reservations carry.

mod config;
mod core;
mod growth;
mod lanes;
mod memory;
mod orphans;
mod page_sums;
mod quota;
mod reads;
mod repair;
mod retired_clients;
mod room;
mod sessions;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;

pub use config::{Config, Failure, Now, OpenError, Stats};
pub use core::{Accepted, Service};
