//! Queue pairs, as their users see them: they are connected and posted to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::verbs::{
    Attributes, Destination, Operation, QpAddress, QpConfig, QpNumber, QpState, RefusedReceive, RefusedRequest,
    RemoteMemory, Request, Scatter, Source, Status, Transport, VerbsError,
};
use sinew_mem::MessageBuffer;

use super::address::Home;
use super::device::MTU;
use super::directory::ListenState;
use super::engine::{Engine, Parts};
use super::fifo::Buffers;
use super::queue_pair::{Connection, Outbound, WriteRun};
use super::waiting::RequestKind;

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
    fn connect_to(&self, engine: &mut Engine, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        if !self.transport.is_connected() {
            return Ok(());
        }
        let bad = |reason: String| Err(VerbsError::Address(reason));
        let Some(remote) = remote else { return bad("a connected transport needs it".to_owned()) };
        if remote.transport != self.transport {
            return bad(format!(
                "it is the address of a {:?} queue pair, not of a {:?} one",
                remote.transport, self.transport
            ));
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
            listening_word: ListenState::To(self.number).word(remote.number),
            receives: Cell::new(0),
        };
        let Parts { qp, .. } = engine.parts(self.number);
        qp.connection = Some(connection);
        qp.directory().set_listen_state(self.number, ListenState::To(remote.number));
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
        self.engine.borrow_mut().parts(self.number).qp.state
    }

    fn address(&self) -> QpAddress {
        let engine = &mut *self.engine.borrow_mut();
        let port = engine.port_number;
        let qp = engine.parts(self.number).qp;
        QpAddress {
            number: self.number,
            transport: self.transport,
            first_packet: 0,
            qkey: qp.config.qkey,
            mtu: MTU as u32,
            port: qp.home(port).to_bytes(),
        }
    }

    fn modify(&mut self, state: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let engine = &mut *self.engine.borrow_mut();
        let from = engine.parts(self.number).qp.state;
        if !from.can_become(state) {
            return Err(VerbsError::Transition { from, to: state });
        }
        match state {
            QpState::Reset => {
                let epoch = engine.epoch();
                let Parts { qp, queues, notes, .. } = engine.parts(self.number);
                qp.disconnect(notes);
                qp.reset(epoch, queues);
                engine.turn();
            }
            QpState::Init | QpState::ReadyToSend => engine.parts(self.number).qp.state = state,
            QpState::ReadyToReceive => {
                self.connect_to(engine, remote)?;
                engine.parts(self.number).qp.state = state;
            }
            QpState::Error => {
                let Parts { qp, queues, notes, .. } = engine.parts(self.number);
                qp.fail_and_disconnect(Status::Flushed, queues, notes);
                engine.turn();
            }
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, id: u64, mut buffers: Scatter) -> Result<(), RefusedReceive> {
        let engine = &mut *self.engine.borrow_mut();
        let Parts { qp, queues, .. } = engine.parts(self.number);
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
        let Parts { qp, queues, .. } = engine.parts(self.number);
        if let Err(error) = qp.check_receive(std::slice::from_ref(&buffer)) {
            return Err(RefusedReceive { error, buffers: [buffer].into_iter().collect() });
        }
        qp.post_receive(id, Buffers::one(buffer), queues);
        Ok(())
    }

    /// Inlined like `post`.
    #[inline(always)]
    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let Request { id, operation, signaled, fence, solicited } = request;
        let operation = match operation {
            Operation::Write { source: Source::Inline(bytes), remote, immediate: None } => {
                // Nothing in it needs a drop; without this, the compiler would emit checks for it.
                std::mem::forget(operation);
                if self.push_inline(id, signaled, bytes, RequestKind::Write(remote), None) {
                    return Ok(());
                }
                Operation::Write { source: Source::Inline(bytes), remote, immediate: None }
            }
            Operation::Send { source: Source::Inline(bytes), immediate, to } => {
                std::mem::forget(operation);
                if self.push_inline(id, signaled, bytes, to.map_or(RequestKind::Send, RequestKind::Datagram), immediate)
                {
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
        let Parts { qp, queues, notes, mut wire } = engine.parts(self.number);
        qp.ring(&mut wire, queues, notes);
    }

    /// Inlined like `post`: WRITEs of a few bytes are performed as they come.
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
            // This list pushed nothing, but earlier requests may wait for the doorbell.
            None => {
                self.doorbell();
                Ok(())
            }
            Some(request) => self.post_rest(request, requests),
        }
    }

    /// Inlined into the caller, so that requests of a few bytes, of which there are millions a second, are never put
    /// together in memory.
    #[inline(always)]
    fn post(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        let Request { id, operation, signaled, fence, solicited } = request;
        let operation = match operation {
            Operation::Write { source: Source::Inline(bytes), remote, immediate: None } => {
                // Nothing in it needs a drop; without this, the compiler would emit checks for it.
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

/// Takes the buffer of a target that has exactly one.
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

    /// Pushes a request of inline bytes, in the common case.
    #[inline(always)]
    fn push_inline(
        &mut self,
        id: u64,
        signaled: bool,
        bytes: &[u8],
        kind: RequestKind,
        immediate: Option<u32>,
    ) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        engine.queue_pair(self.number).0.push_inline((id, signaled), bytes, kind, immediate)
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

    /// Pushes a request of any kind.
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
        let Parts { qp, queues, notes, mut wire } = engine.parts(self.number);
        let around = Outbound { wire: &mut wire, queues, notes };
        qp.send_inline((id, signaled), bytes, immediate, to, around)
    }

    /// Posts a request of any kind.
    #[inline(never)]
    fn post_any(&mut self, mut request: Request<'_>) -> Result<(), RefusedRequest> {
        let engine = &mut *self.engine.borrow_mut();
        let Parts { qp, queues, notes, mut wire } = engine.parts(self.number);
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
