//! Services that answer in microseconds: remote procedure calls over shared memory, kernel UDP, AF_XDP and RDMA
//! devices, and services built on them.
//!
//! A service is a set of handlers, a [`Nexus`]. It is served at an address, whose scheme names the fabric:
//!
//! ```no_run
//! use sinew::prelude::*;
//!
//! const SHOUT: RequestType = RequestType::new(1);
//!
//! fn main() -> sinew::Result<()> {
//!     let nexus = Nexus::builder()
//!         .handle(SHOUT, |call: Call| {
//!             let reply = call.request().to_ascii_uppercase();
//!             call.reply(&reply)
//!         })
//!         .build()?;
//!     nexus.serve("shm://shout")
//! }
//! ```
//!
//! A client opens an endpoint, connects, and calls:
//!
//! ```
//! use sinew::prelude::*;
//!
//! # const SHOUT: RequestType = RequestType::new(1);
//! # let nexus = Nexus::builder()
//! #     .handle(SHOUT, |call: Call| {
//! #         let reply = call.request().to_ascii_uppercase();
//! #         call.reply(&reply)
//! #     })
//! #     .build()?;
//! # let server = nexus.server().at("udp://127.0.0.1:0").start()?;
//! # let address = &server.addresses()[0].to_string();
//! let mut rpc = Rpc::open("udp://")?;
//! let session = rpc.connect(address)?;
//! assert_eq!(&*rpc.call(session, SHOUT, b"hello")?, b"HELLO");
//! # server.stop()?;
//! # Ok::<(), sinew::Error>(())
//! ```
//!
//! # From the first service to the fast path
//!
//! [`Rpc::call`] waits for each answer. The fast path allocates buffers once ([`Rpc::alloc`]), moves them into many
//! calls ([`Rpc::enqueue_request`]), turns the loop ([`Rpc::turn`]) and takes them back ([`Rpc::poll_completion`]). The
//! service does not change. The example `fast_echo` shows it.
//!
//! [`Rpc`] chooses between fabrics at run time, once in each method. If the fabric is known when the program is
//! written, make an [`rpc::Rpc`] over its port with [`endpoint`]: it has the same methods, resolved at compile time.
//! Libraries that are clients take any [`Endpoint`], which both are; several libraries share one through
//! [`SharedEndpoint`].
//!
//! # Ports of your own
//!
//! [`Rpc::over`] and [`Server::over`] take any [`fabric::PacketPort`]: one of a fabric that this crate does not know,
//! or one that it knows inside [layers](fabric::layer).
//!
//! # Where things are
//!
//! - [`Nexus`], [`Server`], [`Rpc`], [`Error`]: this crate.
//! - [`rpc`]: calls, sessions, limits, errors.
//! - [`fabric`]: addresses, ports, and what it takes to write one.
//! - [`mem`]: message buffers.
//! - [`kv`]: key-value services, over the tables of [`store`].
//! - [`remote_memory`]: other hosts' memory; [`remote_block`]: that memory as a block device; [`far_memory`]: as
//!   vectors and mappings.
//! - [`forward`]: a router, a switch, and other forwarders of Ethernet frames.
//! - [`replica`]: replicated state machines, and a key-value store built on them.
//! - [`sequencer`]: unique, increasing numbers.
//! - [`host`]: the real clock, randomness, threads.
//! - [`herd`]: calls over verbs, with requests by WRITE and answers by datagram.
//! - `shm`, `udp`, `xdp`, `ibverbs`: the fabrics, with a feature each. `ibverbs` is RDMA devices, soft-RoCE included;
//!   their library is opened on first use. `ibverbs` and `shm::verbs` can also be used as verbs, without the RPC layer.
#![forbid(unsafe_code)]

#[cfg(not(any(feature = "ibverbs", feature = "shm", feature = "udp", feature = "xdp")))]
compile_error!("sinew needs a fabric: enable one of the features `shm`, `udp`, `ibverbs` and `xdp`");

mod endpoint;
mod error;
#[cfg(feature = "ibverbs")]
mod ibverbs_port;
mod nexus;
mod server;

pub use endpoint::{FABRICS, FabricEndpoint, Rpc, endpoint};
pub use error::{Error, Result};
#[cfg(feature = "ibverbs")]
pub use ibverbs_port::{IbPort, ibverbs_port};
pub use nexus::{Nexus, NexusBuilder};
pub use server::{EndpointReport, Flow, Program, Server, ServerHandle};

pub use sinew_fabric as fabric;
pub use sinew_far_memory as far_memory;
pub use sinew_forward as forward;
pub use sinew_herd as herd;
pub use sinew_host as host;
#[cfg(feature = "ibverbs")]
pub use sinew_ibverbs as ibverbs;
pub use sinew_kv as kv;
pub use sinew_mem as mem;
pub use sinew_remote_block as remote_block;
pub use sinew_remote_memory as remote_memory;
pub use sinew_replica as replica;
pub use sinew_rpc as rpc;
pub use sinew_rpc::{Channel, Endpoint, Pending, RpcHandle, SharedEndpoint};
pub use sinew_sequencer as sequencer;
#[cfg(feature = "shm")]
pub use sinew_shm as shm;
pub use sinew_store as store;
#[cfg(feature = "udp")]
pub use sinew_udp as udp;
#[cfg(feature = "xdp")]
pub use sinew_xdp as xdp;

/// Names that most programs need, for a glob import.
pub mod prelude {
    pub use crate::{Error, Flow, Nexus, Rpc, Server, ServerHandle};
    pub use sinew_mem::MessageBuffer;
    pub use sinew_rpc::{
        BurstCalls, Call, CallId, CallOptions, Cause, ClientEvent, ClientId, Completion, Config, ConnectOptions,
        DeferredCall, EndpointInfo, Execution, LaneId, Reply, RequestType, SessionEvent, SessionId,
    };
}
