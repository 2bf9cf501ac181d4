//! Spec-S0: datagrams without data, and a guess (atc16 4.2.1).
//!
//! A request is a UD SEND of a header alone, whose 4-byte immediate is the upper half of the number that the client
//! expects. If the guess is right, the answer is a header alone too, with the lower half; else it is 8 bytes with the
//! whole number, by which the client corrects its guess. The guess changes once in 2^32 numbers.
//!
//! # Matching answers to calls
//!
//! Four bytes leave no room for a call number, and none is needed: a client assigns answers to its calls in the order
//! in which it made them, and drops an answer whose number is no greater than an earlier one. This is sound even though
//! the network may lose and reorder datagrams. The k-th answer taken has a greater number than k - 1 others, so the
//! server had received k requests when it gave that number, and the k-th call had begun. The numbers in lost and
//! reordered datagrams are gaps, and the last calls end without an answer.
//!
//! When nothing arrives for [`SpecConfig::lost_after_ns`], all calls in flight are given up, and the client goes on
//! with another queue pair, which late answers do not reach.
//!
//! While calls with an old guess are in flight, none with the new guess is sent, so that a lower half is never joined
//! to the wrong upper half.
//!
//! # Restarts of the server
//!
//! The server's queue key is drawn from its [`Epoch`], and is part of the address that clients are given. A restarted
//! server, even with the same queue pair number, does not receive what is sent to the one before.

mod client;
mod flow;
mod server;

pub use client::{SpecClient, SpecClientStats, SpecConfig};
pub use server::{SpecServer, SpecServerStats};

use crate::sequence::Epoch;

/// Length of the answer to a wrong guess, in bytes.
const NUMBER_LEN: usize = 8;
/// Length of a refusal, which says that the numbers are exhausted, in bytes.
const REFUSAL_LEN: usize = 1;

/// Queue key that requests carry in this epoch of a server. The highest bit is reserved (InfiniBand specification,
/// volume 1, 10.2.5).
fn qkey_of(epoch: Epoch) -> u32 {
    ((epoch.0 ^ epoch.0 >> 32) as u32) & 0x7FFF_FFFF
}
