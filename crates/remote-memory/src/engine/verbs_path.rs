//! The path over verbs: a few queue pairs, with READs and WRITEs of memory that the donor exposes.

use std::cell::{Cell, RefCell};
use std::io;

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Device, Operation, ProtectionDomain, QpAddress, QpConfig, QpState, QueuePair,
    RefusedRequest, RemoteMemory, Request, Scatter, SharedQueues, Slice, Source, Status, ThreadDomain, Transport,
    VerbsError,
};
use sinew_fabric::{Armed, Clock, Descriptor, Readiness, Waker};
use sinew_mem::{AllocError, Arena, BufferPlace, Extent, MessageBuffer};

use super::cost_curve::CostCurve;
use super::error::FailureCause;
use super::path::{Done, Limits, PIECES_MAX, Path, PathJob};
use super::registration::{CacheLimits, RegistrationCache, RegistrationPolicy, RegistrationStats};

type ThreadOf<D> = <<D as Device>::Domain as ProtectionDomain>::Thread;
type CqOf<D> = <ThreadOf<D> as ThreadDomain>::Cq;
type QpOf<D> = <ThreadOf<D> as ThreadDomain>::Qp;

/// Configuration of a path over verbs.
#[derive(Clone, Copy, Debug)]
pub struct VerbsPathConfig {
    /// Queue pairs to the donor. Operations of one are carried out one after the other, those of different ones in
    /// parallel (rdmabox V-A, Figure 8).
    pub queue_pairs: usize,
    /// Operations in flight on each queue pair, at most.
    pub depth: usize,
    /// Completion queues that the queue pairs share, at least one; more than queue pairs are of no use. The path's
    /// thread polls all of them (rdmabox III-B, SCQ(M)).
    pub completion_queues: usize,
    /// Completions that a turn takes, at most, from all queues together (rdmabox IV-B, MAX_POLL_WC).
    pub poll_max: usize,
    /// Pieces of an operation, at most, unless the device's limit is lower.
    pub pieces_max: usize,
    /// Treatment of requests whose memory is not in the path's arenas.
    pub registration: RegistrationPolicy,
    /// Buffers outside the arenas that are registered at a time, at most. To make room, the least recently used one
    /// that is not in flight is evicted.
    pub registrations_max: usize,
    /// Bytes of these buffers, at most.
    pub registered_bytes_max: usize,
}

impl Default for VerbsPathConfig {
    fn default() -> Self {
        Self {
            queue_pairs: 4,
            depth: 128,
            completion_queues: 1,
            poll_max: 64,
            pieces_max: PIECES_MAX,
            registration: RegistrationPolicy::default(),
            registrations_max: 256,
            registered_bytes_max: 1 << 30,
        }
    }
}

impl VerbsPathConfig {
    /// The same, with the size from which memory is registered [measured](CostCurve::of_domain) on this domain, for
    /// programs whose requests have other memory than the arenas'. One measurement at start, of some 15 ms, will do for
    /// all paths. On a clock that stands still meanwhile, as in virtual time, the policy stays as it is.
    ///
    /// # Errors
    ///
    /// The system's error: no memory, or too little that may be locked.
    pub fn measured(self, domain: &impl ProtectionDomain, clock: &impl Clock) -> Result<Self, VerbsError> {
        let curve = CostCurve::of_domain(domain, clock, CostCurve::ROUNDS_AT_START)?;
        let registration = if curve.is_timed() { curve.policy() } else { self.registration };
        Ok(Self { registration, ..self })
    }

    fn queue_pair(&self, attributes: &sinew_fabric::verbs::Attributes) -> QpConfig {
        QpConfig {
            send_depth: self.depth.min(attributes.queue_depth_max),
            receive_depth: 1,
            inline_max: 0,
            gather_max: self.pieces_max.min(attributes.gather_max),
            ..QpConfig::new(Transport::Rc)
        }
    }
}

struct QpLane<Q> {
    qp: Q,
    in_flight: usize,
}

