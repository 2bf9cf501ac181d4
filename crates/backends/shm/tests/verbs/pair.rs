//! Two connected queue pairs, each on a thread domain of its own, driven by one thread.

use std::time::{Duration, Instant};

use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Destination, Device, Opcode, Operation, ProtectionDomain, QpConfig, QpNumber,
    QueuePair, Request, Scatter, Source, Status, ThreadDomain, Transport,
};
use sinew_mem::{Arena, MessageBuffer};
use sinew_shm::verbs::{ShmCompletionQueue, ShmDevice, ShmDomain, ShmExposed, ShmQueuePair, ShmThread};

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const DEPTH: usize = 256;

/// One end of a pair.
pub struct End {
    pub device: ShmDevice,
    pub domain: ShmDomain,
    pub arena: Arena,
    pub qp: ShmQueuePair,
    pub sends: ShmCompletionQueue,
    pub receives: ShmCompletionQueue,
    pub thread: ShmThread,
}

/// Both ends.
pub struct Pair {
    pub a: End,
    pub b: End,
}

pub fn config(transport: Transport) -> QpConfig {
    QpConfig { gather_max: 4, send_depth: 64, receive_depth: 64, ..QpConfig::new(transport) }
}

impl End {
    pub fn new(device: &ShmDevice, config: &QpConfig) -> Self {
        let domain = device.protection_domain().unwrap();
        Self::in_domain(device, &domain, config)
    }

    pub fn in_domain(device: &ShmDevice, domain: &ShmDomain, config: &QpConfig) -> Self {
        let arena = domain.arena(64 << 20).unwrap();
        let thread = domain.thread().unwrap();
        let (sends, receives) = (thread.completion_queue(DEPTH).unwrap(), thread.completion_queue(DEPTH).unwrap());
        let qp = thread.queue_pair(config, &sends, &receives).unwrap();
        Self { device: device.clone(), domain: domain.clone(), arena, qp, sends, receives, thread }
    }

    /// Another end in the same domain, on a thread domain of its own.
    pub fn thread_end(&self, config: &QpConfig) -> Self {
        Self::in_domain(&self.device, &self.domain, config)
    }

    pub fn buffer(&self, len: usize) -> MessageBuffer {
        let mut buffer = self.arena.alloc(len, len.max(1)).unwrap();
        buffer[..].fill(0xEE);
        buffer
    }

    pub fn filled(&self, bytes: &[u8]) -> MessageBuffer {
        let mut buffer = self.buffer(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub fn expose(&self, len: usize) -> ShmExposed {
        self.domain.expose(len, Access::ALL).unwrap()
    }

    pub fn post_receive(&mut self, id: u64, len: usize) {
        let buffer = self.buffer(len);
        self.qp.post_buffer(id, buffer).unwrap();
    }

    pub fn post(&mut self, id: u64, operation: Operation<'_>) {
        self.qp.post(Request::new(id, operation)).unwrap();
    }

    pub fn poll_sends(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.sends.poll(&mut completions, DEPTH);
        completions
    }

    pub fn poll_receives(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.receives.poll(&mut completions, DEPTH);
        completions
    }

    /// A target of one buffer, for a READ.
    pub fn target(&self, len: usize) -> Scatter {
        [self.buffer(len)].into_iter().collect()
    }
}

/// Calls `get` until it returns something.
pub fn eventually<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(since.elapsed() < PATIENCE, "{what}: never");
        std::thread::yield_now();
    }
}

impl Pair {
    /// Makes two ends and connects them.
    pub fn new((a, b): &(ShmDevice, ShmDevice), config: &QpConfig) -> Self {
        let mut pair = Self { a: End::new(a, config), b: End::new(b, config) };
        pair.connect();
        pair
    }

    pub fn connect(&mut self) {
        let (to_a, to_b) = (self.a.qp.address(), self.b.qp.address());
        self.a.qp.connect(Some(&to_b)).unwrap();
        self.b.qp.connect(Some(&to_a)).unwrap();
    }

    /// Destination that SENDs of `a` need on UD.
    pub fn to_b(&self) -> Option<Destination> {
        let address = self.b.qp.address();
        (self.a.qp.transport() == Transport::Ud).then(|| self.a.thread.destination(&address).unwrap())
    }

    /// Posts a SEND at `a`.
    pub fn send(&mut self, id: u64, source: Source<'_>, immediate: Option<u32>) {
        let to = self.to_b();
        self.a.post(id, Operation::Send { source, immediate, to });
    }

    /// The next completion of `a`'s requests, while both sides turn.
    pub fn next_send(&mut self) -> Completion {
        let Self { a, b } = self;
        let mut left = Vec::new();
        eventually("a completion of a request", || {
            b.receives.poll(&mut left, 0);
            let mut completions = Vec::new();
            a.sends.poll(&mut completions, 1);
            completions.pop()
        })
    }

    /// The next completion of `b`'s receives, while both sides turn.
    pub fn next_receive(&mut self) -> Completion {
        let Self { a, b } = self;
        let mut left = Vec::new();
        eventually("a completion of a receive", || {
            a.sends.poll(&mut left, 0);
            let mut completions = Vec::new();
            b.receives.poll(&mut completions, 1);
            completions.pop()
        })
    }

    /// Lets both sides turn for a while.
    pub fn turn(&mut self) {
        let mut left = Vec::new();
        for _ in 0..200 {
            self.a.sends.poll(&mut left, 0);
            self.b.receives.poll(&mut left, 0);
        }
        assert!(left.is_empty());
    }
}

/// Devices for both ends: one for the threads of this process, one that processes reach, and two that processes reach.
pub fn devices() -> Vec<(&'static str, (ShmDevice, ShmDevice))> {
    let threads = ShmDevice::threads().unwrap();
    let open = || ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let one = open();
    vec![
        ("threads", (threads.clone(), threads)),
        ("one process", (one.clone(), one)),
        ("two processes", (open(), open())),
    ]
}

pub fn check(completion: &Completion, id: u64, opcode: Opcode, status: Status) {
    assert_eq!((completion.id, completion.opcode, completion.status), (id, opcode, status), "{completion:?}");
}

/// Bytes that differ from one message to the next.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 17 + (at >> 8)) as u8).collect()
}

/// A number that no queue pair has.
pub const NOBODY: QpNumber = QpNumber(0xFF_FFFF);
