//! The metadata service of a file system, as a state machine.
//!
//! [`Service::take`] is handed a client's bytes and the time, and answers at once or later; [`Service::turn`] does what there is to do with donors, makes what has changed last, and then has the
//! answers that waited for that. The service has no thread and reads no clock; donors are whatever is [`Donors`](sinew_remote_memory::volume::Donors), and it keeps what must last on whatever is
//! a [`Disk`](crate::disk::Disk), or on none.
//!
//! - *Store*: what is kept, the journal, and which pages are free. A change is recorded as it is made, and nothing that depends on it leaves before it lasts: all requests of a turn wait for one
//!   sync together.
//! - *Sessions*: what clients have open and locked, and whether they are alive.
//! - *Room*: what names may take.
//! - *Memory*: the donors. Each is fenced under the service's epoch before pages that it has are reserved. Segments are made ahead of need, and copies that are missing are made anew in the background.
//! - *Graves*: what a dead client had reserved is free again once every donor has cut it off.

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
