//! The client's half of the protocol: calls that we make.
//!
//! Only clients keep state that is rolled back when packets are lost (nsdi19 5). In a call of N request packets and M
//! response packets the client sends N + M - 1 packets (the requests, then a request-for-response for each response but
//! the first). It receives as many (credit returns for all requests but the last, then the responses). So two counters
//! describe a call's progress.
//!
//! A call is enqueued here, waits in [`queue`] if its session has no free slot, leaves in [`sending`], is answered in
//! [`answers`] and ends in [`ending`]. [`recovery`] handles answers that do not come, [`deadlines`] those that come too
//! late, and [`owed`] packets that are in flight when their call is over.

mod answers;
mod deadlines;
mod ending;
mod owed;
mod queue;
mod recovery;
mod sending;
mod state;

use std::sync::Arc;

use sinew_mem::{Frozen, MessageBuffer};
use sinew_wire::management::Features;
use sinew_wire::{CallName, HEADER_LEN, Meaning, OPTIONS_LEN, PACKETS_MAX, Part, REQUEST_NUMBER_MAX, SessionKey};

use crate::congestion::Limits;
use crate::error::{CallError, Cause, EnqueueError, Execution, Rejected};
use crate::lanes::{LaneId, Lanes};
use crate::message::packets_of;
use crate::names::{CallId, ClientId, RequestType, SessionId};
use crate::shared::Shared;
use crate::table::{SlotId, Table};
use crate::transmit::{TxItem, TxKind};
use owed::OwedUntil;
pub(crate) use queue::NewCall;
use queue::{Queued, QueuedId, Queues};
use state::{CallView, Form, NOT_SENT, Outgoing};
pub(crate) use state::{ClientCold, ClientSession, ClientSlot, ClientState, LongCall, Opening, ReverseSession};

/// Cap on back-off, as the power of two by which it multiplies the configured time-out.
const BACKOFF_MAX: u8 = 6;

/// A finished call whose request buffer is not free yet: the port still holds a share of it.
struct Reclaiming {
    request: Frozen,
    completion: Unfinished,
}

struct Unfinished {
    id: CallId,
    lane: u32,
    tag: u64,
    result: Result<(), CallError>,
    response: MessageBuffer,
}

pub(crate) struct Clients {
    pub table: Table<ClientSession, ClientSlot>,
    /// One for each slot of the table.
    long_calls: Vec<LongCall>,
    pub cold: Vec<ClientCold>,
    pub lanes: Lanes,
    queues: Queues,
    reclaiming: Vec<Reclaiming>,
    owed_until: OwedUntil,
    /// Slots that may be busy, which the retransmission timer scans. A slot that it finds idle leaves the list.
    listed: Vec<SlotId>,
    scan_at: usize,
    next_scan_ns: u64,
}

impl Clients {
    pub fn new(slots: u16, lane_backlog_max: usize, now_ns: u64) -> Self {
        Self {
            table: Table::new(slots),
            long_calls: Vec::new(),
            cold: Vec::new(),
            lanes: Lanes::new(lane_backlog_max),
            queues: Queues::default(),
            reclaiming: Vec::new(),
            owed_until: OwedUntil::default(),
            listed: Vec::with_capacity(1024),
            scan_at: 0,
            next_scan_ns: now_ns,
        }
    }

    /// Inserts a session under a key with this token; returns its index.
    pub fn insert(&mut self, token: u64) -> usize {
        let index = self.table.insert(token);
        let slots = self.table.slots.len();
        if self.long_calls.capacity() < slots {
            sinew_mem::grow_for_random_access(&mut self.long_calls);
        }
        self.long_calls.resize_with(slots.max(self.long_calls.len()), LongCall::default);
        for id in self.table.slots_of(index) {
            // The slot's first call has the number after this one.
            self.table.slots[id.index()].number = self.table.position_of(id) as u64;
        }
        *self.cold(index) = ClientCold::default();
        index
    }

    /// Opens a session; `grant` fills in what its server grants.
    pub fn open(&mut self, shared: &mut Shared, index: usize, slots: u16, grant: impl FnOnce(&mut ClientSession)) {
        self.cold(index).slots = slots;
        let session = &mut self.table.entries[index];
        grant(session);
        session.state = ClientState::Open;
        session.free_slots = u64::MAX >> (64 - u32::from(slots));
        session.limits = Limits::default();
        session.one_packet_max = session.data_per_packet.min(session.message_len_max);
        let short_max = session.one_packet_max.min(shared.copied_data_max() as u32);
        let is_paced_always = shared.pacing.is_on() && !shared.config.tuning.pacing_bypass;
        session.short_limit = if is_paced_always { 0 } else { short_max + 1 };
        shared.pacing.begin(index);
    }

