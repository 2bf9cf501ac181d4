//! A thread of the server, which finds the requests of calls, performs them and answers.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_fabric::verbs::{Completion, CompletionQueue, Destination, Operation, QueuePair, Request, Source};
use sinew_mem::Frozen;
use sinew_sim::{Actor, ActorState, SimClock, SimCq, SimExposed, SimQp};

use super::client::{decode_immediate, decode_word};
use super::plan::{Message, Plan, next_doing};
use super::workload::WorkloadKind;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Most slots that a thread looks at in one turn: a longer turn would run ahead of the other actors.
const POLLS_PER_TURN: usize = 32;

/// A client, as the thread knows it.
pub struct Peer {
    /// Destination of answers by datagram.
    pub to: Option<Destination>,
    /// Its connection.
    pub connected: Option<SimQp>,
    /// Requests of this client that were found.
    pub found: u64,
    /// Answers to this client.
    pub answered: u64,
}

/// A request that was found.
struct FoundRequest {
    peer: usize,
    slot: usize,
    changes: bool,
}

/// A thread of the server.
pub struct Worker {
    pub plan: Rc<Plan>,
    pub clock: SimClock,
    /// The slots of its clients, one client after the other, each of `slot_len` bytes; none if requests are messages.
    pub slots: Option<SimExposed>,
    pub slot_len: usize,
    /// It serves the clients whose numbers leave this remainder when divided by the number of threads.
    pub number: usize,
    pub peers: Vec<Peer>,
    pub datagrams: Vec<SimQp>,
    /// Completions of receives (`cq`), and of answers (`sent_cq`).
    pub cq: SimCq,
    pub sent_cq: SimCq,
    /// Bytes of a receive buffer for a request.
    pub buffer_len: usize,
    /// Source of the answers that are not inline.
    pub data: Frozen,
    /// Time that it has worked so far, in ns, not counting looks that found nothing.
    pub worked_ns: Rc<Cell<u64>>,
    pub state: State,
}

/// Progress of a thread.
#[derive(Default)]
pub struct State {
    completions: Vec<Completion>,
    found: Vec<FoundRequest>,
    /// The client that is looked at next, and looks since the last request was found.
    next: usize,
    empty_polls: usize,
    /// Batches so far, and answers that may be in flight.
    batches: usize,
    in_flight: u64,
    /// Answers sent on each datagram queue pair.
    sent_on_pair: Vec<u64>,
    last_work_ns: u64,
    is_waiting: bool,
}

impl Worker {
    /// Looks at the slots of its clients, up to a batch of requests. A client may send its next request to any thread,
    /// so each thread has a slot of each client, and looks at as many slots as there are clients, whichever it serves.
    fn poll_slots(&mut self) {
        let Some(slots) = &self.slots else { return };
        let (window, core) = (self.plan.settings.window as u64, self.plan.profile.core);
        // In the system that is modelled, a client's requests are spread over all threads. Here they are all at one
        // thread, whose single look stands for as many looks as it takes to find one of them.
        let slots_each = self.plan.clients().div_ceil(self.peers.len().max(1)) as u64;
        let to_find = (slots_each / window).max(1);
        if std::mem::take(&mut self.state.is_waiting) {
            // While the thread was not simulated, its round over the slots went on; find where it is now.
            let looks = self.clock.now_ns() / (core.look_ns * slots_each).max(1);
            self.state.next = looks as usize % self.peers.len();
        }
        for _ in 0..POLLS_PER_TURN.min(self.peers.len()) {
            let peer = &mut self.peers[self.state.next];
            let (lap, place) = (peer.found / window, (peer.found % window) as usize);
            let slot = self.state.next * self.plan.settings.window + place;
            let word = slots.load((slot + 1) * self.slot_len - 8).expect("inside the slots");
            match decode_word(word, lap) {
                Some((slot, changes)) => {
                    self.clock.spend_ns(core.look_ns * to_find);
                    peer.found += 1;
                    self.state.empty_polls = 0;
                    self.state.found.push(FoundRequest { peer: self.state.next, slot, changes });
                }
                None => {
                    self.clock.spend_ns(core.look_ns * slots_each);
                    self.state.empty_polls += 1;
                }
            }
            self.state.next = (self.state.next + 1) % self.peers.len();
            if self.state.found.len() >= self.plan.settings.batch {
                break;
            }
        }
    }

    /// Learns which answers have completed. Returns whether more may be sent.
    fn has_room(&mut self) -> bool {
        let in_flight_max = self.plan.answers_max() as u64;
        if self.state.in_flight * 2 < in_flight_max {
            return true;
        }
        let completed = self.sent_cq.poll(&mut self.state.completions, 64);
        self.state.completions.clear();
        self.state.in_flight -= (completed * self.plan.settings.signal) as u64;
        self.state.in_flight < in_flight_max
    }

