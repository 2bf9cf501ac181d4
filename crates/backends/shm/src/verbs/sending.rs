//! The queue of requests: what is performed when, and what is over.
//!
//! One-sided operations are performed on the spot. A message goes into the ring to the peer's port; UC and UD are done with it
//! then. RC sends only what the peer has posted a receive for, which its device's directory says, so what is in the ring
//! arrives: nothing is sent twice. It waits, a bounded number of times, where the peer has posted none, and as long as it
//! takes where the ring is full. Its requests are over when the peer has acknowledged the messages before them.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{
    Attributes, Destination, GATHER_MAX, Opcode, Operation, PostError, QpConfig, QpNumber, QpState, Request, Scatter,
    Source, Status, Transport, Verb,
};
use sinew_fabric::{Dropped, PacketTx, Peer, TxData, TxPacket};

use super::completion::Queue;
use super::device::MTU;
use super::directory::Listens;
use super::engine::{Discarded, Notes, Wire, clock_ns, link_of};
use super::initiator::Place;
use super::life;
use super::packet::{Header, Kind};
use super::queue_pair::{Connection, QueuePair};

/// How long a request waits for a receive, for each of its tries.
const RECEIVER_NOT_READY_NS: u64 = 500_000;
/// How long it waits for a queue pair that has not met ours yet.
const NOT_YET_NS: u64 = 1_000_000_000;
/// Tries that never end.
const FOR_EVER: u8 = 7;

type Pieces<'a> = ArrayVec<&'a [u8], GATHER_MAX>;

/// A request whose turn has not come.
#[derive(Debug)]
pub(crate) struct Work {
    id: u64,
    signaled: bool,
    operation: Operation<'static>,
    /// Where its inline bytes are, and how many.
    slot: usize,
    inline_len: usize,
}

impl Work {
    fn len(&self) -> usize {
        self.operation.len() + self.inline_len
    }

    /// What is left of it when it is over.
    pub fn into_flying(self) -> Flying {
        let (opcode, len) = (self.operation.opcode(), self.len());
        Flying {
            id: self.id,
            opcode,
            signaled: self.signaled,
            len,
            targets: self.operation.into_targets(),
            end: None,
            number: 0,
        }
    }
}

/// A request that was performed.
#[derive(Debug)]
pub(crate) struct Flying {
    pub id: u64,
    pub opcode: Opcode,
    pub signaled: bool,
    pub len: usize,
    pub targets: Scatter,
    /// How it ended; `None` for a message that is not acknowledged.
    pub end: Option<Status>,
    /// The message's.
    pub number: u32,
}

/// Why the oldest request waits, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    reason: Reason,
    since_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The peer has not met us yet.
    NotYet,
    /// It has posted no receive.
    NoReceive,
    /// Its ring is full.
    Full,
}

/// What became of a request when it was performed.
enum Step {
    Over(Status),
    /// It waits for its acknowledgement.
    Sent,
    /// It has to wait for its turn.
    Wait(Reason),
}

/// The pieces of a source, of which inline bytes may lie elsewhere.
#[inline(always)]
fn pieces<'a>(source: &'a Source<'_>, inline: &'a [u8]) -> Pieces<'a> {
    let mut pieces = Pieces::new();
    match source {
        Source::Empty if inline.is_empty() => {}
        Source::Empty => pieces.push(inline),
        Source::Inline(bytes) => pieces.push(bytes),
        Source::Gather(slices) => pieces.extend(slices.iter().map(|slice| slice.bytes())),
    }
    pieces
}

/// Whether the peer listens to us.
#[inline(always)]
fn find_peer(connection: &Connection) -> Result<(), Listens> {
    let directory = &connection.seat.target.directory;
    if !life::is_alive(directory.life()) {
        return Err(Listens::NoLonger);
    }
    let word = directory.listens(connection.number);
    if word == connection.listening { Ok(()) } else { Err(Listens::of_word(word, connection.number)) }
}

/// What performs requests: the parts of a queue pair that this takes.
struct Sender<'a> {
    number: QpNumber,
    config: &'a QpConfig,
    connection: Option<&'a mut Connection>,
    sent: &'a mut u32,
    progress: &'a mut usize,
}

