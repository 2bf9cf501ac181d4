//! A thread's engine: its port, its queue pairs and its completion queues. Polling any of the completion queues runs a
//! turn of it.

use std::rc::Rc;

use sinew_fabric::verbs::{Completion, Message, QpNumber, Status, VerbsError};
use sinew_fabric::{Address, PacketPort, Peer, PortError, PortEvent, RxPacket};
use sinew_mem::ring::{Consumer, InRing, Taken};

use super::address::{Home, port_name};
use super::clock::clock_ns;
use super::counts::{Counts, Discarded};
use super::device::ShmDomain;
use super::initiator::Seat;
use super::life;
use super::packet::{Datagram, Header};
use super::queue_pair::{Inbound, QueuePair, Stopped, WATCH_EVERY_NS};
use super::queues::{Freed, FreedSlots, Queues};
use super::wire::{Deferred, Wire};
use crate::port::ShmPort;
use crate::rx::{BURST_MAX, BurstRoom, PacketSink};

/// Turns between two readings of the clock, where nothing waits for a time.
const TURNS_PER_CLOCK_READ: u32 = 64;
/// Longest sleep of a thread, in ns, while it waits for something that wakes nobody: a peer's receive, or room in its
/// ring.
const NAP_NS: u64 = 200_000;
/// Everything of one thread.
pub(crate) struct Engine {
    pub domain: ShmDomain,
    pub port: ShmPort,
    pub port_number: u32,
    /// Queue pairs by the index in their numbers.
    pub(super) queue_pairs: Vec<Option<Box<QueuePair>>>,
    pub queues: Queues,
    /// Seats at the devices in whose memory this thread works, by incarnation.
    seats: Vec<(u64, Rc<Seat>)>,
    pub(super) notes: Deferred,
    pub(super) scratch: Vec<u8>,
    pub(super) counts: Counts,
    epochs: u32,
    turns: u32,
    pub(super) time_ns: u64,
    /// Time of the last check of unacknowledged messages, in ns.
    pub(super) probed_ns: u64,
}

/// A queue pair and the parts of its engine that it works with, borrowed separately.
pub(crate) struct Parts<'a> {
    pub qp: &'a mut QueuePair,
    pub queues: &'a mut Queues,
    pub notes: &'a mut Deferred,
    pub wire: Wire<'a>,
}

impl Engine {
    pub fn new(domain: ShmDomain) -> Result<Self, VerbsError> {
        let (port, port_number) = domain.device().port()?;
        Ok(Self {
            domain,
            port,
            port_number,
            queue_pairs: Vec::new(),
            queues: Queues::default(),
            seats: Vec::new(),
            notes: Deferred::default(),
            scratch: Vec::new(),
            counts: Counts::default(),
            epochs: 0,
            turns: 0,
            time_ns: clock_ns(),
            probed_ns: 0,
        })
    }

