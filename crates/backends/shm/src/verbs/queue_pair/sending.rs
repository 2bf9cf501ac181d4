//! The send queue: it performs requests and completes them.
//!
//! One-sided operations are performed at once. A message goes into the ring to the peer's port; on UC and UD that
//! completes it. RC sends only messages for which the peer has posted a receive, as its device's directory shows, so
//! everything in the ring arrives and nothing is sent twice. It waits for a bounded time when the peer has posted none,
//! and without a limit when the ring is full. Its requests complete when the peer has acknowledged the messages before
//! them.

use sinew_fabric::verbs::{
    Attributes, Destination, Opcode, Operation, PostError, QpState, RemoteMemory, Request, Source, Status, Transport,
};
use sinew_mem::MessageBuffer;

use super::QueuePair;
use super::sender::{Sender, StallReason, Step};
use crate::verbs::clock::clock_ns;
use crate::verbs::counts::Discarded;
use crate::verbs::fifo::{Buffers, Pool};
use crate::verbs::initiator::{AccessTarget, CHUNK};
use crate::verbs::queues::Queues;
use crate::verbs::waiting::{
    InFlight, Payload, QueuedRequest, RequestKind, Waiting, has_targets, inline, kind_of, len_of, one_piece,
    take_targets,
};
use crate::verbs::wire::{Deferred, Wire};

/// Time for which a request waits for a receive, for each of its retries, in ns.
const RNR_TIMER_NS: u64 = 500_000;
/// Time for which a request waits for a peer that has not connected to us yet, in ns.
const CONNECT_TIMEOUT_NS: u64 = 1_000_000_000;
/// WRITEs of a list that are performed between two checks of the peer and the region, which bounds the wait of an owner
/// that ends the exposure.
pub(crate) const WRITES_PER_ENTRY: u64 = 64;
/// Value of `rnr_retries` for retries without end.
const RNR_RETRIES_INFINITE: u8 = 7;

/// Reason why the oldest request waits, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    reason: StallReason,
    since_ns: u64,
}

impl Stall {
    /// Whether it waits for room in the peer's ring.
    pub fn is_for_room(self) -> bool {
        self.reason == StallReason::Full
    }
}

/// The parts of an engine that a request changes besides its queue pair.
pub(crate) struct Outbound<'a, 'w> {
    pub wire: &'a mut Wire<'w>,
    pub queues: &'a mut Queues,
    pub notes: &'a mut Deferred,
}

impl QueuePair {
    /// Refuses a request that cannot be posted.
    #[inline(always)]
    pub fn check(&mut self, request: &Request<'_>, attributes: &Attributes) -> Result<(), PostError> {
        request.check(&self.config, self.state, attributes)?;
        if self.requests_pushed - self.requests_polled >= self.config.send_depth as u64 {
            return Err(PostError::QueueFull(self.config.send_depth));
        }
        if self.owns_request(request) { Ok(()) } else { Err(PostError::ForeignBuffer) }
    }

