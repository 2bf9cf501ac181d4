//! The server's half of the protocol: calls that we answer.
//!
//! A server sends only in answer to a client's packet. It keeps a response until the client uses its slot again, so
//! that a lost response can be retransmitted without running the request again (nsdi19 5.3: at most once).
//!
//! A request comes in here, or in [`arriving`] if it has several packets; its handler answers through [`answers`].
//! [`sending`] makes packets of answers, and limits repeated ones; [`memory`] accounts for the arena, [`kept`] for
//! calls that wait for other threads, and [`clients`] for the clients.

mod answers;
mod arriving;
mod clients;
mod guesses;
mod kept;
mod memory;
mod sending;
mod state;

use std::sync::Arc;

use sinew_fabric::RxPacket;
use sinew_mem::MessageBuffer;
use sinew_wire::management::Management;
use sinew_wire::{CallName, HEADER_LEN, Header, Meaning, OPTIONS_LEN, Options, PACKETS_MAX, Part, SessionKey};

use crate::answer::{AnswerQueue, ErrorCode, ReadyRequest, RequestData, RunningCall, ServerCallId, SlotLocation};
use crate::message::{copy_data, options_of, packets_of};
use crate::names::RequestType;
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::{SlotId, SlotRef, Table};
use crate::transmit::TxKind;
use clients::ClientEvents;
pub(crate) use kept::Abandoned;
use kept::KeptCalls;
use state::{Arrivals, Phase, Response, ServerCold};
pub(crate) use state::{ServerSession, ServerSlot};

/// Retransmissions of overtaken requests after which their client is told by an error. Fewer may just be late packets.
const OVERTAKEN_COPIES: u8 = 4;

/// An accepted session that its client has not used or confirmed yet.
pub(crate) struct Unconfirmed {
    pub key: SessionKey,
    /// When the session was accepted, or its client last reminded.
    pub since_ns: u64,
    pub reminders: u8,
}

/// A call, and the time until which its caller waits.
#[derive(Clone, Copy, Default)]
struct TimedCall {
    call: Option<ServerCallId>,
    deadline_ns: u64,
}

pub(crate) struct Servers {
    pub table: Table<ServerSession, ServerSlot>,
    arrivals: Arrivals,
    kept: KeptCalls,
    /// The last complete call that has a deadline. Its handler may ask for the deadline until another call comes.
    timed: TimedCall,
    /// The same for calls of a received burst that wait for burst handlers.
    timed_in_burst: Vec<TimedCall>,
    cold: Vec<ServerCold>,
    /// Accepted sessions that their clients are not known to have used.
    pub unconfirmed: Vec<Unconfirmed>,
    /// Sessions with repeated answers in the transmit queue.
    repeating: Vec<u32>,
    /// Time of the next search for stalled requests.
    next_give_up_ns: u64,
    client_events: ClientEvents,
    pub answer_queue: Arc<AnswerQueue>,
}

impl Servers {
    pub fn new(slots: u16, answer_queue: Arc<AnswerQueue>) -> Self {
        Self {
            table: Table::new(slots),
            arrivals: Arrivals::default(),
            kept: KeptCalls::default(),
            timed: TimedCall::default(),
            timed_in_burst: Vec::new(),
            cold: Vec::new(),
            unconfirmed: Vec::new(),
            repeating: Vec::new(),
            next_give_up_ns: 0,
            client_events: ClientEvents::default(),
            answer_queue,
        }
    }

    /// Inserts a session that a client asked for, under a key with a new token.
    pub fn insert(&mut self, shared: &mut Shared, session: ServerSession) -> usize {
        let index = self.put(shared, session);
        let key = self.table.entries[index].key;
        self.unconfirmed.push(Unconfirmed { key, since_ns: shared.now_ns, reminders: 0 });
        self.note_came(shared, index);
        index
    }

    fn put(&mut self, shared: &mut Shared, session: ServerSession) -> usize {
        let index = self.table.insert(shared.generator.next_u64());
        self.cold.resize_with(self.table.entries.len(), ServerCold::default);
        self.cold[index] = ServerCold::default();
        let key = self.table.entries[index].key;
        self.table.entries[index] = ServerSession { key, ..session };
        self.update_short_limits(shared, index);
        index
    }

