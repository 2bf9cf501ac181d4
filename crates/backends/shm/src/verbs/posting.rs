//! Queue pairs, as their users see them: they are connected and posted to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::verbs::{
    Attributes, InlineOperation, InlineRequest, Operation, PostError, QpAddress, QpConfig, QpNumber, QpState,
    QueuePair as _, RefusedReceive, RefusedRequest, RemoteMemory, Request, Scatter, Status, Transport, VerbsError,
};
use sinew_mem::MessageBuffer;

use super::address::Home;
use super::device::MTU;
use super::directory::ListenState;
use super::engine::{Engine, Parts};
use super::fifo::Buffers;
use super::queue_pair::{Connection, Read, Reads, Run};

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
        let directory = &seat.target.directory;
        let connection = Connection {
            life: directory.life_futex().clone(),
            words: directory.pair_words(remote.number),
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
            QpState::Init | QpState::ReadyToSend => engine.parts(self.number).qp.set_state(state),
            QpState::ReadyToReceive => {
                self.connect_to(engine, remote)?;
                engine.parts(self.number).qp.set_state(state);
            }
            QpState::Error => {
                let Parts { qp, queues, notes, .. } = engine.parts(self.number);
                qp.fail_and_disconnect(Status::Flushed, queues, notes);
                engine.turn();
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, id: u64, mut buffers: Scatter) -> Result<(), RefusedReceive> {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        if let Err(error) = qp.check_receive(&buffers) {
            return Err(RefusedReceive { error, buffers });
        }
        let buffers = Buffers::take(&mut buffers, &mut queues.pool);
        qp.post_receive(id, buffers, queues);
        Ok(())
    }

    #[inline]
    fn post_buffer(&mut self, id: u64, buffer: MessageBuffer) -> Result<(), RefusedReceive> {
        self.post_buffers([(id, buffer)])
    }

    #[inline]
    fn post_buffers(&mut self, buffers: impl IntoIterator<Item = (u64, MessageBuffer)>) -> Result<(), RefusedReceive> {
        let mut buffers = buffers.into_iter();
        loop {
            let other = self.engine.borrow_mut().queue_pair(self.number).0.post_buffers(&mut buffers);
            let Some((id, buffer)) = other else { return Ok(()) };
            self.post_receive(id, [buffer].into_iter().collect())?;
        }
    }

    fn push(&mut self, mut request: Request<'_>) -> Result<(), RefusedRequest> {
        if let Some(inline) = request.as_inline() {
            return self.push_inline(inline).map_err(RefusedRequest::bare);
        }
        self.push_any(&mut request).map_err(|error| RefusedRequest::new(error, request.operation))
    }

    #[inline]
    fn doorbell(&mut self) {
        let engine = &mut *self.engine.borrow_mut();
        let Parts { qp, queues, notes, mut wire } = engine.parts(self.number);
        qp.ring(&mut wire, queues, notes);
    }

    fn post(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        if let Some(inline) = request.as_inline() {
            return self.post_inline(inline).map_err(RefusedRequest::bare);
        }
        self.push(request)?;
        self.doorbell();
        Ok(())
    }

    /// Inline requests at the start of the list are performed as they come.
    fn post_list<'a>(&mut self, requests: impl IntoIterator<Item = Request<'a>>) -> Result<(), RefusedRequest> {
        let (mut requests, mut other) = (requests.into_iter(), None);
        let inline = requests.by_ref().map_while(|request| {
            let inline = request.as_inline();
            if inline.is_none() {
                other = Some(request);
            }
            inline
        });
        self.post_inline_list(inline).map_err(RefusedRequest::bare)?;
        let Some(other) = other else { return Ok(()) };
        let pushed = std::iter::once(other).chain(requests).try_for_each(|request| self.push(request));
        self.doorbell();
        pushed
    }

    #[inline]
    fn push_inline(&mut self, request: InlineRequest<'_>) -> Result<(), PostError> {
        if self.engine.borrow_mut().queue_pair(self.number).0.push_inline(request) {
            return Ok(());
        }
        self.push_any(&mut request.into())
    }

    #[inline]
    fn post_inline(&mut self, request: InlineRequest<'_>) -> Result<(), PostError> {
        if self.perform_one(request) {
            return Ok(());
        }
        self.push_inline(request)?;
        self.doorbell();
        Ok(())
    }

    #[inline]
    fn post_inline_list<'a>(&mut self, requests: impl IntoIterator<Item = InlineRequest<'a>>) -> Result<(), PostError> {
        let mut requests = requests.into_iter();
        self.perform(&mut requests).or_else(|first| self.post_rest(first.into_iter().chain(requests)))
    }

    #[inline]
    fn push_read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), RefusedRequest> {
        self.read(id, target, remote).or_else(|target| self.push_any_read(id, target, remote))
    }

    #[inline]
    fn post_read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), RefusedRequest> {
        self.read(id, target, remote).or_else(|target| {
            self.push_any_read(id, target, remote)?;
            self.doorbell();
            Ok(())
        })
    }

    #[inline]
    fn write_at_once<'a>(&mut self, writes: impl IntoIterator<Item = (&'a [u8], RemoteMemory)>) -> usize {
        let engine = &mut *self.engine.borrow_mut();
        let gate = engine.queue_pair(self.number).0.gate();
        gate.map_or(0, |gate| gate.write_all(writes.into_iter()))
    }

    #[inline]
    fn post_reads(
        &mut self,
        reads: impl IntoIterator<Item = Read>,
        done: impl FnMut(u64, MessageBuffer),
    ) -> Result<(), RefusedRequest> {
        let mut reads = reads.into_iter();
        self.perform_reads(&mut reads, done).or_else(|first| self.post_other_reads(first.into_iter().chain(reads)))
    }
}

