//! State of a call that we answer, and of its session.
//!
//! As at the client, each call touches one cache line of its slot and one of its session. What only requests of several
//! packets need is in [`Arrivals`] while they arrive, and what is rarely needed is in [`ServerCold`].
//!
//! An arrival lies in a pool, and its slot names its place only while the packets come: few slots have one at a time,
//! and there may be millions of slots.

use std::num::NonZeroU32;

use sinew_fabric::Peer;
use sinew_mem::{BLOCK_UNIT, Frozen, MessageBuffer};
use sinew_wire::SessionKey;

use super::guesses::Guesses;
use super::kept::KeptId;
use crate::answer::ErrorCode;
use crate::names::SessionId;
use crate::recovery::Window;
use crate::shared::Shared;
use crate::table::{Entry, SlotId};

#[derive(Default)]
pub(super) enum Response {
    #[default]
    None,
    /// Short: in the slot's own buffer, which the port copies.
    Short(MessageBuffer),
    /// One packet in the slot's own buffer too, which the port is shown as a share, and may copy. If it keeps the
    /// share, the response is a long one from then on.
    Medium(MessageBuffer),
    /// Long: the port takes shares of it.
    Long(Frozen),
    Error(ErrorCode),
}

/// Longest response of medium length, in bytes: its buffer takes a kilobyte of the arena.
const MEDIUM_LEN_MAX: usize = 960;

impl Response {
    /// Bytes of the arena that it holds.
    pub fn len_held(&self) -> usize {
        match self {
            Self::Short(buffer) | Self::Medium(buffer) => buffer.block_len(),
            Self::Long(buffer) => buffer.block_len(),
            Self::None | Self::Error(_) => 0,
        }
    }

    /// The slot's own buffer, if it has one.
    #[inline(always)]
    pub fn own_buffer(&mut self) -> Option<&mut MessageBuffer> {
        match self {
            Self::Short(buffer) | Self::Medium(buffer) => Some(buffer),
            Self::None | Self::Long(_) | Self::Error(_) => None,
        }
    }

    /// Notes whether the response in the slot's own buffer is of medium length.
    #[inline(always)]
    pub fn set_medium(&mut self, is_medium: bool) {
        *self = match std::mem::take(self) {
            Self::Short(buffer) | Self::Medium(buffer) if is_medium => Self::Medium(buffer),
            Self::Short(buffer) | Self::Medium(buffer) => Self::Short(buffer),
            other => other,
        };
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// No request yet.
    #[default]
    Idle,
    /// The response is there, and stays until the client uses the slot again.
    Answered,
    /// Request packets are arriving.
    Receiving,
    /// The handler has the request.
    Running,
}

/// The state that every call touches.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ServerSlot {
    pub(super) number: u64,
    /// When the request was complete.
    pub(super) arrived_ns: u64,
    /// When the call last made progress: a packet of it came, or its response was there.
    pub(super) progress_ns: u64,
    pub(super) response: Response,
    pub(super) request_packets: u32,
    pub(super) request_type: u16,
    // The next three fields are adjacent, so that a new request sets them with one store.
    pub(super) phase: Phase,
    /// A repeated answer is in the transmit queue.
    pub(super) repeat_queued: bool,
    /// A credit return is in the transmit queue; when it is sent it reports how far the request has arrived by then.
    pub(super) credit_queued: bool,
    /// Whether any of the packets that the next answer covers is a retransmission.
    pub(super) is_copy: bool,
    /// Memory that the peer is charged for this slot, in [`BLOCK_UNIT`]s of the arena.
    charged_units: u32,
    /// Further state of its call: of a long request while its packets arrive, or of a call that its handler keeps.
    pooled: Option<PoolId>,
    /// The first of the response packets that were asked for since the last burst was sent; 0 if none were.
    pub(super) requested_first: u16,
    /// The last of them.
    requested_last: u16,
}
const _: () = assert!(size_of::<ServerSlot>() == 64);

/// A place in a pool: in [`Arrivals`], or in [`super::kept::KeptCalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PoolId(NonZeroU32);

impl PoolId {
    /// Bit that marks the places of kept calls.
    const KEPT: u32 = 1 << 31;
}

/// The place of an [`Arrival`] in [`Arrivals`].
#[derive(Clone, Copy)]
pub(super) struct ArrivalId(NonZeroU32);

