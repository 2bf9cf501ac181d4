//! The server's side of two-sided gets: it makes the accesses of a request itself, and answers once.
//!
//! One-sided gets need only the queue pair that the server made for the reader, and not its thread.

use std::collections::VecDeque;

use super::client::{Cq, Domain, Qp, Thread, arena_bytes};
use super::hello::{Hello, REGIONS_MAX, WINDOW_MAX, Welcome};
use super::message::{ANSWER_LEN, AnswerHead, GetRequest as Asked, REQUEST_LEN, Refusal};
use super::object::{Object, ObjectError, ObjectLimits, PointerChase, locate};
use super::sleeps::Sleeps;
use crate::poller::{PollPolicy, Poller, Step};
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::verbs::{
    Completion, CompletionQueue, Device, Opcode, Operation, ProtectionDomain, QpConfig, QueuePair, RemoteMemory,
    Request, Source, ThreadDomain, Transport, VerbsError,
};
use sinew_mem::{AllocError, Arena, Frozen, MessageBuffer, SharedMemory};

/// The most completions taken in a turn.
const BURST: usize = 64;
/// Length in bytes up to which answers are inline (apnet19 3: inlining when possible, up to 256 bytes).
const INLINE_MAX: usize = 256;
/// Time in nanoseconds for which answers repeat what was found about the processor.
const SHARED_REPORT_NS: u64 = 1_000_000;

/// Configuration of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The most readers at a time.
    pub clients: usize,
    /// Gets that a reader may have in flight.
    pub window: usize,
    /// The most that a get may ask for.
    pub limits: ObjectLimits,
    /// Policy for when the server's thread sleeps.
    pub poller: PollPolicy,
}

impl Default for ServerConfig {
    /// A server for 64 readers with 16 gets each of up to 4 KB after up to 8 accesses; it polls for up to 50 us after
    /// work, and then sleeps.
    fn default() -> Self {
        Self {
            clients: 64,
            window: 16,
            limits: ObjectLimits { accesses_max: 8, len_max: 4096 },
            poller: PollPolicy::ADAPTIVE,
        }
    }
}

/// A region of memory with objects: how readers reach it, and how the server reads it.
#[derive(Clone, Debug)]
pub struct Region {
    /// Value of [`crate::verbs::Exposed::remote`]. The memory must be exposed for READ, in the server's protection
    /// domain, for as long as readers get one-sided.
    pub remote: RemoteMemory,
    /// The memory.
    pub memory: SharedMemory,
}

/// A reader that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReaderId {
    index: u16,
    generation: u16,
}

/// Reason why a reader is not admitted, or a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// All places for readers are taken.
    #[error("all {0} places for readers are taken")]
    Full(usize),
    /// The reader's queue pair is not an RC one.
    #[error("a reader needs an RC queue pair")]
    Transport,
    /// The device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A receive was refused.
    #[error(transparent)]
    Post(#[from] crate::verbs::PostError),
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Gets answered with their object.
    pub served: u64,
    /// Requests refused, by [`Refusal::index`]. Those that are [`Refusal::Malformed`] or have a bad [`Refusal::Number`]
    /// get no answer, since nobody could match it; the others are answered with the reason.
    pub refused: [u64; Refusal::ALL.len()],
    /// Readers whose connection broke; their places are free.
    pub lost: u64,
}

