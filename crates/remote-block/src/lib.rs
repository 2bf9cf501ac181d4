//! Remote memory as a block device: an NBD server on any [`Store`](sinew_remote_memory::Store).
//!
//! - [`protocol`]: the NBD protocol, without I/O. Whatever a client sends, it is answered or the connection is ended.
//! - [`last_copy`]: a file of this host as one more copy of a store.
//! - [`server`]: sockets, the store and one thread that sleeps on both.
#![forbid(unsafe_code)]

pub mod last_copy;
pub mod protocol;
pub mod server;

pub use last_copy::{LastCopy, LastCopyError, LastCopyFile, LastCopyStats, VolumeIdentity};
pub use sinew_door::Listener;

pub use server::{Closed, Config, Counters, OpenError, Server};
