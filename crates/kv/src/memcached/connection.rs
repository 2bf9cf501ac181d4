//! One client's connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use super::listener::Stream;
use super::protocol::Session;

/// Answers that a connection may wait for from other threads.
const WAITING_MAX: usize = 256;

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
    /// What is to be sent, of which so many bytes were.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Answers behind `out` that others give, and what stands between them.
    waiting: VecDeque<Part>,
    /// The number of the first of them.
    first: u64,
    /// Bytes of them that are there.
    waiting_len: usize,
}

enum Part {
    Bytes(Vec<u8>),
    /// So many others are to answer still.
    Asked(usize),
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
            out: Vec::new(),
            sent: 0,
            waiting: VecDeque::new(),
            first: 0,
            waiting_len: 0,
        }
    }

    /// Whether everything that was answered is sent.
    pub fn is_drained(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty()
    }

    /// Whether it is to wait for others' answers before it asks for more.
    pub fn waits(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Bytes of its buffers.
    pub fn kept(&self) -> usize {
        self.input.capacity() + self.out.capacity() + self.waiting_len
    }

    /// Adds what was answered here.
    pub fn say(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.waiting.is_empty() {
            return self.out.extend_from_slice(bytes);
        }
        self.waiting_len += bytes.len();
        match self.waiting.back_mut() {
            Some(Part::Bytes(part)) => part.extend_from_slice(bytes),
            _ => self.waiting.push_back(Part::Bytes(bytes.to_vec())),
        }
    }

    /// Leaves a place for what `others` are to answer; returns its number.
    pub fn ask(&mut self, others: usize) -> u64 {
        self.waiting.push_back(Part::Asked(others));
        self.first + self.waiting.len() as u64 - 1
    }

    /// Takes the answer with `number`.
    pub fn answered(&mut self, number: u64, answer: &[u8]) {
        let part = usize::try_from(number.wrapping_sub(self.first)).ok().and_then(|at| self.waiting.get_mut(at));
        match part {
            Some(Part::Asked(others @ 2..)) => *others -= 1,
            Some(part @ Part::Asked(_)) => {
                *part = Part::Bytes(answer.to_vec());
                self.waiting_len += answer.len();
            }
            _ => {}
        }
        while let Some(Part::Bytes(bytes)) = self.waiting.front() {
            self.out.extend_from_slice(bytes);
            self.waiting_len -= bytes.len();
            self.waiting.pop_front();
            self.first += 1;
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
