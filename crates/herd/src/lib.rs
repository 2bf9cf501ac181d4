//! HERD's remote procedure calls over verbs ("Using RDMA Efficiently for Key-Value Services", sigcomm14, section 4;
//! with the additions of "Design Guidelines for High Performance RDMA Systems", atc16, section 4). The crate knows
//! nothing of keys.
//!
//! - A client WRITEs its request into the server's memory, over an unreliable connection. The *request region* has a
//!   chunk for each worker and client, with [`Layout::window`] slots. A request lies at the right end of its slot, and
//!   the word written last publishes it.
//! - A [`Worker`] polls the next slot of each client in turn, copies the request it finds, checks the copy, has its
//!   [`Service`] execute it, and answers with a datagram.
//! - A [`Client`] has up to a window of requests in flight to each worker. It matches answers to requests, and
//!   retransmits a request that is not answered in time: the transport may lose requests and answers.
//!
//! # Contents of a slot
//!
//! A slot has the request's number, the client's token, and a checksum over everything. A read can tear between words,
//! and NICs do not guarantee the order in which bytes appear; a torn request is not executed. A retransmitted request
//! has the same number and another attempt: the worker has kept the answer, sends it again and executes nothing.
//! Anything that an earlier client of the same chunk left there, or still writes, has another token.
//!
//! # Two schedules
//!
//! [`WorkerConfig::herd`] is the pipeline of sigcomm14: while a request is prefetched, the one before it takes its
//! second step, and the one before that is executed and answered, each with a doorbell of its own.
//! [`WorkerConfig::herd_opt`] is atc16's: the pending requests of all clients form a batch, which is answered with one
//! doorbell, over several queue pairs in turn. Each difference has a switch of its own.
//!
//! # Division of work
//!
//! A [`Server`] owns the memory and the connections, and admits clients; carrying [`Hello`] and [`Welcome`] between the
//! two is the caller's business. The workers run in threads of their own. Nothing here reads a clock or starts a
//! thread, and nothing allocates once warm.
//!
//! Admitted clients are reported to the workers through a channel; server and workers share nothing else.
//!
//! # Why it is done this way
//!
//! - **A slot says itself whether it is whole**, by number, token and checksum in its last two words. Nothing is zeroed
//!   after it was read, since that would take the cache line from the client's next WRITE; the worker looks for the
//!   next number instead.
//! - **Slots are taken in turn**, so a poll costs one load for each client and not for each slot. A lost request holds
//!   up those behind it until it is retransmitted.
//! - **Kept answers stay where they were put together.** A worker looks for retransmitted requests at one slot every
//!   few turns, and sends the answer that it kept.

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
