//! Key-value services over `store`'s tables.
//!
//! - [`cache`]: a cache over RPC, one partition of its keys for each server thread.
//! - [`memcached`]: a door to the same tables for memcached clients.
//! - [`pilaf`] and [`farm`]: Pilaf's and FaRM's stores, whose GETs are READs, over [`one_sided`].
//! - [`drtm`]: DrTM-KV's, whose PUTs are one-sided too: lock, update, unlock.
//! - [`herd`]: HERD's cache, over verbs.
//! - [`ordered`]: an index in the order of its keys, over RPC, whose scans run in workers.
//! - [`Partitions`]: which partition a key belongs to, for servers and clients alike.
//!
//! Nothing here reads a clock, and time is handed in. Ports and verbs carry what is said, but for the sockets of [`memcached::Door`].
#![forbid(unsafe_code)]

pub mod cache;
pub mod drtm;
pub mod farm;
pub mod herd;
pub mod memcached;
pub mod one_sided;
pub mod ordered;
mod partitions;
pub mod pilaf;

pub use partitions::{PARTITIONS_MAX, Partitions};
