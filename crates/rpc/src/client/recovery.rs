//! Progress of calls: which packets were answered, were lost or are late, and which are retransmitted.

use sinew_fabric::RxPacket;
use sinew_wire::CallName;

use super::answers::{note_round_trip, round_trip_ns};
use super::state::{CallView, ClientSession, ClientSlot, Form, Outgoing};
use super::{BACKOFF_MAX, Clients};
use crate::recovery::{Recovery, Timeout, Window};
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::SlotId;
use crate::transmit::{TxItem, TxKind};

/// Cap on the time-out while round trips are bounded but not measured, as a power of two times the configured time-out:
/// losses may account for much of a bound.
const BOUND_MAX: u8 = 3;

impl CallView<'_> {
    /// Returns the round trip that ends with the `received`th answer, less the `residence_ns` for which the server kept
    /// the packet. The answer must be to the first transmission of the timed packet: an answer to a retransmission does
    /// not measure it. Nor, once packets were retransmitted, does an answer to a later packet, which may have left long
    /// afterwards.
    fn round_trip_ns(&mut self, received: u32, is_copy: bool, residence_ns: u64, now_ns: u64) -> Option<u64> {
        if self.long.timed == 0 || received < self.long.timed {
            return None;
        }
        let timed = std::mem::take(&mut self.long.timed);
        if is_copy || timed <= self.long.repeated && received != timed {
            return None;
        }
        round_trip_ns(now_ns, self.long.timed_ns, residence_ns)
    }

    /// Bounds round trips by an answer to a retransmission, while none was measured.
    fn bound_round_trips(&mut self, now_ns: u64) {
        // At first, the answer may be to any transmission of the packet, even the very first. Once there is a bound,
        // the time-out is longer than it: so all transmissions before the last were lost, or their answers were.
        let (trips, long) = (&mut self.session.round_trips, &*self.long);
        if trips.is_bound() {
            trips.bound(now_ns.saturating_sub(long.copied_ns));
        } else if long.timed != 0 && long.timed <= long.repeated {
            trips.bound(now_ns.saturating_sub(long.timed_ns));
        }
    }

    /// Notes that the server has answered the call's first `received` packets, and what this says about round trips.
    /// `is_copy` is whether a retransmission was answered, rather than a first transmission.
    pub(super) fn acknowledge(
        &mut self,
        shared: &mut Shared,
        index: usize,
        received: u32,
        is_copy: bool,
        residence_ns: u64,
    ) {
        if is_copy {
            self.bound_round_trips(shared.now_ns);
        }
        let rtt_ns = self.round_trip_ns(received, is_copy, residence_ns, shared.now_ns);
        note_round_trip(shared, self.session, index, rtt_ns);
        let long = &mut *self.long;
        let before = long.sent - long.received;
        long.received = received;
        // After a roll-back, an answer to the earlier transmission can be ahead of what was sent again.
        long.sent = long.sent.max(received);
        let after = long.sent - long.received;
        self.session.credits += before.saturating_sub(after) as u16;
        debug_assert!(self.session.credits <= self.session.credits_max);
        self.slot.progress_ns = shared.now_ns;
        // An answer to the first transmission of a packet that was retransmitted shows that the time-out was too short.
        // The back-off then stays, until an answer comes to a packet that left since.
        if is_copy || received > long.repeated || shared.config.timeout == Timeout::Fixed {
            long.backoff = 0;
        }
        long.is_probing = false;
    }
}

impl Clients {
    /// Handles a credit return: the server has the first `taken` request packets, or just the last of these, and the
    /// packets `ahead` behind a missing one.
    pub fn on_credit_return(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        (taken, ahead, is_alone): (u16, u32, bool),
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let (index, id) = self.find_answered_call(shared, call, packet, |_| Some(taken.into()))?;
        let mut view = self.view(id);
        view.make_long(shared.times_calls);
        let (taken, mut ahead) = (u32::from(taken), Window(ahead.into()));
        let long = &mut *view.long;
        // The last request packet's credit comes back with the response, and packets that were not sent cannot be
        // taken.
        if taken >= long.request_packets || taken == 0 && ahead == Window::default() {
            return Err(PacketDrop::WrongPhase);
        }
        if taken + ahead.end() > long.sent_max {
            return Err(PacketDrop::WrongPhase);
        }
        if !shared.config.recovery.keeps_ahead() {
            if taken <= long.received {
                view.on_duplicate_answer(shared.config.timeout, shared.now_ns);
                return Err(PacketDrop::Stale);
            }
            if is_alone && taken > long.received + 1 {
                return Err(PacketDrop::OutOfOrder);
            }
            let newly_answered = taken - long.received;
            self.on_packets_answered(shared, index, id, newly_answered, call.is_copy);
            self.send_in_turn(shared, index, id);
            return Ok(());
        }
        ahead.0 &= Window::first(long.request_packets - 1 - taken).0;
        // From the first packet that the server was missing to the first that we are missing.
        let before = long.ahead;
        let newly_answered = taken.saturating_sub(long.received);
        ahead.skip(long.received.saturating_sub(taken));
        long.ahead.skip(newly_answered);
        long.ahead.0 |= ahead.0;
        if newly_answered == 0 && long.ahead == before {
            view.on_duplicate_answer(shared.config.timeout, shared.now_ns);
            return Err(PacketDrop::Stale);
        }
        let newly_answered = newly_answered + long.ahead.advance();
        self.on_packets_answered(shared, index, id, newly_answered, call.is_copy);
        if newly_answered > 0 {
            self.send_in_turn(shared, index, id);
        }
        Ok(())
    }