impl Sender<'_> {
    #[inline(always)]
    fn perform(&mut self, operation: &mut Operation<'_>, inline: &[u8], wire: &mut Wire<'_>) -> Step {
        let Some(connection) = self.connection.as_deref_mut() else {
            return match operation {
                Operation::Send { source, immediate, to: Some(to) } => {
                    self.datagram(&pieces(source, inline), *immediate, *to, wire)
                }
                // The state says that there is one.
                _ => Step::Over(Status::LocalQpOperation),
            };
        };
        let reliable = self.config.transport == Transport::Rc;
        match find_peer(connection) {
            Ok(()) => {}
            Err(Listens::NotYet) if reliable => return Step::Wait(Reason::NotYet),
            Err(_) if reliable => return Step::Over(Status::RetryExceeded),
            Err(_) => {
                wire.counts.count(Discarded::NobodyThere);
                return Step::Over(Status::Success);
            }
        }
        let domain = connection.domain;
        let place = |remote| Place { domain, remote };
        let over = |result: Result<(), Status>| Step::Over(result.err().unwrap_or(Status::Success));
        match operation {
            Operation::Write { source, remote, immediate: None } => {
                let pieces = pieces(source, inline);
                let total = pieces.iter().map(|piece| piece.len()).sum();
                over(connection.seat.write(place(*remote), Verb::Write, pieces.iter().copied(), total))
            }
            Operation::Read { target, remote } => {
                let total = target.iter().map(|buffer| buffer.len()).sum();
                over(connection.seat.read(place(*remote), target, total))
            }
            Operation::CompareSwap { target, remote, expected, desired } => {
                let was = connection.seat.compare_swap(place(*remote), *expected, *desired);
                over(was.map(|was| target[..8].copy_from_slice(&was.to_ne_bytes())))
            }
            Operation::FetchAdd { target, remote, add } => {
                let was = connection.seat.fetch_add(place(*remote), *add);
                over(was.map(|was| target[..8].copy_from_slice(&was.to_ne_bytes())))
            }
            Operation::Write { source, remote, immediate: Some(immediate) } => {
                if reliable && !has_receive(connection, *self.sent) {
                    return Step::Wait(Reason::NoReceive);
                }
                let pieces = pieces(source, inline);
                let total = pieces.iter().map(|piece| piece.len()).sum();
                // Not again, when only the ring was full.
                if *self.progress == 0 {
                    let remote = place(*remote);
                    let written =
                        connection.seat.write(remote, Verb::WriteWithImmediate, pieces.iter().copied(), total);
                    if let Err(status) = written {
                        return Step::Over(status);
                    }
                    *self.progress = 1;
                }
                self.message(Kind::Written, &Pieces::new(), total, Some(*immediate), wire)
            }
            Operation::Send { source, immediate, .. } => {
                if reliable && !has_receive(connection, *self.sent) {
                    return Step::Wait(Reason::NoReceive);
                }
                let pieces = pieces(source, inline);
                let total = pieces.iter().map(|piece| piece.len()).sum();
                let kind = if total <= MTU { Kind::Whole } else { Kind::Part };
                self.message(kind, &pieces, total, *immediate, wire)
            }
        }
    }

    /// Sends a message on a connection, or goes on with it.
    #[inline(always)]
    fn message(
        &mut self,
        kind: Kind,
        pieces: &Pieces<'_>,
        total: usize,
        immediate: Option<u32>,
        wire: &mut Wire<'_>,
    ) -> Step {
        let Some(connection) = self.connection.as_deref() else { return Step::Over(Status::LocalQpOperation) };
        let header = Header {
            kind,
            to: connection.number,
            from: self.number,
            key: connection.key,
            number: *self.sent,
            immediate,
            offset: 0,
            total: total as u32,
        };
        let sent = if kind == Kind::Part {
            self.parts(header, connection.link, pieces, total, wire)
        } else {
            offer(wire, connection.link, header, pieces, 0, if kind == Kind::Whole { total } else { 0 })
        };
        let reliable = self.config.transport == Transport::Rc;
        match sent {
            Err(Dropped::Full) if reliable => return Step::Wait(Reason::Full),
            // The link is gone, as the next turn will tell.
            Err(_) if reliable => return Step::Over(Status::RetryExceeded),
            Err(Dropped::Full) => wire.counts.count(Discarded::Full),
            Err(_) => wire.counts.count(Discarded::NobodyThere),
            Ok(()) => {}
        }
        *self.progress = 0;
        *self.sent = self.sent.wrapping_add(1);
        if reliable { Step::Sent } else { Step::Over(Status::Success) }
    }

    /// Sends the parts of a message that were not sent yet.
    #[cold]
    #[inline(never)]
    fn parts(
        &mut self,
        mut header: Header,
        link: Peer,
        pieces: &Pieces<'_>,
        total: usize,
        wire: &mut Wire<'_>,
    ) -> Result<(), Dropped> {
        while *self.progress < total {
            header.offset = *self.progress as u32;
            let len = MTU.min(total - *self.progress);
            let sent = offer(wire, link, header, pieces, *self.progress, len);
            if sent.is_err() && self.config.transport != Transport::Rc {
                // The rest would be of no use.
                *self.progress = total;
            }
            sent?;
            *self.progress += len;
        }
        Ok(())
    }

    #[inline(always)]
    fn datagram(&mut self, pieces: &Pieces<'_>, immediate: Option<u32>, to: Destination, wire: &mut Wire<'_>) -> Step {
        let header = Header {
            kind: Kind::Datagram,
            to: to.number,
            from: self.number,
            key: to.qkey,
            number: self.config.qkey,
            immediate,
            offset: 0,
            total: 0,
        };
        let total = pieces.iter().map(|piece| piece.len()).sum();
        match offer(wire, link_of(to.handle), header, pieces, 0, total) {
            Ok(()) => {}
            Err(Dropped::Full) => wire.counts.count(Discarded::Full),
            Err(_) => wire.counts.count(Discarded::NobodyThere),
        }
        Step::Over(Status::Success)
    }
}

