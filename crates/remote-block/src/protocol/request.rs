//! Requests: their layout and their validity.

use super::bytes::Reader;
use super::constants::{
    CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE,
    CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, REQUEST_MAGIC,
};
use super::{BLOCK_MAX, Session};

/// Reason why a request was refused, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// `NBD_EIO`.
    Io = 5,
    /// `NBD_ENOMEM`.
    NoMemory = 12,
    /// `NBD_EINVAL`.
    Invalid = 22,
    /// `NBD_ENOSPC`.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`.
    TooLong = 75,
    /// `NBD_ENOTSUP`.
    Unsupported = 95,
    /// `NBD_ESHUTDOWN`.
    Ending = 108,
}

impl ErrorCode {
    /// Text for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Io => "the bytes cannot be reached",
            Self::NoMemory => "the server has no memory for it",
            Self::Invalid => "the request is not valid",
            Self::NoSpace => "no room",
            Self::TooLong => "the request is too long",
            Self::Unsupported => "it would be no faster than writing",
            Self::Ending => "the server is about to end",
        }
    }
}

/// A request as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `NBD_CMD_FLAG_...`.
    pub flags: u16,
    /// `NBD_CMD_...`.
    pub kind: u16,
    /// Chosen by the client; comes back with the reply.
    pub cookie: u64,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// A valid request, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read bytes.
    Read {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Whether all must come in one chunk.
        in_one: bool,
    },
    /// Write the payload that follows.
    Write {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Whether the reply waits until the change is durable (FUA).
        is_fua: bool,
    },
    /// Make everything answered so far durable.
    Flush,
    /// Discard bytes: `NBD_CMD_TRIM`, or `NBD_CMD_WRITE_ZEROES` where holes may be left.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Whether the reply waits until the change is durable (FUA).
        is_fua: bool,
    },
    /// Write zeros that take memory.
    Zeros {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Whether the reply waits until the change is durable (FUA).
        is_fua: bool,
    },
    /// Tell which bytes are holes.
    Status {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u32,
        /// Whether one extent is enough.
        only_one: bool,
    },
    /// Prefetch bytes. Nothing is done.
    Cache,
    /// Disconnect.
    Disconnect,
}

impl Request {
    /// Bytes of a request before its payload.
    pub const LEN: usize = 28;

    /// Parses a request; `None` if the magic is wrong.
    #[inline]
    pub fn read(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: reader.u16()?,
            kind: reader.u16()?,
            cookie: reader.u64()?,
            at: reader.u64()?,
            len: reader.u32()?,
        })
    }

    /// The request as bytes, as a client sends it.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Bytes of payload that follow the request, whether it is valid or not.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        if self.kind == CMD_WRITE { self.len } else { 0 }
    }

    /// Flags that the request may carry.
    fn flags_allowed(&self, session: Session) -> u16 {
        // Clients are known to set FUA on anything.
        CMD_FLAG_FUA
            | match self.kind {
                CMD_READ if session.is_structured => CMD_FLAG_DF,
                CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
                CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE,
                _ => 0,
            }
    }

    /// Decodes the request, for an export of `export_len` bytes.
    ///
    /// # Errors
    ///
    /// The error that the protocol has for the fault. The request's payload must then be skipped.
    #[inline]
    pub fn command(&self, session: Session, export_len: u64) -> Result<Command, ErrorCode> {
        let Self { flags, kind, at, len, .. } = *self;
        if kind == CMD_DISC {
            return Ok(Command::Disconnect);
        }
        if flags & !self.flags_allowed(session) != 0 {
            return Err(ErrorCode::Invalid);
        }
        if kind == CMD_FLUSH {
            return if at == 0 && len == 0 { Ok(Command::Flush) } else { Err(ErrorCode::Invalid) };
        }
        let is_in_range = at.checked_add(len.into()).is_some_and(|end| end <= export_len);
        let is_fua = flags & CMD_FLAG_FUA != 0;
        let keeps_allocation = flags & CMD_FLAG_NO_HOLE != 0;
        match kind {
            _ if len == 0 => Err(ErrorCode::Invalid),
            CMD_READ if len > BLOCK_MAX && flags & CMD_FLAG_DF != 0 => Err(ErrorCode::TooLong),
            CMD_READ | CMD_WRITE if len > BLOCK_MAX => Err(ErrorCode::Invalid),
            CMD_WRITE | CMD_WRITE_ZEROES if !is_in_range => Err(ErrorCode::NoSpace),
            _ if !is_in_range => Err(ErrorCode::Invalid),
            CMD_READ => Ok(Command::Read { at, len, in_one: flags & CMD_FLAG_DF != 0 || !session.is_structured }),
            CMD_WRITE => Ok(Command::Write { at, len, is_fua }),
            CMD_TRIM => Ok(Command::Discard { at, len, is_fua }),
            CMD_WRITE_ZEROES if keeps_allocation && flags & CMD_FLAG_FAST_ZERO != 0 => Err(ErrorCode::Unsupported),
            CMD_WRITE_ZEROES if keeps_allocation => Ok(Command::Zeros { at, len, is_fua }),
            CMD_WRITE_ZEROES => Ok(Command::Discard { at, len, is_fua }),
            CMD_CACHE => Ok(Command::Cache),
            CMD_BLOCK_STATUS if session.has_status => {
                Ok(Command::Status { at, len, only_one: flags & CMD_FLAG_REQ_ONE != 0 })
            }
            _ => Err(ErrorCode::Invalid),
        }
    }
}
