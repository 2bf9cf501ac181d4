//! The RPC layer: sessions, credits, message buffers, loss recovery, workers (nsdi19, sections 3 to 5).
//!
//! The protocol is a state machine without port, clock or thread (`Core`); [`Rpc`] is the loop that gives it packets and
//! time. Calls run at most once, are asynchronous, and complete in any order.
//!
//! - [`Nexus`]: the handlers of a process, shared by its endpoints.
//! - [`Rpc`]: an endpoint, one a thread. [`Endpoint`]: any of them, for libraries that are clients. [`SharedEndpoint`]: one for several.
//! - [`Call`], [`BurstCalls`], [`DeferredCall`]: a request in the hands of its handler.
//! - [`Completion`]: a call that is over.
//! - [`Channel`]: many calls in flight to one server.
//! - [`RpcHandle`], [`Pending`]: an endpoint as other threads reach it.
//! - [`Config`], [`Tuning`]: limits, times, switches.
//! - [`gate`]: services that only callers with a key may call.
//!
//! # Who owns a buffer, and why
//!
//! A request's buffer moves into [`Rpc::enqueue_request`] and comes back with the [`Completion`], since packets are sent from
//! it, and sent again when they are lost, until the response is there (nsdi19 4.2.2). The port may hold shares of it for
//! longer than that; the endpoint then has the port end them ([`sinew_fabric::PacketTx::reclaim`]) before it hands the buffer
//! back. A server keeps its response until the client's next use of the slot, for the same reason.
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