impl ArrivalId {
    #[inline(always)]
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// An arriving request of several packets.
pub(super) struct Arrival {
    /// The message; `None` once no slot names this place.
    pub message: Option<MessageBuffer>,
    pub slot: SlotId,
    /// Bytes of options before the message, in its first packet.
    pub lead: usize,
    /// Packets that have arrived, from the first missing one on.
    pub ahead: Window,
    pub begun_ns: u64,
    /// When the caller stops waiting.
    pub deadline_ns: Option<u64>,
    /// Number of packets before the first missing one.
    pub received: u32,
}

impl Arrival {
    /// Bytes of the message that have arrived in order, rounded up to whole packets.
    pub fn received_len(&self, data_per_packet: usize) -> usize {
        self.received as usize * data_per_packet
    }

    /// Bytes of the arena that it holds.
    pub fn len_held(&self) -> usize {
        self.message.as_ref().map_or(0, MessageBuffer::block_len)
    }
}

/// Arriving requests of several packets, apart from the slots: few slots have one at a time.
#[derive(Default)]
pub(super) struct Arrivals {
    entries: Vec<Arrival>,
    free: Vec<ArrivalId>,
}

impl Arrivals {
    pub fn begin(&mut self, arrival: Arrival) -> ArrivalId {
        if let Some(id) = self.free.pop() {
            self.entries[id.index()] = arrival;
            return id;
        }
        self.entries.push(arrival);
        ArrivalId(NonZeroU32::new(self.entries.len() as u32).expect("at least one place"))
    }

    /// Frees a place, and returns the request as far as it has arrived.
    pub fn end(&mut self, id: ArrivalId) -> Option<MessageBuffer> {
        self.free.push(id);
        self.entries[id.index()].message.take()
    }

    /// Number of places, free or taken.
    pub fn entries_len(&self) -> usize {
        self.entries.len()
    }

    /// The slot and the deadline of the request in a place, if it has a deadline.
    pub fn deadline_of(&self, place: usize) -> Option<(SlotId, u64)> {
        let arrival = &self.entries[place];
        arrival.deadline_ns.filter(|_| arrival.message.is_some()).map(|deadline_ns| (arrival.slot, deadline_ns))
    }

    #[inline(always)]
    pub fn get(&self, id: ArrivalId) -> &Arrival {
        &self.entries[id.index()]
    }

    #[inline(always)]
    pub fn get_mut(&mut self, id: ArrivalId) -> &mut Arrival {
        &mut self.entries[id.index()]
    }
}

impl ServerSlot {
    /// The place of its long request, while that arrives.
    #[inline(always)]
    pub(super) fn arrival(&self) -> Option<ArrivalId> {
        self.pooled.filter(|id| id.0.get() & PoolId::KEPT == 0).map(|id| ArrivalId(id.0))
    }

    pub(super) fn set_arrival(&mut self, arrival: ArrivalId) {
        self.pooled = Some(PoolId(arrival.0));
    }

    pub(super) fn take_arrival(&mut self) -> Option<ArrivalId> {
        let arrival = self.arrival();
        if arrival.is_some() {
            self.pooled = None;
        }
        arrival
    }

    /// The place of its call, if a handler keeps it.
    #[inline(always)]
    pub(super) fn kept(&self) -> Option<KeptId> {
        self.pooled.filter(|id| id.0.get() & PoolId::KEPT != 0).map(|id| KeptId(id.0.get() & !PoolId::KEPT))
    }

    pub(super) fn set_kept(&mut self, kept: KeptId) {
        self.pooled = NonZeroU32::new(kept.0 | PoolId::KEPT).map(PoolId);
    }

    pub(super) fn take_kept(&mut self) -> Option<KeptId> {
        let kept = self.kept();
        if kept.is_some() {
            self.pooled = None;
        }
        kept
    }

    /// Gives the slot to a new request.
    #[inline(always)]
    pub(super) fn begin(&mut self, number: u64, request_type: u16, packets: u32, is_copy: bool) {
        self.number = number;
        self.request_packets = packets;
        self.request_type = request_type;
        self.is_copy = is_copy;
        self.phase = Phase::Receiving;
        self.repeat_queued = false;
        self.credit_queued = false;
    }

