//! A cache over RPC.
//!
//! A server has one thread for each partition of the keys, which alone uses that partition's `store::cache::Cache`;
//! clients call the endpoint that owns a key ([`Partitions`](crate::Partitions)). Requests and responses are those of
//! [`protocol`].
//!
//! # Design
//!
//! - **There is one request type**, so gets and puts that arrive together are one burst. The buckets of all its keys
//!   are prefetched, then their items; then each request is answered in turn, into the buffer from which the answer is
//!   sent.
//! - **An endpoint owns a partition**, and refuses keys of others. A public hash maps keys to partitions, and each
//!   endpoint reports which partition it owns (`info`), so a client can be given the addresses in any order.
//! - **A lost session is opened again** by the next request that needs it.
//! - **Time is handed in**: `Partition::set_now_s`.

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