impl ServerStats {
    /// Requests refused for this reason.
    pub fn refused_for(&self, reason: Refusal) -> u64 {
        self.refused[reason.index()]
    }
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTurn {
    /// Requests taken.
    pub requests: usize,
    /// Whether anything completed.
    pub found: bool,
    /// Step that its [`Poller`] chose: turn again, or [arm](Readiness::arm) the server and sleep.
    pub step: Step,
}

struct Client<Q> {
    generation: u16,
    qp: Q,
    /// For each place of the reader's window: the number of times it was used.
    slot_uses: Vec<u64>,
    /// Answers whose completion is still to come: their buffers, unless they were inline, and whether they are
    /// signaled.
    answers: VecDeque<(Option<Frozen>, bool)>,
    unsignaled: usize,
    /// Buffers to be posted again.
    spare: Vec<MessageBuffer>,
    /// Whether anything is to be posted or started at the end of the turn.
    is_touched: bool,
}

impl<Q: QueuePair> Client<Q> {
    /// Posts receives, so that the reader finds them when it has its answers, then starts the answers.
    fn post_and_ring(&mut self, index: usize) {
        self.is_touched = false;
        let id = id_of(ReaderId { index: index as u16, generation: self.generation });
        while let Some(mut buffer) = self.spare.pop() {
            let whole = buffer.capacity();
            // Cannot fail: it is within the capacity.
            let _ = buffer.resize(whole);
            if self.qp.post_buffer(id, buffer).is_err() {
                break;
            }
        }
        self.qp.doorbell();
    }
}

/// Answers the gets of readers. It belongs to one thread, which calls [`Self::turn`] and then spins or sleeps as that
/// says.
pub struct Server<D: Device, C> {
    clients: Vec<Option<Client<Qp<D>>>>,
    generations: Vec<u16>,
    regions: Vec<Region>,
    chase: C,
    config: ServerConfig,
    poller: Poller,
    completions: Vec<Completion>,
    /// Readers for which the turn did something.
    touched: Vec<usize>,
    hop: Vec<u8>,
    sleeps: Sleeps,
    /// Whether a program competes with the thread for its processor, and the time until which answers say so.
    is_shared: Option<(bool, u64)>,
    stats: ServerStats,
    cq: Cq<D>,
    thread: Thread<D>,
    arena: Arena,
}

impl<D: Device, C> std::fmt::Debug for Server<D, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, stats, .. } = self;
        f.debug_struct("Server").field("config", config).field("stats", stats).finish_non_exhaustive()
    }
}

fn limit(what: &'static str, asked: usize, limit: usize) -> Result<(), VerbsError> {
    if (1..=limit).contains(&asked) { Ok(()) } else { Err(VerbsError::Limit { what, asked, limit }) }
}

/// Identifier of a reader's completions.
fn id_of(reader: ReaderId) -> u64 {
    u64::from(reader.generation) << 16 | u64::from(reader.index)
}

impl<D: Device, C: PointerChase> Server<D, C> {
    /// A server of the calling thread, without readers, for objects in `regions`. `chase` knows how one access leads to
    /// the next.
    ///
    /// # Errors
    ///
    /// [`ServerError::Verbs`]: the device refused, or the configuration is over a limit.
    pub fn new(
        device: &D,
        domain: &Domain<D>,
        config: &ServerConfig,
        regions: Vec<Region>,
        chase: C,
    ) -> Result<Self, ServerError> {
        limit("readers", config.clients, 1 << 16)?;
        limit("gets under way", config.window, WINDOW_MAX.min(device.attributes().queue_depth_max / 2))?;
        limit("regions", regions.len(), REGIONS_MAX)?;
        let thread = domain.thread()?;
        let cq = thread.completion_queue(config.clients * 4 * config.window)?;
        let len = (config.limits.len_max as usize + ANSWER_LEN).max(REQUEST_LEN);
        let arena = domain.arena(arena_bytes(2 * config.clients * config.window, len))?;
        Ok(Self {
            clients: (0..config.clients).map(|_| None).collect(),
            generations: vec![0; config.clients],
            regions,
            chase,
            config: *config,
            poller: Poller::new(config.poller),
            completions: Vec::with_capacity(BURST),
            touched: Vec::with_capacity(BURST),
            hop: vec![0; config.limits.len_max as usize],
            sleeps: Sleeps::default(),
            is_shared: None,
            stats: ServerStats::default(),
            cq,
            thread,
            arena,
        })
    }

    fn buffer_len(&self) -> usize {
        (self.config.limits.len_max as usize + ANSWER_LEN).max(REQUEST_LEN)
    }

    /// Makes room for a reader and connects to it.
    ///
    /// # Errors
    ///
    /// [`ServerError`]; the server is then unchanged.
    pub fn admit(&mut self, hello: &Hello) -> Result<(ReaderId, Welcome), ServerError> {
        if hello.address.transport != Transport::Rc {
            return Err(ServerError::Transport);
        }
        let index = self.clients.iter().position(Option::is_none).ok_or(ServerError::Full(self.clients.len()))?;
        let window = hello.window.clamp(1, self.config.window);
        // Twice as many as can be asked at a time: answers keep their buffers until they are known to be over.
        let depth = 2 * window;
        let inline_max = INLINE_MAX.min(self.buffer_len());
        let qp = QpConfig { send_depth: depth, receive_depth: depth, inline_max, ..QpConfig::new(Transport::Rc) };
        let mut qp = self.thread.queue_pair(&qp, &self.cq, &self.cq)?;
        qp.connect(Some(&hello.address))?;
        self.generations[index] = self.generations[index].wrapping_add(1);
        let reader = ReaderId { index: index as u16, generation: self.generations[index] };
        for _ in 0..depth {
            let buffer = self.arena.alloc(self.buffer_len(), self.buffer_len())?;
            qp.post_buffer(id_of(reader), buffer).map_err(|refused| refused.error)?;
        }
        let welcome = Welcome {
            address: qp.address(),
            window,
            limits: self.config.limits,
            regions: self.regions.iter().map(|region| region.remote).collect(),
        };
        self.clients[index] = Some(Client {
            generation: reader.generation,
            qp,
            slot_uses: vec![0; window],
            answers: VecDeque::with_capacity(depth),
            unsignaled: 0,
            spare: Vec::with_capacity(depth),
            is_touched: false,
        });
        Ok((reader, welcome))
    }