    /// Stops accepting calls for a session.
    pub fn close(&mut self, index: usize) {
        let session = &mut self.table.entries[index];
        (session.state, session.short_limit) = (ClientState::Disconnecting, 0);
    }

    /// The client that this session calls, if this is a session from a server to its client.
    pub fn client_called(&self, index: usize) -> Option<ClientId> {
        self.cold.get(index).and_then(|cold| cold.client_called)
    }

    /// The sessions that a lane opened.
    pub fn sessions_of(&self, lane: LaneId) -> Vec<SessionId> {
        let is_of_lane = |index: &usize| self.cold.get(*index).is_some_and(|cold| cold.lane == lane);
        self.table.occupied().filter(is_of_lane).map(|index| self.table.entries[index].id()).collect()
    }

    pub fn cold(&mut self, index: usize) -> &mut ClientCold {
        if self.cold.len() <= index {
            self.cold.resize_with(index + 1, ClientCold::default);
        }
        &mut self.cold[index]
    }

    pub fn remove(&mut self, index: usize) {
        // The timer's list still holds these slots, so they stay `listed`: the next session here must not add them
        // again.
        self.table.remove_with(index, |slot| *slot = ClientSlot { listed: slot.listed, ..ClientSlot::default() });
        *self.cold(index) = ClientCold::default();
    }

    /// Excludes a pause of our loop from measurements: packets in flight now yield no round-trip times.
    #[cold]
    pub fn exclude_pause(&mut self, times_calls: bool) {
        for position in 0..self.listed.len() {
            let mut view = self.view(self.listed[position]);
            if view.slot.request.is_some() {
                view.make_long(times_calls);
            }
            view.long.timed = 0;
        }
    }

    /// When the retransmission timer next has something to do.
    pub fn next_scan_ns(&self) -> Option<u64> {
        let calls_ns = (!self.listed.is_empty()).then_some(self.next_scan_ns);
        let owed_ns = self.owed_until.next_ns().map(|owed_ns| owed_ns.max(self.next_scan_ns));
        calls_ns.into_iter().chain(owed_ns).min()
    }

    /// Whether there is already something to do, for the loop or for a lane's user.
    pub fn has_work(&self) -> bool {
        self.lanes.has_news() || self.has_unclaimed()
    }

    /// Whether a finished call waits for the port to release its request.
    #[inline]
    pub fn has_unclaimed(&self) -> bool {
        !self.reclaiming.is_empty()
    }

