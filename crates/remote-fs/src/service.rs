//! The metadata service of a file system, as a state machine.
//!
//! [`Service::take`] is given a client's bytes and the time, and answers at once or later. [`Service::turn`] works with
//! the donors, makes changes durable, and then releases the answers that waited for that. The service has no thread and
//! reads no clock. Its donors are anything that implements [`Donors`](sinew_remote_memory::volume::Donors). It stores
//! its state on anything that implements [`Disk`](crate::disk::Disk), or nowhere.
//!
//! - *Store*: the durable state, the journal, and the free pages. A change is recorded as it is made, and nothing that
//!   depends on it is sent before it is durable: all requests of a turn share one sync.
//! - *Sessions*: open handles of clients, and whether the clients are alive.
//! - *Room*: limits on what names may take.
//! - *Memory*: the donors. Each is fenced under the service's epoch before pages that it holds are reserved. Segments
//!   are made ahead of need, and missing copies are restored in the background.
//! - *Graves*: the reservations of a dead client, which become free once every donor has cut it off.

mod config;
mod core;
mod graves;
mod growth;
mod lanes;
mod memory;
mod reads;
mod repair;
mod room;
mod sessions;
mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use config::{Config, Failure, Now, OpenError, Stats};
pub use core::{Service, Taken};
