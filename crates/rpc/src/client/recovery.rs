//! How a call goes on: what was answered, what was lost or is late, and what is sent again.

use sinew_fabric::RxPacket;
use sinew_wire::{CREDIT_ALONE, Header, residence};

use super::{BACKOFF_MAX, ClientSession, ClientSlot, NOT_LEFT, Outgoing};
use crate::core::{Core, TxItem, TxKind};
use crate::recovery::{Recovery, RoundTrips, Timeout, Window};
use crate::stats::PacketDrop;

/// While round trips are bounded and not measured, the time-out grows by that to so many times what is configured, as a power of two: much
/// of a bound may be losses.
const BOUND_MAX: u8 = 3;

impl ClientSlot {
    /// The round trip that ends with the `received`th answer, which the server kept for `residence_ns`. What measures it is the first
    /// copy of its packet: an answer to another says nothing of it, nor does one to a later packet once there are copies, which may have
    /// left long after it.
    #[inline(always)]
    pub(super) fn round_trip_ns(
        &mut self,
        received: u32,
        is_copy: bool,
        residence_ns: u64,
        now_ns: u64,
    ) -> Option<u64> {
        if self.timed == 0 || received < self.timed {
            return None;
        }
        let timed = std::mem::take(&mut self.timed);
        if is_copy || timed <= self.repeated && received != timed {
            return None;
        }
        // As it was before it was rounded down; the longest may have been longer.
        let kept_ns = residence_ns + residence_ns / 2048;
        (residence_ns < residence::RESIDENCE_MAX_NS)
            .then(|| now_ns.saturating_sub(self.timed_ns).saturating_sub(kept_ns))
    }

    /// Notes what an answer to a copy says of round trips while none was measured.
    #[inline(always)]
    pub(super) fn bound_trips(&self, trips: &mut RoundTrips, is_copy: bool, now_ns: u64) {
        if !is_copy {
            return;
        }
        // At first all copies may be answered, the first of all included. The time-out is longer than what is bounded so: what left before the
        // last copies was lost, or its answer was.
        if trips.is_bound() {
            trips.bound(now_ns.saturating_sub(self.copied_ns));
        } else if self.timed != 0 && self.timed <= self.repeated {
            trips.bound(now_ns.saturating_sub(self.timed_ns));
        }
    }

    /// Notes that an answer came that is known already. What the queues hold is still being answered: a time-out that passes meanwhile would
    /// only add to it.
    #[inline]
    pub(super) fn answered_again(&mut self, timeout: Timeout, now_ns: u64) {
        if timeout == Timeout::Adaptive && self.sent > self.received && self.progress_ns != NOT_LEFT {
            self.progress_ns = now_ns;
        }
    }
}

impl Core {
    /// Notes that the server has answered the call's first `received` packets, now a first copy or another.
    #[inline(always)]
    pub(super) fn acknowledge(
        timeout: Timeout,
        session: &mut ClientSession,
        state: &mut ClientSlot,
        received: u32,
        is_copy: bool,
        now_ns: u64,
    ) {
        let before = state.sent - state.received;
        state.received = received;
        // After a roll-back an answer to the earlier copy can be ahead of what was sent again.
        state.sent = state.sent.max(received);
        let after = state.sent - state.received;
        session.credits += before.saturating_sub(after) as u16;
        debug_assert!(session.credits <= session.credits_max);
        state.progress_ns = now_ns;
        // An answer to a first copy that was sent again says that the time-out was too short. It stays longer for this call until one to a
        // packet comes that left since.
        if is_copy || received > state.repeated || timeout == Timeout::Fixed {
            state.backoff = 0;
        }
        state.is_probing = false;
    }

    /// The server has taken request packets up to the one that the packet names, or that one alone, and some behind a missing one.
    pub(crate) fn on_credit_return(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        let (index, slot) = self.find_call(header, packet)?;
        let at = self.clients.table.slot_at(index, slot);
        let state = &mut self.clients.table.slots[at];
        let taken = u32::from(header.packet_number.wrapping_add(1));
        let mut ahead = Window(header.message_len.into());
        // The last request packet's credit comes back with the response; what was not sent was not taken.
        if taken >= state.request_packets || taken == 0 && ahead == Window::default() {
            return Err(PacketDrop::WrongPhase);
        }
        if taken + ahead.end() > state.sent_max {
            return Err(PacketDrop::WrongPhase);
        }
        if !self.config.recovery.keeps_ahead() {
            if taken <= state.received {
                state.answered_again(self.config.timeout, self.now_ns);
                return Err(PacketDrop::Stale);
            }
            if header.type_or_residence == CREDIT_ALONE && taken > state.received + 1 {
                return Err(PacketDrop::OutOfOrder);
            }
            let came = taken - state.received;
            self.take_answers(index, slot, came, header.is_copy);
            self.pump_in_turn(index, slot);
            return Ok(());
        }
        ahead.0 &= Window::first(state.request_packets - 1 - taken).0;
        // From what it saw as the first missing packet to what we do.
        let before = state.ahead;
        let came = taken.saturating_sub(state.received);
        ahead.skip(state.received.saturating_sub(taken));
        state.ahead.skip(came);
        state.ahead.0 |= ahead.0;
        if came == 0 && state.ahead == before {
            state.answered_again(self.config.timeout, self.now_ns);
            return Err(PacketDrop::Stale);
        }
        let came = came + state.ahead.advance();
        self.take_answers(index, slot, came, header.is_copy);
        if came > 0 {
            self.pump_in_turn(index, slot);
        }
        Ok(())
    }

