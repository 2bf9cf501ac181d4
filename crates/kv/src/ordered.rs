//! An ordered index over RPC (nsdi19 7.2).
//!
//! All threads of a server share one `store::ordered::OrderedIndex`. GETs, PUTs and DELETEs run in the endpoints'
//! threads; scans, which may take a thousand times as long, run in workers, so that they do not delay GETs while a
//! worker has a processor of its own. Requests and responses are those of [`protocol`].
//!
//! GETs, PUTs and DELETEs are one request type, and scans and sums another. A scan is answered with at most 256 KB of
//! entries, or with one entry that is longer; the client continues after the last key.

mod client;
mod error;
mod pipeline;
pub mod protocol;
mod service;

use sinew_rpc::RequestType;

pub use client::{Client, Page, Total};
pub use error::Error;
pub use pipeline::{Answer, Pipeline, PipelineConfig};
pub use protocol::{LIMIT_MAX, Range, prefix_range};
pub use service::{Service, VALUE_LEN_MAX};

/// The request type of requests for one key, and of [`protocol::Request::Stats`].
pub const POINTS: RequestType = RequestType::new(17);
/// The request type of scans and sums.
pub const RANGES: RequestType = RequestType::new(18);