    /// The queue pair of a handle, and the parts of the engine that it works with.
    #[inline(always)]
    pub fn parts(&mut self, number: QpNumber) -> Parts<'_> {
        let Self { queue_pairs, queues, notes, port, counts, scratch, .. } = self;
        let qp = queue_pairs[(number.0 & 0xFFFF) as usize].as_deref_mut();
        Parts {
            qp: qp.expect("a queue pair exists as long as its handle"),
            queues,
            notes,
            wire: Wire { tx: port.split().1, counts, scratch, offered: false },
        }
    }

    /// The queue pair of a handle, and the queues alone.
    #[inline(always)]
    pub fn queue_pair(&mut self, number: QpNumber) -> (&mut QueuePair, &mut Queues) {
        let qp = self.queue_pairs[(number.0 & 0xFFFF) as usize].as_deref_mut();
        (qp.expect("a queue pair exists as long as its handle"), &mut self.queues)
    }

    /// A number for the next life of a queue pair.
    pub fn epoch(&mut self) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        self.epochs
    }

    /// Moves up to `max` completions out of a queue, and returns their number.
    #[inline]
    pub fn take(&mut self, index: usize, completions: &mut Vec<Completion>, max: usize) -> usize {
        let Self { queues, queue_pairs, .. } = self;
        queues.get(index).take(completions, max, |frees| free(queue_pairs, frees))
    }

    /// Receives a burst of packets, and sends what waits. Returns how many packets came.
    #[inline]
    pub fn turn(&mut self) -> usize {
        self.turn_showing(None::<&mut Audience<fn(Message<'_>)>>)
    }

    /// As [`Self::turn`], and shows datagrams to an audience, if there is one.
    #[inline]
    pub fn turn_showing<F: FnMut(Message<'_>)>(&mut self, audience: Option<&mut Audience<F>>) -> usize {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CLOCK_READ) {
            self.update_time();
        }
        let Self { port, queue_pairs, queues, notes, counts, scratch, .. } = self;
        let mut arrivals = Arrivals { queue_pairs, inbound: Inbound { queues, notes, counts, scratch }, audience };
        // SAFETY: arrivals are not kept, so there is room for any number.
        let packets = unsafe { port.split().0.receive_each(self.time_ns, BURST_MAX, &mut arrivals) };
        self.handle_lost_peers();
        if !self.notes.owing_acks.is_empty() || !self.notes.stalled.is_empty() || !self.notes.final_packets.is_empty() {
            self.send_deferred();
        }
        packets
    }

    /// Like [`Self::turn`], but not inlined: only polling has an inlined turn, and only one.
    #[cold]
    #[inline(never)]
    pub fn turn_before_sleep(&mut self) -> usize {
        let packets = self.turn();
        self.update_time();
        packets
    }

    /// Reads the clock, and checks the unacknowledged messages when that is due.
    #[inline]
    pub fn update_time(&mut self) {
        self.time_ns = clock_ns();
        if self.time_ns.saturating_sub(self.probed_ns) >= WATCH_EVERY_NS {
            self.probe_acks();
        }
    }

    /// Checks the messages that are not acknowledged.
    #[cold]
    #[inline(never)]
    pub(super) fn probe_acks(&mut self) {
        self.probed_ns = self.time_ns;
        let Self { port, queue_pairs, queues, notes, counts, scratch, .. } = self;
        let mut wire = Wire { tx: port.split().1, counts, scratch, offered: false };
        for qp in queue_pairs.iter_mut().flatten() {
            if qp.probe_for_lost_ack(&mut wire) {
                qp.fail_and_disconnect(Status::RetryExceeded, queues, notes);
            }
        }
        wire.submit();
    }

    #[inline]
    fn handle_lost_peers(&mut self) {
        while let Some(PortEvent::PeerLost { peer, .. }) = self.port.poll_event() {
            for qp in self.queue_pairs.iter_mut().flatten() {
                if qp.connection.as_ref().is_some_and(|connection| connection.link == peer) {
                    qp.lose_peer(&mut self.queues, &mut self.notes);
                }
            }
        }
    }

    #[inline(never)]
    fn send_deferred(&mut self) {
        // Only stalled requests need the time: acknowledgements, of which each turn of a busy receiver has one, do not.
        if !self.notes.stalled.is_empty() {
            self.time_ns = clock_ns();
        }
        let Self { queue_pairs, queues, notes, port, counts, scratch, .. } = self;
        let mut wire = Wire { tx: port.split().1, counts, scratch, offered: false };
        for _ in 0..notes.owing_acks.len() {
            let Some(number) = notes.owing_acks.pop_front() else { break };
            if let Some(qp) = find(queue_pairs, number)
                && !qp.acknowledge(&mut wire)
            {
                notes.owing_acks.push_back(number);
            }
        }
        for _ in 0..notes.stalled.len() {
            let Some(number) = notes.stalled.pop_front() else { break };
            if let Some(qp) = find(queue_pairs, number) {
                qp.is_stalled = false;
                qp.advance(&mut wire, queues, notes);
            }
        }
        // A peer that takes nothing keeps its own final packets waiting, in order, and nobody else's.
        let mut full = Vec::new();
        notes.final_packets.retain(|&(peer, header)| {
            let waits = full.contains(&peer);
            let stays = waits || !wire.send_header(peer, header);
            if stays && !waits {
                full.push(peer);
            }
            stays
        });
        wire.submit();
    }

    /// Longest time for which the thread may sleep, in ns; `None` when there is no limit.
    pub fn nap_ns(&self) -> Option<u64> {
        let Deferred { owing_acks, stalled, final_packets } = &self.notes;
        if !owing_acks.is_empty() || !stalled.is_empty() || !final_packets.is_empty() {
            return Some(NAP_NS);
        }
        self.queue_pairs.iter().flatten().any(|qp| qp.waits_for_peer()).then_some(WATCH_EVERY_NS)
    }

    pub fn drop_queue_pair(&mut self, number: QpNumber) {
        let index = (number.0 & 0xFFFF) as usize;
        let Some(mut qp) = self.queue_pairs.get_mut(index).and_then(Option::take) else { return };
        let Self { queues, notes, port, counts, scratch, .. } = self;
        let mut wire = Wire { tx: port.split().1, counts, scratch, offered: false };
        // Messages that it received are acknowledged before it says that it goes.
        if qp.owes_ack {
            qp.acknowledge(&mut wire);
        }
        qp.disconnect(notes);
        qp.clear(queues);
        queues.get(qp.ledger.queue).forget(number);
        queues.get(qp.receive_queue).forget(number);
        queues.release(qp.ledger.queue, qp.config.send_depth);
        queues.release(qp.receive_queue, qp.config.receive_depth);
        self.domain.device().memory().give_back_number(number);
        self.send_deferred();
    }

    /// This thread's seat at the device of `home`.
    pub fn seat(&mut self, home: &Home) -> Result<Rc<Seat>, VerbsError> {
        if let Some((_, seat)) = self.seats.iter().find(|(incarnation, _)| *incarnation == home.incarnation) {
            return Ok(Rc::clone(seat));
        }
        // A dead device's unused seat would hold its descriptors and its address space.
        self.seats.retain(|(_, seat)| Rc::strong_count(seat) > 1 || life::is_alive(seat.target.directory.life()));
        let seat = Rc::new(self.domain.device().target(home)?.seat()?);
        self.seats.push((home.incarnation, Rc::clone(&seat)));
        Ok(seat)
    }

    /// The link to the port of `home`.
    pub fn resolve(&mut self, home: &Home) -> Result<Peer, VerbsError> {
        let address = Address::new("shm", &port_name(&home.device, home.port));
        self.port
            .resolve(&address)
            .map_err(|error: PortError| VerbsError::Address(format!("its thread cannot be reached: {error}")))
    }
}

