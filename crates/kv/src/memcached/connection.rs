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
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Length above which a buffer is made exactly as long as needed, and only when there is memory for it.
pub(super) const LARGE_LEN: usize = 64 << 10;
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
    pub input_needed: usize,
    /// There may be something to read from the socket.
    pub readable: bool,
    /// The system has announced the end of the client's input.
    pub hung_up: bool,
    /// The client has sent a long value.
    has_sent: bool,
    /// Bytes that the kernel has accepted for the client.
    bytes_taken: u64,
    /// Needs for memory that have not been met yet.
    pub memory_needs: VecDeque<MemoryNeed>,
    /// Nothing more is executed before all outstanding answers of other threads have arrived.
    is_behind_remote: bool,
    /// It is in the queue of connections that wait for memory.
    pub is_queued_for_memory: bool,
    /// Bytes reserved for the next answer of this thread, and for one of another thread.
    pub answer_room: usize,
    pub remote_room: usize,
    /// Bytes accounted for it in the budget.
    pub memory_counted: usize,
    /// The client reads no more.
    pub is_broken: bool,
    /// No more input arrives or is wanted: the connection is closed once everything is sent.
    pub ending: bool,
    /// It is in the queue of connections to be served.
    pub queued: bool,
    /// The kernel accepts no more output; an event will announce when it does.
    pub blocked: bool,
    /// Time at which the kernel last accepted output, or the client last sent input.
    pub last_progress_ns: u64,
    /// Time at which the client last sent input, in seconds.
    pub last_input_s: u32,
    /// Output, and the number of its bytes that are sent.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Parts of the output after `out`: answers of other threads, and what stands between them.
    waiting: VecDeque<AnswerPart>,
    /// Number of the first part in `waiting`.
    first_number: u64,
    /// Bytes of parts that are complete but wait for an earlier one.
    waiting_len: usize,
    /// Requests that other threads have not answered yet, and their bytes.
    remote_requests: usize,
    remote_requests_len: usize,
    /// Recent maximum of the lengths of other threads' answers: an estimate for the next ones.
    remote_answer_len: usize,
}

/// A need for memory.
#[derive(Debug)]
pub(super) enum MemoryNeed {
    /// Input buffer for a command of this many bytes with its data.
    Input(usize),
    /// Room for an answer with a value of this many bytes.
    Answer(usize),
    /// Room for another thread's answer of this many bytes to the given request.
    Remote(usize, Entry, Vec<u8>),
}

impl MemoryNeed {
    pub fn len(&self) -> usize {
        match self {
            Self::Input(len) | Self::Answer(len) | Self::Remote(len, ..) => *len,
        }
    }
}

enum AnswerPart {
    Bytes(Vec<u8>),
    /// A request handed over: threads that have not answered yet, and the request's length.
    Remote(usize, usize),
}

impl Connection {
    pub fn new(stream: Stream, generation: u64) -> Self {
        Self {
            stream,
            generation,
            session: Session::default(),
            input: Vec::new(),
            input_needed: 1,
            readable: true,
            hung_up: false,
            is_broken: false,
            has_sent: false,
            bytes_taken: 0,
            memory_needs: VecDeque::new(),
            is_behind_remote: false,
            is_queued_for_memory: false,
            answer_room: 0,
            remote_room: 0,
            memory_counted: 0,
            ending: false,
            queued: false,
            blocked: false,
            last_progress_ns: 0,
            last_input_s: 0,
            out: Vec::new(),
            sent: 0,
            waiting: VecDeque::new(),
            first_number: 0,
            waiting_len: 0,
            remote_requests: 0,
            remote_requests_len: 0,
            remote_answer_len: 0,
        }
    }

    /// Whether all output has been sent.
    pub fn is_drained(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty()
    }

    /// Whether there is nothing to do for it but to read what its client sends next.
    pub fn awaits_input(&self) -> bool {
        self.is_drained() && self.memory_needs.is_empty() && !self.ending && !self.queued
    }

    /// Its claim to memory.
    pub fn claim(&self) -> Claim {
        if self.has_sent || self.bytes_taken > UNREAD_MAX { Claim::Proven } else { Claim::New }
    }

    /// Whether it may take memory for its next need. Long answers of other threads take memory one at a time.
    pub fn may_take_memory(&self) -> bool {
        let is_next = match self.memory_needs.front() {
            None => false,
            // An answer behind another must not take memory: it would hold the memory while it waits.
            Some(MemoryNeed::Remote(_, entry, _)) => entry.number == self.first_number && self.out.len() <= LARGE_LEN,
            Some(_) => true,
        };
        is_next && self.remote_room == 0 && !self.is_queued_for_memory
    }

    /// Adds a need for memory to those waiting, in the order in which their answers will be sent.
    pub fn add_memory_need(&mut self, need: MemoryNeed) {
        let precedes = |other: &MemoryNeed| match (other, &need) {
            (MemoryNeed::Remote(_, other, _), MemoryNeed::Remote(_, entry, _)) => other.number < entry.number,
            (MemoryNeed::Remote(..), _) => true,
            _ => false,
        };
        let at = self.memory_needs.partition_point(precedes);
        self.memory_needs.insert(at, need);
    }

    /// Returns whether answers of other threads are outstanding; if so, nothing more is executed until they have
    /// arrived.
    pub fn wait_for_remote(&mut self) -> bool {
        self.is_behind_remote = self.remote_requests > 0;
        self.is_behind_remote
    }

    /// Notes that `len` bytes of commands were executed at once.
    pub fn note_consumed(&mut self, len: usize) {
        self.has_sent |= len > LARGE_LEN;
    }

