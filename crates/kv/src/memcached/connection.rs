//! The connection of one client.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use super::budget::Claim;
use super::hand_over::Entry;
use super::pool::Pool;
use super::protocol::Session;
use sinew_door::Stream;

/// Answers, and bytes of them, that a connection may await from other threads.
const WAITING_MAX: usize = 256;
const WAITING_LEN_MAX: usize = 4 << 20;
/// Length above which a buffer is made exactly as long as needed, and only when there is memory for it.
pub(super) const LONG: usize = 64 << 10;
/// More bytes than the two kernels buffer for a client that does not read. Once the kernel has accepted more than this,
/// the client must have read some.
const UNREAD_MAX: u64 = 16 << 20;
/// Initial capacity of the output buffer.
const OUT_LEN: usize = 4 << 10;

pub(super) struct Connection {
    pub stream: Stream,
    pub generation: u64,
    pub session: Session,
    /// Input that has not been consumed.
    pub input: Vec<u8>,
    /// Input needed before there is anything to do, in bytes.
    pub wants: usize,
    /// There may be something to read from the socket.
    pub readable: bool,
    /// The system has announced the end of the client's input.
    pub hung_up: bool,
    /// The client has sent a long value.
    has_sent: bool,
    /// Bytes that the kernel has accepted for the client.
    taken: u64,
    /// Needs for memory that have not been met yet.
    pub starving: VecDeque<Want>,
    /// Nothing more is executed before all outstanding answers of other threads have arrived.
    is_behind: bool,
    /// It is in the queue of connections that wait for memory.
    pub is_queued_for_memory: bool,
    /// Bytes reserved for the next answer of this thread, and for one of another thread.
    pub room: usize,
    pub others_room: usize,
    /// Bytes accounted for it in the budget.
    pub counted: usize,
    /// The client reads no more.
    pub is_gone: bool,
    /// No more input arrives or is wanted: the connection is closed once everything is sent.
    pub ending: bool,
    /// It is in the queue of connections to be served.
    pub queued: bool,
    /// The kernel accepts no more output; an event will announce when it does.
    pub blocked: bool,
    /// Time at which the kernel last accepted output, or the client last sent input.
    pub moved_ns: u64,
    /// Time at which the client last sent input, in seconds.
    pub heard_s: u32,
    /// Output, and the number of its bytes that are sent.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Parts of the output after `out`: answers of other threads, and what stands between them.
    waiting: VecDeque<Part>,
    /// Number of the first part in `waiting`.
    first: u64,
    /// Bytes of parts that are complete but wait for an earlier one.
    waiting_len: usize,
    /// Requests that other threads have not answered yet, and their bytes.
    asked: usize,
    asked_len: usize,
    /// Recent maximum of the lengths of other threads' answers: an estimate for the next ones.
    answer_len: usize,
}

/// A need for memory.
#[derive(Debug)]
pub(super) enum Want {
    /// Input buffer for a command of this many bytes with its data.
    Input(usize),
    /// Room for an answer with a value of this many bytes.
    Answer(usize),
    /// Room for another thread's answer of this many bytes to the given request.
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
    /// A request handed over: threads that have not answered yet, and the request's length.
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

    /// Whether all output has been sent.
    pub fn is_drained(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty()
    }

    /// Its claim to memory.
    pub fn claim(&self) -> Claim {
        if self.has_sent || self.taken > UNREAD_MAX { Claim::Proven } else { Claim::New }
    }

    /// Whether it may take memory for its next need. Long answers of other threads take memory one at a time.
    pub fn may_be_fed(&self) -> bool {
        let is_next = match self.starving.front() {
            None => false,
            // An answer behind another must not take memory: it would hold the memory while it waits.
            Some(Want::Others(_, entry, _)) => entry.number == self.first && self.out.len() <= LONG,
            Some(_) => true,
        };
        is_next && self.others_room == 0 && !self.is_queued_for_memory
    }

    /// Adds a need for memory to those waiting, in the order in which their answers will be sent.
    pub fn starve(&mut self, want: Want) {
        let is_before = |other: &Want| match (other, &want) {
            (Want::Others(_, other, _), Want::Others(_, entry, _)) => other.number < entry.number,
            (Want::Others(..), _) => true,
            _ => false,
        };
        let at = self.starving.partition_point(is_before);
        self.starving.insert(at, want);
    }

