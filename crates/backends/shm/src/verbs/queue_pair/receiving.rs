//! The receive queue: it checks arriving packets, and puts their bytes into the posted buffers.

use std::ops::ControlFlow;

use sinew_fabric::verbs::{
    Completion, Destination, Message, Opcode, PostError, QpState, Scatter, Status, Transport, check_receive,
};
use sinew_fabric::{Peer, RxPacket};
use sinew_mem::copy::copy_short;
use sinew_mem::ring::{Consumer, InRing};
use sinew_mem::{MessageBuffer, Revoked, SharedBytes};

use super::QueuePair;
use crate::rx::BurstRoom;
use crate::verbs::counts::{Counts, Discarded};
use crate::verbs::device::MESSAGE_LEN_MAX;
use crate::verbs::fifo::Buffers;
use crate::verbs::packet::{Datagram, Header, Kind};
use crate::verbs::queues::{Freed, FreedSlots, Queues};
use crate::verbs::wire::{Deferred, Wire, handle_of};

/// A posted receive: buffers for one message.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    pub id: u64,
    pub buffers: Buffers,
}

/// Result of the oldest receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOutcome {
    pub status: Status,
    pub opcode: Opcode,
    pub len: usize,
    pub immediate: Option<u32>,
    pub from: Option<Destination>,
}

impl Default for ReceiveOutcome {
    fn default() -> Self {
        Self { status: Status::Success, opcode: Opcode::Receive, len: 0, immediate: None, from: None }
    }
}

/// A message of which parts are missing. It fills the buffers of the oldest receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assembly {
    number: u32,
    received: usize,
    total: usize,
}

/// The bytes of a message, or of a part of one.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    head: &'a [u8],
    tail: Option<SharedBytes<'a>>,
}

impl Bytes<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.head.len() + self.tail.map_or(0, |tail| tail.len())
    }

    /// Copies the bytes to the buffers from byte `offset` on. The buffers have room.
    #[inline(always)]
    fn place(&self, buffers: &mut [MessageBuffer], offset: usize, scratch: &mut Vec<u8>) -> Result<(), Revoked> {
        scatter(buffers, offset, self.head);
        match self.tail {
            None => Ok(()),
            Some(tail) => place_tail(tail, buffers, offset + self.head.len(), scratch),
        }
    }
}

#[inline(always)]
fn scatter(buffers: &mut [MessageBuffer], offset: usize, bytes: &[u8]) {
    let (mut skip, mut rest) = (offset, bytes);
    for buffer in buffers {
        if skip >= buffer.len() {
            skip -= buffer.len();
            continue;
        }
        let room = &mut buffer[skip..];
        let (now, later) = rest.split_at(rest.len().min(room.len()));
        copy_short(&mut room[..now.len()], now);
        (skip, rest) = (0, later);
        if rest.is_empty() {
            return;
        }
    }
}

#[inline(never)]
fn place_tail(
    tail: SharedBytes<'_>,
    buffers: &mut [MessageBuffer],
    offset: usize,
    scratch: &mut Vec<u8>,
) -> Result<(), Revoked> {
    let mut skip = offset;
    for buffer in buffers.iter_mut() {
        if skip < buffer.len() {
            if let Some(room) = buffer.get_mut(skip..skip + tail.len()) {
                return tail.copy_to(room);
            }
            break;
        }
        skip -= buffer.len();
    }
    scratch.resize(tail.len(), 0);
    tail.copy_to(scratch)?;
    scatter(buffers, offset, scratch);
    Ok(())
}

/// Bytes that the buffers hold.
#[inline(always)]
fn capacity_of(buffers: &[MessageBuffer]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

/// Shortens the buffers to the `len` bytes that arrived in them.
#[inline(always)]
fn shorten(buffers: &mut [MessageBuffer], len: usize) {
    let mut left = len;
    for buffer in buffers {
        let now = left.min(buffer.len());
        left -= now;
        buffer.truncate(now);
    }
}

/// Where [`QueuePair::take_datagrams`] stopped.
pub(crate) enum Stopped {
    /// At the first packet.
    AtOnce,
    /// At a later one.
    Later,
    /// After the last packet: another look would find nothing.
    AtEnd,
    /// The user's places, the receives or the burst's room are used up, and the ring may hold more.
    ForRoom,
}

impl Stopped {
    /// After `count` datagrams, of `most` for which there was room.
    #[inline(always)]
    fn after(count: usize, most: usize) -> Self {
        match count {
            0 => Self::AtOnce,
            _ if count == most => Self::ForRoom,
            _ => Self::Later,
        }
    }
}

/// The header and the message of a packet, if it is a datagram to the queue pair of this first word and key.
#[inline(always)]
fn message_to(first_word: u64, key: u32, packet: InRing<'_>) -> Option<(Datagram, InRing<'_>)> {
    let (words, message) = packet.split_words()?;
    let datagram = Datagram::from_words_to(first_word, words)?;
    (datagram.key == key).then_some((datagram, message))
}

/// The parts of an engine that an arrival changes besides the queue pair.
pub(crate) struct Inbound<'a> {
    pub queues: &'a mut Queues,
    pub notes: &'a mut Deferred,
    pub counts: &'a mut Counts,
    pub scratch: &'a mut Vec<u8>,
}

