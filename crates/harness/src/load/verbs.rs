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

use serde::{Deserialize, Serialize};

pub use link::{Cq, LinkAddress, NTH_MASK, Qp, Thread, bytes_of, check_device, digits};
pub use message::{Exchange, Layout};
pub use plan::{
    Carrier, Form, Op, POINTER, SIZE_MAX, Shape, Side, THREADS_MAX, VerbsPlan, WINDOW_MAX, Wait, Work, name,
};
pub use requester::Requester;
pub use responder::{Findings, Responder};

/// What the two sides tell each other, before a measurement and after each of its slices.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The client begins: what carries the verbs, and what is measured.
    Begin(String, VerbsPlan),
    /// The links of a side: the server answers so, and then the client.
    Links(Vec<LinkAddress>),
    /// The server has done what it was told.
    Ready,
    /// Requests come from now on.
    Go,
    /// So many requests were made of each link: do they show?
    Check(Vec<u64>),
    /// The server's answer.
    Found(Findings),
    /// The server cannot go on, and why.
    Error(String),
}
