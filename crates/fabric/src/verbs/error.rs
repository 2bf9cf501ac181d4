//! Errors of verbs objects, and of posting to them.

use sinew_mem::AllocError;

use super::types::{QpState, Transport, Verb};

/// Reason why a device, memory or a queue is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no such device, or none at all.
    #[error("{0}")]
    NoDevice(String),
    /// A system call failed.
    #[error("{doing}: {source}{}", remedy.map_or(String::new(), |remedy| format!("; {remedy}")))]
    System {
        /// What was being done.
        doing: String,
        /// The system's error.
        source: std::io::Error,
        /// Remedy, if known.
        remedy: Option<&'static str>,
    },
    /// More was asked for than the device has.
    #[error("{what}: {asked} is over the device's limit of {limit}")]
    Limit {
        /// The quantity.
        what: &'static str,
        /// Amount asked for.
        asked: usize,
        /// The device's limit.
        limit: usize,
    },
    /// A queue pair cannot change to the requested state from its current one.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// The queue pair's current state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// The address is invalid, of another fabric, or of another transport.
    #[error("the address of the other queue pair: {0}")]
    Address(String),
    /// A part of an owned range was to be registered: the registration would end under the other parts.
    #[error("memory is registered whole, before it is split")]
    Part,
    /// A message buffer cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device reported an error.
    #[error("{0}")]
    Device(String),
}

/// Reason why a request or a receive is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair accepts no such request or receive in its current state.
    #[error("the queue pair is in state {0:?}")]
    State(QpState),
    /// The queue is full; poll its completion queue.
    #[error("the queue holds {0} requests already: poll for completions, and let some requests be signaled")]
    QueueFull(usize),
    /// The transport does not carry this (Table 1 of atc16).
    #[error("{1:?} does not carry {0:?}")]
    NotOnTransport(Verb, Transport),
    /// The message has too many bytes for the transport, or for the buffers.
    #[error("{len} bytes are over the limit of {limit}")]
    TooLong {
        /// Length of the message, in bytes.
        len: usize,
        /// The most bytes possible.
        limit: usize,
    },
    /// The source has too many bytes to go inline.
    #[error("{len} bytes inline are over the queue pair's limit of {limit}")]
    InlineTooLong {
        /// Length of the source, in bytes.
        len: usize,
        /// The queue pair's limit, chosen when it was created, in bytes.
        limit: usize,
    },
    /// The source or target has too many pieces.
    #[error("{pieces} pieces are over the queue pair's limit of {limit}")]
    TooManyPieces {
        /// Pieces of the source or target.
        pieces: usize,
        /// The queue pair's limit, chosen when it was created.
        limit: usize,
    },
    /// A buffer is of an arena that the domain did not register.
    #[error("the buffer is not from an arena of this protection domain")]
    ForeignBuffer,
    /// A range does not lie in its buffer.
    #[error("a piece of the source does not lie in its buffer")]
    BadSlice,
    /// A datagram has no destination, or a connected message has one.
    #[error("datagrams need a destination, and connected transports take none")]
    Destination,
    /// A destination's handle is of another thread, or has been evicted.
    #[error("the destination is unknown to this queue pair's thread, or was forgotten: ask for it again")]
    UnknownDestination,
    /// An atomic's target is too short, or its remote address is not a multiple of 8.
    #[error("an atomic needs a target of 8 bytes and a remote address that is a multiple of 8")]
    Atomic,
    /// The device refused, with an error number of its own.
    #[error("the device refused the request: error {0}")]
    Device(i32),
}
