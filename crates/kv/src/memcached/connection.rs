//! One client's connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use super::listener::Stream;
use super::pool::Pool;
use super::protocol::Session;

/// Answers that a connection may wait for from other threads, and bytes of them that it may have to keep.
const WAITING_MAX: usize = 256;
const WAITING_LEN_MAX: usize = 4 << 20;
/// Bytes that output has room for at first: more will come.
const OUT_LEN: usize = 4 << 10;

pub(super) struct Connection {
    pub stream: Stream,
    pub generation: u64,
    pub session: Session,
    /// What came in and is not done with.
    pub input: Vec<u8>,
    /// How much input there must be before there is anything to do.
    pub wants: usize,
    /// There may be something to read.
    pub readable: bool,
    /// The client was told to have ended.
    pub hung_up: bool,
    /// It wants more memory than there is.
    pub failed: bool,
    /// Nothing more comes in, or nothing more is wanted: once everything is sent, it ends.
    pub ending: bool,
    /// It is in the queue of those to be served.
    pub queued: bool,
    /// It is told when it can be written to.
    pub blocked: bool,
    /// When it could be written to last.
    pub wrote_s: u32,
    /// What is to be sent, of which so many bytes were.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Answers behind `out` that others give, and what stands between them.
    waiting: VecDeque<Part>,
    /// The number of the first of them.
    first: u64,
    /// Bytes of them that are there.
    waiting_len: usize,
    /// Requests that others are to answer still, and their bytes.
    asked: usize,
    asked_len: usize,
    /// Bytes of the longer ones of late answers: what the next ones will be like.
    answer_len: usize,
}

enum Part {
    Bytes(Vec<u8>),
    /// So many others are to answer a request of such a length still.
    Asked(usize, usize),
}

impl Connection {
    pub fn new(stream: Stream, generation: u64) -> Self {
        Self {
            stream,
            generation,
            session: Session::default(),
            input: Vec::new(),
            wants: 1,
            readable: true,
            hung_up: false,
            failed: false,
            ending: false,
            queued: false,
            blocked: false,
            wrote_s: 0,
            out: Vec::new(),
            sent: 0,
            waiting: VecDeque::new(),
            first: 0,
            waiting_len: 0,
            asked: 0,
            asked_len: 0,
            answer_len: 0,
        }
    }

    /// Whether everything that was answered is sent.
    pub fn is_drained(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty()
    }

    /// Whether others are to answer something.
    pub fn has_asked(&self) -> bool {
        self.asked > 0
    }

    /// Whether it is to wait for others' answers before it asks for more.
    pub fn waits(&self) -> bool {
        let expected = self.waiting_len + self.asked_len + self.asked * self.answer_len;
        self.asked > 0 && (self.waiting.len() >= WAITING_MAX || expected >= WAITING_LEN_MAX)
    }

    /// Bytes of its buffers, and of what it asked others.
    pub fn kept(&self) -> usize {
        self.input.capacity() + self.out.capacity() + self.waiting_len + self.asked_len
    }

    /// Adds what was answered here.
    pub fn say(&mut self, bytes: &[u8], pool: &mut Pool) {
        if bytes.is_empty() {
            return;
        }
        if self.waiting.is_empty() {
            return self.push_out(bytes, pool);
        }
        self.waiting_len += bytes.len();
        match self.waiting.back_mut() {
            // It does not grow: a long buffer would be kept for a few bytes the next time.
            Some(Part::Bytes(part)) if part.capacity() - part.len() >= bytes.len() => part.extend_from_slice(bytes),
            _ => self.waiting.push_back(Part::Bytes(filled(bytes, pool))),
        }
    }

    fn push_out(&mut self, bytes: &[u8], pool: &mut Pool) {
        if self.out.capacity() == 0 && !bytes.is_empty() {
            self.out = pool.take(bytes.len().max(OUT_LEN));
        }
        self.out.extend_from_slice(bytes);
    }

    /// Leaves a place for what `others` are to answer to a request of `len` bytes; returns its number.
    pub fn ask(&mut self, others: usize, len: usize) -> u64 {
        self.waiting.push_back(Part::Asked(others, len));
        self.asked += 1;
        self.asked_len += len;
        self.first + self.waiting.len() as u64 - 1
    }

    /// Takes the answer with `number`.
    pub fn answered(&mut self, number: u64, answer: &[u8], pool: &mut Pool) {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok();
        match at.and_then(|at| self.waiting.get_mut(at)) {
            Some(Part::Asked(others @ 2.., _)) => *others -= 1,
            Some(part @ Part::Asked(..)) => {
                let Part::Asked(_, len) = std::mem::replace(part, Part::Bytes(Vec::new())) else { return };
                self.asked -= 1;
                self.asked_len -= len;
                self.answer_len = answer.len().max(self.answer_len - self.answer_len / 8);
                if at == Some(0) {
                    // As a rule they come in order, and need not be kept.
                    self.push_out(answer, pool);
                } else {
                    *part = Part::Bytes(filled(answer, pool));
                    self.waiting_len += answer.len();
                }
            }
            _ => {}
        }
        while let Some(Part::Bytes(_)) = self.waiting.front() {
            let Some(Part::Bytes(bytes)) = self.waiting.pop_front() else { break };
            self.first += 1;
            self.waiting_len -= bytes.len();
            self.push_out(&bytes, pool);
            pool.give(bytes);
        }
    }

    /// Sends what it can; returns the bytes that went.
    pub fn send(&mut self) -> io::Result<usize> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(self.sent - before),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let sent = self.sent - before;
        self.out.clear();
        self.sent = 0;
        Ok(sent)
    }
}

/// A buffer that holds `bytes`.
fn filled(bytes: &[u8], pool: &mut Pool) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut buffer = pool.take_short(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer
}
