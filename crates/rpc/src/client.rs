//! The client's half of the protocol: calls that we make.
//!
//! Only clients keep state that is rolled back when packets are lost (nsdi19 5). In a call of N request and M response packets
//! the client sends N + M - 1 packets (the requests, then a request-for-response for each response but the first) and
//! receives as many (credit returns for all requests but the last, then the responses), so two counters tell where it is.

mod ending;
mod recovery;

use std::collections::VecDeque;
use std::sync::Arc;

use sinew_fabric::{PacketTx, Peer, RxPacket, TxData, TxPacket};
use sinew_mem::{Frozen, MessageBuffer};
use sinew_wire::{HEADER_LEN, Header, Kind, PACKETS_MAX, REQUEST_NUMBER_MAX, SessionKey, residence};

use crate::config::Config;
use crate::congestion::{Limits, Pacing, Sample};
use crate::core::{Core, HasPeer, TxItem, TxKind, copy_data, packet_range, packets_of};
use crate::error::{CallError, Cause, EnqueueError, Execution, Rejected};
use crate::management::Opening;
pub use crate::names::{Completion, RequestType, SessionId};
use crate::recovery::{RoundTrips, Timeout, Window};
use crate::server::ErrorCode;
use crate::stats::PacketDrop;
use crate::table::{Keyed, Table};

enum Outgoing {
    /// Small: the port copies it.
    Whole(MessageBuffer),
    /// Large: the port takes shares.
    Shared(Frozen),
}

/// In place of a time: the call's first packets without an answer are still in the transmit queue.
const NOT_LEFT: u64 = u64::MAX;
/// The time-out grows at most to so many times what is configured, as a power of two.
const BACKOFF_MAX: u8 = 6;

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClientSlot {
    request: Option<Outgoing>,
    response: Option<MessageBuffer>,
    tag: u64,
    call: u64,
    number: u64,
    /// When the call last got somewhere.
    progress_ns: u64,
    request_packets: u32,
    /// 0 until the first response packet.
    response_packets: u32,
    sent: u32,
    /// The most that `sent` ever was, before losses rolled it back.
    sent_max: u32,
    received: u32,
    /// The count of answers that ends the round trip which is being measured; 0 when none is.
    timed: u32,
    /// Packets up to this count may have been sent more than once.
    repeated: u32,
    timed_ns: u64,
    /// When packets were last sent again for lack of an answer.
    copied_ns: u64,
    /// Answers that are there, from the first missing one on.
    ahead: Window,
    /// Of the packets without an answer those that were sent again, before packet `resent_before` left.
    resent: Window,
    resent_before: u32,
    request_type: u16,
    backoff: u8,
    /// Whether one packet was sent again to see if any gets through.
    is_probing: bool,
    /// Whether the retransmission timer knows this slot.
    listed: bool,
}

impl ClientSlot {
    /// Notes that packets leave now.
    #[inline(always)]
    fn left(&mut self, now_ns: u64) {
        if self.progress_ns == NOT_LEFT {
            self.progress_ns = now_ns;
        }
    }

    /// Notes that the packet leaves whose answer is the `count`th, to measure its round trip.
    #[inline(always)]
    fn time(&mut self, count: u32, now_ns: u64) {
        if self.timed == 0 && count > self.repeated {
            (self.timed, self.timed_ns) = (count, now_ns);
        }
    }

