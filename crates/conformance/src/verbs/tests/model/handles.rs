//! The model as its users see it: the traits of verbs, of which each call takes the world's lock.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use sinew_fabric::readiness::{Alarm, Armed, Descriptor, Readiness};
use sinew_fabric::verbs::{
    Access, Attributes, Completion, CompletionQueue, Destination, Device, Exposed, Operation, PostError,
    ProtectionDomain, QpAddress, QpConfig, QpNumber, QpState, QueuePair, RefusedReceive, RefusedRequest, Registration,
    Registry, RemoteMemory, Request, Scatter, Source, Status, ThreadDomain, Transport, Verb, VerbsError, check_receive,
};
use sinew_fabric::{WakeTarget, Waker};
use sinew_mem::{Arena, BufferPlace, Extent, Frozen, MessageBuffer, SharedMemory};

use super::world::{HANDLE, Queue, Region};
use super::{Flaw, Model};

/// First byte of the device's part of an address; the queue pair's epoch follows.
const MARK: u8 = b'M';

impl Device for Model {
    type Domain = ModelDomain;

    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn protection_domain(&self) -> Result<ModelDomain, VerbsError> {
        let number = self.state().number();
        Ok(ModelDomain { model: self.clone(), number, registered: Arc::default() })
    }
}

#[derive(Clone)]
pub struct ModelDomain {
    model: Model,
    number: u64,
    registered: Arc<Registry<()>>,
}

fn no_memory(source: std::io::Error) -> VerbsError {
    VerbsError::System { doing: "mapping memory".into(), source, remedy: None }
}

impl ProtectionDomain for ModelDomain {
    type Exposed = ModelMemory;
    type Thread = ModelThread;
    type Registration = Registration<()>;

    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        let arena = Arena::private(bytes).map_err(no_memory)?;
        self.model.state().arenas.push((self.number, arena.clone()));
        Ok(arena)
    }

    fn expose(&self, len: usize, access: Access) -> Result<ModelMemory, VerbsError> {
        let memory = SharedMemory::private(len).map_err(no_memory)?;
        if self.model.has(Flaw::ExposesWhatWasThere) {
            memory.write(0, &vec![7; len]).expect("the memory is as long");
        }
        let mut state = self.model.state();
        let rkey = (state.number() as u32) << 4 | 0xA;
        state.regions.insert(rkey, Region { memory: memory.clone(), domain: self.number, access });
        let remote = RemoteMemory { address: memory.address() as u64, rkey, len: len as u64 };
        Ok(ModelMemory { memory, remote, access, model: self.model.clone() })
    }

    fn register(&self, place: BufferPlace) -> Result<Registration<()>, VerbsError> {
        let registration = self.registered.register(place, |_| Ok(()))?;
        if self.model.has(Flaw::StaysRegistered) {
            std::mem::forget(registration.clone());
        }
        Ok(registration)
    }

    fn thread(&self) -> Result<ModelThread, VerbsError> {
        Ok(ModelThread { domain: self.clone(), _not_send: Rc::new(()) })
    }
}

pub struct ModelMemory {
    memory: SharedMemory,
    remote: RemoteMemory,
    access: Access,
    model: Model,
}

impl Deref for ModelMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

impl Exposed for ModelMemory {
    fn remote(&self) -> RemoteMemory {
        self.remote
    }

    fn access(&self) -> Access {
        self.access
    }

    fn deregister(self) -> Option<SharedMemory> {
        Some(self.memory.clone())
    }
}

impl Drop for ModelMemory {
    fn drop(&mut self) {
        if !self.model.has(Flaw::StaysExposed) {
            self.model.state().regions.remove(&self.remote.rkey);
        }
    }
}

pub struct ModelThread {
    domain: ModelDomain,
    /// Not `Send`, as with real fabrics.
    _not_send: Rc<()>,
}

impl ModelThread {
    fn model(&self) -> &Model {
        &self.domain.model
    }
}

impl ThreadDomain for ModelThread {
    type Cq = ModelCq;
    type Qp = ModelQp;

