//! Sending of answers, and a limit on them: in one turn, repeated packets, and packets that ask for further ones, get
//! at most as many answers as their session has credits. Otherwise a small packet could ask for thousands of large
//! ones.
//!
//! A request for response packets is 24 bytes, and asks for up to all credits' worth of large packets; a retransmission
//! of a finished request asks for its answer again. In one turn a session gets at most its credits' worth of packets
//! besides first answers, and the same packet only once.

use sinew_fabric::{PacketTx, RxPacket, TxData, TxPacket};
use sinew_wire::{CallName, Meaning, Part, residence};

use super::Servers;
use super::state::{Phase, Response};
use crate::congestion::NOTICE_INTERVAL_NS;
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::{SlotId, SlotRef};
use crate::transmit::{TxItem, TxKind};

impl Servers {
    #[inline(always)]
    pub(super) fn queue(
        &mut self,
        shared: &mut Shared,
        kind: TxKind,
        slot: SlotId,
        first: u16,
        count: u16,
        is_copy: bool,
    ) {
        let number_low = self.table.slots[slot.index()].number as u32;
        shared.transmit.push(TxItem { slot, number_low, first, count, kind, is_copy });
    }

    /// Takes `count` packets out of what a session may be sent in this turn in addition to first answers.
    pub(super) fn reserve_repeats(&mut self, index: usize, count: u16) -> Result<(), PacketDrop> {
        let session = &mut self.table.entries[index];
        if u32::from(session.repeats_queued) + u32::from(count) > u32::from(session.credits) {
            return Err(PacketDrop::OverCredit);
        }
        if session.repeats_queued == 0 {
            self.repeating.push(index as u32);
        }
        session.repeats_queued += count;
        Ok(())
    }

    /// Notes that the transmit queue was sent.
    #[inline]
    pub fn note_sent(&mut self) {
        if self.repeating.is_empty() {
            return;
        }
        for index in self.repeating.drain(..) {
            self.table.entries[index as usize].repeats_queued = 0;
        }
    }

    /// Answers a packet again, unless that answer is already queued.
    pub(super) fn repeat(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        kind: TxKind,
        is_copy: bool,
    ) -> Result<(), PacketDrop> {
        if self.table.slots[id.index()].repeat_queued {
            return Ok(());
        }
        self.reserve_repeats(index, 1)?;
        self.table.slots[id.index()].repeat_queued = true;
        shared.stats.in_progress_answers += u64::from(kind == TxKind::InProgress);
        self.queue(shared, kind, id, 0, 1, is_copy);
        Ok(())
    }

    pub(super) fn repeat_first_answer(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        is_copy: bool,
    ) -> Result<(), PacketDrop> {
        let kind = match self.table.slots[id.index()].response {
            Response::Error(_) => TxKind::CallError,
            _ => TxKind::Response,
        };
        self.repeat(shared, index, id, kind, is_copy)
    }

    /// Reports again how far the request has arrived, since the client lost the last report.
    pub(super) fn repeat_credit_return(
        &mut self,
        shared: &mut Shared,
        index: usize,
        id: SlotId,
        is_copy: bool,
    ) -> Result<(), PacketDrop> {
        if !self.table.slots[id.index()].credit_queued {
            self.reserve_repeats(index, 1)?;
            self.queue_credit_return(shared, id, false, is_copy);
        }
        Ok(())
    }

    /// Queues a report of how far the request has arrived. `is_first` is whether the packet came for the first time; if
    /// not, the client lost our last report, and gets a cumulative one.
    #[inline(always)]
    pub(super) fn queue_credit_return(&mut self, shared: &mut Shared, id: SlotId, is_first: bool, is_copy: bool) {
        if !(self.table.slots[id.index()].credit_queued && shared.config.tuning.cumulative_credits) {
            self.queue_one_credit_return(shared, id, is_first, is_copy);
        }
    }

    #[inline(never)]
    fn queue_one_credit_return(&mut self, shared: &mut Shared, id: SlotId, is_first: bool, is_copy: bool) {
        let slot = &mut self.table.slots[id.index()];
        let is_cumulative = shared.config.tuning.cumulative_credits;
        slot.credit_queued = is_cumulative;
        let taken = slot.returnable_credits(&self.arrivals);
        let is_alone = is_first && !is_cumulative && !shared.config.recovery.keeps_ahead();
        let kind = if is_alone { TxKind::CreditAlone } else { TxKind::CreditReturn };
        self.queue(shared, kind, id, taken, 1, is_copy);
    }

    /// Tells a client that a packet of its session met a long queue, unless it was told just now.
    pub fn queue_congestion_notice(&mut self, shared: &mut Shared, call: CallName, packet: &RxPacket<'_>) {
        let Ok(index) = self.table.find_from(call.session, packet.from) else { return };
        let noticed_ns = &mut self.cold[index].noticed_ns;
        if *noticed_ns > 0 && shared.now_ns.saturating_sub(*noticed_ns) < NOTICE_INTERVAL_NS {
            return;
        }
        *noticed_ns = shared.now_ns;
        let id = self.table.slot_of(index, call.number);
        self.queue(shared, TxKind::CongestionNotice, id, 0, 1, call.is_copy);
    }