    /// Whether the request has left whole.
    #[inline(always)]
    fn may_have_run(&self) -> bool {
        self.sent_max >= self.request_packets
    }
}
// A small call touches its session and its slot: 256 B at most.
const _: () = assert!(size_of::<ClientSlot>() <= 128 && size_of::<ClientSession>() <= 128);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientState {
    #[default]
    Connecting,
    Open,
    Disconnecting,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClientSession {
    key: SessionKey,
    pub remote_key: SessionKey,
    pub peer: Peer,
    pub peer_index: u32,
    pub data_per_packet: u32,
    pub message_len_max: u32,
    pub credits: u16,
    pub credits_max: u16,
    pub free_slots: u64,
    /// Slots that have packets to send and no credit for them.
    waiting: u64,
    pub state: ClientState,
    has_queue: bool,
    /// What congestion control holds it back by.
    pub limits: Limits,
    /// The slot after the one that last got credits it waited for.
    turn: u8,
    round_trips: RoundTrips,
}

impl Keyed for ClientSession {
    #[inline(always)]
    fn key(&self) -> SessionKey {
        self.key
    }

    fn set_key(&mut self, key: SessionKey) {
        self.key = key;
    }
}

impl ClientSession {
    #[inline(always)]
    pub fn id(&self) -> SessionId {
        SessionId(self.key.0)
    }

    /// Packets that it may send now.
    #[inline(always)]
    fn allowed(&self) -> u16 {
        self.credits.saturating_sub(self.limits.withheld)
    }

    /// What congestion control needs to know of it.
    #[inline]
    fn sample(&self, index: usize, now_ns: u64) -> Sample {
        let packet_len = self.data_per_packet as usize + HEADER_LEN;
        Sample { index, credits: self.credits_max, packet_len, limits: self.limits, now_ns }
    }
}

impl HasPeer for ClientSession {
    #[inline(always)]
    fn peer(&self) -> Peer {
        self.peer
    }
}

/// A call that waits for a slot.
struct Queued {
    request_type: u16,
    request: MessageBuffer,
    response: MessageBuffer,
    tag: u64,
    call: u64,
}

/// What a session needs rarely.
#[derive(Default)]
pub(crate) struct ClientCold {
    queue: VecDeque<Queued>,
    pub opening: Option<Opening>,
    pub ending_since_ns: u64,
    pub last_try_ns: u64,
}

/// A call that is over but for a share of its request that the port still holds.
pub(crate) struct Reclaiming {
    pub request: Frozen,
    completion: Unfinished,
}

struct Unfinished {
    session: SessionId,
    tag: u64,
    call: u64,
    result: Result<(), CallError>,
    response: MessageBuffer,
}

pub(crate) struct Clients {
    pub table: Table<ClientSession, ClientSlot>,
    pub cold: Vec<ClientCold>,
    pub reclaiming: Vec<Reclaiming>,
    /// Slots that may be busy, for the retransmission timer; idle ones leave when the timer passes.
    listed: Vec<u32>,
    scan_at: usize,
    next_scan_ns: u64,
    next_call: u64,
}

impl Clients {
    pub fn new(config: &Config, now_ns: u64) -> Self {
        Self {
            table: Table::new(config.slots),
            cold: Vec::new(),
            reclaiming: Vec::new(),
            listed: Vec::with_capacity(1024),
            scan_at: 0,
            next_scan_ns: now_ns,
            next_call: 0,
        }
    }

    pub fn cold(&mut self, index: usize) -> &mut ClientCold {
        if self.cold.len() <= index {
            self.cold.resize_with(index + 1, ClientCold::default);
        }
        &mut self.cold[index]
    }

    pub fn remove(&mut self, index: usize) {
        // The timer's list still holds these slots, and must not get them twice from the next session here.
        self.table.remove_with(index, |slot| *slot = ClientSlot { listed: slot.listed, ..ClientSlot::default() });
        *self.cold(index) = ClientCold::default();
    }

    /// Our loop stood still: what is being measured took as long as that, not as the way.
    #[cold]
    pub fn excuse(&mut self) {
        for at in &self.listed {
            self.table.slots[*at as usize].timed = 0;
        }
    }

    /// When the retransmission timer next has something to do.
    pub fn next_scan_ns(&self) -> Option<u64> {
        (!self.listed.is_empty()).then_some(self.next_scan_ns)
    }
}

impl Core {
    /// Takes a call; see [`crate::Rpc::enqueue_request`].
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        tag: u64,
    ) -> Result<u64, Rejected> {
        let index = match self.check_enqueue(session, &request, &response) {
            Ok(index) => index,
            Err(error) => return Err(Rejected { error, request, response }),
        };
        let call = self.clients.next_call;
        self.clients.next_call += 1;
        let queued = Queued { request_type: request_type.number(), request, response, tag, call };
        let session = &mut self.clients.table.entries[index];
        if session.free_slots == 0 || session.state != ClientState::Open {
            session.has_queue = true;
            self.clients.cold(index).queue.push_back(queued);
            return Ok(call);
        }
        self.start(index, queued);
        Ok(call)
    }

    #[inline]
    fn check_enqueue(
        &mut self,
        session: SessionId,
        request: &MessageBuffer,
        response: &MessageBuffer,
    ) -> Result<usize, EnqueueError> {
        let index = self.clients.table.find(session.key()).ok_or(EnqueueError::NoSuchSession)?;
        let entry = &self.clients.table.entries[index];
        if entry.state == ClientState::Disconnecting {
            return Err(EnqueueError::NoSuchSession);
        }
        let limit = match entry.state {
            ClientState::Open => entry.message_len_max,
            _ => self.config.message_len_max,
        } as usize;
        if request.len() > limit {
            return Err(EnqueueError::TooLarge { len: request.len(), limit });
        }
        if !request.is_from(&self.arena) || !response.is_from(&self.arena) {
            return Err(EnqueueError::ForeignBuffer);
        }
        if entry.has_queue && self.clients.cold(index).queue.len() >= self.config.queued_calls_max {
            return Err(EnqueueError::QueueFull { limit: self.config.queued_calls_max });
        }
        Ok(index)
    }

    /// Gives a call a slot and sends what the credits allow.
    #[inline]
    fn start(&mut self, index: usize, queued: Queued) {
        let Queued { request_type, request, response, tag, call } = queued;
        let session = &mut self.clients.table.entries[index];
        let slot = session.free_slots.trailing_zeros() as usize;
        let (remote_key, data_per_packet) = (session.remote_key, session.data_per_packet as usize);
        let message_len_max = session.message_len_max as usize;
        let slots = self.clients.table.slots_per_entry() as u64;
        let at = self.clients.table.slot_at(index, slot);
        let state = &self.clients.table.slots[at];
        // Numbers of a slot are congruent to it.
        let number = if state.number == 0 { slots + slot as u64 } else { state.number + slots };
        debug_assert!(number <= REQUEST_NUMBER_MAX);
        let packets = packets_of(request.len(), data_per_packet);
        let header = Header {
            kind: Kind::Request,
            type_or_residence: request_type,
            message_len: request.len() as u32,
            session: remote_key,
            request_number: number,
            packet_number: 0,
            is_copy: false,
        };
        // A call that was queued while the session was opening meets its limits only here.
        let prepared = if request.len() > message_len_max || packets > PACKETS_MAX {
            Err((request, Cause::RequestTooLarge))
        } else {
            self.lay_out(request, header, packets, data_per_packet)
        };
        let request = match prepared {
            Ok(request) => request,
            Err((request, cause)) => {
                let session = &self.clients.table.entries[index];
                let peer = Arc::clone(&self.peers.get(session.peer_index).name);
                let result = Err(CallError { peer, cause, execution: Execution::NeverSent });
                let session = session.id();
                return self.push_completion(request, Unfinished { session, tag, call, result, response });
            }
        };
        let session = &mut self.clients.table.entries[index];
        session.free_slots &= session.free_slots - 1;
        let state = &mut self.clients.table.slots[at];
        if !state.listed {
            self.clients.listed.push(at as u32);
        }
        *state = ClientSlot {
            request: Some(request),
            response: Some(response),
            tag,
            call,
            number,
            progress_ns: self.now_ns,
            request_packets: packets as u32,
            response_packets: 0,
            sent: 0,
            sent_max: 0,
            received: 0,
            timed: 0,
            repeated: 0,
            timed_ns: 0,
            copied_ns: 0,
            ahead: Window::default(),
            resent: Window::default(),
            resent_before: 0,
            request_type,
            backoff: 0,
            is_probing: false,
            listed: true,
        };
        self.pump_in_turn(index, slot);
    }

    /// Writes a request's headers into its buffer.
    #[inline]
    fn lay_out(
        &self,
        mut request: MessageBuffer,
        mut header: Header,
        packets: usize,
        data_per_packet: usize,
    ) -> Result<Outgoing, (MessageBuffer, Cause)> {
        let whole = packets == 1 && request.len() + HEADER_LEN <= self.link.copy_len_max;
        // The session's packets can be larger than those that the buffer was laid out for.
        let laid_out = if whole {
            request.len() <= request.data_per_packet()
        } else {
            request.data_per_packet() == data_per_packet
        };
        if !laid_out && request.set_data_per_packet(data_per_packet).is_err() {
            // Smaller packets than the buffer was laid out for: its headers need more room.
            let copy = self.arena.alloc(request.capacity(), data_per_packet).and_then(|mut copy| {
                copy.fill(&request)?;
                Ok(copy)
            });
            match copy {
                Ok(copy) => request = copy,
                Err(_) => return Err((request, Cause::NoMemory)),
            }
        }
        if whole {
            *request.header_mut(0) = header.to_bytes();
            return Ok(Outgoing::Whole(request));
        }
        for number in 0..packets {
            header.packet_number = number as u16;
            *request.header_mut(number) = header.to_bytes();
        }
        Ok(Outgoing::Shared(request.freeze()))
    }

    /// Queues the packets of a call that its session's credits allow.
    #[inline]
    fn pump(&mut self, index: usize, slot: usize) {
        self.pump_up_to(index, slot, u32::MAX);
    }

    /// Queues so many packets of a call, as far as its session's credits allow.
    #[inline(always)]
    fn pump_up_to(&mut self, index: usize, slot: usize, mut most: u32) {
        let at = self.clients.table.slot_at(index, slot);
        let session = &mut self.clients.table.entries[index];
        let state = &mut self.clients.table.slots[at];
        let number_low = state.number as u32;
        loop {
            let (kind, first, left) = if state.sent < state.request_packets {
                (TxKind::Request, state.sent, state.request_packets - state.sent)
            } else if state.response_packets > 0 {
                let all = state.request_packets + state.response_packets - 1;
                (TxKind::RequestForResponse, state.sent - state.request_packets + 1, all - state.sent)
            } else {
                break;
            };
            if left == 0 || most == 0 {
                break;
            }
            // Copies in runs of their own.
            let is_copy = state.sent < state.sent_max;
            let alike = if is_copy { state.sent_max - state.sent } else { left };
            let count = left.min(alike).min(most).min(u32::from(session.allowed()));
            if count == 0 {
                session.waiting |= 1 << slot;
                return;
            }
            most -= count;
            session.credits -= count as u16;
            if state.sent == state.received {
                // The time-out runs from when they leave: the call may have waited for credits, or for the loop to turn.
                state.progress_ns = NOT_LEFT;
            }
            state.sent += count;
            state.sent_max = state.sent_max.max(state.sent);
            let (first, count) = (first as u16, count as u16);
            let (slot, session_index) = (slot as u8, index as u32);
            let singly = kind == TxKind::RequestForResponse && !self.config.tuning.cumulative_credits;
            if self.pacing.is_on() && (session.limits.is_paced || !self.config.tuning.pacing_bypass) {
                let run = TxItem { kind, slot, first, count, session: session_index, number_low, is_copy };
                let packet_len = recovery::packet_len(session, state, kind);
                self.pacing.queue(run, packet_len, self.now_ns, &mut self.transmit);
                continue;
            }
            // Written straight into the queue: a copy of an item just put together from its fields would stall on them.
            for packet in 0..if singly { count } else { 1 } {
                self.transmit.push(TxItem {
                    kind,
                    slot,
                    first: first + packet,
                    count: if singly { 1 } else { count },
                    session: session_index,
                    number_low,
                    is_copy,
                });
            }
        }
        session.waiting &= !(1 << slot);
    }

    /// Lets calls that wait for credits have what there is, each in its turn: a long call must not keep the others waiting for
    /// as long as it lasts.
    #[inline]
    fn pump_waiting(&mut self, index: usize) {
        loop {
            let session = &mut self.clients.table.entries[index];
            if session.waiting == 0 || session.allowed() == 0 {
                return;
            }
            let turn = u32::from(session.turn);
            let slot = (session.waiting.rotate_right(turn).trailing_zeros() + turn) % 64;
            session.turn = (slot as u8 + 1) % 64;
            self.pump(index, slot as usize);
        }
    }

    /// Lets a call go on that may have packets to send, behind those that wait already.
    #[inline]
    fn pump_in_turn(&mut self, index: usize, slot: usize) {
        let session = &mut self.clients.table.entries[index];
        if session.waiting == 0 {
            return self.pump(index, slot);
        }
        session.waiting |= 1 << slot;
        self.pump_waiting(index);
    }

    /// Sends a run of request packets.
    #[inline]
    pub(crate) fn send_requests(&mut self, item: &TxItem, tx: &mut impl PacketTx) {
        let at = self.clients.table.slot_at(item.session as usize, item.slot as usize);
        let state = &mut self.clients.table.slots[at];
        // What waited for its time may have been taken back, to be sent anew.
        if state.number as u32 != item.number_low || u32::from(item.first) + u32::from(item.count) > state.sent {
            return;
        }
        state.left(self.now_ns);
        if self.times_calls {
            state.time(u32::from(item.first) + u32::from(item.count), self.now_ns);
        }
        let to = self.clients.table.entries[item.session as usize].peer;
        match &mut state.request {
            // The call is over already.
            None => {}
            Some(Outgoing::Whole(request)) => {
                if item.is_copy {
                    Header::mark_copy(request.header_mut(0));
                }
                tx.push(TxPacket { to, head: request.first_packet(), data: TxData::None });
            }
            Some(Outgoing::Shared(buffer)) => {
                for number in item.numbers() {
                    let range = buffer.packet_range(number.into());
                    let mut head = *buffer.header(number.into());
                    if item.is_copy {
                        Header::mark_copy(&mut head);
                    }
                    tx.push(TxPacket {
                        to,
                        head: &head,
                        data: TxData::Frozen { buffer, start: range.start, len: range.len() },
                    });
                }
            }
        }
    }

    pub(crate) fn send_request_for_response(&mut self, item: &TxItem, tx: &mut impl PacketTx) {
        let at = self.clients.table.slot_at(item.session as usize, item.slot as usize);
        let state = &mut self.clients.table.slots[at];
        let upto = (state.request_packets + u32::from(item.first) + u32::from(item.count)).saturating_sub(1);
        if state.number as u32 != item.number_low || state.request.is_none() || upto > state.sent {
            return;
        }
        state.left(self.now_ns);
        if self.times_calls {
            state.time(upto, self.now_ns);
        }
        let session = &self.clients.table.entries[item.session as usize];
        let header = Header {
            kind: Kind::RequestForResponse,
            type_or_residence: state.request_type,
            message_len: item.count.into(),
            session: session.remote_key,
            request_number: state.number,
            packet_number: item.first,
            is_copy: item.is_copy,
        };
        tx.push(TxPacket { to: session.peer, head: &header.to_bytes(), data: TxData::None });
    }

    /// Finds the call that a server's packet belongs to: session and slot.
    #[inline(always)]
    fn find_call(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(usize, usize), PacketDrop> {
        let index = Self::checked(&self.clients.table, header.session, packet.from)?;
        self.peers.heard(self.clients.table.entries[index].peer_index, self.now_ns);
        let slot = self.clients.table.slot_of_number(header.request_number);
        let state = &self.clients.table.slots[self.clients.table.slot_at(index, slot)];
        if state.number != header.request_number || state.request.is_none() {
            return Err(PacketDrop::Stale);
        }
        Ok((index, slot))
    }

    #[inline]
    pub(crate) fn on_response(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let (index, slot) = self.find_call(header, packet)?;
        let at = self.clients.table.slot_at(index, slot);
        let session = &mut self.clients.table.entries[index];
        let state = &mut self.clients.table.slots[at];
        let number = u32::from(header.packet_number);
        let message_len = header.message_len as usize;
        let data_per_packet = session.data_per_packet as usize;
        let data_len = packet.len() - HEADER_LEN;
        let may_have_run = state.may_have_run();
        let response = state.response.as_mut().expect("a busy slot has a response buffer");
        if number == 0 {
            if state.response_packets > 0 {
                state.answered_again(self.config.timeout, self.now_ns);
                return Err(PacketDrop::Stale);
            }
            if !may_have_run {
                return Err(PacketDrop::WrongPhase);
            }
            let packets = packets_of(message_len, data_per_packet);
            if header.message_len > session.message_len_max || packets > PACKETS_MAX {
                return Err(PacketDrop::TooLong);
            }
            if data_len != message_len.min(data_per_packet) {
                return Err(PacketDrop::WrongLength);
            }
            if response.resize(message_len).is_err() {
                match self.arena.alloc(message_len, data_per_packet) {
                    Ok(larger) => *response = larger,
                    Err(_) => {
                        self.finish(index, slot, Err((Cause::NoMemory, Execution::MayHaveRun)));
                        return Err(PacketDrop::NoMemory);
                    }
                }
            }
            copy_data(packet, &mut response[..data_len])?;
            let residence_ns = residence::decode(header.type_or_residence);
            state.bound_trips(&mut session.round_trips, header.is_copy, self.now_ns);
            let rtt_ns = state.round_trip_ns(state.request_packets, header.is_copy, residence_ns, self.now_ns);
            Self::measured(&mut self.pacing, &self.config, session, index, rtt_ns, self.now_ns);
            let timeout = self.config.timeout;
            Self::acknowledge(timeout, session, state, state.request_packets, header.is_copy, self.now_ns);
            if packets == 1 {
                self.finish(index, slot, Ok(()));
                return Ok(());
            }
            (state.ahead, state.resent) = (Window::default(), Window::default());
            state.response_packets = packets as u32;
            self.pump_in_turn(index, slot);
            Ok(())
        } else {
            if state.response_packets == 0 || number >= state.response_packets {
                return Err(PacketDrop::WrongPhase);
            }
            let answer = state.request_packets + number - 1;
            let place = match answer.checked_sub(state.received) {
                Some(place) if !state.ahead.has(place) => place,
                _ => {
                    state.answered_again(self.config.timeout, self.now_ns);
                    return Err(PacketDrop::Stale);
                }
            };
            if place > 0 && !self.config.recovery.keeps_ahead() {
                return Err(PacketDrop::OutOfOrder);
            }
            if answer >= state.sent_max || place >= Window::PLACES {
                return Err(PacketDrop::WrongPhase);
            }
            let range = packet_range(response.len(), data_per_packet, number as usize);
            if message_len != response.len() || data_len != range.len() {
                return Err(PacketDrop::WrongLength);
            }
            copy_data(packet, &mut response[range])?;
            state.ahead.mark(place);
            let came = state.ahead.advance();
            self.take_answers(index, slot, came, header.is_copy);
            let state = &self.clients.table.slots[at];
            if state.received == state.request_packets + state.response_packets - 1 {
                self.finish(index, slot, Ok(()));
            } else if came > 0 {
                self.pump_in_turn(index, slot);
            }
            Ok(())
        }
    }

    /// Notes how long a round trip was: for congestion control, and for the time-out.
    #[inline(always)]
    fn measured(
        pacing: &mut Pacing,
        config: &Config,
        session: &mut ClientSession,
        index: usize,
        rtt_ns: Option<u64>,
        now_ns: u64,
    ) {
        if let Some(rtt_ns) = rtt_ns {
            session.round_trips.add(rtt_ns);
            let sample = session.sample(index, now_ns);
            session.limits = pacing.measured(rtt_ns, sample, config.tuning.congestion_bypass);
        }
    }

    /// A server says that packets of a session of ours met long queues.
    pub(crate) fn on_congestion_notice(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let index = Self::checked(&self.clients.table, header.session, packet.from)?;
        self.peers.heard(self.clients.table.entries[index].peer_index, self.now_ns);
        self.marked(index);
        Ok(())
    }

    /// A packet of, or to, a session of ours met a long queue.
    pub(crate) fn marked(&mut self, index: usize) {
        let session = &mut self.clients.table.entries[index];
        // While it opens, what is known at its place is another session's.
        if session.state == ClientState::Open {
            session.limits = self.pacing.marked(session.sample(index, self.now_ns));
        }
    }

    pub(crate) fn on_in_progress(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let (index, slot) = self.find_call(header, packet)?;
        let at = self.clients.table.slot_at(index, slot);
        let state = &mut self.clients.table.slots[at];
        if !state.may_have_run() || state.response_packets > 0 {
            return Err(PacketDrop::WrongPhase);
        }
        state.progress_ns = self.now_ns;
        // The request is there: what comes next answers no copies of it.
        (state.repeated, state.is_probing) = (0, false);
        if self.config.timeout == Timeout::Fixed {
            // The other was doubled when it passed.
            state.backoff = (state.backoff + 1).min(BACKOFF_MAX);
        }
        Ok(())
    }

    pub(crate) fn on_call_error(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let (index, slot) = self.find_call(header, packet)?;
        let at = self.clients.table.slot_at(index, slot);
        let (session, state) = (&mut self.clients.table.entries[index], &mut self.clients.table.slots[at]);
        // Also in the midst of a response: a server that is short of memory gives up those that nobody fetches.
        let failure = ErrorCode::from_wire(header.message_len).ok_or(PacketDrop::Malformed)?.meaning();
        Self::acknowledge(self.config.timeout, session, state, state.sent, header.is_copy, self.now_ns);
        self.finish(index, slot, Err(failure));
        Ok(())
    }

    /// Starts calls that wait for a slot.
    pub(crate) fn start_queued(&mut self, index: usize) {
        loop {
            let session = &mut self.clients.table.entries[index];
            if session.free_slots == 0 || session.state != ClientState::Open {
                return;
            }
            let Some(queued) = self.clients.cold(index).queue.pop_front() else {
                self.clients.table.entries[index].has_queue = false;
                return;
            };
            self.start(index, queued);
        }
    }
}
