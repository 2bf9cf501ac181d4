//! Properties that a donor and the messages of donors must keep, whatever is sent. Shared by fuzz targets and property
//! tests.

use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_remote_memory::donor::{
    AccessPath, Answer, CONTROL, Call, CallsOnly, Key, PROOF_LEN, Request, Response, Service, ServiceConfig, Side,
};
use sinew_remote_memory::engine::ACCESS;
use sinew_remote_memory::volume::Record;
use sinew_rpc::{Config, Nexus, RequestType, Rpc, SessionId};

/// Asserts that any bytes are no message, or one that survives being written and read again.
pub fn messages(bytes: &[u8]) {
    if let Some(request) = Request::read(bytes) {
        assert_eq!(Request::read(&request.to_bytes()), Some(request));
    }
    if let Some(response) = Response::read(bytes) {
        assert_eq!(Response::read(&response.to_bytes()), Some(response));
    }
    if let Ok(record) = Record::read(bytes) {
        assert_eq!(record.to_bytes(), bytes);
    }
}

/// Bytes that the donor lends.
const MEMORY: usize = 64 << 10;
/// Longest answer, in bytes.
const ANSWER_LEN: usize = 128 << 10;
/// The honest client's volume, and the bytes that it writes. All others write bytes below 128.
const GOOD: u64 = 1;
const WRITTEN: [u8; 512] = [0xA5; 512];

/// Sender of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerKind {
    /// A caller without the key.
    Unadmitted,
    /// A member of the pool that names no volume of others, and tries all their memory.
    Neighbour,
    /// A member of the pool that takes over whatever there is.
    Anybody,
}

/// Sends a donor the requests that `bytes` encode. The donor's accounts must stay right, strangers must get nothing,
/// and nobody may read or write a volume's memory without taking the volume over.
pub fn donor(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let caller_kind = [CallerKind::Unadmitted, CallerKind::Neighbour, CallerKind::Anybody][usize::from(first % 3)];
    let mut world =
        World::new((caller_kind == CallerKind::Unadmitted).then(|| Key::new(b"a key that nobody guesses").unwrap()));
    let (mut good, mut bad) = (world.client("good", 3), world.client("bad", 4));
    world.greet(&mut good);
    let (token, base) = world.volume(&mut good, 1);
    let written = access(token, &[(base, WRITTEN.len() as u32, 1)], &WRITTEN);
    assert_eq!(world.ask(&mut good, ACCESS, &written), [0; 4]);
    let mut tokens = vec![7];
    let mut steps = Steps(rest);
    while let Some(step) = steps.byte() {
        let (kind, request) = steps.request(step, caller_kind, &tokens);
        let answer = world.ask(&mut bad, kind, &request);
        if kind == CONTROL {
            match Response::read(&answer).expect("a donor's answer can be parsed") {
                Response::Answer(answer, path) => {
                    assert_ne!(caller_kind, CallerKind::Unadmitted, "a stranger got {answer:?}");
                    tokens.extend(path.map(|path| match path {
                        AccessPath::Calls { token, .. } => token,
                        AccessPath::Verbs { .. } => panic!("there are no verbs here"),
                    }));
                }
                response => {
                    assert!(
                        caller_kind != CallerKind::Unadmitted || response != Response::Welcome,
                        "a stranger is welcome"
                    )
                }
            }
        } else {
            let is_done = answer.starts_with(&[0; 4]);
            assert!(!is_done || caller_kind != CallerKind::Unadmitted, "a stranger reads or writes");
            assert!(
                caller_kind != CallerKind::Neighbour || !answer.contains(&0xA5),
                "a neighbour reads what others wrote"
            );
        }
        let donor = world.service.donor();
        assert_eq!(donor.lent_bytes() + donor.zeroing_bytes() + donor.free_bytes(), MEMORY as u64);
    }
    if caller_kind == CallerKind::Anybody {
        return;
    }
    let read = world.ask(&mut good, ACCESS, &access(token, &[(base, WRITTEN.len() as u32, 0)], &[]));
    assert_eq!(read, [&[0; 4], &WRITTEN[..]].concat());
}

