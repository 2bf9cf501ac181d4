//! Client processes, which fetch objects.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use hdrhistogram::Histogram;
use sinew_fabric::Clock;
use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, Opcode, Operation, QueuePair, RemoteMemory, Request, Source,
};
use sinew_harness::histogram;
use sinew_mem::MessageBuffer;
use sinew_sim::{Actor, ActorState, SimClock, SimCq, SimQp};

use super::server::{REQUEST, SIGNAL_EVERY, SLOT};
use super::ways::{AccessMethod, NamedMethod, Notice};

/// Most completions taken in one turn: a longer turn would run ahead of the other actors.
const BURST: usize = 4;
/// Bytes of each access but the last, if several dependent accesses lead to an object.
const POINTER: usize = 8;

/// Objects that the clients of a run fetched together.
#[derive(Debug)]
pub struct Tally {
    from_ns: u64,
    /// Objects fetched.
    pub done: u64,
    /// Time from before an object was requested until it was seen, in ns.
    pub latency: Histogram<u64>,
}

impl Tally {
    /// A tally of the objects that are seen from `from_ns` on.
    pub fn new(from_ns: u64) -> Self {
        Self { from_ns, done: 0, latency: histogram() }
    }

    fn count(&mut self, asked_ns: u64, now_ns: u64) {
        if now_ns >= self.from_ns {
            self.done += 1;
            self.latency.saturating_record((now_ns - asked_ns).max(1));
        }
    }
}

/// A connection to a server process.
pub struct Link {
    /// Queue pair for READs over RC or WRITEs over UC; none if requests are datagrams.
    pub qp: Option<SimQp>,
    /// Memory that holds the objects, or that requests are written to.
    pub remote: RemoteMemory,
    /// Server that datagrams go to and come from.
    pub to: Option<Destination>,
    /// Times at which the unanswered requests were made. A server answers in order.
    requested_ns: VecDeque<u64>,
    count: u64,
}

impl Link {
    /// A connection without requests.
    pub fn new(qp: Option<SimQp>, remote: RemoteMemory, to: Option<Destination>) -> Self {
        Self { qp, remote, to, requested_ns: VecDeque::new(), count: 0 }
    }
}

/// A get by READs.
#[derive(Clone, Copy, Debug)]
struct Get {
    link: usize,
    access: usize,
    asked_ns: u64,
}

/// Parts that a client is made of.
pub struct Parts {
    pub kind: NamedMethod,
    /// Bytes of an object.
    pub len: usize,
    /// Gets in flight of each link.
    pub window: usize,
    pub links: Vec<Link>,
    /// Queue pair for answers, and for requests if they are datagrams.
    pub datagrams: Option<SimQp>,
    pub cq: SimCq,
    /// Buffers for the results of READs and for answers.
    pub targets: Vec<MessageBuffer>,
    pub clock: SimClock,
    /// Time that it takes to request an interrupt, in ns.
    pub arm_ns: u64,
    /// Time at which it begins; it sleeps until then.
    pub begins_ns: u64,
    pub tally: Rc<RefCell<Tally>>,
}

/// A client process.
pub struct Client {
    parts: Parts,
    gets: Vec<Get>,
    completions: Vec<Completion>,
    datagrams_sent: u64,
    has_begun: bool,
}

impl Client {
    /// A client that has made no request, and whose receives are posted.
    pub fn new(mut parts: Parts) -> Self {
        if let Some(datagrams) = &mut parts.datagrams {
            for _ in 0..parts.window * parts.links.len() {
                let target = parts.targets.pop().expect("as many as windows");
                datagrams.post_buffer(0, target).expect("there is room");
            }
        }
        Self { parts, gets: Vec::new(), completions: Vec::new(), datagrams_sent: 0, has_begun: false }
    }

    /// Begins the gets of all windows.
    fn begin(&mut self) {
        for link in 0..self.parts.links.len() {
            for _ in 0..self.parts.window {
                let asked_ns = self.parts.clock.now_ns();
                match self.parts.kind.method {
                    AccessMethod::Read { .. } => {
                        self.gets.push(Get { link, access: 0, asked_ns });
                        self.read(self.gets.len() - 1);
                    }
                    AccessMethod::WriteSend | AccessMethod::SendSend => self.send_request(link),
                }
            }
        }
    }