    /// Further answers have come, of which so many are the next ones.
    pub(super) fn take_answers(&mut self, index: usize, slot: usize, came: u32, is_copy: bool) {
        let at = self.clients.table.slot_at(index, slot);
        let (session, state) = (&mut self.clients.table.entries[index], &mut self.clients.table.slots[at]);
        let was_probing = std::mem::take(&mut state.is_probing);
        if came > 0 {
            let received = state.received + came;
            state.resent.skip(came);
            state.bound_trips(&mut session.round_trips, is_copy, self.now_ns);
            let rtt_ns = state.round_trip_ns(received, is_copy, 0, self.now_ns);
            Self::measured(&mut self.pacing, &self.config, session, index, rtt_ns, self.now_ns);
            Self::acknowledge(self.config.timeout, session, state, received, is_copy, self.now_ns);
        } else {
            state.progress_ns = self.now_ns;
        }
        if was_probing && !is_copy && !self.config.recovery.keeps_ahead() {
            // A first copy was late and not lost, and so are those behind it: they are on their way again.
            let back = (state.sent_max - state.sent).min(session.credits.into());
            state.sent += back;
            session.credits -= back as u16;
        }
        if was_probing && is_copy && self.config.recovery.keeps_ahead() {
            // The one packet that was sent again has come through: those that were late with it have not.
            self.resend_unanswered(index, slot, u32::MAX);
        } else if state.ahead != Window::default() {
            self.resend_overtaken(index, slot);
        }
    }

    /// Sends the packets again that later ones have overtaken by so many places that they count as lost.
    #[cold]
    fn resend_overtaken(&mut self, index: usize, slot: usize) {
        let Recovery::Selective { packet_threshold } = self.config.recovery else { return };
        let threshold = u32::from(packet_threshold);
        let at = self.clients.table.slot_at(index, slot);
        let state = &mut self.clients.table.slots[at];
        let end = state.ahead.end();
        if state.received + end >= state.resent_before + threshold {
            // Packets that left after the copies were answered: the copies are lost too.
            state.resent = Window::default();
        }
        let lost = Window::first(end.saturating_sub(threshold)).0 & !state.ahead.0 & !state.resent.0;
        if lost != 0 {
            self.resend(index, slot, Window(lost));
        }
    }

    /// Sends so many of the packets again that are not answered, and no more than congestion control lets be on their way.
    fn resend_unanswered(&mut self, index: usize, slot: usize, most: u32) {
        let at = self.clients.table.slot_at(index, slot);
        let (session, state) = (&mut self.clients.table.entries[index], &mut self.clients.table.slots[at]);
        let window = (session.credits_max - session.limits.withheld.min(session.credits_max)).max(1);
        let near = Window::first(most.min(window.into()));
        let lost = Window::first(state.sent - state.received).0 & !state.ahead.0 & near.0;
        if lost != 0 {
            self.resend(index, slot, Window(lost));
        }
    }

    /// Sends packets again, whose credits the call still has.
    fn resend(&mut self, index: usize, slot: usize, lost: Window) {
        let at = self.clients.table.slot_at(index, slot);
        let (session, state) = (&mut self.clients.table.entries[index], &mut self.clients.table.slots[at]);
        state.resent.0 |= lost.0;
        state.resent_before = state.sent;
        state.repeated = state.sent_max;
        self.stats.retransmissions += 1;
        if self.pacing.is_on() {
            session.limits = self.pacing.lost(session.sample(index, self.now_ns));
        }
        for (place, count) in lost.runs() {
            let packet = state.received + place;
            let (kind, first) = match packet.checked_sub(state.request_packets) {
                None => (TxKind::Request, packet),
                Some(response) => (TxKind::RequestForResponse, response + 1),
            };
            let run = TxItem {
                kind,
                slot: slot as u8,
                first: first as u16,
                count: count as u16,
                session: index as u32,
                number_low: state.number as u32,
                is_copy: true,
            };
            if self.pacing.is_on() && (session.limits.is_paced || !self.config.tuning.pacing_bypass) {
                self.pacing.queue(run, packet_len(session, state, kind), self.now_ns, &mut self.transmit);
            } else if kind == TxKind::RequestForResponse && !self.config.tuning.cumulative_credits {
                self.transmit.extend(run.numbers().map(|first| TxItem { first, count: 1, ..run }));
            } else {
                self.transmit.push(run);
            }
        }
    }

