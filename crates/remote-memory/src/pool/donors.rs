//! Donors by verbs: calls over `rpc`, and reads and writes of their memory by an engine for each.

use std::collections::HashMap;
use std::io;

use sinew_fabric::verbs::{Device, ProtectionDomain, VerbsError};
use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_mem::Arena;
use sinew_mem::atomic::Arc;
use sinew_rpc::Endpoint;

use super::link::Link;
use crate::donor::{Answer, Call, Key, Request, Response, Way};
use crate::engine::{
    Engine, EngineConfig, FindingWindow, Finished, Op, Refused, Request as EngineRequest, Shared, SharedConfig,
    VerbsPath, VerbsPathConfig,
};
use crate::volume::{CallFailed, DonorId, Donors, Event};

/// How donors are reached.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The pool's key; none where donors are open.
    pub key: Option<Key>,
    /// How long a call is waited for.
    pub call_timeout_ns: u64,
    /// Queue pairs.
    pub path: VerbsPathConfig,
    /// What becomes of operations that gather.
    pub engine: EngineConfig,
    /// Operations on their way to one donor, at most.
    pub depth: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            key: None,
            call_timeout_ns: 1_000_000_000,
            path: VerbsPathConfig::default(),
            engine: EngineConfig::default(),
            depth: 4096,
        }
    }
}

/// The window of bytes in flight to a donor begins with so many, and has this as its least and most.
const WINDOW: (u64, u64, u64) = (1 << 20, 64 << 10, 64 << 20);

/// Turns after which sessions are seen to, where no call is under way.
const TURNS_PER_LOOK: u32 = 64;

struct Lane<E: Endpoint, D: Device> {
    name: String,
    link: Link<E>,
    engine: Option<Engine<VerbsPath<D>>>,
    /// Paths whose fence has no answer yet, by the call's tag.
    paths: HashMap<u64, VerbsPath<D>>,
    finished: Vec<Finished>,
}

/// Donors that lend memory by verbs, each with a session for calls, and an engine for reads and writes.
pub struct VerbsDonors<E: Endpoint, D: Device> {
    ids: Vec<DonorId>,
    lanes: Vec<Lane<E, D>>,
    device: D,
    domain: D::Domain,
    arena: Arena,
    config: PoolConfig,
    events: Vec<Event>,
    turns: u32,
}

impl DonorId {
    /// The donor at an address: all writers of a pool have to name it alike.
    pub fn of(address: &str) -> Self {
        use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
        const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewDnr"));
        Self(rapidhash_v3_inline::<true, false, false>(address.as_bytes(), &SECRETS))
    }
}

impl<E: Endpoint, D: Device> VerbsDonors<E, D> {
    /// Donors at these addresses, each reached by an endpoint, or a [share](sinew_rpc::SharedEndpoint) of one. Buffers come from an arena of `arena_len` bytes, which
    /// the device registers.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(
        device: &D,
        donors: impl IntoIterator<Item = (Address, E)>,
        arena_len: usize,
        config: PoolConfig,
    ) -> Result<Self, VerbsError> {
        let domain = device.protection_domain()?;
        let arena = domain.arena(arena_len)?;
        let lane = |(address, rpc): (Address, E)| {
            let name = address.to_string();
            let link = Link::new(rpc, address, config.key.clone(), config.call_timeout_ns);
            Lane { name, link, engine: None, paths: HashMap::new(), finished: Vec::new() }
        };
        let lanes: Vec<_> = donors.into_iter().map(lane).collect();
        let ids = lanes.iter().map(|lane| DonorId::of(&lane.name)).collect();
        Ok(Self { ids, lanes, device: device.clone(), domain, arena, config, events: Vec::new(), turns: 0 })
    }

    /// Their names, as they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lanes.iter().map(|lane| lane.name.as_str())
    }

    /// What the engine of a donor did.
    pub fn engine_stats(&self, lane: usize) -> Option<crate::engine::EngineStats> {
        Some(self.lanes.get(lane)?.engine.as_ref()?.shared().stats())
    }

    fn hear(&mut self, lane: usize) -> bool {
        let mut busy = false;
        while let Some((tag, response)) = self.lanes[lane].link.next_heard() {
            busy = true;
            let path = self.lanes[lane].paths.remove(&tag);
            let result = match response {
                Err(why) => Err(CallFailed::Unreachable(why)),
                Ok(Response::Refused(refusal)) => Err(CallFailed::Refused(refusal)),
                Ok(Response::Answer(answer @ Answer::Fenced { .. }, way)) => {
                    self.connect(lane, path, way).map(|()| answer).map_err(CallFailed::Unreachable)
                }
                Ok(Response::Answer(answer, _)) => Ok(answer),
                Ok(_) => Err(CallFailed::Unreachable("its answer makes no sense".into())),
            };
            self.events.push(Event::Answered { tag, result });
        }
        busy
    }

    fn connect(&mut self, lane: usize, path: Option<VerbsPath<D>>, way: Option<Way>) -> Result<(), String> {
        let (Some(mut path), Some(way)) = (path, way) else {
            return Err("it says no way to its memory".into());
        };
        path.connect(&way.queue_pairs, way.memory).map_err(|error| error.to_string())?;
        let (start, least, most) = WINDOW;
        let window = FindingWindow::new(start, least, most);
        let lane = &mut self.lanes[lane];
        let shared: Arc<Shared> =
            Shared::new(&lane.name, way.memory.len, window, SharedConfig { depth: self.config.depth });
        lane.engine = Some(Engine::new(&shared, path, self.config.engine));
        Ok(())
    }
}

