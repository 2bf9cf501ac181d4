//! A simulated world: donors in memory, a service and a disk that crash, and clients that write to the donors directly
//! and may die with writes in flight.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use sinew_fabric::{Descriptor, Generator, Readiness, SeededGenerator};
use sinew_mem::Arena;
use sinew_remote_memory::donor::{Answer as Said, Call, Donor, DonorLimits, Refusal};
use sinew_remote_memory::engine::Op as Move;
use sinew_remote_memory::volume::{CallFailed, DonorId, Donors, Event, checksum};

use crate::disk::SimDisk;
use crate::protocol::*;
use crate::service::{Accepted, Config, Failure, Now, Service};

pub struct Host {
    pub donor: Donor,
    pub memory: Vec<u8>,
    pub is_alive: bool,
    /// Whether a client was cut off in the middle of a write to it.
    pub has_straggler: bool,
}

enum SentKind {
    /// A call, the run of the donor that it was sent to, and its place among all calls.
    Call(Call, u64, u64),
    Move(Move, u64),
}

struct Sent {
    service: u32,
    lane: usize,
    tag: u64,
    kind: SentKind,
}

/// A write that its client has given up, or died with.
pub struct LateWrite {
    pub lane: usize,
    pub incarnation: u64,
    pub session: u64,
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// The donors, and the calls in flight to them.
pub struct Net {
    pub hosts: Vec<Host>,
    pub random: SeededGenerator,
    pub now_ns: u64,
    memory_len: u64,
    incarnations: u64,
    sent: Vec<Sent>,
    events: Vec<(u32, Event)>,
    sessions: HashMap<(u32, usize), u64>,
    calls: u64,
    /// By service and lane: the run of the donor that the last calls reached, and the latest of them.
    delivered: HashMap<(u32, usize), (u64, u64)>,
    pub late_writes: Vec<LateWrite>,
    pub volume: u64,
    services: u32,
    /// A lane to which nothing is delivered for now.
    pub held: Option<usize>,
}

impl Net {
    fn fresh(&mut self) -> Host {
        self.incarnations += 1;
        let donor = Donor::new(self.incarnations, self.memory_len, DonorLimits::default());
        Host { donor, memory: vec![0; self.memory_len as usize], is_alive: true, has_straggler: false }
    }

    /// Restarts a donor, which forgets everything.
    pub fn restart(&mut self, lane: usize) {
        self.hosts[lane] = self.fresh();
    }

    pub fn handle(&mut self, lane: usize, call: &Call) -> Result<Said, CallFailed> {
        let host = &mut self.hosts[lane];
        if !host.is_alive {
            return Err(CallFailed::Unreachable("it is down".into()));
        }
        let answer = host.donor.handle(call).map_err(CallFailed::from);
        while let Some(range) = host.donor.next_to_zero(u64::MAX) {
            host.memory[range.start as usize..range.end as usize].fill(0);
        }
        if host.has_straggler && matches!(call, Call::Expel { .. } | Call::Fence { .. }) {
            return Err(Refusal::WriterStopped.into());
        }
        answer
    }

    /// Delivers a call. A session does not outlive its donor: a call reaches a later run of the donor only as the first
    /// over a new session.
    fn deliver(
        &mut self,
        (service, lane): (u32, usize),
        call: &Call,
        incarnation: u64,
        number: u64,
    ) -> Result<Said, CallFailed> {
        let current = self.hosts[lane].donor.incarnation();
        let (of, last) = self.delivered.get(&(service, lane)).copied().unwrap_or((0, 0));
        if incarnation != current && (of, number < last) == (current, true) {
            return Err(CallFailed::Unreachable("it has restarted".into()));
        }
        let last = if of == current { last.max(number) } else { number };
        self.delivered.insert((service, lane), (current, last));
        self.handle(lane, call)
    }

