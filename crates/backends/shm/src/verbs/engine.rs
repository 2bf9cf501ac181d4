//! A thread's engine: its port, its queue pairs and its completion queues. Polling any of the queues turns it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::verbs::{
    Completion, Destination, QpAddress, QpConfig, QpNumber, Scatter, ThreadDomain, Transport, VerbsError,
};
use sinew_fabric::{Address, PacketPort, PacketRx, PacketTx, Peer, PortError, PortEvent, RxBurst, TxData, TxPacket};

use super::address::{Home, port_name};
use super::completion::{Frees, Queue, QueueWaker, Queues, Ready, ShmCompletionQueue};
use super::device::ShmDomain;
use super::initiator::Seat;
use super::life;
use super::packet::{Header, SHORT};
use super::queue_pair::{QueuePair, ShmQueuePair};
use super::receiving::Around;
use super::watch::WATCH_EVERY_NS;
use crate::port::ShmPort;
use crate::tx::ShmTx;

/// Turns between two looks at the clock, where nothing waits for a time.
const TURNS_PER_LOOK: u32 = 64;
/// How long a thread sleeps at most while something of it waits for what wakes nobody: a peer's receive, or room in its ring.
const NAP_NS: u64 = 200_000;
/// The most completions of one queue.
const COMPLETIONS_MAX: usize = 1 << 22;

/// Why a message or a packet was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// Receiving, UC and UD: no receive was posted.
    NoReceive,
    /// Receiving: there is no such queue pair, it does not receive, or is connected to another.
    NoSuchQueuePair,
    /// Receiving, UD: the datagram has not the queue pair's key.
    WrongKey,
    /// Receiving: what makes no sense.
    Malformed,
    /// Receiving, UC: a message of which another part was lost.
    Incomplete,
    /// Sending, UC and UD: the receiver's ring was full.
    Full,
    /// Sending, UC and UD: nobody listens there, or not any more.
    NobodyThere,
}

impl Discarded {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::NoReceive,
        Self::NoSuchQueuePair,
        Self::WrongKey,
        Self::Malformed,
        Self::Incomplete,
        Self::Full,
        Self::NobodyThere,
    ];
}

/// How much was discarded, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts([u64; Discarded::ALL.len()]);

impl Counts {
    #[inline]
    pub fn count(&mut self, reason: Discarded) {
        self.0[reason as usize] += 1;
    }
}

pub(crate) fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a queue pair sends through.
pub(crate) struct Wire<'a> {
    pub tx: &'a mut ShmTx,
    pub counts: &'a mut Counts,
    /// For messages that do not lie in one piece.
    pub scratch: &'a mut Vec<u8>,
    /// Whether something was put into a ring that the doorbells do not tell of yet.
    pub offered: bool,
}

/// What becomes of a thread's queue pairs beside their own state.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Queue pairs that owe an acknowledgement.
    pub owing: VecDeque<QpNumber>,
    /// Queue pairs whose requests wait.
    pub stalled: VecDeque<QpNumber>,
    /// Last words to peers.
    pub letters: VecDeque<(Peer, Header)>,
}

/// Everything of one thread.
pub(crate) struct Engine {
    pub domain: ShmDomain,
    pub port: ShmPort,
    pub port_number: u32,
    /// By the index in their numbers.
    pub(super) queue_pairs: Vec<Option<Box<QueuePair>>>,
    pub queues: Queues,
    /// At the devices in whose memory this thread works.
    seats: Vec<(u64, Rc<Seat>)>,
    pub(super) notes: Notes,
    pub(super) scratch: Vec<u8>,
    pub(super) counts: Counts,
    epochs: u32,
    turns: u32,
    pub(super) time_ns: u64,
    /// When messages were last looked after.
    pub(super) watched_ns: u64,
}

/// A queue pair and what it works with, apart.
pub(crate) struct At<'a> {
    pub qp: &'a mut QueuePair,
    pub queues: &'a mut Queues,
    pub notes: &'a mut Notes,
    pub wire: Wire<'a>,
}

impl Engine {
    fn new(domain: ShmDomain) -> Result<Self, VerbsError> {
        let (port, port_number) = domain.device().port()?;
        Ok(Self {
            domain,
            port,
            port_number,
            queue_pairs: Vec::new(),
            queues: Queues::default(),
            seats: Vec::new(),
            notes: Notes::default(),
            scratch: Vec::new(),
            counts: Counts::default(),
            epochs: 0,
            turns: 0,
            time_ns: clock_ns(),
            watched_ns: 0,
        })
    }

