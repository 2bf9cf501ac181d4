//! The queue of requests: what is performed when, and what is over.
//!
//! One-sided operations are performed on the spot. A message goes into the ring to the peer's port; UC and UD are done with it
//! then. RC sends only what the peer has posted a receive for, which its device's directory says, so what is in the ring
//! arrives: nothing is sent twice. It waits, a bounded number of times, where the peer has posted none, and as long as it
//! takes where the ring is full. Its requests are over when the peer has acknowledged the messages before them.

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{
    Attributes, Destination, GATHER_MAX, Opcode, Operation, PostError, QpConfig, QpNumber, QpState, RemoteMemory,
    Request, Slice, Source, Status, Transport, Verb,
};
use sinew_fabric::{Dropped, Peer, TxData, TxPacket};
use sinew_mem::MessageBuffer;

use super::completion::Queues;
use super::device::MTU;
use super::directory::Listens;
use super::engine::{Discarded, Notes, Wire, clock_ns, link_of};
use super::fifo::{Buffers, Pool};
use super::initiator::{CHUNK, Place};
use super::packet::{Header, Kind};
use super::queue_pair::{Connection, QueuePair};
use super::waiting::{Flying, Load, Waiting, What, Work, has_targets, inline, len_of, one_piece, take_targets, what};

/// How long a request waits for a receive, for each of its tries.
const RECEIVER_NOT_READY_NS: u64 = 500_000;
/// How long it waits for a queue pair that has not met ours yet.
const NOT_YET_NS: u64 = 1_000_000_000;
/// WRITEs of a list that are performed between two looks at the peer and the region, which bounds the wait of whoever ends the
/// exposure.
pub(crate) const WRITES_AT_ONCE: u64 = 64;
/// Tries that never end.
const FOR_EVER: u8 = 7;

/// Why the oldest request waits, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    reason: Reason,
    since_ns: u64,
}

impl Stall {
    /// Whether it waits for room in the peer's ring.
    pub fn is_for_room(self) -> bool {
        self.reason == Reason::Full
    }
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

/// What a request changes beside its queue pair.
pub(crate) struct Around<'a, 'w> {
    pub wire: &'a mut Wire<'w>,
    pub queues: &'a mut Queues,
    pub notes: &'a mut Notes,
}

/// What performs requests: the parts of a queue pair that this takes.
struct Sender<'a> {
    number: QpNumber,
    config: &'a QpConfig,
    connection: Option<&'a Connection>,
    sent: &'a mut u32,
    progress: &'a mut usize,
}

impl<'a> Sender<'a> {
    /// Performs a request that moves these pieces to the peer.
    #[inline(always)]
    fn give(&mut self, what: What, immediate: Option<u32>, pieces: &[&[u8]], wire: &mut Wire<'_>) -> Step {
        let total = pieces.iter().map(|piece| piece.len()).sum();
        let connection = match self.peer() {
            Ok(connection) => connection,
            Err(Listens::NotYet) if self.is_reliable() => return Step::Wait(Reason::NotYet),
            Err(_) => {
                if let What::Datagram(to) = what {
                    return self.datagram(pieces, total, immediate, to, wire);
                }
                return self.lost(matches!(what, What::Write(_)), wire);
            }
        };
        let place = |remote| Place { domain: connection.domain, remote };
        match (what, immediate) {
            (What::Write(remote), None) => {
                let written = connection.seat.write(place(remote), Verb::Write, pieces, total);
                Step::Over(written.err().unwrap_or(Status::Success))
            }
            _ if self.is_reliable() && !self.has_receive(connection) => Step::Wait(Reason::NoReceive),
            (What::Write(remote), Some(_)) => {
                // Not again, when only the ring was full.
                if *self.progress == 0 {
                    let place = place(remote);
                    if let Err(status) = connection.seat.write(place, Verb::WriteWithImmediate, pieces, total) {
                        return Step::Over(status);
                    }
                    *self.progress = 1;
                }
                self.message(Kind::Written, pieces, total, immediate, wire)
            }
            _ => {
                let kind = if total <= MTU { Kind::Whole } else { Kind::Part };
                self.message(kind, pieces, total, immediate, wire)
            }
        }
    }

    /// The same, for several pieces.
    #[inline(never)]
    fn give_pieces(&mut self, what: What, immediate: Option<u32>, slices: &[Slice], wire: &mut Wire<'_>) -> Step {
        let pieces: ArrayVec<&[u8], GATHER_MAX> = slices.iter().map(Slice::bytes).collect();
        self.give(what, immediate, &pieces, wire)
    }

