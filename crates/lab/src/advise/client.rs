//! A client, which keeps a window of accesses in flight and does each as its design says.

use std::collections::VecDeque;
use std::rc::Rc;

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Destination, Opcode, Operation, QueuePair, RemoteMemory, Request, Scatter, Source,
};
use sinew_fabric::{Clock, SeededGenerator};
use sinew_mem::{Arena, Frozen, MessageBuffer};
use sinew_sim::{Actor, ActorState, SimClock, SimCq, SimQp};

use super::design::{Design, Placement};
use super::plan::{Message, Plan, Record, next_doing};
use super::workload::WorkloadKind;

/// Most completions, and most accesses, that a client handles in one turn: a longer turn would run ahead of the other
/// actors.
const BURST: usize = 8;
/// Distance between two locks' records, in bytes.
pub const RECORD: u64 = 4096;

/// Encodes a request by WRITE as the last word of its slot at the server: the client's access, whether it changes
/// something, and in which lap over the slots it was sent. The word is never 0.
pub fn encode_word(slot: usize, changes: bool, lap: u64) -> u64 {
    1 + ((slot as u64) << 2 | u64::from(changes) << 1 | lap & 1)
}

/// Decodes such a word if it was sent in lap `lap`: the client's access, and whether it changes something.
pub fn decode_word(word: u64, lap: u64) -> Option<(usize, bool)> {
    let encoded = word.checked_sub(1)?;
    (encoded & 1 == lap & 1).then_some(((encoded >> 2) as usize, encoded >> 1 & 1 == 1))
}

/// Encodes a request as an immediate: the client's number, its access, and whether that changes something.
pub fn encode_immediate(client: usize, slot: usize, changes: bool) -> u32 {
    (client as u32) << 8 | (slot as u32) << 1 | u32::from(changes)
}

/// Decodes an immediate.
pub fn decode_immediate(immediate: u32) -> (usize, usize, bool) {
    ((immediate >> 8) as usize, (immediate >> 1 & 0x7f) as usize, immediate & 1 == 1)
}

/// An access in flight.
struct Slot {
    step: usize,
    changes: bool,
    began_ns: u64,
    /// Targets of its READs or of its atomic, one for each step; none while a request has it.
    targets: Vec<Option<MessageBuffer>>,
}

/// The server's side, as a client addresses it.
pub struct ServerAddress {
    /// Data that READs, locks and counters are in.
    pub data: RemoteMemory,
    /// The client's slots for requests, each of `slot_len` bytes.
    pub slots: RemoteMemory,
    pub slot_len: usize,
    /// Destination of datagrams.
    pub to: Option<Destination>,
}

/// A client.
pub struct Client {
    plan: Rc<Plan>,
    record: Rc<Record>,
    clock: SimClock,
    number: usize,
    connected: Option<SimQp>,
    datagram: Option<SimQp>,
    cq: SimCq,
    arena: Arena,
    server: ServerAddress,
    slots: Vec<Slot>,
    /// Accesses that are about to begin, and those for which the queues had no room.
    waiting: VecDeque<usize>,
    completions: Vec<Completion>,
    generator: SeededGenerator,
    /// Requests sent by WRITE so far, requests that can do without a completion, and all posted steps.
    written: u64,
    unsignaled: u64,
    posted: u64,
    last_work_ns: u64,
    /// When the next access is due, if accesses come at times of their own.
    next_ns: Option<u64>,
    bytes: Vec<u8>,
    /// Bytes of a receive buffer for an answer.
    answer_len: usize,
}

/// A client's queues, and the memory of its buffers.
pub struct Queues {
    pub connected: Option<SimQp>,
    pub datagram: Option<SimQp>,
    pub cq: SimCq,
    pub arena: Arena,
}

impl Client {
    /// A client whose receives are posted.
    pub fn new(
        plan: &Rc<Plan>,
        record: &Rc<Record>,
        clock: SimClock,
        number: usize,
        queues: Queues,
        server: ServerAddress,
    ) -> Self {
        let window = plan.settings.window;
        let Queues { connected, datagram, cq, arena } = queues;
        let alloc = |len: usize| arena.alloc(len.max(8), len.max(8)).expect("the arena has room");
        let is_atomic = matches!(plan.design, Design::Atomics(_));
        let slot = |_| Slot {
            step: 0,
            changes: false,
            began_ns: 0,
            targets: if is_atomic {
                vec![Some(alloc(8))]
            } else {
                plan.reads.iter().map(|len| Some(alloc(*len))).collect()
            },
        };
        let slots = (0..window).map(slot).collect();
        let longest = plan.request(true).len.max(plan.request(false).len);
        Self {
            plan: Rc::clone(plan),
            record: Rc::clone(record),
            clock,
            number,
            connected,
            datagram,
            cq,
            arena,
            server,
            slots,
            waiting: VecDeque::new(),
            completions: Vec::new(),
            generator: SeededGenerator::new(number as u64 + 1),
            written: 0,
            unsignaled: 0,
            posted: 0,
            last_work_ns: 0,
            next_ns: None,
            bytes: vec![0; longest],
            answer_len: plan.answer(false).len.max(8),
        }
    }