    /// Returns whether answers of other threads are outstanding; if so, nothing more is executed until they have
    /// arrived.
    pub fn is_behind_others(&mut self) -> bool {
        self.is_behind = self.asked > 0;
        self.is_behind
    }

    /// Notes that `len` bytes of commands were executed at once.
    pub fn note_done(&mut self, len: usize) {
        self.has_sent |= len > LONG;
    }

    /// Notes that the kernel accepted `len` bytes.
    pub fn note_taken(&mut self, len: usize, now_ns: u64) {
        if len > 0 {
            self.taken += len as u64;
            self.moved_ns = now_ns;
        }
    }

    /// Whether the next step is the client's: it has not read its answers, or not sent the rest of a command.
    pub fn is_stalled(&self) -> bool {
        let owes = !self.input.is_empty() && self.input.len() < self.wants && !self.readable;
        self.blocked || owes && self.starving.is_empty() && self.asked == 0
    }

    /// Whether it must wait for answers of other threads before it asks for more.
    pub fn waits(&self) -> bool {
        let expected = self.waiting_len + self.asked_len + self.asked * self.answer_len;
        self.asked > 0 && (self.is_behind || self.waiting.len() >= WAITING_MAX || expected >= WAITING_LEN_MAX)
    }

    /// Bytes of its buffers, of its reservations, and of the requests it handed over.
    pub fn kept(&self) -> usize {
        self.input.capacity() + self.out.capacity() + self.waiting_len + self.asked_len + self.room + self.others_room
    }

    /// Takes over `bytes` as its output, `sent` of which have been sent. There must be no output yet.
    pub fn adopt(&mut self, bytes: Vec<u8>, sent: usize, pool: &mut Pool) {
        pool.give(std::mem::replace(&mut self.out, bytes));
        self.sent = sent;
    }

    /// Appends an answer of this thread.
    pub fn say(&mut self, bytes: &[u8], pool: &mut Pool) {
        if bytes.is_empty() {
            return;
        }
        if self.waiting.is_empty() {
            return self.push_out(bytes, pool);
        }
        self.waiting_len += bytes.len();
        match self.waiting.back_mut() {
            // The part is not grown: a long buffer would be kept for a few bytes the next time.
            Some(Part::Bytes(part)) if part.capacity() - part.len() >= bytes.len() => part.extend_from_slice(bytes),
            _ => self.waiting.push_back(Part::Bytes(filled(bytes, pool))),
        }
    }

    fn push_out(&mut self, bytes: &[u8], pool: &mut Pool) {
        let len = self.out.len() + bytes.len();
        if self.out.capacity() < len {
            // Doubling would waste memory on long values.
            let mut longer = pool.take(if len <= LONG { (2 * self.out.len()).max(len).max(OUT_LEN) } else { len });
            longer.extend_from_slice(&self.out[self.sent..]);
            self.sent = 0;
            pool.give(std::mem::replace(&mut self.out, longer));
        }
        self.out.extend_from_slice(bytes);
    }

    /// As [`Self::push_out`], with a buffer that may be adopted instead of copied.
    fn push_out_whole(&mut self, bytes: Vec<u8>, pool: &mut Pool) {
        if self.out.is_empty() && bytes.len() > LONG {
            self.adopt(bytes, 0, pool);
        } else {
            self.push_out(&bytes, pool);
            pool.give(bytes);
        }
    }

    /// Reserves a place for the answers of `others` threads to a request of `len` bytes; returns its number.
    pub fn ask(&mut self, others: usize, len: usize) -> u64 {
        self.waiting.push_back(Part::Asked(others, len));
        self.asked += 1;
        self.asked_len += len;
        self.first + self.waiting.len() as u64 - 1
    }

    /// Takes the answer number `number`, a long one in a buffer of its own.
    pub fn answered_whole(&mut self, number: u64, answer: Vec<u8>, pool: &mut Pool) {
        if number == self.first && self.out.is_empty() && matches!(self.waiting.front(), Some(Part::Asked(1, _))) {
            self.adopt(answer, 0, pool);
            return self.answered(number, &[], pool);
        }
        self.answered(number, &answer, pool);
        pool.give(answer);
    }

    /// Takes the answer number `number`.
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
                    // Usually they arrive in order, and need not be kept.
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

    /// Sends up to `len` bytes; returns the bytes sent, and whether the kernel accepted no more.
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

/// Copies `bytes` into a buffer of the pool.
fn filled(bytes: &[u8], pool: &mut Pool) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut buffer = pool.take_short(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer
}
