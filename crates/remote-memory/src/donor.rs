//! A donor: it lends slabs of its memory to volumes, and has a vote on who writes to each volume.
//!
//! - [`Call`], [`Answer`], [`Refusal`]: requests to a donor, and its answers.
//! - [`Donor`]: the donor as a state machine, without memory, clock or I/O of its own: the owner of each slab, the
//!   epoch that may use it, and the vote.
//! - [`Service`]: a donor that others call over `rpc`, with memory that they reach by verbs, or by calls ([`Lends`]);
//!   the [`Key`] says who may.
//!
//! A volume's bytes pass by another way: an [engine](crate::engine) reads and writes them.

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