    /// Queues the response packets that a client asks for, unless they are queued already.
    pub fn on_request_for_response(
        &mut self,
        shared: &mut Shared,
        call: CallName,
        (first, count): (u16, u32),
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let index = self.table.find_from(call.session, packet.from)?;
        let session = &self.table.entries[index];
        shared.peers.note_heard(session.peer_index, shared.now_ns);
        let id = self.table.slot_of(index, call.number);
        let slot = &mut self.table.slots[id.index()];
        if call.number != slot.number {
            return Err(PacketDrop::Stale);
        }
        let response = match &slot.response {
            Response::Long(response) => response,
            Response::Error(_) => {
                self.repeat_first_answer(shared, index, id, call.is_copy)?;
                return Err(PacketDrop::Stale);
            }
            _ => return Err(PacketDrop::WrongPhase),
        };
        let end = u32::from(first).checked_add(count).ok_or(PacketDrop::WrongPhase)?;
        if first == 0 || count == 0 || count > session.credits.into() || end as usize > response.packets() {
            return Err(PacketDrop::WrongPhase);
        }
        slot.progress_ns = shared.now_ns;
        let mut has_new = false;
        for (first, end) in slot.not_requested_yet(first.into(), end) {
            if first < end {
                self.reserve_repeats(index, (end - first) as u16)?;
                self.table.slots[id.index()].note_requested(first, end);
                self.queue(shared, TxKind::Response, id, first as u16, (end - first) as u16, call.is_copy);
                has_new = true;
            }
        }
        // If there are none, all of them are about to leave.
        if has_new { Ok(()) } else { Err(PacketDrop::Stale) }
    }

    #[inline(always)]
    pub fn send_responses(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let Some(SlotRef { entry: session, slot }) = self.table.slot_ref(item.slot) else { return };
        if slot.number as u32 != item.number_low || slot.phase != Phase::Answered {
            return;
        }
        slot.repeat_queued = false;
        if let Response::Short(buffer) = &mut slot.response {
            let residence = residence::encode(shared.now_ns.saturating_sub(slot.arrived_ns));
            let meaning = Meaning::Response { residence, part: Part { message_len: buffer.len() as u32, packet: 0 } };
            let name = CallName { session: session.remote_key, number: slot.number, is_copy: item.is_copy };
            *buffer.header_mut(0) = meaning.header(name).to_bytes();
            tx.push(TxPacket { to: session.peer, head: buffer.first_packet(), data: TxData::None });
            return;
        }
        self.send_long_response(shared, item, tx);
    }

    #[inline(never)]
    fn send_long_response(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let session = &self.table.entries[self.table.entry_of(item.slot)];
        let slot = &mut self.table.slots[item.slot.index()];
        slot.requested_first = 0;
        let (buffer, is_own) = match std::mem::take(&mut slot.response) {
            Response::Medium(buffer) => (buffer.freeze(), true),
            Response::Long(buffer) => (buffer, false),
            other => return slot.response = other,
        };
        let name = CallName { session: session.remote_key, number: slot.number, is_copy: item.is_copy };
        for packet in item.numbers() {
            let range = buffer.packet_range(packet.into());
            // Only the first response packet waited for a handler.
            let kept_ns = if packet == 0 { shared.now_ns.saturating_sub(slot.arrived_ns) } else { 0 };
            let part = Part { message_len: buffer.len() as u32, packet };
            let header = Meaning::Response { residence: residence::encode(kept_ns), part }.header(name);
            tx.push(TxPacket {
                to: session.peer,
                head: &header.to_bytes(),
                data: TxData::Frozen { buffer: &buffer, start: range.start, len: range.len() },
            });
        }
        // The buffer stays the slot's own if the port has copied the packet.
        slot.response = match is_own {
            true => buffer.thaw().map_or_else(Response::Long, Response::Medium),
            false => Response::Long(buffer),
        };
    }

    /// Sends a packet without data: a credit return, `in progress`, a notice, or an error.
    #[inline(never)]
    pub fn send_control(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let is_cumulative = shared.config.tuning.cumulative_credits;
        let session = &self.table.entries[self.table.entry_of(item.slot)];
        let slot = &mut self.table.slots[item.slot.index()];
        if slot.number as u32 != item.number_low {
            return;
        }
        let mut is_copy = item.is_copy;
        let meaning = match item.kind {
            TxKind::CreditReturn | TxKind::CreditAlone if slot.request_packets > 1 => {
                slot.credit_queued = false;
                let so_far = slot.returnable_credits(&self.arrivals);
                let taken = if is_cumulative { so_far } else { item.first };
                let mut ahead = 0;
                if let Some(arrival) = slot.arrival() {
                    if taken == so_far {
                        is_copy |= std::mem::take(&mut slot.is_copy);
                        ahead = self.arrivals.get(arrival).ahead.0 as u32;
                    }
                } else if is_cumulative {
                    // The request was completed since this was queued, maybe by a retransmission.
                    is_copy |= slot.is_copy;
                }
                Meaning::CreditReturn { taken, ahead, is_alone: item.kind == TxKind::CreditAlone }
            }
            TxKind::CongestionNotice => Meaning::CongestionNotice,
            TxKind::InProgress => {
                slot.repeat_queued = false;
                if slot.phase != Phase::Running {
                    return;
                }
                Meaning::InProgress
            }
            TxKind::CallError => {
                slot.repeat_queued = false;
                let Response::Error(code) = slot.response else { return };
                Meaning::CallError(code as u32)
            }
            _ => return,
        };
        let name = CallName { session: session.remote_key, number: slot.number, is_copy };
        tx.push(TxPacket { to: session.peer, head: &meaning.header(name).to_bytes(), data: TxData::None });
    }
}