impl ShmQueuePair {
    /// Performs inline requests as they come. Stops at the first that may not go now, and returns it as
    /// `Err(Some(request))`. Returns `Err(None)`, and takes nothing from the list, if earlier requests still wait or
    /// there is no room. (The list must not be advanced again once it has ended: it may have set aside a request of
    /// another kind.)
    #[inline(always)]
    fn perform<'a>(
        &mut self,
        requests: &mut impl Iterator<Item = InlineRequest<'a>>,
    ) -> Result<(), Option<InlineRequest<'a>>> {
        let engine = &mut *self.engine.borrow_mut();
        let Parts { qp, queues, wire, .. } = engine.parts(self.number);
        let Some(gate) = qp.gate() else { return Err(None) };
        let mut run = Run::new(gate, queues, wire);
        for request in requests {
            if !run.perform(request) {
                return Err(Some(request));
            }
        }
        Ok(())
    }

    /// Performs one inline request, if it may go now. Otherwise returns false, and has no effect.
    #[inline(always)]
    fn perform_one(&mut self, request: InlineRequest<'_>) -> bool {
        let engine = &mut *self.engine.borrow_mut();
        let Parts { qp, queues, wire, .. } = engine.parts(self.number);
        let Some(gate) = qp.gate() else { return false };
        match request.operation {
            InlineOperation::Write(remote) => gate.write_one(request, remote, queues),
            InlineOperation::Send(_) => Run::new(gate, queues, wire).perform(request),
        }
    }

    /// Performs a READ into one buffer, if it may go now. Otherwise returns the buffer, and has no effect.
    #[inline(always)]
    fn read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), MessageBuffer> {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        match qp.gate() {
            Some(gate) => gate.read_one((id, target, remote), queues),
            None => Err(target),
        }
    }

    /// As [`Self::perform`], of READs, which are done then.
    #[inline(always)]
    fn perform_reads(
        &mut self,
        reads: &mut impl Iterator<Item = Read>,
        mut done: impl FnMut(u64, MessageBuffer),
    ) -> Result<(), Option<Read>> {
        let engine = &mut *self.engine.borrow_mut();
        let Some(gate) = engine.queue_pair(self.number).0.gate() else { return Err(None) };
        let mut run = Reads::new(gate);
        for (id, mut target, remote) in reads {
            if !run.perform(&mut target, remote) {
                return Err(Some((id, target, remote)));
            }
            done(id, target);
        }
        Ok(())
    }

    #[inline(never)]
    fn push_any_read(&mut self, id: u64, target: MessageBuffer, remote: RemoteMemory) -> Result<(), RefusedRequest> {
        let mut request = Request::new(id, Operation::read(target, remote));
        self.push_any(&mut request).map_err(|error| RefusedRequest::new(error, request.operation))
    }

    /// Posts READs that may not go now.
    #[inline(never)]
    fn post_other_reads(&mut self, mut reads: impl Iterator<Item = Read>) -> Result<(), RefusedRequest> {
        let pushed = reads.try_for_each(|(id, target, remote)| self.push_any_read(id, target, remote));
        self.doorbell();
        pushed
    }

    /// Posts the rest of a list.
    #[inline(never)]
    fn post_rest<'a>(&mut self, mut rest: impl Iterator<Item = InlineRequest<'a>>) -> Result<(), PostError> {
        let pushed = rest.try_for_each(|request| self.push_inline(request));
        self.doorbell();
        pushed
    }

    /// Queues a request of any kind, and takes what it holds. A request that is refused is as before.
    #[inline(never)]
    fn push_any(&mut self, request: &mut Request<'_>) -> Result<(), PostError> {
        let engine = &mut *self.engine.borrow_mut();
        let (qp, queues) = engine.queue_pair(self.number);
        qp.check(request, &self.attributes)?;
        qp.push(request, &mut queues.pool);
        Ok(())
    }
}