/// Whether the peer has posted a receive for message `number`.
#[inline(always)]
fn has_receive(connection: &mut Connection, number: u32) -> bool {
    if connection.receives.wrapping_sub(number) as i32 > 0 {
        return true;
    }
    connection.receives = connection.seat.target.directory.receives(connection.number);
    connection.receives.wrapping_sub(number) as i32 > 0
}

/// Puts a packet with `len` bytes of the pieces, from byte `start` of them, into the ring.
#[inline(always)]
fn offer(
    wire: &mut Wire<'_>,
    to: Peer,
    header: Header,
    pieces: &Pieces<'_>,
    start: usize,
    len: usize,
) -> Result<(), Dropped> {
    let (head, head_len) = header.to_bytes();
    let data = match pieces[..] {
        _ if len == 0 => TxData::None,
        [piece] => TxData::Bytes(&piece[start..start + len]),
        _ => TxData::Bytes(gather(wire.scratch, pieces, start, len)),
    };
    wire.tx.offer(TxPacket { to, head: &head[..head_len], data })
}

/// Brings a range of the pieces together.
#[cold]
#[inline(never)]
fn gather<'a>(scratch: &'a mut Vec<u8>, pieces: &Pieces<'_>, start: usize, len: usize) -> &'a [u8] {
    scratch.clear();
    let mut skip = start;
    for piece in pieces {
        let from = skip.min(piece.len());
        let to = piece.len().min(from + len - scratch.len());
        scratch.extend_from_slice(&piece[from..to]);
        skip -= from;
    }
    scratch
}

impl QueuePair {
    /// Whether a request can be taken.
    #[inline(always)]
    pub fn check(&mut self, request: &Request<'_>, attributes: &Attributes) -> Result<(), PostError> {
        request.check(&self.config, self.state, attributes)?;
        if self.requests_pushed - self.requests_known >= self.config.send_depth as u64 {
            return Err(PostError::QueueFull(self.config.send_depth));
        }
        if self.knows_request(request) { Ok(()) } else { Err(PostError::ForeignBuffer) }
    }

