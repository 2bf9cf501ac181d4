//! The gate to the send queue: it proves once that requests may go now, and then performs them as they come.
//!
//! A request may go now if the queue pair is ready, has room, and nothing that was posted earlier is unfinished. None
//! of this changes while such requests are performed, so a whole list passes after one check. Others can change two
//! things: the peer may stop listening, and the memory's exposure may end. Both are checked on entry to a region,
//! before each READ, before each WRITE that reports its completion, and after a list of WRITEs at once (see
//! [`Permit`](crate::verbs::directory::Permit)). A READ or a WRITE that fails the check before it has had no effect: it
//! is queued, and the queue determines its outcome (see [`super::sending`]). WRITEs earlier in the list that report no
//! completion may have been performed after the peer stopped listening or the exposure ended; they count as done.

use sinew_fabric::verbs::{InlineOperation, InlineRequest, Opcode, QpConfig, QpState, RemoteMemory, Transport, Verb};
use sinew_mem::{Arena, MessageBuffer};

use super::ledger::Ledger;
use super::sender::send_datagram;
use super::{Connection, QueuePair};
use crate::verbs::initiator::{CHUNK, RegionGuard};
use crate::verbs::queues::Queues;
use crate::verbs::waiting::Waiting;
use crate::verbs::wire::Wire;

/// Requests of a list that are performed between two checks of the queue pair and the region, which bounds the wait of
/// an owner that ends the exposure.
const REQUESTS_PER_ENTRY: u64 = 64;

/// An open gate, through which requests that may go now pass.
pub(crate) struct Gate<'a> {
    connection: Option<&'a Connection>,
    config: &'a QpConfig,
    /// Arenas whose buffers may be used, the last one first.
    arenas: &'a [Arena],
    ledger: &'a mut Ledger,
    /// The longest inline request, in bytes.
    inline_max: usize,
    is_ud: bool,
    /// Requests that may go; never 0 when the gate is opened.
    grants: &'a mut u64,
}

impl QueuePair {
    /// Opens the gate to new requests, if any may go now.
    #[inline(always)]
    pub fn gate(&mut self) -> Option<Gate<'_>> {
        if self.grants == 0 {
            self.prove();
        }
        (self.grants > 0).then(|| self.open().0)
    }

    /// Checks whether new requests may go now, and if so grants as many as there is room for.
    #[inline(never)]
    fn prove(&mut self) {
        if self.is_in_order() && self.waiting.is_empty() {
            self.grants = self.room();
        }
    }

    /// Whether the oldest waiting request, or else a new one, may go now.
    #[inline(always)]
    fn is_in_order(&self) -> bool {
        self.state == QpState::ReadyToSend && !self.has_failed && self.in_flight.is_empty()
    }

    /// Opens the gate to the requests that wait, which have their places in the queue. [`Self::close`] must follow.
    #[inline(always)]
    pub fn gate_to_waiting(&mut self) -> Option<(Gate<'_>, &mut Waiting)> {
        if !self.is_in_order() {
            return None;
        }
        self.grants = u64::MAX;
        Some(self.open())
    }

    /// Closes the gate, until the next request proves that it may go.
    #[inline(always)]
    pub fn close(&mut self) {
        self.grants = 0;
    }

    #[inline(always)]
    fn open(&mut self) -> (Gate<'_>, &mut Waiting) {
        let gate = Gate {
            connection: self.connection.as_ref(),
            config: &self.config,
            arenas: &self.arenas,
            ledger: &mut self.ledger,
            inline_max: self.config.inline_max,
            is_ud: self.config.transport == Transport::Ud,
            grants: &mut self.grants,
        };
        (gate, &mut self.waiting)
    }
}

/// Whether a READ into this buffer passes the checks that the gate has not made.
#[inline(always)]
fn takes_target(targets_from: Option<&Arena>, target: &MessageBuffer) -> bool {
    target.len() <= CHUNK && targets_from.is_some_and(|arena| target.is_from(arena))
}

