//! Server processes, which answer requests for objects and expose memory to READs.

use sinew_fabric::Clock;
use sinew_fabric::verbs::{Completion, CompletionQueue, Destination, Opcode, Operation, QueuePair, Request, Source};
use sinew_mem::Frozen;
use sinew_sim::nic::Core;
use sinew_sim::{Actor, ActorState, SimClock, SimCq, SimExposed, SimQp};

/// Distance between the slots that requests are written to, in bytes: one line each.
pub const SLOT: usize = 64;
/// Bytes of a request: a number and a key.
pub const REQUEST: usize = 16;
/// Signaling interval: of the SENDs, whose completions nobody awaits, one in this many is signaled.
pub const SIGNAL_EVERY: usize = 16;

/// A client that sends requests.
pub struct ConnectedClient {
    /// Destination of answers.
    pub to: Destination,
    /// Offset in bytes of the first of its slots in memory, and their number.
    pub slots: (usize, usize),
}

/// Parts that a server is made of.
pub struct Parts {
    /// Objects, which READs fetch, or slots for requests.
    pub memory: SimExposed,
    pub clients: Vec<ConnectedClient>,
    /// Queue pair for answers, and for requests if they are datagrams; none if there are only READs.
    pub datagrams: Option<SimQp>,
    pub cq: SimCq,
    pub object: Frozen,
    /// Whether the object is sent inline.
    pub is_inline: bool,
    /// Whether it sleeps until a request interrupts it.
    pub sleeps: bool,
    pub clock: SimClock,
    pub core: Core,
    /// Time at which it begins; it sleeps until then.
    pub begins_ns: u64,
}

/// A server process.
pub struct Server {
    parts: Parts,
    completions: Vec<Completion>,
    /// Requests of each asker that were taken.
    taken: Vec<u64>,
    /// Asker that is looked at next.
    next: usize,
    sent: usize,
}

impl Server {
    /// A server that has answered nothing.
    pub fn new(parts: Parts) -> Self {
        let taken = vec![0; parts.clients.len()];
        Self { parts, completions: Vec::new(), taken, next: 0, sent: 0 }
    }

    /// Fetches the object and sends it.
    fn answer(&mut self, to: Destination) {
        let Parts { datagrams, object, is_inline, clock, core, .. } = &mut self.parts;
        // Its place is in no cache. The NIC fetches a long object, of which the core touches only the header.
        clock.spend_ns(core.memory_ns);
        let source = if *is_inline {
            clock.spend_ns(core.copy_line_ns * object.len().div_ceil(64) as u64);
            Source::Inline(object)
        } else {
            Source::from(object.clone())
        };
        self.sent += 1;
        let signaled = self.sent.is_multiple_of(SIGNAL_EVERY);
        let operation = Operation::Send { source, immediate: None, to: Some(to) };
        let datagrams = datagrams.as_mut().expect("where answers go out");
        datagrams.post(Request { signaled, ..Request::new(0, operation) }).expect("there is room");
    }

    /// Looks at the slots of one client after the other until it finds a request, which it answers. Returns whether it
    /// found one.
    fn poll_slots(&mut self) -> bool {
        for _ in 0..self.parts.clients.len() {
            let client = self.next;
            self.next = (client + 1) % self.parts.clients.len();
            let Parts { memory, clients, clock, core, .. } = &self.parts;
            clock.spend_ns(core.look_ns);
            let (first, count) = clients[client].slots;
            let slot = first + SLOT * (self.taken[client] % count as u64) as usize;
            if memory.load(slot).expect("inside") == self.taken[client] + 1 {
                // The line came from the NIC, and is in no cache.
                clock.spend_ns(core.memory_ns);
                self.taken[client] += 1;
                let to = clients[client].to;
                self.answer(to);
                return true;
            }
        }
        false
    }

    /// Takes completions: of datagram requests, which it answers, and of answers sent. Returns whether there were any.
    fn poll(&mut self, max: usize) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let found = self.parts.cq.poll(&mut completions, max);
        for mut completion in completions.drain(..) {
            assert!(completion.status.is_success(), "a request failed: {}", completion.status);
            if completion.opcode != Opcode::Receive {
                continue;
            }
            let mut buffer = completion.buffers.pop().expect("the receive's");
            buffer.resize(buffer.capacity()).expect("its capacity");
            let datagrams = self.parts.datagrams.as_mut().expect("where it came in");
            datagrams.post_buffer(0, buffer).expect("there is room");
            self.answer(completion.from.expect("a datagram"));
        }
        self.completions = completions;
        found > 0
    }
}

impl Actor for Server {
    fn turn(&mut self) -> ActorState {
        if self.parts.clock.now_ns() < self.parts.begins_ns {
            return ActorState::AsleepUntil(self.parts.begins_ns);
        }
        if self.parts.datagrams.is_none() {
            return ActorState::Asleep;
        }
        if self.parts.sleeps {
            if self.poll(1) {
                return ActorState::Work;
            }
            self.parts.clock.spend_ns(self.parts.core.doorbell_ns);
            return ActorState::Asleep;
        }
        if self.poll_slots() {
            // Completions of answers are taken now and then.
            if self.sent.is_multiple_of(SIGNAL_EVERY) {
                self.poll(4);
            }
            return ActorState::Work;
        }
        ActorState::Idle
    }
}
