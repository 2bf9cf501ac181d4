//! One donor within reach: a session for calls, and an engine for reads and writes.

use std::collections::HashMap;
use std::io;

use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_mem::atomic::Arc;
use sinew_rpc::Endpoint;

use super::access_method::AccessMethod;
use super::config::{AdmissionMaker, PoolConfig};
use super::link::{CallResult, Link};
use super::watch::Watch;
use crate::donor::{AccessPath, Call, Request, Response};
use crate::engine::{
    Engine, EngineConfig, EngineStats, Finished, Op, Path, Refused, Request as EngineRequest, Shared, SharedConfig,
};
use crate::volume::{CallFailed, DonorId, Event};

/// Turns between two turns of the session while no call is in flight.
const TURNS_PER_POLL: u32 = 64;

impl DonorId {
    /// Id of the donor at an address. All writers of a pool must spell the address alike.
    pub fn from_address(address: &str) -> Self {
        use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
        const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewDnr"));
        Self(rapidhash_v3_inline::<true, false, false>(address.as_bytes(), &SECRETS))
    }
}

/// One donor, as one thread uses it, for calls and for its memory: either as a volume's writer, which
/// [fences](Call::Fence) it, or as one of several clients, which are [admitted](Call::Admit).
///
/// The session is opened, with the key, when there is a call to make. Every call and every operation ends with one
/// [`Event`]. The answer to a call that [requests access](Call::requests_access) brings a path to the memory: reads and
/// writes submitted before it fail, and those on an earlier path may succeed or fail.
pub struct DonorHandle<E: Endpoint, A: AccessMethod> {
    id: DonorId,
    name: String,
    access_method: Arc<A>,
    config: EngineConfig,
    admission: AdmissionMaker,
    depth: usize,
    link: Link<E>,
    engine: Option<Engine<A::Path>>,
    /// Engines whose path was replaced, with operations still unfinished.
    draining: Vec<Engine<A::Path>>,
    /// Offers by the tags of calls that have no answer yet.
    offers: HashMap<u64, A::Offer>,
    finished: Vec<Finished>,
    events: Vec<Event>,
    turns: u32,
    /// Whether the next turn must turn the session, because a thread slept on it.
    must_poll: bool,
    /// Paths made so far; each has a descriptor of its own.
    connections_made: u32,
    watch: Watch,
    watched_connections: Option<u32>,
}

impl<E: Endpoint, A: AccessMethod> std::fmt::Debug for DonorHandle<E, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DonorHandle")
            .field("name", &self.name)
            .field("engine", &self.engine.is_some())
            .finish_non_exhaustive()
    }
}

impl<E: Endpoint, A: AccessMethod> DonorHandle<E, A> {
    /// Makes the donor at an address, reached by an endpoint, or a [share](sinew_rpc::SharedEndpoint) of one. Nothing
    /// is sent yet.
    pub fn new(address: Address, rpc: E, access_method: &Arc<A>, config: &PoolConfig) -> Self {
        let name = address.to_string();
        Self {
            id: DonorId::from_address(&name),
            name,
            access_method: Arc::clone(access_method),
            config: config.engine,
            admission: config.admission.clone(),
            depth: config.depth,
            link: Link::new(rpc, address, config.key.clone(), config.call_timeout_ns),
            engine: None,
            draining: Vec::new(),
            offers: HashMap::new(),
            finished: Vec::new(),
            events: Vec::new(),
            turns: 0,
            must_poll: false,
            connections_made: 0,
            watch: Watch::default(),
            watched_connections: None,
        }
    }

    /// Id of the donor.
    pub fn id(&self) -> DonorId {
        self.id
    }

    /// Address of the donor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Time of the endpoint, in ns.
    pub fn now_ns(&self) -> u64 {
        self.link.now_ns()
    }

    /// Whether there is a session for calls, as far as is known. If the donor has given it up, the next call notices.
    pub fn has_session(&self) -> bool {
        self.link.has_session()
    }