impl<'a> Gate<'a> {
    /// Performs inline WRITEs that need no completion, up to the first that may not go now, and returns their number.
    /// They take no places in the queue. A region is entered for up to 64 of them in a row. These count only if the
    /// permit still holds after the last of them.
    #[inline(always)]
    pub fn write_all<'b>(self, mut writes: impl Iterator<Item = (&'b [u8], RemoteMemory)>) -> usize {
        let (mut region, mut done) = (None::<RegionGuard<'a>>, 0);
        let mut next = writes.next();
        while let Some((_, RemoteMemory { rkey, .. })) = next {
            enter(&mut region, self.connection, rkey, Verb::Write);
            let Some(region) = &region else { break };
            let (mut left, mut is_refused) = (REQUESTS_PER_ENTRY, false);
            while let Some((bytes, remote)) = next
                && left > 0
                && remote.rkey == rkey
            {
                is_refused = bytes.len() > self.inline_max || !region.write(remote.address, bytes, false);
                if is_refused {
                    break;
                }
                left -= 1;
                next = writes.next();
            }
            if !region.holds() {
                break;
            }
            done += (REQUESTS_PER_ENTRY - left) as usize;
            if is_refused {
                break;
            }
        }
        done
    }

    /// Arena whose buffers a READ may fill here; those of others take the queue.
    #[inline(always)]
    fn targets_from(&self) -> Option<&'a Arena> {
        let takes_any = self.config.transport == Transport::Rc && self.config.gather_max > 0;
        self.arenas.first().filter(|_| takes_any)
    }

    /// Performs a READ into one buffer. Fails with the buffer, without having changed anything, when it may not go now.
    #[inline]
    pub fn read_one(self, (id, mut target, remote): Read, queues: &mut Queues) -> Result<(), MessageBuffer> {
        let len = target.len();
        let is_read = takes_target(self.targets_from(), &target)
            && self.connection.is_some_and(|connection| connection.read_short(remote, &mut target));
        if !is_read {
            return Err(target);
        }
        *self.grants -= 1;
        self.ledger.complete(id, Opcode::Read, len, queues).buffers.push(target);
        Ok(())
    }

    /// Performs a WRITE that comes alone, for which a region need not be kept open. Returns false, without having
    /// changed anything, when it may not go now.
    #[inline]
    pub fn write_one(self, request: InlineRequest<'_>, remote: RemoteMemory, queues: &mut Queues) -> bool {
        let InlineRequest { id, bytes, immediate, signaled, .. } = request;
        // A zero-length WRITE skips the region check, so it does not go here.
        let written = immediate.is_none()
            && (1..=self.inline_max).contains(&bytes.len())
            && self.connection.is_some_and(|connection| connection.write_short(remote, bytes));
        if written {
            *self.grants -= 1;
            self.ledger.completed += 1;
            if signaled {
                self.ledger.report(id, Opcode::Write, bytes.len(), queues);
            }
        }
        written
    }
}

/// Inline requests that are performed as they come, up to the first that may not go now. Work that they share is done
/// once: datagrams are announced together, and a region is entered for up to 64 WRITEs in a row.
pub(crate) struct Run<'a> {
    gate: Gate<'a>,
    queues: &'a mut Queues,
    wire: Wire<'a>,
    region: Option<RegionGuard<'a>>,
    /// Requests that may still be performed before the grants are read again, and this number when the ledger was last
    /// updated.
    left: u64,
    granted: u64,
}

impl<'a> Run<'a> {
    #[inline(always)]
    pub fn new(gate: Gate<'a>, queues: &'a mut Queues, wire: Wire<'a>) -> Self {
        let granted = (*gate.grants).min(REQUESTS_PER_ENTRY);
        Self { gate, queues, wire, region: None, left: granted, granted }
    }

