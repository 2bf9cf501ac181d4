//! What an engine is asked to do, and what became of it.

use sinew_fabric::verbs::Slice;
use sinew_mem::MessageBuffer;

use super::error::EngineError;

/// A read or a write of the donor's memory.
#[derive(Debug)]
pub enum Op {
    /// Bytes from `at` on, as many as the target holds.
    Read {
        /// First byte.
        at: u64,
        /// Where they go.
        target: MessageBuffer,
    },
    /// Bytes to `at` and on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes. The engine gives its share up when the write is finished.
        source: Slice,
    },
}

impl Op {
    /// First byte of the donor's that it is about.
    #[inline]
    pub fn at(&self) -> u64 {
        match self {
            Self::Read { at, .. } | Self::Write { at, .. } => *at,
        }
    }

    /// Bytes that it moves.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Read { target, .. } => target.len(),
            Self::Write { source, .. } => source.len,
        }
    }

    /// Whether it moves none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An operation with its caller's name for it.
#[derive(Debug)]
pub struct Request {
    /// The caller's own.
    pub tag: u64,
    /// What to do.
    pub op: Op,
}

/// A request that is over.
#[derive(Debug)]
pub struct Finished {
    /// The request's.
    pub tag: u64,
    /// How it ended. After an error, what a read's target holds means nothing.
    pub result: Result<(), EngineError>,
    /// The target of a read. It is lost with the queue pair that had it when an engine is dropped.
    pub target: Option<MessageBuffer>,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many as may be are on their way to this donor.
    #[error(
        "{depth} requests are on their way to the donor, as many as may be: turn the engine, and poll for what is finished"
    )]
    Busy {
        /// How many.
        depth: usize,
        /// The request.
        request: Request,
    },
    /// It does not lie in the donor's memory.
    #[error("bytes {} to {} are asked for of a donor's memory of {len} bytes", request.op.at(), request.op.at().saturating_add(request.op.len() as u64))]
    OutOfRange {
        /// Bytes of the memory.
        len: u64,
        /// The request.
        request: Request,
    },
    /// A write's slice does not lie in its buffer.
    #[error("the bytes to be written do not lie in their buffer")]
    BadSlice {
        /// The request.
        request: Request,
    },
}

impl Refused {
    /// The request, with its buffers.
    pub fn into_request(self) -> Request {
        match self {
            Self::Busy { request, .. } | Self::OutOfRange { request, .. } | Self::BadSlice { request } => request,
        }
    }
}