    /// The queue pair of a handle, and what it works with.
    #[inline(always)]
    pub fn at(&mut self, number: QpNumber) -> At<'_> {
        let Self { queue_pairs, queues, notes, port, counts, scratch, .. } = self;
        let qp = queue_pairs[(number.0 & 0xFFFF) as usize].as_deref_mut();
        At {
            qp: qp.expect("a queue pair is there as long as its handle"),
            queues,
            notes,
            wire: Wire { tx: port.split().1, counts, scratch, offered: false },
        }
    }

    /// The queue pair alone, and the queues.
    #[inline(always)]
    pub fn queue_pair(&mut self, number: QpNumber) -> (&mut QueuePair, &mut Queues) {
        let qp = self.queue_pairs[(number.0 & 0xFFFF) as usize].as_deref_mut();
        (qp.expect("a queue pair is there as long as its handle"), &mut self.queues)
    }

    /// A number for the next life of a queue pair.
    pub fn epoch(&mut self) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        self.epochs
    }

    /// Takes completions out of a queue.
    #[inline]
    pub fn take(&mut self, index: usize, completions: &mut Vec<Completion>, max: usize) -> usize {
        let Self { queues, queue_pairs, .. } = self;
        let Queues { list, pool } = queues;
        let Some(Some(queue)) = list.get_mut(index) else { return 0 };
        let count = queue.ready.len().min(max);
        completions.reserve(count);
        let mut taken = 0;
        // Filled where they stay: see `fifo`.
        for place in completions.spare_capacity_mut().iter_mut().take(count) {
            let Some(ready) = queue.ready.front() else { break };
            let Ready { id, qp: number, status, opcode, len, immediate, from, frees, epoch, .. } = *ready;
            let buffers = Scatter::new_const();
            let completion = place.write(Completion { id, qp: number, status, opcode, len, immediate, from, buffers });
            ready.buffers.take_to(&mut completion.buffers, pool);
            queue.ready.drop_front();
            taken += 1;
            if let Some(qp) = find(queue_pairs, number)
                && qp.epoch == epoch
            {
                match frees {
                    Frees::Requests(before) => qp.requests_known = before,
                    Frees::Receive => qp.receives_held -= 1,
                }
            }
        }
        // SAFETY: so many were written behind its end, in room that it has.
        unsafe { completions.set_len(completions.len() + taken) };
        taken
    }

    /// Takes what has come, and sends what waits. Returns how many packets came.
    #[inline]
    pub fn turn(&mut self) -> usize {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.look_at_clock();
        }
        let Self { port, queue_pairs, queues, notes, counts, scratch, .. } = self;
        let packets = {
            // Dropped where it lies: it is thousands of bytes.
            let mut burst = RxBurst::new(self.time_ns);
            port.split().0.receive(&mut burst);
            let mut around = Around { queues, notes, counts, scratch };
            for packet in &burst.packets {
                let Some((header, rest)) = Header::read(packet.head) else {
                    around.counts.count(Discarded::Malformed);
                    continue;
                };
                match find(queue_pairs, header.to) {
                    Some(qp) => qp.deliver(header, rest, packet, &mut around),
                    None => around.counts.count(Discarded::NoSuchQueuePair),
                }
            }
            burst.packets.len()
        };
        self.notice_losses();
        if !self.notes.owing.is_empty() || !self.notes.stalled.is_empty() || !self.notes.letters.is_empty() {
            self.send_what_waits();
        }
        packets
    }

    /// As [`Self::turn`], in a place of its own: polling has its turn inline, and only one of them.
    #[cold]
    #[inline(never)]
    pub fn turn_before_sleep(&mut self) -> usize {
        let packets = self.turn();
        self.look_at_clock();
        packets
    }

    /// Sees what time it is, and whether it is time to look after messages.
    #[inline]
    pub fn look_at_clock(&mut self) {
        self.time_ns = clock_ns();
        if self.time_ns.saturating_sub(self.watched_ns) >= WATCH_EVERY_NS {
            self.watch();
        }
    }

    #[inline]
    fn notice_losses(&mut self) {
        while let Some(PortEvent::PeerLost { peer, .. }) = self.port.poll_event() {
            for qp in self.queue_pairs.iter_mut().flatten() {
                if qp.connection.as_ref().is_some_and(|connection| connection.link == peer) {
                    qp.lose_peer(&mut self.queues, &mut self.notes);
                }
            }
        }
    }

    #[inline(never)]
    fn send_what_waits(&mut self) {
        // Acknowledgements, of which each turn of a busy receiver has one, wait for no time.
        if !self.notes.stalled.is_empty() {
            self.time_ns = clock_ns();
        }
        let Self { queue_pairs, queues, notes, port, counts, scratch, .. } = self;
        let mut wire = Wire { tx: port.split().1, counts, scratch, offered: false };
        for _ in 0..notes.owing.len() {
            let Some(number) = notes.owing.pop_front() else { break };
            if let Some(qp) = find(queue_pairs, number)
                && !qp.acknowledge(&mut wire)
            {
                notes.owing.push_back(number);
            }
        }
        for _ in 0..notes.stalled.len() {
            let Some(number) = notes.stalled.pop_front() else { break };
            if let Some(qp) = find(queue_pairs, number) {
                qp.is_stalled = false;
                qp.advance(&mut wire, queues, notes);
            }
        }
        // A peer that takes nothing keeps its own letters waiting, in their order, and nobody else's.
        let mut full = Vec::new();
        notes.letters.retain(|&(peer, header)| {
            let waits = full.contains(&peer);
            let stays = waits || !wire.send_header(peer, header);
            if stays && !waits {
                full.push(peer);
            }
            stays
        });
        wire.submit();
    }

    /// How long the thread may sleep at most.
    pub fn nap_ns(&self) -> Option<u64> {
        let Notes { owing, stalled, letters } = &self.notes;
        if !owing.is_empty() || !stalled.is_empty() || !letters.is_empty() {
            return Some(NAP_NS);
        }
        self.queue_pairs.iter().flatten().any(|qp| qp.waits_for_peer()).then_some(WATCH_EVERY_NS)
    }

    pub fn drop_queue_pair(&mut self, number: QpNumber) {
        let index = (number.0 & 0xFFFF) as usize;
        let Some(mut qp) = self.queue_pairs.get_mut(index).and_then(Option::take) else { return };
        let Self { queues, notes, port, counts, scratch, .. } = self;
        let mut wire = Wire { tx: port.split().1, counts, scratch, offered: false };
        // What it received is acknowledged before it says that it goes.
        if qp.owes {
            qp.acknowledge(&mut wire);
        }
        qp.leave_peer(notes);
        qp.clear(queues);
        queues.forget(qp.send_queue, number);
        queues.forget(qp.receive_queue, number);
        queues.release(qp.send_queue, qp.config.send_depth);
        queues.release(qp.receive_queue, qp.config.receive_depth);
        self.domain.device().memory().give_back_number(number);
        self.send_what_waits();
    }

    /// A seat at the device of `home`.
    pub fn seat(&mut self, home: &Home) -> Result<Rc<Seat>, VerbsError> {
        if let Some((_, seat)) = self.seats.iter().find(|(incarnation, _)| *incarnation == home.incarnation) {
            return Ok(Rc::clone(seat));
        }
        // What nobody uses of a device that is gone is its descriptors and its address space.
        self.seats.retain(|(_, seat)| Rc::strong_count(seat) > 1 || life::is_alive(seat.target.directory.life()));
        let seat = Rc::new(self.domain.device().target(home)?.seat()?);
        self.seats.push((home.incarnation, Rc::clone(&seat)));
        Ok(seat)
    }

    /// The way to the port of `home`.
    pub fn resolve(&mut self, home: &Home) -> Result<Peer, VerbsError> {
        let address = Address::new("shm", &port_name(&home.device, home.port));
        self.port
            .resolve(&address)
            .map_err(|error: PortError| VerbsError::Address(format!("its thread cannot be reached: {error}")))
    }
}

