//! Data structures of Sinew's services. They do no I/O and read no clock: time is handed in.
//!
//! - [`cache`] is the table of a key-value cache: an index to a log (or to a heap, for a store that forgets nothing).
//! - [`cuckoo`] and [`hopscotch`] are tables that others search with nothing but READs, Pilaf's and FaRM's.
//! - [`lookup`] has tables whose lookups overlap their cache misses: numbers, routes, names, Ethernet addresses.
//! - [`ordered`] is an index in the order of its keys, shared by threads.
//! - [`locked`] is one whose values others change, too, under locks: DrTM-KV's.

#![forbid(unsafe_code)]

pub mod cache;
pub mod cuckoo;
pub mod hopscotch;
pub mod locked;
pub mod lookup;
pub mod ordered;
pub mod remote;