    /// Queues a request that was checked.
    #[inline(always)]
    pub fn push(&mut self, request: Request<'_>, pool: &mut Pool) {
        self.requests_pushed += 1;
        match &request.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } if inline(source).is_some() => {
                let bytes = inline(source).unwrap_or_default();
                let (kind, immediate) = kind_of(&request.operation);
                self.waiting.push_inline(request.id, request.signaled, kind, immediate, bytes);
            }
            _ => self.waiting.push_loaded(request, pool),
        }
    }

    /// Rings the doorbell: starts the requests that were pushed.
    #[inline(always)]
    pub fn ring(&mut self, wire: &mut Wire<'_>, queues: &mut Queues, notes: &mut Deferred) {
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

    /// Performs inline WRITEs in turn, until one cannot be performed, for whatever reason.
    #[inline(always)]
    fn write_waiting(&mut self, queues: &mut Queues) {
        if self.has_failed || !self.in_flight.is_empty() {
            return;
        }
        while let Some(rkey) = self.waiting.oldest_inline_write() {
            let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_alive()) else {
                return;
            };
            // The region is entered once for all consecutive WRITEs to it.
            let Some(guard) = connection.seat.guard_region(connection.remote_pair(), rkey) else { return };
            let (unsignaled, signaled) =
                self.waiting.write_oldest_inline(rkey, WRITES_PER_ENTRY, |address, bytes| guard.write(address, bytes));
            drop(guard);
            self.requests_completed += unsignaled;
            match signaled {
                Some((id, len)) => {
                    self.push_success(id, Opcode::Write, len, queues);
                }
                None if unsignaled == 0 => return,
                None => {}
            }
        }
    }

    /// The parts that perform requests, and the waiting requests.
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

    /// Whether an inline request of `len` bytes can be accepted.
    #[inline(always)]
    fn takes_inline(&self, len: usize) -> bool {
        self.state == QpState::ReadyToSend
            && self.requests_pushed - self.requests_polled < self.config.send_depth as u64
            && len <= self.config.inline_max
    }

    /// Whether such a request can be accepted and it is its turn now.
    #[inline(always)]
    pub fn takes_inline_now(&self, len: usize) -> bool {
        self.takes_inline(len) && self.waiting.is_empty() && !self.has_failed
    }

    /// Queues an inline request, if it can be accepted. Returns false otherwise; nothing has happened then.
    #[inline(always)]
    pub fn push_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        kind: RequestKind,
        immediate: Option<u32>,
    ) -> bool {
        if !self.takes_inline(bytes.len())
            || matches!(kind, RequestKind::Datagram(_)) == self.config.transport.is_connected()
        {
            return false;
        }
        self.requests_pushed += 1;
        self.waiting.push_inline(id, signaled, kind, immediate, bytes);
        true
    }

    /// Performs the simplest request, a WRITE of a few bytes, if it can be accepted and it is its turn. Returns false
    /// otherwise; nothing has happened then.
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        remote: RemoteMemory,
        queues: &mut Queues,
    ) -> bool {
        if !self.takes_inline_now(bytes.len()) || !self.in_flight.is_empty() {
            return false;
        }
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_alive()) else {
            return false;
        };
        // A zero-length WRITE skips the region check, so it takes the slow path.
        let written = (1..=CHUNK).contains(&bytes.len())
            && connection
                .seat
                .guard_region(connection.remote_pair(), remote.rkey)
                .is_some_and(|guard| guard.write(remote.address, bytes));
        if !written {
            return false;
        }
        self.requests_pushed += 1;
        if signaled {
            self.push_success(id, Opcode::Write, bytes.len(), queues);
        } else {
            self.requests_completed += 1;
        }
        true
    }

    /// Whether a READ into one buffer can be accepted.
    #[inline(always)]
    fn takes_target(&self, target: &MessageBuffer) -> bool {
        self.takes_inline(0)
            && self.config.transport == Transport::Rc
            && self.config.gather_max > 0
            && (1..=CHUNK).contains(&target.len())
            && self.owns_cached(|arena| target.is_from(arena))
    }

    /// Queues a READ into one buffer, if it can be accepted. Otherwise the buffer is returned; nothing has happened
    /// then.
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
        self.waiting.push_target(id, signaled, RequestKind::Read(remote), target);
        Ok(())
    }

    /// Performs a READ into one buffer, if it can be accepted and it is its turn. Otherwise the buffer is returned;
    /// nothing has happened then.
    #[inline(always)]
    pub fn read_now(
        &mut self,
        id: u64,
        mut target: MessageBuffer,
        remote: RemoteMemory,
        queues: &mut Queues,
    ) -> Result<(), MessageBuffer> {
        if !self.waiting.is_empty() || self.has_failed || !self.in_flight.is_empty() || !self.takes_target(&target) {
            return Err(target);
        }
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_listening()) else {
            return Err(target);
        };
        if !connection.seat.read_short(AccessTarget { pair: connection.remote_pair(), remote }, &mut target) {
            return Err(target);
        }
        self.requests_pushed += 1;
        let len = target.len();
        // There is a completion even if it is not signaled, since the target comes back.
        self.push_success(id, Opcode::Read, len, queues).buffers = Buffers::one(target);
        Ok(())
    }

    /// Performs a SEND of a few bytes, as [`Self::write_inline`] performs a WRITE.
    #[inline(always)]
    pub fn send_inline(
        &mut self,
        (id, signaled): (u64, bool),
        bytes: &[u8],
        immediate: Option<u32>,
        to: Option<Destination>,
        Outbound { wire, queues, notes }: Outbound<'_, '_>,
    ) -> bool {
        if !self.takes_inline_now(bytes.len()) || to.is_some() == self.config.transport.is_connected() {
            return false;
        }
        let mut sender = self.sender().0;
        let step = match to {
            Some(to) => sender.datagram(&[bytes], bytes.len(), immediate, to, wire),
            None => sender.perform_outgoing(RequestKind::Send, immediate, &[bytes], wire),
        };
        match step {
            Step::Wait(_) => return false,
            Step::Done(Status::Success) if self.in_flight.is_empty() => {
                self.requests_pushed += 1;
                if signaled {
                    self.push_success(id, Opcode::Send, bytes.len(), queues);
                } else {
                    self.requests_completed += 1;
                }
            }
            step => {
                self.requests_pushed += 1;
                let request = InFlight { id, opcode: Opcode::Send, signaled, len: bytes.len(), ..InFlight::default() };
                self.record_step(request, step, queues, notes);
            }
        }
        wire.submit();
        true
    }

    /// Performs a request that was checked, if it is its turn, so that it need not be stored. Returns false when it has
    /// to wait.
    #[inline(always)]
    pub fn perform_now(
        &mut self,
        request: &mut Request<'_>,
        wire: &mut Wire<'_>,
        queues: &mut Queues,
        notes: &mut Deferred,
    ) -> bool {
        if self.state != QpState::ReadyToSend || !self.waiting.is_empty() || self.has_failed {
            return false;
        }
        let mut sender = self.sender().0;
        let (kind, immediate) = kind_of(&request.operation);
        let step = match one_piece(&request.operation) {
            Some(piece) => sender.perform_outgoing(kind, immediate, &[piece], wire),
            None => match &mut request.operation {
                Operation::Send { source: Source::Gather(slices), .. }
                | Operation::Write { source: Source::Gather(slices), .. } => {
                    sender.perform_gathered(kind, immediate, slices, wire)
                }
                Operation::Read { target, .. } => sender.perform_incoming(kind, target, wire),
                Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                    sender.perform_incoming(kind, std::slice::from_mut(target), wire)
                }
                Operation::Send { .. } | Operation::Write { .. } => Step::Done(Status::LocalQpOperation),
            },
        };
        match step {
            Step::Wait(_) => return false,
            // This is by far the most common case: it needs no completion.
            Step::Done(Status::Success) if !request.signaled && !has_targets(kind) && self.in_flight.is_empty() => {
                self.requests_pushed += 1;
                self.requests_completed += 1;
            }
            step => {
                self.requests_pushed += 1;
                let len = request.operation.len();
                let targets = take_targets(&mut request.operation, &mut queues.pool);
                let &mut Request { id, signaled, .. } = request;
                let request = InFlight { id, opcode: kind.opcode(), signaled, len, targets, ..InFlight::default() };
                self.record_step(request, step, queues, notes);
            }
        }
        wire.submit();
        true
    }

    /// Records the result of a request.
    #[inline(always)]
    fn record_step(&mut self, mut request: InFlight, step: Step, queues: &mut Queues, notes: &mut Deferred) {
        match step {
            Step::Done(status) if self.in_flight.is_empty() => {
                self.complete_request(request, status, queues);
                if !status.is_success() && self.config.transport.is_connected() {
                    self.fail_and_disconnect(Status::Flushed, queues, notes);
                }
            }
            Step::Done(status) => {
                request.status = Some(status);
                self.has_failed |= !status.is_success();
                *self.in_flight.push() = request;
            }
            Step::Sent | Step::Wait(_) => {
                request.number = self.sent.wrapping_sub(1);
                *self.in_flight.push() = request;
            }
        }
    }

    /// Performs requests in turn, until one has to wait.
    #[inline(always)]
    pub fn advance(&mut self, wire: &mut Wire<'_>, queues: &mut Queues, notes: &mut Deferred) {
        while !self.has_failed {
            let (mut sender, waiting) = self.sender();
            let Some((&QueuedRequest { id, kind, immediate, signaled, .. }, piece, load)) = waiting.oldest() else {
                break;
            };
            let mut step = match load {
                Payload::None => sender.perform_outgoing(kind, immediate, &[piece], wire),
                Payload::Sources(slices) => sender.perform_gathered(kind, immediate, slices, wire),
                Payload::Targets(targets) => sender.perform_incoming(kind, targets.get(&mut queues.pool), wire),
            };
            if let Step::Wait(reason) = step {
                match self.wait_for(reason, notes) {
                    None => break,
                    Some(status) => step = Step::Done(status),
                }
            }
            self.stall = None;
            if let Step::Done(Status::Success) = step
                && self.in_flight.is_empty()
            {
                if has_targets(kind) {
                    let mut targets = self.waiting.take_oldest_targets();
                    let len = len_of(kind, targets.get(&mut queues.pool));
                    self.push_success(id, kind.opcode(), len, queues).buffers = targets;
                    continue;
                }
                let len = self.waiting.pop_oldest();
                if signaled {
                    self.push_success(id, kind.opcode(), len, queues);
                } else {
                    self.requests_completed += 1;
                }
                continue;
            }
            let Some(request) = self.waiting.pop(&mut queues.pool) else { break };
            self.record_step(request, step, queues, notes);
        }
        wire.submit();
    }

    /// Flushes the requests for which the doorbell has rung; the first ends with `first`.
    pub fn flush_waiting(&mut self, first: Status, queues: &mut Queues) {
        let mut status = first;
        while let Some(request) = self.waiting.pop(&mut queues.pool) {
            self.complete_request(request, status, queues);
            status = Status::Flushed;
        }
        self.progress = 0;
    }

    /// Flushes all waiting requests; the first ends with `first`.
    pub fn flush_all_waiting(&mut self, first: Status, queues: &mut Queues) {
        self.waiting.ring();
        self.flush_waiting(first, queues);
    }

    /// Lets the oldest request wait, unless it has waited for too long. In that case, returns the status with which it
    /// ends.
    #[cold]
    #[inline(never)]
    fn wait_for(&mut self, reason: StallReason, notes: &mut Deferred) -> Option<Status> {
        let now_ns = clock_ns();
        let stall = self.stall.filter(|stall| stall.reason == reason).unwrap_or(Stall { reason, since_ns: now_ns });
        let waited_ns = now_ns.saturating_sub(stall.since_ns);
        let retries = self.config.rnr_retries;
        let status = match reason {
            StallReason::NotYet => (waited_ns >= CONNECT_TIMEOUT_NS).then_some(Status::RetryExceeded),
            StallReason::NoReceive => (retries < RNR_RETRIES_INFINITE
                && waited_ns >= u64::from(retries) * RNR_TIMER_NS)
                .then_some(Status::RnrRetryExceeded),
            StallReason::Full => None,
        };
        if status.is_none() {
            self.stall = Some(stall);
            if !self.is_stalled {
                self.is_stalled = true;
                notes.stalled.push_back(self.number);
            }
        }
        status
    }

    /// Handles the acknowledgement of all messages before `next` and, with `misfit`, the refusal of that one.
    pub fn handle_ack(
        &mut self,
        next: u32,
        misfit: bool,
        queues: &mut Queues,
        notes: &mut Deferred,
    ) -> Result<(), Discarded> {
        // A message that was not sent cannot have arrived.
        let unsent = self.sent.wrapping_sub(next) as i32;
        if unsent < i32::from(misfit) {
            return Err(Discarded::Malformed);
        }
        while let Some(oldest) = self.in_flight.front() {
            let status = match oldest.status {
                Some(status) => status,
                None if (next.wrapping_sub(oldest.number) as i32) > 0 => Status::Success,
                None if misfit => Status::RemoteInvalidRequest,
                None => break,
            };
            let oldest = std::mem::take(oldest);
            self.in_flight.drop_front();
            self.complete_request(oldest, status, queues);
            if !status.is_success() {
                self.fail_and_disconnect(Status::Flushed, queues, notes);
                break;
            }
        }
        Ok(())
    }
}
