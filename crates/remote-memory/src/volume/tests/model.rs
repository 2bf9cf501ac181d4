//! Donors in memory, and a network between them and writers that loses and delays messages and cuts connections: what
//! is in flight when a writer or a donor dies may arrive later, in part, or never.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use sinew_fabric::{Descriptor, Generator, Readiness, SeededGenerator};
use sinew_mem::Arena;

use crate::donor::{Answer, Call, Donor, DonorLimits};
use crate::engine::Op;
use crate::volume::{CallFailed, DonorId, Donors, Event};

pub struct Host {
    pub donor: Donor,
    pub memory: Vec<u8>,
    pub is_alive: bool,
    /// Writers that cannot reach it.
    pub cut: HashSet<u32>,
}

struct Sent {
    writer: u32,
    lane: usize,
    tag: u64,
    kind: SentKind,
}

enum SentKind {
    Op {
        op: Op,
        session: u64,
    },
    Call(Call),
    /// The answer to a call, which later ones may overtake.
    Answer(Result<Answer, CallFailed>),
}

/// A write that its writer has given up, or whose writer is gone.
struct LateWrite {
    lane: usize,
    incarnation: u64,
    session: u64,
    at: u64,
    bytes: Vec<u8>,
}

pub struct World {
    pub hosts: Vec<Host>,
    pub random: SeededGenerator,
    pub now_ns: u64,
    pub volume: u64,
    /// Answers that were overtaken stay on their way.
    pub holds_answers: bool,
    /// What is sent to this donor stays on its way.
    pub slow: Option<usize>,
    /// Bytes that each donor zeroes in a step; 0 if it does not get round to that.
    pub zeroed_per_step: u64,
    memory_len: u64,
    sent: Vec<Sent>,
    late_writes: Vec<LateWrite>,
    events: HashMap<u32, Vec<Event>>,
    sessions: HashMap<(u32, usize), u64>,
    broken: HashSet<(u32, usize)>,
    writers: u32,
    incarnations: u64,
}

pub type Shared = Rc<RefCell<World>>;

impl World {
    pub fn new(hosts: usize, memory_len: u64, seed: u64) -> Shared {
        let mut world = Self {
            hosts: Vec::new(),
            random: SeededGenerator::new(seed),
            now_ns: 0,
            volume: 7,
            holds_answers: false,
            slow: None,
            zeroed_per_step: 64 << 10,
            memory_len,
            sent: Vec::new(),
            late_writes: Vec::new(),
            events: HashMap::new(),
            sessions: HashMap::new(),
            broken: HashSet::new(),
            writers: 0,
            incarnations: 0,
        };
        for _ in 0..hosts {
            let host = world.fresh();
            world.hosts.push(host);
        }
        Rc::new(RefCell::new(world))
    }

    fn fresh(&mut self) -> Host {
        self.incarnations += 1;
        let donor = Donor::new(self.incarnations, self.memory_len, DonorLimits::default());
        Host { donor, memory: vec![0; self.memory_len as usize], is_alive: true, cut: HashSet::new() }
    }

    /// Restarts a donor, which forgets everything.
    pub fn restart(&mut self, lane: usize) {
        let cut = std::mem::take(&mut self.hosts[lane].cut);
        self.hosts[lane] = self.fresh();
        self.hosts[lane].cut = cut;
    }

    fn reaches(&self, writer: u32, lane: usize) -> bool {
        self.hosts[lane].is_alive && !self.hosts[lane].cut.contains(&writer)
    }

    pub fn in_flight(&self, writer: u32) -> usize {
        self.sent.iter().filter(|sent| sent.writer == writer).count()
    }

    /// Whether such a call of the writer is on its way.
    pub fn is_calling(&self, writer: u32, is_such: impl Fn(&Call) -> bool) -> bool {
        let mut theirs = self.sent.iter().filter(|sent| sent.writer == writer);
        theirs.any(|sent| matches!(&sent.kind, SentKind::Call(call) if is_such(call)))
    }

    /// Lets one random event happen.
    pub fn step(&mut self) {
        self.now_ns += 1 + self.random.below(20_000);
        for host in self.hosts.iter_mut().filter(|_| self.zeroed_per_step > 0) {
            if let Some(range) = host.donor.next_to_zero(self.zeroed_per_step) {
                host.memory[range.start as usize..range.end as usize].fill(0);
            }
        }
        if !self.late_writes.is_empty() && self.random.below(8) == 0 {
            let index = self.random.below(self.late_writes.len() as u64) as usize;
            let ghost = self.late_writes.swap_remove(index);
            self.perform_late_write(&ghost);
        }
        if self.sent.is_empty() {
            return;
        }
        let index = self.random.below(self.sent.len() as u64) as usize;
        if self.holds_answers && matches!(self.sent[index].kind, SentKind::Answer(_)) {
            return;
        }
        if self.slow == Some(self.sent[index].lane) {
            return;
        }
        let sent = self.sent.swap_remove(index);
        self.deliver(sent);
    }

    /// Lets a write of the past arrive, perhaps in part.
    fn perform_late_write(&mut self, ghost: &LateWrite) {
        let len = match self.random.below(3) {
            0 => ghost.bytes.len(),
            _ => self.random.below(ghost.bytes.len() as u64 + 1) as usize,
        };
        let volume = self.volume;
        let host = &mut self.hosts[ghost.lane];
        let is_same = host.is_alive && host.donor.incarnation() == ghost.incarnation;
        if is_same && host.donor.allows(volume, ghost.session) {
            let at = ghost.at as usize;
            host.memory[at..at + len].copy_from_slice(&ghost.bytes[..len]);
        }
    }