    fn view(&mut self, id: SlotId) -> CallView<'_> {
        let index = self.table.entry_of(id);
        CallView {
            session: &mut self.table.entries[index],
            slot: &mut self.table.slots[id.index()],
            long: &mut self.long_calls[id.index()],
        }
    }

    /// Prefetches what a call of this number touches; the calls of a session that congestion control slows touch more.
    #[inline]
    pub fn prefetch(&self, shared: &Shared, key: SessionKey, number: u64) {
        self.table.prefetch(key, number);
        if shared.pacing.has_limited() {
            let index = key.index();
            shared.pacing.prefetch(index);
            if let Some(long) = self.long_calls.get(self.table.slot_of(index, number).index()) {
                sinew_mem::prefetch_read(long);
            }
        }
    }

    /// Prefetches what the session and the slot of a call point to.
    #[inline]
    pub fn prefetch_buffers(&self, shared: &Shared, call: CallName) {
        let index = call.session.index();
        let id = self.table.slot_of(index, call.number);
        let (Some(session), Some(slot)) = (self.table.entries.get(index), self.table.slots.get(id.index())) else {
            return;
        };
        shared.peers.prefetch_heard(session.peer_index);
        if let Some(response) = &slot.response {
            response.prefetch();
        }
        if let Some(Outgoing::Whole(request)) = &slot.request {
            request.prefetch();
        }
    }

    /// Accepts a call, with a deadline if `TIMED`.
    #[inline(always)]
    pub fn enqueue<const TIMED: bool>(
        &mut self,
        shared: &mut Shared,
        session: SessionId,
        call: NewCall,
        mut request: MessageBuffer,
        response: MessageBuffer,
    ) -> Result<CallId, Rejected> {
        let lead = if TIMED { OPTIONS_LEN } else { 0 };
        if let Some(index) = self.table.find(session.key())
            && let entry = &mut self.table.entries[index]
            && entry.takes_short(request.len() + lead)
            && (!TIMED || entry.features.has(Features::OPTIONS) && !call.is_too_late(shared.now_ns))
            && request.len() <= request.data_per_packet()
            && request.is_from(&shared.arena)
            && response.is_from(&shared.arena)
        {
            let position = entry.free_slots.trailing_zeros() as usize;
            entry.free_slots &= entry.free_slots - 1;
            entry.credits -= 1;
            let remote_key = entry.remote_key;
            let (id, slots) = (self.table.slot(index, position), self.table.slots_per_entry() as u64);
            let slot = &mut self.table.slots[id.index()];
            if !slot.listed {
                self.listed.push(id);
            }
            let number = slot.number + slots;
            let name = CallName { session: remote_key, number, is_copy: false };
            let part = Part { message_len: (request.len() + lead) as u32, packet: 0 };
            let meaning = Meaning::Request { request_type: call.request_type, has_options: TIMED, part };
            let header = meaning.header(name).to_bytes();
            if TIMED {
                // The options are written when the request leaves.
                request.front_mut()[..HEADER_LEN].copy_from_slice(&header);
                self.long_calls[id.index()].deadline_ns = call.deadline_ns;
                shared.note_deadline(call.deadline_ns);
            } else {
                *request.header_mut(0) = header;
            }
            let taken = ClientSlot {
                request: Some(Outgoing::Whole(request)),
                response: Some(response),
                tag: call.tag,
                number,
                progress_ns: NOT_SENT,
                request_type: call.request_type,
                form: if TIMED { Form::ShortTimed } else { Form::Short },
                listed: true,
                lane: call.lane,
            };
            // A free slot holds no buffers: checking whether there are any to drop would cost a tenth of this path.
            std::mem::forget(std::mem::replace(slot, taken));
            shared.transmit.push(TxItem {
                slot: id,
                number_low: number as u32,
                first: 0,
                count: 1,
                kind: TxKind::Request,
                is_copy: false,
            });
            return Ok(CallId { session, number });
        }
        self.enqueue_slow(shared, session, call, request, response)
    }

    /// Accepts a call that cannot leave at once as one packet.
    #[inline(never)]
    fn enqueue_slow(
        &mut self,
        shared: &mut Shared,
        session: SessionId,
        call: NewCall,
        request: MessageBuffer,
        response: MessageBuffer,
    ) -> Result<CallId, Rejected> {
        let index = match self.check(shared, session, &request, &response) {
            Ok(index) => index,
            Err(error) => return Err(Rejected { error, request, response }),
        };
        shared.note_deadline(call.deadline_ns);
        let queued = Queued { call, request, response };
        let entry = &mut self.table.entries[index];
        if call.is_too_late(shared.now_ns) {
            let queued_id = self.queues.push(&mut self.cold[index].queue, index, queued);
            let number = self.queues.number(queued_id);
            self.end_waiting(shared, index, queued_id, Cause::DeadlinePassed);
            return Ok(CallId { session, number });
        }
        let number = if entry.free_slots == 0 || entry.state != ClientState::Open {
            entry.has_queue = true;
            let queued_id = self.queues.push(&mut self.cold[index].queue, index, queued);
            self.queues.number(queued_id)
        } else {
            self.start(shared, index, queued, None)
        };
        Ok(CallId { session, number })
    }

    fn check(
        &mut self,
        shared: &Shared,
        session: SessionId,
        request: &MessageBuffer,
        response: &MessageBuffer,
    ) -> Result<usize, EnqueueError> {
        let index = self.table.find(session.key()).ok_or(EnqueueError::NoSuchSession)?;
        let entry = &self.table.entries[index];
        if entry.state == ClientState::Disconnecting {
            return Err(EnqueueError::NoSuchSession);
        }
        let limit = match entry.state {
            ClientState::Open => entry.message_len_max,
            _ => shared.config.message_len_max,
        } as usize;
        if request.len() > limit {
            return Err(EnqueueError::TooLarge { len: request.len(), limit });
        }
        if !request.is_from(&shared.arena) || !response.is_from(&shared.arena) {
            return Err(EnqueueError::ForeignBuffer);
        }
        let queued_max = shared.config.queued_calls_max;
        if entry.has_queue && self.cold(index).queue.len() >= queued_max {
            return Err(EnqueueError::QueueFull { limit: queued_max });
        }
        Ok(index)
    }

    /// Gives a call a slot, and sends as many packets as the credits allow. Returns the call's number.
    fn start(&mut self, shared: &mut Shared, index: usize, queued: Queued, queued_id: Option<QueuedId>) -> u64 {
        let Queued { call, request, response } = queued;
        let slots = self.table.slots_per_entry() as u64;
        let session = &mut self.table.entries[index];
        let position = session.free_slots.trailing_zeros() as usize;
        let data_per_packet = session.data_per_packet as usize;
        let message_len_max = session.message_len_max as usize;
        // A server that does not know deadlines is not told: then only this side ends the call.
        let has_options = call.deadline_ns.is_some() && session.features.has(Features::OPTIONS);
        let id = self.table.slot(index, position);
        let number = self.table.slots[id.index()].number + slots;
        debug_assert!(number <= REQUEST_NUMBER_MAX);
        let long = LongCall { has_options, deadline_ns: call.deadline_ns, queued_id, ..LongCall::default() };
        let packets = packets_of(request.len() + long.lead(), data_per_packet);
        // A call that was queued while the session was opening meets the session's limits only here.
        let prepared = if request.len() > message_len_max || packets > PACKETS_MAX {
            Err((request, Cause::RequestTooLarge))
        } else {
            prepare_request(shared, request, long.lead(), packets, data_per_packet)
        };
        let request = match prepared {
            Ok(request) => request,
            Err((request, cause)) => {
                if queued_id.is_none() {
                    // The caller knows the call by this number, so no other call may get it.
                    self.table.slots[id.index()].number = number;
                }
                self.complete_unsent(shared, index, (queued_id, number), Queued { call, request, response }, cause);
                return number;
            }
        };
        let view = self.view(id);
        view.session.free_slots &= view.session.free_slots - 1;
        let was_listed = view.slot.listed;
        *view.slot = ClientSlot {
            request: Some(request),
            response: Some(response),
            tag: call.tag,
            number,
            progress_ns: shared.now_ns,
            request_type: call.request_type,
            form: Form::Long,
            listed: true,
            lane: call.lane,
        };
        *view.long = LongCall { request_packets: packets as u32, ..long };
        if let Some(waited) = queued_id {
            self.queues.start(waited, id);
        }
        if !was_listed {
            self.listed.push(id);
        }
        self.send_in_turn(shared, index, id);
        number
    }

    /// Ends a call that has no slot.
    fn complete_unsent(
        &mut self,
        shared: &mut Shared,
        index: usize,
        (queued_id, number): (Option<QueuedId>, u64),
        queued: Queued,
        cause: Cause,
    ) {
        let Queued { call, request, response } = queued;
        let session = &self.table.entries[index];
        let peer = Arc::clone(&shared.peers.get(session.peer_index).name);
        let id = CallId { session: session.id(), number: self.release_number(queued_id, number) };
        let request_type = RequestType::new(call.request_type);
        let result = Err(CallError { peer, cause, execution: Execution::NeverSent, request_type });
        let unfinished = Unfinished { id, lane: call.lane, tag: call.tag, result, response };
        self.push_completion(&mut shared.stats, request, unfinished);
    }

    /// Returns the number by which the caller knows a call, and frees it, since the call is over.
    fn release_number(&mut self, queued_id: Option<QueuedId>, number: u64) -> u64 {
        queued_id.map_or(number, |queued_id| {
            let number = self.queues.number(queued_id);
            self.queues.free(queued_id);
            number
        })
    }

    /// Starts calls that wait for a slot.
    pub fn start_queued(&mut self, shared: &mut Shared, index: usize) {
        loop {
            let session = &self.table.entries[index];
            if session.free_slots == 0 || session.state != ClientState::Open {
                return;
            }
            let list = &mut self.cold[index].queue;
            let Some(first) = self.queues.first(list) else {
                self.table.entries[index].has_queue = false;
                return;
            };
            if let Some(queued) = self.queues.remove(list, first) {
                self.start(shared, index, queued, Some(first));
            }
        }
    }
}

/// Prepares a request so that it can be sent as `packets` packets.
fn prepare_request(
    shared: &Shared,
    mut request: MessageBuffer,
    lead: usize,
    packets: usize,
    data_per_packet: usize,
) -> Result<Outgoing, (MessageBuffer, Cause)> {
    if packets == 1 && request.len() + lead + HEADER_LEN <= shared.link.copy_len_max {
        // The session's packets may be larger than those that the buffer was laid out for.
        if request.len() > request.data_per_packet() && request.set_data_per_packet(data_per_packet).is_err() {
            request = copy_request(shared, request, data_per_packet)?;
        }
        return Ok(Outgoing::Whole(request));
    }
    Ok(Outgoing::Shared(request.freeze()))
}

/// Copies a request into a buffer for packets of another size.
fn copy_request(
    shared: &Shared,
    request: MessageBuffer,
    data_per_packet: usize,
) -> Result<MessageBuffer, (MessageBuffer, Cause)> {
    let copy = shared.arena.alloc(request.capacity(), data_per_packet).and_then(|mut copy| {
        copy.fill(&request)?;
        Ok(copy)
    });
    copy.map_err(|_| (request, Cause::NoMemory))
}