    /// Frees the place of a reader that left; its one-sided gets end too. Returns whether the reader was here.
    pub fn dismiss(&mut self, reader: ReaderId) -> bool {
        let place = self.clients.get_mut(usize::from(reader.index));
        place.is_some_and(|place| place.take_if(|client| client.generation == reader.generation).is_some())
    }

    /// Whether a reader is here: it is not once its connection broke or it was dismissed.
    pub fn is_current(&self, reader: ReaderId) -> bool {
        self.clients
            .get(usize::from(reader.index))
            .is_some_and(|place| place.as_ref().is_some_and(|client| client.generation == reader.generation))
    }

    /// Counters so far.
    pub fn stats(&self) -> &ServerStats {
        &self.stats
    }

    /// Reports that the thread slept for `slept_ns`, during which its processor was idle for `idle_ns`, as with
    /// [`Reader::slept`](super::Reader::slept). Answers tell readers whether a program competes with it for the
    /// processor.
    pub fn slept(&mut self, slept_ns: u64, idle_ns: u64, now_ns: u64) {
        if let Some(is_shared) = self.sleeps.record_sleep(slept_ns, idle_ns) {
            self.is_shared = Some((is_shared, now_ns.saturating_add(SHARED_REPORT_NS)));
        }
    }

    /// Takes a burst of requests and answers them. Never blocks.
    pub fn turn(&mut self, now_ns: u64) -> ServerTurn {
        // A thread that keeps polling finds out nothing new, and what it found earlier may no longer hold.
        self.is_shared = self.is_shared.filter(|(_, until_ns)| now_ns < *until_ns);
        let count = self.cq.poll(&mut self.completions, BURST);
        let mut completions = std::mem::take(&mut self.completions);
        let mut requests = 0;
        for completion in completions.drain(..) {
            let index = (completion.id & 0xFFFF) as usize;
            let generation = (completion.id >> 16) as u16;
            let Some(client) =
                self.clients.get_mut(index).and_then(Option::as_mut).filter(|here| here.generation == generation)
            else {
                continue;
            };
            if !completion.status.is_success() {
                self.clients[index] = None;
                self.stats.lost += 1;
                continue;
            }
            if !std::mem::replace(&mut client.is_touched, true) {
                self.touched.push(index);
            }
            match completion.opcode {
                Opcode::Receive => {
                    requests += 1;
                    let mut buffers = completion.buffers;
                    if let Some(buffer) = buffers.pop() {
                        self.serve(index, buffer);
                    }
                }
                _ => handle_answer_sent(client, &self.arena),
            }
        }
        self.completions = completions;
        while let Some(index) = self.touched.pop() {
            if let Some(client) = self.clients[index].as_mut() {
                client.post_and_ring(index);
            }
        }
        ServerTurn { requests, found: count > 0, step: self.poller.step(now_ns, count > 0) }
    }

    /// Answers the request in `buffer`, in the same buffer.
    fn serve(&mut self, index: usize, mut buffer: MessageBuffer) {
        let Some(client) = self.clients[index].as_mut() else { return };
        let request = match check(&buffer, &mut client.slot_uses, &self.config.limits) {
            Ok(request) => request,
            Err((reason, number)) => {
                self.stats.refused[reason.index()] += 1;
                return match number {
                    Some(number) => self.answer(index, buffer, number, Err((reason, 0))),
                    None => client.spare.push(buffer),
                };
            }
        };
        let Asked { number, object } = request;
        let whole = ANSWER_LEN + object.len as usize;
        let result = if buffer.resize(whole.max(ANSWER_LEN)).is_err() {
            Err((Refusal::Len, 0))
        } else {
            let Self { regions, chase, hop, .. } = self;
            fetch(regions, chase, &object, hop, &mut buffer[ANSWER_LEN..])
        };
        match result {
            Ok(()) => self.stats.served += 1,
            Err((reason, _)) => self.stats.refused[reason.index()] += 1,
        }
        self.answer(index, buffer, number, result.map(|()| object.len));
    }

