//! Remote memory as a block device: an NBD server on any [`Store`](sinew_remote_memory::Store).
//!
//! - [`protocol`]: what is said, without I/O. Whatever a client sends, it answers or ends.
//! - [`server`]: sockets, the store and one thread that sleeps on both.
#![forbid(unsafe_code)]

pub mod protocol;
pub mod server;

pub use sinew_door::Listener;

pub use server::{Closed, Config, Counters, OpenError, Server};
