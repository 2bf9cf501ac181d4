//! memcached's text protocol, with its meta commands: what a client says goes in as bytes, and the answers come out as bytes.
//!
//! A [`Session`] is one client's conversation, a [`Service`] what the thread that holds it has beside its table. The answers are
//! those of memcached 1.6.18, byte for byte, with these exceptions:
//!
//! - An error in a list of keys takes back the answer to that command, not those to others before it.
//! - When an item was used last is not known: `mg`'s `l` and `me`'s `la` are 0.
//! - What concerns memcached's own workings is not there: slabs, its LRU, its log, `cache_memlimit`; `stats` counts
//!   what there is to be counted here.
//! - The binary protocol is not spoken: whoever begins with it is hung up on.

mod base64;
mod commands;
mod counters;
mod meta;
mod numbers;
mod service;
mod session;
mod stats;
mod tokens;

pub use commands::VERSION;
pub use counters::{Counter, Counters};
pub use service::{Limits, Service};
pub use session::{HandOver, Ran, Session, Then};