/// A thread's path to a donor, over reliable connections of any device.
///
/// Each chain goes to one queue pair, the one with the fewest operations in flight, as far as that has room. An
/// operation that fails breaks the whole path.
pub struct VerbsPath<D: Device> {
    lanes: Vec<QpLane<QpOf<D>>>,
    cqs: SharedQueues<CqOf<D>>,
    poll_max: usize,
    /// Keeps the thread domain alive for the queues.
    _thread: ThreadOf<D>,
    arenas: Vec<Arena>,
    remote: RemoteMemory,
    limits: Limits,
    lane_depth: usize,
    /// Queue pair that the next operation goes to.
    current: usize,
    /// Whether the current queue pair was pushed to since its last doorbell.
    has_pushed: bool,
    room: usize,
    completions: Vec<Completion>,
    /// Operations that no queue pair accepted.
    refused: Vec<Done>,
    /// Failure of an operation that was just polled.
    first_error: Option<FailureCause>,
    error: Option<FailureCause>,
    /// Length from which on a request's memory is registered, in bytes.
    registers_from: usize,
    /// Whether a registration was asked for since the last doorbell.
    uses_registrations: Cell<bool>,
    /// Operations in flight that hold registrations.
    with_registrations: usize,
    // Dropped after the queue pairs, which by then no longer use the memory.
    registrations: RefCell<RegistrationCache<D::Domain>>,
}

impl<D: Device> VerbsPath<D> {
    /// Makes queue pairs of the calling thread, which [`Self::connect`] connects. Buffers of `arenas`, which the domain
    /// has registered, are used as they are; others are registered, or copied through a buffer of the first arena.
    ///
    /// # Errors
    ///
    /// The error of the device.
    ///
    /// # Panics
    ///
    /// If `arenas` is empty.
    pub fn new(device: &D, domain: &D::Domain, arenas: &[Arena], config: &VerbsPathConfig) -> Result<Self, VerbsError> {
        assert!(!arenas.is_empty(), "a path needs memory of its own");
        let thread = domain.thread()?;
        let attributes = device.attributes();
        let qp_config = config.queue_pair(attributes);
        let lanes = config.queue_pairs.max(1);
        let queues = config.completion_queues.clamp(1, lanes);
        let cq_depth = lanes.div_ceil(queues) * (qp_config.send_depth + qp_config.receive_depth);
        let cqs = SharedQueues::new(queues, |_| thread.completion_queue(cq_depth))?;
        let lane = |nth| {
            let cq = cqs.queue_for(nth);
            let qp = thread.queue_pair(&qp_config, cq, cq)?;
            Ok(QpLane { qp, in_flight: 0 })
        };
        let lanes = (0..lanes).map(lane).collect::<Result<Vec<_>, VerbsError>>()?;
        let depth = lanes.len() * qp_config.send_depth;
        Ok(Self {
            limits: Limits { op_len_max: attributes.message_len_max, pieces_max: qp_config.gather_max, depth },
            lanes,
            cqs,
            poll_max: config.poll_max.max(1),
            _thread: thread,
            arenas: arenas.to_vec(),
            remote: RemoteMemory { address: 0, rkey: 0, len: 0 },
            lane_depth: qp_config.send_depth,
            current: 0,
            has_pushed: false,
            room: depth,
            completions: Vec::with_capacity(config.poll_max.min(depth).max(1)),
            refused: Vec::new(),
            first_error: None,
            error: None,
            registers_from: config.registration.threshold().unwrap_or(usize::MAX),
            uses_registrations: Cell::new(false),
            with_registrations: 0,
            registrations: RefCell::new(RegistrationCache::new(
                domain.clone(),
                CacheLimits { count: config.registrations_max, bytes: config.registered_bytes_max },
            )),
        })
    }

    /// Addresses of the queue pairs, to be sent to the donor.
    pub fn addresses(&self) -> Vec<QpAddress> {
        self.lanes.iter().map(|lane| lane.qp.address()).collect()
    }

    /// Connects to the donor's queue pairs, which must be as many, and to its memory.
    ///
    /// # Errors
    ///
    /// The error of the device, or [`VerbsError::Address`] if the numbers differ.
    pub fn connect(&mut self, donor: &[QpAddress], remote: RemoteMemory) -> Result<(), VerbsError> {
        if donor.len() != self.lanes.len() {
            let (theirs, ours) = (donor.len(), self.lanes.len());
            return Err(VerbsError::Address(format!("the donor has {theirs} queue pairs for our {ours}")));
        }
        self.remote = remote;
        self.lanes.iter_mut().zip(donor).try_for_each(|(lane, donor)| lane.qp.connect(Some(donor)))
    }

    /// The queue pairs, for posting beside the engine: unsignaled requests, with ids from 2^63 on.
    pub fn queue_pairs(&mut self) -> impl Iterator<Item = &mut QpOf<D>> {
        self.lanes.iter_mut().map(|lane| &mut lane.qp)
    }

    /// Completions taken from each of the path's completion queues.
    pub fn completions(&self) -> impl Iterator<Item = u64> {
        self.cqs.completions()
    }

    /// Counters of requests whose memory had to be registered.
    pub fn registration_stats(&self) -> RegistrationStats {
        self.registrations.borrow().stats
    }