    fn completion_queue(&self, depth: usize) -> Result<ModelCq, VerbsError> {
        let mut state = self.model().state();
        let number = state.number();
        let alarm = Alarm::new().expect("a descriptor");
        let queue =
            Queue { ready: Default::default(), depth, reserved: 0, users: 1, is_woken: false, waker: alarm.waker() };
        state.queues.insert(number, queue);
        Ok(ModelCq { model: self.model().clone(), number, alarm, _not_send: Rc::new(()) })
    }

    fn queue_pair(&self, config: &QpConfig, send: &ModelCq, receive: &ModelCq) -> Result<ModelQp, VerbsError> {
        let attributes = self.model().attributes();
        for (what, asked, limit) in [
            ("requests", config.send_depth, attributes.queue_depth_max),
            ("receives", config.receive_depth, attributes.queue_depth_max),
            ("bytes inline", config.inline_max, attributes.inline_max),
            ("pieces", config.gather_max, attributes.gather_max),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        let overbooks = self.model().has(Flaw::Overbooks);
        let mut state = self.model().state();
        let asked = [(send.number, config.send_depth), (receive.number, config.receive_depth)];
        let mut taken = Vec::new();
        for (number, depth) in asked {
            let queue = state.queues.get_mut(&number).expect("a queue lives as long as its handle");
            if queue.reserved + depth > queue.depth && !overbooks {
                let refused =
                    VerbsError::Limit { what: "completions", asked: queue.reserved + depth, limit: queue.depth };
                for (number, depth) in taken {
                    state.queues.get_mut(&number).expect("a queue lives as long as its handle").reserved -= depth;
                }
                return Err(refused);
            }
            queue.reserved += depth;
            taken.push((number, depth));
        }
        for (number, _) in asked {
            state.queues.get_mut(&number).expect("a queue lives as long as its handle").users += 1;
        }
        let number = state.new_qp(config, self.domain.number, send.number, receive.number);
        Ok(ModelQp { domain: self.domain.clone(), config: *config, number, _not_send: Rc::new(()) })
    }

    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError> {
        let is_good = to.transport == Transport::Ud && to.port.len() == 5 && to.port[0] == MARK;
        if !is_good && !self.model().has(Flaw::FindsAnybody) {
            return Err(VerbsError::Address("it is not one of a UD queue pair of the model".into()));
        }
        Ok(Destination { handle: HANDLE, number: to.number, qkey: to.qkey })
    }
}

pub struct ModelCq {
    model: Model,
    number: u64,
    alarm: Alarm,
    _not_send: Rc<()>,
}

impl Drop for ModelCq {
    fn drop(&mut self) {
        self.model.state().leave_queue(self.number);
    }
}

impl Readiness for ModelCq {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.alarm.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let mut state = self.model.state();
        while state.progress() {
            self.model.0.changed.notify_all();
        }
        let queue = state.queues.get_mut(&self.number).expect("a queue lives as long as its handle");
        let is_over = std::mem::take(&mut queue.is_woken) || !queue.ready.is_empty();
        let is_set = self.alarm.set();
        if self.model.has(Flaw::ArmsWithoutALook) {
            return Ok(Armed::Sleep { until_ns: None });
        }
        if is_over || !is_set {
            self.alarm.clear();
            return Ok(Armed::Ready);
        }
        // Retries are counted only when somebody steps the world, so the sleep is short.
        Ok(Armed::Sleep { until_ns: state.has_posted().then_some(now_ns + 1_000_000) })
    }

    fn disarm(&mut self) -> bool {
        let mut state = self.model.state();
        let queue = state.queues.get_mut(&self.number).expect("a queue lives as long as its handle");
        queue.is_woken = false;
        !self.model.has(Flaw::StaysReadable) && self.alarm.clear()
    }
}

