//! The server's half of the protocol: calls that we answer.
//!
//! A server sends only in answer to a client's packet, and keeps a response until the client uses its slot again, so that a
//! lost response can be sent again without running the request again (nsdi19 5.3: at most once).
//!
//! A request comes in here, or in [`arriving`] when it has several packets; its handler answers through [`answers`]; [`sending`] makes packets
//! of answers, and bounds those that repeat; [`memory`] knows who holds what of the arena.

mod answers;
mod arriving;
mod guesses;
mod memory;
mod sending;
mod state;

use std::sync::Arc;

use sinew_fabric::RxPacket;
use sinew_mem::MessageBuffer;
use sinew_wire::{CallName, HEADER_LEN, Header, Meaning, PACKETS_MAX, Part, SessionKey};

use crate::answer::{Arrived, ErrorCode, Found, RequestData, Returns, RunningCall, ServerCall};
use crate::message::{copy_data, packets_of};
use crate::names::RequestType;
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::{Place, SlotId, Table};
use crate::transmit::TxKind;
use state::{Arrivals, Phase, Response, ServerCold};
pub(crate) use state::{ServerSession, ServerSlot};

/// So many copies of a request that a later one has overtaken are answered by one error: fewer may be late, and not wrong.
const OVERTAKEN_COPIES: u8 = 4;

/// An accepted session that its client has not used or confirmed yet.
pub(crate) struct Unconfirmed {
    pub key: SessionKey,
    /// When it was accepted, or its client last reminded.
    pub since_ns: u64,
    pub reminders: u8,
}

pub(crate) struct Servers {
    pub table: Table<ServerSession, ServerSlot>,
    arrivals: Arrivals,
    cold: Vec<ServerCold>,
    /// Accepted sessions that their clients have not been heard to use.
    pub unconfirmed: Vec<Unconfirmed>,
    /// Sessions with repeats in the transmit queue.
    repeating: Vec<u32>,
    /// Until then stalled requests are not looked for again.
    next_give_up_ns: u64,
    pub returns: Arc<Returns>,
}

impl Servers {
    pub fn new(slots: u16, returns: Arc<Returns>) -> Self {
        Self {
            table: Table::new(slots),
            arrivals: Arrivals::default(),
            cold: Vec::new(),
            unconfirmed: Vec::new(),
            repeating: Vec::new(),
            next_give_up_ns: 0,
            returns,
        }
    }

    /// Puts a session on file, under a key with a new token.
    pub fn insert(&mut self, shared: &mut Shared, session: ServerSession) -> usize {
        let index = self.table.insert(shared.generator.next_u64());
        self.cold.resize_with(self.table.entries.len(), ServerCold::default);
        self.cold[index] = ServerCold::default();
        let key = self.table.entries[index].key;
        self.table.entries[index] = ServerSession { key, ..session };
        self.settle(shared, index);
        self.unconfirmed.push(Unconfirmed { key, since_ns: shared.now_ns, reminders: 0 });
        index
    }

    /// Notes that a session's client has used or confirmed it.
    pub fn confirm(&mut self, shared: &Shared, index: usize) {
        if !std::mem::replace(&mut self.table.entries[index].confirmed, true) {
            self.settle(shared, index);
        }
    }

    /// Fills in what a session's short calls go by, from its lengths, its state and the endpoint's settings.
    fn settle(&mut self, shared: &Shared, index: usize) {
        let (session, tuning) = (&mut self.table.entries[index], &shared.config.tuning);
        let short_len_max = u16::try_from(session.short_len_max(shared)).unwrap_or(u16::MAX);
        let needs_no_look = session.confirmed && !self.cold[index].guesses.is_guarded;
        let may_be_lent = tuning.zero_copy_requests && needs_no_look;
        session.lent_end = if may_be_lent { short_len_max.saturating_add(1) } else { 0 };
        session.own_len_max = if tuning.preallocated_responses { short_len_max } else { 0 };
    }

