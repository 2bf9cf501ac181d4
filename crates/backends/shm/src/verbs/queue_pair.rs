//! Queue pairs: their states, and what belongs to both their queues.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arrayvec::ArrayVec;
use sinew_fabric::Peer;
use sinew_fabric::verbs::{
    Attributes, Destination, Opcode, Operation, QpAddress, QpConfig, QpNumber, QpState, RefusedReceive, RefusedRequest,
    RemoteMemory, Request, Scatter, Source, Status, Transport, VerbsError,
};
use sinew_mem::{Arena, Frozen, MessageBuffer};

use super::address::Home;
use super::completion::{Frees, Queues, Ready};
use super::device::{MTU, ShmDomain};
use super::directory::{Directory, Listens};
use super::engine::{At, Engine, Notes};
use super::fifo::{Buffers, Fifo};
use super::initiator::Seat;
use super::life;
use super::packet::{Header, Kind};
use super::receiving::{Arrived, Assembly, Posted};
use super::sending::{Around, Stall};
use super::waiting::{Flying, Waiting, What};
use super::watch::Sight;
use super::writing::WriteRun;

/// The way to the other queue pair of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Our thread's link to its thread's port.
    pub link: Peer,
    /// Our place at its device.
    pub seat: Rc<Seat>,
    pub number: QpNumber,
    pub key: u32,
    /// Its protection domain.
    pub domain: u32,
    /// What its device's directory says while it listens to us.
    pub listening: u64,
    /// Receives that it has posted, as last seen.
    pub receives: Cell<u32>,
}

impl Connection {
    /// Whether the peer lives and listens to us.
    #[inline(always)]
    pub fn is_listening(&self) -> bool {
        let directory = &self.seat.target.directory;
        directory.listens(self.number) == self.listening && life::is_alive(directory.life())
    }

    /// Whether the owner of the peer's device is dead, and its memory with it.
    pub fn is_dead(&self) -> bool {
        !life::is_alive(self.seat.target.directory.life())
    }
}

/// A queue pair, as its thread's engine has it.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub number: QpNumber,
    pub config: QpConfig,
    pub state: QpState,
    /// Changes when it is reset, so that nothing of an earlier life counts.
    pub epoch: u32,
    /// What packets to it must carry. It changes too.
    pub key: u32,
    pub send_queue: usize,
    pub receive_queue: usize,
    pub connection: Option<Connection>,
    domain: ShmDomain,
    /// Whose buffers may be used, as last seen.
    arenas: Vec<Arena>,

    /// Requests that were pushed, are over, and are known to be.
    pub requests_pushed: u64,
    pub requests_over: u64,
    pub requests_known: u64,
    /// Requests whose turn has not come.
    pub waiting: Waiting,
    /// Requests that were performed, and are not over because one before them is not.
    pub flying: Fifo<Flying>,
    /// One of those failed: nothing more is performed.
    pub broken: bool,
    /// Bytes of the oldest waiting request that were sent already.
    pub progress: usize,
    /// Messages sent to the peer.
    pub sent: u32,
    /// Why the oldest waiting request waits.
    pub stall: Option<Stall>,
    /// Whether it stands among the engine's stalled ones.
    pub is_stalled: bool,
    /// What was seen of the oldest message that is not acknowledged.
    pub sight: Option<Sight>,

    pub receives: Fifo<Posted>,
    /// Receives posted since it was reset.
    pub receives_posted: u32,
    /// Receives that were posted and are not known to be over.
    pub receives_held: usize,
    /// A message of which parts are missing.
    pub assembly: Option<Assembly>,
    /// The number of the peer's next message.
    pub expected: u32,
    /// Whether it stands among those that owe an acknowledgement.
    pub owes: bool,
}

impl QueuePair {
    pub fn new(number: QpNumber, config: &QpConfig, domain: ShmDomain, epoch: u32, queues: (usize, usize)) -> Self {
        let qp = Self {
            number,
            config: *config,
            state: QpState::Reset,
            epoch,
            key: domain.device().key(),
            send_queue: queues.0,
            receive_queue: queues.1,
            connection: None,
            arenas: domain.arenas(),
            domain,
            requests_pushed: 0,
            requests_over: 0,
            requests_known: 0,
            waiting: Waiting::new(config),
            flying: Fifo::default(),
            broken: false,
            progress: 0,
            sent: 0,
            stall: None,
            is_stalled: false,
            sight: None,
            receives: Fifo::default(),
            receives_posted: 0,
            receives_held: 0,
            assembly: None,
            expected: 0,
            owes: false,
        };
        qp.directory().set_receives(number, 0);
        qp.directory().set_listens(number, Listens::NotYet);
        qp
    }

