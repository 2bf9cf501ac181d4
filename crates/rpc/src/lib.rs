//! The RPC layer: sessions, credits, message buffers, loss recovery, workers (nsdi19, sections 3 to 5).
//!
//! The protocol is a state machine (`Core`) without port, clock or thread; [`Rpc`] is the loop that feeds it packets
//! and time. Calls run at most once, are asynchronous, and complete in any order.
//!
//! - [`Nexus`]: the handlers of a process, shared by its endpoints.
//! - [`Rpc`]: an endpoint, one for each thread. [`Endpoint`]: the trait of all endpoints, for libraries that are
//!   clients. [`SharedEndpoint`]: one endpoint for several such libraries.
//! - [`Call`], [`BurstCalls`], [`DeferredCall`]: a request as its handler sees it.
//! - [`Completion`]: a finished call.
//! - [`Channel`]: many calls in flight to one server.
//! - [`RpcHandle`], [`Pending`]: access to an endpoint from other threads.
//! - [`Config`], [`Tuning`]: limits, times, switches.
//! - [`gate`]: services that only callers with a key may call.
//!
//! # Who owns a buffer, and why
//!
//! A request's buffer moves into [`Rpc::enqueue_request`] and comes back with the [`Completion`]: until the response is
//! there, packets are sent, and retransmitted, from that buffer (nsdi19 4.2.2). The port may hold shares of it for even
//! longer; the endpoint then makes the port end them ([`sinew_fabric::PacketTx::reclaim`]) before it hands the buffer
//! back. For the same reason a server keeps its response until the client next uses the slot.
#![forbid(unsafe_code)]

mod answer;
mod call;
mod channel;
mod client;
mod config;
mod congestion;
mod core;
mod endpoint;
mod error;
mod events;
mod fifo;
pub mod gate;
mod handlers;
mod lanes;
mod live;
mod message;
mod names;
mod nexus;
mod options;
mod peers;
mod polled;
mod receive;
mod recovery;
mod reply;
mod request_type;
mod rpc;
mod server;
mod sessions;
mod shared;
mod sharing;
mod stats;
mod table;
mod transmit;

pub use call::{BurstCalls, Call, DeferredCall};
pub use channel::{Channel, ChannelStatus};
pub use config::{Config, Tuning};
pub use congestion::{Algorithm, Congestion, DcqcnConfig, SwiftConfig, TimelyConfig};
pub use endpoint::{Endpoint, Pending, RpcHandle};
pub use error::{
    CallBackError, CallError, Cause, ChannelError, ConfigError, ConnectError, EnqueueError, Error, Execution,
    HandleError, Rejected,
};
pub use events::{ClientEvent, SessionEvent};
pub use lanes::LaneId;
pub use live::{EndpointStats, StatsReader};
pub use names::{CallId, ClientId, Completion, RequestType, SessionId, SessionSlots};
pub use nexus::{EndpointInfo, Nexus, NexusBuilder, NexusError};
pub use options::{CallOptions, ConnectOptions};
pub use recovery::{Recovery, Timeout};
pub use reply::Reply;
pub use rpc::{Rpc, SessionCredits};
pub use sharing::SharedEndpoint;
pub use stats::{PacketDrop, Stats};