    /// Whether reads and writes can be submitted: there is a path to the memory, and as far as is known it is not
    /// broken.
    pub fn is_connected(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.error().is_none())
    }

    /// Counters of the engine since the last path was made; `None` if there was none.
    pub fn engine_stats(&self) -> Option<EngineStats> {
        Some(self.engine.as_ref()?.shared().stats())
    }

    /// Calls the donor. The answer arrives as an [`Event`] with this tag.
    pub fn call(&mut self, tag: u64, call: Call) {
        let mut addresses = Vec::new();
        if call.requests_access() {
            match self.access_method.offer() {
                Ok((offer, ours)) => {
                    addresses = ours;
                    self.offers.insert(tag, offer);
                }
                Err(why) => {
                    let result = Err(CallFailed::Unreachable(why));
                    return self.events.push(Event::CallAnswered { tag, result });
                }
            }
        }
        self.link.call(tag, Request::Call(call, addresses));
    }

    /// Submits a read or a write of the donor's memory.
    ///
    /// # Errors
    ///
    /// The operation, if as many as allowed are unfinished; there is room again later.
    // Boxing it would allocate.
    #[allow(clippy::result_large_err)]
    pub fn submit(&mut self, tag: u64, op: Op) -> Result<(), Op> {
        let error = match &mut self.engine {
            None => "there is no path to its memory".into(),
            Some(engine) => match engine.error() {
                Some(error) => error.to_string(),
                None => match engine.submit(EngineRequest { tag, op }) {
                    Ok(()) => return Ok(()),
                    Err(Refused::Busy { request, .. }) => return Err(request.op),
                    Err(other) => {
                        let error = other.to_string();
                        self.refuse(tag, other.into_request().op, error);
                        return Ok(());
                    }
                },
            },
        };
        self.refuse(tag, op, error);
        Ok(())
    }

    fn refuse(&mut self, tag: u64, op: Op, error: String) {
        let target = if let Op::Read { target, .. } = op { Some(target) } else { None };
        self.events.push(Event::OpFinished { tag, error: Some(error), target });
    }

    /// Does the work that is due, and returns whether there was any. Never blocks.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        self.turns = self.turns.wrapping_add(1);
        // Calls are rare, and looking for their answers costs as much as a read.
        let must_look = std::mem::take(&mut self.must_poll);
        if must_look || self.link.is_waiting() || self.turns.is_multiple_of(TURNS_PER_POLL) {
            busy |= self.link.turn();
        }
        while let Some(call_result) = self.link.next_result() {
            busy = true;
            self.handle_result(call_result);
        }
        let now_ns = self.link.now_ns();
        if let Some(engine) = &mut self.engine {
            busy |= engine.turn(now_ns);
            engine.poll(&mut self.finished, usize::MAX);
        }
        if !self.draining.is_empty() {
            busy |= self.drain_old_engines(now_ns);
        }
        let to_event = |Finished { tag, result, target }: Finished| Event::OpFinished {
            tag,
            error: result.err().map(|error| error.to_string()),
            target,
        };
        self.events.extend(self.finished.drain(..).map(to_event));
        busy
    }

    /// Appends all events that have occurred.
    pub fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }

    #[inline(never)]
    fn drain_old_engines(&mut self, now_ns: u64) -> bool {
        let mut busy = false;
        for engine in &mut self.draining {
            busy |= engine.turn(now_ns);
            engine.poll(&mut self.finished, usize::MAX);
        }
        self.draining.retain(|engine| engine.shared().unfinished() > 0);
        busy
    }

    fn handle_result(&mut self, (tag, response): CallResult) {
        let offer = self.offers.remove(&tag);
        let result = match response {
            Err(why) => Err(CallFailed::Unreachable(why)),
            Ok(Response::Refused(refusal)) => Err(CallFailed::Refused(refusal)),
            Ok(Response::Answer(answer, access_path)) => match offer {
                Some(offer) => self.connect(offer, access_path).map(|()| answer).map_err(CallFailed::Unreachable),
                None => Ok(answer),
            },
            Ok(_) => Err(CallFailed::Unreachable("its answer is unexpected".into())),
        };
        self.events.push(Event::CallAnswered { tag, result });
    }

    fn connect(&mut self, offer: A::Offer, access_path: Option<AccessPath>) -> Result<(), String> {
        let access_path = access_path.ok_or("its answer includes no access to its memory")?;
        let (path, len) = self.access_method.connect(self.link.address(), offer, access_path)?;
        self.connections_made += 1;
        let admission = self.admission.make();
        let shared: Arc<Shared> = Shared::with_boxed(&self.name, len, admission, SharedConfig { depth: self.depth });
        if let Some(mut old) = self.engine.replace(Engine::new(&shared, path, self.config)) {
            old.path().close();
            self.draining.push(old);
        }
        Ok(())
    }
}

/// Parts of a sleep that several donors share.
impl<E: Endpoint, A: AccessMethod> DonorHandle<E, A> {
    /// Paths made so far; a new one means another descriptor to watch.
    pub(super) fn connections_made(&self) -> u32 {
        self.connections_made
    }

    pub(super) fn session_descriptor(&self) -> Option<Descriptor> {
        self.link.descriptor()
    }

    /// Adds the descriptors other than the session's.
    pub(super) fn watch_engines(&self, watch: &Watch) -> io::Result<()> {
        self.engine.iter().chain(&self.draining).try_for_each(|engine| watch.add(engine.descriptor()))
    }

    /// Arms it, and its endpoint only if no other lane does.
    pub(super) fn arm_with(&mut self, now_ns: u64, arms_endpoint: bool) -> io::Result<Armed> {
        self.must_poll = true;
        if !self.events.is_empty() {
            return Ok(Armed::Ready);
        }
        let mut all = if arms_endpoint {
            self.link.arm(now_ns)?
        } else {
            self.link.next_step().on_clock(self.link.now_ns(), now_ns)
        };
        for engine in self.engine.iter_mut().chain(&mut self.draining) {
            all = match (all, engine.arm(now_ns)?) {
                (Armed::Sleep { until_ns }, armed) => armed.min_deadline(until_ns),
                (Armed::Ready, _) => Armed::Ready,
            };
        }
        Ok(all)
    }
}

/// A thread can sleep on it if its endpoint and its device allow it.
impl<E: Endpoint, A: AccessMethod> Readiness for DonorHandle<E, A> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.link.descriptor().and_then(|_| self.watch.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.watched_connections != Some(self.connections_made) {
            self.watch.add(self.link.descriptor())?;
            self.watch_engines(&self.watch)?;
            self.watched_connections = Some(self.connections_made);
        }
        let armed = self.arm_with(now_ns, true)?;
        if armed == Armed::Ready {
            self.disarm();
        }
        Ok(armed)
    }

    fn disarm(&mut self) -> bool {
        let engines = self.engine.iter_mut().chain(&mut self.draining);
        engines.fold(self.link.disarm(), |woken, engine| engine.disarm() | woken)
    }
}