impl QueuePair {
    /// Takes datagrams for the user who is polling: their bytes go from the ring to the buffers, and the completions to
    /// the user's list. Stops at the first packet that needs another path.
    #[inline(never)]
    pub fn take_datagrams(
        &mut self,
        from: Peer,
        consumer: &mut Consumer,
        room: &mut BurstRoom,
        queues: &mut Queues,
    ) -> Stopped {
        let Some(key) = self.datagram_key else { return Stopped::AtOnce };
        let (qp, first_word, handle) = (self.number, Datagram::first_word_to(self.number), handle_of(from));
        let queue = queues.get(self.receive_queue);
        let (places, posted) = (queue.places_for_poller(), self.receives.front_slice());
        let most = places.len().min(posted.len()).min(room.left);
        let (mut places, mut posted) = (places[..most].iter_mut(), posted[..most].iter_mut());
        let mut bytes = 0;
        consumer.take_whole(|packet| {
            let Some((datagram, message)) = message_to(first_word, key, packet) else { return false };
            let Some(posted) = posted.next() else { return false };
            let Some(mut buffer) = posted.buffers.take_single() else { return false };
            if !message.copy_to(&mut buffer) {
                posted.buffers = Buffers::one(buffer);
                return false;
            }
            let Datagram { from: number, immediate, .. } = datagram;
            let (id, len) = (posted.id, message.len());
            buffer.truncate(len);
            let Some(place) = places.next() else { return false };
            // The buffer is added in place, because it costs less than to move a list of buffers there.
            let completion = place.write(Completion {
                id,
                qp,
                status: Status::Success,
                opcode: Opcode::Receive,
                len,
                immediate,
                from: Some(Destination { handle, number, qkey: key }),
                buffers: Scatter::new(),
                range: None,
            });
            completion.buffers.push(buffer);
            bytes += packet.len();
            true
        });
        let count = most - places.len();
        room.left -= count;
        room.bytes += bytes;
        self.receives.drop_fronts(count);
        self.receives_held -= count;
        // SAFETY: that many places were filled, from the first on.
        unsafe { queue.fill_for_poller(count) };
        Stopped::after(count, most)
    }