    /// Takes messages, up to a batch, and reposts their buffers.
    fn receive(&mut self) {
        if self.plan.is_written() {
            return;
        }
        self.cq.poll(&mut self.state.completions, self.plan.settings.batch.max(1));
        for mut completion in self.state.completions.drain(..) {
            assert!(completion.status.is_success(), "a request failed on a modelled NIC: {}", completion.status);
            let (client, slot, changes) = decode_immediate(completion.immediate.expect("requests say whose they are"));
            let threads = self.plan.settings.threads;
            self.state.found.push(FoundRequest { peer: (client - self.number) / threads, slot, changes });
            let mut buffer = completion.buffers.pop().expect("a receive has a buffer");
            buffer.resize(self.buffer_len).expect("as long as it was");
            let qp = self.datagrams.iter_mut().find(|qp| qp.number() == completion.qp).expect("it is of this thread");
            qp.post_buffer(0, buffer).expect("there is room for what was taken");
        }
    }

    /// Performs the requests of a batch. The memory that they need is requested at once and arrives together (sigcomm14
    /// 4.1.1, atc16 4.3.1).
    fn work(&self) {
        let Plan { workload, profile, .. } = &*self.plan;
        let core = profile.core;
        let count = self.state.found.len() as u64;
        let access_ns = match workload.kind {
            // One access to the counter serves the whole batch (atc16 4.2).
            WorkloadKind::Sequencer if self.plan.settings.threads > 1 => core.contended_ns,
            WorkloadKind::Sequencer => core.look_ns,
            _ => core.memory_ns * workload.accesses as u64,
        };
        self.clock.spend_ns(access_ns);
        let lines = |found: &FoundRequest| self.plan.answer(found.changes).len.div_ceil(LINE) as u64;
        let copied: u64 = self.state.found.iter().map(lines).sum();
        self.clock.spend_ns(core.copy_line_ns * copied + self.plan.library_ns().1 * count);
    }

    fn answer(&mut self) {
        let by_datagram = self.plan.answers_by_datagram();
        let signal = self.plan.settings.signal as u64;
        let pair = self.state.batches % self.datagrams.len().max(1);
        self.state.batches += 1;
        self.state.sent_on_pair.resize(self.datagrams.len(), 0);
        for FoundRequest { peer, slot, changes } in self.state.found.drain(..) {
            let Message { len, inline } = self.plan.answer(changes);
            let source = match inline {
                _ if len == 0 => Source::Empty,
                true => Source::Inline(&self.data[..len]),
                false => Source::Gather(
                    [sinew_fabric::verbs::Slice { buffer: self.data.clone(), start: 0, len }].into_iter().collect(),
                ),
            };
            let peer = &mut self.peers[peer];
            peer.answered += 1;
            self.state.in_flight += 1;
            let immediate = Some((slot as u32) << 1);
            if by_datagram {
                let operation = Operation::Send { source, immediate, to: peer.to };
                self.state.sent_on_pair[pair] += 1;
                let signaled = self.state.sent_on_pair[pair].is_multiple_of(signal);
                let request = Request { signaled, ..Request::new(0, operation) };
                self.datagrams[pair].push(request).expect("there is room for every answer");
            } else {
                let operation = Operation::Send { source, immediate, to: None };
                let signaled = peer.answered.is_multiple_of(signal);
                let qp = peer.connected.as_mut().expect("what the design needs");
                qp.post(Request { signaled, ..Request::new(0, operation) }).expect("there is room for every answer");
            }
        }
        if by_datagram {
            self.datagrams[pair].doorbell();
        }
    }
}

impl Actor for Worker {
    fn turn(&mut self) -> ActorState {
        if self.peers.is_empty() {
            return ActorState::Idle;
        }
        let began_ns = self.clock.now_ns();
        if !self.has_room() {
            return ActorState::Idle;
        }
        self.receive();
        self.poll_slots();
        if !self.state.found.is_empty() {
            self.work();
            self.answer();
            self.state.last_work_ns = self.clock.now_ns();
            self.worked_ns.set(self.worked_ns.get() + self.state.last_work_ns - began_ns);
            return ActorState::Work;
        }
        if self.slots.is_some() && self.state.empty_polls < self.peers.len() {
            // The round is not complete, so the thread goes on polling, slot by slot.
            return ActorState::Work;
        }
        self.state.empty_polls = 0;
        self.state.is_waiting = true;
        let interrupt_ns = self.plan.profile.core.interrupt_ns;
        next_doing(self.plan.settings.server_wait, self.state.last_work_ns, self.clock.now_ns(), interrupt_ns, None)
    }
}
