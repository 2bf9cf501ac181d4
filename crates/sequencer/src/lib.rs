//! Sequencers: services that hand out unique, increasing numbers, in the designs of atc16 4.2 and one for every day.
//!
//! | design | a request is | an answer is | a call may take |
//! | --- | --- | --- | --- |
//! | [`rpc`] | a remote procedure call, on any packet port | the same | a range |
//! | [`spec`] | a datagram without data, by verbs | the same; with data when the client guessed wrong | one number |
//! | [`herd`] | a WRITE into the server's memory, by verbs | a datagram | one number |
//! | [`atomics`] | fetch-and-add in the server's memory, by verbs | the word's old value | a range |
//!
//! All clients are driven alike ([`Client`]), and all servers but the last hand out numbers of one [`Sequence`].
//!
//! # What holds
//!
//! - **Unique**: no two calls get the same number within one life of a server ([`Epoch`]).
//! - **Increasing**: a call that begins after another was over, at whichever client, gets a greater number. Calls that overlap may get
//!   theirs in any order.
//! - **The dead take along what is theirs**: a client that dies, or gives a call up, loses the numbers that were on their way to it,
//!   and nobody else's.
//!
//! # Gaps
//!
//! Numbers that nobody ever gets are those
//!
//! - of a call whose client died or was cut off, or that failed for a reason which does not say that it did not run;
//! - of a datagram that the network lost ([`spec`] alone: a call of [`rpc`] that is sent again is answered with the number that it had);
//! - of a range that its client did not use up;
//! - of a request of [`herd`] that made no sense, and came in a batch;
//! - between the last number that was handed out and the ceiling that was noted, when a server that was killed starts anew from its
//!   notes ([`Sequence::from_notes`]). How many these are, whoever keeps the notes decides: a server that notes ceilings further ahead writes less
//!   often.
//!
//! # Restarts
//!
//! A server that starts anew cannot know how far it was unless somebody noted it. So each start is an [`Epoch`] of its own, which
//! clients learn and compare: numbers of another epoch are an error ([`CallError::Restarted`]), never taken for the next ones. And a server
//! need not begin at 0: with [`Notes`] it hands out no number before a ceiling above it was noted where it survives, and the next start begins at
//! that ceiling. One that is stopped in order can note the next number itself, and leaves no gap.
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
pub use sequence::{COUNT_MAX_DEFAULT, Epoch, LAST, Notes, Sequence};
