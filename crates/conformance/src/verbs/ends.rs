//! Building blocks of the facts: ends of connections, pairs of them, and patience.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Instant;

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Destination, Device, GATHER_MAX, Operation, ProtectionDomain, QpConfig,
    QpState, QueuePair, RemoteMemory, Request, Scatter, Source, Status, ThreadDomain, Transport, Verb,
};
use sinew_mem::{Arena, Frozen, MessageBuffer};

use super::{Expectations, Fixture, Promise};
pub(super) use crate::pattern;

pub(super) type Domain<D> = <D as Device>::Domain;
pub(super) type Thread<D> = <Domain<D> as ProtectionDomain>::Thread;
pub(super) type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
pub(super) type Qp<D> = <Thread<D> as ThreadDomain>::Qp;
pub(super) type Memory<D> = <Domain<D> as ProtectionDomain>::Exposed;

/// The most requests, and the most receives, of a queue pair.
pub(super) const DEPTH: usize = 16;
/// Depth of a completion queue.
const COMPLETIONS: usize = 64;
/// The most completions that one poll takes.
const POLL_MAX: usize = 16;
/// Length of an arena for messages, in bytes.
pub(super) const ARENA: usize = 2 << 20;
/// Length of an arena for long messages, in bytes.
const LARGE_ARENA: usize = 24 << 20;
/// Length of the longest message, in bytes.
pub(super) const LONGEST: usize = 1 << 20;
/// Length of one sleep in nanoseconds, while waiting for something that may wake another queue.
const NAP_NS: u64 = 1_000_000;
/// Time in nanoseconds without a completion after which none is expected.
const QUIET_NS: u64 = 15_000_000;
/// Byte that buffers are filled with.
pub(super) const FILL: u8 = 0xEE;

/// A clock, and the time that something may take by it.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub now_ns: &'a dyn Fn() -> u64,
    pub patience_ns: u64,
}

/// A queue pair, its completion queues, and all that they need.
pub(super) struct End<D: Device> {
    pub qp: Qp<D>,
    pub sends: Cq<D>,
    pub receives: Cq<D>,
    /// Completions polled from `sends` and not yet looked at.
    pub sent: VecDeque<Completion>,
    /// Completions polled from `receives` and not yet looked at.
    pub received: VecDeque<Completion>,
    /// Messages that were shown, with their immediates; `None` if polls take completions instead.
    pub shown: Option<Vec<(Vec<u8>, Option<u32>)>>,
    pub config: QpConfig,
    pub thread: Thread<D>,
    pub arena: Arena,
    pub domain: Domain<D>,
    pub device: D,
    turn: usize,
}

/// Configuration of every queue pair, unless a fact needs another.
pub(super) fn config<D: Device>(device: &D, transport: Transport) -> QpConfig {
    let attributes = device.attributes();
    QpConfig {
        send_depth: DEPTH,
        receive_depth: DEPTH,
        inline_max: attributes.inline_max.min(64),
        gather_max: attributes.gather_max.min(GATHER_MAX),
        ..QpConfig::new(transport)
    }
}

/// All access that the device can give to others.
pub(super) fn all_access<D: Device>(device: &D) -> Access {
    Access { atomic: device.attributes().atomics, ..Access::ALL }
}

impl<D: Device> End<D> {
    pub fn new(device: D, config: &QpConfig) -> Self {
        Self::with_arena(device, config, ARENA)
    }

    fn with_arena(device: D, config: &QpConfig, bytes: usize) -> Self {
        let domain = device.protection_domain().expect("a protection domain");
        let arena = domain.arena(bytes).expect("an arena");
        Self::in_domain(device, domain, arena, config)
    }

    pub fn in_domain(device: D, domain: Domain<D>, arena: Arena, config: &QpConfig) -> Self {
        let thread = domain.thread().expect("a thread's queues");
        let sends = thread.completion_queue(COMPLETIONS).expect("a completion queue");
        let receives = thread.completion_queue(COMPLETIONS).expect("a completion queue");
        let qp = thread.queue_pair(config, &sends, &receives).expect("a queue pair");
        let (sent, received) = (VecDeque::new(), VecDeque::new());
        let config = *config;
        Self { qp, sends, receives, sent, received, shown: None, config, thread, arena, domain, device, turn: 0 }
    }