    /// Posts the next READ of a get.
    fn read(&mut self, number: usize) {
        let AccessMethod::Read { accesses } = self.parts.kind.method else { return };
        let Get { link, access, .. } = self.gets[number];
        let len = if access + 1 < accesses { POINTER } else { self.parts.len };
        let mut target = self.parts.targets.pop().expect("as many as windows");
        target.resize(len).expect("it has room");
        let Link { qp, remote, .. } = &mut self.parts.links[link];
        let operation = Operation::read(target, *remote);
        let signaled = self.parts.kind.notice != Notice::PollingTargets;
        let request = Request { signaled, ..Request::new(number as u64, operation) };
        qp.as_mut().expect("READs are connected").post(request).expect("there is room");
    }

    /// Requests an object.
    fn send_request(&mut self, link: usize) {
        let Parts { links, datagrams, window, clock, .. } = &mut self.parts;
        let Link { qp, remote, to, requested_ns, count } = &mut links[link];
        requested_ns.push_back(clock.now_ns());
        let slot = *count % *window as u64;
        *count += 1;
        let mut bytes = [0; REQUEST];
        bytes[..8].copy_from_slice(&count.to_ne_bytes());
        let source = Source::Inline(&bytes);
        self.datagrams_sent += u64::from(qp.is_none());
        let sent = if qp.is_some() { *count } else { self.datagrams_sent };
        let signaled = sent.is_multiple_of(SIGNAL_EVERY as u64);
        let (qp, operation) = match qp {
            Some(qp) => {
                let remote = remote.at(SLOT as u64 * slot).expect("as many slots as the window");
                (qp, Operation::Write { source, remote, immediate: None })
            }
            None => {
                let qp = datagrams.as_mut().expect("one or the other");
                (qp, Operation::Send { source, immediate: None, to: *to })
            }
        };
        qp.post(Request { signaled, ..Request::new(0, operation) }).expect("there is room");
    }

    fn handle_completion(&mut self, mut completion: Completion) {
        assert!(completion.status.is_success(), "a request failed: {}", completion.status);
        match completion.opcode {
            Opcode::Read => {
                self.parts.targets.extend(completion.buffers.pop());
                let number = completion.id as usize;
                let Get { access, asked_ns, .. } = self.gets[number];
                let AccessMethod::Read { accesses } = self.parts.kind.method else { return };
                let now_ns = self.parts.clock.now_ns();
                let get = &mut self.gets[number];
                if access + 1 < accesses {
                    get.access += 1;
                } else {
                    (get.access, get.asked_ns) = (0, now_ns);
                    self.parts.tally.borrow_mut().count(asked_ns, now_ns);
                }
                self.read(number);
            }
            Opcode::Receive => {
                let from = completion.from.expect("a datagram");
                let is_it =
                    |link: &Link| link.to.is_some_and(|to| (to.handle, to.number) == (from.handle, from.number));
                let link = self.parts.links.iter().position(is_it).expect("a server that was asked");
                let asked_ns = self.parts.links[link].requested_ns.pop_front().expect("it was asked");
                assert_eq!(completion.len, self.parts.len, "the object");
                self.parts.tally.borrow_mut().count(asked_ns, self.parts.clock.now_ns());
                let mut target = completion.buffers.pop().expect("the receive's buffer");
                target.resize(target.capacity()).expect("its capacity");
                let datagrams = self.parts.datagrams.as_mut().expect("where it came");
                datagrams.post_buffer(0, target).expect("there is room");
                self.send_request(link);
            }
            // Completions of requests that have been sent.
            _ => {}
        }
    }
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        if self.parts.clock.now_ns() < self.parts.begins_ns {
            return ActorState::AsleepUntil(self.parts.begins_ns);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.begin();
        }
        let mut completions = std::mem::take(&mut self.completions);
        let found = self.parts.cq.poll(&mut completions, BURST);
        completions.drain(..).for_each(|completion| self.handle_completion(completion));
        self.completions = completions;
        if found > 0 {
            return ActorState::Work;
        }
        if self.parts.kind.notice == Notice::Interrupts {
            self.parts.clock.spend_ns(self.parts.arm_ns);
            return ActorState::Asleep;
        }
        ActorState::Idle
    }
}