/// The queue pair of this number, if it is there.
#[inline(always)]
fn find(queue_pairs: &mut [Option<Box<QueuePair>>], number: QpNumber) -> Option<&mut QueuePair> {
    let qp = queue_pairs.get_mut((number.0 & 0xFFFF) as usize)?.as_deref_mut()?;
    (qp.number == number).then_some(qp)
}

impl Wire<'_> {
    /// Tells the receivers of what was put into their rings.
    #[inline(always)]
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.offered) {
            self.tx.submit();
        }
    }

    /// Sends a packet of a header alone; false when there is no room for it now.
    pub fn send_header(&mut self, to: Peer, header: Header) -> bool {
        let (bytes, len) = header.to_bytes();
        debug_assert_eq!(len, SHORT);
        let packet = TxPacket { to, head: &bytes[..len], data: TxData::None };
        self.offered = true;
        !matches!(self.tx.offer(packet), Err(sinew_fabric::Dropped::Full))
    }
}

/// The queues of one thread. Dropping the last handle on them, and on the queues, closes the thread's port.
pub struct ShmThread {
    pub(super) engine: Rc<RefCell<Engine>>,
}

impl std::fmt::Debug for ShmThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmThread").finish_non_exhaustive()
    }
}

impl ShmThread {
    pub(super) fn new(domain: ShmDomain) -> Result<Self, VerbsError> {
        Ok(Self { engine: Rc::new(RefCell::new(Engine::new(domain)?)) })
    }