    /// Number of buffers registered besides the arenas, and their bytes.
    pub fn registered(&self) -> (usize, usize) {
        self.registrations.borrow().len()
    }

    #[inline]
    fn is_own_memory(&self, is_from: impl Fn(&Arena) -> bool) -> bool {
        self.arenas.iter().any(is_from)
    }

    /// Registers a buffer for a request of `len` of its bytes, at least until the next doorbell. Returns false if the
    /// request must be copied instead.
    #[inline(never)]
    fn registers(&self, len: usize, extent: Extent, place: impl FnOnce() -> BufferPlace) -> bool {
        if len < self.registers_from || self.registers_from == usize::MAX {
            return false;
        }
        self.uses_registrations.set(true);
        self.registrations.borrow_mut().ensure_registered(extent, place)
    }

    /// Keeps the registrations of an operation's buffers until the operation has finished.
    #[inline(never)]
    fn hold_registrations(&mut self, id: u32, operation: &Operation<'_>) {
        let registrations = self.registrations.get_mut();
        match operation {
            Operation::Read { target, .. } => {
                registrations.hold(id, target.iter().map(|buffer| buffer.as_ptr().addr()));
            }
            Operation::Write { source: Source::Gather(pieces), .. } => {
                registrations.hold(id, pieces.iter().map(|piece| piece.buffer.as_ptr().addr()));
            }
            _ => {}
        }
        self.with_registrations = registrations.ops_in_flight();
    }

    #[inline(never)]
    fn release_registrations(&mut self, id: u32) {
        let registrations = self.registrations.get_mut();
        registrations.release(id);
        self.with_registrations = registrations.ops_in_flight();
    }

    /// Pushes the operation that `make_operation` makes for the donor's memory from `at` on.
    #[inline(always)]
    fn push_operation<'a>(&mut self, id: u32, at: u64, make_operation: impl FnOnce(RemoteMemory) -> Operation<'a>) {
        let Some(remote) = self.remote.at(at) else {
            let (targets, _) = make_operation(self.remote).into_held();
            return self.refuse(id, FailureCause::Status(Status::RemoteAccess), targets);
        };
        let operation = make_operation(remote);
        if self.uses_registrations.get() {
            self.hold_registrations(id, &operation);
        }
        self.push_with(id, |qp, number| qp.push(Request::new(number, operation)));
    }

    /// Has an operation pushed at a queue pair with room, with the number that comes back with its completion.
    #[inline(always)]
    fn push_with(&mut self, id: u32, push: impl FnOnce(&mut QpOf<D>, u64) -> Result<(), RefusedRequest>) {
        if self.lanes[self.current].in_flight >= self.lane_depth {
            self.choose_lane();
        }
        let lane = &mut self.lanes[self.current];
        match push(&mut lane.qp, (self.current as u64) << 32 | u64::from(id)) {
            Ok(()) => {
                lane.in_flight += 1;
                self.has_pushed = true;
                self.room -= 1;
            }
            Err(refused) => self.refuse(id, refused.error.into(), refused.buffers),
        }
    }

    #[inline(never)]
    fn refuse(&mut self, id: u32, why: FailureCause, targets: Scatter) {
        self.release_registrations(id);
        self.refused.push(Done { id, error: Some(Box::new(why)), targets });
    }

    /// Switches to the queue pair with the fewest operations in flight.
    #[inline(never)]
    fn choose_lane(&mut self) {
        if std::mem::take(&mut self.has_pushed) {
            self.lanes[self.current].qp.doorbell();
        }
        let lanes = self.lanes.iter().enumerate();
        self.current = lanes.min_by_key(|(_, lane)| lane.in_flight).map_or(0, |(index, _)| index);
    }

    /// Records how an operation failed.
    #[inline(never)]
    fn record_error(&mut self, status: Status) -> Option<Box<FailureCause>> {
        // Operations after the one that failed are flushed.
        if self.first_error.is_none() || status != Status::Flushed {
            self.first_error = Some(status.into());
        }
        Some(Box::new(status.into()))
    }

    #[inline(never)]
    fn deliver_refused(&mut self, completed: &mut impl FnMut(Done)) {
        for done in self.refused.drain(..) {
            self.first_error = self.first_error.take().or_else(|| done.error.as_deref().cloned());
            completed(done);
        }
    }

    /// Breaks the path after a failure. The other queue pairs go to error too, so that everything in flight ends soon.
    #[inline(never)]
    fn fail(&mut self, why: FailureCause) {
        if self.error.is_none() {
            self.error = Some(why);
            for lane in &mut self.lanes {
                // A queue pair that is already in error stays so.
                let _ = lane.qp.modify(QpState::Error, None);
            }
        }
    }
}