/// A call that reads and writes memory.
fn access(token: u64, operations: &[(u64, u32, u32)], written: &[u8]) -> Vec<u8> {
    let mut bytes = token.to_le_bytes().to_vec();
    bytes.extend((operations.len() as u32).to_le_bytes());
    for (at, len, kind) in operations {
        bytes.extend(at.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
    }
    bytes.extend(written);
    bytes
}

type Endpoint = Rpc<LoopbackPort, ManualClock>;

struct Client {
    rpc: Endpoint,
    session: SessionId,
}

struct World {
    network: Network,
    clock: ManualClock,
    rpc: Endpoint,
    service: Service<CallsOnly>,
    key: Option<Key>,
}

impl World {
    fn new(key: Option<Key>) -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let rpc = Self::endpoint(&network, &clock, "donor", 1);
        let config = ServiceConfig::new(MEMORY, key.clone());
        let service = Service::new(&CallsOnly, config, Box::new(SeededGenerator::new(2))).unwrap();
        Self { network, clock, rpc, service, key }
    }

    fn endpoint(network: &Network, clock: &ManualClock, name: &str, seed: u64) -> Endpoint {
        let nexus = Nexus::builder().config(Config::default()).build().unwrap();
        let config = LoopbackConfig { arena_bytes: 8 << 20, ..LoopbackConfig::default() };
        let port = network.port_with(name, config).unwrap();
        Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(seed)))
    }

    fn client(&mut self, name: &str, seed: u64) -> Client {
        let mut rpc = Self::endpoint(&self.network, &self.clock, name, seed);
        let session = rpc.begin_connect(&self.rpc.address()).unwrap();
        while rpc.poll_event().is_none() {
            rpc.turn();
            self.advance();
        }
        Client { rpc, session }
    }

    fn advance(&mut self) {
        let service = &mut self.service;
        self.rpc.turn_with(|call| service.handle_call(call));
        service.turn();
        self.clock.advance(2_000);
    }

    /// Returns the donor's answer.
    fn ask(&mut self, client: &mut Client, kind: RequestType, bytes: &[u8]) -> Vec<u8> {
        let Client { rpc, session } = client;
        let mut request = rpc.alloc(bytes.len()).unwrap();
        request.fill(bytes).unwrap();
        let response = rpc.alloc(ANSWER_LEN).unwrap();
        rpc.enqueue_request(*session, kind, request, response, 0).unwrap();
        for _ in 0..10_000 {
            rpc.turn();
            self.advance();
            if let Some(completion) = rpc.poll_completion() {
                // The endpoint refuses an answer that has no room.
                return completion.result.map_or_else(|_| Vec::new(), |_| completion.response.to_vec());
            }
        }
        panic!("the donor does not answer");
    }

    fn call(&mut self, client: &mut Client, call: Call) -> (Answer, Option<AccessPath>) {
        let answer = self.ask(client, CONTROL, &Request::Call(call, Vec::new()).to_bytes());
        match Response::read(&answer) {
            Some(Response::Answer(answer, path)) => (answer, path),
            other => panic!("{other:?}"),
        }
    }

    fn greet(&mut self, client: &mut Client) {
        let answer = self.ask(client, CONTROL, &Request::Greet.to_bytes());
        if let Some(Response::Nonce(nonce)) = Response::read(&answer) {
            let proof = Request::Prove(self.key.as_ref().unwrap().proof(Side::Caller, None, &nonce)).to_bytes();
            assert_eq!(self.ask(client, CONTROL, &proof), Response::Welcome.to_bytes());
        }
    }

    /// Makes a volume with one slab. Returns the token for its memory, and the base of the slab.
    fn volume(&mut self, client: &mut Client, epoch: u32) -> (u64, u64) {
        let (_, path) = self.call(client, Call::Fence { volume: GOOD, epoch });
        let taken = self.call(client, Call::Take { volume: GOOD, epoch, len: 4096 });
        match (path, taken) {
            (Some(AccessPath::Calls { token, .. }), (Answer::Taken { lent, .. }, _)) => (token, lent.base),
            other => panic!("{other:?}"),
        }
    }
}

/// The rest of a history's bytes.
struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn small(&mut self) -> u64 {
        u64::from(self.byte().unwrap_or(0))
    }

    /// Returns mostly a small number, or one near a limit.
    fn word(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            0..=63 => self.small(),
            64..=127 => self.small() * 512,
            128..=191 => self.small() << 32,
            192..=223 => (MEMORY as u64 + 128).wrapping_sub(self.small()),
            _ => u64::MAX - self.small(),
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    fn request(&mut self, step: u8, caller_kind: CallerKind, tokens: &[u64]) -> (RequestType, Vec<u8>) {
        // A neighbour's requests must be well-formed; arbitrary bytes might name the volume of others.
        let wild = caller_kind != CallerKind::Neighbour;
        match step % 16 {
            0 if wild => (CONTROL, self.bytes().to_vec()),
            1 if wild => (ACCESS, self.bytes().to_vec()),
            2 => (CONTROL, Request::Greet.to_bytes()),
            3 => {
                let mut proof = [0; PROOF_LEN];
                proof.iter_mut().zip(self.bytes()).for_each(|(byte, of)| *byte = *of);
                (CONTROL, Request::Prove(proof).to_bytes())
            }
            4..=7 => (ACCESS, self.access(tokens)),
            _ => (CONTROL, self.call(caller_kind)),
        }
    }

    fn access(&mut self, tokens: &[u64]) -> Vec<u8> {
        let token = tokens[self.small() as usize % tokens.len()];
        let mut written = Vec::new();
        let operations: Vec<(u64, u32, u32)> = (0..self.small() % 8)
            .map(|_| {
                let (at, len, kind) = (self.word(), self.word() as u32, self.small() as u32 % 3);
                if kind == 1 && len <= 4096 {
                    written.extend((0..len).map(|at| at as u8 & 0x7F));
                }
                (at, len, kind)
            })
            .collect();
        access(token, &operations, &written)
    }

    fn call(&mut self, caller_kind: CallerKind) -> Vec<u8> {
        let kind = self.small();
        let volume = if caller_kind == CallerKind::Neighbour { GOOD + 1 + self.small() % 4 } else { self.word() };
        let (epoch, client) = (self.word() as u32, self.word());
        let call = match kind % 13 {
            0 => Call::Inspect { volume },
            1 => Call::Claim { volume, epoch },
            2 => Call::Record { volume, epoch, generation: client, record: self.bytes().into() },
            3 => Call::Fence { volume, epoch },
            4 | 5 => Call::Take { volume, epoch, len: client },
            6 => Call::Free { volume, epoch, slab: client },
            7 => Call::Admit { volume, epoch, client, lane: self.small() as u8 },
            8 => Call::Expel { volume, epoch, client },
            10 => Call::Discard { volume, epoch, session: client },
            11 => Call::Volumes { from: volume },
            12 => Call::Leave { volume, epoch },
            _ => Call::Stat,
        };
        Request::Call(call, Vec::new()).to_bytes()
    }
}