    fn chance(&mut self, share: f64) -> bool {
        share >= 1.0 || (self.generator.below(1 << 20) as f64) < share * f64::from(1 << 20)
    }

    fn begin(&mut self, slot: usize, began_ns: u64) {
        let changes = !self.chance(self.plan.workload.read_share);
        let is_first_needed = changes || self.chance(self.plan.design.first_share());
        let access = &mut self.slots[slot];
        (access.changes, access.began_ns, access.step) = (changes, began_ns, usize::from(!is_first_needed));
        self.step(slot);
    }

    /// Posts the next step of an access, or keeps it waiting until there is room.
    fn step(&mut self, slot: usize) {
        let changes = self.slots[slot].changes;
        let posted = match self.plan.design {
            Design::Reads(_) if !changes => self.read(slot),
            Design::Atomics(placement) => self.atomic(slot, placement),
            _ => self.call(slot, changes),
        };
        match posted {
            true => self.posted += 1,
            false => self.waiting.push_back(slot),
        }
    }

    fn read(&mut self, slot: usize) -> bool {
        let step = self.slots[slot].step;
        let len = self.plan.reads[step] as u64;
        let places = (self.server.data.len - len) / 64 + 1;
        let remote = self.server.data.at(64 * self.generator.below(places)).expect("inside the data");
        let remote = RemoteMemory { len, ..remote };
        let target: Scatter = self.slots[slot].targets[step].take().into_iter().collect();
        let qp = self.connected.as_mut().expect("READs have a connection");
        match qp.post(Request::new(slot as u64, Operation::Read { target, remote })) {
            Ok(()) => true,
            Err(refused) => {
                self.slots[slot].targets[step] = refused.buffers.into_iter().next();
                false
            }
        }
    }

    fn atomic(&mut self, slot: usize, placement: Placement) -> bool {
        let workload = &self.plan.workload;
        let offset = match (workload.kind, placement) {
            (WorkloadKind::Locks, Placement::SameBits) => RECORD * self.generator.below(workload.locks as u64),
            (WorkloadKind::Locks, Placement::Spread) => {
                let record = self.generator.below(workload.locks as u64);
                RECORD * record + record * 8 % RECORD
            }
            _ => 0,
        };
        let remote = self.server.data.at(offset).expect("inside the data");
        let remote = RemoteMemory { len: 8, ..remote };
        if self.slots[slot].step == 1 {
            // The WRITE frees the lock; nobody waits for it.
            let signaled = self.is_signaled();
            let operation = Operation::Write { source: Source::Inline(&[0; 8]), remote, immediate: None };
            let qp = self.connected.as_mut().expect("atomics have a connection");
            let posted = qp.post(Request { signaled, ..Request::new(slot as u64, operation) }).is_ok();
            if posted {
                self.advance(slot);
            }
            return posted;
        }
        let target = self.slots[slot].targets[0].take().expect("each access has a target");
        // Whether the lock is free matters to the workload only: the NIC does the same.
        let operation = match workload.kind {
            WorkloadKind::Locks => Operation::CompareSwap { target, remote, expected: 0, desired: 1 },
            _ => Operation::FetchAdd { target, remote, add: 1 },
        };
        let qp = self.connected.as_mut().expect("atomics have a connection");
        match qp.post(Request::new(slot as u64, operation)) {
            Ok(()) => true,
            Err(refused) => {
                self.slots[slot].targets[0] = refused.buffers.into_iter().next();
                false
            }
        }
    }

    fn is_signaled(&mut self) -> bool {
        self.unsignaled += 1;
        self.unsignaled.is_multiple_of(self.plan.settings.signal as u64)
    }

    fn call(&mut self, slot: usize, changes: bool) -> bool {
        let Message { len, inline } = self.plan.request(changes);
        let is_written = self.plan.is_written();
        let window = self.plan.settings.window as u64;
        let (lap, place) = (self.written / window, (self.written % window) as usize);
        if len >= 8 {
            let word = encode_word(slot, changes, lap);
            self.bytes[len - 8..len].copy_from_slice(&word.to_ne_bytes());
        }
        let gathered = (len > 0 && !inline).then(|| self.frozen(len));
        let signaled = self.is_signaled();
        let source = match gathered {
            _ if len == 0 => Source::Empty,
            Some(buffer) => Source::from(buffer),
            None => Source::Inline(&self.bytes[..len]),
        };
        self.clock.spend_ns(self.plan.library_ns().0);
        let (qp, operation) = if is_written {
            let offset = ((place + 1) * self.server.slot_len - len) as u64;
            let remote = self.server.slots.at(offset).expect("inside the slots");
            let remote = RemoteMemory { len: len as u64, ..remote };
            (&mut self.connected, Operation::Write { source, remote, immediate: None })
        } else {
            let immediate = Some(encode_immediate(self.number, slot, changes));
            (&mut self.datagram, Operation::Send { source, immediate, to: self.server.to })
        };
        let qp = qp.as_mut().expect("what the design needs");
        let posted = qp.post(Request { signaled, ..Request::new(slot as u64, operation) }).is_ok();
        match posted {
            true => self.written += u64::from(is_written),
            false => self.unsignaled -= 1,
        }
        posted
    }

