//! HERD's remote procedure calls over verbs ("Using RDMA Efficiently for Key-Value Services", sigcomm14, section 4; with what
//! "Design Guidelines for High Performance RDMA Systems", atc16, section 4 adds). It knows nothing of keys.
//!
//! - A client WRITEs its request into the server's memory, over an unreliable connection. The *request region* has a chunk for
//!   each worker and client with [`Layout::window`] slots. A request lies at the right end of its slot, and the last word
//!   that is written publishes it.
//! - A [`Worker`] polls the next slot of each client in turn, copies what it finds out, checks the copy, has its [`Service`]
//!   execute it, and answers with a datagram.
//! - A [`Client`] has up to a window of requests on their way to each worker. It matches answers to them, and writes a
//!   request again when none came in time: any transport may lose either.
//!
//! # What a slot carries
//!
//! The request's number, the client's token, and a checksum over everything. Memory tears between words, and NICs promise less
//! than the order in which bytes appear; what is torn is not executed. A request that is written again has its number and
//! another attempt: the worker has kept the answer, gives it again and executes nothing. What an earlier client of the same
//! chunk left, or still writes, has another token.
//!
//! # Two schedules
//!
//! [`WorkerConfig::herd`] is the pipeline of sigcomm14: while a request is prefetched, the one before it takes its second step,
//! and the one before that is executed and answered, each with a doorbell of its own. [`WorkerConfig::herd_opt`] is atc16's: what
//! there is of all clients makes a batch, which is answered with one doorbell, over several queue pairs in turn. Each difference
//! is a switch of its own.
//!
//! # Who does what
//!
//! A [`Server`] owns the memory and the connections, and admits clients: how [`Hello`] and [`Welcome`] travel is others' business.
//! Its workers run in threads of their own. Nothing here reads a clock or starts a thread. Once warm, nothing allocates.

#![forbid(unsafe_code)]

mod client;
mod hello;
mod layout;
mod outbox;
mod queue;
mod server;
mod service;
mod slot;
mod stats;
mod worker;

pub use client::{Answer, Client, ClientConfig, ClientError, ClientStats, Joining, RequestError};
pub use hello::{BadMessage, Hello, Welcome};
pub use layout::{Layout, LayoutError};
pub use server::{AdmitError, ClientId, Server, ServerConfig, WorkerSeed};
pub use service::{Request, Response, Service};
pub use slot::{SlotDrop, build_request};
pub use stats::WorkerStats;
pub use worker::{Worker, WorkerConfig};

use sinew_fabric::verbs::{Device, ProtectionDomain, ThreadDomain};

type Domain<D> = <D as Device>::Domain;
type Thread<D> = <Domain<D> as ProtectionDomain>::Thread;
type Exposed<D> = <Domain<D> as ProtectionDomain>::Exposed;
type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
type Qp<D> = <Thread<D> as ThreadDomain>::Qp;