    /// Notes that a session's client has used or confirmed it.
    pub fn confirm(&mut self, shared: &Shared, index: usize) {
        if !std::mem::replace(&mut self.table.entries[index].confirmed, true) {
            self.update_short_limits(shared, index);
        }
    }

    /// Computes the limits for a session's short calls, from its lengths, its state and the endpoint's settings.
    fn update_short_limits(&mut self, shared: &Shared, index: usize) {
        let (session, tuning) = (&mut self.table.entries[index], &shared.config.tuning);
        let limit = |len_max: usize| u16::try_from(len_max).unwrap_or(u16::MAX);
        let (short_len_max, medium_len_max) =
            (limit(session.short_len_max(shared)), limit(session.medium_len_max(shared)));
        let needs_no_check = session.confirmed && !self.cold[index].guesses.is_guarded;
        let may_be_lent = tuning.zero_copy_requests && needs_no_check;
        session.lent_end = if may_be_lent { short_len_max.saturating_add(1) } else { 0 };
        let (own_len_max, medium_len_max) =
            if tuning.preallocated_responses { (short_len_max, medium_len_max) } else { (0, 0) };
        (session.own_len_max, session.medium_len_max) = (own_len_max, medium_len_max);
    }

    /// Removes a session, and takes what it holds off its peer's charge.
    pub fn remove(&mut self, shared: &mut Shared, index: usize) {
        let peer_index = self.table.entries[index].peer_index;
        for id in self.table.slots_of(index) {
            self.end_arrival(id);
            self.abandon(id);
            shared.peers.get_mut(peer_index).charged -= self.table.slots[id.index()].charged();
        }
        self.table.remove(index);
    }

