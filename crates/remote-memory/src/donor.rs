//! Whoever gives memory: slabs of it, to volumes, and a vote on who writes to each.
//!
//! - [`Call`], [`Answer`], [`Refusal`]: what a donor is asked for, and what it says.
//! - [`Donor`]: the donor as a state machine, without memory, clock or I/O of its own: which slabs are whose, the epoch that may use them, and the vote.
//!
//! A volume's bytes do not come this way: they are read and written by an [engine](crate::engine).

mod protocol;
mod slabs;
mod state;

pub use protocol::{Answer, Call, Lent, Refusal, Stored};
pub use state::{Donor, DonorLimits};
