//! Answers of servers to our calls.

use sinew_fabric::RxPacket;
use sinew_mem::MessageBuffer;
use sinew_wire::{CallName, HEADER_LEN, Header, PACKETS_MAX, Part, residence};

use super::ending::finish_short;
use super::state::{CallView, ClientSession, ClientState, Form, NOT_SENT, Outgoing};
use super::{BACKOFF_MAX, Clients};
use crate::answer::ErrorCode;
use crate::error::{Cause, Execution};
use crate::message::{copy_data, packet_range, packets_of};
use crate::recovery::{Timeout, Window};
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::{SlotId, SlotRef};

impl Clients {
    /// Finds the call that a server's packet belongs to: the index of its session, and its slot.
    pub(super) fn find_call(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
    ) -> Result<(usize, SlotId), PacketDrop> {
        let index = self.table.find_from(call.session, packet.from)?;
        shared.peers.note_heard(self.table.entries[index].peer_index, shared.now_ns);
        let id = self.table.slot_of(index, call.number);
        let slot = &self.table.slots[id.index()];
        if slot.number != call.number || slot.request.is_none() {
            return Err(PacketDrop::Stale);
        }
        Ok((index, id))
    }

    /// As [`Self::find_call`], for an answer. If the call is over, the session gets back the credits of the packets
    /// that are answered: `answered` returns their number, given the number of request packets, or `None` for all of
    /// the call's packets.
    pub(super) fn find_answered_call(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
        answered: impl FnOnce(u32) -> Option<u32>,
    ) -> Result<(usize, SlotId), PacketDrop> {
        let found = self.find_call(shared, call, packet);
        if found == Err(PacketDrop::Stale) {
            self.on_late_answer(shared, call.session.index(), call.number, answered);
        }
        found
    }