impl CompletionQueue for ModelCq {
    fn poll(&mut self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let mut state = self.model.state();
        if state.progress() {
            self.model.0.changed.notify_all();
        }
        let max = if self.model.has(Flaw::PollsTooMuch) { max + 1 } else { max };
        let mut count = 0;
        while count < max {
            let queue = state.queues.get_mut(&self.number).expect("a queue lives as long as its handle");
            let Some(ready) = queue.ready.pop_front() else { break };
            state.polled(&ready);
            completions.push(ready.completion);
            count += 1;
        }
        count
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        let start = Instant::now();
        let timeout = timeout_ns.map(Duration::from_nanos);
        let timeout = timeout.map(|it| if self.model.has(Flaw::Oversleeps) { it + Duration::from_secs(1) } else { it });
        let sleeps_on = self.model.has(Flaw::SleepsOn) && timeout.is_some_and(|timeout| timeout.as_millis() > 100);
        let mut state = self.model.state();
        if self.model.has(Flaw::LosesWakes) {
            state.queues.get_mut(&self.number).expect("a queue lives as long as its handle").is_woken = false;
        }
        loop {
            let did_something = state.progress();
            let queue = state.queues.get_mut(&self.number).expect("a queue lives as long as its handle");
            let is_over = std::mem::take(&mut queue.is_woken) || (!queue.ready.is_empty() && !sleeps_on);
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            if is_over || left == Some(Duration::ZERO) {
                return Ok(());
            }
            if did_something {
                self.model.0.changed.notify_all();
                continue;
            }
            // Retries are counted only when somebody steps the world, so the sleep is short.
            let nap = left.unwrap_or(Duration::MAX).min(Duration::from_millis(1));
            state = self.model.0.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn waker(&self) -> Waker {
        let target: Arc<dyn WakeTarget> = Arc::new(ModelWaker { model: self.model.clone(), number: self.number });
        Waker::new(target)
    }
}

struct ModelWaker {
    model: Model,
    number: u64,
}

impl WakeTarget for ModelWaker {
    fn wake(&self) {
        if let Some(queue) = self.model.state().queues.get_mut(&self.number) {
            queue.is_woken = !self.model.has(Flaw::IgnoresWakes);
            if queue.is_woken {
                queue.waker.wake();
            }
        }
        self.model.0.changed.notify_all();
    }
}

pub struct ModelQp {
    domain: ModelDomain,
    config: QpConfig,
    number: u32,
    _not_send: Rc<()>,
}

impl ModelQp {
    fn model(&self) -> &Model {
        &self.domain.model
    }

    fn is_foreign(&self, extent: Extent, is_from: impl Fn(&Arena) -> bool) -> bool {
        if self.domain.registered.has(extent) && !self.model().has(Flaw::KnowsArenasAlone) {
            return false;
        }
        let state = self.model().state();
        let ours = state.arenas.iter().filter(|(domain, _)| *domain == self.domain.number);
        !ours.into_iter().any(|(_, arena)| is_from(arena)) && !self.model().has(Flaw::TakesForeignBuffers)
    }

    fn has_foreign(&self, operation: &Operation<'_>) -> bool {
        let foreign_source = |buffer: &Frozen| self.is_foreign(buffer.extent(), |arena| buffer.is_from(arena));
        let foreign = |buffer: &MessageBuffer| self.is_foreign(buffer.extent(), |arena| buffer.is_from(arena));
        match operation {
            Operation::Send { source: Source::Gather(pieces), .. }
            | Operation::Write { source: Source::Gather(pieces), .. } => {
                pieces.iter().any(|piece| foreign_source(&piece.buffer))
            }
            Operation::Send { .. } | Operation::Write { .. } => false,
            Operation::Read { target, .. } => target.iter().any(foreign),
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                self.is_foreign(range.extent(), |arena| range.is_from(arena))
            }
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => foreign(target),
        }
    }

    fn check(&self, request: &Request<'_>) -> Result<(), PostError> {
        let flaw = self.model().0.options.flaw;
        let (state, held) = {
            let mut world = self.model().state();
            let qp = world.qp(self.number);
            (qp.state, qp.sends_held)
        };
        let checked = request.check(&self.config, state, self.model().attributes());
        let verb = request.operation.verb();
        let is_forgiven = match checked {
            Ok(()) => true,
            Err(PostError::NotOnTransport(Verb::Read, Transport::Uc)) => flaw == Some(Flaw::TakesReadsOnUc),
            Err(PostError::InlineTooLong { .. }) => flaw == Some(Flaw::TakesMoreInline),
            Err(PostError::TooManyPieces { .. }) => flaw == Some(Flaw::TakesMorePieces),
            Err(PostError::BadSlice) => flaw == Some(Flaw::TakesBadSlices),
            Err(PostError::Atomic) => flaw == Some(Flaw::TakesMisalignedAtomics),
            Err(PostError::State(_)) => flaw == Some(Flaw::TakesEverythingAlways),
            Err(PostError::TooLong { .. }) => flaw == Some(Flaw::SendsLongDatagrams),
            Err(PostError::Destination) => flaw == Some(Flaw::NeedsNoDestination) && verb == Verb::Send,
            Err(_) => false,
        };
        if !is_forgiven {
            return checked;
        }
        if self.has_foreign(&request.operation) {
            return Err(PostError::ForeignBuffer);
        }
        let depth = self.config.send_depth + usize::from(flaw == Some(Flaw::TakesOneMore));
        if held >= depth { Err(PostError::QueueFull(self.config.send_depth)) } else { Ok(()) }
    }
}

impl Drop for ModelQp {
    fn drop(&mut self) {
        self.model().state().drop_qp(self.number);
        self.model().0.changed.notify_all();
    }
}

impl QueuePair for ModelQp {
    fn number(&self) -> QpNumber {
        QpNumber(self.number)
    }