    /// Performs a request that fills the targets.
    #[inline]
    fn fetch(&mut self, what: What, targets: &mut [MessageBuffer], wire: &mut Wire<'_>) -> Step {
        let connection = match self.peer() {
            Ok(connection) => connection,
            Err(Listens::NotYet) => return Step::Wait(Reason::NotYet),
            Err(_) => return self.lost(true, wire),
        };
        let place = |remote| Place { domain: connection.domain, remote };
        let fetched = match what {
            What::Read(remote) => {
                let total = targets.iter().map(|buffer| buffer.len()).sum();
                connection.seat.read(place(remote), targets, total).map(|()| None)
            }
            What::CompareSwap { remote, expected, desired } => {
                connection.seat.compare_swap(place(remote), expected, desired).map(Some)
            }
            What::FetchAdd { remote, add } => connection.seat.fetch_add(place(remote), add).map(Some),
            What::Send | What::Datagram(_) | What::Write(_) => Err(Status::LocalQpOperation),
        };
        // The check of the request saw to the target's length.
        if let Ok(Some(was)) = fetched
            && let Some(target) = targets.first_mut().and_then(|target| target.first_chunk_mut())
        {
            *target = was.to_ne_bytes();
        }
        Step::Over(fetched.err().unwrap_or(Status::Success))
    }

    #[inline(always)]
    fn is_reliable(&self) -> bool {
        self.config.transport == Transport::Rc
    }

    /// The way to the peer, if it listens to us.
    #[inline(always)]
    fn peer(&self) -> Result<&'a Connection, Listens> {
        let Some(connection) = self.connection else { return Err(Listens::NoLonger) };
        if connection.is_listening() {
            return Ok(connection);
        }
        let directory = &connection.seat.target.directory;
        let word = directory.listens(connection.number);
        // A word is believed only while its owner lives.
        let listens = Listens::of_word(word, connection.number);
        Err(if connection.is_dead() { Listens::NoLonger } else { listens })
    }

    /// What becomes of a request whose peer does not listen: of an access to memory, when its owner is dead, what becomes of one
    /// to memory that is not exposed any more.
    #[cold]
    fn lost(&self, is_access: bool, wire: &mut Wire<'_>) -> Step {
        if self.is_reliable() {
            let is_dead = self.connection.is_some_and(Connection::is_dead);
            return Step::Over(if is_access && is_dead { Status::RemoteAccess } else { Status::RetryExceeded });
        }
        wire.counts.count(Discarded::NobodyThere);
        Step::Over(Status::Success)
    }

    /// Whether the peer has posted a receive for the next message.
    #[inline(always)]
    fn has_receive(&self, connection: &Connection) -> bool {
        let left = |receives: u32| receives.wrapping_sub(*self.sent) as i32 > 0;
        left(connection.receives.get()) || {
            connection.receives.set(connection.seat.target.directory.receives(connection.number));
            left(connection.receives.get())
        }
    }

    /// Sends a message on a connection, or goes on with it.
    #[inline(always)]
    fn message(
        &mut self,
        kind: Kind,
        pieces: &[&[u8]],
        total: usize,
        immediate: Option<u32>,
        wire: &mut Wire<'_>,
    ) -> Step {
        let is_access = kind == Kind::Written;
        let Some(connection) = self.connection else { return self.lost(is_access, wire) };
        let link = connection.link;
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
        let sent = match kind {
            Kind::Part => self.parts(header, link, pieces, total, wire),
            Kind::Written => offer(wire, link, header, &[], 0, 0),
            _ => offer(wire, link, header, pieces, 0, total),
        };
        if let Err(dropped) = sent {
            match dropped {
                Dropped::Full if self.is_reliable() => return Step::Wait(Reason::Full),
                Dropped::Full => wire.counts.count(Discarded::Full),
                // The link is gone, as the next turn will tell.
                _ => return self.lost(is_access, wire),
            }
        }
        *self.progress = 0;
        *self.sent = self.sent.wrapping_add(1);
        if self.is_reliable() { Step::Sent } else { Step::Over(Status::Success) }
    }

    /// Sends the parts of a message that were not sent yet.
    #[cold]
    #[inline(never)]
    fn parts(
        &mut self,
        mut header: Header,
        link: Peer,
        pieces: &[&[u8]],
        total: usize,
        wire: &mut Wire<'_>,
    ) -> Result<(), Dropped> {
        while *self.progress < total {
            header.offset = *self.progress as u32;
            let len = MTU.min(total - *self.progress);
            offer(wire, link, header, pieces, *self.progress, len)?;
            *self.progress += len;
        }
        Ok(())
    }

    #[inline(always)]
    fn datagram(
        &mut self,
        pieces: &[&[u8]],
        total: usize,
        immediate: Option<u32>,
        to: Destination,
        wire: &mut Wire<'_>,
    ) -> Step {
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
        match offer(wire, link_of(to.handle), header, pieces, 0, total) {
            Ok(()) => {}
            Err(Dropped::Full) => wire.counts.count(Discarded::Full),
            Err(_) => wire.counts.count(Discarded::NobodyThere),
        }
        Step::Over(Status::Success)
    }
}

