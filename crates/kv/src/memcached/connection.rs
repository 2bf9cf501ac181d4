//! One client's connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use super::budget::Claim;
use super::hand_over::Entry;
use super::pool::Pool;
use super::protocol::Session;
use sinew_door::Stream;

/// Answers that a connection may wait for from other threads, and bytes of them that it may have to keep.
const WAITING_MAX: usize = 256;
const WAITING_LEN_MAX: usize = 4 << 20;
/// Buffers that are longer are taken as long as they need to be, and only when there is memory for them.
pub(super) const LONG: usize = 64 << 10;
/// More bytes than the kernels keep of what a client does not read: one that has taken them has read some.
const UNREAD_MAX: u64 = 16 << 20;
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
    /// It has sent a long value.
    has_sent: bool,
    /// Bytes that the kernel has taken for it.
    taken: u64,
    /// What it wants room for, while it waits for it.
    pub starving: VecDeque<Want>,
    /// It has to wait for all that it asked.
    is_behind: bool,
    /// It stands in the queue of those that wait.
    pub is_queued_for_memory: bool,
    /// Room that was taken for an answer of this thread that is to come, and for one of another.
    pub room: usize,
    pub others_room: usize,
    /// Bytes that are counted for it.
    pub counted: usize,
    /// The client reads nothing any more.
    pub is_gone: bool,
    /// Nothing more comes in, or nothing more is wanted: once everything is sent, it ends.
    pub ending: bool,
    /// It is in the queue of those to be served.
    pub queued: bool,
    /// It is told when it can be written to.
    pub blocked: bool,
    /// When the kernel last took something for it, or it sent something.
    pub moved_ns: u64,
    /// When it sent something last.
    pub heard_s: u32,
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

/// What a connection wants memory for.
#[derive(Debug)]
pub(super) enum Want {
    /// A command with its data, of so many bytes.
    Input(usize),
    /// An answer with a value of so many bytes.
    Answer(usize),
    /// As much, for an answer that another thread gives to this request.
    Others(usize, Entry, Vec<u8>),
}

impl Want {
    pub fn len(&self) -> usize {
        match self {
            Self::Input(len) | Self::Answer(len) | Self::Others(len, ..) => *len,
        }
    }
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
            is_gone: false,
            has_sent: false,
            taken: 0,
            starving: VecDeque::new(),
            is_behind: false,
            is_queued_for_memory: false,
            room: 0,
            others_room: 0,
            counted: 0,
            ending: false,
            queued: false,
            blocked: false,
            moved_ns: 0,
            heard_s: 0,
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

    /// What its claim to memory is.
    pub fn claim(&self) -> Claim {
        if self.has_sent || self.taken > UNREAD_MAX { Claim::Proven } else { Claim::New }
    }

    /// Whether memory may be taken for what it wants next: long answers of other threads come one after the other.
    pub fn may_be_fed(&self) -> bool {
        let is_next = match self.starving.front() {
            None => false,
            // Nothing that is behind another answer takes memory: it would wait for that with it.
            Some(Want::Others(_, entry, _)) => entry.number == self.first && self.out.len() <= LONG,
            Some(_) => true,
        };
        is_next && self.others_room == 0 && !self.is_queued_for_memory
    }

    /// Has something wait for memory, in the order in which it will be sent.
    pub fn starve(&mut self, want: Want) {
        let is_before = |other: &Want| match (other, &want) {
            (Want::Others(_, other, _), Want::Others(_, entry, _)) => other.number < entry.number,
            (Want::Others(..), _) => true,
            _ => false,
        };
        let at = self.starving.partition_point(is_before);
        self.starving.insert(at, want);
    }

    /// Whether answers of others are to come; nothing more is carried out until they have.
    pub fn is_behind_others(&mut self) -> bool {
        self.is_behind = self.asked > 0;
        self.is_behind
    }

    /// Notes that commands of so many bytes were carried out at once.
    pub fn note_done(&mut self, len: usize) {
        self.has_sent |= len > LONG;
    }

