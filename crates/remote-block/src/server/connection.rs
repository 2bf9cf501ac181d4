//! One client's connection.

use std::io::{self, ErrorKind, IoSliceMut};

use sinew_door::Stream;
use sinew_mem::MessageBuffer;

use super::budget::Name;
use super::output::Output;
use crate::protocol::{ErrorCode, Handshake, OPTION_LEN_MAX, Session};

/// Bytes of input that a connection keeps: many requests, or the longest option.
pub(super) const INPUT_LEN: usize = 32 << 10;
const _: () = assert!(INPUT_LEN > OPTION_LEN_MAX + 64);
/// Payloads from this length on are received where they are to lie. Of shorter ones, it is cheaper to have several with one call of the system, and to copy.
const LONG: usize = 16 << 10;
/// Bytes that are received at once behind a long payload: what comes then is likely to be the next one's request, and its payload is to go where it belongs.
const BEHIND_LONG: usize = crate::protocol::Request::LEN;
/// Bytes that a client has to move to count as one that moves, unless it is done before.
const PROGRESS: u64 = 64 << 10;

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Phase {
    Handshake(Handshake),
    Requests(Session),
}

/// What belongs to a request that was read, and is not here yet.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// Bytes to write, for a job.
    Write {
        job: usize,
        /// The number of the piece that is filled now.
        number: u32,
        /// Bytes of it that are there.
        filled: usize,
    },
    /// Bytes that nobody wants, of a request that is refused.
    Skip {
        left: usize,
        cookie: u64,
        error: ErrorCode,
    },
}

pub(super) struct Connection {
    pub name: Name,
    pub stream: Stream,
    pub phase: Phase,
    pub payload: Payload,
    /// Buffers that wait to be filled, those of the last bytes first.
    pub pieces: Vec<MessageBuffer>,
    pub out: Output,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of input without which there is nothing to do.
    pub wants: usize,
    /// There may be something to read.
    pub readable: bool,
    /// The client was told to have ended.
    pub hung_up: bool,
    /// Nothing can be sent any more.
    pub is_gone: bool,
    /// Nothing more is read: it ends when all is answered and sent.
    pub ending: bool,
    /// It stands in the queue of those to be served.
    pub queued: bool,
    /// It stands in the list of those to be sent to.
    pub dirty: bool,
    /// The system takes no more for it.
    pub blocked: bool,
    /// It is told when it can be written to.
    pub is_watched: bool,
    /// It waits for memory.
    pub is_waiting: bool,
    /// Requests under way.
    pub under_way: usize,
    /// Bytes that they claim, those that are to be sent included.
    pub claimed: usize,
    /// Bytes that were claimed for the next request.
    pub granted: usize,
    /// The last payload was a long one.
    after_long: bool,
    /// When it began, or last moved what it has to move.
    pub moved_ns: u64,
    progress: u64,
}

impl Connection {
    pub fn new(name: Name, stream: Stream, now_ns: u64) -> Self {
        let mut out = Output::default();
        let mut handshake = None;
        out.put(|bytes| handshake = Some(Handshake::begin(bytes)));
        Self {
            name,
            stream,
            phase: Phase::Handshake(handshake.expect("it was begun")),
            payload: Payload::None,
            pieces: Vec::new(),
            out,
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            wants: 1,
            readable: true,
            hung_up: false,
            is_gone: false,
            ending: false,
            queued: false,
            dirty: false,
            blocked: false,
            is_watched: false,
            is_waiting: false,
            under_way: 0,
            claimed: 0,
            granted: 0,
            after_long: false,
            moved_ns: now_ns,
            progress: 0,
        }
    }

    /// What came and is not done with.
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

    /// Notes that the client moved so many bytes. A handshake counts from its beginning.
    pub fn note_moved(&mut self, len: usize, now_ns: u64) {
        if matches!(self.phase, Phase::Handshake(_)) {
            return;
        }
        self.progress += len as u64;
        if self.progress >= PROGRESS || self.out.is_empty() && !self.has_payload() {
            self.progress = 0;
            self.moved_ns = now_ns;
        }
    }

    /// From now on it is looked at whether the client moves: it has been given memory.
    pub fn begin_to_owe(&mut self, claim: usize, now_ns: u64) {
        if self.claimed == 0 {
            (self.moved_ns, self.progress) = (now_ns, 0);
        }
        self.claimed += claim;
    }

    pub fn has_payload(&self) -> bool {
        !matches!(self.payload, Payload::None)
    }

    /// Whether it is the client's turn to move, and the server has memory in use for it meanwhile.
    pub fn is_owing(&self) -> bool {
        self.blocked && self.out.claimed() > 0
            || matches!(self.payload, Payload::Write { .. }) && self.input_len() == 0 && !self.readable
    }

    /// Whether all that was asked is answered and sent.
    pub fn is_done(&self) -> bool {
        self.under_way == 0 && self.out.is_empty() && !self.has_payload()
    }

    /// Copies what is there of a payload to write to its piece. Returns whether the piece is full.
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

    /// Reads once: to where a payload is to lie, as far as one is missing, and to the input. Returns how many bytes came.
    ///
    /// # Errors
    ///
    /// What the system says: the client is gone.
    pub fn read(&mut self) -> io::Result<usize> {
        if self.start > 0 && self.input.len() - self.end < self.wants {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (room, result) = match &mut self.payload {
            Payload::Write { filled, .. } if self.start == self.end => {
                let is_last = self.pieces.len() == 1;
                let Some(piece) = self.pieces.last_mut() else { return Ok(0) };
                self.after_long = piece.len() >= LONG;
                let behind = match (is_last, self.after_long) {
                    (false, _) => 0,
                    (true, true) => BEHIND_LONG,
                    (true, false) => self.input.len(),
                };
                let (missing, input) = (&mut piece[*filled..], &mut self.input[..behind]);
                let missing_len = missing.len();
                let room = missing_len + behind;
                let result = self.stream.read_pieces(&mut [IoSliceMut::new(missing), IoSliceMut::new(input)]);
                if let Ok(len) = result {
                    *filled += len.min(missing_len);
                    (self.start, self.end) = (0, len.saturating_sub(missing_len));
                }
                (room, result)
            }
            _ => {
                let free = &mut self.input[self.end..];
                let most = if self.after_long { self.wants.min(free.len()) } else { free.len() };
                let result = self.stream.read(&mut free[..most]);
                self.end += result.as_ref().map_or(0, |len| *len);
                (most, result)
            }
        };
        match result {
            Ok(0) if room > 0 => {
                (self.ending, self.readable) = (true, false);
                Ok(0)
            }
            Ok(len) => {
                // Less than there was room for is all there is: more would be told. That there will be no more was told.
                self.readable = len == room || self.hung_up;
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

    /// The next request is likely to have no long payload.
    pub fn expect_short(&mut self) {
        self.after_long = false;
    }
}