    /// Sends what is in `buffer` behind a head.
    fn answer(&mut self, index: usize, mut buffer: MessageBuffer, number: u64, result: Result<u32, (Refusal, u16)>) {
        let Some(client) = self.clients[index].as_mut() else { return };
        let is_shared = self.is_shared.map(|(is_shared, _)| is_shared);
        let (len, refusal) = result.map_or_else(|refusal| (0, Some(refusal)), |len| (len, None));
        let whole = ANSWER_LEN + len as usize;
        // Cannot fail: the buffer held the object, or holds an empty answer.
        let _ = buffer.resize(whole);
        buffer[..ANSWER_LEN].copy_from_slice(&AnswerHead { number, refusal, is_shared, len }.to_bytes());
        // Often enough that less than half of the buffers wait for a completion.
        let signaled = client.unsignaled + 1 >= (client.slot_uses.len() / 2).max(1);
        let id = id_of(ReaderId { index: index as u16, generation: client.generation });
        let request = |source| {
            let operation = Operation::Send { source, immediate: None, to: None };
            Request { id, operation, signaled, fence: false, solicited: true }
        };
        let (pushed, kept) = if whole <= INLINE_MAX {
            let pushed = client.qp.push(request(Source::Inline(&buffer))).is_ok();
            client.spare.push(buffer);
            (pushed, None)
        } else {
            let share = buffer.freeze();
            (client.qp.push(request(share.clone().into())).is_ok(), Some(share))
        };
        if !pushed {
            // The reader leaves more answers unacknowledged than it may have.
            self.clients[index] = None;
            self.stats.lost += 1;
            return;
        }
        client.answers.push_back((kept, signaled));
        client.unsignaled = if signaled { 0 } else { client.unsignaled + 1 };
    }
}

/// Handles a completion, which covers the answers up to the first signaled one: their buffers can be posted again.
fn handle_answer_sent<Q>(client: &mut Client<Q>, arena: &Arena) {
    while let Some((share, signaled)) = client.answers.pop_front() {
        if let Some(share) = share {
            // The device may hold it for a little longer.
            let buffer = share.thaw().or_else(|share| arena.alloc(share.capacity(), share.capacity()));
            client.spare.extend(buffer);
        }
        if signaled {
            return;
        }
    }
}

/// Reads a request that can be tried; otherwise returns the refusal, and the number to answer it under, if any.
fn check(bytes: &[u8], uses: &mut [u64], limits: &ObjectLimits) -> Result<Asked, (Refusal, Option<u64>)> {
    let request = Asked::from_bytes(bytes).ok_or((Refusal::Malformed, None))?;
    let number = request.number;
    let used = uses.get_mut((number & 0xFFFF) as usize).filter(|used| number >> 16 > **used);
    *used.ok_or((Refusal::Number, None))? = number >> 16;
    request.object.check(limits).map_err(|error| match error {
        ObjectError::Accesses { .. } => (Refusal::Accesses, Some(number)),
        ObjectError::Len { .. } => (Refusal::Len, Some(number)),
    })?;
    Ok(request)
}

/// Makes the accesses of a get; the last one's bytes go to `target`.
fn fetch(
    regions: &[Region],
    chase: &impl PointerChase,
    object: &Object,
    hop: &mut [u8],
    target: &mut [u8],
) -> Result<(), (Refusal, u16)> {
    let mut place = object.start;
    for access in 0..object.accesses {
        let len = object.access_len(access);
        let outside = (Refusal::OutOfBounds, access as u16);
        let (region, offset) = locate(regions.iter().map(|region| region.remote), &place, len).ok_or(outside)?;
        let is_last = access + 1 == object.accesses;
        let bytes = if is_last { &mut target[..len as usize] } else { &mut hop[..len as usize] };
        let offset = usize::try_from(offset).map_err(|_| outside)?;
        regions[region].memory.read(offset, bytes).map_err(|_| outside)?;
        if !is_last {
            place = chase.next(access, bytes).ok_or((Refusal::NoNext, access as u16))?;
        }
    }
    Ok(())
}

impl<D: Device, C> Readiness for Server<D, C> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.cq.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        self.cq.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.cq.disarm()
    }
}