    /// Performs a request. Returns false, without having changed anything, when it may not go now.
    #[inline(always)]
    pub fn perform(&mut self, request: InlineRequest<'_>) -> bool {
        let InlineRequest { id, bytes, operation, immediate, signaled } = request;
        if bytes.len() > self.gate.inline_max || (self.left == 0 && !self.renew()) {
            return false;
        }
        let opcode = match operation {
            // A zero-length WRITE skips the region check, so it does not go here.
            InlineOperation::Write(remote) if immediate.is_none() && !bytes.is_empty() => {
                if !self.write(remote, bytes, signaled) {
                    return false;
                }
                Opcode::Write
            }
            InlineOperation::Send(Some(to)) if self.gate.is_ud => {
                send_datagram(&mut self.wire, self.gate.ledger.sender(), to, immediate, &[bytes], bytes.len());
                Opcode::Send
            }
            _ => return false,
        };
        self.left -= 1;
        if signaled {
            self.report(id, opcode, bytes.len());
        }
        true
    }

    /// Writes to a region, which is entered first if it is another than the last.
    #[inline(always)]
    fn write(&mut self, remote: RemoteMemory, bytes: &[u8], is_reported: bool) -> bool {
        if self.region.as_ref().is_none_or(|region| region.rkey != remote.rkey) {
            enter(&mut self.region, self.gate.connection, remote.rkey, Verb::Write);
        }
        let Some(region) = &self.region else { return false };
        region.write(remote.address, bytes, is_reported)
    }

    /// Goes on with further requests, if more are granted; the region has to be entered again.
    #[cold]
    #[inline(never)]
    fn renew(&mut self) -> bool {
        self.settle();
        self.region = None;
        self.granted = (*self.gate.grants).min(REQUESTS_PER_ENTRY);
        self.left = self.granted;
        self.left > 0
    }

    /// Enters the requests performed so far in the ledger.
    #[inline(always)]
    fn settle(&mut self) {
        let performed = self.granted - self.left;
        self.gate.ledger.completed += performed;
        *self.gate.grants -= performed;
        self.granted = self.left;
    }

    /// Adds a completion for the request that was just performed.
    #[inline(never)]
    fn report(&mut self, id: u64, opcode: Opcode, len: usize) {
        self.settle();
        self.gate.ledger.report(id, opcode, len, self.queues);
    }
}

impl Drop for Run<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.settle();
        self.wire.submit();
    }
}

/// Enters the region of this key, and leaves the one before.
#[inline(never)]
fn enter<'a>(region: &mut Option<RegionGuard<'a>>, connection: Option<&'a Connection>, rkey: u32, verb: Verb) {
    *region = None;
    *region = connection.and_then(|connection| connection.guard_region(rkey, verb));
}

/// A READ into one buffer: its identifier, its target and its source.
pub(crate) type Read = (u64, MessageBuffer, RemoteMemory);

/// READs that are performed as they come and need no completion, up to the first that may not go now. They take no
/// places in the queue. A region is entered once for READs in a row.
pub(crate) struct Reads<'a> {
    gate: Gate<'a>,
    targets_from: Option<&'a Arena>,
    region: Option<RegionGuard<'a>>,
}

impl<'a> Reads<'a> {
    #[inline(always)]
    pub fn new(gate: Gate<'a>) -> Self {
        Self { targets_from: gate.targets_from(), gate, region: None }
    }

    /// Fills a buffer. Returns false, without having changed anything, when the READ may not go now.
    #[inline(always)]
    pub fn perform(&mut self, target: &mut MessageBuffer, remote: RemoteMemory) -> bool {
        if !takes_target(self.targets_from, target) {
            return false;
        }
        if self.region.as_ref().is_none_or(|region| region.rkey != remote.rkey) {
            enter(&mut self.region, self.gate.connection, remote.rkey, Verb::Read);
        }
        let Some(region) = &self.region else { return false };
        region.read(remote.address, target)
    }
}
