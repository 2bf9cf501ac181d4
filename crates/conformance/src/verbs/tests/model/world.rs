//! State of the model's world, and the steps that change it.

use std::collections::{BTreeMap, VecDeque};

use sinew_fabric::Waker;
use sinew_fabric::verbs::{
    Access, Completion, Destination, Opcode, Operation, QpConfig, QpNumber, QpState, RemoteMemory, Request, Scatter,
    Source, Status, Transport, Verb, WorkEntry,
};
use sinew_mem::{Arena, SharedMemory};

use super::{Flaw, Options};

/// Handle of every destination.
pub const HANDLE: u64 = 0x4D0D_E100;

/// A request that is not over.
struct Sent {
    entry: WorkEntry,
    work: Work,
    fence: bool,
    /// Bytes that were copied when the request was pushed.
    inline: Vec<u8>,
}

/// Operation of a request, without its handles.
#[derive(Clone, Copy)]
enum Work {
    Send { immediate: Option<u32>, to: Option<Destination> },
    Write { remote: RemoteMemory, immediate: Option<u32> },
    Read { remote: RemoteMemory },
    CompareSwap { remote: RemoteMemory, expected: u64, desired: u64 },
    FetchAdd { remote: RemoteMemory, add: u64 },
}

struct Posted {
    id: u64,
    buffers: Scatter,
}

/// Status and contents of what arrives in a receive.
struct Arrival<'a> {
    opcode: Opcode,
    status: Status,
    bytes: &'a [u8],
    len: usize,
    immediate: Option<u32>,
    from: Option<Destination>,
}

/// A completion, and the number of places that it frees in its queue pair, provided that the epoch is still this one.
pub struct Ready {
    pub completion: Completion,
    frees: usize,
    epoch: u32,
    is_receive: bool,
}

pub struct Queue {
    pub ready: VecDeque<Ready>,
    pub depth: usize,
    pub reserved: usize,
    pub users: usize,
    pub is_woken: bool,
    /// Waker that sets off the queue's descriptor.
    pub waker: Waker,
}

pub struct Qp {
    pub config: QpConfig,
    pub domain: u64,
    pub state: QpState,
    pub epoch: u32,
    /// Number and epoch of the peer.
    pub peer: Option<(u32, u32)>,
    pub send_queue: u64,
    pub receive_queue: u64,
    sends: VecDeque<Sent>,
    doorbell_count: usize,
    receives: VecDeque<Posted>,
    pub sends_held: usize,
    pub receives_held: usize,
    /// Requests that are over and that no completion has covered.
    unreported: usize,
    tries: u32,
}

pub struct Region {
    pub memory: SharedMemory,
    pub domain: u64,
    pub access: Access,
}

pub struct State {
    pub options: Options,
    pub qps: BTreeMap<u32, Qp>,
    pub queues: BTreeMap<u64, Queue>,
    pub regions: BTreeMap<u32, Region>,
    pub arenas: Vec<(u64, Arena)>,
    next: u64,
    messages: u64,
    /// Writes that a flaw keeps for later.
    delayed_writes: Vec<(SharedMemory, usize, Vec<u8>)>,
    turns: u64,
    kept: Vec<WorkEntry>,
}

/// Result of a step.
enum Step {
    Over(Status),
    Wait,
}

impl State {
    pub fn new(options: Options) -> Self {
        let (qps, queues, regions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (arenas, kept) = (Vec::new(), Vec::new());
        Self { options, qps, queues, regions, arenas, next: 0, messages: 0, delayed_writes: Vec::new(), turns: 0, kept }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.options.flaw == Some(flaw)
    }

    /// A number that was not given out before.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn new_qp(&mut self, config: &QpConfig, domain: u64, send_queue: u64, receive_queue: u64) -> u32 {
        let number = self.number() as u32;
        let qp = Qp {
            config: *config,
            domain,
            state: QpState::Reset,
            epoch: 0,
            peer: None,
            send_queue,
            receive_queue,
            sends: VecDeque::new(),
            doorbell_count: 0,
            receives: VecDeque::new(),
            sends_held: 0,
            receives_held: 0,
            unreported: 0,
            tries: 0,
        };
        self.qps.insert(number, qp);
        number
    }

