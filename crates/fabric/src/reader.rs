//! Objects in another host's memory, fetched by whichever access method is best at the moment.
//!
//! apnet19's measurements show that no access method is always the best: the best one depends on the object's size, on
//! the number of dependent accesses that lead to it, and on the load of both processors (4.1, 4.2). The paper calls for
//! a library that hides the choice and changes it as the load changes, and names a difficulty: no message may be lost
//! during a change (5). This is that library.
//!
//! A [`Reader`] gets [`Object`]s from one [`Server`]'s [`Region`]s. An object is a number of bytes, reached by a number
//! of dependent accesses. The reader has two access methods and two completion modes ([`Choice`]):
//!
//! - *one-sided*: one READ for each access; the application's [`PointerChase`] computes from the bytes that one returns
//!   where the next goes;
//! - *two-sided*: one request by SEND, which the server answers by SEND after it has made all the accesses itself (a
//!   compound read; apnet19 2.2);
//! - *polling*: the thread turns the reader continuously;
//! - *events*: the thread arms the reader and sleeps on its completion queue's descriptor.
//!
//! Reader and server measure their own load by the times of their turns and, if their owners can tell, by how idle
//! their processors are while they sleep ([`Reader::slept`], [`Server::slept`]); [`policy`] decides from the measured
//! costs of gets. Reader and server are state machines without threads and clocks, so a simulated actor can turn them
//! as well as a real thread.
//!
//! # Why no completion is lost
//!
//! Each get is given its choice when it begins, and keeps it to the end. All gets complete in one queue, whatever their
//! choice, so nothing has to be moved when the choice changes. The thread sleeps only when no get in flight uses
//! polling, and arming the reader checks once more for completions ([`Readiness`](crate::Readiness)). Requests carry
//! numbers that never repeat: a late answer to a get that was abandoned is recognised as such, and the get's place in
//! the window is reused only after that. So a receive is always posted for an answer.
//!
//! # Consistency
//!
//! With either access method the bytes are copied while others may write them, and can be torn. An object that changes
//! must carry something that shows this, such as a version or a checksum, as the tables in `sinew_store` do.
//!
//! # When the server dies
//!
//! A death that the device notices ends all gets with [`GetError::PeerLost`]. If the device notices nothing, a get ends
//! with [`GetError::Deadline`]; its place in the window stays taken until the answer comes, and once such gets fill the
//! window, new ones fail with [`AskError::Full`].

mod choice;
mod client;
mod estimate;
mod hello;
mod load;
mod message;
mod object;
pub mod policy;
mod server;
mod sleeps;
mod stalls;

pub use choice::{ACCESSES_MAX, AccessMethod, Choice, CompletionMode, GetClass};
pub use client::{AskError, GetError, JoinError, Joining, Outcome, Reader, ReaderConfig, ReaderStats, Turn};
pub use hello::{Hello, REGIONS_MAX, WINDOW_MAX, Welcome};
pub use load::Load;
pub use message::Refusal;
pub use object::{Object, ObjectError, ObjectLimits, PointerChase};
pub use server::{ReaderId, Region, Server, ServerConfig, ServerError, ServerStats, ServerTurn};