    /// Takes a request that was checked.
    #[inline(always)]
    pub fn push(&mut self, request: Request<'_>) {
        let Request { id, operation, signaled, .. } = request;
        let slot = (self.requests_pushed % self.config.send_depth as u64) as usize * self.config.inline_max;
        self.requests_pushed += 1;
        let mut keep = |bytes: &[u8]| {
            self.inline[slot..slot + bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let mut inline_len = 0;
        let mut kept = |source: Source<'_>| match source {
            Source::Empty => Source::Empty,
            Source::Inline(bytes) => {
                inline_len = keep(bytes);
                Source::Empty
            }
            Source::Gather(pieces) => Source::Gather(pieces),
        };
        let operation = match operation {
            Operation::Send { source, immediate, to } => Operation::Send { source: kept(source), immediate, to },
            Operation::Write { source, remote, immediate } => {
                Operation::Write { source: kept(source), remote, immediate }
            }
            Operation::Read { target, remote } => Operation::Read { target, remote },
            Operation::CompareSwap { target, remote, expected, desired } => {
                Operation::CompareSwap { target, remote, expected, desired }
            }
            Operation::FetchAdd { target, remote, add } => Operation::FetchAdd { target, remote, add },
        };
        self.waiting.push_back(Work { id, signaled, operation, slot, inline_len });
    }

    /// Starts what was pushed.
    #[inline(always)]
    pub fn ring(&mut self, wire: &mut Wire<'_>, queues: &mut [Option<Queue>], notes: &mut Notes) {
        self.rung = self.waiting.len();
        if self.state == QpState::Error {
            self.flush_waiting(Status::Flushed, queues);
        } else {
            self.advance(wire, queues, notes);
            wire.tx.submit();
        }
    }

    /// Takes a request that was checked, and starts it.
    #[inline(always)]
    pub fn post(
        &mut self,
        mut request: Request<'_>,
        wire: &mut Wire<'_>,
        queues: &mut [Option<Queue>],
        notes: &mut Notes,
    ) {
        if self.state != QpState::ReadyToSend || !self.waiting.is_empty() {
            self.push(request);
            return self.ring(wire, queues, notes);
        }
        // Its turn is now, so it need not be kept.
        let mut sender = Sender {
            number: self.number,
            config: &self.config,
            connection: self.connection.as_mut(),
            sent: &mut self.sent,
            progress: &mut self.progress,
        };
        match if self.broken { Step::Wait(Reason::Full) } else { sender.perform(&mut request.operation, &[], wire) } {
            Step::Wait(_) => {
                self.push(request);
                return self.ring(wire, queues, notes);
            }
            step => {
                self.requests_pushed += 1;
                let Request { id, operation, signaled, .. } = request;
                let (opcode, len) = (operation.opcode(), operation.len());
                let targets = operation.into_targets();
                let number = self.sent.wrapping_sub(1);
                self.went(Flying { id, opcode, signaled, len, targets, end: None, number }, step, queues, notes);
            }
        }
        wire.tx.submit();
    }

    /// Notes what became of a request.
    #[inline(always)]
    fn went(&mut self, mut request: Flying, step: Step, queues: &mut [Option<Queue>], notes: &mut Notes) {
        match step {
            Step::Over(status) if self.flying.is_empty() => {
                self.complete_request(request, status, queues);
                if !status.is_success() && self.config.transport.is_connected() {
                    self.fail_and_leave(Status::Flushed, queues, notes);
                }
            }
            Step::Over(status) => {
                request.end = Some(status);
                self.broken |= !status.is_success();
                self.flying.push_back(request);
            }
            Step::Sent | Step::Wait(_) => self.flying.push_back(request),
        }
    }

    /// Performs requests in turn, until one has to wait.
    #[inline(always)]
    pub fn advance(&mut self, wire: &mut Wire<'_>, queues: &mut [Option<Queue>], notes: &mut Notes) {
        while self.rung > 0 && !self.broken {
            let Some(Work { operation, slot, inline_len, .. }) = self.waiting.front_mut() else { break };
            let inline = &self.inline[*slot..*slot + *inline_len];
            let mut sender = Sender {
                number: self.number,
                config: &self.config,
                connection: self.connection.as_mut(),
                sent: &mut self.sent,
                progress: &mut self.progress,
            };
            let mut step = sender.perform(operation, inline, wire);
            if let Step::Wait(reason) = step {
                match self.wait_for(reason, notes) {
                    None => return,
                    Some(status) => step = Step::Over(status),
                }
            }
            self.stall = None;
            let Some(work) = self.waiting.pop_front() else { break };
            self.rung -= 1;
            let request = Flying { number: self.sent.wrapping_sub(1), ..work.into_flying() };
            self.went(request, step, queues, notes);
        }
    }

    /// Lets the oldest request wait, unless it has waited for too long: then with which status it ends.
    #[cold]
    #[inline(never)]
    fn wait_for(&mut self, reason: Reason, notes: &mut Notes) -> Option<Status> {
        let now_ns = clock_ns();
        let stall = self.stall.filter(|stall| stall.reason == reason).unwrap_or(Stall { reason, since_ns: now_ns });
        let waited_ns = now_ns.saturating_sub(stall.since_ns);
        let retries = self.config.rnr_retries;
        let end = match reason {
            Reason::NotYet => (waited_ns >= NOT_YET_NS).then_some(Status::RetryExceeded),
            Reason::NoReceive => (retries < FOR_EVER && waited_ns >= u64::from(retries) * RECEIVER_NOT_READY_NS)
                .then_some(Status::RnrRetryExceeded),
            Reason::Full => None,
        };
        if end.is_none() {
            self.stall = Some(stall);
            if !self.is_stalled {
                self.is_stalled = true;
                notes.stalled.push_back(self.number);
            }
        }
        end
    }

    /// The peer has acknowledged all messages before `next`, and, with `misfit`, refused that one.
    pub fn acknowledged(
        &mut self,
        next: u32,
        misfit: bool,
        queues: &mut [Option<Queue>],
        notes: &mut Notes,
    ) -> Result<(), Discarded> {
        // What was not sent cannot have arrived.
        let unsent = self.sent.wrapping_sub(next) as i32;
        if unsent < i32::from(misfit) {
            return Err(Discarded::Malformed);
        }
        while let Some(oldest) = self.flying.front() {
            let status = match oldest.end {
                Some(status) => status,
                None if (next.wrapping_sub(oldest.number) as i32) > 0 => Status::Success,
                None if misfit => Status::RemoteInvalidRequest,
                None => break,
            };
            let Some(oldest) = self.flying.pop_front() else { break };
            self.complete_request(oldest, status, queues);
            if !status.is_success() {
                self.fail_and_leave(Status::Flushed, queues, notes);
                break;
            }
        }
        Ok(())
    }
}