    pub fn qp(&mut self, number: u32) -> &mut Qp {
        self.qps.get_mut(&number).expect("a queue pair lives as long as its handle")
    }

    /// Queues a request.
    pub fn push(&mut self, number: u32, request: Request<'_>) {
        let work = match request.operation {
            Operation::Send { immediate, to, .. } => Work::Send { immediate, to },
            Operation::Write { remote, immediate, .. } => Work::Write { remote, immediate },
            Operation::WriteRange { remote, .. } => Work::Write { remote, immediate: None },
            Operation::Read { remote, .. } | Operation::ReadRange { remote, .. } => Work::Read { remote },
            Operation::CompareSwap { remote, expected, desired, .. } => Work::CompareSwap { remote, expected, desired },
            Operation::FetchAdd { remote, add, .. } => Work::FetchAdd { remote, add },
        };
        let mut inline = match &request.operation {
            Operation::Send { source: Source::Inline(bytes), .. }
            | Operation::Write { source: Source::Inline(bytes), .. } => bytes.to_vec(),
            _ => Vec::new(),
        };
        let fence = request.fence;
        let mut entry = WorkEntry::new(request);
        match self.options.flaw {
            Some(Flaw::CopiesWhenPushed) => {
                inline.extend(std::mem::take(&mut entry.sources).iter().flat_map(|piece| piece.bytes().to_vec()));
            }
            // Stands for the bytes that a queue pair would read if it released a share too early.
            Some(Flaw::ReadsThawedSources) => {
                inline.extend(std::mem::take(&mut entry.sources).iter().flat_map(|piece| vec![0xFF; piece.len]));
            }
            _ => {}
        }
        let starts = self.has(Flaw::StartsWhenPushed);
        let qp = self.qp(number);
        qp.sends.push_back(Sent { entry, work, fence, inline });
        qp.sends_held += 1;
        qp.doorbell_count = if starts { qp.sends.len() } else { qp.doorbell_count };
    }

    pub fn doorbell(&mut self, number: u32) {
        let one = self.has(Flaw::StartsOneAtATime);
        let qp = self.qp(number);
        qp.doorbell_count = if one { (qp.doorbell_count + 1).min(qp.sends.len()) } else { qp.sends.len() };
        if qp.state == QpState::Error {
            self.flush(number, Status::Flushed);
        }
    }

    pub fn post_receive(&mut self, number: u32, id: u64, buffers: Scatter) {
        let qp = self.qp(number);
        qp.receives.push_back(Posted { id, buffers });
        qp.receives_held += 1;
        if qp.state == QpState::Error {
            self.flush(number, Status::Flushed);
        }
    }

    /// Performs a step of every queue pair. Returns whether anything happened.
    pub fn progress(&mut self) -> bool {
        self.turns += 1;
        if self.turns.is_multiple_of(50) {
            for (memory, offset, bytes) in self.delayed_writes.drain(..) {
                memory.write(offset, &bytes).expect("it was in bounds");
            }
        }
        let numbers: Vec<u32> = self.qps.keys().copied().collect();
        numbers.into_iter().filter(|&number| self.step(number)).count() > 0
    }

    fn step(&mut self, number: u32) -> bool {
        let qp = self.qp(number);
        if qp.state != QpState::ReadyToSend || qp.doorbell_count == 0 {
            return false;
        }
        let Some(mut sent) = qp.sends.pop_front() else { return false };
        let step = self.perform(number, &mut sent);
        let Step::Over(status) = step else {
            self.qp(number).sends.push_front(sent);
            return false;
        };
        let qp = self.qp(number);
        qp.doorbell_count -= 1;
        qp.tries = 0;
        self.complete(number, sent.entry, status);
        if !status.is_success() && !self.has(Flaw::GoesOnAfterAFailure) {
            self.fail(number, Status::Flushed);
        }
        true
    }