    /// Shows up to `max` datagrams to the user who is polling, each in the buffer of the oldest receive, which stays
    /// the oldest. Stops at the first packet that needs another path.
    #[inline(never)]
    pub fn show_datagrams(
        &mut self,
        from: Peer,
        consumer: &mut Consumer,
        room: &mut BurstRoom,
        max: usize,
        take: &mut impl FnMut(Message<'_>),
    ) -> (usize, Stopped) {
        let Some(key) = self.datagram_key else { return (0, Stopped::AtOnce) };
        let Some(buffer) = self.receives.front().and_then(|posted| posted.buffers.single()) else {
            return (0, Stopped::AtOnce);
        };
        let (first_word, handle) = (Datagram::first_word_to(self.number), handle_of(from));
        let most = room.left.min(max);
        let (mut left, mut bytes) = (most, 0);
        let buffer = &mut buffer[..];
        let took_all = consumer.take_whole(|packet| {
            let Some((datagram, message)) = message_to(first_word, key, packet) else { return false };
            if left == 0 || !message.copy_to(buffer) {
                return false;
            }
            let Datagram { from: number, immediate, .. } = datagram;
            let from = Some(Destination { handle, number, qkey: key });
            take(Message { bytes: &buffer[..message.len()], immediate, from });
            left -= 1;
            bytes += packet.len();
            true
        });
        let count = most - left;
        room.left -= count;
        room.bytes += bytes;
        (count, if took_all { Stopped::AtEnd } else { Stopped::after(count, most) })
    }

    /// Handles a packet that is addressed to this queue pair.
    #[inline]
    pub fn deliver(&mut self, header: Header, rest: &[u8], packet: &RxPacket<'_>, inbound: &mut Inbound<'_>) {
        let bytes = Bytes { head: rest, tail: packet.tail };
        let delivered = if self.config.transport == Transport::Ud {
            self.deliver_datagram(header, bytes, handle_of(packet.from), inbound)
        } else {
            self.deliver_connected(header, bytes, inbound)
        };
        if let Err(reason) = delivered {
            inbound.counts.count(reason);
        }
    }

    #[inline(always)]
    fn deliver_datagram(
        &mut self,
        header: Header,
        bytes: Bytes<'_>,
        handle: u64,
        around: &mut Inbound<'_>,
    ) -> Result<(), Discarded> {
        if header.kind != Kind::Datagram || !self.receives_packets() {
            return Err(Discarded::NoSuchQueuePair);
        }
        if header.key != self.config.qkey {
            return Err(Discarded::WrongKey);
        }
        let Some(posted) = self.receives.front() else { return Err(Discarded::NoReceive) };
        let buffers = posted.buffers.get(&mut around.queues.pool);
        let len = bytes.len();
        let fits = len <= capacity_of(buffers);
        if fits {
            bytes.place(buffers, 0, around.scratch).map_err(|Revoked| Discarded::Incomplete)?;
            shorten(buffers, len);
        }
        let status = if fits { Status::Success } else { Status::LocalLength };
        let from = Some(Destination { handle, number: header.from, qkey: header.number });
        let immediate = header.immediate;
        self.complete_receive(ReceiveOutcome { status, opcode: Opcode::Receive, len, immediate, from }, around.queues);
        Ok(())
    }

    /// Refuses a receive with these buffers if it cannot be posted.
    #[inline(always)]
    pub fn check_receive(&mut self, buffers: &[MessageBuffer]) -> Result<(), PostError> {
        check_receive(buffers, &self.config, self.state)?;
        if self.receives_held >= self.config.receive_depth {
            return Err(PostError::QueueFull(self.config.receive_depth));
        }
        if self.owns_buffers(buffers) { Ok(()) } else { Err(PostError::ForeignBuffer) }
    }

    /// Posts receives of one buffer each, and returns the first that only a longer check could allow.
    #[inline(always)]
    pub fn post_buffers(
        &mut self,
        buffers: &mut impl Iterator<Item = (u64, MessageBuffer)>,
    ) -> Option<(u64, MessageBuffer)> {
        let is_ready = matches!(self.state, QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend);
        let may_post = is_ready && self.config.gather_max > 0;
        loop {
            let room = if may_post { self.config.receive_depth - self.receives_held } else { 0 };
            if room == 0 {
                // The longer check finds the reason.
                return buffers.next();
            }
            let (mut count, last_arena) = (0, self.arenas.first());
            let mut slots = self.receives.free_slice().iter_mut().take(room);
            let stopped = slots.try_for_each(|posted| match buffers.next() {
                Some((id, buffer)) if last_arena.is_some_and(|arena| buffer.is_from(arena)) => {
                    posted.id = id;
                    posted.buffers.fill(buffer);
                    count += 1;
                    ControlFlow::Continue(())
                }
                other => ControlFlow::Break(other),
            });
            self.receives.push_filled(count);
            self.receives_held += count;
            if count > 0 {
                self.announce_receives(count);
            }
            if let ControlFlow::Break(other) = stopped {
                return other;
            }
        }
    }

    /// Posts a receive that was checked.
    pub fn post_receive(&mut self, id: u64, buffers: Buffers, queues: &mut Queues) {
        self.queue_receive(id, buffers);
        self.announce_receives(1);
        if self.state == QpState::Error {
            self.complete_receive(ReceiveOutcome { status: Status::Flushed, ..ReceiveOutcome::default() }, queues);
        }
    }

    /// Queues a receive that was checked; [`Self::announce_receives`] must follow.
    #[inline(always)]
    fn queue_receive(&mut self, id: u64, buffers: Buffers) {
        self.receives_held += 1;
        let posted = self.receives.push();
        posted.id = id;
        posted.buffers = buffers;
    }

    /// Tells peers that count receives of `count` more.
    #[inline(always)]
    fn announce_receives(&mut self, count: usize) {
        if self.config.transport == Transport::Rc && self.state != QpState::Error {
            self.receives_posted = self.receives_posted.wrapping_add(count as u32);
            self.directory().set_receives(self.number, self.receives_posted);
        }
    }

    /// Completes the oldest receive.
    #[inline(always)]
    pub fn complete_receive(&mut self, arrived: ReceiveOutcome, queues: &mut Queues) {
        let Some(posted) = self.receives.front() else { return };
        let (id, (buffers, range)) = (posted.id, posted.buffers.take_all(&mut queues.pool));
        self.receives.drop_front();
        let ReceiveOutcome { status, opcode, len, immediate, from } = arrived;
        let frees = Freed { of: self.ledger.life, slots: FreedSlots::Receive };
        let place = queues.get(self.receive_queue).place(frees);
        place.write(Completion { id, qp: self.number, status, opcode, len, immediate, from, buffers, range });
    }

    #[inline(always)]
    fn deliver_connected(
        &mut self,
        header: Header,
        bytes: Bytes<'_>,
        around: &mut Inbound<'_>,
    ) -> Result<(), Discarded> {
        let sender_known = self.connection.as_ref().is_some_and(|connection| connection.number == header.from);
        if !sender_known || header.key != self.key {
            return Err(Discarded::NoSuchQueuePair);
        }
        match header.kind {
            Kind::Whole | Kind::Part | Kind::Written => {
                let delivered = self.deliver_message(header, bytes, around);
                if delivered.is_err() && self.config.transport == Transport::Rc {
                    // Nothing is lost on this transport, so the peer breaks its rules.
                    self.fail_and_disconnect(Status::BadResponse, around.queues, around.notes);
                }
                delivered
            }
            Kind::Ack | Kind::Misfit if self.config.transport == Transport::Rc => {
                self.handle_ack(header.number, header.kind == Kind::Misfit, around.queues, around.notes)
            }
            Kind::Gone => {
                self.lose_peer(around.queues, around.notes);
                Ok(())
            }
            Kind::Ack | Kind::Misfit | Kind::Datagram => Err(Discarded::Malformed),
        }
    }

    #[inline(always)]
    fn deliver_message(&mut self, header: Header, bytes: Bytes<'_>, around: &mut Inbound<'_>) -> Result<(), Discarded> {
        let reliable = self.config.transport == Transport::Rc;
        if reliable && header.number != self.expected {
            return Err(Discarded::Malformed);
        }
        let (offset, total) = match header.kind {
            Kind::Part => (header.offset as usize, header.total as usize),
            Kind::Written => (0, 0),
            _ => (0, bytes.len()),
        };
        let begins = offset == 0;
        if self.assembly.is_some_and(|assembly| {
            assembly.number != header.number || assembly.received != offset || assembly.total != total
        }) {
            // The rest of the earlier message was lost, so its receive takes the next message.
            self.assembly = None;
            around.counts.count(Discarded::Incomplete);
        }
        if total > MESSAGE_LEN_MAX || offset + bytes.len() > total || (header.kind == Kind::Part && bytes.len() == 0) {
            return Err(Discarded::Malformed);
        }
        if !begins && self.assembly.is_none() {
            // The beginning of the message was discarded, and counted then.
            return if reliable { Err(Discarded::Malformed) } else { Ok(()) };
        }
        let Some(posted) = self.receives.front() else { return Err(Discarded::NoReceive) };
        let buffers = posted.buffers.get(&mut around.queues.pool);
        if total > capacity_of(buffers) {
            let arrived = ReceiveOutcome { status: Status::LocalLength, len: total, ..ReceiveOutcome::default() };
            self.complete_receive(arrived, around.queues);
            if let Some(connection) = self.connection.as_ref().filter(|_| reliable) {
                let final_packet = (connection.link, self.header(Kind::Misfit, connection, self.expected));
                around.notes.final_packets.push_back(final_packet);
            }
            self.fail_and_disconnect(Status::Flushed, around.queues, around.notes);
            return Ok(());
        }
        bytes.place(buffers, offset, around.scratch).map_err(|Revoked| Discarded::Incomplete)?;
        let received = offset + bytes.len();
        if received < total {
            self.assembly = Some(Assembly { number: header.number, received, total });
            return Ok(());
        }
        self.assembly = None;
        let (opcode, len) = match header.kind {
            Kind::Written => {
                shorten(buffers, 0);
                (Opcode::ReceiveWrite, header.total as usize)
            }
            _ => {
                shorten(buffers, total);
                (Opcode::Receive, total)
            }
        };
        let arrived = ReceiveOutcome { opcode, len, immediate: header.immediate, ..ReceiveOutcome::default() };
        self.complete_receive(arrived, around.queues);
        self.expected = header.number.wrapping_add(1);
        if reliable && !self.owes_ack {
            self.owes_ack = true;
            around.notes.owing_acks.push_back(self.number);
        }
        Ok(())
    }

    /// Acknowledges what has arrived. Returns false when there is no room for the packet now.
    pub fn acknowledge(&mut self, wire: &mut Wire<'_>) -> bool {
        let acknowledged = self.connection.as_ref().is_none_or(|connection| {
            wire.send_header(connection.link, self.header(Kind::Ack, connection, self.expected))
        });
        self.owes_ack = !acknowledged;
        acknowledged
    }
}