    /// Notes that the kernel accepted `len` bytes.
    pub fn note_accepted(&mut self, len: usize, now_ns: u64) {
        if len > 0 {
            self.bytes_taken += len as u64;
            self.last_progress_ns = now_ns;
        }
    }

    /// Whether the next step is the client's: it has not read its answers, or not sent the rest of a command.
    pub fn is_stalled(&self) -> bool {
        let is_input_owed = !self.input.is_empty() && self.input.len() < self.input_needed && !self.readable;
        self.blocked || is_input_owed && self.memory_needs.is_empty() && self.remote_requests == 0
    }

    /// Whether it must wait for answers of other threads before it asks for more.
    pub fn awaits_remote(&self) -> bool {
        let expected = self.waiting_len + self.remote_requests_len + self.remote_requests * self.remote_answer_len;
        self.remote_requests > 0
            && (self.is_behind_remote || self.waiting.len() >= WAITING_MAX || expected >= WAITING_BYTES_MAX)
    }

    /// Bytes of its buffers, of its reservations, and of the requests it handed over.
    pub fn memory_held(&self) -> usize {
        self.input.capacity()
            + self.out.capacity()
            + self.waiting_len
            + self.remote_requests_len
            + self.answer_room
            + self.remote_room
    }

    /// Takes over `bytes` as its output, `sent` of which have been sent. There must be no output yet.
    pub fn adopt_output(&mut self, bytes: Vec<u8>, sent: usize, pool: &mut Pool) {
        pool.put_back(std::mem::replace(&mut self.out, bytes));
        self.sent = sent;
    }

    /// Appends an answer of this thread.
    pub fn append_answer(&mut self, bytes: &[u8], pool: &mut Pool) {
        if bytes.is_empty() {
            return;
        }
        if self.waiting.is_empty() {
            return self.push_out(bytes, pool);
        }
        self.waiting_len += bytes.len();
        match self.waiting.back_mut() {
            // The part is not grown: a long buffer would be kept for a few bytes the next time.
            Some(AnswerPart::Bytes(part)) if part.capacity() - part.len() >= bytes.len() => {
                part.extend_from_slice(bytes)
            }
            _ => self.waiting.push_back(AnswerPart::Bytes(copied(bytes, pool))),
        }
    }

    fn push_out(&mut self, bytes: &[u8], pool: &mut Pool) {
        let len = self.out.len() + bytes.len();
        if self.out.capacity() < len {
            // Doubling would waste memory on long values.
            let mut longer = pool.take(if len <= LARGE_LEN { (2 * self.out.len()).max(len).max(OUT_LEN) } else { len });
            longer.extend_from_slice(&self.out[self.sent..]);
            self.sent = 0;
            pool.put_back(std::mem::replace(&mut self.out, longer));
        }
        self.out.extend_from_slice(bytes);
    }

    /// As [`Self::push_out`], with a buffer that may be adopted instead of copied.
    fn push_out_whole(&mut self, bytes: Vec<u8>, pool: &mut Pool) {
        if self.out.is_empty() && bytes.len() > LARGE_LEN {
            self.adopt_output(bytes, 0, pool);
        } else {
            self.push_out(&bytes, pool);
            pool.put_back(bytes);
        }
    }

    /// Reserves a place for the answers of `threads` threads to a request of `len` bytes; returns its number.
    pub fn begin_remote(&mut self, threads: usize, len: usize) -> u64 {
        self.waiting.push_back(AnswerPart::Remote(threads, len));
        self.remote_requests += 1;
        self.remote_requests_len += len;
        self.first_number + self.waiting.len() as u64 - 1
    }

    /// Takes the answer number `number`, a long one in a buffer of its own.
    pub fn complete_remote_owned(&mut self, number: u64, answer: Vec<u8>, pool: &mut Pool) {
        if number == self.first_number
            && self.out.is_empty()
            && matches!(self.waiting.front(), Some(AnswerPart::Remote(1, _)))
        {
            self.adopt_output(answer, 0, pool);
            return self.complete_remote(number, &[], pool);
        }
        self.complete_remote(number, &answer, pool);
        pool.put_back(answer);
    }

    /// Takes the answer number `number`.
    pub fn complete_remote(&mut self, number: u64, answer: &[u8], pool: &mut Pool) {
        let at = usize::try_from(number.wrapping_sub(self.first_number)).ok();
        match at.and_then(|at| self.waiting.get_mut(at)) {
            Some(AnswerPart::Remote(others @ 2.., _)) => *others -= 1,
            Some(part @ AnswerPart::Remote(..)) => {
                let AnswerPart::Remote(_, len) = std::mem::replace(part, AnswerPart::Bytes(Vec::new())) else { return };
                self.remote_requests -= 1;
                self.is_behind_remote &= self.remote_requests > 0;
                self.remote_requests_len -= len;
                self.remote_answer_len = answer.len().max(self.remote_answer_len - self.remote_answer_len / 8);
                if at == Some(0) {
                    // Usually they arrive in order, and need not be kept.
                    self.push_out(answer, pool);
                } else {
                    *part = AnswerPart::Bytes(copied(answer, pool));
                    self.waiting_len += answer.len();
                }
            }
            _ => {}
        }
        while let Some(AnswerPart::Bytes(_)) = self.waiting.front() {
            let Some(AnswerPart::Bytes(bytes)) = self.waiting.pop_front() else { break };
            self.first_number += 1;
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
fn copied(bytes: &[u8], pool: &mut Pool) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut buffer = pool.take_short(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer
}
