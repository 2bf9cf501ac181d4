//! Key-value services over `store`'s tables.
//!
//! - [`cache`]: a cache over RPC, one partition of its keys for each server thread.
//! - [`memcached`]: a door to the same tables for memcached clients.
//! - [`Partitions`]: which partition a key belongs to, for servers and clients alike.
//!
//! Nothing here reads a clock or does I/O of its own: time is handed in, and ports carry the packets.
#![forbid(unsafe_code)]

pub mod cache;
pub mod memcached;
mod partitions;

pub use partitions::{PARTITIONS_MAX, Partitions};