    fn bytes(&self, sent: &Sent) -> Vec<u8> {
        let mut pieces: Vec<&[u8]> = sent.entry.sources.iter().map(|piece| piece.bytes()).collect();
        if self.has(Flaw::GathersBackwards) {
            pieces.reverse();
        }
        let range = sent.entry.range.as_deref().unwrap_or_default();
        [&sent.inline[..], &pieces.concat(), range].concat()
    }

    /// The queue pair that a connected one's packets reach.
    fn find_peer(&self, number: u32) -> Result<u32, Step> {
        let qp = &self.qps[&number];
        let is_reliable = qp.config.transport == Transport::Rc;
        let (peer, peer_epoch) = qp.peer.expect("the state says that there is one");
        let dead = Step::Over(if is_reliable { Status::RetryExceeded } else { Status::Success });
        let Some(other) = self.qps.get(&peer) else {
            return Err(if self.has(Flaw::ServesTheDead) { Step::Over(Status::Success) } else { dead });
        };
        match other.state {
            QpState::ReadyToReceive if self.has(Flaw::IsDeafUntilReadyToSend) => return Err(dead),
            QpState::ReadyToReceive | QpState::ReadyToSend => {}
            QpState::Error if self.has(Flaw::ReachesPeersInError) => {}
            QpState::Error => return Err(dead),
            // The peer is on its way to us.
            _ if is_reliable && other.epoch == peer_epoch => return Err(Step::Wait),
            _ => return Err(dead),
        }
        let knows_us = other.epoch == peer_epoch && other.peer == Some((number, qp.epoch));
        if knows_us || self.has(Flaw::HearsFormerPeers) { Ok(peer) } else { Err(dead) }
    }

    fn perform(&mut self, number: u32, sent: &mut Sent) -> Step {
        if let Work::Send { immediate, to: Some(to) } = sent.work {
            let bytes = self.bytes(sent);
            return self.datagram(number, to, &bytes, immediate);
        }
        let peer = match self.find_peer(number) {
            Ok(peer) => peer,
            Err(step) => return step,
        };
        let is_reliable = self.qp(number).config.transport == Transport::Rc;
        if matches!(sent.work, Work::Send { .. } | Work::Write { immediate: Some(_), .. }) {
            if !is_reliable && self.is_lost() {
                return Step::Over(Status::Success);
            }
            if self.qps[&peer].receives.is_empty() {
                return self.without_receive(number);
            }
        }
        let result = match sent.work {
            Work::Send { immediate, .. } => {
                let bytes = self.bytes(sent);
                return self.message(peer, is_reliable, &bytes, immediate, None);
            }
            Work::Write { remote, immediate } => {
                let bytes = self.bytes(sent);
                self.write(peer, remote, &bytes, immediate)
            }
            Work::Read { remote } => self.read(number, peer, remote, &mut sent.entry),
            Work::CompareSwap { remote, expected, desired } => {
                let always = self.has(Flaw::SwapsAlways);
                let change = |was| if was == expected || always { desired } else { was };
                self.atomic(peer, Verb::CompareSwap, remote, &mut sent.entry, change)
            }
            Work::FetchAdd { remote, add } => {
                self.messages += 1;
                let is_lost = self.has(Flaw::LosesAdditions) && self.messages.is_multiple_of(50);
                let change = |was: u64| if is_lost { was } else { was.wrapping_add(add) };
                self.atomic(peer, Verb::FetchAdd, remote, &mut sent.entry, change)
            }
        };
        Step::Over(result.err().filter(|_| is_reliable).unwrap_or(Status::Success))
    }