    /// Notes that the request is complete.
    #[inline(always)]
    pub(super) fn note_complete(&mut self, now_ns: u64) {
        self.phase = Phase::Running;
        self.arrived_ns = now_ns;
    }

    /// Packets whose credits can be returned: those before the first missing one, without the request's last, whose
    /// credit the response returns.
    pub(super) fn returnable_credits(&self, arrivals: &Arrivals) -> u16 {
        let received = self.arrival().map_or(self.request_packets, |arrival| arrivals.get(arrival).received);
        received.min(self.request_packets - 1) as u16
    }

    /// Bytes of the arena that the peer is charged for this slot.
    pub(super) fn charged(&self) -> usize {
        self.charged_units as usize * BLOCK_UNIT
    }

    pub(super) fn set_charged(&mut self, len: usize) {
        self.charged_units = (len / BLOCK_UNIT) as u32;
    }

    /// Splits the response packets from `first` up to `end`: returns those before and those after the range that was
    /// asked for in this turn.
    pub(super) fn not_requested_yet(&self, first: u32, end: u32) -> [(u32, u32); 2] {
        let Some((requested, asked_end)) = self.requested_range() else { return [(first, end), (0, 0)] };
        if end <= requested || first >= asked_end {
            return [(first, end), (0, 0)];
        }
        [(first, requested), (asked_end, end)]
    }

    /// Notes that these packets were asked for. Of ranges that do not touch, only the last is remembered.
    pub(super) fn note_requested(&mut self, mut first: u32, mut end: u32) {
        if let Some((requested, asked_end)) = self.requested_range()
            && first <= asked_end
            && end >= requested
        {
            (first, end) = (first.min(requested), end.max(asked_end));
        }
        (self.requested_first, self.requested_last) = (first as u16, (end - 1) as u16);
    }

    /// The range of response packets that were asked for in this turn.
    fn requested_range(&self) -> Option<(u32, u32)> {
        // The first packet of a response is never asked for: it comes by itself.
        (self.requested_first > 0).then_some((self.requested_first.into(), u32::from(self.requested_last) + 1))
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ServerSession {
    pub key: SessionKey,
    pub peer: Peer,
    pub remote_key: SessionKey,
    pub peer_index: u32,
    pub data_per_packet: u32,
    pub message_len_max: u32,
    pub credits: u16,
    /// Packets in the transmit queue that are repeats, or were asked for.
    pub repeats_queued: u16,
    /// Requests shorter than this, in bytes, are handled where they lie, without further checks; 0 until the session is
    /// confirmed.
    pub lent_end: u16,
    /// Responses up to this length, in bytes, go into their slot's own buffer as short ones.
    pub own_len_max: u16,
    /// Responses up to this length, in bytes, go into their slot's own buffer, short or medium.
    pub medium_len_max: u16,
    /// Whether the client has used the session or confirmed it.
    pub confirmed: bool,
    /// Whether it belongs to a session of ours, whose server calls us over it.
    pub is_reverse: bool,
}
const _: () = assert!(size_of::<ServerSession>() == 64);

impl ServerSession {
    /// Length up to which requests and responses are one packet, which the port copies, in bytes.
    pub fn short_len_max(&self, shared: &Shared) -> usize {
        self.packet_len_max().min(shared.copied_data_max())
    }

    /// Length up to which responses are one packet that may stay in its slot's own buffer, in bytes.
    pub fn medium_len_max(&self, shared: &Shared) -> usize {
        self.packet_len_max().min(MEDIUM_LEN_MAX).max(self.short_len_max(shared))
    }

    /// Length of the longest message of one packet, in bytes.
    fn packet_len_max(&self) -> usize {
        self.data_per_packet.min(self.message_len_max) as usize
    }
}

impl Entry for ServerSession {
    #[inline(always)]
    fn key(&self) -> SessionKey {
        self.key
    }

    fn set_key(&mut self, key: SessionKey) {
        self.key = key;
    }

    #[inline(always)]
    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// State of a session that is rarely needed.
#[derive(Default)]
pub(crate) struct ServerCold {
    pub guesses: Guesses,
    /// When the client was last told of long queues.
    pub noticed_ns: u64,
    /// Retransmissions of overtaken requests since one was last answered.
    pub overtaken: u8,
    /// Whether the client's coming was reported.
    pub is_reported: bool,
    /// The session over which we call the client.
    pub session: Option<SessionId>,
}
