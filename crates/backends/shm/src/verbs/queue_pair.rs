//! Queue pairs: their states, and the parts that belong to both of their queues.

mod gate;
mod ledger;
mod receiving;
mod sender;
mod sending;
mod watch;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use sinew_fabric::Peer;
use sinew_fabric::verbs::{
    Operation, QpConfig, QpNumber, QpState, RemoteMemory, Request, Source, Status, Transport, Verb,
};
use sinew_mem::{Arena, Extent, Frozen, MessageBuffer, SharedRef};

use super::address::Home;
use super::device::ShmDomain;
use super::directory::{Directory, ListenState, PairWords};
use super::fifo::Fifo;
use super::initiator::{AccessTarget, RegionGuard, RemotePair, Seat};
use super::life;
use super::packet::{Header, Kind};
use super::queues::{Life, Queues};
use super::waiting::{InFlight, Waiting};
use super::wire::Deferred;

use ledger::Ledger;
use receiving::{Assembly, Posted, ReceiveOutcome};
use sending::Stall;
use watch::AckProbe;

pub(crate) use gate::{Read, Reads, Run};
pub(crate) use receiving::{Inbound, Stopped};
pub(crate) use watch::WATCH_EVERY_NS;

/// The other queue pair of a connection, and how to reach it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Our thread's link to its thread's port.
    pub link: Peer,
    /// Our seat at its device.
    pub seat: Rc<Seat>,
    pub number: QpNumber,
    pub key: u32,
    /// Its protection domain.
    pub domain: u32,
    /// Word in its device's directory while it listens to us.
    pub listening_word: u64,
    /// Receives that it had posted when last checked.
    pub receives: Cell<u32>,
    /// Word that says whether the owner of the peer's device lives, and the words of the peer.
    pub life: SharedRef<AtomicU32>,
    pub words: PairWords,
}

impl Connection {
    /// The peer, as needed by operations in its memory.
    #[inline(always)]
    pub fn remote_pair(&self) -> RemotePair {
        RemotePair { domain: self.domain, number: self.number, listening: self.listening_word }
    }

    /// Whether the peer lives and listens to us.
    #[inline(always)]
    pub fn is_listening(&self) -> bool {
        // Partner: the stores of `Directory::set_listen_state`.
        self.words[0].load(Ordering::Acquire) == self.listening_word && self.is_alive()
    }

    /// Whether the owner of the peer's device lives.
    #[inline(always)]
    fn is_alive(&self) -> bool {
        // Partner: as in `Directory::life`.
        life::is_alive(self.life.load(Ordering::Acquire))
    }

    /// Enters a region of the peer's to READ or WRITE there; `None` when that is not allowed now, for whatever reason.
    #[inline]
    pub fn guard_region(&self, rkey: u32, verb: Verb) -> Option<RegionGuard<'_>> {
        self.seat.guard_region(self.remote_pair(), rkey, verb)
    }

    /// Writes at most [`CHUNK`](super::initiator::CHUNK) bytes. Returns false when it wrote nothing, for whatever
    /// reason.
    #[inline]
    pub fn write_short(&self, remote: RemoteMemory, bytes: &[u8]) -> bool {
        let place = AccessTarget { pair: self.remote_pair(), remote };
        self.is_alive() && self.seat.write(place, Verb::Write, &[bytes], bytes.len()).is_ok()
    }

    /// Fills a buffer of at most [`CHUNK`](super::initiator::CHUNK) bytes. Returns false when it read nothing, for
    /// whatever reason.
    #[inline(always)]
    pub fn read_short(&self, remote: RemoteMemory, target: &mut [u8]) -> bool {
        self.is_listening() && self.seat.read_short(AccessTarget { pair: self.remote_pair(), remote }, target)
    }

    /// Whether the owner of the peer's device is dead, and its memory with it.
    pub fn is_dead(&self) -> bool {
        !self.is_alive()
    }
}

