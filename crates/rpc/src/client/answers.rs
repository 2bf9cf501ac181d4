//! Answers of servers to our calls.

use sinew_fabric::RxPacket;
use sinew_wire::{CallName, HEADER_LEN, Header, PACKETS_MAX, Part, residence};

use super::ending::finish_short;
use super::state::{CallView, ClientSession, ClientState, Form, NOT_LEFT, Outgoing};
use super::{BACKOFF_MAX, Clients};
use crate::answer::ErrorCode;
use crate::error::{Cause, Execution};
use crate::message::{copy_data, packet_range, packets_of};
use crate::recovery::{Timeout, Window};
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::{Place, SlotId};

impl Clients {
    /// Finds the call that a server's packet belongs to: the index of its session, and its slot.
    pub(super) fn find_call(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
    ) -> Result<(usize, SlotId), PacketDrop> {
        let index = self.table.checked(call.session, packet.from)?;
        shared.peers.heard(self.table.entries[index].peer_index, shared.now_ns);
        let id = self.table.slot_of(index, call.number);
        let slot = &self.table.slots[id.at()];
        if slot.number != call.number || slot.request.is_none() {
            return Err(PacketDrop::Stale);
        }
        Ok((index, id))
    }

    /// As [`Self::find_call`], for an answer. If the call is over, the session gets back the credits of the packets
    /// that are answered: `answered` returns their number, given the number of request packets, or `None` for all of
    /// the call's packets.
    pub(super) fn find_answered(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        packet: &RxPacket<'_>,
        answered: impl FnOnce(u32) -> Option<u32>,
    ) -> Result<(usize, SlotId), PacketDrop> {
        let found = self.find_call(shared, call, packet);
        if found == Err(PacketDrop::Stale) {
            self.answered_late(shared, call.session.index(), call.number, answered);
        }
        found
    }

