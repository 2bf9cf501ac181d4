//! State of a call that we made, and of its session.
//!
//! A slot has two parts. The part that each call touches is one cache line, [`ClientSlot`]. Most calls are one packet
//! that leaves at once and one that answers it: these are *short*, and need no more. The state of long calls, of calls
//! that wait for credits, and of those with retransmitted packets is in [`LongCall`]. It is written when a call becomes
//! long: at its start, or by [`CallView::make_long`].
//!
//! A short call has sent its one packet once and has no answer yet, so its whole state is its two buffers, tag, number
//! and the time at which the packet left. When it becomes long, `LongCall` is written as it would be if the call had
//! been long from the start, so that recovery knows only one kind of call.

use std::num::NonZeroU64;

use sinew_fabric::Peer;
use sinew_mem::{Frozen, MessageBuffer};
use sinew_wire::management::{Cookie, Features, Offer};
use sinew_wire::{CallName, HEADER_LEN, Header, Meaning, OPTIONS_LEN, Options, Part, SessionKey};

use super::owed::{CallProgress, OwedCalls};
use super::queue::{CallList, QueuedId};
use crate::congestion::{Limits, Sample};
use crate::lanes::LaneId;
use crate::names::{ClientId, SessionId};
use crate::recovery::{RoundTrips, Timeout, Window};
use crate::table::Entry;

/// Stands in for a time while the call's first unanswered packets are still in the transmit queue.
pub(super) const NOT_SENT: u64 = u64::MAX;

pub(super) enum Outgoing {
    /// Small: the port copies it.
    Whole(MessageBuffer),
    /// Large: the port takes shares of it.
    Shared(Frozen),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// The request is one packet, which has its credit, was queued or sent once, and has no answer yet.
    #[default]
    Short,
    /// As `Short`, with a deadline, which is in its [`LongCall`].
    ShortTimed,
    /// Any other call: see [`LongCall`].
    Long,
}

/// The part of a slot that every call touches.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClientSlot {
    /// `None` if the slot is free.
    pub(super) request: Option<Outgoing>,
    pub(super) response: Option<MessageBuffer>,
    pub(super) tag: u64,
    /// Number of the slot's last call, or of the one under way. All numbers of a slot are congruent, modulo the slots
    /// of a session.
    pub(super) number: u64,
    /// When the call last made progress; for a short call, when its packet left.
    pub(super) progress_ns: u64,
    pub(super) request_type: u16,
    pub(super) form: Form,
    /// Whether the slot is on the retransmission timer's list.
    pub(super) listed: bool,
    /// The index of the call's lane.
    pub(super) lane: u32,
}
const _: () = assert!(size_of::<ClientSlot>() == 64);

/// Progress of a long call. There is one for each slot, in memory that short calls do not touch.
#[derive(Default)]
pub(crate) struct LongCall {
    pub request_packets: u32,
    /// 0 until the first response packet.
    pub response_packets: u32,
    pub sent: u32,
    /// Largest value that `sent` ever had, before losses rolled it back.
    pub sent_max: u32,
    pub received: u32,
    /// The count of answers that ends the round trip being measured; 0 if none is.
    pub timed: u32,
    /// Packets up to this count may have been sent more than once.
    pub repeated: u32,
    pub resent_before: u32,
    pub timed_ns: u64,
    /// When packets were last retransmitted for lack of an answer.
    pub copied_ns: u64,
    /// Answers that have arrived, from the first missing one on.
    pub ahead: Window,
    /// Unanswered packets that were retransmitted before packet `resent_before` left.
    pub resent: Window,
    pub backoff: u8,
    /// Whether just one packet was retransmitted, to see if any gets through.
    pub is_probing: bool,
    /// Whether options lead its request.
    pub has_options: bool,
    /// When the caller stops waiting, if ever.
    pub deadline_ns: Option<NonZeroU64>,
    /// The place in the queue where it waited for its slot, which is also its name.
    pub queued_id: Option<QueuedId>,
}

const _: () = assert!(size_of::<LongCall>() == 88);

impl LongCall {
    /// Begins to measure a round trip: the packet whose answer is the `count`th leaves now.
    #[inline(always)]
    pub fn begin_round_trip(&mut self, count: u32, now_ns: u64) {
        if self.timed == 0 && count > self.repeated {
            (self.timed, self.timed_ns) = (count, now_ns);
        }
    }

    /// Whether the whole request has left.
    #[inline(always)]
    pub fn may_have_run(&self) -> bool {
        self.sent_max >= self.request_packets
    }

    /// Bytes of options that lead the request's data.
    #[inline(always)]
    pub fn lead(&self) -> usize {
        if self.has_options { OPTIONS_LEN } else { 0 }
    }

    /// The options, with the time that now remains.
    #[inline(always)]
    pub fn options(&self, now_ns: u64) -> [u8; OPTIONS_LEN] {
        let remaining_ns = self.deadline_ns.map(|deadline_ns| deadline_ns.get().saturating_sub(now_ns));
        Options { remaining_ns }.to_bytes()
    }
}

/// A call, with all of its state.
pub(super) struct CallView<'a> {
    pub session: &'a mut ClientSession,
    pub slot: &'a mut ClientSlot,
    pub long: &'a mut LongCall,
}