    pub fn directory(&self) -> &Directory {
        &self.domain.device().memory().directory
    }

    /// Whether it takes packets.
    #[inline]
    pub fn receives_packets(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
    }

    /// Whether a buffer is of an arena of the domain's.
    #[inline]
    pub fn knows(&mut self, is_from: impl Fn(&Arena) -> bool) -> bool {
        if self.arenas.iter().any(&is_from) {
            return true;
        }
        self.arenas = self.domain.arenas();
        self.arenas.iter().any(is_from)
    }

    /// Whether a buffer is of an arena of the domain's that was seen before, as it is almost always.
    #[inline(always)]
    pub fn knows_already(&self, is_from: impl Fn(&Arena) -> bool) -> bool {
        self.arenas.iter().any(is_from)
    }

    #[inline(always)]
    pub fn knows_buffers(&mut self, buffers: &[MessageBuffer]) -> bool {
        buffers.iter().all(|buffer| self.knows(|arena| buffer.is_from(arena)))
    }

    /// Whether the buffers of a request are of arenas of the domain's.
    pub fn knows_request(&mut self, request: &Request<'_>) -> bool {
        let frozen = |qp: &mut Self, buffer: &Frozen| qp.knows(|arena| buffer.is_from(arena));
        match &request.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => match source {
                Source::Gather(pieces) => pieces.iter().all(|piece| frozen(self, &piece.buffer)),
                Source::Empty | Source::Inline(_) => true,
            },
            Operation::Read { target, .. } => self.knows_buffers(target),
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                self.knows_buffers(std::slice::from_ref(target))
            }
        }
    }

    /// A completion of the send queue: of the oldest request that was not over, which is over now.
    #[inline]
    pub fn complete_request(&mut self, request: Flying, status: Status, queues: &mut Queues) {
        let Flying { id, opcode, signaled, len, targets, .. } = request;
        if !signaled && status.is_success() && targets.is_empty() {
            self.requests_over += 1;
            return;
        }
        let ready = self.tell_success(id, opcode, len, queues);
        ready.status = status;
        ready.buffers = targets;
    }

    /// The same, of one that went well and gives nothing back.
    #[inline(always)]
    pub fn tell_success<'a>(&mut self, id: u64, opcode: Opcode, len: usize, queues: &'a mut Queues) -> &'a mut Ready {
        self.requests_over += 1;
        let ready = queues.ready(self.send_queue);
        ready.id = id;
        ready.qp = self.number;
        ready.status = Status::Success;
        ready.opcode = opcode;
        ready.len = len;
        ready.immediate = None;
        ready.from = None;
        ready.buffers = Buffers::default();
        ready.frees = Frees::Requests(self.requests_over);
        ready.epoch = self.epoch;
        ready
    }

    /// Goes to error: everything is flushed, but the oldest request, which ends with `first`.
    pub fn fail(&mut self, first: Status, queues: &mut Queues) {
        self.state = QpState::Error;
        self.directory().set_listens(self.number, Listens::NoLonger);
        self.stall = None;
        let mut status = first;
        while let Some(request) = self.flying.front() {
            let request = std::mem::take(request);
            self.flying.drop_front();
            self.complete_request(request, status, queues);
            status = Status::Flushed;
        }
        self.flush_all_waiting(status, queues);
        self.assembly = None;
        while !self.receives.is_empty() {
            self.complete_receive(Arrived { status: Status::Flushed, ..Arrived::default() }, queues);
        }
    }

    /// Forgets everything, without a word.
    pub fn clear(&mut self, queues: &mut Queues) {
        while let Some(request) = self.flying.front() {
            request.targets.take_all(&mut queues.pool);
            self.flying.drop_front();
        }
        self.waiting.ring();
        while let Some(mut request) = self.waiting.pop(&mut queues.pool) {
            request.targets.take_all(&mut queues.pool);
        }
        while let Some(posted) = self.receives.front() {
            posted.buffers.take_all(&mut queues.pool);
            self.receives.drop_front();
        }
    }

    /// The peer is gone.
    pub fn lose_peer(&mut self, queues: &mut Queues, notes: &mut Notes) {
        // There is nobody to be told.
        let is_dead = self.connection.take().is_some_and(|connection| connection.is_dead());
        let first = match self.waiting.oldest() {
            Some((work, ..)) if is_dead && self.flying.is_empty() && work.what.is_access() => Status::RemoteAccess,
            _ => Status::RetryExceeded,
        };
        self.fail_and_leave(first, queues, notes);
    }

    /// Goes to error, and tells the peer.
    pub fn fail_and_leave(&mut self, first: Status, queues: &mut Queues, notes: &mut Notes) {
        self.leave_peer(notes);
        self.fail(first, queues);
    }

    /// Ends the connection, if there is one, and tells the peer.
    pub fn leave_peer(&mut self, notes: &mut Notes) {
        self.directory().set_listens(self.number, Listens::NoLonger);
        if let Some(connection) = self.connection.take() {
            notes.letters.push_back((connection.link, self.header(Kind::Gone, &connection, 0)));
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

    /// Begins anew; what was posted is flushed.
    fn reset(&mut self, epoch: u32, queues: &mut Queues) {
        self.fail(Status::Flushed, queues);
        let fresh =
            Self::new(self.number, &self.config, self.domain.clone(), epoch, (self.send_queue, self.receive_queue));
        // It still stands in the engine's lists.
        let (is_stalled, owes) = (self.is_stalled, self.owes);
        *self = Self { is_stalled, owes, ..fresh };
    }
}

/// A queue pair of a [`super::ShmThread`].
pub struct ShmQueuePair {
    engine: Rc<RefCell<Engine>>,
    number: QpNumber,
    attributes: Attributes,
    transport: Transport,
}

impl std::fmt::Debug for ShmQueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmQueuePair")
            .field("number", &self.number)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl ShmQueuePair {
    pub(super) fn new(
        engine: Rc<RefCell<Engine>>,
        number: QpNumber,
        attributes: Attributes,
        config: &QpConfig,
    ) -> Self {
        Self { engine, number, attributes, transport: config.transport }
    }

    /// Connects `engine`'s queue pair to `remote`.
    fn meet(&self, engine: &mut Engine, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        if !self.transport.is_connected() {
            return Ok(());
        }
        let bad = |reason: String| Err(VerbsError::Address(reason));
        let Some(remote) = remote else { return bad("a connected transport needs it".to_owned()) };
        if remote.transport != self.transport {
            return bad(format!("it is one of a {:?} queue pair, not of a {:?} one", remote.transport, self.transport));
        }
        let home = Home::from_bytes(&remote.port)?;
        let seat = engine.seat(&home)?;
        let link = engine.resolve(&home)?;
        let connection = Connection {
            link,
            seat,
            number: remote.number,
            key: home.key,
            domain: home.domain,
            listening: Listens::To(self.number).word(remote.number),
            receives: Cell::new(0),
        };
        let At { qp, .. } = engine.at(self.number);
        qp.connection = Some(connection);
        qp.directory().set_listens(self.number, Listens::To(remote.number));
        Ok(())
    }
}

impl Drop for ShmQueuePair {
    fn drop(&mut self) {
        self.engine.borrow_mut().drop_queue_pair(self.number);
    }
}

impl sinew_fabric::verbs::QueuePair for ShmQueuePair {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QpState {
        self.engine.borrow_mut().at(self.number).qp.state
    }

    fn address(&self) -> QpAddress {
        let engine = &mut *self.engine.borrow_mut();
        let port = engine.port_number;
        let qp = engine.at(self.number).qp;
        let home = qp.domain.device().home(qp.domain.number(), qp.key, port);
        let bytes: ArrayVec<u8, { QpAddress::PORT_MAX }> = home.to_bytes();
        QpAddress {
            number: self.number,
            transport: self.transport,
            first_packet: 0,
            qkey: qp.config.qkey,
            mtu: MTU as u32,
            port: bytes,
        }
    }

    fn modify(&mut self, state: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let engine = &mut *self.engine.borrow_mut();
        let from = engine.at(self.number).qp.state;
        if !from.can_become(state) {
            return Err(VerbsError::Transition { from, to: state });
        }
        match state {
            QpState::Reset => {
                let epoch = engine.epoch();
                let At { qp, queues, notes, .. } = engine.at(self.number);
                qp.leave_peer(notes);
                qp.reset(epoch, queues);
                engine.turn();
            }
            QpState::Init | QpState::ReadyToSend => engine.at(self.number).qp.state = state,
            QpState::ReadyToReceive => {
                self.meet(engine, remote)?;
                engine.at(self.number).qp.state = state;
            }
            QpState::Error => {
                let At { qp, queues, notes, .. } = engine.at(self.number);
                qp.fail_and_leave(Status::Flushed, queues, notes);
                engine.turn();
            }
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, id: u64, mut buffers: Scatter) -> Result<(), RefusedReceive> {
        let engine = &mut *self.engine.borrow_mut();
        let At { qp, queues, .. } = engine.at(self.number);
        if let Err(error) = qp.check_receive(&buffers) {
            return Err(RefusedReceive { error, buffers });
        }
        let buffers = Buffers::take(&mut buffers, &mut queues.pool);
        qp.post_receive(id, buffers, queues);
        Ok(())
    }

    #[inline]
    fn post_buffer(&mut self, id: u64, buffer: MessageBuffer) -> Result<(), RefusedReceive> {
        let engine = &mut *self.engine.borrow_mut();
        let At { qp, queues, .. } = engine.at(self.number);
        if let Err(error) = qp.check_receive(std::slice::from_ref(&buffer)) {
            return Err(RefusedReceive { error, buffers: [buffer].into_iter().collect() });
        }
        qp.post_receive(id, Buffers::one(buffer), queues);
        Ok(())
    }

    /// Inlined as `post` is.
    #[inline(always)]
    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let Request { id, operation, signaled, fence, solicited } = request;
        let operation = match operation {
            Operation::Write { source: Source::Inline(bytes), remote, immediate: None } => {
                // Nothing in it needs a drop, which the compiler would look for.
                std::mem::forget(operation);
                if self.push_inline(id, signaled, bytes, What::Write(remote), None) {
                    return Ok(());
                }
                Operation::Write { source: Source::Inline(bytes), remote, immediate: None }
            }
            Operation::Send { source: Source::Inline(bytes), immediate, to } => {
                std::mem::forget(operation);
                if self.push_inline(id, signaled, bytes, to.map_or(What::Send, What::Datagram), immediate) {
                    return Ok(());
                }
                Operation::Send { source: Source::Inline(bytes), immediate, to }
            }
            Operation::Read { mut target, remote } => {
                if let Some(buffer) = only(&mut target) {
                    match self.push_read(id, signaled, buffer, remote) {
                        Ok(()) => return Ok(()),
                        Err(buffer) => target.push(buffer),
                    }
                }
                Operation::Read { target, remote }
            }
            operation => operation,
        };
        self.push_any(Request { id, operation, signaled, fence, solicited })
    }

    #[inline]
    fn doorbell(&mut self) {
        let engine = &mut *self.engine.borrow_mut();
        let At { qp, queues, notes, mut wire } = engine.at(self.number);
        qp.ring(&mut wire, queues, notes);
    }

    /// Inlined as `post` is: WRITEs of few bytes are performed as they come.
    #[inline(always)]
    fn post_list<'a>(&mut self, requests: impl IntoIterator<Item = Request<'a>>) -> Result<(), RefusedRequest> {
        let mut requests = requests.into_iter();
        let other = {
            let engine = &mut *self.engine.borrow_mut();
            let (qp, queues) = engine.queue_pair(self.number);
            let seat = qp.seat();
            let mut run = WriteRun::new(qp, queues, seat.as_deref());
            loop {
                let Some(Request { id, operation, signaled, fence, solicited }) = requests.next() else { break None };
                let Operation::Write { source: Source::Inline(bytes), remote, immediate: None } = operation else {
                    break Some(Request { id, operation, signaled, fence, solicited });
                };
                // As in `push`.
                std::mem::forget(operation);
                if !run.write((id, signaled), bytes, remote) {
                    let operation = Operation::Write { source: Source::Inline(bytes), remote, immediate: None };
                    break Some(Request { id, operation, signaled, fence, solicited });
                }
            }
        };
        match other {
            // Nothing was pushed, unless it was before.
            None => {
                self.doorbell();
                Ok(())
            }
            Some(request) => self.post_rest(request, requests),
        }
    }

    /// Inlined where it is called, so that requests of few bytes, of which there are millions a second, are never put together.
    #[inline(always)]
    fn post(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let Request { id, operation, signaled, fence, solicited } = request;
        let operation = match operation {
            Operation::Write { source: Source::Inline(bytes), remote, immediate: None } => {
                // Nothing in it needs a drop, which the compiler would look for.
                std::mem::forget(operation);
                if self.write_inline(id, signaled, bytes, remote) {
                    return Ok(());
                }
                Operation::Write { source: Source::Inline(bytes), remote, immediate: None }
            }
            Operation::Send { source: Source::Inline(bytes), immediate, to } => {
                std::mem::forget(operation);
                if self.send_inline(id, signaled, bytes, immediate, to) {
                    return Ok(());
                }
                Operation::Send { source: Source::Inline(bytes), immediate, to }
            }
            Operation::Read { mut target, remote } => {
                if let Some(buffer) = only(&mut target) {
                    match self.read_now(id, buffer, remote) {
                        Ok(()) => return Ok(()),
                        Err(buffer) => target.push(buffer),
                    }
                }
                Operation::Read { target, remote }
            }
            operation => operation,
        };
        self.post_any(Request { id, operation, signaled, fence, solicited })
    }
}

