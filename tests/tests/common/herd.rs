//! HERD servers and clients on one thread, over shared memory.
#![allow(dead_code)] // Each test program uses some of it.

use sinew::fabric::verbs::{
    Completion, CompletionQueue, Device, Operation, ProtectionDomain, QpConfig, QueuePair, Request as Post, Source,
    ThreadDomain, Transport,
};
use sinew::herd::{
    Answer, Client, ClientConfig, ClientError, ClientId, Hello, Layout, Request, Response, Server, ServerConfig,
    Service, Welcome, Worker, WorkerConfig,
};
use sinew::mem::Arena;
use sinew::shm::verbs::{ShmDevice, ShmDomain};

type Qp = <<ShmDomain as ProtectionDomain>::Thread as ThreadDomain>::Qp;
type Cq = <<ShmDomain as ProtectionDomain>::Thread as ThreadDomain>::Cq;

pub const LAYOUT: Layout = Layout { workers: 1, clients: 3, window: 4, request_len_max: 1000, response_len_max: 1016 };

/// Answers with the request, and records its work.
#[derive(Default)]
pub struct Echo {
    pub executed: Vec<(u32, u16, Vec<u8>)>,
    pub batches: Vec<usize>,
    pub steps: [usize; 2],
}

impl Service for Echo {
    type Job = u8;

    fn prefetch(&mut self, _: &Request<'_>) -> u8 {
        self.steps[0] += 1;
        1
    }

    fn advance(&mut self, _: &Request<'_>, job: &mut u8) {
        self.steps[1] += 1;
        *job += 1;
    }

    fn begin(&mut self, requests: usize, _: u64) {
        self.batches.push(requests);
    }

    fn execute(&mut self, request: &Request<'_>, job: u8, response: &mut Response<'_>) {
        assert_eq!(job, 2, "a step was left out");
        self.executed.push((request.client, request.kind, request.body.to_vec()));
        response.kind = request.kind + 1;
        response.body(request.body.len()).unwrap().copy_from_slice(request.body);
    }
}

/// A device, its server with one worker, and the clients' domain.
pub struct World<S: Service = Echo> {
    pub device: ShmDevice,
    pub domain: ShmDomain,
    pub server: Server<ShmDevice>,
    pub worker: Worker<ShmDevice, S>,
}

impl World {
    pub fn new(config: &WorkerConfig) -> Self {
        Self::with(LAYOUT, config)
    }

    pub fn with(layout: Layout, config: &WorkerConfig) -> Self {
        Self::with_workers(layout, config).0
    }

    /// A world with the first worker of the server, and the other workers.
    pub fn with_workers(layout: Layout, config: &WorkerConfig) -> (Self, Vec<Worker<ShmDevice, Echo>>) {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let (server, seeds) = Server::new(&device, &ServerConfig { layout, seed: 7 }).unwrap();
        let mut workers = seeds.into_iter().map(|seed| Worker::new(seed, config, Echo::default()).unwrap());
        let worker = workers.next().unwrap();
        let others = workers.collect();
        (Self { device, domain, server, worker }, others)
    }
}

impl<S: Service> World<S> {
    /// Turns often enough for every slot to be looked at, and for news to be heard. Returns the number of requests
    /// answered.
    pub fn turn(&mut self) -> usize {
        (0..1000).map(|now_ns| self.worker.turn(now_ns)).sum()
    }

    pub fn client(&mut self) -> (Client<ShmDevice>, ClientId) {
        self.client_of(LAYOUT)
    }

    pub fn client_of(&mut self, layout: Layout) -> (Client<ShmDevice>, ClientId) {
        let config = ClientConfig { timeout_ns: 1000, give_up_ns: 1_000_000, ..ClientConfig::new(layout) };
        let (joining, hello) = Client::prepare(&self.device, &self.domain, &config).unwrap();
        let hello = Hello::from_bytes(&hello.to_bytes()).unwrap();
        let (id, welcome) = self.server.admit(&hello).unwrap();
        (joining.join(&Welcome::from_bytes(&welcome.to_bytes()).unwrap()).unwrap(), id)
    }