    pub fn transport(&self) -> Transport {
        self.config.transport
    }

    /// Whether the queue pair can perform this verb.
    pub fn allows(&self, verb: Verb) -> bool {
        let atomic = matches!(verb, Verb::CompareSwap | Verb::FetchAdd);
        self.transport().allows(verb) && (!atomic || self.device.attributes().atomics)
    }

    /// A buffer of `len` bytes, filled with [`FILL`].
    pub fn buffer(&self, len: usize) -> MessageBuffer {
        let mut buffer = self.arena.alloc(len, len.max(1)).expect("the arena has room");
        buffer[..].fill(FILL);
        buffer
    }

    /// A share of a buffer with these bytes.
    pub fn frozen(&self, bytes: &[u8]) -> Frozen {
        let mut buffer = self.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer.freeze()
    }

    /// Buffers of these lengths, filled with [`FILL`].
    pub fn buffers(&self, lens: &[usize]) -> Scatter {
        lens.iter().map(|&len| self.buffer(len)).collect()
    }

    /// Memory that peers may access in every way.
    pub fn expose(&self, len: usize) -> Memory<D> {
        self.domain.expose(len, all_access(&self.device)).expect("memory to expose")
    }

    pub fn receive(&mut self, id: u64, len: usize) {
        let buffer = self.buffer(len);
        self.qp.post_buffer(id, buffer).expect("a receive is taken");
    }

    pub fn push(&mut self, request: Request<'_>) {
        self.qp.push(request).expect("a request is taken");
    }

    pub fn post(&mut self, request: Request<'_>) {
        self.qp.post(request).expect("a request is taken");
    }

    /// Polls both queues. Returns the number of completions.
    pub fn poll(&mut self) -> usize {
        let mut completions = Vec::new();
        let sends = self.sends.poll(&mut completions, POLL_MAX);
        assert!(sends == completions.len() && sends <= POLL_MAX, "a poll says how many completions it added");
        self.sent.extend(completions.drain(..));
        let receives = match &mut self.shown {
            Some(shown) => {
                let before = shown.len();
                let polled = self.receives.poll_messages(&mut self.qp, &mut completions, POLL_MAX, |message| {
                    shown.push((message.bytes.to_vec(), message.immediate));
                });
                let count = polled.expect("receives are posted again");
                assert_eq!(count, shown.len() - before, "a poll says how many messages it showed");
                count + completions.len()
            }
            None => {
                let count = self.receives.poll(&mut completions, POLL_MAX);
                assert_eq!(count, completions.len(), "a poll says how many completions it added");
                count
            }
        };
        assert!(receives <= POLL_MAX, "a poll takes no more than it was asked for");
        self.received.extend(completions);
        sends + receives
    }

    /// Sleeps briefly, on one queue or the other.
    fn nap(&mut self) {
        self.turn += 1;
        let queue = if self.turn.is_multiple_of(2) { &mut self.sends } else { &mut self.receives };
        queue.wait(Some(NAP_NS)).expect("waiting works");
    }
}

/// Waits until `done` returns something; `None` when patience runs out first.
pub(super) fn poll_within<D: Device, T>(
    watch: Watch<'_>,
    ends: &mut [&mut End<D>],
    mut done: impl FnMut(&mut [&mut End<D>]) -> Option<T>,
) -> Option<T> {
    let deadline_ns = (watch.now_ns)().saturating_add(watch.patience_ns);
    let mut turn = 0;
    loop {
        let is_late = (watch.now_ns)() >= deadline_ns;
        let progress: usize = ends.iter_mut().map(|end| end.poll()).sum();
        if let Some(result) = done(ends) {
            return Some(result);
        }
        if is_late {
            return None;
        }
        if progress == 0 {
            let count = ends.len();
            ends[turn % count].nap();
            turn += 1;
        }
    }
}

/// Waits until `done` returns something.
pub(super) fn eventually<D: Device, T>(
    watch: Watch<'_>,
    ends: &mut [&mut End<D>],
    what: &str,
    done: impl FnMut(&mut [&mut End<D>]) -> Option<T>,
) -> T {
    poll_within(watch, ends, done).unwrap_or_else(|| panic!("{what}: not within {} ms", watch.patience_ns / 1_000_000))
}