impl<E: Endpoint, D: Device> Readiness for VerbsDonors<E, D> {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Err(sinew_fabric::readiness::no_descriptor())
    }
}

impl<E: Endpoint, D: Device> Donors for VerbsDonors<E, D> {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn call(&mut self, lane: usize, tag: u64, call: Call) {
        let mut addresses = Vec::new();
        if let Call::Fence { .. } = call {
            let arenas = std::slice::from_ref(&self.arena);
            match VerbsPath::new(&self.device, &self.domain, arenas, &self.config.path) {
                Ok(path) => {
                    addresses = path.addresses();
                    self.lanes[lane].paths.insert(tag, path);
                }
                Err(error) => {
                    let result = Err(CallFailed::Unreachable(error.to_string()));
                    return self.events.push(Event::Answered { tag, result });
                }
            }
        }
        self.lanes[lane].link.call(tag, Request::Call(call, addresses));
    }

    fn submit(&mut self, lane: usize, tag: u64, op: Op) -> Result<(), Op> {
        let refused = |op: Op, error: String| {
            let target = if let Op::Read { target, .. } = op { Some(target) } else { None };
            Event::Over { tag, error: Some(error), target }
        };
        let Some(engine) = &mut self.lanes[lane].engine else {
            self.events.push(refused(op, "there is no way to its memory".into()));
            return Ok(());
        };
        if let Some(error) = engine.error() {
            let error = error.to_string();
            self.events.push(refused(op, error));
            return Ok(());
        }
        match engine.submit(EngineRequest { tag, op }) {
            Ok(()) => {}
            Err(Refused::Busy { request, .. }) => return Err(request.op),
            Err(other) => {
                let error = other.to_string();
                self.events.push(refused(other.into_request().op, error));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> bool {
        let mut busy = false;
        self.turns = self.turns.wrapping_add(1);
        for index in 0..self.lanes.len() {
            // Calls are rare, and looking for their answers costs as much as a read.
            if self.lanes[index].link.is_waiting() || self.turns.is_multiple_of(TURNS_PER_LOOK) {
                busy |= self.lanes[index].link.turn();
            }
            busy |= self.hear(index);
            let lane = &mut self.lanes[index];
            let now_ns = lane.link.now_ns();
            let Some(engine) = &mut lane.engine else { continue };
            busy |= engine.turn(now_ns);
            engine.poll(&mut lane.finished, usize::MAX);
            let over = |Finished { tag, result, target }: Finished| Event::Over {
                tag,
                error: result.err().map(|error| error.to_string()),
                target,
            };
            self.events.extend(lane.finished.drain(..).map(over));
        }
        busy
    }

    fn now_ns(&self) -> u64 {
        self.lanes.first().map_or(0, |lane| lane.link.now_ns())
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }
}