    /// Notes that the kernel took so many bytes.
    pub fn note_taken(&mut self, len: usize, now_ns: u64) {
        if len > 0 {
            self.taken += len as u64;
            self.moved_ns = now_ns;
        }
    }

    /// Whether it is the client's turn to move: it has not read what it is owed, or not sent what it owes.
    pub fn is_stalled(&self) -> bool {
        let owes = !self.input.is_empty() && self.input.len() < self.wants && !self.readable;
        self.blocked || owes && self.starving.is_empty() && self.asked == 0
    }

    /// Whether it is to wait for others' answers before it asks for more.
    pub fn waits(&self) -> bool {
        let expected = self.waiting_len + self.asked_len + self.asked * self.answer_len;
        self.asked > 0 && (self.is_behind || self.waiting.len() >= WAITING_MAX || expected >= WAITING_LEN_MAX)
    }

    /// Bytes of its buffers, and of what it asked others.
    pub fn kept(&self) -> usize {
        self.input.capacity() + self.out.capacity() + self.waiting_len + self.asked_len + self.room + self.others_room
    }

    /// Takes over `bytes`, of which so many were sent, as its output. There is none so far.
    pub fn adopt(&mut self, bytes: Vec<u8>, sent: usize, pool: &mut Pool) {
        pool.give(std::mem::replace(&mut self.out, bytes));
        self.sent = sent;
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
        let len = self.out.len() + bytes.len();
        if self.out.capacity() < len {
            // Not twice as much as long values need.
            let mut longer = pool.take(if len <= LONG { (2 * self.out.len()).max(len).max(OUT_LEN) } else { len });
            longer.extend_from_slice(&self.out[self.sent..]);
            self.sent = 0;
            pool.give(std::mem::replace(&mut self.out, longer));
        }
        self.out.extend_from_slice(bytes);
    }

    /// As [`Self::push_out`], of a buffer that need not be copied.
    fn push_out_whole(&mut self, bytes: Vec<u8>, pool: &mut Pool) {
        if self.out.is_empty() && bytes.len() > LONG {
            self.adopt(bytes, 0, pool);
        } else {
            self.push_out(&bytes, pool);
            pool.give(bytes);
        }
    }

    /// Leaves a place for what `others` are to answer to a request of `len` bytes; returns its number.
    pub fn ask(&mut self, others: usize, len: usize) -> u64 {
        self.waiting.push_back(Part::Asked(others, len));
        self.asked += 1;
        self.asked_len += len;
        self.first + self.waiting.len() as u64 - 1
    }

    /// Takes the answer with `number`, which is a long one, in a buffer of its own.
    pub fn answered_whole(&mut self, number: u64, answer: Vec<u8>, pool: &mut Pool) {
        if number == self.first && self.out.is_empty() && matches!(self.waiting.front(), Some(Part::Asked(1, _))) {
            self.adopt(answer, 0, pool);
            return self.answered(number, &[], pool);
        }
        self.answered(number, &answer, pool);
        pool.give(answer);
    }

    /// Takes the answer with `number`.
    pub fn answered(&mut self, number: u64, answer: &[u8], pool: &mut Pool) {
        let at = usize::try_from(number.wrapping_sub(self.first)).ok();
        match at.and_then(|at| self.waiting.get_mut(at)) {
            Some(Part::Asked(others @ 2.., _)) => *others -= 1,
            Some(part @ Part::Asked(..)) => {
                let Part::Asked(_, len) = std::mem::replace(part, Part::Bytes(Vec::new())) else { return };
                self.asked -= 1;
                self.is_behind &= self.asked > 0;
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
            self.push_out_whole(bytes, pool);
        }
    }

    /// Sends what it can, up to `len` bytes; returns those that went, and whether the kernel took no more.
    pub fn send(&mut self, len: usize) -> io::Result<(usize, bool)> {
        let before = self.sent;
        let until = self.out.len().min(before + len);
        while self.sent < until {
            match self.stream.write(&self.out[self.sent..until]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((self.sent - before, true)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let sent = self.sent - before;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok((sent, false))
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
