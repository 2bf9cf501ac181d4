//! The send queue: it performs requests and completes them.
//!
//! One-sided operations are performed at once. A message goes into the ring to the peer's port; on UC and UD that
//! completes it. RC sends only messages for which the peer has posted a receive, as its device's directory shows, so
//! everything in the ring arrives and nothing is sent twice. It waits for a bounded time when the peer has posted none,
//! and without a limit when the ring is full. Its requests complete when the peer has acknowledged the messages before
//! them.

use sinew_fabric::verbs::{Attributes, InlineOperation, InlineRequest, Operation, PostError, QpState, Request, Status};

use super::QueuePair;
use super::gate::Run;
use super::sender::{Sender, StallReason, Step};
use crate::verbs::clock::clock_ns;
use crate::verbs::counts::Discarded;
use crate::verbs::fifo::Pool;
use crate::verbs::queues::Queues;
use crate::verbs::waiting::{InFlight, Payload, QueuedRequest, RequestKind, Waiting, inline, kind_of, len_of};
use crate::verbs::wire::{Deferred, Wire};

/// Time for which a request waits for a receive, for each of its retries, in ns.
const RNR_TIMER_NS: u64 = 500_000;
/// Time for which a request waits for a peer that has not connected to us yet, in ns.
const CONNECT_TIMEOUT_NS: u64 = 1_000_000_000;
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

impl QueuePair {
    /// Requests for which the queue has room.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        let unpolled = self.ledger.completed - self.ledger.polled;
        self.config.send_depth as u64 - unpolled - self.in_flight.len() as u64 - self.waiting.len()
    }

    /// Refuses a request that cannot be posted.
    #[inline(always)]
    pub fn check(&mut self, request: &Request<'_>, attributes: &Attributes) -> Result<(), PostError> {
        request.check(&self.config, self.state, attributes)?;
        if self.room() == 0 {
            return Err(PostError::QueueFull(self.config.send_depth));
        }
        if self.owns_request(request) { Ok(()) } else { Err(PostError::ForeignBuffer) }
    }

    /// Queues a request that was checked, and takes what it holds.
    #[inline(always)]
    pub fn push(&mut self, request: &mut Request<'_>, pool: &mut Pool) {
        self.close();
        match &request.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } if inline(source).is_some() => {
                let bytes = inline(source).unwrap_or_default();
                let (kind, immediate) = kind_of(&request.operation);
                self.waiting.push_inline(request.id, request.signaled, kind, immediate, bytes);
            }
            _ => self.waiting.push_loaded(request, pool),
        }
    }

    /// Rings the doorbell: starts the requests that were pushed. Inline ones that may go now are performed here.
    #[inline]
    pub fn ring(&mut self, wire: &mut Wire<'_>, queues: &mut Queues, notes: &mut Deferred) {
        self.waiting.ring();
        if self.state == QpState::Error {
            self.flush_waiting(Status::Flushed, queues);
            return;
        }
        if let Some((gate, waiting)) = self.gate_to_waiting() {
            let mut run = Run::new(gate, queues, wire.reborrow());
            waiting.pop_inline_while(|request| run.perform(request));
            drop(run);
            self.close();
        }
        if !self.waiting.is_empty() {
            self.advance(wire, queues, notes);
        }
        self.waiting.rewind();
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

    /// Queues an inline request, if it can be accepted. Otherwise returns false, and has no effect.
    #[inline]
    pub fn push_inline(&mut self, request: InlineRequest<'_>) -> bool {
        let InlineRequest { id, bytes, operation, immediate, signaled } = request;
        let kind = match operation {
            InlineOperation::Send(to) => to.map_or(RequestKind::Send, RequestKind::Datagram),
            InlineOperation::Write(remote) => RequestKind::Write(remote),
        };
        // Connected transports carry no datagrams, and UD carries nothing else.
        let is_taken = self.state == QpState::ReadyToSend
            && matches!(kind, RequestKind::Datagram(_)) != self.config.transport.is_connected()
            && bytes.len() <= self.config.inline_max
            && self.room() > 0;
        if is_taken {
            self.close();
            self.waiting.push_inline(id, signaled, kind, immediate, bytes);
        }
        is_taken
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
            let is_held = matches!(load, Payload::Held(_));
            let mut step = match load {
                Payload::None => sender.perform_outgoing(kind, immediate, &[piece], wire),
                Payload::Source(slice) => sender.perform_outgoing(kind, immediate, &[slice.bytes()], wire),
                Payload::Sources(slices) => sender.perform_gathered(kind, immediate, slices, wire),
                Payload::Held(held) => match held.range(&mut queues.pool) {
                    Some(range) => sender.perform_range(kind, range, wire),
                    None => sender.perform_incoming(kind, held.get(&mut queues.pool), wire),
                },
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
                if is_held {
                    let mut held = self.waiting.take_oldest_held();
                    let len = len_of(kind, &mut held, &mut queues.pool);
                    self.ledger.complete_held((id, kind.opcode(), len), &mut held, queues);
                    continue;
                }
                let len = self.waiting.pop_oldest();
                if signaled {
                    self.ledger.complete(id, kind.opcode(), len, queues);
                } else {
                    self.ledger.completed += 1;
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