    /// Takes a session off file; what its peer was charged for it is returned.
    pub fn remove(&mut self, shared: &mut Shared, index: usize) {
        let peer_index = self.table.entries[index].peer_index;
        for id in self.table.slots_of(index) {
            self.end_arrival(id);
            shared.peers.get_mut(peer_index).charged -= self.table.slots[id.at()].charged();
        }
        self.table.remove(index);
    }

    /// Takes a new request of one packet that can be handled where it lies: by far the most common. `packet` is the first of a request and
    /// has no tail. Returns the request's bytes; any other packet is left as it is, for [`Self::on_request`]. So is one whose slot has an
    /// unanswered call, which may hold memory.
    #[inline(always)]
    pub fn take_short<'a>(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        packet: &RxPacket<'a>,
    ) -> Option<(RunningCall, &'a [u8])> {
        let id = self.table.slot_of(header.session.index(), header.request_number);
        let Place { entry: session, slot } = self.table.place(header.session, header.request_number, &packet.from)?;
        let data = &packet.head[HEADER_LEN..];
        if header.request_number <= slot.number
            || header.message_len as usize != data.len()
            || header.message_len >= u32::from(session.lent_end)
            || !matches!(slot.response, Response::Short(_) | Response::None)
            || matches!(slot.phase, Phase::Receiving | Phase::Running)
        {
            return None;
        }
        slot.begin(header.request_number, header.type_or_residence, 1, header.is_copy);
        slot.run(shared.now_ns);
        shared.stats.requests_handled += 1;
        shared.peers.heard(session.peer_index, shared.now_ns);
        let call = ServerCall { key: header.session, number: header.request_number };
        let request_type = RequestType::new(header.type_or_residence);
        let found = Found { slot: id, request_type, own_len_max: session.own_len_max };
        Some((RunningCall { call, found }, data))
    }

    /// Takes in a packet of a request; returns the request when that makes it whole.
    pub fn on_request<'a>(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        (request_type, part): (u16, Part),
        packet: &'a RxPacket<'a>,
    ) -> Result<Option<Arrived<'a>>, PacketDrop> {
        let index = self.table.checked(call.session, packet.from)?;
        let id = self.table.slot_of(index, call.number);
        shared.peers.heard(self.table.entries[index].peer_index, shared.now_ns);
        self.confirm(shared, index);
        if self.may_be_guessed(shared, index, id, call) {
            return Err(PacketDrop::Guessed);
        }
        let last = self.table.slots[id.at()].number;
        if call.number < last {
            return Err(self.on_overtaken(shared, index, call));
        }
        if call.number == last {
            let request_type = RequestType::new(self.table.slots[id.at()].request_type);
            let whole = self.on_known_request(shared, (index, id), call, part, packet)?;
            return Ok(whole.map(|request| self.whole(shared, (call, id), request_type, RequestData::Owned(request))));
        }
        let session = &self.table.entries[index];
        if part.packet != 0 && !shared.config.recovery.keeps_ahead() {
            return Err(PacketDrop::OutOfOrder);
        }
        let (message_len, data_per_packet) = (part.message_len as usize, session.data_per_packet as usize);
        let packets = packets_of(message_len, data_per_packet);
        if part.message_len > session.message_len_max || packets > PACKETS_MAX {
            return Err(PacketDrop::TooLong);
        }
        if usize::from(part.packet) >= packets {
            return Err(PacketDrop::WrongPhase);
        }
        if packets > 1 {
            self.begin_long(shared, (index, id), call, (request_type, part), packet)?;
            return Ok(None);
        }
        if packet.len() - HEADER_LEN != message_len {
            return Err(PacketDrop::WrongLength);
        }
        // Copied or lent before the slot changes: a revoked packet leaves it as it was.
        let request = if packet.tail.is_none() && shared.config.tuning.zero_copy_requests {
            RequestData::Lent(&packet.head[HEADER_LEN..])
        } else {
            let Some(mut copy) = self.alloc(shared, message_len, data_per_packet) else {
                return Err(self.refuse(shared, (index, id), call, (request_type, 1), ErrorCode::Busy));
            };
            copy_data(packet, &mut copy)?;
            RequestData::Owned(copy)
        };
        self.begin(shared, (index, id), call, request_type, 1);
        self.table.slots[id.at()].run(shared.now_ns);
        Ok(Some(self.whole(shared, (call, id), RequestType::new(request_type), request)))
    }

    fn whole<'a>(
        &self,
        shared: &mut Shared,
        (call, slot): (CallName, SlotId),
        request_type: RequestType,
        request: RequestData<'a>,
    ) -> Arrived<'a> {
        shared.stats.requests_handled += 1;
        let call = ServerCall { key: call.session, number: call.number };
        let found = Found { slot, request_type, own_len_max: 0 };
        Arrived { call: RunningCall { call, found }, request }
    }

    /// A new request takes the slot: that the client uses it again says that it has the last response.
    fn begin(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        request_type: u16,
        packets: u32,
    ) {
        let slot = &mut self.table.slots[id.at()];
        if !matches!(slot.response, Response::Short(_)) {
            slot.response = Response::None;
        }
        slot.begin(call.number, request_type, packets, call.is_copy);
        (slot.credit_queued, slot.asked_first) = (false, 0);
        self.end_arrival(id);
        self.charge(shared, index, id);
    }

    /// Of a slot whose long request comes no more, or is whole: returns what came of it.
    fn end_arrival(&mut self, id: SlotId) -> Option<MessageBuffer> {
        let arrival = self.table.slots[id.at()].arrival.take()?;
        self.arrivals.end(arrival)
    }

    /// Takes a new request's place and says why there is no room for it: it does not run.
    #[cold]
    fn refuse(
        &mut self,
        shared: &mut Shared,
        at: (usize, SlotId),
        call: CallName,
        (request_type, packets): (u16, u32),
        code: ErrorCode,
    ) -> PacketDrop {
        self.begin(shared, at, call, request_type, packets);
        let slot = &mut self.table.slots[at.1.at()];
        slot.phase = Phase::Answered;
        slot.progress_ns = shared.now_ns;
        slot.response = Response::Error(code);
        self.charge(shared, at.0, at.1);
        self.queue(shared, TxKind::CallError, at.1, 0, 1, call.is_copy);
        PacketDrop::NoMemory
    }

    /// A packet of the request that the slot holds. Returns the request when that makes it whole.
    fn on_known_request(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        part: Part,
        packet: &RxPacket<'_>,
    ) -> Result<Option<MessageBuffer>, PacketDrop> {
        let slot = &self.table.slots[id.at()];
        let number = u32::from(part.packet);
        if number >= slot.request_packets {
            return Err(PacketDrop::WrongPhase);
        }
        let is_failed = matches!(slot.response, Response::Error(_));
        match slot.phase {
            Phase::Receiving => return self.take_packet(shared, (index, id), call, part, packet),
            Phase::Idle => {}
            // The end of the call, whatever the client still sends of it.
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

    /// A packet of a request older than the slot's last. Late packets come like that; a client that goes on sending copies has a number that is
    /// behind for good, and is told.
    #[cold]
    fn on_overtaken(&mut self, shared: &mut Shared, index: usize, call: CallName) -> PacketDrop {
        let cold = &mut self.cold[index];
        cold.overtaken += u8::from(call.is_copy);
        if cold.overtaken >= OVERTAKEN_COPIES {
            cold.overtaken = 0;
            if let Err(reason) = self.take_room(index, 1) {
                return reason;
            }
            let session = &self.table.entries[index];
            let name = CallName { session: session.remote_key, ..call };
            let header = Meaning::CallError(ErrorCode::Overtaken as u32).header(name);
            shared.send(session.peer, sinew_wire::management::Management::new(header, &[]));
        }
        PacketDrop::Stale
    }

    /// Starts the memory reads that a request's slot leads on to: those of the buffer that its response will be written to.
    #[inline]
    pub fn prefetch_response(&self, call: CallName) {
        let id = self.table.slot_of(call.session.index(), call.number);
        if let Some(ServerSlot { response: Response::Short(buffer), .. }) = self.table.slots.get(id.at()) {
            buffer.prefetch();
        }
    }
}
