//! The connection of one client.

use std::io::{self, ErrorKind, IoSliceMut};

use sinew_door::Stream;
use sinew_mem::MessageBuffer;

use super::budget::ConnectionId;
use super::output::Output;
use crate::protocol::{ErrorCode, Handshake, OPTION_LEN_MAX, Session};

/// Bytes of input that a connection can hold: many requests, or the longest option.
pub(super) const INPUT_LEN: usize = 32 << 10;
const _: () = assert!(INPUT_LEN > OPTION_LEN_MAX + 64);
/// Payloads of this length or more, in bytes, are received straight into their buffer. For shorter ones it is cheaper
/// to receive several with one system call, and copy.
const LONG_PAYLOAD: usize = 16 << 10;
/// Bytes received together with the end of a long payload. They are probably the next request, whose payload is again
/// to go straight into its buffer.
const READ_BEHIND_LONG: usize = crate::protocol::Request::LEN;
/// Bytes that count as progress of a client, unless it has nothing left to move earlier.
const PROGRESS: u64 = 64 << 10;

/// Phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    Handshake(Handshake),
    Requests(Session),
}

/// Payload of a request that was read, still to arrive.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// Bytes to be written, for a job.
    Write {
        job: usize,
        /// Number of the piece being filled.
        number: u32,
        /// Bytes of that piece that have arrived.
        filled: usize,
    },
    /// Payload of a refused request, to be skipped.
    Skip {
        left: usize,
        cookie: u64,
        error: ErrorCode,
    },
}

pub(super) struct Connection {
    pub id: ConnectionId,
    pub stream: Stream,
    pub phase: Phase,
    pub payload: Payload,
    /// Buffers still to be filled, the last piece first.
    pub pieces: Vec<MessageBuffer>,
    pub out: Output,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of input needed before there is anything to do.
    pub input_needed: usize,
    /// Whether there may be something to read.
    pub readable: bool,
    /// Whether the client is known to have closed its side.
    pub hung_up: bool,
    /// Whether nothing can be sent any more.
    pub is_gone: bool,
    /// Whether input has ended; the connection ends when everything is answered and sent.
    pub ending: bool,
    /// Whether it is in the queue of connections to be served.
    pub is_queued: bool,
    /// Whether it is in the list of connections to be sent to.
    pub is_send_queued: bool,
    /// Whether the system accepts no more output for now.
    pub blocked: bool,
    /// Whether it is watched for becoming writable.
    pub is_watched: bool,
    /// Whether it waits for memory.
    pub is_waiting_for_memory: bool,
    /// Requests in progress.
    pub requests_in_progress: usize,
    /// Bytes claimed by them, including replies still to be sent.
    pub claimed: usize,
    /// Bytes already claimed for its next request.
    pub granted: usize,
    /// Whether the last payload was a long one.
    after_long: bool,
    /// When it began, or last made progress.
    pub last_progress_ns: u64,
    progress: u64,
}

impl Connection {
    pub fn new(id: ConnectionId, stream: Stream, now_ns: u64) -> Self {
        let mut out = Output::default();
        let mut handshake = None;
        out.put(|bytes| handshake = Some(Handshake::begin(bytes)));
        Self {
            id,
            stream,
            phase: Phase::Handshake(handshake.expect("`put` runs its closure")),
            payload: Payload::None,
            pieces: Vec::new(),
            out,
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            input_needed: 1,
            readable: true,
            hung_up: false,
            is_gone: false,
            ending: false,
            is_queued: false,
            is_send_queued: false,
            blocked: false,
            is_watched: false,
            is_waiting_for_memory: false,
            requests_in_progress: 0,
            claimed: 0,
            granted: 0,
            after_long: false,
            last_progress_ns: now_ns,
            progress: 0,
        }
    }