    /// Handles further answers, `newly_answered` of which are the next ones in order.
    pub(super) fn on_packets_answered(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        newly_answered: u32,
        is_copy: bool,
    ) {
        let keeps_ahead = shared.config.recovery.keeps_ahead();
        let mut view = self.view(id);
        let was_probing = std::mem::take(&mut view.long.is_probing);
        if newly_answered > 0 {
            let received = view.long.received + newly_answered;
            view.long.resent.skip(newly_answered);
            view.acknowledge(shared, index, received, is_copy, 0);
        } else {
            view.slot.progress_ns = shared.now_ns;
        }
        if was_probing && !is_copy && !keeps_ahead {
            // A first transmission was late, not lost, and so are the ones after it: they count as in flight again.
            let back = (view.long.sent_max - view.long.sent).min(view.session.credits.into());
            view.long.sent += back;
            view.session.credits -= back as u16;
        }
        if was_probing && is_copy && keeps_ahead {
            // The one packet that was retransmitted has got through; the others that were late have not.
            self.resend_unanswered(shared, index, id, u32::MAX);
        } else if view.long.ahead != Window::default() {
            self.resend_overtaken(shared, index, id);
        }
    }

    /// Retransmits packets that count as lost, since later ones overtook them by enough places.
    #[cold]
    fn resend_overtaken(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let Recovery::Selective { packet_threshold } = shared.config.recovery else { return };
        let threshold = u32::from(packet_threshold);
        let long = &mut self.long_calls[id.index()];
        let end = long.ahead.end();
        if long.received + end >= long.resent_before + threshold {
            // Packets that left after the retransmissions were answered, so the retransmissions are lost too.
            long.resent = Window::default();
        }
        let lost = Window::first(end.saturating_sub(threshold)).0 & !long.ahead.0 & !long.resent.0;
        if lost != 0 {
            self.resend(shared, index, id, Window(lost));
        }
    }

    /// Retransmits at most `packets_max` of the unanswered packets, and no more than congestion control allows in
    /// flight.
    fn resend_unanswered(&mut self, shared: &mut Shared, index: usize, id: SlotId, packets_max: u32) {
        let (session, long) = (&self.table.entries[index], &self.long_calls[id.index()]);
        let window = (session.credits_max - session.limits.withheld.min(session.credits_max)).max(1);
        let near = Window::first(packets_max.min(window.into()));
        let lost = Window::first(long.sent - long.received).0 & !long.ahead.0 & near.0;
        if lost != 0 {
            self.resend(shared, index, id, Window(lost));
        }
    }

    /// Retransmits packets whose credits the call still has.
    fn resend(&mut self, shared: &mut Shared, index: usize, id: SlotId, lost: Window) {
        let CallView { session, slot, long } = self.view(id);
        long.resent.0 |= lost.0;
        long.resent_before = long.sent;
        long.repeated = long.sent_max;
        shared.stats.retransmissions += 1;
        if shared.pacing.is_on() {
            session.limits = shared.pacing.on_loss(session.sample(index, shared.now_ns));
        }
        for (offset, count) in lost.runs() {
            let packet = long.received + offset;
            let (kind, first) = match packet.checked_sub(long.request_packets) {
                None => (TxKind::Request, packet),
                Some(response) => (TxKind::RequestForResponse, response + 1),
            };
            let run = TxItem {
                slot: id,
                number_low: slot.number as u32,
                first: first as u16,
                count: count as u16,
                kind,
                is_copy: true,
            };
            if shared.pacing.is_on() && (session.limits.is_paced || !shared.config.tuning.pacing_bypass) {
                let packet_len = packet_len(session, slot, kind);
                shared.pacing.queue(index, run, packet_len, shared.now_ns, &mut shared.transmit);
            } else if kind == TxKind::RequestForResponse && !shared.config.tuning.cumulative_credits {
                shared.transmit.extend(run.numbers().map(|first| TxItem { first, count: 1, ..run }));
            } else {
                shared.transmit.push(run);
            }
        }
    }

