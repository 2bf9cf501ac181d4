//! Two queue pairs of this process, on the machine's RDMA device.
#![allow(dead_code)]

use std::time::{Duration, Instant};

pub use sinew_conformance::skipped;
use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, Device, Operation, ProtectionDomain, QpConfig, QueuePair, Source, Status,
    ThreadDomain, Transport,
};
use sinew_ibverbs::{IbCompletionQueue, IbDevice, IbDomain, IbQueuePair, IbThread, Selector};
use sinew_mem::{Arena, MessageBuffer};

/// Longest time that anything awaited may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The machine's device. Where there is none, a test says so and ends, unless the variable `SINEW_RDMA` is set: then it
/// fails.
pub fn device() -> Option<IbDevice> {
    match IbDevice::open(&Selector::default()) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("SINEW_RDMA").is_some() => {
            panic!("SINEW_RDMA is set, and there is no device: {error}")
        }
        Err(error) => {
            skipped(format_args!("no device: {error}"));
            None
        }
    }
}

/// A side of a connection, with completion queues of its own.
pub struct Side {
    pub thread: IbThread,
    pub sends: IbCompletionQueue,
    pub receives: IbCompletionQueue,
    pub qp: IbQueuePair,
}

/// Two sides that are connected, or, for UD, ready to send.
pub struct Pair {
    pub device: IbDevice,
    pub domain: IbDomain,
    pub arena: Arena,
    pub a: Side,
    pub b: Side,
}

pub fn config(transport: Transport) -> QpConfig {
    QpConfig { send_depth: 64, receive_depth: 64, gather_max: 4, ..QpConfig::new(transport) }
}

impl Side {
    pub fn new(domain: &IbDomain, config: &QpConfig) -> Self {
        let thread = domain.thread().unwrap();
        let sends = thread.completion_queue(config.send_depth).unwrap();
        let receives = thread.completion_queue(config.receive_depth).unwrap();
        let qp = thread.queue_pair(config, &sends, &receives).unwrap();
        Self { thread, sends, receives, qp }
    }

    /// The next completion of a request, which must come.
    pub fn sent(&mut self) -> Completion {
        next(&mut self.sends)
    }

    /// The next completion of a receive, which must come.
    pub fn received(&mut self) -> Completion {
        next(&mut self.receives)
    }
}

impl Pair {
    pub fn new(transport: Transport) -> Option<Self> {
        Self::with(&config(transport))
    }

    pub fn with(config: &QpConfig) -> Option<Self> {
        let device = device()?;
        let domain = device.protection_domain().unwrap();
        let arena = domain.arena(16 << 20).unwrap();
        let (a, b) = (Side::new(&domain, config), Side::new(&domain, config));
        let mut pair = Self { device, domain, arena, a, b };
        pair.connect();
        Some(pair)
    }

    pub fn connect(&mut self) {
        let (to_a, to_b) = (self.a.qp.address(), self.b.qp.address());
        self.a.qp.connect(Some(&to_b)).unwrap();
        self.b.qp.connect(Some(&to_a)).unwrap();
    }

    pub fn buffer(&self, bytes: &[u8]) -> MessageBuffer {
        let mut buffer = self.empty(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    pub fn empty(&self, len: usize) -> MessageBuffer {
        self.arena.alloc(len, len.max(1)).unwrap()
    }

    /// The destination of A's messages; `None` where they are connected.
    pub fn to_b(&self) -> Option<Destination> {
        let datagrams = self.a.qp.transport() == Transport::Ud;
        datagrams.then(|| self.a.thread.destination(&self.b.qp.address()).unwrap())
    }

    pub fn send<'a>(&self, source: impl Into<Source<'a>>) -> Operation<'a> {
        Operation::Send { source: source.into(), immediate: None, to: self.to_b() }
    }
}

/// The next completion, which must come.
pub fn next(cq: &mut IbCompletionQueue) -> Completion {
    let until = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while cq.poll(&mut completions, 1) == 0 {
        assert!(Instant::now() < until, "no completion came");
        cq.wait(Some(PATIENCE.as_nanos() as u64)).unwrap();
    }
    completions.remove(0)
}

/// Checks that nothing completes for a while.
pub fn assert_silent(cq: &mut IbCompletionQueue) {
    std::thread::sleep(Duration::from_millis(100));
    let mut completions = Vec::new();
    assert_eq!(cq.poll(&mut completions, 1), 0, "{completions:?}");
}

pub fn assert_ok(completion: &Completion) {
    assert_eq!(completion.status, Status::Success, "{completion:?}");
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}