    /// Writes, if the donor admits the session.
    pub fn write(&mut self, lane: usize, session: u64, at: u64, bytes: &[u8]) -> bool {
        let volume = self.volume;
        let host = &mut self.hosts[lane];
        let may = host.is_alive && host.donor.allows(volume, session);
        if may {
            host.memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
        may
    }

    pub fn read(&self, lane: usize, at: u64, len: usize) -> Option<Vec<u8>> {
        let host = &self.hosts[lane];
        host.is_alive.then(|| host.memory[at as usize..at as usize + len].to_vec())
    }

    /// Delivers a ghost's write, as a whole or in part.
    pub fn perform_late_write(&mut self) {
        if self.late_writes.is_empty() {
            return;
        }
        let index = self.random.below(self.late_writes.len() as u64) as usize;
        let ghost = self.late_writes.swap_remove(index);
        let len = self.random.below(ghost.bytes.len() as u64 + 1) as usize;
        if self.hosts[ghost.lane].donor.incarnation() == ghost.incarnation {
            self.write(ghost.lane, ghost.session, ghost.at, &ghost.bytes[..len]);
        }
    }

    pub fn step(&mut self) {
        self.now_ns += 1 + self.random.below(2_000_000);
        if self.sent.is_empty() {
            return;
        }
        let mut index = self.random.below(self.sent.len() as u64) as usize;
        if self.held.is_some() {
            let Some(other) = self.sent.iter().position(|sent| Some(sent.lane) != self.held) else { return };
            index = other;
        }
        let Sent { service, lane, tag, kind } = self.sent.swap_remove(index);
        let event = match kind {
            SentKind::Call(call, incarnation, number) => {
                let result = self.deliver((service, lane), &call, incarnation, number);
                if let Ok(Said::Fenced { session, .. }) = &result {
                    self.sessions.insert((service, lane), *session);
                }
                Event::CallAnswered { tag, result }
            }
            SentKind::Move(Move::Read { at, mut target }, session) => {
                let may = self.hosts[lane].donor.allows(self.volume, session);
                let bytes = self.read(lane, at, target.len()).filter(|_| may);
                if let Some(bytes) = &bytes {
                    target.copy_from_slice(bytes);
                }
                let error = if bytes.is_none() { Some("it does not answer".to_owned()) } else { None };
                Event::OpFinished { tag, error, target: Some(target) }
            }
            SentKind::Move(Move::Write { at, source }, session) => {
                let done = self.write(lane, session, at, source.bytes());
                Event::OpFinished { tag, error: (!done).then(|| "it does not answer".to_owned()), target: None }
            }
        };
        self.events.push((service, event));
    }
}

pub type Shared = Rc<RefCell<Net>>;

/// The donors, as one service sees them.
pub struct TestDonors {
    net: Shared,
    service: u32,
    ids: Vec<DonorId>,
    arena: Arena,
}

impl Readiness for TestDonors {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl Donors for TestDonors {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn call(&mut self, lane: usize, tag: u64, call: Call) {
        let mut net = self.net.borrow_mut();
        let incarnation = net.hosts[lane].donor.incarnation();
        net.calls += 1;
        let kind = SentKind::Call(call, incarnation, net.calls);
        net.sent.push(Sent { service: self.service, lane, tag, kind });
    }

    fn submit(&mut self, lane: usize, tag: u64, op: Move) -> Result<(), Move> {
        let mut net = self.net.borrow_mut();
        let session = net.sessions.get(&(self.service, lane)).copied().unwrap_or(0);
        net.sent.push(Sent { service: self.service, lane, tag, kind: SentKind::Move(op, session) });
        Ok(())
    }