/// Connects two queue pairs or, if they are UD, makes each ready.
pub(super) fn connect<D: Device>(a: &mut End<D>, b: &mut End<D>) {
    let (of_a, of_b) = (a.qp.address(), b.qp.address());
    let is_connected = a.transport().is_connected();
    a.qp.connect(is_connected.then_some(&of_b)).expect("a connection");
    b.qp.connect(is_connected.then_some(&of_a)).expect("a connection");
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::ReadyToSend, QpState::ReadyToSend));
}

/// The destination of datagrams from `from` to `to`; `None` on connected transports.
pub(super) fn destination<D: Device>(from: &End<D>, to: &End<D>) -> Option<Destination> {
    let datagrams = to.transport() == Transport::Ud;
    datagrams.then(|| from.thread.destination(&to.qp.address()).expect("a way to a living queue pair"))
}

/// Two connected ends.
pub(super) struct Pair<'f, F: Fixture> {
    pub fixture: &'f F,
    pub near: End<F::Device>,
    pub far: End<F::Device>,
    /// Destination from near to far, if datagrams need one.
    pub to: Option<Destination>,
}

impl<'f, F: Fixture> Pair<'f, F> {
    pub fn new(fixture: &'f F, transport: Transport) -> Self {
        Self::with(fixture, transport, |config| config)
    }

    /// A pair whose near queue pair is configured differently.
    pub fn with(fixture: &'f F, transport: Transport, near: impl FnOnce(QpConfig) -> QpConfig) -> Self {
        Self::connected(fixture, transport, near, ARENA)
    }

    /// A pair with room for the longest messages.
    pub fn large(fixture: &'f F, transport: Transport) -> Self {
        Self::connected(fixture, transport, |config| config, LARGE_ARENA)
    }

    fn connected(fixture: &'f F, transport: Transport, near: impl FnOnce(QpConfig) -> QpConfig, arena: usize) -> Self {
        let devices = (fixture.device(), fixture.device());
        let near_config = near(config(&devices.0, transport));
        let far_config = config(&devices.1, transport);
        let near = End::with_arena(devices.0, &near_config, arena);
        let far = End::with_arena(devices.1, &far_config, arena);
        Self::of(fixture, near, far)
    }

    /// Connects two ends.
    pub fn of(fixture: &'f F, mut near: End<F::Device>, mut far: End<F::Device>) -> Self {
        connect(&mut near, &mut far);
        let to = destination(&near, &far);
        Self { fixture, near, far, to }
    }

    pub fn transport(&self) -> Transport {
        self.near.transport()
    }

    /// Whether messages can be lost.
    pub fn is_lossy(&self) -> bool {
        self.transport() != Transport::Rc && self.fixture.expectations().lossless != Promise::Kept
    }

    /// The interesting lengths of messages, within the limits of both ends.
    pub fn message_lengths(&self) -> Vec<usize> {
        let attributes = self.near.device.attributes();
        let mtu = attributes.mtu.min(self.far.device.attributes().mtu);
        let limit = if self.transport().is_connected() { attributes.message_len_max.min(LONGEST) } else { mtu };
        let mut lens = vec![0, 1, 7, 8, 9, 31, 64, 255, 4096, mtu - 1, mtu, mtu + 1, LONGEST];
        lens.retain(|&len| len <= limit);
        lens.sort_unstable();
        lens.dedup();
        lens
    }