    pub fn vandal(&mut self) -> Vandal {
        Vandal::new(self)
    }
}

/// Takes all answers that have come. It polls several times, since one poll may find only completions of the client's
/// own.
pub fn poll(
    client: &mut Client<ShmDevice>,
    now_ns: u64,
    mut take: impl FnMut(Answer<'_>),
) -> Result<usize, ClientError> {
    (0..4).map(|_| client.poll(now_ns, &mut take)).sum()
}

/// An admitted client that writes whatever it likes, wherever it likes.
pub struct Vandal {
    requests: Qp,
    answers: Qp,
    cq: Cq,
    arena: Arena,
    pub welcome: Welcome,
    pub id: ClientId,
}

/// An answer, as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Raw {
    pub token: Option<u32>,
    pub sequence: u32,
    pub worker: u16,
    pub kind: u16,
    pub body: Vec<u8>,
}

impl Vandal {
    const RECEIVES: usize = 64;

    fn new<S: Service>(world: &mut World<S>) -> Self {
        let server = &mut world.server;
        Self::of(&world.domain, |hello| server.admit(hello).unwrap())
    }

    /// Joins on the calling thread; `admit` has the server admit it.
    pub fn of(domain: &ShmDomain, admit: impl FnOnce(&Hello) -> (ClientId, Welcome)) -> Self {
        let thread = domain.thread().unwrap();
        let arena = domain.arena(1 << 20).unwrap();
        let cq = thread.completion_queue(2048).unwrap();
        let config = |transport| QpConfig { inline_max: 1024, ..QpConfig::new(transport) };
        let mut requests = thread.queue_pair(&config(Transport::Uc), &cq, &cq).unwrap();
        let mut answers = thread.queue_pair(&config(Transport::Ud), &cq, &cq).unwrap();
        answers.connect(None).unwrap();
        let hello = Hello { requests: requests.address(), answers: answers.address() };
        let (id, welcome) = admit(&hello);
        requests.connect(Some(&welcome.requests)).unwrap();
        for _ in 0..Self::RECEIVES {
            answers.post_buffer(0, arena.alloc(1024, 1024).unwrap()).unwrap();
        }
        Self { requests, answers, cq, arena, welcome, id }
    }

    /// Writes bytes that end where the slot of a client's request does.
    pub fn write(&mut self, client: u32, sequence: u32, bytes: &[u8]) {
        let end = self.welcome.layout.slot_end(0, client as usize, sequence);
        self.write_at(end - bytes.len(), bytes);
    }

    pub fn write_at(&mut self, at: usize, bytes: &[u8]) {
        let remote = self.welcome.memory.at(at as u64).unwrap();
        let operation = Operation::Write { source: Source::Inline(bytes), remote, immediate: None };
        self.requests.post(Post::new(0, operation)).unwrap();
        self.cq.poll(&mut Vec::new(), 16);
    }

    /// Returns the answers that have come.
    pub fn answers(&mut self) -> Vec<Raw> {
        let mut completions: Vec<Completion> = Vec::new();
        for _ in 0..4 {
            self.cq.poll(&mut completions, 64);
        }
        let mut answers = Vec::new();
        for mut completion in completions {
            let Some(buffer) = completion.buffers.pop() else { continue };
            let (head, body) = buffer.split_first_chunk::<8>().unwrap();
            let head = u64::from_le_bytes(*head);
            answers.push(Raw {
                token: completion.immediate,
                sequence: head as u32,
                worker: (head >> 32) as u16,
                kind: (head >> 48) as u16,
                body: body.to_vec(),
            });
            self.answers.post_buffer(0, self.arena.alloc(1024, 1024).unwrap()).unwrap();
        }
        answers
    }
}