    fn transport(&self) -> Transport {
        self.config.transport
    }

    fn state(&self) -> QpState {
        self.model().state().qp(self.number).state
    }

    fn address(&self) -> QpAddress {
        let epoch = self.model().state().qp(self.number).epoch;
        let mut port = ArrayVec::new();
        port.push(MARK);
        port.extend(epoch.to_le_bytes());
        QpAddress {
            number: QpNumber(self.number),
            transport: self.config.transport,
            first_packet: 0,
            qkey: self.config.qkey,
            mtu: self.model().attributes().mtu as u32,
            port,
        }
    }

    fn modify(&mut self, next: QpState, remote: Option<&QpAddress>) -> Result<(), VerbsError> {
        let lenient = self.model().has(Flaw::ConnectsToAnything);
        let mut state = self.model().state();
        let qp = state.qp(self.number);
        let from = qp.state;
        if !from.can_become(next) && !self.model().has(Flaw::GoesAnywhere) {
            return Err(VerbsError::Transition { from, to: next });
        }
        match next {
            QpState::ReadyToReceive if self.config.transport.is_connected() => {
                let parse = |remote: &QpAddress| {
                    let epoch = remote.port.get(1..5)?.first_chunk()?;
                    let is_good = remote.transport == self.config.transport && remote.port[0] == MARK;
                    is_good.then_some((remote.number.0, u32::from_le_bytes(*epoch)))
                };
                let peer = remote.and_then(parse).or(lenient.then_some((0, 0)));
                qp.peer = Some(peer.ok_or_else(|| VerbsError::Address("it is not one of a peer".into()))?);
                qp.state = next;
            }
            QpState::Error => state.fail(self.number, Status::Flushed),
            QpState::Reset => state.reset(self.number),
            _ => qp.state = next,
        }
        self.model().0.changed.notify_all();
        Ok(())
    }

    fn post_receive(&mut self, id: u64, buffers: Scatter) -> Result<(), RefusedReceive> {
        let (state, held) = {
            let mut world = self.model().state();
            let qp = world.qp(self.number);
            (qp.state, qp.receives_held)
        };
        let depth = self.config.receive_depth;
        let error = match check_receive(&buffers, &self.config, state) {
            Err(PostError::State(_)) if self.model().has(Flaw::TakesEverythingAlways) => None,
            Err(error) => Some(error),
            Ok(()) if buffers.iter().any(|buffer| self.is_foreign(buffer.extent(), |arena| buffer.is_from(arena))) => {
                Some(PostError::ForeignBuffer)
            }
            Ok(()) => (held >= depth).then_some(PostError::QueueFull(depth)),
        };
        if let Some(error) = error {
            return Err(RefusedReceive { error, buffers });
        }
        self.model().state().post_receive(self.number, id, buffers);
        self.model().0.changed.notify_all();
        Ok(())
    }

    fn push(&mut self, request: Request<'_>) -> Result<(), RefusedRequest> {
        if let Err(error) = self.check(&request) {
            return Err(RefusedRequest::new(error, request.operation));
        }
        self.model().state().push(self.number, request);
        Ok(())
    }

    fn doorbell(&mut self) {
        self.model().state().doorbell(self.number);
        self.model().0.changed.notify_all();
    }
}
