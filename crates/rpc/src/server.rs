//! The server's half of the protocol: calls that we answer.
//!
//! A server sends only in answer to a client's packet, and keeps a response until the client uses its slot again, so that a
//! lost response can be sent again without running the request again (nsdi19 5.3: at most once).

use arrayvec::ArrayVec;
use sinew_fabric::{MAX_BURST, PacketTx, Peer, RxPacket, TxData, TxPacket};
use sinew_mem::{Frozen, MessageBuffer};
use sinew_wire::{CREDIT_ALONE, HEADER_LEN, Header, Kind, PACKETS_MAX, SessionKey, residence};

use crate::call::{BurstEntry, RequestData};
use crate::client::RequestType;
use crate::config::Config;
use crate::congestion::NOTICE_INTERVAL_NS;
use crate::core::{Core, HasPeer, TxItem, TxKind, copy_data, packet_range, packets_of};
use crate::error::{Cause, Execution};
use crate::nexus::Handlers;
use crate::recovery::Window;
use crate::stats::PacketDrop;
use crate::table::{Keyed, Table};

/// Why a call gets no response, as the wire says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ErrorCode {
    NoHandler = 1,
    Dropped = 2,
    Panicked = 3,
    Busy = 4,
    ResponseTooLarge = 5,
    /// As `Busy`, but for an answer: the handler ran.
    NoMemory = 6,
}

impl ErrorCode {
    pub fn from_wire(code: u32) -> Option<Self> {
        [Self::NoHandler, Self::Dropped, Self::Panicked, Self::Busy, Self::ResponseTooLarge, Self::NoMemory]
            .into_iter()
            .find(|&known| known as u32 == code)
    }

    pub fn meaning(self) -> (Cause, Execution) {
        match self {
            Self::NoHandler => (Cause::NoHandler, Execution::NotRun),
            Self::Dropped => (Cause::HandlerDropped, Execution::MayHaveRun),
            Self::Panicked => (Cause::HandlerPanicked, Execution::MayHaveRun),
            Self::Busy => (Cause::ServerBusy, Execution::NotRun),
            Self::ResponseTooLarge => (Cause::ResponseTooLarge, Execution::MayHaveRun),
            Self::NoMemory => (Cause::ServerBusy, Execution::MayHaveRun),
        }
    }
}

/// Names a call at its server for as long as it is unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerCall {
    pub key: SessionKey,
    pub number: u64,
    pub slot: u8,
}

#[derive(Default)]
enum Response {
    #[default]
    None,
    /// Short: in the slot's own buffer, which the port copies.
    Short(MessageBuffer),
    /// Long: the port takes shares.
    Long(Frozen),
    Error(ErrorCode),
}

/// What is known of a request beside its numbers.
enum Progress {
    /// Its packets arrive.
    Arriving {
        message: MessageBuffer,
        /// Those that are there, from the first missing one on.
        ahead: Window,
    },
    /// It was whole then, and went to its handler.
    Whole { arrived_ns: u64 },
}