    /// Returns a view of a call as a long call.
    fn long(&mut self, id: SlotId, shared: &Shared) -> CallView<'_> {
        let mut view = self.view(id);
        view.lengthen(shared.times_calls);
        view
    }

    /// Handles a response of one packet to a short call, by far the most common case. `packet` is the first of a
    /// response and has no tail. Returns whether it was such a response; any other packet is left unchanged, for
    /// [`Self::on_response`].
    #[inline(always)]
    pub fn take_short(&mut self, shared: &mut Shared, header: &Header, packet: &RxPacket<'_>) -> bool {
        let place = self.table.place_of_number(header.request_number);
        let Some(Place { entry: session, slot }) =
            self.table.place(header.session, header.request_number, &packet.from)
        else {
            return false;
        };
        let data = &packet.head[HEADER_LEN..];
        if slot.number != header.request_number
            || slot.form == Form::Long
            || slot.progress_ns == NOT_LEFT
            || header.is_copy
            || header.message_len as usize != data.len()
            || header.message_len > session.one_packet_max
        {
            return false;
        }
        let (Some(Outgoing::Whole(_)), Some(response)) = (&slot.request, &mut slot.response) else { return false };
        if response.fill(data).is_err() {
            return false;
        }
        shared.peers.heard(session.peer_index, shared.now_ns);
        if shared.times_calls && (session.round_trips.wants(shared.now_ns) || shared.pacing.is_on()) {
            let index = header.session.index();
            let residence_ns = residence::decode(header.type_or_residence);
            measured(shared, session, index, round_trip_ns(shared.now_ns, slot.progress_ns, residence_ns));
        }
        finish_short(&mut self.lanes, session, slot, place);
        shared.stats.calls_completed += 1;
        if session.has_queue || session.waiting != 0 {
            self.let_others_go(shared, header.session.index());
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
        let (index, id) = self.find_answered(shared, call, packet, answered)?;
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
        let mut view = self.long(id, shared);
        if view.travel.response_packets > 0 {
            view.answered_again(shared.config.timeout, shared.now_ns);
            return Err(PacketDrop::Stale);
        }
        if !view.travel.may_have_run() {
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
        let request_packets = view.travel.request_packets;
        view.acknowledge(shared, index, request_packets, call.is_copy, residence::decode(residence));
        if packets == 1 {
            self.finish(shared, index, id, Ok(()));
            return Ok(());
        }
        (view.travel.ahead, view.travel.resent) = (Window::default(), Window::default());
        view.travel.response_packets = packets as u32;
        self.pump_in_turn(shared, index, id);
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
        let mut view = self.long(id, shared);
        let number = u32::from(part.packet);
        if view.travel.response_packets == 0 || number >= view.travel.response_packets {
            return Err(PacketDrop::WrongPhase);
        }
        let answer = view.travel.request_packets + number - 1;
        let place = match answer.checked_sub(view.travel.received) {
            Some(place) if !view.travel.ahead.has(place) => place,
            _ => {
                view.answered_again(shared.config.timeout, shared.now_ns);
                return Err(PacketDrop::Stale);
            }
        };
        if place > 0 && !shared.config.recovery.keeps_ahead() {
            return Err(PacketDrop::OutOfOrder);
        }
        if answer >= view.travel.sent_max || place >= Window::PLACES {
            return Err(PacketDrop::WrongPhase);
        }
        let Some(response) = &mut view.slot.response else { return Err(PacketDrop::Stale) };
        let range = packet_range(response.len(), view.session.data_per_packet as usize, usize::from(part.packet));
        if part.message_len as usize != response.len() || packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        copy_data(packet, 0, &mut response[range])?;
        view.travel.ahead.mark(place);
        let came = view.travel.ahead.advance();
        self.take_answers(shared, index, id, came, call.is_copy);
        let travel = &self.travel[id.at()];
        if travel.received == travel.request_packets + travel.response_packets - 1 {
            self.finish(shared, index, id, Ok(()));
        } else if came > 0 {
            self.pump_in_turn(shared, index, id);
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
        let index = self.table.checked(call.session, packet.from)?;
        shared.peers.heard(self.table.entries[index].peer_index, shared.now_ns);
        self.marked(shared, index);
        Ok(())
    }

    /// Notes that a packet of a session of ours, in either direction, met a long queue.
    pub fn marked(&mut self, shared: &mut Shared, index: usize) {
        let session = &mut self.table.entries[index];
        // While the session opens, congestion state at its index is still another session's.
        if session.state == ClientState::Open {
            session.limits = shared.pacing.marked(session.sample(index, shared.now_ns));
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
        let view = self.long(id, shared);
        if !view.travel.may_have_run() || view.travel.response_packets > 0 {
            return Err(PacketDrop::WrongPhase);
        }
        view.slot.progress_ns = shared.now_ns;
        // The request has arrived: what comes next will not answer retransmissions of it.
        (view.travel.repeated, view.travel.is_probing) = (0, false);
        if shared.config.timeout == Timeout::Fixed {
            // With `Adaptive`, the back-off was doubled when the time-out passed.
            view.travel.backoff = (view.travel.backoff + 1).min(BACKOFF_MAX);
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
        let (index, id) = self.find_answered(shared, call, packet, |_| None)?;
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
pub(super) fn round_trip_ns(now_ns: u64, left_ns: u64, residence_ns: u64) -> Option<u64> {
    // Undoes the rounding of the encoding; a time at its limit may have been longer.
    let kept_ns = residence_ns + residence_ns / 2048;
    (residence_ns < residence::RESIDENCE_MAX_NS).then(|| now_ns.saturating_sub(left_ns).saturating_sub(kept_ns))
}

/// Notes a measured round trip, for congestion control and for the time-out.
#[inline(never)]
pub(super) fn measured(shared: &mut Shared, session: &mut ClientSession, index: usize, rtt_ns: Option<u64>) {
    if let Some(rtt_ns) = rtt_ns {
        session.round_trips.add(rtt_ns, shared.now_ns);
        if shared.pacing.is_on() {
            let sample = session.sample(index, shared.now_ns);
            session.limits = shared.pacing.measured(rtt_ns, sample, shared.config.tuning.congestion_bypass);
        }
    }
}
