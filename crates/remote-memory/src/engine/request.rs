//! Requests to an engine, and their results.

use sinew_fabric::verbs::Slice;
use sinew_mem::MessageBuffer;

use super::error::EngineError;

/// A read or a write of the donor's memory.
#[derive(Debug)]
pub enum Op {
    /// Reads the bytes from `at` on, as many as the target holds.
    Read {
        /// First byte.
        at: u64,
        /// Destination of the bytes.
        target: MessageBuffer,
    },
    /// Writes bytes from `at` on.
    Write {
        /// First byte.
        at: u64,
        /// The bytes. The engine drops its share when the write is finished.
        source: Slice,
    },
}

impl Op {
    /// First byte of the donor's memory that it covers.
    #[inline]
    pub fn at(&self) -> u64 {
        match self {
            Self::Read { at, .. } | Self::Write { at, .. } => *at,
        }
    }

    /// Bytes read or written.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Read { target, .. } => target.len(),
            Self::Write { source, .. } => source.len,
        }
    }

    /// Whether it moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An operation, with a tag of its caller's.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the caller; comes back with the finished request.
    pub tag: u64,
    /// Operation of the request.
    pub op: Op,
}

/// A finished request.
#[derive(Debug)]
pub struct Finished {
    /// Tag of the request.
    pub tag: u64,
    /// How it ended. After an error, the contents of a read's target mean nothing.
    pub result: Result<(), EngineError>,
    /// The target of a read. When an engine is dropped, targets that its queue pair holds are lost with it.
    pub target: Option<MessageBuffer>,
}

/// Reason why a request was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many requests as allowed are unfinished.
    #[error(
        "{depth} requests to the donor are unfinished, as many as are allowed: turn the engine, and poll for what is finished"
    )]
    Busy {
        /// The limit on unfinished requests.
        depth: usize,
        /// The request.
        request: Request,
    },
    /// The request reaches beyond the donor's memory.
    #[error("the request covers bytes {} to {}, but the donor's memory has {len} bytes", request.op.at(), request.op.at().saturating_add(request.op.len() as u64))]
    OutOfRange {
        /// Bytes of the donor's memory.
        len: u64,
        /// The request.
        request: Request,
    },
    /// A write's slice reaches beyond its buffer.
    #[error("the slice to be written reaches beyond its buffer")]
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