impl CallView<'_> {
    /// Converts a short call to a long one: writes its progress into its [`LongCall`].
    #[inline]
    pub fn make_long(&mut self, times_calls: bool) {
        if self.slot.form != Form::Long {
            let left_ns = Some(self.slot.progress_ns).filter(|&left_ns| times_calls && left_ns != NOT_SENT);
            let has_options = self.slot.form == Form::ShortTimed;
            *self.long = LongCall {
                has_options,
                deadline_ns: self.long.deadline_ns.filter(|_| has_options),
                request_packets: 1,
                sent: 1,
                sent_max: 1,
                timed: u32::from(left_ns.is_some()),
                timed_ns: left_ns.unwrap_or(0),
                ..LongCall::default()
            };
            self.slot.form = Form::Long;
        }
    }

    /// Notes that packets leave now.
    #[inline(always)]
    pub fn note_sent(&mut self, now_ns: u64) {
        if self.slot.progress_ns == NOT_SENT {
            self.slot.progress_ns = now_ns;
        }
    }

    /// Notes that an answer came a second time. The server is still answering what the queues hold, and a time-out
    /// meanwhile would only add to it.
    #[inline]
    pub fn on_duplicate_answer(&mut self, timeout: Timeout, now_ns: u64) {
        if timeout == Timeout::Adaptive && self.long.sent > self.long.received && self.slot.progress_ns != NOT_SENT {
            self.slot.progress_ns = now_ns;
        }
    }

    /// Whether the whole request may have reached the server.
    pub fn may_have_run(&self) -> bool {
        self.was_sent() && (self.slot.form != Form::Long || self.long.may_have_run())
    }

    /// Whether any packet of the request has left.
    pub fn was_sent(&self) -> bool {
        let is_in_queue = self.slot.progress_ns == NOT_SENT;
        match self.slot.form {
            Form::Short | Form::ShortTimed => !is_in_queue,
            // A packet that waits to be retransmitted has left before.
            Form::Long => self.long.sent_max > 0 && (!is_in_queue || self.long.received > 0 || self.long.repeated > 0),
        }
    }

    /// The progress to be recorded when the call ends.
    pub fn progress(&self) -> CallProgress {
        match self.slot.form {
            Form::Short | Form::ShortTimed => CallProgress { request_packets: 1, sent: 1, answered: 0 },
            Form::Long => CallProgress {
                request_packets: self.long.request_packets,
                sent: self.long.sent,
                answered: self.long.received,
            },
        }
    }

    /// When its caller stops waiting.
    pub fn deadline_ns(&self) -> Option<u64> {
        let deadline_ns = if self.slot.form == Form::Short { None } else { self.long.deadline_ns };
        deadline_ns.map(NonZeroU64::get)
    }

    /// The header of packet `packet` of its request.
    #[inline(always)]
    pub fn request_header(&self, packet: u16, len: usize, is_copy: bool) -> Header {
        let call = CallName { session: self.session.remote_key, number: self.slot.number, is_copy };
        let (lead, request_type) = (self.long.lead(), self.slot.request_type);
        let part = Part { message_len: (len + lead) as u32, packet };
        Meaning::Request { request_type, has_options: lead > 0, part }.header(call)
    }
}

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
    pub peer: Peer,
    pub remote_key: SessionKey,
    pub free_slots: u64,
    /// Slots that have packets to send but no credits for them.
    pub(super) waiting: u64,
    pub peer_index: u32,
    /// Requests shorter than this, in bytes, can be short calls; 0 while the session is not open.
    pub(super) short_limit: u32,
    /// Responses up to this length, in bytes, are one packet.
    pub(super) one_packet_max: u32,
    pub credits: u16,
    pub credits_max: u16,
    /// Limits that congestion control sets.
    pub limits: Limits,
    pub(super) has_queue: bool,
    pub data_per_packet: u32,
    pub message_len_max: u32,
    pub state: ClientState,
    /// Features that the server understands.
    pub features: Features,
    /// The slot after the one that last got credits it had waited for.
    pub(super) turn: u8,
    pub(super) round_trips: RoundTrips,
}
const _: () = assert!(size_of::<ClientSession>() == 128);

impl Entry for ClientSession {
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

impl ClientSession {
    #[inline(always)]
    pub fn id(&self) -> SessionId {
        SessionId(self.key.0)
    }

    /// Packets that the session may send now.
    #[inline(always)]
    pub(super) fn credits_usable(&self) -> u16 {
        self.credits.saturating_sub(self.limits.withheld)
    }

    /// Whether a request of this length can leave at once, as one packet: the session is open, and nothing holds it
    /// back.
    #[inline(always)]
    pub(super) fn takes_short(&self, len: usize) -> bool {
        len < self.short_limit as usize
            && self.free_slots != 0
            && self.waiting == 0
            && self.credits > self.limits.withheld
            && !self.limits.is_paced
    }

    /// The session's state, as congestion control needs it.
    #[inline]
    pub(super) fn sample(&self, index: usize, now_ns: u64) -> Sample {
        let packet_len = self.data_per_packet as usize + HEADER_LEN;
        Sample { index, credits: self.credits_max, packet_len, limits: self.limits, now_ns }
    }
}

/// The session on which we answer our server's calls; it belongs to a session of ours.
#[derive(Clone, Copy)]
pub(crate) struct ReverseSession {
    pub index: usize,
    /// The key under which it was offered.
    pub key: SessionKey,
    pub credits: u16,
}

/// State of a session that is being opened.
pub(crate) struct Opening {
    pub since_ns: u64,
    pub offer: Offer,
    pub cookie: Cookie,
}

/// State of a session that is rarely needed.
#[derive(Default)]
pub(crate) struct ClientCold {
    pub(super) queue: CallList,
    pub(super) owed: OwedCalls,
    /// The lane that gets the session's events.
    pub lane: LaneId,
    /// The session on which we answer the server's calls, if it may call us.
    pub reverse: Option<ReverseSession>,
    /// For a session over which a client of ours is called: that client.
    pub client_called: Option<ClientId>,
    pub opening: Option<Opening>,
    /// Slots that the server granted; 0 until it has granted any.
    pub slots: u16,
    pub ending_since_ns: u64,
    pub last_try_ns: u64,
}
