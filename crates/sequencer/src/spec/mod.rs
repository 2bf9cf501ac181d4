//! Spec-S0: datagrams without data, and a guess (atc16 4.2.1).
//!
//! A request is a UD SEND of a header alone, whose 4-byte immediate is the upper half of the number that the client expects. If the
//! guess is right, the answer is a header alone too, with the lower half; else it is 8 bytes with the whole number, by which the client
//! corrects its guess: once in 2^32 numbers.
//!
//! # Whose answer is it?
//!
//! Four bytes leave no room for a number of the call, and none is needed: a client gives the answers to its calls in the order in which it
//! made them, and drops one that is no greater than an answer before it. That holds without the network's help. The k-th answer that is
//! taken has a greater number than k - 1 others, so the server had received k requests when it gave it, and the k-th call had begun.
//! What the network loses or turns around is a gap, and the last calls end without an answer.
//!
//! When nothing comes for [`SpecConfig::lost_after_ns`], all calls in flight are given up, and the client goes on with another queue pair, which
//! late answers do not reach.
//!
//! While calls with an old guess are in flight none with the new one leaves, so that a lower half never meets the wrong upper one.
//!
//! # Another life of the server
//!
//! The server's queue key is drawn from its [`Epoch`], and is part of the address that clients are told. A server that starts
//! anew, even with the same queue pair number, does not receive what is sent to the one before.

mod client;
mod flow;
mod server;

pub use client::{SpecClient, SpecClientStats, SpecConfig};
pub use server::{SpecServer, SpecServerStats};

use crate::sequence::Epoch;

/// Bytes of the answer to a wrong guess.
const WHOLE: usize = 8;
/// Bytes of a refusal: the numbers are exhausted.
const REFUSED: usize = 1;

/// The key that requests to this life of a server carry. The upper bit is the system's (InfiniBand specification, volume 1,
/// 10.2.5).
fn qkey_of(epoch: Epoch) -> u32 {
    ((epoch.0 ^ epoch.0 >> 32) as u32) & 0x7FFF_FFFF
}
