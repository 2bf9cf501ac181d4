//! SEND, WRITE, READ, atomics and echoes between queue pairs, measured as perftest and the tools of atc16 do.
//!
//! Both sides are made from a [`VerbsPlan`]. A [`Requester`] is the driver of a client thread. A server's thread turns
//! a [`Responder`], which checks what the requests have written. It is up to their owners how the two learn each
//! other's addresses.

mod echoes;
mod fresh;
mod link;
mod message;
mod mixed;
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
    EchoForm, EchoMix, LINKS_MAX, Op, POINTER, SIZE_MAX, Shape, Side, THREADS_MAX, TransportKind, VerbsPlan,
    WINDOW_MAX, Wait, WorkKind, name,
};
pub use requester::Requester;
pub use responder::{Findings, Responder};

/// Messages between the two sides, before a measurement and after each of its slices.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlMessage {
    /// The client begins, with its fabric and its plan.
    Begin(String, VerbsPlan),
    /// The links of a side: the server sends its own, and then the client.
    Links(Vec<LinkAddress>),
    /// The server has done as told.
    Ready,
    /// Requests come from now on.
    Go,
    /// Asks the server to check for this many requests on each link.
    Check(Vec<u64>),
    /// The server's findings.
    Found(Findings),
    /// The server cannot go on, for this reason.
    Error(String),
}