    fn is_lost(&mut self) -> bool {
        self.messages += 1;
        self.options.is_lossy && self.messages.is_multiple_of(3)
    }

    /// Handles a message for which the peer has posted no receive.
    fn without_receive(&mut self, number: u32) -> Step {
        let flaw = self.options.flaw;
        let qp = self.qp(number);
        if qp.config.transport != Transport::Rc {
            let keeps = flaw == Some(Flaw::KeepsUnreliableMessages);
            return if keeps { Step::Wait } else { Step::Over(Status::Success) };
        }
        qp.tries += 1;
        let is_over = qp.config.rnr_retries < 7 && qp.tries > u32::from(qp.config.rnr_retries);
        let gives_up = match flaw {
            Some(Flaw::FailsWithoutReceive) => true,
            Some(Flaw::WaitsForEver) => false,
            _ => is_over,
        };
        if gives_up { Step::Over(Status::RnrRetryExceeded) } else { Step::Wait }
    }

    fn datagram(&mut self, number: u32, to: Destination, bytes: &[u8], immediate: Option<u32>) -> Step {
        let peer = to.number.0;
        let listens = |other: &&Qp| {
            let is_deaf = self.has(Flaw::IsDeafUntilReadyToSend) && other.state == QpState::ReadyToReceive;
            let is_ready = matches!(other.state, QpState::ReadyToReceive | QpState::ReadyToSend);
            other.config.transport == Transport::Ud && to.handle == HANDLE && is_ready && !is_deaf
        };
        let Some(key) = self.qps.get(&peer).filter(listens).map(|other| other.config.qkey) else {
            let fails = self.has(Flaw::FailsDatagramsToNobody);
            return Step::Over(if fails { Status::RetryExceeded } else { Status::Success });
        };
        if (key != to.qkey && !self.has(Flaw::IgnoresQkeys)) || self.is_lost() {
            return Step::Over(Status::Success);
        }
        if self.qps[&peer].receives.is_empty() {
            return self.without_receive(number);
        }
        let sender = if self.has(Flaw::AnswersToItself) { peer } else { number };
        let from = Destination { handle: HANDLE, number: QpNumber(sender), qkey: key };
        let from = (!self.has(Flaw::ForgetsSenders)).then_some(from);
        self.message(peer, false, bytes, immediate, from)
    }

    /// Delivers a message to a queue pair that has posted a receive.
    fn message(
        &mut self,
        peer: u32,
        is_reliable: bool,
        bytes: &[u8],
        immediate: Option<u32>,
        from: Option<Destination>,
    ) -> Step {
        let room: usize = self.qps[&peer].receives[0].buffers.iter().map(|buffer| buffer.len()).sum();
        if bytes.len() > room && !self.has(Flaw::CutsLongMessages) {
            if is_reliable || self.options.reports_misfits {
                let (opcode, status) = (Opcode::Receive, Status::LocalLength);
                self.received(peer, Arrival { opcode, status, bytes: &[], len: 0, immediate: None, from: None });
                if self.qp(peer).config.transport.is_connected() {
                    self.fail(peer, Status::Flushed);
                }
            }
            return Step::Over(if is_reliable { Status::RemoteInvalidRequest } else { Status::Success });
        }
        let len = bytes.len().min(room);
        let (opcode, status, bytes) = (Opcode::Receive, Status::Success, &bytes[..len]);
        self.received(peer, Arrival { opcode, status, bytes, len, immediate, from });
        Step::Over(Status::Success)
    }