impl Default for Progress {
    fn default() -> Self {
        Self::Whole { arrived_ns: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No request yet.
    #[default]
    Idle,
    /// Request packets are arriving.
    Receiving,
    /// The handler has it.
    Running,
    /// The response is there, until the client uses the slot again.
    Answered,
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ServerSlot {
    number: u64,
    /// When the call last got somewhere: a packet of it came, or its response was there.
    progress_ns: u64,
    request: Progress,
    response: Response,
    request_packets: u32,
    /// Packets of the request that are there, up to the first that is missing.
    received: u32,
    request_type: u16,
    phase: Phase,
    /// A credit return is in the transmit queue, and will say how far we got by then.
    credit_queued: bool,
    /// Whether a copy is among the packets that the next answer is to.
    is_copy: bool,
}
// A small call touches its session, its slot and the slot's response buffer.
const _: () = assert!(size_of::<ServerSlot>() <= 64 && size_of::<ServerSession>() <= 64);

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ServerSession {
    pub key: SessionKey,
    pub remote_key: SessionKey,
    pub peer: Peer,
    pub peer_index: u32,
    pub data_per_packet: u32,
    pub message_len_max: u32,
    pub credits: u16,
    /// Whether the client has used the session or confirmed it.
    pub confirmed: bool,
    /// When the client was last told of long queues.
    pub noticed_ns: u64,
}

impl Keyed for ServerSession {
    #[inline(always)]
    fn key(&self) -> SessionKey {
        self.key
    }

    fn set_key(&mut self, key: SessionKey) {
        self.key = key;
    }
}

impl HasPeer for ServerSession {
    #[inline(always)]
    fn peer(&self) -> Peer {
        self.peer
    }
}

pub(crate) struct Servers {
    pub table: Table<ServerSession, ServerSlot>,
    /// When each accepted session was last confirmed or reminded, for those that the client has not used yet.
    pub unconfirmed: Vec<(SessionKey, u64)>,
    /// Until then stalled requests are not looked for again.
    next_give_up_ns: u64,
}

impl Servers {
    pub fn new(config: &Config) -> Self {
        Self { table: Table::new(config.slots), unconfirmed: Vec::new(), next_give_up_ns: 0 }
    }
}

impl Core {
    #[inline]
    pub(crate) fn on_request<'a>(
        &mut self,
        header: &Header,
        packet: &'a RxPacket<'a>,
        handlers: &mut Handlers,
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) -> Result<(), PacketDrop> {
        let index = Self::checked(&self.servers.table, header.session, packet.from)?;
        let session = &mut self.servers.table.entries[index];
        self.peers.heard(session.peer_index, self.now_ns);
        session.confirmed = true;
        let (data_per_packet, message_len_max) = (session.data_per_packet as usize, session.message_len_max);
        let slot = self.servers.table.slot_of_number(header.request_number);
        let at = self.servers.table.slot_at(index, slot);
        let state = &mut self.servers.table.slots[at];
        if header.request_number < state.number {
            return Err(PacketDrop::Stale);
        }
        let message_len = header.message_len as usize;
        let number = u32::from(header.packet_number);
        let data_len = packet.len() - HEADER_LEN;
        let call = ServerCall { key: header.session, number: header.request_number, slot: slot as u8 };
        if header.request_number > state.number {
            if number != 0 && !self.config.recovery.keeps_ahead() {
                return Err(PacketDrop::OutOfOrder);
            }
            let packets = packets_of(message_len, data_per_packet);
            if header.message_len > message_len_max || packets > PACKETS_MAX {
                return Err(PacketDrop::TooLong);
            }
            if number as usize >= packets {
                return Err(PacketDrop::WrongPhase);
            }
            if packets > 1 {
                return self.begin_long(index, slot, header, packet);
            }
            if data_len != message_len {
                return Err(PacketDrop::WrongLength);
            }
            // Copied or lent before the slot changes: a revoked packet leaves it as it was.
            let request = if packet.tail.is_none() && self.config.tuning.zero_copy_requests {
                RequestData::Lent(&packet.head[HEADER_LEN..])
            } else {
                let mut copy = self.alloc_for_call(message_len, data_per_packet).ok_or(PacketDrop::NoMemory)?;
                copy_data(packet, &mut copy)?;
                RequestData::Owned(copy)
            };
            let state = &mut self.servers.table.slots[at];
            state.begin(header, 1);
            state.run(self.now_ns);
            self.deliver(call, RequestType::new(header.type_or_residence), request, handlers, batched);
            return Ok(());
        }
        match state.phase {
            _ if number >= state.request_packets => Err(PacketDrop::WrongPhase),
            Phase::Receiving => {
                let request_type = RequestType::new(state.request_type);
                if let Some(request) = self.take_packet(index, slot, header, packet)? {
                    self.deliver(call, request_type, RequestData::Owned(request), handlers, batched);
                }
                Ok(())
            }
            Phase::Idle => Err(PacketDrop::Stale),
            // The end of the call, whatever the client still sends of it.
            Phase::Answered if matches!(state.response, Response::Error(_)) => {
                self.queue_first_answer(index, slot, header.is_copy);
                Err(PacketDrop::Stale)
            }
            Phase::Running | Phase::Answered if number + 1 < state.request_packets => {
                self.queue_credit_return(index, slot, false, header.is_copy);
                Err(PacketDrop::Stale)
            }
            Phase::Running => {
                self.stats.in_progress_answers += 1;
                self.queue(TxKind::InProgress, index, slot, 0, 1, header.is_copy);
                Err(PacketDrop::Stale)
            }
            Phase::Answered => {
                self.queue_first_answer(index, slot, header.is_copy);
                Err(PacketDrop::Stale)
            }
        }
    }

    /// The first packet of a long request that comes: its first, unless we keep what comes out of order.
    fn begin_long(
        &mut self,
        index: usize,
        slot: usize,
        header: &Header,
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let at = self.servers.table.slot_at(index, slot);
        let data_per_packet = self.servers.table.entries[index].data_per_packet as usize;
        let (message_len, number) = (header.message_len as usize, u32::from(header.packet_number));
        let range = packet_range(message_len, data_per_packet, number as usize);
        if packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        if number >= Window::PLACES {
            return Err(PacketDrop::OutOfOrder);
        }
        // That the slot is used again says that its last response has arrived.
        let state = &mut self.servers.table.slots[at];
        if matches!(state.response, Response::Long(_)) {
            state.response = Response::None;
        }
        let mut message = self.alloc_for_call(message_len, data_per_packet).ok_or(PacketDrop::NoMemory)?;
        copy_data(packet, &mut message[range])?;
        let mut ahead = Window::default();
        ahead.mark(number);
        let state = &mut self.servers.table.slots[at];
        state.begin(header, packets_of(message_len, data_per_packet) as u32);
        state.received = ahead.advance();
        state.progress_ns = self.now_ns;
        state.request = Progress::Arriving { message, ahead };
        self.queue_credit_return(index, slot, true, header.is_copy);
        Ok(())
    }

    /// A further packet of a long request; returns the request when it is whole.
    fn take_packet(
        &mut self,
        index: usize,
        slot: usize,
        header: &Header,
        packet: &RxPacket<'_>,
    ) -> Result<Option<MessageBuffer>, PacketDrop> {
        let at = self.servers.table.slot_at(index, slot);
        let data_per_packet = self.servers.table.entries[index].data_per_packet as usize;
        let state = &mut self.servers.table.slots[at];
        let number = u32::from(header.packet_number);
        let Progress::Arriving { message, ahead } = &mut state.request else { return Err(PacketDrop::Stale) };
        let place = match number.checked_sub(state.received) {
            Some(place) if !ahead.has(place) => place,
            // A packet that we have: the client lost our answer to it, so it gets that again.
            _ => {
                self.queue_credit_return(index, slot, false, header.is_copy);
                return Err(PacketDrop::Stale);
            }
        };
        if place > 0 && (!self.config.recovery.keeps_ahead() || place >= Window::PLACES) {
            return Err(PacketDrop::OutOfOrder);
        }
        let range = packet_range(message.len(), data_per_packet, number as usize);
        if header.message_len as usize != message.len() || packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        copy_data(packet, &mut message[range])?;
        ahead.mark(place);
        state.received += ahead.advance();
        state.is_copy |= header.is_copy;
        state.progress_ns = self.now_ns;
        if state.received < state.request_packets {
            self.queue_credit_return(index, slot, true, header.is_copy);
            return Ok(None);
        }
        match state.run(self.now_ns) {
            Progress::Arriving { message, .. } => Ok(Some(message)),
            Progress::Whole { .. } => Ok(None),
        }
    }

    /// Starts to bring near the buffer that a request's response will be written to.
    #[inline]
    pub(crate) fn prefetch_response(&self, header: &Header) {
        let slot = self.servers.table.slot_of_number(header.request_number);
        let at = self.servers.table.slot_at(header.session.index(), slot);
        if let Some(ServerSlot { response: Response::Short(buffer), .. }) = self.servers.table.slots.get(at) {
            buffer.prefetch();
        }
    }

    /// A buffer for a request or a response; `None` when there is no memory, not even after others gave theirs.
    #[inline]
    pub(crate) fn alloc_for_call(&mut self, len: usize, data_per_packet: usize) -> Option<MessageBuffer> {
        match self.arena.alloc(len, data_per_packet) {
            Ok(buffer) => Some(buffer),
            Err(_) if self.give_up_stalled() => self.arena.alloc(len, data_per_packet).ok(),
            Err(_) => None,
        }
    }

    /// Gives up requests that began to arrive and stopped, and long responses that nobody fetches: a client must not keep the
    /// memory of others for as long as it lives. It hears so if it goes on. Returns whether there were any.
    #[cold]
    fn give_up_stalled(&mut self) -> bool {
        if self.now_ns < self.servers.next_give_up_ns {
            return false;
        }
        self.servers.next_give_up_ns = self.now_ns + self.config.stalled_request_ns / 10;
        let before = (self.stats.requests_given_up, self.stats.responses_given_up);
        for state in &mut self.servers.table.slots {
            if self.now_ns.saturating_sub(state.progress_ns) < self.config.stalled_request_ns {
                continue;
            }
            match (state.phase, &state.response) {
                (Phase::Receiving, _) => {
                    state.request = Progress::default();
                    state.response = Response::Error(ErrorCode::Busy);
                    state.phase = Phase::Answered;
                    self.stats.requests_given_up += 1;
                }
                (Phase::Answered, Response::Long(_)) => {
                    state.response = Response::Error(ErrorCode::NoMemory);
                    self.stats.responses_given_up += 1;
                }
                _ => {}
            }
        }
        before != (self.stats.requests_given_up, self.stats.responses_given_up)
    }

    /// `is_first` says that the packet came for the first time: else its client lost what we said, and hears all of it again.
    fn queue_credit_return(&mut self, index: usize, slot: usize, is_first: bool, is_copy: bool) {
        let at = self.servers.table.slot_at(index, slot);
        let state = &mut self.servers.table.slots[at];
        let is_cumulative = self.config.tuning.cumulative_credits;
        if is_cumulative && std::mem::replace(&mut state.credit_queued, true) {
            return;
        }
        let last_taken = state.last_taken();
        let is_alone = is_first && !is_cumulative && !self.config.recovery.keeps_ahead();
        self.queue(TxKind::CreditReturn, index, slot, last_taken, u16::from(is_alone), is_copy);
    }

    /// Tells a client that a packet of its session met a long queue, unless it was told just now.
    pub(crate) fn queue_congestion_notice(&mut self, header: &Header, packet: &RxPacket<'_>) {
        let Ok(index) = Self::checked(&self.servers.table, header.session, packet.from) else { return };
        let session = &mut self.servers.table.entries[index];
        if session.noticed_ns > 0 && self.now_ns.saturating_sub(session.noticed_ns) < NOTICE_INTERVAL_NS {
            return;
        }
        session.noticed_ns = self.now_ns;
        let slot = self.servers.table.slot_of_number(header.request_number);
        self.queue(TxKind::CongestionNotice, index, slot, 0, 1, header.is_copy);
    }

    #[inline]
    fn queue(&mut self, kind: TxKind, index: usize, slot: usize, first: u16, count: u16, is_copy: bool) {
        let number = self.servers.table.slots[self.servers.table.slot_at(index, slot)].number;
        self.transmit.push(TxItem {
            kind,
            slot: slot as u8,
            first,
            count,
            session: index as u32,
            number_low: number as u32,
            is_copy,
        });
    }

    #[inline]
    fn queue_first_answer(&mut self, index: usize, slot: usize, is_copy: bool) {
        let at = self.servers.table.slot_at(index, slot);
        let kind = match self.servers.table.slots[at].response {
            Response::Error(_) => TxKind::CallError,
            _ => TxKind::Response,
        };
        self.queue(kind, index, slot, 0, 1, is_copy);
    }

    /// Hands a whole request to its handler.
    #[inline]
    fn deliver<'a>(
        &mut self,
        call: ServerCall,
        request_type: RequestType,
        request: RequestData<'a>,
        handlers: &mut Handlers,
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) {
        self.stats.requests_handled += 1;
        handlers.run(self, call, request_type, request, batched);
    }

    pub(crate) fn on_request_for_response(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let index = Self::checked(&self.servers.table, header.session, packet.from)?;
        let session = &self.servers.table.entries[index];
        self.peers.heard(session.peer_index, self.now_ns);
        let slot = self.servers.table.slot_of_number(header.request_number);
        let at = self.servers.table.slot_at(index, slot);
        let state = &mut self.servers.table.slots[at];
        if header.request_number != state.number {
            return Err(PacketDrop::Stale);
        }
        let response = match &state.response {
            Response::Long(response) => response,
            Response::Error(_) => {
                self.queue_first_answer(index, slot, header.is_copy);
                return Err(PacketDrop::Stale);
            }
            _ => return Err(PacketDrop::WrongPhase),
        };
        let (first, count) = (u32::from(header.packet_number), header.message_len);
        let end = first.checked_add(count).ok_or(PacketDrop::WrongPhase)?;
        if first == 0 || count == 0 || count > session.credits.into() || end as usize > response.packets() {
            return Err(PacketDrop::WrongPhase);
        }
        state.progress_ns = self.now_ns;
        self.queue(TxKind::Response, index, slot, first as u16, count as u16, header.is_copy);
        Ok(())
    }

    /// The slot of an unanswered call; `None` when its client has gone or given up.
    #[inline]
    fn unanswered(&mut self, call: ServerCall) -> Option<(usize, &mut ServerSlot)> {
        let index = self.servers.table.find(call.key);
        let at = index.map(|index| self.servers.table.slot_at(index, call.slot.into()));
        match (index, at) {
            (Some(index), Some(at))
                if self.servers.table.slots[at].number == call.number
                    && self.servers.table.slots[at].phase == Phase::Running =>
            {
                Some((index, &mut self.servers.table.slots[at]))
            }
            _ => {
                self.stats.answers_discarded += 1;
                None
            }
        }
    }

    /// Answers with `len` bytes that `write` fills in.
    #[inline]
    pub(crate) fn answer_with(&mut self, call: ServerCall, len: usize, write: impl FnOnce(&mut [u8])) {
        let (preallocate, copy_len_max) = (self.config.tuning.preallocated_responses, self.link.copy_len_max);
        let room = self.config.preallocated_response_len;
        let Some((index, state)) = self.unanswered(call) else { return };
        let own = match std::mem::take(&mut state.response) {
            Response::Short(buffer) if preallocate && len <= buffer.capacity() => Some(buffer),
            _ => None,
        };
        let session = &self.servers.table.entries[index];
        let data_per_packet = session.data_per_packet as usize;
        if len > session.message_len_max as usize || packets_of(len, data_per_packet) > PACKETS_MAX {
            return self.answer_error(call, ErrorCode::ResponseTooLarge);
        }
        let short = len <= data_per_packet && len + HEADER_LEN <= copy_len_max;
        let buffer = match own {
            Some(buffer) => Some(buffer),
            None => {
                let short_capacity = room.min(data_per_packet).min(copy_len_max - HEADER_LEN);
                let capacity = if short && preallocate { len.max(short_capacity) } else { len };
                self.alloc_for_call(capacity, data_per_packet)
            }
        };
        let Some(mut buffer) = buffer else { return self.answer_error(call, ErrorCode::NoMemory) };
        buffer.resize(len).expect("the capacity was checked");
        write(&mut buffer);
        self.store_response(call, index, buffer, short);
    }

    /// Answers with a buffer that the handler filled.
    pub(crate) fn answer_buffer(&mut self, call: ServerCall, mut buffer: MessageBuffer) {
        let Some((index, _)) = self.unanswered(call) else { return };
        let session = &self.servers.table.entries[index];
        let data_per_packet = session.data_per_packet as usize;
        let packets = packets_of(buffer.len(), data_per_packet);
        if buffer.len() > session.message_len_max as usize || packets > PACKETS_MAX {
            return self.answer_error(call, ErrorCode::ResponseTooLarge);
        }
        let laid_out = buffer.is_from(&self.arena)
            && (buffer.data_per_packet() == data_per_packet || buffer.set_data_per_packet(data_per_packet).is_ok());
        if !laid_out {
            let len = buffer.len();
            return self.answer_with(call, len, |target| target.copy_from_slice(&buffer));
        }
        let short = packets == 1 && buffer.len() + HEADER_LEN <= self.link.copy_len_max;
        self.store_response(call, index, buffer, short);
    }

    #[inline]
    fn store_response(&mut self, call: ServerCall, index: usize, buffer: MessageBuffer, short: bool) {
        let at = self.servers.table.slot_at(index, call.slot.into());
        let state = &mut self.servers.table.slots[at];
        state.response = if short { Response::Short(buffer) } else { Response::Long(buffer.freeze()) };
        state.phase = Phase::Answered;
        state.progress_ns = self.now_ns;
        let is_copy = state.is_copy;
        self.queue(TxKind::Response, index, call.slot.into(), 0, 1, is_copy);
    }

    /// Says that there will be no response.
    pub(crate) fn answer_error(&mut self, call: ServerCall, code: ErrorCode) {
        let Some((index, state)) = self.unanswered(call) else { return };
        state.response = Response::Error(code);
        state.phase = Phase::Answered;
        let is_copy = state.is_copy;
        self.queue(TxKind::CallError, index, call.slot.into(), 0, 1, is_copy);
    }

    /// Takes in what workers and deferred calls answered.
    #[inline]
    pub(crate) fn take_returns(&mut self) -> bool {
        if !self.returns.waiting() {
            return false;
        }
        let mut answers = self.returns.take();
        for (call, answer) in answers.drain(..) {
            match answer {
                Ok(buffer) => self.answer_buffer(call, buffer),
                Err(code) => self.answer_error(call, code),
            }
        }
        self.returns.recycle(answers);
        true
    }

    #[inline]
    pub(crate) fn send_responses(&mut self, item: &TxItem, tx: &mut impl PacketTx) {
        let at = self.servers.table.slot_at(item.session as usize, item.slot as usize);
        let state = &mut self.servers.table.slots[at];
        if state.number as u32 != item.number_low || state.phase != Phase::Answered {
            return;
        }
        let Progress::Whole { arrived_ns } = state.request else { return };
        let session = &self.servers.table.entries[item.session as usize];
        let mut header = Header {
            kind: Kind::Response,
            type_or_residence: residence::encode(self.now_ns.saturating_sub(arrived_ns)),
            message_len: 0,
            session: session.remote_key,
            request_number: state.number,
            packet_number: 0,
            is_copy: item.is_copy,
        };
        match &mut state.response {
            Response::Short(buffer) => {
                header.message_len = buffer.len() as u32;
                *buffer.header_mut(0) = header.to_bytes();
                tx.push(TxPacket { to: session.peer, head: buffer.first_packet(), data: TxData::None });
            }
            Response::Long(buffer) => {
                header.message_len = buffer.len() as u32;
                for number in item.numbers() {
                    let range = buffer.packet_range(number.into());
                    header.packet_number = number;
                    if number > 0 {
                        // Only the first response waited for a handler.
                        header.type_or_residence = 0;
                    }
                    tx.push(TxPacket {
                        to: session.peer,
                        head: &header.to_bytes(),
                        data: TxData::Frozen { buffer, start: range.start, len: range.len() },
                    });
                }
            }
            Response::None | Response::Error(_) => {}
        }
    }

    /// Sends a packet without data: a credit return, `in progress`, or an error.
    pub(crate) fn send_server_note(&mut self, item: &TxItem, tx: &mut impl PacketTx) {
        let at = self.servers.table.slot_at(item.session as usize, item.slot as usize);
        let state = &mut self.servers.table.slots[at];
        if state.number as u32 != item.number_low {
            return;
        }
        let (mut type_or_residence, mut is_copy) = (0, item.is_copy);
        let (kind, message_len, packet_number) = match item.kind {
            TxKind::CreditReturn if state.request_packets > 1 => {
                let last_taken = state.last_taken();
                let last = if self.config.tuning.cumulative_credits { last_taken } else { item.first };
                state.credit_queued = false;
                let ahead = match &state.request {
                    Progress::Arriving { ahead, .. } if last == last_taken => {
                        is_copy |= std::mem::take(&mut state.is_copy);
                        ahead.0 as u32
                    }
                    // Whole since it was queued, maybe by a copy.
                    _ if self.config.tuning.cumulative_credits => {
                        is_copy |= state.is_copy;
                        0
                    }
                    _ => 0,
                };
                if item.count > 0 {
                    type_or_residence = CREDIT_ALONE;
                }
                (Kind::CreditReturn, ahead, last)
            }
            TxKind::CongestionNotice => (Kind::CongestionNotice, 0, 0),
            TxKind::InProgress if state.phase == Phase::Running => (Kind::InProgress, 0, 0),
            TxKind::CallError => match state.response {
                Response::Error(code) => (Kind::CallError, code as u32, 0),
                _ => return,
            },
            _ => return,
        };
        let session = &self.servers.table.entries[item.session as usize];
        let header = Header {
            kind,
            type_or_residence,
            message_len,
            session: session.remote_key,
            request_number: state.number,
            packet_number,
            is_copy,
        };
        tx.push(TxPacket { to: session.peer, head: &header.to_bytes(), data: TxData::None });
    }
}

impl ServerSlot {
    /// A new request takes the slot; that the client uses it again says that it has the last response.
    #[inline]
    fn begin(&mut self, header: &Header, packets: u32) {
        self.number = header.request_number;
        self.request = Progress::default();
        if !matches!(self.response, Response::Short(_)) {
            self.response = Response::None;
        }
        self.request_packets = packets;
        self.received = packets;
        self.request_type = header.type_or_residence;
        self.phase = Phase::Receiving;
        self.credit_queued = false;
        self.is_copy = header.is_copy;
    }

    /// The request is whole; returns what was known of it.
    #[inline]
    fn run(&mut self, now_ns: u64) -> Progress {
        self.phase = Phase::Running;
        std::mem::replace(&mut self.request, Progress::Whole { arrived_ns: now_ns })
    }

    /// The last packet whose credit can be returned: as far as we got, short of the last, whose credit the response returns. Where the
    /// first is missing, the largest number there is.
    fn last_taken(&self) -> u16 {
        self.received.min(self.request_packets - 1).wrapping_sub(1) as u16
    }
}
