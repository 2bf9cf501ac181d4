//! A cache over RPC.
//!
//! A server has one thread for each partition of the keys, which alone uses that partition's `store::cache::Cache`;
//! clients call the endpoint that owns a key ([`Partitions`](crate::Partitions)). Requests and responses are those of
//! [`protocol`].
//!
//! # Design
//!
//! - **There is one request type**, so gets and puts that arrive together are one burst. The buckets of all its keys
//!   are prefetched as they are read, then their items; then each request is answered in turn, into the buffer from
//!   which the answer is sent. A request is read once: of a get only the key is kept, of any other request its
//!   parsed form.
//! - **An endpoint owns a partition**, and refuses keys of others. A public hash maps keys to partitions, and each
//!   endpoint reports which partition it owns (`info`), so a client can be given the addresses in any order.
//! - **A lost session is opened again** by the next request that needs it.
//! - **Time is handed in**: `Partition::set_now_s`.
//!
//! # What a request costs
//!
//! Instructions, for keys of 16 bytes and values of 32, in batches of 8 requests over shared memory (`cargo xtask cost
//! --row GET`):
//!
//! | | server | client |
//! | --- | --- | --- |
//! | a get | 855 | 799 |
//! | a key of a get of 8 | 398 | 315 |
//!
//! At the server, a key of several takes 78 to be read (check its length and its owner, hash it, prefetch its bucket),
//! 70 to find its slot and prefetch the item, and 135 to find the item (check the slot again, that the log has not
//! passed it, the whole key, its expiry, and whether it was cleared, and that the response has room for the value) and
//! copy the value to the response. The rest is the call's. The log's head and the version up to which the table was
//! cleared are read once for a run of gets, which are counted once. A get's answer takes a second line of the ring, for
//! a single byte, which is 70 more at the server, and 30 at the client, than a packet of one line.
//!
//! Eight keys share a call whose response, of 290 bytes, does not fit the ring. It is written as its values are found,
//! into the buffer that the slot's last response left, if it is free (`BurstCalls::reply_if_room`). The port
//! copies it, as it does packets of up to a kilobyte: lending the client the buffer until it had read it cost an
//! allocation with nine locked instructions for each response. Collecting the values in a list first took 26 more for
//! each key.

mod answer;
mod client;
mod connect;
mod error;
mod pipeline;
pub mod protocol;
mod service;

use sinew_rpc::RequestType;

pub use client::{Client, Item};
pub use connect::{ClientConfig, Connecting};
pub use error::Error;
pub use pipeline::{Answer, Pipeline, RequestOptions};
pub use service::{Partition, Service, VALUE_LEN_MAX, seconds_of};

/// The request type of every cache request: one type for all, so that requests of all kinds that arrive together form
/// one burst, whose cache misses overlap.
pub const REQUESTS: RequestType = RequestType::new(16);