    fn turn(&mut self) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        let mut net = self.net.borrow_mut();
        let (ours, others) =
            std::mem::take(&mut net.events).into_iter().partition(|(service, _)| *service == self.service);
        net.events = others;
        let ours: Vec<(u32, Event)> = ours;
        events.extend(ours.into_iter().map(|(_, event)| event));
    }
}

pub const SLAB: u64 = 1 << 20;

pub fn config(copies: usize) -> Config {
    Config { copies, slab_len: SLAB, ..Config::default() }
}

pub struct World {
    pub net: Shared,
    pub disk: SimDisk,
    pub service: Option<Service<TestDonors, SimDisk, u64>>,
    pub config: Config,
    arena: Arena,
    answers: HashMap<u64, Vec<u8>>,
    pub seed: u64,
    /// Reason why the last service ended by itself.
    pub failure: Option<Failure>,
}

impl World {
    pub fn new(donors: usize, memory_len: u64, config: Config, seed: u64) -> Self {
        let mut net = Net {
            hosts: Vec::new(),
            random: SeededGenerator::new(seed),
            now_ns: 1_000_000_000,
            memory_len,
            incarnations: 0,
            sent: Vec::new(),
            events: Vec::new(),
            sessions: HashMap::new(),
            calls: 0,
            delivered: HashMap::new(),
            late_writes: Vec::new(),
            volume: 0,
            services: 0,
            held: None,
        };
        for _ in 0..donors {
            let host = net.fresh();
            net.hosts.push(host);
        }
        let (net, disk, arena) = (Rc::new(RefCell::new(net)), SimDisk::new(), Arena::private(8 << 20).unwrap());
        let mut world = Self { net, disk, service: None, config, arena, answers: HashMap::new(), seed, failure: None };
        world.start();
        world
    }

    /// Moves all slabs of a donor that only the service can reach, and fills the old places with something else.
    pub fn move_slabs(&self, lane: usize) {
        let net = &mut *self.net.borrow_mut();
        let Host { donor, memory, .. } = &mut net.hosts[lane];
        for lent in donor.slabs_of(net.volume).collect::<Vec<_>>() {
            let (from, to) = donor.relocate(net.volume, lent.slab).unwrap();
            let old = from.base as usize..(from.base + from.len) as usize;
            memory.copy_within(old.clone(), to.base as usize);
            memory[old].fill(0xEE);
        }
    }

    pub fn now(&self) -> Now {
        let ns = self.net.borrow().now_ns;
        Now { ns, time: Time { s: (ns / 1_000_000_000) as i64, ns: (ns % 1_000_000_000) as u32 } }
    }

    pub fn random(&self, below: u64) -> u64 {
        self.net.borrow_mut().random.below(below)
    }

    /// The donors, for the next user of them.
    pub fn donors(&self) -> (TestDonors, Vec<String>) {
        let mut net = self.net.borrow_mut();
        net.services += 1;
        let ids: Vec<DonorId> = (0..net.hosts.len() as u64).map(|lane| DonorId(100 + lane)).collect();
        let names = ids.iter().map(|id| format!("donor {}", id.0)).collect();
        (TestDonors { net: Rc::clone(&self.net), service: net.services, ids, arena: self.arena.clone() }, names)
    }

    /// Starts a service with the contents of the disk.
    pub fn start(&mut self) {
        let (donors, names) = self.donors();
        let number = donors.service;
        let random = |part| Box::new(SeededGenerator::new(self.seed * 1000 + u64::from(number) * 2 + part));
        let generators: (Box<dyn Generator>, Box<dyn Generator>) = (random(0), random(1));
        let service =
            Service::open(Some(self.disk.clone()), donors, names, None, generators, self.config, self.now()).unwrap();
        self.net.borrow_mut().volume = service.state().volume;
        self.service = Some(service);
    }

    /// Kills the service. The disk keeps everything that was made durable, and an arbitrary part of the rest.
    pub fn crash(&mut self) {
        self.service = None;
        self.answers.clear();
        self.disk.crash(self.random(u64::MAX));
        // Calls in flight may still reach the donors.
        let mut net = self.net.borrow_mut();
        let sent = std::mem::take(&mut net.sent);
        for Sent { service, lane, kind, .. } in sent {
            if let SentKind::Call(call, incarnation, number) = kind
                && net.random.below(2) == 0
            {
                let _ = net.deliver((service, lane), &call, incarnation, number);
            }
        }
    }

    /// The service; a new one is started if the last has died.
    pub fn service(&mut self) -> &mut Service<TestDonors, SimDisk, u64> {
        if self.service.is_none() {
            self.start();
        }
        self.service.as_mut().unwrap()
    }

    /// Advances time by one step. Returns whether the service lives.
    pub fn step(&mut self) -> bool {
        self.net.borrow_mut().step();
        let now = self.now();
        let Some(service) = &mut self.service else { return false };
        if let Err(failure) = service.turn(now) {
            self.failure = Some(failure);
            self.crash();
            return false;
        }
        let mut answers = Vec::new();
        service.poll(&mut answers);
        self.answers.extend(answers);
        true
    }