    fn deliver(&mut self, Sent { writer, lane, tag, kind }: Sent) {
        let reaches = self.reaches(writer, lane);
        let event = match kind {
            SentKind::Call(call) => {
                let host = &mut self.hosts[lane];
                let mut result = Err(CallFailed::Unreachable("the network is down".into()));
                if reaches {
                    result = host.donor.handle(&call).map_err(CallFailed::from);
                }
                if let Ok(Answer::Taken { lent, .. }) = &result {
                    let bytes = &host.memory[lent.base as usize..(lent.base + lent.len) as usize];
                    assert!(bytes.iter().all(|byte| *byte == 0), "{lent:?} is not all zeros");
                }
                if let Ok(Answer::Fenced { session, .. }) = &result {
                    self.sessions.insert((writer, lane), *session);
                    self.broken.remove(&(writer, lane));
                }
                if self.random.below(4) == 0 {
                    return self.sent.push(Sent { writer, lane, tag, kind: SentKind::Answer(result) });
                }
                Event::CallAnswered { tag, result }
            }
            SentKind::Answer(result) => Event::CallAnswered { tag, result },
            SentKind::Op { op, session } => {
                let host = &mut self.hosts[lane];
                let allows = host.donor.allows(self.volume, session) && !self.broken.contains(&(writer, lane));
                let mut error = None;
                let mut target = None;
                match op {
                    Op::Read { at, target: mut buffer } => {
                        if reaches && allows {
                            let at = at as usize;
                            let len = buffer.len();
                            buffer[..].copy_from_slice(&host.memory[at..at + len]);
                        } else {
                            error = Some("it does not answer".to_owned());
                        }
                        target = Some(buffer);
                    }
                    Op::Write { at, source } => {
                        if reaches && allows {
                            // A slab that was given back may belong to another volume.
                            let range = at..at + source.len as u64;
                            assert!(host.donor.is_in_slab(self.volume, range), "{at}: a write into no slab of ours");
                            host.memory[at as usize..at as usize + source.len].copy_from_slice(source.bytes());
                        } else {
                            error = Some("it does not answer".to_owned());
                            let (incarnation, bytes) = (host.donor.incarnation(), source.bytes().to_vec());
                            self.late_writes.push(LateWrite { lane, incarnation, session, at, bytes });
                        }
                    }
                }
                if error.is_some() {
                    self.broken.insert((writer, lane));
                }
                Event::OpFinished { tag, error, target }
            }
        };
        self.events.entry(writer).or_default().push(event);
    }

    /// Removes a writer; what it has in flight may still arrive.
    pub fn drop_writer(&mut self, writer: u32) {
        let (theirs, others) =
            std::mem::take(&mut self.sent).into_iter().partition(|sent: &Sent| sent.writer == writer);
        self.sent = others;
        let theirs: Vec<Sent> = theirs;
        for Sent { lane, kind, .. } in theirs {
            if let SentKind::Op { op: Op::Write { at, source }, session } = kind {
                let (incarnation, bytes) = (self.hosts[lane].donor.incarnation(), source.bytes().to_vec());
                let ghost = LateWrite { lane, incarnation, session, at, bytes };
                match self.random.below(3) {
                    0 => self.perform_late_write(&ghost),
                    1 => self.late_writes.push(ghost),
                    _ => {}
                }
            }
        }
        self.events.remove(&writer);
    }
}

/// The donors as one writer sees them.
pub struct Writer {
    pub world: Shared,
    pub number: u32,
    ids: Vec<DonorId>,
    arena: Arena,
    /// Operations in flight, at most.
    pub depth: usize,
}

impl Writer {
    pub fn new(world: &Shared, arena: &Arena) -> Self {
        let mut inner = world.borrow_mut();
        inner.writers += 1;
        let ids = (0..inner.hosts.len() as u64).map(|lane| DonorId(100 + lane)).collect();
        let number = inner.writers;
        drop(inner);
        Self { world: Rc::clone(world), number, ids, arena: arena.clone(), depth: 40 }
    }
}

impl Readiness for Writer {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl Donors for Writer {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn call(&mut self, lane: usize, tag: u64, call: Call) {
        self.world.borrow_mut().sent.push(Sent { writer: self.number, lane, tag, kind: SentKind::Call(call) });
    }

    fn submit(&mut self, lane: usize, tag: u64, op: Op) -> Result<(), Op> {
        let mut world = self.world.borrow_mut();
        if world.in_flight(self.number) >= self.depth {
            return Err(op);
        }
        let range = |op: &Op| op.at()..op.at() + op.len() as u64;
        let is_write = |op: &Op| matches!(op, Op::Write { .. });
        for other in world.sent.iter().filter(|sent| sent.writer == self.number && sent.lane == lane) {
            let SentKind::Op { op: other, .. } = &other.kind else { continue };
            let (ours, theirs) = (range(&op), range(other));
            let overlap = ours.start < theirs.end && theirs.start < ours.end;
            assert!(
                !overlap || !(is_write(&op) || is_write(other)),
                "what is in flight overlaps: {ours:?} and {theirs:?}"
            );
        }
        let session = world.sessions.get(&(self.number, lane)).copied().unwrap_or(0);
        world.sent.push(Sent { writer: self.number, lane, tag, kind: SentKind::Op { op, session } });
        Ok(())
    }

    fn turn(&mut self) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        self.world.borrow().now_ns
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        if let Some(news) = self.world.borrow_mut().events.get_mut(&self.number) {
            events.append(news);
        }
    }
}

/// Returns true once in `of` times, at random.
pub fn one_in(random: &mut impl Generator, of: u64) -> bool {
    random.next_u64().is_multiple_of(of)
}