    /// The time-out of a call of this session after `backoff` doublings, in ns.
    pub(super) fn timeout_ns(&self, shared: &Shared, index: usize, backoff: u8) -> u64 {
        let configured_ns = shared.config.retransmit_timeout_ns;
        let measured_ns = match shared.config.timeout {
            Timeout::Fixed => 0,
            // A peer that is silent for longer than the peer time-out is given up, so there is no point in waiting
            // longer.
            Timeout::Adaptive => {
                let trips = &self.table.entries[index].round_trips;
                let bound_ns = if trips.is_bound() { configured_ns.saturating_mul(1 << BOUND_MAX) } else { u64::MAX };
                trips.timeout_ns().min(shared.config.peer_timeout_ns / 4).min(bound_ns)
            }
        };
        let longest_ns = configured_ns.saturating_mul(1 << BACKOFF_MAX).max(measured_ns.saturating_mul(2));
        measured_ns.max(configured_ns).saturating_mul(1 << backoff).min(longest_ns)
    }

    /// When the retransmission timer next has to run.
    #[inline(always)]
    pub fn scan_due_ns(&self) -> u64 {
        self.next_scan_ns
    }

    /// Retransmits packets that were not answered in time. A pass over the busy slots is spread over turns, so that a
    /// large number of them does not hold up one turn.
    pub fn retransmit_overdue(&mut self, shared: &mut Shared) {
        if shared.now_ns >= self.next_scan_ns {
            self.scan_timeouts(shared);
        }
    }

    fn scan_timeouts(&mut self, shared: &mut Shared) {
        const SLOTS_PER_TURN: usize = 64;
        self.expire_owed(shared);
        for _ in 0..SLOTS_PER_TURN {
            let Some(&id) = self.listed.get(self.scan_at) else {
                self.scan_at = 0;
                self.next_scan_ns = shared.now_ns + shared.config.retransmit_timeout_ns / 5;
                return;
            };
            let index = self.table.entry_of(id);
            let view = self.view(id);
            if view.slot.request.is_none() {
                view.slot.listed = false;
                self.listed.swap_remove(self.scan_at);
                continue;
            }
            let (waits, backoff) = match view.slot.form {
                Form::Short | Form::ShortTimed => (true, 0),
                Form::Long => (view.long.sent != view.long.received, view.long.backoff),
            };
            let waited_ns = shared.now_ns.saturating_sub(view.slot.progress_ns);
            self.scan_at += 1;
            if !waits || waited_ns < self.timeout_ns(shared, index, backoff) {
                continue;
            }
            if shared.pacing.holds(index, id) {
                // The packets are held back by pacing, so they are not late.
                self.table.slots[id.index()].progress_ns = shared.now_ns;
                continue;
            }
            self.retransmit(shared, index, id);
        }
    }

    /// Retransmits a call's packets, since no answer came in time.
    fn retransmit(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let mut view = self.view(id);
        view.make_long(shared.times_calls);
        let CallView { session, slot, long } = view;
        (slot.progress_ns, long.copied_ns) = (shared.now_ns, shared.now_ns);
        if shared.config.timeout == Timeout::Adaptive {
            // Once retransmissions go unanswered too, more than one at a time would only lengthen queues.
            long.is_probing = long.backoff > 0;
            long.backoff = (long.backoff + 1).min(BACKOFF_MAX);
        }
        let packets_max = if long.is_probing { 1 } else { u32::MAX };
        if shared.config.recovery.keeps_ahead() {
            return self.resend_unanswered(shared, index, id, packets_max);
        }
        // Go-back-N (nsdi19 5.3): back to what is known to have arrived, releasing the credits of the rest.
        session.credits += (long.sent - long.received) as u16;
        long.sent = long.received;
        long.repeated = long.sent_max;
        shared.stats.retransmissions += 1;
        if shared.pacing.is_on() {
            session.limits = shared.pacing.on_loss(session.sample(index, shared.now_ns));
        }
        if packets_max == 1 {
            // The remaining credits are left for other calls.
            self.send_up_to(shared, index, id, packets_max);
            return self.send_waiting(shared, index);
        }
        self.send_in_turn(shared, index, id);
    }
}

/// Length for which pacing makes room when a packet leaves, in bytes. A request-for-response counts as the response
/// packet that it asks for, since the answers take the room.
pub(super) fn packet_len(session: &ClientSession, slot: &ClientSlot, kind: TxKind) -> usize {
    let data_len = match (&slot.request, kind) {
        (Some(Outgoing::Whole(request)), TxKind::Request) => request.len(),
        _ => session.data_per_packet as usize,
    };
    data_len + sinew_wire::HEADER_LEN
}
