//! SEND, WRITE, READ, atomics and echoes between queue pairs, as perftest and the tools of atc16 measure them.
//!
//! Both sides are made from a [`VerbsPlan`]. A [`Requester`] is a client thread's driver; a [`Responder`] is turned by a server's thread, and
//! looks at what the requests have left. How the two learn each other's addresses is their owners' business.

mod echoes;
mod fresh;
mod link;
mod message;
mod plan;
mod requester;
mod responder;
mod stream;
#[cfg(test)]
mod tests;

pub use link::{Cq, LinkAddress, NTH_MASK, Qp, Thread, bytes_of, check_device, digits};
pub use message::{Exchange, Layout};
pub use plan::{Carrier, Form, Op, POINTER, SIZE_MAX, Shape, THREADS_MAX, VerbsPlan, WINDOW_MAX, Wait, Work, name};
pub use requester::Requester;
pub use responder::{Findings, Responder};
