//! What is known of a call that we answer, and of its session.
//!
//! As at the client, what each call touches is one line of its slot and one of its session; what only requests of several packets need lies
//! in [`Arrival`], what only troubled sessions need in [`ServerCold`].

use sinew_fabric::Peer;
use sinew_mem::{Frozen, MessageBuffer};
use sinew_wire::SessionKey;

use super::guesses::Guesses;
use crate::answer::ErrorCode;
use crate::recovery::Window;
use crate::shared::Shared;
use crate::table::Entry;

#[derive(Default)]
pub(super) enum Response {
    #[default]
    None,
    /// Short: in the slot's own buffer, which the port copies.
    Short(MessageBuffer),
    /// Long: the port takes shares.
    Long(Frozen),
    Error(ErrorCode),
}

impl Response {
    /// Bytes of the arena that it holds.
    fn held(&self) -> usize {
        match self {
            Self::Short(buffer) => buffer.block_len(),
            Self::Long(buffer) => buffer.block_len(),
            Self::None | Self::Error(_) => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
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

/// What every call touches.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ServerSlot {
    pub(super) number: u64,
    /// When the request was whole.
    pub(super) arrived_ns: u64,
    /// When the call last got somewhere: a packet of it came, or its response was there.
    pub(super) progress_ns: u64,
    pub(super) response: Response,
    pub(super) request_packets: u32,
    pub(super) request_type: u16,
    pub(super) phase: Phase,
    /// Whether the next answer is, among others, to a copy.
    pub(super) is_copy: bool,
    /// An answer to a packet that was answered before is in the transmit queue.
    pub(super) repeat_queued: bool,
}
const _: () = assert!(size_of::<ServerSlot>() == 64);

/// A request of several packets on its way in, and what was asked of a response of several.
#[derive(Default)]
pub(crate) struct Arrival {
    pub message: Option<MessageBuffer>,
    /// Packets that are there, from the first missing one on.
    pub ahead: Window,
    pub begun_ns: u64,
    /// Packets of the request that are there, up to the first that is missing.
    pub received: u32,
    /// A credit return is in the transmit queue, and will say how far we got by then.
    pub credit_queued: bool,
    /// The first of the response packets that were asked for since the last burst was sent.
    pub asked_from: u32,
    /// The number after the last of them.
    pub asked_to: u32,
    /// Bytes of the arena that the peer is charged for this slot.
    pub charged: usize,
}

impl Arrival {
    /// Forgets the request, but for what its slot is charged.
    pub fn clear(&mut self) {
        *self = Self { charged: self.charged, ..Self::default() };
    }

    /// Of the response packets from `first` up to `end` those before and those behind the ones that were asked for in this turn.
    pub fn not_asked_yet(&self, first: u32, end: u32) -> [(u32, u32); 2] {
        if self.asked_from >= self.asked_to || end <= self.asked_from || first >= self.asked_to {
            return [(first, end), (0, 0)];
        }
        [(first, self.asked_from), (self.asked_to, end)]
    }

    /// Notes that these packets were asked for. Of ranges that do not touch only the last is known.
    pub fn ask(&mut self, first: u32, end: u32) {
        let touches = self.asked_from < self.asked_to && first <= self.asked_to && end >= self.asked_from;
        (self.asked_from, self.asked_to) =
            if touches { (first.min(self.asked_from), end.max(self.asked_to)) } else { (first, end) };
    }

    /// Bytes of the message that are there, or nearly.
    pub fn received_len(&self, data_per_packet: usize) -> usize {
        self.received as usize * data_per_packet
    }
}

impl ServerSlot {
    /// A new request takes the slot.
    #[inline(always)]
    pub(super) fn begin(&mut self, number: u64, request_type: u16, packets: u32, is_copy: bool) {
        self.number = number;
        self.request_packets = packets;
        self.request_type = request_type;
        self.phase = Phase::Receiving;
        self.is_copy = is_copy;
        self.repeat_queued = false;
    }

    /// The request is whole.
    #[inline(always)]
    pub(super) fn run(&mut self, now_ns: u64) {
        self.phase = Phase::Running;
        self.arrived_ns = now_ns;
    }

    /// Packets whose credits can be returned: as far as we got, short of the last, whose credit the response returns.
    pub(super) fn taken(&self, arrival: &Arrival) -> u16 {
        let received = if self.phase == Phase::Receiving { arrival.received } else { self.request_packets };
        received.min(self.request_packets - 1) as u16
    }

    /// Bytes of the arena that the slot holds.
    pub(super) fn held(&self, arrival: &Arrival) -> usize {
        self.response.held() + arrival.message.as_ref().map_or(0, MessageBuffer::block_len)
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
    /// Packets in the transmit queue that repeat, or that were asked for.
    pub repeats_queued: u16,
    /// Requests shorter than this are handled where they lie, without a further look.
    pub lent_end: u16,
    /// Responses up to this long go into their slot's own buffer.
    pub own_len_max: u16,
    /// Whether the client has used the session or confirmed it.
    pub confirmed: bool,
}
const _: () = assert!(size_of::<ServerSession>() == 64);

impl ServerSession {
    /// Requests and responses up to this long are one packet, which the port copies.
    pub fn short_len_max(&self, shared: &Shared) -> usize {
        (self.data_per_packet.min(self.message_len_max) as usize).min(shared.copied_data_max())
    }

    /// Fills in what follows from the session's lengths and the endpoint's settings.
    pub(super) fn settle(&mut self, shared: &Shared) {
        let short_len_max = u16::try_from(self.short_len_max(shared)).unwrap_or(u16::MAX);
        let tuning = &shared.config.tuning;
        self.lent_end = if tuning.zero_copy_requests { short_len_max.saturating_add(1) } else { 0 };
        self.own_len_max = if tuning.preallocated_responses { short_len_max } else { 0 };
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

/// What a session needs rarely.
#[derive(Default)]
pub(crate) struct ServerCold {
    pub guesses: Guesses,
    /// When the client was last told of long queues.
    pub noticed_ns: u64,
    /// Copies of requests that later ones have overtaken, since the last was answered.
    pub overtaken: u8,
}