/// A user who polls for datagrams to a queue pair, and reads each where it is.
pub(crate) struct Audience<F> {
    pub of: QpNumber,
    /// Index of the completion queue that is polled.
    pub queue: usize,
    /// Most datagrams to be shown, and those that were.
    pub max: usize,
    pub shown: usize,
    /// The user's own function. Calls of a reference to it would not be inlined.
    pub take: F,
}

/// Hands the packets of a burst to their queue pairs.
struct Arrivals<'e, F> {
    queue_pairs: &'e mut [Option<Box<QueuePair>>],
    inbound: Inbound<'e>,
    audience: Option<&'e mut Audience<F>>,
}

// SAFETY: `take_next` returns what the consumer has taken last. `take_datagrams` and `show_datagrams` lower `left` by
// what they took. When that leaves none, they answer `ForRoom` or `AtEnd`, after which nothing is taken.
unsafe impl<'a, F: FnMut(Message<'_>)> PacketSink<'a> for Arrivals<'_, F> {
    #[inline(always)]
    fn take_next(&mut self, from: Peer, consumer: &mut Consumer, room: &mut BurstRoom) -> Option<Taken> {
        while let Some((words, _)) = consumer.next_whole().and_then(InRing::split_words)
            && let Some(datagram) = Datagram::from_words(words)
            && let Some(qp) = find(self.queue_pairs, datagram.to)
        {
            let stopped = match &mut self.audience {
                // What was put into the queue meanwhile comes first.
                Some(Audience { of, queue, max, shown, take })
                    if (*of, *queue) == (qp.number, qp.receive_queue)
                        && self.inbound.queues.get(qp.receive_queue).is_empty() =>
                {
                    let (count, stopped) = qp.show_datagrams(from, consumer, room, *max - *shown, take);
                    *shown += count;
                    stopped
                }
                _ => qp.take_datagrams(from, consumer, room, self.inbound.queues),
            };
            match stopped {
                Stopped::AtOnce => break,
                Stopped::Later => {}
                Stopped::AtEnd | Stopped::ForRoom => return None,
            }
        }
        consumer.take()
    }

    #[inline(always)]
    unsafe fn push_whole(&mut self, from: Peer, bytes: &'a [u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.push_with_tail(RxPacket { from, head: bytes, tail: None }) };
    }

    #[inline(never)]
    unsafe fn push_with_tail(&mut self, packet: RxPacket<'a>) {
        let Self { queue_pairs, inbound, .. } = self;
        let Some((header, rest)) = Header::read(packet.head) else {
            inbound.counts.count(Discarded::Malformed);
            return;
        };
        match find(queue_pairs, header.to) {
            Some(qp) => qp.deliver(header, rest, &packet, inbound),
            None => inbound.counts.count(Discarded::NoSuchQueuePair),
        }
    }
}

/// Frees places. Those of one life of a queue pair are counted together: all requests before one, and some receives.
#[inline(always)]
fn free(queue_pairs: &mut [Option<Box<QueuePair>>], frees: &[Freed]) {
    let mut frees = frees.iter().peekable();
    while let Some(Freed { of, slots }) = frees.next() {
        let (mut requests, mut receives) = (0, 0);
        let mut count = |slots: &FreedSlots| match *slots {
            FreedSlots::Requests(before) => requests = before,
            FreedSlots::Receive => receives += 1,
        };
        count(slots);
        while let Some(next) = frees.next_if(|next| next.of == *of) {
            count(&next.slots);
        }
        // A queue pair that was reset since has another life.
        if let Some(qp) = find(queue_pairs, of.number()).filter(|qp| qp.ledger.life == *of) {
            qp.ledger.polled = qp.ledger.polled.max(requests);
            qp.receives_held -= receives;
        }
    }
}

/// The queue pair of this number, if it exists.
#[inline(always)]
fn find(queue_pairs: &mut [Option<Box<QueuePair>>], number: QpNumber) -> Option<&mut QueuePair> {
    let qp = queue_pairs.get_mut((number.0 & 0xFFFF) as usize)?.as_deref_mut()?;
    (qp.number == number).then_some(qp)
}
