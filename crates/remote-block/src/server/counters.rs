//! What a server counts.

use crate::protocol::{ErrorCode, Unwelcome};

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The client said that it goes, or closed its side with nothing half said.
    Left,
    /// The client was gone in the midst of something.
    Vanished,
    /// The handshake came to nothing.
    Unwelcome(Unwelcome),
    /// What should be a request is none.
    Nonsense,
    /// The handshake took too long.
    Late,
    /// It held memory that others wait for, and did not move.
    Stalled,
    /// The server ends.
    Ended,
}

/// What a server did since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were closed at once, since there were too many.
    pub refused_connections: u64,
    /// Requests, by what they ask.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests to forget bytes, or to zero them.
    pub discards: u64,
    /// Requests for the status of blocks.
    pub statuses: u64,
    /// Requests to have bytes near.
    pub caches: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Bytes that were read, holes left out.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Errors that were answered, by their kind.
    pub io_errors: u64,
    /// Requests that were not in order.
    pub invalid: u64,
    /// Requests past the end, and stores that are full.
    pub no_space: u64,
    /// Reads that are too long for one chunk.
    pub too_long: u64,
    /// Zeros that cannot be had faster than by writing.
    pub unsupported: u64,
    /// Requests that came while the server ended.
    pub ending: u64,
    /// Connections that were closed, by why.
    pub left: u64,
    /// Clients that were gone in the midst of something.
    pub vanished: u64,
    /// Handshakes that came to nothing.
    pub unwelcome: u64,
    /// Clients that sent something else than requests.
    pub nonsense: u64,
    /// Handshakes that took too long.
    pub late: u64,
    /// Clients that held memory that others waited for, and did not move.
    pub stalled: u64,
    /// Times that a request had to wait for memory.
    pub waits: u64,
}

impl Counters {
    /// All of them with their names.
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
            ("nonsense", self.nonsense),
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
            Closed::Unwelcome(_) => &mut self.unwelcome,
            Closed::Nonsense => &mut self.nonsense,
            Closed::Late => &mut self.late,
            Closed::Stalled => &mut self.stalled,
        } += 1;
    }
}