    pub fn run(&mut self, ms: u64) {
        let until = self.net.borrow().now_ns + ms * 1_000_000;
        while self.net.borrow().now_ns < until {
            self.step();
        }
    }

    /// Runs until a condition holds, for at most 60,000 steps.
    pub fn run_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..60_000 {
            if holds(self) {
                return;
            }
            self.step();
        }
        panic!("{what}: it never comes (seed {})", self.seed);
    }

    /// Sends a message and waits for its answer; `None` if the service is or gets dead.
    pub fn send(&mut self, peer: u64, message: &Message) -> Option<Reply> {
        let now = self.now();
        let bytes = match self.service.as_mut()?.take(peer, &message.to_bytes(), now) {
            Accepted::Answer(bytes) => bytes,
            Accepted::Deferred(id) => loop {
                if !self.step() {
                    return None;
                }
                if let Some(bytes) = self.answers.remove(&id) {
                    break bytes;
                }
            },
        };
        Some(Reply::read(&bytes).unwrap())
    }
}

/// A client, like that of a FUSE front but without caches.
pub struct Client {
    pub number: u64,
    pub secret: [u8; SECRET_LEN],
    pub epoch: u32,
    pub peer: u64,
    pub caller: Caller,
    pub sequence: u64,
    pub opens: Vec<OpenFile>,
    pub locks: Vec<Lock>,
    next_handle: u64,
    /// Incarnation and session of each lane that has admitted the client.
    admissions: HashMap<usize, (u64, u64)>,
}

impl Client {
    pub fn new(world: &mut World, peer: u64) -> Self {
        let mut client = Self {
            number: 0,
            secret: [0; SECRET_LEN],
            epoch: 0,
            peer,
            caller: Caller::default(),
            sequence: 0,
            opens: Vec::new(),
            locks: Vec::new(),
            next_handle: 0,
            admissions: HashMap::new(),
        };
        while client.join(world).is_none() {
            world.start();
        }
        client
    }

