//! memcached's text protocol, with its meta commands: what a client says goes in as bytes, and the answers come out as bytes.
//!
//! A [`Session`] is one client's conversation, a [`Service`] what the thread that holds it has beside its table. The answers are
//! those of memcached 1.6.18, byte for byte, with these exceptions:
//!
//! - An error in a list of keys takes back the answer to that command, not those to others before it; in a list of more than 64 KB it
//!   takes back nothing, since such a list is answered as it comes.
//! - `flush_all` with a delay spares what is stored in the second in which it is due, which memcached forgets as well.
//! - When an item was used last is not known: `mg`'s `l` and `me`'s `la` are 0.
//! - What concerns memcached's own workings is not there: slabs, its LRU, its log; `stats` counts what there is to be counted here.
//! - `cache_memlimit` lowers the limit, and raises it again up to what the server was started with or reserved.
//! - The binary protocol is not spoken: whoever begins with it is hung up on.

mod base64;
mod commands;
mod counters;
mod detail;
mod meta;
mod numbers;
mod service;
mod session;
mod stats;
mod tokens;

pub use commands::VERSION;
pub use counters::{Counter, Counters};
pub use detail::{Detail, Use};
pub use service::{About, Limits, Service, Shared};
pub use session::{HandOver, Ran, Session, Then};