    fn received(&mut self, number: u32, arrival: Arrival<'_>) {
        let flaw = self.options.flaw;
        let qp = self.qp(number);
        let fills_last = flaw == Some(Flaw::FillsTheLastReceive);
        let posted = if fills_last { qp.receives.pop_back() } else { qp.receives.pop_front() };
        let Some(Posted { id, mut buffers }) = posted else { return };
        let Arrival { opcode, status, bytes, len, immediate, from } = arrival;
        let mut rest = bytes;
        for buffer in buffers.iter_mut().filter(|_| status.is_success()) {
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            if flaw == Some(Flaw::CorruptsMessages) && now.len() > 100 {
                buffer[99] ^= 1;
            }
            if flaw != Some(Flaw::LeavesBuffersLong) {
                buffer.resize(now.len()).expect("no longer than it was");
            }
            rest = later;
        }
        let immediate = immediate.or((flaw == Some(Flaw::MakesUpImmediates)).then_some(0));
        let qp = QpNumber(number);
        self.complete_receive(
            number,
            Completion { id, qp, status, opcode, len, immediate, from, buffers, range: None },
        );
    }

    /// The memory of a key, and the offset of an access in it, if the access is allowed.
    fn region(&self, peer: u32, verb: Verb, remote: RemoteMemory, len: usize) -> Result<(SharedMemory, usize), Status> {
        let offset_in = |region: &Region| remote.address.wrapping_sub(region.memory.address() as u64);
        let by_address = self.regions.values().find(|region| offset_in(region) < region.memory.len() as u64);
        let by_address = by_address.filter(|_| self.has(Flaw::IgnoresKeys));
        let region = self.regions.get(&remote.rkey).or(by_address).ok_or(Status::RemoteAccess)?;
        let offset = offset_in(region);
        let slack = if self.has(Flaw::IgnoresBounds) { 8 } else { 0 };
        let limit = region.memory.len() as u64 + slack;
        let is_good = (region.domain == self.qps[&peer].domain || self.has(Flaw::IgnoresDomains))
            && (region.access.allows(verb) || self.has(Flaw::IgnoresAccess))
            && offset.checked_add(len as u64).is_some_and(|end| end <= limit);
        if is_good { Ok((region.memory.clone(), offset as usize)) } else { Err(Status::RemoteAccess) }
    }

    fn write(&mut self, peer: u32, remote: RemoteMemory, bytes: &[u8], immediate: Option<u32>) -> Result<(), Status> {
        let verb = if immediate.is_some() { Verb::WriteWithImmediate } else { Verb::Write };
        let (memory, offset) = self.region(peer, verb, remote, bytes.len())?;
        let first = self.regions.values().next().filter(|_| self.has(Flaw::WritesToTheFirstRegion));
        let memory = first.map_or(memory, |region| region.memory.clone());
        // A flaw can let the access out of bounds, but nothing is written there.
        let bytes = &bytes[..bytes.len().min(memory.len().saturating_sub(offset))];
        let write = |offset, bytes: &[u8]| memory.write(offset, bytes).expect("in bounds");
        let nap = || std::thread::sleep(std::time::Duration::from_micros(300));
        match self.options.flaw {
            Some(Flaw::WritesAfterTheReceive) if immediate.is_some() => {}
            Some(Flaw::WritesLate) => self.delayed_writes.push((memory.clone(), offset, bytes.to_vec())),
            Some(Flaw::TearsWords) => {
                let mut torn = bytes.to_vec();
                torn.chunks_mut(8).filter(|word| word.len() == 8).for_each(|word| word[4..].fill(0));
                write(offset, &torn);
                nap();
                write(offset, bytes);
            }
            Some(Flaw::WritesInDescendingOrder) => {
                let half = bytes.len() / 16 * 8;
                write(offset + half, &bytes[half..]);
                nap();
                write(offset, &bytes[..half]);
            }
            Some(Flaw::WritesAByteMore) => write(offset, &[bytes, &[0]].concat()),
            _ => write(offset, bytes),
        }
        if immediate.is_some() {
            let (opcode, status, len) = (Opcode::ReceiveWrite, Status::Success, bytes.len());
            self.received(peer, Arrival { opcode, status, bytes: &[], len, immediate, from: None });
        }
        Ok(())
    }

