//! What can be refused, and why.

use sinew_mem::AllocError;

use super::types::{QpState, Transport, Verb};

/// Why a device, memory or a queue could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no such device, or none at all.
    #[error("{0}")]
    NoDevice(String),
    /// The system refused.
    #[error("{doing}: {source}{}", remedy.map_or(String::new(), |remedy| format!("; {remedy}")))]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: std::io::Error,
        /// What helps, where we know it.
        remedy: Option<&'static str>,
    },
    /// More than the device has.
    #[error("{what}: {asked} is over the device's limit of {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// Asked for.
        asked: usize,
        /// What there is.
        limit: usize,
    },
    /// A queue pair cannot go there from where it is.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
    },
    /// An address that is none, of another fabric, or of another transport.
    #[error("the address of the other queue pair: {0}")]
    Address(String),
    /// No memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device reported it.
    #[error("{0}")]
    Device(String),
}

/// Why a request or a receive was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Not in this state.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The queue holds as much as it can; poll its completion queue.
    #[error("the queue holds {0} requests already: poll for completions, and let some requests be signaled")]
    QueueFull(usize),
    /// The transport does not carry this (Table 1 of atc16).
    #[error("{0:?} is not on {1:?}")]
    NotOnTransport(Verb, Transport),
    /// Too many bytes for the transport, or for the buffers.
    #[error("{len} bytes are over the limit of {limit}")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that are possible.
        limit: usize,
    },
    /// Too many bytes inline.
    #[error("{len} bytes inline are over the queue pair's limit of {limit}")]
    InlineTooLong {
        /// Bytes of the source.
        len: usize,
        /// What the queue pair was made for.
        limit: usize,
    },
    /// Too many pieces.
    #[error("{pieces} pieces are over the queue pair's limit of {limit}")]
    TooManyPieces {
        /// Pieces of the source or target.
        pieces: usize,
        /// What the queue pair was made for.
        limit: usize,
    },
    /// A buffer of an arena that the domain did not register.
    #[error("the buffer is not from an arena of this protection domain")]
    ForeignBuffer,
    /// A range that does not lie in its buffer.
    #[error("a piece of the source does not lie in its buffer")]
    BadSlice,
    /// A datagram without a destination, or a connected message with one.
    #[error("datagrams need a destination, and connected transports take none")]
    Destination,
    /// A destination's handle is of another thread, or was forgotten for others since.
    #[error("the destination is not known to this queue pair's thread, or not any more: ask for it again")]
    UnknownDestination,
    /// An atomic's target is too short, or its remote address is not a multiple of 8.
    #[error("an atomic needs a target of 8 bytes and a remote address that is a multiple of 8")]
    Atomic,
    /// The device refused, with its own number.
    #[error("the device refused the request: error {0}")]
    Device(i32),
}