/// Puts a packet with `len` bytes of the pieces, from byte `start` of them, into the ring.
#[inline(always)]
fn offer(
    wire: &mut Wire<'_>,
    to: Peer,
    header: Header,
    pieces: &[&[u8]],
    start: usize,
    len: usize,
) -> Result<(), Dropped> {
    let (head, head_len) = header.to_bytes();
    let data = match pieces {
        _ if len == 0 => TxData::None,
        [piece] => TxData::Bytes(&piece[start..start + len]),
        _ => TxData::Bytes(gather(wire.scratch, pieces, start, len)),
    };
    wire.offered = true;
    wire.tx.offer(TxPacket { to, head: &head[..head_len], data })
}

/// Brings a range of the pieces together.
#[cold]
#[inline(never)]
fn gather<'a>(scratch: &'a mut Vec<u8>, pieces: &[&[u8]], start: usize, len: usize) -> &'a [u8] {
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
    pub fn push(&mut self, request: Request<'_>, pool: &mut Pool) {
        self.requests_pushed += 1;
        match &request.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } if inline(source).is_some() => {
                let bytes = inline(source).unwrap_or_default();
                let (what, immediate) = what(&request.operation);
                self.waiting.push_inline(request.id, request.signaled, what, immediate, bytes);
            }
            _ => self.waiting.push_loaded(request, pool),
        }
    }

    /// Starts what was pushed.
    #[inline(always)]
    pub fn ring(&mut self, wire: &mut Wire<'_>, queues: &mut Queues, notes: &mut Notes) {
        self.waiting.ring();
        if self.state == QpState::Error {
            self.flush_waiting(Status::Flushed, queues);
            return;
        }
        self.write_waiting(queues);
        if !self.waiting.is_empty() {
            self.advance(wire, queues, notes);
        }
        self.waiting.rewind();
    }

    /// Performs inline WRITEs in turn, until one cannot be, for whatever reason.
    #[inline(always)]
    fn write_waiting(&mut self, queues: &mut Queues) {
        if self.broken || !self.flying.is_empty() {
            return;
        }
        while let Some(rkey) = self.waiting.oldest_inline_write() {
            let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_listening()) else {
                return;
            };
            // The region is entered once for all that follow each other into it.
            let Some(sitting) = connection.seat.sit(connection.domain, rkey) else { return };
            let (untold, told) =
                self.waiting.write_inline(rkey, WRITES_AT_ONCE, |address, bytes| sitting.write(address, bytes));
            drop(sitting);
            self.requests_over += untold;
            match told {
                Some((id, len)) => {
                    self.tell_success(id, Opcode::Write, len, queues);
                }
                None if untold == 0 => return,
                None => {}
            }
        }
    }

    /// What performs requests, and the requests.
    #[inline(always)]
    fn sender(&mut self) -> (Sender<'_>, &mut Waiting) {
        let sender = Sender {
            number: self.number,
            config: &self.config,
            connection: self.connection.as_ref(),
            sent: &mut self.sent,
            progress: &mut self.progress,
        };
        (sender, &mut self.waiting)
    }

    /// Whether an inline request can be taken.
    #[inline(always)]
    fn takes_inline(&self, len: usize) -> bool {
        self.state == QpState::ReadyToSend
            && self.requests_pushed - self.requests_known < self.config.send_depth as u64
            && len <= self.config.inline_max
    }

    /// Whether its turn is now, too.
    #[inline(always)]
    pub fn takes_inline_now(&self, len: usize) -> bool {
        self.takes_inline(len) && self.waiting.is_empty() && !self.broken
    }

    /// Takes an inline request, if it can be taken. Else false: nothing has happened.
    #[inline(always)]
    pub fn push_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        what: What,
        immediate: Option<u32>,
    ) -> bool {
        if !self.takes_inline(bytes.len()) || matches!(what, What::Datagram(_)) == self.config.transport.is_connected()
        {
            return false;
        }
        self.requests_pushed += 1;
        self.waiting.push_inline(id, signaled, what, immediate, bytes);
        true
    }

    /// Performs the plainest request of all, a WRITE of a few bytes, if it can be taken and its turn is now. Else false: nothing
    /// has happened.
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        remote: RemoteMemory,
        queues: &mut Queues,
    ) -> bool {
        if !self.takes_inline_now(bytes.len()) || !self.flying.is_empty() {
            return false;
        }
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_listening()) else {
            return false;
        };
        // Nothing is checked for nothing.
        let written = (1..=CHUNK).contains(&bytes.len())
            && connection
                .seat
                .sit(connection.domain, remote.rkey)
                .is_some_and(|sitting| sitting.write(remote.address, bytes));
        if !written {
            return false;
        }
        self.requests_pushed += 1;
        if signaled {
            self.tell_success(id, Opcode::Write, bytes.len(), queues);
        } else {
            self.requests_over += 1;
        }
        true
    }

    /// Whether a READ into one buffer can be taken.
    #[inline(always)]
    fn takes_target(&self, target: &MessageBuffer) -> bool {
        self.takes_inline(0)
            && self.config.transport == Transport::Rc
            && self.config.gather_max > 0
            && (1..=CHUNK).contains(&target.len())
            && self.knows_already(|arena| target.is_from(arena))
    }

    /// Takes a READ into one buffer, if it can be taken. Else the buffer comes back: nothing has happened.
    #[inline(always)]
    pub fn push_read(
        &mut self,
        (id, signaled): (u64, bool),
        target: MessageBuffer,
        remote: RemoteMemory,
    ) -> Result<(), MessageBuffer> {
        if !self.takes_target(&target) {
            return Err(target);
        }
        self.requests_pushed += 1;
        self.waiting.push_target(id, signaled, What::Read(remote), target);
        Ok(())
    }

    /// Performs a READ into one buffer, if it can be taken and its turn is now. Else the buffer comes back: nothing has happened.
    #[inline(always)]
    pub fn read_now(
        &mut self,
        id: u64,
        mut target: MessageBuffer,
        remote: RemoteMemory,
        queues: &mut Queues,
    ) -> Result<(), MessageBuffer> {
        if !self.waiting.is_empty() || self.broken || !self.flying.is_empty() || !self.takes_target(&target) {
            return Err(target);
        }
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_listening()) else {
            return Err(target);
        };
        if !connection.seat.read_short(Place { domain: connection.domain, remote }, &mut target) {
            return Err(target);
        }
        self.requests_pushed += 1;
        let len = target.len();
        // Told in any case: the target comes back.
        self.tell_success(id, Opcode::Read, len, queues).buffers = Buffers::one(target);
        Ok(())
    }

    /// Performs a SEND of a few bytes, as [`Self::write_inline`] does a WRITE.
    #[inline(always)]
    pub fn send_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        immediate: Option<u32>,
        to: Option<Destination>,
        Around { wire, queues, notes }: Around<'_, '_>,
    ) -> bool {
        if !self.takes_inline_now(bytes.len()) || to.is_some() == self.config.transport.is_connected() {
            return false;
        }
        let mut sender = self.sender().0;
        let step = match to {
            Some(to) => sender.datagram(&[bytes], bytes.len(), immediate, to, wire),
            None => sender.give(What::Send, immediate, &[bytes], wire),
        };
        match step {
            Step::Wait(_) => return false,
            Step::Over(Status::Success) if self.flying.is_empty() => {
                self.requests_pushed += 1;
                if signaled {
                    self.tell_success(id, Opcode::Send, bytes.len(), queues);
                } else {
                    self.requests_over += 1;
                }
            }
            step => {
                self.requests_pushed += 1;
                let request = Flying { id, opcode: Opcode::Send, signaled, len: bytes.len(), ..Flying::default() };
                self.went(request, step, queues, notes);
            }
        }
        wire.submit();
        true
    }

    /// Performs a request that was checked, if its turn is now, so that it need not be kept; false when it has to wait.
    #[inline(always)]
    pub fn perform_now(
        &mut self,
        request: &mut Request<'_>,
        wire: &mut Wire<'_>,
        queues: &mut Queues,
        notes: &mut Notes,
    ) -> bool {
        if self.state != QpState::ReadyToSend || !self.waiting.is_empty() || self.broken {
            return false;
        }
        let mut sender = self.sender().0;
        let (what, immediate) = what(&request.operation);
        let step = match one_piece(&request.operation) {
            Some(piece) => sender.give(what, immediate, &[piece], wire),
            None => match &mut request.operation {
                Operation::Send { source: Source::Gather(slices), .. }
                | Operation::Write { source: Source::Gather(slices), .. } => {
                    sender.give_pieces(what, immediate, slices, wire)
                }
                Operation::Read { target, .. } => sender.fetch(what, target, wire),
                Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                    sender.fetch(what, std::slice::from_mut(target), wire)
                }
                Operation::Send { .. } | Operation::Write { .. } => Step::Over(Status::LocalQpOperation),
            },
        };
        match step {
            Step::Wait(_) => return false,
            // By far the most common: nobody is told.
            Step::Over(Status::Success) if !request.signaled && !has_targets(what) && self.flying.is_empty() => {
                self.requests_pushed += 1;
                self.requests_over += 1;
            }
            step => {
                self.requests_pushed += 1;
                let len = request.operation.len();
                let targets = take_targets(&mut request.operation, &mut queues.pool);
                let &mut Request { id, signaled, .. } = request;
                let request = Flying { id, opcode: what.opcode(), signaled, len, targets, ..Flying::default() };
                self.went(request, step, queues, notes);
            }
        }
        wire.submit();
        true
    }

    /// Notes what became of a request.
    #[inline(always)]
    fn went(&mut self, mut request: Flying, step: Step, queues: &mut Queues, notes: &mut Notes) {
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
                *self.flying.push() = request;
            }
            Step::Sent | Step::Wait(_) => {
                request.number = self.sent.wrapping_sub(1);
                *self.flying.push() = request;
            }
        }
    }

    /// Performs requests in turn, until one has to wait.
    #[inline(always)]
    pub fn advance(&mut self, wire: &mut Wire<'_>, queues: &mut Queues, notes: &mut Notes) {
        while !self.broken {
            let (mut sender, waiting) = self.sender();
            let Some((&Work { id, what, immediate, signaled, .. }, piece, load)) = waiting.oldest() else { break };
            let mut step = match load {
                Load::None => sender.give(what, immediate, &[piece], wire),
                Load::From(slices) => sender.give_pieces(what, immediate, slices, wire),
                Load::To(targets) => sender.fetch(what, targets.get(&mut queues.pool), wire),
            };
            if let Step::Wait(reason) = step {
                match self.wait_for(reason, notes) {
                    None => break,
                    Some(status) => step = Step::Over(status),
                }
            }
            self.stall = None;
            if let Step::Over(Status::Success) = step
                && self.flying.is_empty()
            {
                if has_targets(what) {
                    let mut targets = self.waiting.take_oldest_targets();
                    let len = len_of(what, targets.get(&mut queues.pool));
                    self.tell_success(id, what.opcode(), len, queues).buffers = targets;
                    continue;
                }
                let len = self.waiting.drop_oldest();
                if signaled {
                    self.tell_success(id, what.opcode(), len, queues);
                } else {
                    self.requests_over += 1;
                }
                continue;
            }
            let Some(request) = self.waiting.pop(&mut queues.pool) else { break };
            self.went(request, step, queues, notes);
        }
        wire.submit();
    }

    /// Flushes the requests that the doorbell has rung for; the first ends with `first`.
    pub fn flush_waiting(&mut self, first: Status, queues: &mut Queues) {
        let mut status = first;
        while let Some(request) = self.waiting.pop(&mut queues.pool) {
            self.complete_request(request, status, queues);
            status = Status::Flushed;
        }
        self.progress = 0;
    }

    /// Flushes all of them.
    pub fn flush_all_waiting(&mut self, first: Status, queues: &mut Queues) {
        self.waiting.ring();
        self.flush_waiting(first, queues);
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
        queues: &mut Queues,
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
            let oldest = std::mem::take(oldest);
            self.flying.drop_front();
            self.complete_request(oldest, status, queues);
            if !status.is_success() {
                self.fail_and_leave(Status::Flushed, queues, notes);
                break;
            }
        }
        Ok(())
    }
}