/// A queue pair, as its thread's engine sees it.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub number: QpNumber,
    pub config: QpConfig,
    pub state: QpState,
    /// Key that packets to it must carry. It also changes with a reset.
    pub key: u32,
    pub receive_queue: usize,
    pub connection: Option<Connection>,
    domain: ShmDomain,
    /// Arenas whose buffers may be used, as last read from the domain.
    arenas: Vec<Arena>,

    pub ledger: Ledger,
    /// Requests whose turn has not come.
    pub waiting: Waiting,
    /// Requests that were performed, and are not complete because an earlier one is not.
    pub in_flight: Fifo<InFlight>,
    /// One of the performed requests failed, so nothing more is performed.
    pub has_failed: bool,
    /// Requests that may go now, as the gate found; 0 as soon as something could keep them from going.
    pub grants: u64,
    /// Bytes of the oldest waiting request that have been sent; 1 for a WRITE with immediate whose data has been
    /// written.
    pub progress: usize,
    /// Messages sent to the peer.
    pub sent: u32,
    /// Reason why the oldest waiting request waits.
    pub stall: Option<Stall>,
    /// Whether it is in the engine's list of stalled queue pairs.
    pub is_stalled: bool,
    /// Observations of the oldest message that is not acknowledged.
    pub ack_probe: Option<AckProbe>,

    /// UD: the key that datagrams must carry, while the queue pair receives any.
    pub datagram_key: Option<u32>,
    pub receives: Fifo<Posted>,
    /// Receives posted since the last reset; the count wraps.
    pub receives_posted: u32,
    /// Receives that were posted and whose completion the user has not polled.
    pub receives_held: usize,
    /// A message of which parts are missing.
    pub assembly: Option<Assembly>,
    /// The number of the peer's next message.
    pub expected: u32,
    /// Whether it is in the engine's list of queue pairs that owe an acknowledgement.
    pub owes_ack: bool,
}

impl QueuePair {
    pub fn new(number: QpNumber, config: &QpConfig, domain: ShmDomain, epoch: u32, queues: (usize, usize)) -> Self {
        let qp = Self {
            number,
            config: *config,
            state: QpState::Reset,
            key: domain.device().key(),
            receive_queue: queues.1,
            connection: None,
            arenas: domain.arenas(),
            domain,
            ledger: Ledger {
                life: Life::new(number, epoch),
                queue: queues.0,
                qkey: config.qkey,
                completed: 0,
                polled: 0,
            },
            waiting: Waiting::new(config),
            in_flight: Fifo::default(),
            has_failed: false,
            grants: 0,
            progress: 0,
            sent: 0,
            stall: None,
            is_stalled: false,
            ack_probe: None,
            datagram_key: None,
            receives: Fifo::default(),
            receives_posted: 0,
            receives_held: 0,
            assembly: None,
            expected: 0,
            owes_ack: false,
        };
        qp.directory().set_receives(number, 0);
        qp.directory().set_listen_state(number, ListenState::NotYet);
        qp
    }

    /// Its location for peers, at its thread's port of this number.
    pub fn home(&self, port: u32) -> Home {
        self.domain.device().home(self.domain.number(), self.key, port)
    }

    pub fn directory(&self) -> &Directory {
        &self.domain.device().memory().directory
    }