    /// How long a call of the session waits for an answer that had to wait so often already.
    fn timeout_ns(&self, index: usize, backoff: u8) -> u64 {
        let configured_ns = self.config.retransmit_timeout_ns;
        let measured_ns = match self.config.timeout {
            Timeout::Fixed => 0,
            // Whoever is silent for longer than the other bears is given up, not waited for.
            Timeout::Adaptive => {
                let trips = &self.clients.table.entries[index].round_trips;
                let most_ns = if trips.is_bound() { configured_ns.saturating_mul(1 << BOUND_MAX) } else { u64::MAX };
                trips.timeout_ns().min(self.config.peer_timeout_ns / 4).min(most_ns)
            }
        };
        let longest_ns = configured_ns.saturating_mul(1 << BACKOFF_MAX).max(measured_ns.saturating_mul(2));
        measured_ns.max(configured_ns).saturating_mul(1 << backoff).min(longest_ns)
    }

    /// Sends again what was not answered in time. A pass over the busy slots is spread over turns, so that many of them do not
    /// hold up one.
    #[inline]
    pub(crate) fn retransmit_late(&mut self) {
        if self.now_ns < self.clients.next_scan_ns {
            return;
        }
        self.scan_late();
    }

    fn scan_late(&mut self) {
        const SLOTS_PER_TURN: usize = 64;
        for _ in 0..SLOTS_PER_TURN {
            let Some(&at) = self.clients.listed.get(self.clients.scan_at) else {
                self.clients.scan_at = 0;
                self.clients.next_scan_ns = self.now_ns + self.config.retransmit_timeout_ns / 5;
                return;
            };
            let (at, slots) = (at as usize, self.clients.table.slots_per_entry());
            let timeout_ns = self.timeout_ns(at / slots, self.clients.table.slots[at].backoff);
            let state = &mut self.clients.table.slots[at];
            if state.request.is_none() {
                state.listed = false;
                self.clients.listed.swap_remove(self.clients.scan_at);
                continue;
            }
            self.clients.scan_at += 1;
            if state.sent == state.received || self.now_ns.saturating_sub(state.progress_ns) < timeout_ns {
                continue;
            }
            if self.pacing.holds(at / slots, at % slots) {
                // They have not left: nothing is late.
                state.progress_ns = self.now_ns;
                continue;
            }
            self.late(at / slots, at % slots);
        }
    }

    /// Sends a call's packets again, since no answer came in time.
    fn late(&mut self, index: usize, slot: usize) {
        let at = self.clients.table.slot_at(index, slot);
        let (session, state) = (&mut self.clients.table.entries[index], &mut self.clients.table.slots[at]);
        (state.progress_ns, state.copied_ns) = (self.now_ns, self.now_ns);
        if self.config.timeout == Timeout::Adaptive {
            // Once copies were not answered either, more than one would only make queues longer.
            state.is_probing = state.backoff > 0;
            state.backoff = (state.backoff + 1).min(BACKOFF_MAX);
        }
        let most = if state.is_probing { 1 } else { u32::MAX };
        if self.config.recovery.keeps_ahead() {
            return self.resend_unanswered(index, slot, most);
        }
        // Go-back-N (nsdi19 5.3): back to what is known to have arrived, with the credits of the rest.
        session.credits += (state.sent - state.received) as u16;
        state.sent = state.received;
        state.repeated = state.sent_max;
        self.stats.retransmissions += 1;
        if self.pacing.is_on() {
            session.limits = self.pacing.lost(session.sample(index, self.now_ns));
        }
        if most == 1 {
            // What that leaves of the credits is for others.
            self.pump_up_to(index, slot, most);
            return self.pump_waiting(index);
        }
        self.pump_in_turn(index, slot);
    }
}

/// Bytes of the packet that a paced one makes room for. A request-for-response is as long as what it asks for: answers take the room.
pub(super) fn packet_len(session: &ClientSession, state: &ClientSlot, kind: TxKind) -> usize {
    let data_len = match (&state.request, kind) {
        (Some(Outgoing::Whole(request)), TxKind::Request) => request.len(),
        _ => session.data_per_packet as usize,
    };
    data_len + sinew_wire::HEADER_LEN
}