    /// A SEND from near to far.
    pub fn send<'a>(&self, source: Source<'a>, immediate: Option<u32>) -> Operation<'a> {
        Operation::Send { source, immediate, to: self.to }
    }

    pub fn eventually<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let patience_ns = self.fixture.expectations().patience_ns;
        let done = self.poll_within(patience_ns, &mut done);
        done.unwrap_or_else(|| panic!("{:?}: {what}: not within {} ms", self.transport(), patience_ns / 1_000_000))
    }

    fn poll_within<T>(&mut self, patience_ns: u64, mut done: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let deadline_ns = self.fixture.now_ns().saturating_add(patience_ns);
        let mut turn = 0;
        loop {
            let is_late = self.fixture.now_ns() >= deadline_ns;
            let progress = self.near.poll() + self.far.poll();
            if let Some(result) = done(self) {
                return Some(result);
            }
            if is_late {
                return None;
            }
            if progress == 0 {
                turn += 1;
                if turn % 2 == 0 { self.near.nap() } else { self.far.nap() }
            }
        }
    }

    /// Near's next completion of a request.
    pub fn next_sent(&mut self, what: &str) -> Completion {
        self.eventually(what, |pair| pair.near.sent.pop_front())
    }

    /// Near's next completion of a request, which must be this one, and successful.
    pub fn expect_success(&mut self, id: u64) -> Completion {
        let completion = self.next_sent("a request is over");
        assert_eq!((completion.id, completion.status), (id, Status::Success), "{completion:?}");
        assert_eq!(completion.qp, self.near.qp.number());
        completion
    }

    /// Far's next completion of a receive.
    pub fn next_received(&mut self, what: &str) -> Completion {
        self.eventually(what, |pair| pair.far.received.pop_front())
    }

    /// Far's next completion of a receive, if it comes.
    pub fn try_next_received(&mut self) -> Option<Completion> {
        let patience_ns = self.fixture.expectations().patience_ns / 100;
        self.poll_within(patience_ns, |pair| pair.far.received.pop_front())
    }

    /// Asserts that nothing completes for a while.
    pub fn assert_quiet(&mut self, what: &str) {
        let nothing = |end: &End<F::Device>| end.sent.is_empty() && end.received.is_empty();
        let broken = self.poll_within(QUIET_NS, |pair| (!nothing(&pair.near) || !nothing(&pair.far)).then_some(()));
        let (near, far) = (&self.near, &self.far);
        let completions = [&near.sent, &near.received, &far.sent, &far.received];
        assert!(broken.is_none(), "{:?}: {what}, and yet there is {completions:?}", self.transport());
    }

    /// Lets a while pass.
    pub fn wait_briefly(&mut self) {
        self.poll_within(QUIET_NS, |_| None::<()>);
    }

    /// Posts one request, and returns the receive that it completes at far, with a buffer of `capacity` bytes. If the
    /// message can be lost, it is sent again.
    pub fn transfer<'x>(&mut self, capacity: usize, operation: impl FnMut(&Self) -> Operation<'x>) -> Completion {
        const ID: u64 = 0x7AB5_0000_0000_0001;
        self.far.receive(ID, capacity);
        self.deliver(ID, operation)
    }

    /// As [`Self::transfer`], with the receive of this identifier, which must be the next.
    pub fn deliver<'x>(&mut self, id: u64, operation: impl FnMut(&Self) -> Operation<'x>) -> Completion {
        let received = self.deliver_any(operation);
        assert_eq!(received.id, id, "{received:?}");
        received
    }

    /// As [`Self::deliver`], with a receive of any identifier.
    pub fn deliver_any<'x>(&mut self, mut operation: impl FnMut(&Self) -> Operation<'x>) -> Completion {
        const ID: u64 = 0x7AB5_0000_0000_0002;
        let attempts = if self.is_lossy() { 100 } else { 1 };
        for _ in 0..attempts {
            let operation = operation(self);
            self.near.post(Request::new(ID, operation));
            self.expect_success(ID);
            let received = if self.is_lossy() {
                self.try_next_received()
            } else {
                Some(self.next_received("a message arrives for which a receive is posted"))
            };
            if let Some(received) = received {
                assert_eq!(received.status, Status::Success, "{received:?}");
                assert_eq!(received.qp, self.far.qp.number());
                return received;
            }
        }
        panic!("{:?}: of {attempts} messages none arrived", self.transport());
    }

    /// Asserts that the pair works: a message arrives in each way that there is.
    pub fn assert_works(&mut self, number: usize) {
        let bytes = pattern(number, 32);
        let share = self.near.frozen(&bytes);
        let received = self.transfer(64, |pair| pair.send(share.clone().into(), Some(number as u32)));
        assert_message(&received, &bytes, Some(number as u32));
        if self.transport() == Transport::Rc {
            let memory = self.far.expose(64);
            assert_eq!(self.write_and_wait(sinew_fabric::verbs::Exposed::remote(&memory), &bytes), Status::Success);
            assert_eq!(read(&memory, 0, 32), bytes);
        }
    }

    /// Performs a WRITE, and returns its status.
    pub fn write_and_wait(&mut self, remote: RemoteMemory, bytes: &[u8]) -> Status {
        let source = self.near.frozen(bytes).into();
        self.near.post(Request::new(77, Operation::Write { source, remote, immediate: None }));
        self.next_sent("a WRITE is over").status
    }
}

