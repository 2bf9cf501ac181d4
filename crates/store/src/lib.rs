//! Data structures of Sinew's services. They do no I/O and read no clock; the time is passed in.
//!
//! - [`cache`] is the table of a key-value cache: an index to a log, or to a heap for a store that does not evict.
//! - [`cuckoo`] and [`hopscotch`] are Pilaf's and FaRM's tables, which clients search with nothing but READs.
//! - [`lookup`] has tables whose lookups overlap their cache misses: numbers, routes, names, Ethernet addresses.
//! - [`ordered`] is an index in key order, shared by threads.
//! - [`locked`] is DrTM-KV's table, whose values clients also change, under locks.

#![forbid(unsafe_code)]

pub mod cache;
pub mod cuckoo;
pub mod hopscotch;
pub mod locked;
pub mod lookup;
pub mod ordered;
pub mod remote;