    /// Accepts a new request of one packet that can be handled where it lies, by far the most common case. `packet` is
    /// the first of a request and has no tail. Returns the call and the request's bytes; any other packet is left
    /// unchanged, for [`Self::on_request`]. So is a packet whose slot has an unanswered call, which may hold memory.
    #[inline(always)]
    pub fn take_short<'a>(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        packet: &RxPacket<'a>,
    ) -> Option<(RunningCall, &'a [u8])> {
        let id = self.table.slot_of(header.session.index(), header.request_number);
        let SlotRef { entry: session, slot } =
            self.table.find_slot(header.session, header.request_number, &packet.from)?;
        let data = &packet.head[HEADER_LEN..];
        if header.request_number <= slot.number
            || header.message_len as usize != data.len()
            || header.message_len >= u32::from(session.lent_end)
            || !matches!(slot.response, Response::Short(_) | Response::Medium(_) | Response::None)
            || matches!(slot.phase, Phase::Receiving | Phase::Running)
        {
            return None;
        }
        let now_ns = shared.now_ns;
        slot.begin(header.request_number, header.type_or_residence, 1, header.is_copy);
        slot.note_complete(now_ns);
        shared.stats.requests_handled += 1;
        shared.peers.note_heard(session.peer_index, now_ns);
        let call = ServerCallId { key: header.session, number: header.request_number };
        let request_type = RequestType::new(header.type_or_residence);
        let location = SlotLocation { slot: id, request_type, own_len_max: session.own_len_max };
        Some((RunningCall { id: call, location }, data))
    }

    /// Reads the options at the start of a message that [`Self::take_short`] accepted; returns the request after them.
    /// `None` if there are no options, or the request came after its caller's deadline. Not inlined, so that requests
    /// without options pay only for the check.
    #[inline(never)]
    pub fn take_options<'a>(&mut self, now_ns: u64, call: ServerCallId, message: &'a [u8]) -> Option<&'a [u8]> {
        let (options, request) = message.split_first_chunk()?;
        if let Some(remaining_ns) = Options::read(*options).remaining_ns {
            if remaining_ns == 0 {
                return None;
            }
            self.timed = TimedCall { call: Some(call), deadline_ns: now_ns.saturating_add(remaining_ns) };
        }
        Some(request)
    }

    /// Deadline of a call, which must be the last one that came; `None` if its caller set none.
    #[inline]
    pub fn deadline_ns(&self, call: ServerCallId) -> Option<u64> {
        (self.timed.call == Some(call)).then_some(self.timed.deadline_ns)
    }

    /// Notes the deadline of a complete call.
    fn note_deadline(&mut self, call: CallName, deadline_ns: u64) {
        self.timed = TimedCall { call: Some(ServerCallId { key: call.session, number: call.number }), deadline_ns };
    }

    /// Keeps the deadline of the last call, as the call waits for the rest of its burst.
    #[inline]
    pub fn note_burst_deadline(&mut self, call: ServerCallId) {
        if self.timed.call == Some(call) {
            self.timed_in_burst.push(self.timed);
        }
    }

    /// As [`Self::deadline_ns`], for a call that waited for its burst.
    pub fn deadline_in_burst_ns(&self, call: ServerCallId) -> Option<u64> {
        let timed = self.timed_in_burst.iter().find(|timed| timed.call == Some(call));
        timed.map(|timed| timed.deadline_ns)
    }

    /// Ends a burst, all calls of which are answered or kept.
    pub fn end_burst(&mut self) {
        self.timed_in_burst.clear();
    }

    /// Answers a call that [`Self::take_short`] accepted, but whose [options](Self::take_options) are missing or show
    /// that it came too late.
    #[cold]
    #[inline(never)]
    pub fn refuse_short(&mut self, shared: &mut Shared, call: ServerCallId, message: &[u8]) {
        shared.stats.requests_handled -= 1;
        if message.len() < OPTIONS_LEN {
            shared.stats.count_drop(PacketDrop::WrongLength);
            return self.answer_error(shared, call, ErrorCode::Dropped);
        }
        self.answer_too_late(shared, call);
    }

    /// Handles a packet of a request; returns the request if that completes it.
    pub fn on_request<'a>(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        (request_type, has_options, part): (u16, bool, Part),
        packet: &'a RxPacket<'a>,
    ) -> Result<Option<ReadyRequest<'a>>, PacketDrop> {
        let index = self.table.find_from(call.session, packet.from)?;
        let id = self.table.slot_of(index, call.number);
        shared.peers.note_heard(self.table.entries[index].peer_index, shared.now_ns);
        self.confirm(shared, index);
        if self.may_be_guess(shared, index, id, call) {
            return Err(PacketDrop::Guessed);
        }
        let last = self.table.slots[id.index()].number;
        if call.number < last {
            return Err(self.on_overtaken_request(shared, index, call));
        }
        if call.number == last {
            let request_type = RequestType::new(self.table.slots[id.index()].request_type);
            let completed = self.on_known_request(shared, (index, id), call, part, packet)?;
            return Ok(completed.and_then(|request| {
                self.ready_for_handler(shared, (call, id), request_type, RequestData::Owned(request))
            }));
        }
        let session = &self.table.entries[index];
        if part.packet != 0 && !shared.config.recovery.keeps_ahead() {
            return Err(PacketDrop::OutOfOrder);
        }
        let (message_len, data_per_packet) = (part.message_len as usize, session.data_per_packet as usize);
        let packets = packets_of(message_len, data_per_packet);
        let lead = if has_options { OPTIONS_LEN } else { 0 };
        let Some(body_len) = message_len.checked_sub(lead) else { return Err(PacketDrop::WrongLength) };
        if body_len > session.message_len_max as usize || packets > PACKETS_MAX {
            return Err(PacketDrop::TooLong);
        }
        if usize::from(part.packet) >= packets {
            return Err(PacketDrop::WrongPhase);
        }
        if packets > 1 {
            self.begin_long_request(shared, (index, id), call, (request_type, lead, part), packet)?;
            return Ok(None);
        }
        if packet.len() - HEADER_LEN != message_len {
            return Err(PacketDrop::WrongLength);
        }
        let options = if has_options { Some(options_of(packet)?) } else { None };
        // Copied or lent before the slot changes: a revoked packet must leave the slot as it was.
        let request = if packet.tail.is_none() && shared.config.tuning.zero_copy_requests {
            RequestData::Lent(&packet.head[HEADER_LEN + lead..])
        } else {
            let Some(mut copy) = self.alloc(shared, body_len, data_per_packet) else {
                return Err(self.refuse(shared, (index, id), call, (request_type, 1), ErrorCode::Busy));
            };
            copy_data(packet, lead, &mut copy)?;
            RequestData::Owned(copy)
        };
        self.begin(shared, (index, id), call, request_type, 1);
        self.table.slots[id.index()].note_complete(shared.now_ns);
        if let Some(deadline_ns) = options.and_then(|options| options.deadline_ns(shared.now_ns)) {
            self.note_deadline(call, deadline_ns);
        }
        Ok(self.ready_for_handler(shared, (call, id), RequestType::new(request_type), request))
    }

    /// Handles a cancellation: a client no longer waits for a call. A running handler runs on, but what is kept for the
    /// call is freed, and the client is told so, which settles the call's credits. A cancellation that has overtaken
    /// its request finds nothing to cancel.
    pub fn on_cancel(&mut self, shared: &mut Shared, call: CallName, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let index = self.table.find_from(call.session, packet.from)?;
        shared.peers.note_heard(self.table.entries[index].peer_index, shared.now_ns);
        self.confirm(shared, index);
        let id = self.table.slot_of(index, call.number);
        let slot = &mut self.table.slots[id.index()];
        let is_held = match slot.phase {
            Phase::Receiving | Phase::Running => true,
            Phase::Answered => matches!(slot.response, Response::Long(_)),
            Phase::Idle => false,
        };
        if call.number < slot.number || call.number == slot.number && slot.phase == Phase::Answered && !is_held {
            // The call is over here, so no other packet would tell the client.
            return Err(self
                .answer_unknown_call(shared, index, call, ErrorCode::Cancelled)
                .err()
                .unwrap_or(PacketDrop::Stale));
        }
        if slot.number != call.number || !is_held {
            return Err(PacketDrop::Stale);
        }
        shared.stats.calls_cancelled += 1;
        self.end_unanswered(shared, index, id, ErrorCode::Cancelled);
        Ok(())
    }

    /// Ends a slot's call without an answer of a handler: what is held for it is freed, and its client is told.
    fn end_unanswered(&mut self, shared: &mut Shared, index: usize, id: SlotId, code: ErrorCode) {
        let slot = &mut self.table.slots[id.index()];
        (slot.phase, slot.progress_ns) = (Phase::Answered, shared.now_ns);
        slot.response = Response::Error(code);
        let is_copy = slot.is_copy;
        self.end_arrival(id);
        self.abandon(id);
        self.charge(shared, index, id);
        self.queue(shared, TxKind::CallError, id, 0, 1, is_copy);
    }

    /// Makes a complete request ready for its handler. A request that came after its deadline is answered here.
    fn ready_for_handler<'a>(
        &mut self,
        shared: &mut Shared,
        (call, slot): (CallName, SlotId),
        request_type: RequestType,
        request: RequestData<'a>,
    ) -> Option<ReadyRequest<'a>> {
        let call = ServerCallId { key: call.session, number: call.number };
        if self.deadline_ns(call).is_some_and(|deadline_ns| shared.now_ns >= deadline_ns) {
            self.answer_too_late(shared, call);
            return None;
        }
        shared.stats.requests_handled += 1;
        let is_long = self.table.slots[slot.index()].request_packets > 1;
        let own_len_max = if is_long { 0 } else { self.table.entries[self.table.entry_of(slot)].own_len_max };
        let location = SlotLocation { slot, request_type, own_len_max };
        Some(ReadyRequest { call: RunningCall { id: call, location }, request })
    }

    #[cold]
    #[inline(never)]
    fn answer_too_late(&mut self, shared: &mut Shared, call: ServerCallId) {
        shared.stats.requests_too_late += 1;
        self.answer_error(shared, call, ErrorCode::ExpiredOnArrival);
    }

    /// Gives the slot to a new request: by using the slot again, the client shows that it has the last response.
    fn begin(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        request_type: u16,
        packets: u32,
    ) {
        let slot = &mut self.table.slots[id.index()];
        if !matches!(slot.response, Response::None | Response::Short(_) | Response::Medium(_)) {
            slot.response = Response::None;
        }
        slot.begin(call.number, request_type, packets, call.is_copy);
        slot.requested_first = 0;
        self.end_arrival(id);
        self.abandon(id);
        self.charge(shared, index, id);
    }

    /// Ends the arrival of a slot's long request, which is complete or will not be completed; returns what has arrived.
    fn end_arrival(&mut self, id: SlotId) -> Option<MessageBuffer> {
        let arrival = self.table.slots[id.index()].take_arrival()?;
        self.arrivals.end(arrival)
    }

    /// Gives the slot to a new request, but answers it with the reason why there is no room for it; it does not run.
    #[cold]
    fn refuse(
        &mut self,
        shared: &mut Shared,
        location: (usize, SlotId),
        call: CallName,
        (request_type, packets): (u16, u32),
        code: ErrorCode,
    ) -> PacketDrop {
        self.begin(shared, location, call, request_type, packets);
        let slot = &mut self.table.slots[location.1.index()];
        slot.phase = Phase::Answered;
        slot.progress_ns = shared.now_ns;
        slot.response = Response::Error(code);
        self.charge(shared, location.0, location.1);
        self.queue(shared, TxKind::CallError, location.1, 0, 1, call.is_copy);
        PacketDrop::NoMemory
    }

    /// Handles a packet of the request that the slot already holds. Returns the request if that completes it.
    fn on_known_request(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        part: Part,
        packet: &RxPacket<'_>,
    ) -> Result<Option<MessageBuffer>, PacketDrop> {
        let slot = &self.table.slots[id.index()];
        let number = u32::from(part.packet);
        if number >= slot.request_packets {
            return Err(PacketDrop::WrongPhase);
        }
        let is_failed = matches!(slot.response, Response::Error(_));
        match slot.phase {
            Phase::Receiving => return self.take_further_packet(shared, (index, id), call, part, packet),
            Phase::Idle => {}
            // The call has ended. The last packet, or any packet of a failed one, gets the first answer again.
            Phase::Answered if is_failed || number + 1 == slot.request_packets => {
                self.repeat_first_answer(shared, index, id, call.is_copy)?;
            }
            Phase::Running | Phase::Answered if number + 1 < slot.request_packets => {
                self.repeat_credit_return(shared, index, id, call.is_copy)?;
            }
            Phase::Running | Phase::Answered => {
                self.repeat(shared, index, id, TxKind::InProgress, call.is_copy)?;
            }
        }
        Err(PacketDrop::Stale)
    }

    /// Handles a packet of a request older than the slot's last one. Late packets look like this. But a client that
    /// keeps retransmitting has fallen behind for good, and is told so.
    #[cold]
    fn on_overtaken_request(&mut self, shared: &mut Shared, index: usize, call: CallName) -> PacketDrop {
        let cold = &mut self.cold[index];
        cold.overtaken += u8::from(call.is_copy);
        if cold.overtaken >= OVERTAKEN_COPIES {
            cold.overtaken = 0;
            if let Err(reason) = self.answer_unknown_call(shared, index, call, ErrorCode::Overtaken) {
                return reason;
            }
        }
        PacketDrop::Stale
    }

    /// Answers with an error for a call that no slot knows.
    fn answer_unknown_call(
        &mut self,
        shared: &mut Shared,
        index: usize,
        call: CallName,
        code: ErrorCode,
    ) -> Result<(), PacketDrop> {
        self.reserve_repeats(index, 1)?;
        let session = &self.table.entries[index];
        let name = CallName { session: session.remote_key, ..call };
        shared.send(session.peer, Management::new(Meaning::CallError(code as u32).header(name), &[]));
        Ok(())
    }

    /// Prefetches what the session and the slot of a request point to: the buffer that its response will be written to.
    #[inline]
    pub fn prefetch_response(&self, shared: &Shared, call: CallName) {
        let index = call.session.index();
        let id = self.table.slot_of(index, call.number);
        let (Some(session), Some(slot)) = (self.table.entries.get(index), self.table.slots.get(id.index())) else {
            return;
        };
        shared.peers.prefetch_heard(session.peer_index);
        if let Response::Short(buffer) | Response::Medium(buffer) = &slot.response {
            buffer.prefetch();
        }
    }
}
