//! Whoever gives memory: slabs of it, to volumes, and a vote on who writes to each.
//!
//! - [`Call`], [`Answer`], [`Refusal`]: what a donor is asked for, and what it says.
//! - [`Donor`]: the donor as a state machine, without memory, clock or I/O of its own: which slabs are whose, the epoch that may use them, and the vote.
//!
//! - [`Service`]: a donor that others call over `rpc`, with memory that they reach by verbs, or by calls as well ([`Lends`]); [`Key`]: who may.
//!
//! A volume's bytes are no part of this: they are read and written by an [engine](crate::engine).

mod clients;
mod lendings;
mod lends;
mod protocol;
mod service;
mod slabs;
mod state;
mod stragglers;
mod wire;

pub use lends::{CallsAlone, Grounds, Lends, NoLending, OwnMemory};
pub use protocol::{Answer, Call, Lent, Refusal, Stored};
pub use service::{Service, ServiceConfig, ServiceStats};
pub use sinew_rpc::gate::{Gate, KEY_LEN_MIN, Key, PROOF_LEN, Side};
pub use state::{Donor, DonorLimits, LANES_MAX};
pub use wire::{CONTROL, Request, Response, Way};
