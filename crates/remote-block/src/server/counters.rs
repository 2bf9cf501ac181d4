//! Counters of a server.

use crate::protocol::{ErrorCode, HandshakeError};

/// Reason why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The client disconnected, or closed its side between messages.
    Left,
    /// The client was gone in the middle of a message, or before everything was answered.
    Vanished,
    /// The handshake failed.
    HandshakeFailed(HandshakeError),
    /// Something other than a request arrived.
    Malformed,
    /// The handshake took too long.
    HandshakeTimedOut,
    /// The client held memory that others waited for, and made no progress.
    Stalled,
    /// The server ended.
    Ended,
}

/// Counters of a server since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections closed at once, because there were too many or the server was ending.
    pub refused_connections: u64,
    /// Reads requested.
    pub reads: u64,
    /// Writes requested.
    pub writes: u64,
    /// Flushes requested.
    pub flushes: u64,
    /// Requests to discard or to zero bytes.
    pub discards: u64,
    /// Requests for the status of blocks.
    pub statuses: u64,
    /// Requests to cache bytes, which are answered without doing anything.
    pub caches: u64,
    /// Requests refused.
    pub refused: u64,
    /// Bytes read, without holes.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Replies with an I/O error, or because memory was short.
    pub io_errors: u64,
    /// Replies to invalid requests.
    pub invalid: u64,
    /// Replies to requests past the end, or because the store was full.
    pub no_space: u64,
    /// Replies to reads too long for one chunk.
    pub too_long: u64,
    /// Replies to requests for fast zeros, where zeroing would be no faster than writing.
    pub unsupported: u64,
    /// Replies to requests that came while the server was ending.
    pub ending: u64,
    /// Connections closed because the client left or the server ended.
    pub left: u64,
    /// Clients that were gone in the middle of something.
    pub vanished: u64,
    /// Handshakes that failed.
    pub unwelcome: u64,
    /// Clients that sent something other than requests.
    pub malformed: u64,
    /// Handshakes that took too long.
    pub late: u64,
    /// Clients that held memory that others waited for, and made no progress.
    pub stalled: u64,
    /// Times that a request had to wait for memory.
    pub waits: u64,
}

impl Counters {
    /// All counters, with their names.
    pub fn all(&self) -> [(&'static str, u64); 24] {
        [
            ("connections", self.connections),
            ("refused_connections", self.refused_connections),
            ("reads", self.reads),
            ("writes", self.writes),
            ("flushes", self.flushes),
            ("discards", self.discards),
            ("statuses", self.statuses),
            ("caches", self.caches),
            ("refused", self.refused),
            ("bytes_read", self.bytes_read),
            ("bytes_written", self.bytes_written),
            ("io_errors", self.io_errors),
            ("invalid", self.invalid),
            ("no_space", self.no_space),
            ("too_long", self.too_long),
            ("unsupported", self.unsupported),
            ("ending", self.ending),
            ("left", self.left),
            ("vanished", self.vanished),
            ("unwelcome", self.unwelcome),
            ("malformed", self.malformed),
            ("late", self.late),
            ("stalled", self.stalled),
            ("waits", self.waits),
        ]
    }

    pub(super) fn count_error(&mut self, error: ErrorCode) {
        *match error {
            ErrorCode::Io | ErrorCode::NoMemory => &mut self.io_errors,
            ErrorCode::Invalid => &mut self.invalid,
            ErrorCode::NoSpace => &mut self.no_space,
            ErrorCode::TooLong => &mut self.too_long,
            ErrorCode::Unsupported => &mut self.unsupported,
            ErrorCode::Ending => &mut self.ending,
        } += 1;
    }

    pub(super) fn count_closed(&mut self, why: Closed) {
        *match why {
            Closed::Left | Closed::Ended => &mut self.left,
            Closed::Vanished => &mut self.vanished,
            Closed::HandshakeFailed(_) => &mut self.unwelcome,
            Closed::Malformed => &mut self.malformed,
            Closed::HandshakeTimedOut => &mut self.late,
            Closed::Stalled => &mut self.stalled,
        } += 1;
    }
}