    fn read(&mut self, number: u32, peer: u32, remote: RemoteMemory, entry: &mut WorkEntry) -> Result<(), Status> {
        let (memory, offset) = self.region(peer, Verb::Read, remote, entry.len)?;
        if let Some(behind) = self.qps[&number].sends.front().filter(|sent| sent.fence)
            && self.has(Flaw::IgnoresFences)
        {
            memory.write(offset, &self.bytes(behind)).expect("the same place");
        }
        let skipped = usize::from(self.has(Flaw::ReadsFromElsewhere) && entry.len > 8);
        let mut at = offset;
        let buffers = entry.targets.iter_mut().map(|buffer| &mut buffer[..]);
        for buffer in buffers.chain(entry.range.as_deref_mut()) {
            let fits = buffer.len().min(memory.len().saturating_sub(at));
            memory.read(at + skipped, &mut buffer[..fits]).expect("in bounds");
            at += fits;
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        peer: u32,
        verb: Verb,
        remote: RemoteMemory,
        entry: &mut WorkEntry,
        change: impl Fn(u64) -> u64,
    ) -> Result<(), Status> {
        let (memory, offset) = self.region(peer, verb, remote, 8)?;
        let Ok(mut was) = memory.load(offset) else { return Ok(()) };
        if self.has(Flaw::SplitsAtomics) {
            std::thread::sleep(std::time::Duration::from_micros(100));
            memory.store(offset, change(was)).expect("loaded before");
        } else {
            // The owner may be at work on the word too.
            loop {
                let found = memory.compare_swap(offset, was, change(was)).expect("loaded before");
                if found == was {
                    break;
                }
                was = found;
            }
        }
        let result = if self.has(Flaw::AtomicsReturnTheNewWord) { change(was) } else { was };
        entry.targets[0][..8].copy_from_slice(&result.to_ne_bytes());
        Ok(())
    }

    fn complete(&mut self, number: u32, mut entry: WorkEntry, status: Status) {
        let flaw = self.options.flaw;
        let was_signaled = entry.signaled;
        entry.signaled |= flaw == Some(Flaw::TellsEverything);
        if flaw == Some(Flaw::KeepsSources) {
            let nothing = Operation::Send { source: Source::Empty, immediate: None, to: None };
            let sources = std::mem::take(&mut entry.sources);
            self.kept.push(WorkEntry { sources, ..WorkEntry::new(Request::new(0, nothing)) });
        }
        let qp = self.qp(number);
        qp.unreported += 1;
        if flaw == Some(Flaw::FreesPlacesEarly) {
            qp.sends_held -= std::mem::take(&mut qp.unreported);
        }
        let Some(completion) = entry.complete(QpNumber(number), status) else { return };
        let is_kept = match flaw {
            Some(Flaw::KeepsFailuresToItself) => !status.is_success(),
            Some(Flaw::KeepsTargets) => status.is_success(),
            _ => false,
        };
        if is_kept && !was_signaled {
            return;
        }
        let ready = Ready { completion, frees: std::mem::take(&mut qp.unreported), epoch: qp.epoch, is_receive: false };
        let queue = qp.send_queue;
        self.push_completion(queue, ready);
        let ready = &mut self.queues.get_mut(&queue).expect("a queue lives as long as its users").ready;
        if let (Some(Flaw::CompletesOutOfOrder), Some(before)) = (flaw, ready.len().checked_sub(2)) {
            ready.swap(before, before + 1);
        }
    }

    fn complete_receive(&mut self, number: u32, completion: Completion) {
        let elsewhere = self.has(Flaw::CompletesReceivesWithRequests);
        let qp = self.qp(number);
        let queue = if elsewhere { qp.send_queue } else { qp.receive_queue };
        let ready = Ready { completion, frees: 1, epoch: qp.epoch, is_receive: true };
        self.push_completion(queue, ready);
    }

    fn push_completion(&mut self, queue: u64, mut ready: Ready) {
        if self.has(Flaw::NamesTheWrongQueuePair) {
            ready.completion.qp.0 ^= 1;
        }
        let is_dark = self.has(Flaw::LeavesDescriptorsDark);
        let queue = self.queues.get_mut(&queue).expect("a queue lives as long as its users");
        queue.ready.push_back(ready);
        if !is_dark {
            queue.waker.wake();
        }
    }

    /// Whether a request was posted that depends on others.
    pub fn has_posted(&self) -> bool {
        self.qps.values().any(|qp| !qp.sends.is_empty())
    }

    /// Ends everything that is posted.
    fn flush(&mut self, number: u32, first: Status) {
        let mut status = first;
        while let Some(sent) = self.qp(number).sends.pop_front() {
            self.complete(number, sent.entry, status);
            status = Status::Flushed;
        }
        self.qp(number).doorbell_count = 0;
        if self.has(Flaw::FlushesRequestsOnly) {
            return;
        }
        while let Some(Posted { id, buffers }) = self.qp(number).receives.pop_front() {
            let (qp, status, opcode) = (QpNumber(number), Status::Flushed, Opcode::Receive);
            let (immediate, from) = (None, None);
            let completion = Completion { id, qp, status, opcode, len: 0, immediate, from, buffers, range: None };
            self.complete_receive(number, completion);
        }
    }

    pub fn fail(&mut self, number: u32, first: Status) {
        self.qp(number).state = QpState::Error;
        self.flush(number, first);
    }

    pub fn reset(&mut self, number: u32) {
        if self.has(Flaw::ForgetsWhenReset) {
            let qp = self.qp(number);
            qp.sends.clear();
            qp.receives.clear();
        }
        self.flush(number, Status::Flushed);
        let qp = self.qp(number);
        (qp.state, qp.peer, qp.sends_held, qp.receives_held, qp.unreported) = (QpState::Reset, None, 0, 0, 0);
        qp.epoch += 1;
    }

    /// Frees the places of a completion that was polled.
    pub fn polled(&mut self, ready: &Ready) {
        let qp = self.qps.get_mut(&ready.completion.qp.0).filter(|qp| qp.epoch == ready.epoch);
        if let Some(qp) = qp {
            let held = if ready.is_receive { &mut qp.receives_held } else { &mut qp.sends_held };
            *held = held.saturating_sub(ready.frees);
        }
    }

    pub fn drop_qp(&mut self, number: u32) {
        let tells = self.has(Flaw::TellsOfTheDead);
        if tells {
            self.flush(number, Status::Flushed);
        }
        let Some(qp) = self.qps.remove(&number) else { return };
        let loses_room = self.has(Flaw::LosesRoom);
        for (number_of_queue, depth) in
            [(qp.send_queue, qp.config.send_depth), (qp.receive_queue, qp.config.receive_depth)]
        {
            if let Some(queue) = self.queues.get_mut(&number_of_queue) {
                queue.reserved -= if loses_room { 0 } else { depth };
                queue.ready.retain(|ready| tells || ready.completion.qp.0 != number);
            }
            self.leave_queue(number_of_queue);
        }
        if self.options.notices_death && !self.has(Flaw::OverlooksDeath) && !self.has(Flaw::ServesTheDead) {
            let was_ours = |other: &Qp| other.peer == Some((number, qp.epoch)) && other.state != QpState::Error;
            let left: Vec<u32> = self.qps.iter().filter(|(_, qp)| was_ours(qp)).map(|(&number, _)| number).collect();
            left.into_iter().for_each(|number| self.fail(number, Status::RetryExceeded));
        }
    }

    pub fn leave_queue(&mut self, number: u64) {
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.users -= 1;
            if queue.users == 0 {
                self.queues.remove(&number);
            }
        }
    }
}
