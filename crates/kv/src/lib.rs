//! Key-value services over `store`'s tables.
//!
//! - [`cache`]: a cache over RPC, one partition of its keys for each server thread.
//! - [`memcached`]: a listener that serves the same tables to memcached clients.
//! - [`pilaf`] and [`farm`]: Pilaf's and FaRM's stores, whose GETs are READs, over [`one_sided`].
//! - [`drtm`]: DrTM-KV's store, whose PUTs are one-sided too: lock, update, unlock.
//! - [`herd`]: HERD's cache, over verbs.
//! - [`ordered`]: an index in key order, over RPC, whose scans run in workers.
//! - [`Partitions`]: the mapping from keys to partitions, shared by servers and clients.
//!
//! Nothing here reads a clock; the time is passed in. All communication goes over ports and verbs, except for the
//! sockets of [`memcached::Door`].
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