impl<D: Device> Readiness for VerbsPath<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.cqs.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if !self.refused.is_empty() {
            return Ok(Armed::Ready);
        }
        self.cqs.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.cqs.disarm()
    }
}

impl<D: Device> Path for VerbsPath<D> {
    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn takes_target(&self, target: &MessageBuffer) -> bool {
        self.is_own_memory(|arena| target.is_from(arena))
            || self.registers(target.len(), target.extent(), || target.place())
    }

    #[inline]
    fn takes_source(&self, source: &Slice) -> bool {
        self.is_own_memory(|arena| source.buffer.is_from(arena))
            || self.registers(source.len, source.buffer.extent(), || source.buffer.place())
    }

    fn stage(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arenas[0].alloc(len, len.max(1))
    }

    #[inline]
    fn room(&self) -> usize {
        self.room
    }

    #[inline]
    fn push(&mut self, id: u32, job: PathJob) {
        match job {
            PathJob::Read { at, targets } => {
                self.push_operation(id, at, |remote| Operation::Read { target: targets, remote })
            }
            PathJob::Write { at, sources } => self.push_operation(id, at, |remote| Operation::Write {
                source: Source::Gather(sources),
                remote,
                immediate: None,
            }),
        }
    }

    #[inline]
    fn push_read(&mut self, id: u32, at: u64, target: MessageBuffer) {
        match self.remote.at(at) {
            Some(remote) if !self.uses_registrations.get() => {
                self.push_with(id, |qp, number| qp.push_read(number, target, remote));
            }
            _ => self.push_operation(id, at, |remote| Operation::read(target, remote)),
        }
    }

    #[inline]
    fn ring(&mut self) {
        if std::mem::take(&mut self.has_pushed) {
            self.lanes[self.current].qp.doorbell();
        }
        if self.uses_registrations.take() {
            self.registrations.get_mut().next_round();
        }
        self.current = if self.current + 1 < self.lanes.len() { self.current + 1 } else { 0 };
    }

    #[inline]
    fn poll(&mut self, over: &mut impl FnMut(Done)) -> bool {
        if self.room == self.limits.depth && self.refused.is_empty() {
            return false;
        }
        let count = self.cqs.poll(&mut self.completions, self.poll_max);
        let busy = count > 0 || !self.refused.is_empty();
        // Their order does not matter.
        while let Some(Completion { id, status, buffers, .. }) = self.completions.pop() {
            if id >> 63 != 0 {
                continue;
            }
            self.room += 1;
            self.lanes[(id >> 32) as usize].in_flight -= 1;
            if self.with_registrations > 0 {
                self.release_registrations(id as u32);
            }
            let error = if status.is_success() { None } else { self.record_error(status) };
            over(Done { id: id as u32, error, targets: buffers });
        }
        if !self.refused.is_empty() {
            self.deliver_refused(over);
        }
        if let Some(why) = self.first_error.take() {
            self.fail(why);
        }
        busy
    }

    #[inline]
    fn error(&self) -> Option<&FailureCause> {
        self.error.as_ref()
    }

    fn close(&mut self) {
        self.fail(FailureCause::Dropped);
    }

    fn waker(&self) -> Waker {
        self.cqs.waker()
    }
}

/// A donor's side of a [`VerbsPath`]: queue pairs that need no attention.
pub struct DonorQueuePairs<D: Device> {
    qps: Vec<QpOf<D>>,
    _cq: CqOf<D>,
    _thread: ThreadOf<D>,
}

impl<D: Device> DonorQueuePairs<D> {
    /// Makes queue pairs of the calling thread, connected to these of a path.
    ///
    /// # Errors
    ///
    /// The error of the device.
    pub fn new(device: &D, domain: &D::Domain, path: &[QpAddress]) -> Result<Self, VerbsError> {
        let thread = domain.thread()?;
        let config = VerbsPathConfig { depth: 1, ..VerbsPathConfig::default() }.queue_pair(device.attributes());
        let cq = thread.completion_queue(2 * path.len().max(1))?;
        let connected = |address: &QpAddress| {
            let mut qp = thread.queue_pair(&config, &cq, &cq)?;
            qp.connect(Some(address))?;
            Ok(qp)
        };
        let qps = path.iter().map(connected).collect::<Result<_, VerbsError>>()?;
        Ok(Self { qps, _cq: cq, _thread: thread })
    }

    /// Addresses to be sent to the path, with the [memory](sinew_fabric::verbs::Exposed::remote) that it may use.
    pub fn addresses(&self) -> Vec<QpAddress> {
        self.qps.iter().map(QueuePair::address).collect()
    }
}