/// The only buffer of a target that has one.
#[inline(always)]
fn only(target: &mut Scatter) -> Option<MessageBuffer> {
    if target.len() == 1 { target.pop() } else { None }
}

impl ShmQueuePair {
    #[inline(always)]
    fn write_inline(&mut self, id: u64, signaled: bool, bytes: &[u8], remote: RemoteMemory) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        qp.write_inline((id, signaled), bytes, remote, queues)
    }

    /// Pushes a request of inline bytes, if all is as it mostly is.
    #[inline(always)]
    fn push_inline(&mut self, id: u64, signaled: bool, bytes: &[u8], what: What, immediate: Option<u32>) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        engine.queue_pair(self.number).0.push_inline((id, signaled), bytes, what, immediate)
    }

    /// Posts the rest of a list.
    #[inline(never)]
    fn post_rest<'a>(
        &mut self,
        first: Request<'a>,
        rest: impl Iterator<Item = Request<'a>>,
    ) -> Result<(), RefusedRequest> {
        use sinew_fabric::verbs::QueuePair as _;
        let pushed = std::iter::once(first).chain(rest).try_for_each(|request| self.push(request));
        self.doorbell();
        pushed
    }

    /// Pushes whatever it is.
    #[inline(never)]
    fn push_any(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        match qp.check(&request, &self.attributes) {
            Err(error) => Err(RefusedRequest::new(error, request.operation)),
            Ok(()) => {
                qp.push(request, &mut queues.pool);
                Ok(())
            }
        }
    }

    #[inline(never)]
    fn push_read(
        &mut self,
        id: u64,
        signaled: bool,
        target: MessageBuffer,
        remote: RemoteMemory,
    ) -> Result<(), MessageBuffer> {
        let engine = &mut *self.engine.borrow_mut();
        engine.queue_pair(self.number).0.push_read((id, signaled), target, remote)
    }

    #[inline(never)]
    fn read_now(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), MessageBuffer> {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        qp.read_now(id, target, remote, queues)
    }

    #[inline(never)]
    fn send_inline(
        &mut self,
        id: u64,
        signaled: bool,
        bytes: &[u8],
        immediate: Option<u32>,
        to: Option<Destination>,
    ) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let At { qp, queues, notes, mut wire } = engine.at(self.number);
        let around = Around { wire: &mut wire, queues, notes };
        qp.send_inline((id, signaled), bytes, immediate, to, around)
    }

    /// Posts whatever it is.
    #[inline(never)]
    fn post_any(&mut self, mut request: Request<'_>) -> Result<(), RefusedRequest> {
        let engine = &mut *self.engine.borrow_mut();
        let At { qp, queues, notes, mut wire } = engine.at(self.number);
        match qp.check(&request, &self.attributes) {
            Err(error) => Err(RefusedRequest::new(error, request.operation)),
            Ok(()) => {
                if !qp.perform_now(&mut request, &mut wire, queues, notes) {
                    qp.push(request, &mut queues.pool);
                    qp.ring(&mut wire, queues, notes);
                }
                Ok(())
            }
        }
    }
}