    /// Joins, for the first time or again. `None`: there is no service. Returns whether the client was known.
    pub fn join(&mut self, world: &mut World) -> Option<bool> {
        let before = (self.number > 0).then_some((self.number, self.secret));
        let join = Join { before, opens: self.opens.clone(), locks: self.locks.clone() };
        match world.send(self.peer, &Message::Join(join))? {
            Reply::Refused(Error::ReadOnly) => {
                world.crash();
                None
            }
            Reply::Joined(joined) => {
                (self.number, self.secret, self.epoch) = (joined.client, joined.secret, joined.epoch);
                self.opens.retain(|held| joined.opens.contains(&held.handle));
                self.locks = joined.locks;
                self.admissions.clear();
                Some(joined.is_known)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn envelope(&self, sequence: u64, settled: u64, request: Request) -> Message {
        let (client, secret, caller) = (self.number, self.secret, self.caller.clone());
        Message::Request(Envelope { client, secret, sequence, settled, epoch: self.epoch, caller, request })
    }

    /// Sends a request once; `None`: the service died.
    pub fn try_ask(&mut self, world: &mut World, request: &Request) -> Option<Result<Answer, Error>> {
        let sequence = if request.changes() { self.sequence } else { 0 };
        let message = self.envelope(sequence, self.sequence, request.clone());
        match world.send(self.peer, &message)? {
            Reply::Answer(answer) => Some(Ok(answer)),
            Reply::Refused(error) => Some(Err(error)),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request until it is answered, with the next service if necessary.
    pub fn ask(&mut self, world: &mut World, request: Request) -> Result<Answer, Error> {
        self.sequence += u64::from(request.changes());
        for _ in 0..10 {
            if world.service.is_none() {
                world.start();
            }
            match self.try_ask(world, &request) {
                None => {}
                // The simulated process has died, and does not know it.
                Some(Err(Error::ReadOnly)) => world.crash(),
                Some(Err(Error::Rejoin)) => match self.join(world) {
                    Some(false) => return Err(Error::Rejoin),
                    _ => continue,
                },
                Some(result) => return result,
            }
        }
        panic!("it is never answered: {request:?}");
    }

    pub fn attr(&mut self, world: &mut World, request: Request) -> Result<Attr, Error> {
        match self.ask(world, request)? {
            Answer::Attr(attr) | Answer::Unlinked(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    pub fn create(&mut self, world: &mut World, name: &str) -> Result<(Ino, u64), Error> {
        let handle = self.handle();
        let access = Access { read: true, write: true, execute: false };
        let request = Request::Create { parent: Ino::ROOT, name: name.into(), mode: 0o644, handle, access };
        let ino = self.attr(world, request)?.ino;
        self.opens.push(OpenFile { handle, ino, access });
        Ok((ino, handle))
    }

    pub fn open(&mut self, world: &mut World, ino: Ino) -> Result<u64, Error> {
        let held = OpenFile { handle: self.handle(), ino, access: Access { read: true, write: true, execute: false } };
        self.attr(world, Request::Open { handle: held.handle, ino, access: held.access })?;
        self.opens.push(held);
        Ok(held.handle)
    }

    pub fn close(&mut self, world: &mut World, handle: u64) {
        self.opens.retain(|held| held.handle != handle);
        assert_eq!(self.ask(world, Request::Close { handle }), Ok(Answer::Done));
    }

    /// The client's session at a donor, which is made to admit it if necessary.
    fn admit(&mut self, world: &World, lane: usize, incarnation: u64) -> Option<u64> {
        if let Some((known, session)) = self.admissions.get(&lane)
            && *known == incarnation
        {
            return Some(*session);
        }
        let mut net = world.net.borrow_mut();
        let call = Call::Admit { volume: net.volume, epoch: self.epoch, client: self.number, lane: 0 };
        let Ok(Said::Admitted { incarnation: admitted_incarnation, session }) = net.handle(lane, &call) else {
            return None;
        };
        self.admissions.insert(lane, (admitted_incarnation, session));
        (admitted_incarnation == incarnation).then_some(session)
    }

    /// Writes a page to a copy. Returns whether it was written. If not, all or a part of it may still be written later.
    pub fn write_copy(&mut self, world: &World, copy: &SegmentCopy, page: u32, bytes: &[u8]) -> bool {
        let lane = (copy.donor.0 - 100) as usize;
        let Some(session) = self.admit(world, lane, copy.incarnation) else { return false };
        let at = copy.base + u64::from(page) * PAGE as u64;
        let mut net = world.net.borrow_mut();
        let written = net.write(lane, session, at, bytes);
        if !written {
            self.admissions.remove(&lane);
        }
        written
    }

    /// Leaves a write to a copy in flight, as if the client had died.
    pub fn leave_late_write(&mut self, world: &World, copy: &SegmentCopy, page: u32, bytes: Vec<u8>) {
        let lane = (copy.donor.0 - 100) as usize;
        let Some(session) = self.admit(world, lane, copy.incarnation) else { return };
        let at = copy.base + u64::from(page) * PAGE as u64;
        world.net.borrow_mut().late_writes.push(LateWrite { lane, incarnation: copy.incarnation, session, at, bytes });
    }

    /// Reserves up to `pages` pages.
    pub fn reserve(&mut self, world: &mut World, pages: u32) -> Result<Reservation, Error> {
        self.reserve_as(world, Request::Reserve { pages })
    }

    /// Asks for pages until there are some, like the client, and as long as that.
    pub fn reserve_as(&mut self, world: &mut World, request: Request) -> Result<Reservation, Error> {
        let until_ns = world.now().ns + world.config.lease_ns + 5_000_000_000;
        loop {
            match self.ask(world, request.clone())? {
                Answer::Reserved(fresh) if !fresh.runs.is_empty() => return Ok(fresh),
                Answer::Reserved(_) if world.now().ns > until_ns => return Err(Error::NoSpace),
                Answer::Reserved(_) => drop(world.step()),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes a whole page of a file and commits it.
    pub fn write(&mut self, world: &mut World, handle: u64, at: u64, bytes: &[u8]) -> Result<Attr, Error> {
        self.write_as(world, handle, at, bytes, false)
    }

    /// As [`Self::write`]. If it `overwrites`, the page is there already, or was promised.
    pub fn write_as(
        &mut self,
        world: &mut World,
        handle: u64,
        at: u64,
        bytes: &[u8],
        overwrites: bool,
    ) -> Result<Attr, Error> {
        let mut fresh = match overwrites {
            false => self.reserve(world, 1)?,
            true => {
                self.reserve_as(world, Request::ReserveOverwrite { handle, at, count: 1, pages: 1, waits: true })?
            }
        };
        let epoch = self.epoch;
        let run = fresh.runs[0];
        for _ in 0..20 {
            let Some(place) = fresh.places.pop() else { return Err(Error::Lost) };
            for copy in &place.copies {
                if !self.write_copy(world, copy, run.first, bytes) {
                    self.ask(world, Request::Heartbeat)?;
                    if self.epoch != epoch {
                        // The service revoked the access, and the reservation with it.
                        return self.write_as(world, handle, at, bytes, overwrites);
                    }
                    let (segment, donor, incarnation) = (run.segment, copy.donor, copy.incarnation);
                    // If it is the last copy, this reports it as lost.
                    match self.ask(world, Request::ReportFailed { segment, donor, incarnation }) {
                        Ok(_) => {}
                        Err(Error::Grace) => {
                            world.run(20);
                            return self.write_as(world, handle, at, bytes, overwrites);
                        }
                        Err(Error::Lost) => {
                            // The pages are no longer reserved if the service has restarted.
                            let _ = self.ask(world, Request::GiveBack { pages: vec![run] });
                            return Err(Error::Lost);
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            // Arbitrary events happen meanwhile.
            for _ in 0..world.random(6) {
                world.step();
            }
            let generation = place.generation;
            let extent = Extent { at, pages: run, generation, sums: Sums(vec![checksum(bytes)]), replaces: None };
            let size_min = (at + 1) * PAGE as u64;
            let request = Request::Commit { handle, size_min, mtime: None, holes: vec![], extents: vec![extent] };
            match self.ask(world, request) {
                Ok(Answer::Attr(attr)) => return Ok(attr),
                Err(Error::CopiesChanged) => {
                    match self.ask(world, Request::Placements { segments: vec![run.segment] })? {
                        Answer::Placements(places) => fresh.places = places,
                        other => panic!("{other:?}"),
                    }
                }
                Err(Error::NotReserved) => {
                    // The service has restarted since the reservation.
                    return self.write_as(world, handle, at, bytes, overwrites);
                }
                other => return Err(other.unwrap_err()),
            }
        }
        panic!("the copies never stand still");
    }

    /// The place of a file's page that is stored.
    pub fn place(&mut self, world: &mut World, handle: u64, at: u64) -> Placement {
        let Ok(Answer::Layout(mut layout)) = self.ask(world, Request::Layout { handle, at, count: 1 }) else {
            panic!("there is a layout")
        };
        layout.places.remove(0)
    }

    /// Reads a page of a file; `None` when no copy has it.
    pub fn read(&mut self, world: &mut World, handle: u64, at: u64) -> Option<Vec<u8>> {
        let Ok(Answer::Layout(layout)) = self.ask(world, Request::Layout { handle, at, count: 1 }) else {
            panic!("there is a layout")
        };
        let Some(run) = layout.runs.first() else { return Some(vec![0; PAGE]) };
        let place = layout.places.iter().find(|place| place.segment == run.pages.segment).unwrap();
        for copy in place.copies.iter().filter(|copy| copy.is_whole) {
            let lane = (copy.donor.0 - 100) as usize;
            if world.net.borrow().hosts[lane].donor.incarnation() != copy.incarnation {
                continue;
            }
            let from = copy.base + u64::from(run.pages.first) * PAGE as u64;
            let bytes = world.net.borrow().read(lane, from, PAGE);
            if let Some(mut bytes) = bytes.filter(|bytes| checksum(bytes) == run.sums.0[0]) {
                bytes[usize::from(run.last_len)..].fill(0);
                return Some(bytes);
            }
        }
        None
    }
}