/// Asserts that a message arrived as it was sent.
pub(super) fn assert_message(completion: &Completion, bytes: &[u8], immediate: Option<u32>) {
    assert_eq!((completion.opcode, completion.status), (sinew_fabric::verbs::Opcode::Receive, Status::Success));
    assert_eq!((completion.len, completion.immediate), (bytes.len(), immediate), "length and immediate of a message");
    let got = joined(&completion.buffers);
    assert_eq!(got.len(), bytes.len(), "a receive's buffers are shortened to what arrived");
    assert!(got == bytes, "a message of {} bytes arrived with other contents", bytes.len());
}

/// The bytes of all buffers.
pub(super) fn joined(buffers: &Scatter) -> Vec<u8> {
    buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

/// Bytes of exposed memory.
pub(super) fn read(memory: &sinew_mem::SharedMemory, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).expect("inside the memory");
    bytes
}

/// The word in an atomic's target.
pub(super) fn word(completion: &Completion) -> u64 {
    u64::from_ne_bytes(completion.buffers[0][..8].try_into().expect("a target of 8 bytes"))
}

/// Asserts that a failure has the status that the specification gives it.
pub(super) fn assert_failed<F: Fixture>(fixture: &F, completion: &Completion, status: Status) {
    let Expectations { standard_statuses, .. } = fixture.expectations();
    if standard_statuses == Promise::Kept {
        assert_eq!(completion.status, status, "{completion:?}");
    } else {
        assert!(!completion.status.is_success(), "{completion:?}");
    }
}

/// State shared by the ends that several threads use.
pub(super) struct Server<D: Device> {
    pub device: D,
    pub domain: Domain<D>,
    arena: Arena,
}

impl<D: Device> Server<D> {
    pub fn new(device: D) -> Self {
        let domain = device.protection_domain().expect("a protection domain");
        let arena = domain.arena(ARENA).expect("an arena");
        Self { device, domain, arena }
    }

    /// Runs `work` in `count` threads, each with an end that is connected to one of ours. Meanwhile it polls our ends
    /// and keeps calling `meanwhile`.
    pub fn serve<F: Fixture<Device = D>, T: Send>(
        &self,
        fixture: &F,
        transport: Transport,
        count: usize,
        work: impl Fn(usize, &mut End<D>, Watch<'_>) -> T + Sync,
        mut meanwhile: impl FnMut(&mut [End<D>]),
    ) -> Vec<T> {
        let config = config(&self.device, transport);
        let ours = |_| End::in_domain(self.device.clone(), self.domain.clone(), self.arena.clone(), &config);
        let mut ends: Vec<End<D>> = (0..count).map(ours).collect();
        let patience_ns = fixture.expectations().patience_ns;
        let work = &work;
        std::thread::scope(|scope| {
            let mut starts = Vec::new();
            let mut threads = Vec::new();
            for (index, end) in ends.iter_mut().enumerate() {
                let (sender, receiver) = mpsc::channel();
                let (start, started) = mpsc::channel::<()>();
                let (device, address) = (fixture.device(), end.qp.address());
                threads.push(scope.spawn(move || {
                    let since = Instant::now();
                    let now_ns = || since.elapsed().as_nanos() as u64;
                    let mut near = End::new(device, &config);
                    sender.send(near.qp.address()).expect("the other side waits");
                    near.qp.connect(transport.is_connected().then_some(&address)).expect("a connection");
                    started.recv().expect("all start together");
                    work(index, &mut near, Watch { now_ns: &now_ns, patience_ns })
                }));
                let address = receiver.recv().expect("a thread starts");
                end.qp.connect(transport.is_connected().then_some(&address)).expect("a connection");
                starts.push(start);
            }
            for start in starts {
                start.send(()).expect("a thread waits");
            }
            while threads.iter().any(|thread| !thread.is_finished()) {
                meanwhile(&mut ends);
                if ends.iter_mut().map(End::poll).sum::<usize>() == 0 {
                    ends[0].nap();
                }
            }
            threads.into_iter().map(|thread| thread.join().expect("a thread ends well")).collect()
        })
    }
}
