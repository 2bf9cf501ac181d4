//! Sequencers: services that hand out unique, increasing numbers, in the designs of atc16 4.2 and one for everyday use.
//!
//! | design | a request is | an answer is | a call may take |
//! | --- | --- | --- | --- |
//! | [`rpc`] | a remote procedure call, on any packet port | the same | a range |
//! | [`spec`] | a datagram without data, by verbs | the same; with data when the client guessed wrong | one number |
//! | [`herd`] | a WRITE into the server's memory, by verbs | a datagram | one number |
//! | [`atomics`] | fetch-and-add in the server's memory, by verbs | the word's old value | a range |
//!
//! All clients have one interface ([`Client`]), and all servers except that of [`atomics`] take their numbers from a
//! [`Sequence`].
//!
//! # Guarantees
//!
//! - **Unique**: no two calls get the same number within one epoch of a server ([`Epoch`]).
//! - **Increasing**: a call that begins after another has ended, at any client, gets a greater number. Calls that
//!   overlap may get theirs in any order.
//! - **Isolated**: a client that dies, or gives up a call, loses the numbers that were on their way to it, and no other
//!   client loses any.
//!
//! # Gaps
//!
//! Some numbers never reach a caller:
//!
//! - those of a call whose client died or was cut off, or that failed for a reason that leaves open whether it ran;
//! - those in a datagram that the network lost (only with [`spec`]: a retransmitted call of [`rpc`] is answered with
//!   the number that it had);
//! - those of a range that the client did not use up;
//! - those taken in advance for a malformed request of [`herd`];
//! - those between the last number handed out and the ceiling noted, when a server that was killed restarts from its
//!   notes ([`Sequence::with_ceiling_store`]). The keeper of the notes decides how many these are: noting ceilings
//!   further ahead means writing less often.
//!
//! # Restarts
//!
//! A restarted server cannot know how far it had got unless that was noted. So each start is an [`Epoch`] of its own,
//! which clients learn and compare: numbers of another epoch are an error ([`CallError::Restarted`]), and are never
//! taken for the next ones. A server need not begin at 0, either: with [`CeilingStore`] it hands out no number before a
//! ceiling above it has been noted in a place that survives it, and the next start begins at that ceiling. A server
//! that is shut down cleanly can note the next number itself, and leaves no gap.
//!
//! # Speed
//!
//! All requests at hand take their numbers with one access to the shared word (atc16 4.2), in every design except
//! [`atomics`]. Over RPC, a call in batches of 8 costs the server 486 instructions and the client 605. A call that
//! echoes as many bytes as an answer has costs 426 and 595 (`cargo xtask cost`), and `sinew_rpc`'s core says where they
//! go.
#![forbid(unsafe_code)]

pub mod atomics;
mod client;
mod error;
pub mod herd;
pub mod rpc;
mod sequence;
pub mod spec;

pub use client::{Answer, Client, Numbers};
pub use error::{CallError, ClientError, Refusal, RequestError};
pub use sequence::{COUNT_MAX_DEFAULT, CeilingStore, Epoch, LAST, Sequence};