    /// Input that has not been handled yet.
    pub fn input(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    pub fn input_len(&self) -> usize {
        self.end - self.start
    }

    pub fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Notes that `len` bytes moved. The time of a handshake counts from its beginning.
    pub fn note_progress(&mut self, len: usize, now_ns: u64) {
        if matches!(self.phase, Phase::Handshake(_)) {
            return;
        }
        self.progress += len as u64;
        if self.progress >= PROGRESS || self.out.is_empty() && !self.has_payload() {
            self.progress = 0;
            self.last_progress_ns = now_ns;
        }
    }

    /// Claims memory for a request. From the first claim on, the client must make progress.
    pub fn begin_request(&mut self, claim: usize, now_ns: u64) {
        if self.claimed == 0 {
            (self.last_progress_ns, self.progress) = (now_ns, 0);
        }
        self.claimed += claim;
    }

    pub fn has_payload(&self) -> bool {
        !matches!(self.payload, Payload::None)
    }

    /// Whether the client must move next, while the server has memory in use for it.
    pub fn has_open_request(&self) -> bool {
        self.blocked && self.out.claimed() > 0
            || matches!(self.payload, Payload::Write { .. }) && self.input_len() == 0 && !self.readable
    }

    /// Whether everything asked for is answered and sent.
    pub fn is_done(&self) -> bool {
        self.requests_in_progress == 0 && self.out.is_empty() && !self.has_payload()
    }

    /// Copies the arrived bytes of a write's payload to its piece. Returns whether the piece is full.
    pub fn fill(&mut self) -> bool {
        let Payload::Write { filled, .. } = &mut self.payload else { return false };
        let Some(piece) = self.pieces.last_mut() else { return false };
        let len = (self.end - self.start).min(piece.len() - *filled);
        piece[*filled..*filled + len].copy_from_slice(&self.input[self.start..self.start + len]);
        *filled += len;
        let is_full = *filled == piece.len();
        self.consume(len);
        is_full
    }

    /// Reads once, first into the payload's buffer, as far as it is incomplete, and then into the input. Returns the
    /// bytes received.
    ///
    /// # Errors
    ///
    /// The system's error; the client is gone then.
    pub fn read(&mut self) -> io::Result<usize> {
        if self.start > 0 && self.input.len() - self.end < self.input_needed {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (capacity, result) = match &mut self.payload {
            Payload::Write { filled, .. } if self.start == self.end => {
                let is_last = self.pieces.len() == 1;
                let Some(piece) = self.pieces.last_mut() else { return Ok(0) };
                self.after_long = piece.len() >= LONG_PAYLOAD;
                let read_behind = match (is_last, self.after_long) {
                    (false, _) => 0,
                    (true, true) => READ_BEHIND_LONG,
                    (true, false) => self.input.len(),
                };
                let (missing, input) = (&mut piece[*filled..], &mut self.input[..read_behind]);
                let missing_len = missing.len();
                let room = missing_len + read_behind;
                let result = self.stream.read_pieces(&mut [IoSliceMut::new(missing), IoSliceMut::new(input)]);
                if let Ok(len) = result {
                    *filled += len.min(missing_len);
                    (self.start, self.end) = (0, len.saturating_sub(missing_len));
                }
                (room, result)
            }
            _ => {
                let free = &mut self.input[self.end..];
                let read_max = if self.after_long { self.input_needed.min(free.len()) } else { free.len() };
                let result = self.stream.read(&mut free[..read_max]);
                self.end += result.as_ref().map_or(0, |len| *len);
                (read_max, result)
            }
        };
        match result {
            Ok(0) if capacity > 0 => {
                (self.ending, self.readable) = (true, false);
                Ok(0)
            }
            Ok(len) => {
                // A short read took everything; an event will announce more. After a hang-up no event comes, so reading
                // goes on.
                self.readable = len == capacity || self.hung_up;
                Ok(len)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Notes that the next request probably has no long payload.
    pub fn expect_short(&mut self) {
        self.after_long = false;
    }
}