    /// Returns a view of a call as a long call.
    fn view_long(&mut self, id: SlotId, shared: &Shared) -> CallView<'_> {
        let mut view = self.view(id);
        view.make_long(shared.times_calls);
        view
    }

    /// Handles a response of one packet to a short call, by far the most common case. `packet` is the first of a
    /// response and has no tail. Returns whether it was such a response; any other packet is left unchanged, for
    /// [`Self::on_response`].
    #[inline(always)]
    pub fn take_short(&mut self, shared: &mut Shared, header: &Header, packet: &RxPacket<'_>) -> bool {
        let data = &packet.head[HEADER_LEN..];
        self.take_whole(shared, header, packet, data.len(), |response| response.fill(data).is_ok())
    }

    /// As [`Self::take_short`], for a packet with a tail. If the tail was revoked, the call's buffer has changed
    /// although this returns false; its bytes mean nothing before the call has completed.
    #[inline(never)]
    pub fn take_split(&mut self, shared: &mut Shared, header: &Header, packet: &RxPacket<'_>) -> bool {
        let len = packet.len() - HEADER_LEN;
        self.take_whole(shared, header, packet, len, |response| {
            response.resized(len).is_ok_and(|target| copy_data(packet, 0, target).is_ok())
        })
    }

    /// Handles a response of one packet, of `len` bytes that `copy` puts into the call's buffer.
    #[inline(always)]
    fn take_whole(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        packet: &RxPacket<'_>,
        len: usize,
        copy: impl FnOnce(&mut MessageBuffer) -> bool,
    ) -> bool {
        let position = self.table.position_of_number(header.request_number);
        let Some(SlotRef { entry: session, slot }) =
            self.table.find_slot(header.session, header.request_number, &packet.from)
        else {
            return false;
        };
        if slot.number != header.request_number
            || slot.form == Form::Long
            || slot.progress_ns == NOT_SENT
            || header.is_copy
            || header.message_len as usize != len
            || header.message_len > session.one_packet_max
        {
            return false;
        }
        let (Some(Outgoing::Whole(_)), Some(response)) = (&slot.request, &mut slot.response) else { return false };
        if !copy(response) {
            return false;
        }
        shared.peers.note_heard(session.peer_index, shared.now_ns);
        if shared.times_calls && (session.round_trips.wants(shared.now_ns) || shared.pacing.is_on()) {
            let index = header.session.index();
            let residence_ns = residence::decode(header.type_or_residence);
            note_round_trip(shared, session, index, round_trip_ns(shared.now_ns, slot.progress_ns, residence_ns));
        }
        finish_short(&mut self.lanes, session, slot, position);
        shared.stats.calls_completed += 1;
        if session.has_queue || session.waiting != 0 {
            self.resume_waiting(shared, header.session.index());
        }
        true
    }

    /// Handles a packet of a response that [`Self::take_short`] did not accept.
    pub fn on_response(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        (residence, part): (u16, Part),
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let answered = |request_packets| Some(request_packets + u32::from(part.packet));
        let (index, id) = self.find_answered_call(shared, call, packet, answered)?;
        if part.packet == 0 {
            self.on_first_response(shared, (index, id), call, (residence, part), packet)
        } else {
            self.on_further_response(shared, (index, id), call, part, packet)
        }
    }

    fn on_first_response(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        (residence, part): (u16, Part),
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let mut view = self.view_long(id, shared);
        if view.long.response_packets > 0 {
            view.on_duplicate_answer(shared.config.timeout, shared.now_ns);
            return Err(PacketDrop::Stale);
        }
        if !view.long.may_have_run() {
            return Err(PacketDrop::WrongPhase);
        }
        let message_len = part.message_len as usize;
        let data_per_packet = view.session.data_per_packet as usize;
        let packets = packets_of(message_len, data_per_packet);
        if part.message_len > view.session.message_len_max || packets > PACKETS_MAX {
            return Err(PacketDrop::TooLong);
        }
        let data_len = packet.len() - HEADER_LEN;
        if data_len != message_len.min(data_per_packet) {
            return Err(PacketDrop::WrongLength);
        }
        let Some(response) = &mut view.slot.response else { return Err(PacketDrop::Stale) };
        if response.resize(message_len).is_err() {
            match shared.arena.alloc(message_len, data_per_packet) {
                Ok(larger) => *response = larger,
                Err(_) => {
                    self.finish(shared, index, id, Err((Cause::NoMemory, Execution::MayHaveRun)));
                    return Err(PacketDrop::NoMemory);
                }
            }
        }
        copy_data(packet, 0, &mut response[..data_len])?;
        let request_packets = view.long.request_packets;
        view.acknowledge(shared, index, request_packets, call.is_copy, residence::decode(residence));
        if packets == 1 {
            self.finish(shared, index, id, Ok(()));
            return Ok(());
        }
        (view.long.ahead, view.long.resent) = (Window::default(), Window::default());
        view.long.response_packets = packets as u32;
        self.send_in_turn(shared, index, id);
        Ok(())
    }

    fn on_further_response(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        part: Part,
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let mut view = self.view_long(id, shared);
        let number = u32::from(part.packet);
        if view.long.response_packets == 0 || number >= view.long.response_packets {
            return Err(PacketDrop::WrongPhase);
        }
        let answer = view.long.request_packets + number - 1;
        let offset = match answer.checked_sub(view.long.received) {
            Some(place) if !view.long.ahead.has(place) => place,
            _ => {
                view.on_duplicate_answer(shared.config.timeout, shared.now_ns);
                return Err(PacketDrop::Stale);
            }
        };
        if offset > 0 && !shared.config.recovery.keeps_ahead() {
            return Err(PacketDrop::OutOfOrder);
        }
        if answer >= view.long.sent_max || offset >= Window::PLACES {
            return Err(PacketDrop::WrongPhase);
        }
        let Some(response) = &mut view.slot.response else { return Err(PacketDrop::Stale) };
        let range = packet_range(response.len(), view.session.data_per_packet as usize, usize::from(part.packet));
        if part.message_len as usize != response.len() || packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        copy_data(packet, 0, &mut response[range])?;
        view.long.ahead.mark(offset);
        let newly_answered = view.long.ahead.advance();
        self.on_packets_answered(shared, index, id, newly_answered, call.is_copy);
        let long = &self.long_calls[id.index()];
        if long.received == long.request_packets + long.response_packets - 1 {
            self.finish(shared, index, id, Ok(()));
        } else if newly_answered > 0 {
            self.send_in_turn(shared, index, id);
        }
        Ok(())
    }

    /// Handles a server's notice that packets of a session of ours met long queues.
    pub fn on_congestion_notice(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let index = self.table.find_from(call.session, packet.from)?;
        shared.peers.note_heard(self.table.entries[index].peer_index, shared.now_ns);
        self.on_mark(shared, index);
        Ok(())
    }

    /// Notes that a packet of a session of ours, in either direction, met a long queue.
    pub fn on_mark(&mut self, shared: &mut Shared, index: usize) {
        let session = &mut self.table.entries[index];
        // While the session opens, congestion state at its index is still another session's.
        if session.state == ClientState::Open {
            session.limits = shared.pacing.on_mark(session.sample(index, shared.now_ns));
        }
    }

    /// Notes that the handler is still at work.
    pub fn on_in_progress(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let (_, id) = self.find_call(shared, call, packet)?;
        let view = self.view_long(id, shared);
        if !view.long.may_have_run() || view.long.response_packets > 0 {
            return Err(PacketDrop::WrongPhase);
        }
        view.slot.progress_ns = shared.now_ns;
        // The request has arrived: what comes next will not answer retransmissions of it.
        (view.long.repeated, view.long.is_probing) = (0, false);
        if shared.config.timeout == Timeout::Fixed {
            // With `Adaptive`, the back-off was doubled when the time-out passed.
            view.long.backoff = (view.long.backoff + 1).min(BACKOFF_MAX);
        }
        Ok(())
    }

    /// Handles an error: the call gets no response.
    pub fn on_call_error(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        code: u32,
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let (index, id) = self.find_answered_call(shared, call, packet, |_| None)?;
        // An error may come in the middle of a response: a server that is short of memory gives up responses that
        // nobody fetches.
        let failure = ErrorCode::from_wire(code).ok_or(PacketDrop::Malformed)?.meaning();
        self.finish(shared, index, id, Err(failure));
        Ok(())
    }
}

/// Returns a round trip, less the time for which the server kept the request, in ns; `None` if that time is too long to
/// be encoded.
#[inline(always)]
pub(super) fn round_trip_ns(now_ns: u64, sent_ns: u64, residence_ns: u64) -> Option<u64> {
    // Undoes the rounding of the encoding; a time at its limit may have been longer.
    let kept_ns = residence_ns + residence_ns / 2048;
    (residence_ns < residence::RESIDENCE_MAX_NS).then(|| now_ns.saturating_sub(sent_ns).saturating_sub(kept_ns))
}

/// Notes a measured round trip, for congestion control and for the time-out.
#[inline(never)]
pub(super) fn note_round_trip(shared: &mut Shared, session: &mut ClientSession, index: usize, rtt_ns: Option<u64>) {
    if let Some(rtt_ns) = rtt_ns {
        session.round_trips.add(rtt_ns, shared.now_ns);
        if shared.pacing.is_on() {
            let sample = session.sample(index, shared.now_ns);
            session.limits = shared.pacing.on_round_trip(rtt_ns, sample, shared.config.tuning.congestion_bypass);
        }
    }
}
