//! memcached's text protocol, with its meta commands: commands go in as bytes, and answers come out as bytes.
//!
//! A [`Session`] is the conversation with one client; a [`Service`] is all that the session's thread has besides its
//! table. The answers are those of memcached 1.6.18, byte for byte, with these exceptions:
//!
//! - An error in a list of keys takes back the answer to that command, but not those to earlier ones; in a list of more
//!   than 64 KB it takes back nothing, since such a list is answered as it arrives.
//! - `flush_all` with a delay spares items stored in the second in which it is due, which memcached flushes as well.
//! - The time of an item's last use is not recorded: `mg`'s `l` and `me`'s `la` are 0.
//! - Memcached's own inner workings are missing: slabs, its LRU, its log. `stats` shows the counters of this server.
//! - `cache_memlimit` lowers the limit, and raises it again up to the memory that the server was started with or has
//!   reserved.
//! - The binary protocol is not supported: a client that begins with it is disconnected.

mod base64;
mod commands;
mod counters;
mod detail;
mod filler;
mod meta;
mod numbers;
mod service;
mod session;
mod stats;
mod tokens;

pub use commands::VERSION;
pub use counters::{Counter, Counters};
pub use detail::{Detail, Usage};
pub use service::{Limits, ServerInfo, Service, Shared};
pub use session::{HandOverTarget, NextStep, Progress, Session};
