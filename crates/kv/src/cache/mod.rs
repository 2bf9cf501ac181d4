//! A cache over RPC.
//!
//! A server has a thread for each partition of the keys, alone with its `store::cache::Cache`; clients call the endpoint that owns
//! a key ([`Partitions`](crate::Partitions)). Requests and responses are those of [`protocol`].

pub mod protocol;

use sinew_rpc::RequestType;

/// The request type of everything that a cache is asked: one type, so that requests of all kinds that arrive together are one
/// burst, whose cache misses overlap.
pub const REQUESTS: RequestType = RequestType::new(16);