    /// Returns a buffer of `len` bytes that ends with the request's last word.
    fn frozen(&self, len: usize) -> Frozen {
        let mut buffer = self.arena.alloc(len, len).expect("the arena has room");
        let tail = len.min(8);
        buffer.resize(len).expect("as long as it was asked for");
        buffer[len - tail..].copy_from_slice(&self.bytes[len - tail..len]);
        buffer.freeze()
    }

    /// Completes one step of an access.
    fn advance(&mut self, slot: usize) {
        let now_ns = self.clock.now_ns();
        let access = &mut self.slots[slot];
        access.step += 1;
        let is_over = access.step == self.plan.steps(access.changes);
        // A lock is acquired after the first step.
        let counts = if self.plan.workload.kind == WorkloadKind::Locks { access.step == 1 } else { is_over };
        if counts {
            self.record.note_time(access.began_ns, now_ns);
        }
        if is_over {
            self.record.note_done(now_ns);
            self.waiting.push_back(slot);
            access.step = usize::MAX;
        } else {
            self.step(slot);
        }
    }

    fn handle_completion(&mut self, mut completion: Completion) {
        assert!(completion.status.is_success(), "a request failed on a modelled NIC: {}", completion.status);
        match completion.opcode {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {
                let slot = completion.id as usize;
                let step = if self.plan.reads.is_empty() { 0 } else { self.slots[slot].step };
                self.slots[slot].targets[step] = completion.buffers.pop();
                self.advance(slot);
            }
            Opcode::Receive => {
                let (_, slot, _) = decode_immediate(completion.immediate.expect("answers say whose they are"));
                let mut buffer = completion.buffers.pop().expect("a receive has a buffer");
                buffer.resize(self.answer_len).expect("as long as it was");
                let qp = if self.plan.answers_by_datagram() { &mut self.datagram } else { &mut self.connected };
                let posted = qp.as_mut().expect("it was received on it").post_buffer(0, buffer);
                posted.expect("there is room for what was taken");
                self.advance(slot);
            }
            _ => {}
        }
    }
}

impl Actor for Client {
    fn turn(&mut self) -> ActorState {
        if self.last_work_ns == 0 {
            self.last_work_ns = 1;
            for slot in 0..self.slots.len() {
                self.slots[slot].step = usize::MAX;
                self.waiting.push_back(slot);
            }
        }
        let completed = self.cq.poll(&mut self.completions, BURST);
        let mut completions = std::mem::take(&mut self.completions);
        completions.drain(..).for_each(|completion| self.handle_completion(completion));
        self.completions = completions;
        let before = self.posted;
        for _ in 0..self.waiting.len().min(BURST) {
            let Some(slot) = self.waiting.pop_front() else { break };
            let now_ns = self.clock.now_ns();
            if self.slots[slot].step != usize::MAX {
                self.step(slot);
            } else if self.plan.mean_gap_ns().is_none() {
                self.begin(slot, now_ns);
            } else if self.next_ns.is_some_and(|next_ns| next_ns <= now_ns) {
                let next_ns = self.next_ns.take().expect("it is there");
                self.begin(slot, next_ns);
            } else {
                self.waiting.push_back(slot);
            }
        }
        let now_ns = self.clock.now_ns();
        if let Some(mean_gap_ns) =
            self.plan.mean_gap_ns().filter(|_| self.next_ns.is_none() && !self.waiting.is_empty())
        {
            self.next_ns = Some(now_ns + 1 + self.generator.below(2 * mean_gap_ns));
        }
        if completed > 0 || self.posted > before {
            self.last_work_ns = now_ns.max(1);
            return ActorState::Work;
        }
        next_doing(
            self.plan.settings.client_wait,
            self.last_work_ns,
            now_ns,
            self.plan.profile.core.interrupt_ns,
            self.next_ns,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_immediates_say_what_was_put_into_them() {
        for (slot, changes, lap) in [(0, false, 0), (63, true, 7), (5, false, 2)] {
            let word = encode_word(slot, changes, lap);
            assert_eq!(decode_word(word, lap), Some((slot, changes)));
            assert_eq!(decode_word(word, lap + 1), None);
            assert_eq!(decode_immediate(encode_immediate(9_999, slot, changes)), (9_999, slot, changes));
        }
        assert_eq!(decode_word(0, 0), None);
    }
}