    /// Changes the state, and what depends on it alone.
    pub fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.grants = 0;
        let takes_datagrams = self.config.transport == Transport::Ud && self.receives_packets();
        self.datagram_key = takes_datagrams.then_some(self.config.qkey);
    }

    /// Whether it receives packets.
    #[inline]
    pub fn receives_packets(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
    }

    /// Whether memory with this extent belongs to an arena of the domain, or is registered.
    #[inline]
    pub fn owns(&mut self, extent: impl Fn() -> Extent, is_from: impl Fn(&Arena) -> bool) -> bool {
        self.is_from_last(&is_from) || self.owns_other(extent(), is_from)
    }

    /// Whether a buffer belongs to the same arena as the last one, as almost always.
    #[inline(always)]
    pub fn is_from_last(&self, is_from: impl Fn(&Arena) -> bool) -> bool {
        self.arenas.first().is_some_and(is_from)
    }

    /// As [`Self::owns`]. The buffer's arena is put first.
    #[inline(never)]
    fn owns_other(&mut self, extent: Extent, is_from: impl Fn(&Arena) -> bool) -> bool {
        let mut found = self.arenas.iter().position(&is_from);
        if found.is_none() {
            self.arenas = self.domain.arenas();
            found = self.arenas.iter().position(is_from);
        }
        match found {
            Some(index) => {
                self.arenas.swap(0, index);
                true
            }
            None => self.domain.registered().has(extent),
        }
    }

    #[inline(always)]
    pub fn owns_buffers(&mut self, buffers: &[MessageBuffer]) -> bool {
        buffers.iter().all(|buffer| self.owns(|| buffer.extent(), |arena| buffer.is_from(arena)))
    }

    /// Whether the buffers of a request belong to arenas of the domain, or are registered.
    pub fn owns_request(&mut self, request: &Request<'_>) -> bool {
        let frozen = |qp: &mut Self, buffer: &Frozen| qp.owns(|| buffer.extent(), |arena| buffer.is_from(arena));
        match &request.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => match source {
                Source::Gather(pieces) => pieces.iter().all(|piece| frozen(self, &piece.buffer)),
                Source::Empty | Source::Inline(_) => true,
            },
            Operation::Read { target, .. } => self.owns_buffers(target),
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                self.owns(|| range.extent(), |arena| range.is_from(arena))
            }
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                self.owns_buffers(std::slice::from_ref(target))
            }
        }
    }

    /// Completes the oldest incomplete request. Adds no completion for an unsignaled success that gives nothing back.
    #[inline]
    pub fn complete_request(&mut self, request: InFlight, status: Status, queues: &mut Queues) {
        let InFlight { id, opcode, signaled, len, mut held, .. } = request;
        if !signaled && status.is_success() && held.is_empty() {
            self.ledger.completed += 1;
            return;
        }
        self.ledger.complete_held((id, opcode, len), &mut held, queues).status = status;
    }

    /// Goes to the error state. All requests and receives are flushed, except that the oldest request ends with
    /// `first`.
    pub fn fail(&mut self, first: Status, queues: &mut Queues) {
        self.set_state(QpState::Error);
        self.directory().set_listen_state(self.number, ListenState::NoLonger);
        self.stall = None;
        let mut status = first;
        while let Some(request) = self.in_flight.front() {
            let request = std::mem::take(request);
            self.in_flight.drop_front();
            self.complete_request(request, status, queues);
            status = Status::Flushed;
        }
        self.flush_all_waiting(status, queues);
        self.assembly = None;
        while !self.receives.is_empty() {
            self.complete_receive(ReceiveOutcome { status: Status::Flushed, ..ReceiveOutcome::default() }, queues);
        }
    }

    /// Drops all requests and receives, without completions.
    pub fn clear(&mut self, queues: &mut Queues) {
        while let Some(request) = self.in_flight.front() {
            request.held.take_all(&mut queues.pool);
            self.in_flight.drop_front();
        }
        self.waiting.ring();
        while let Some(mut request) = self.waiting.pop(&mut queues.pool) {
            request.held.take_all(&mut queues.pool);
        }
        while let Some(posted) = self.receives.front() {
            posted.buffers.take_all(&mut queues.pool);
            self.receives.drop_front();
        }
    }

    /// Ends the connection because the peer is gone.
    pub fn lose_peer(&mut self, queues: &mut Queues, notes: &mut Deferred) {
        // The connection is taken first, as the peer need not be told.
        let is_dead = self.connection.take().is_some_and(|connection| connection.is_dead());
        let first = match self.waiting.oldest() {
            Some((work, ..)) if is_dead && self.in_flight.is_empty() && work.kind.is_access() => Status::RemoteAccess,
            _ => Status::RetryExceeded,
        };
        self.fail_and_disconnect(first, queues, notes);
    }

    /// Goes to the error state, and tells the peer.
    pub fn fail_and_disconnect(&mut self, first: Status, queues: &mut Queues, notes: &mut Deferred) {
        self.disconnect(notes);
        self.fail(first, queues);
    }

    /// Ends the connection, if there is one, and tells the peer.
    pub fn disconnect(&mut self, notes: &mut Deferred) {
        self.directory().set_listen_state(self.number, ListenState::NoLonger);
        if let Some(connection) = self.connection.take() {
            notes.final_packets.push_back((connection.link, self.header(Kind::Gone, &connection, 0)));
        }
    }

    /// A header to the peer, without a message.
    pub fn header(&self, kind: Kind, connection: &Connection, number: u32) -> Header {
        Header {
            kind,
            to: connection.number,
            from: self.number,
            key: connection.key,
            number,
            immediate: None,
            offset: 0,
            total: 0,
        }
    }

    /// Resets the queue pair; posted requests and receives are flushed.
    pub fn reset(&mut self, epoch: u32, queues: &mut Queues) {
        self.fail(Status::Flushed, queues);
        let fresh =
            Self::new(self.number, &self.config, self.domain.clone(), epoch, (self.ledger.queue, self.receive_queue));
        // It is still in the engine's lists.
        let (is_stalled, owes_ack) = (self.is_stalled, self.owes_ack);
        *self = Self { is_stalled, owes_ack, ..fresh };
    }
}