    /// Messages and packets of this thread that were discarded for a reason.
    pub fn discarded(&self, reason: Discarded) -> u64 {
        self.engine.borrow().counts.0[reason as usize]
    }
}

impl ThreadDomain for ShmThread {
    type Cq = ShmCompletionQueue;
    type Qp = ShmQueuePair;

    fn completion_queue(&self, depth: usize) -> Result<ShmCompletionQueue, VerbsError> {
        if depth > COMPLETIONS_MAX {
            return Err(VerbsError::Limit { what: "completions of a queue", asked: depth, limit: COMPLETIONS_MAX });
        }
        let engine = &mut *self.engine.borrow_mut();
        let (queue, waker): (Queue, Arc<QueueWaker>) = Queue::new(depth, engine.port.waker());
        let list = &mut engine.queues.list;
        let index = list.iter().position(Option::is_none).unwrap_or(list.len());
        if index == list.len() {
            list.push(None);
        }
        list[index] = Some(queue);
        Ok(ShmCompletionQueue::new(Rc::clone(&self.engine), index, waker))
    }

    fn queue_pair(
        &self,
        config: &QpConfig,
        send: &ShmCompletionQueue,
        receive: &ShmCompletionQueue,
    ) -> Result<ShmQueuePair, VerbsError> {
        let attributes = sinew_fabric::verbs::Device::attributes(self.engine.borrow().domain.device()).clone();
        for (what, asked, limit) in [
            ("requests of a queue pair", config.send_depth, attributes.queue_depth_max),
            ("receives of a queue pair", config.receive_depth, attributes.queue_depth_max),
            ("bytes inline", config.inline_max, attributes.inline_max),
            ("pieces of a source or target", config.gather_max, attributes.gather_max),
        ] {
            if asked > limit {
                return Err(VerbsError::Limit { what, asked, limit });
            }
        }
        if !send.is_of(&self.engine) || !receive.is_of(&self.engine) {
            return Err(VerbsError::Device("a completion queue is of another thread's".to_owned()));
        }
        let engine = &mut *self.engine.borrow_mut();
        let queues = &mut engine.queues;
        queues.get(send.index()).reserve(config.send_depth)?;
        queues
            .get(receive.index())
            .reserve(config.receive_depth)
            .inspect_err(|_| queues.release(send.index(), config.send_depth))?;
        let number = engine.domain.device().number().inspect_err(|_| {
            queues.release(send.index(), config.send_depth);
            queues.release(receive.index(), config.receive_depth);
        })?;
        let epoch = engine.epoch();
        let qp = QueuePair::new(number, config, engine.domain.clone(), epoch, (send.index(), receive.index()));
        let index = (number.0 & 0xFFFF) as usize;
        if engine.queue_pairs.len() <= index {
            engine.queue_pairs.resize_with(index + 1, || None);
        }
        engine.queue_pairs[index] = Some(Box::new(qp));
        Ok(ShmQueuePair::new(Rc::clone(&self.engine), number, attributes, config))
    }

    fn destination(&self, to: &QpAddress) -> Result<Destination, VerbsError> {
        if to.transport != Transport::Ud {
            return Err(VerbsError::Address(format!("it is one of a {:?} queue pair, not of a UD one", to.transport)));
        }
        let home = Home::from_bytes(&to.port)?;
        let link = self.engine.borrow_mut().resolve(&home)?;
        Ok(Destination { handle: handle_of(link), number: to.number, qkey: to.qkey })
    }
}

/// A link in one word: 16 bits of its index, the rest of its generation.
#[inline(always)]
pub(crate) fn handle_of(link: Peer) -> u64 {
    link.0[1] << 16 | link.0[0] & 0xFFFF
}

#[inline(always)]
pub(crate) fn link_of(handle: u64) -> Peer {
    Peer([handle & 0xFFFF, handle >> 16, 0])
}
