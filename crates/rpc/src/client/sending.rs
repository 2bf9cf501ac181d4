//! Sending: a call's packets leave as far as its session's credits allow, each call in its turn.

use sinew_fabric::{PacketTx, TxData, TxPacket};
use sinew_mem::Frozen;
use sinew_wire::{CallName, HEADER_LEN, Meaning, OPTIONS_LEN};

use super::state::{CallView, Form, NOT_SENT, Outgoing};
use super::{Clients, recovery};
use crate::message::packet_range;
use crate::shared::Shared;
use crate::table::{SlotId, SlotRef};
use crate::transmit::{TxItem, TxKind};

impl Clients {
    /// Queues as many packets of a call as its session's credits allow.
    #[inline]
    fn send_allowed(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        self.send_up_to(shared, index, id, u32::MAX);
    }

    /// Queues up to `packets_max` packets of a call, as far as its session's credits allow.
    pub(super) fn send_up_to(&mut self, shared: &mut Shared, index: usize, id: SlotId, mut packets_max: u32) {
        let position = self.table.position_of(id);
        let view = self.view(id);
        let (session, long) = (view.session, view.long);
        let number_low = view.slot.number as u32;
        loop {
            let (kind, first, left) = if long.sent < long.request_packets {
                (TxKind::Request, long.sent, long.request_packets - long.sent)
            } else if long.response_packets > 0 {
                let packets_total = long.request_packets + long.response_packets - 1;
                (TxKind::RequestForResponse, long.sent - long.request_packets + 1, packets_total - long.sent)
            } else {
                break;
            };
            if left == 0 || packets_max == 0 {
                break;
            }
            // Retransmissions go in runs of their own.
            let is_copy = long.sent < long.sent_max;
            let same_kind = if is_copy { long.sent_max - long.sent } else { left };
            let count = left.min(same_kind).min(packets_max).min(u32::from(session.credits_usable()));
            if count == 0 {
                session.waiting |= 1 << position;
                return;
            }
            packets_max -= count;
            session.credits -= count as u16;
            if long.sent == long.received {
                // The time-out counts from when they leave: the call may have waited for credits, or for the loop to
                // turn.
                view.slot.progress_ns = NOT_SENT;
            }
            long.sent += count;
            long.sent_max = long.sent_max.max(long.sent);
            let run = TxItem { slot: id, number_low, first: first as u16, count: count as u16, kind, is_copy };
            if shared.pacing.is_on() && (session.limits.is_paced || !shared.config.tuning.pacing_bypass) {
                let packet_len = recovery::packet_len(session, view.slot, kind);
                shared.pacing.queue(index, run, packet_len, shared.now_ns, &mut shared.transmit);
            } else if kind == TxKind::RequestForResponse && !shared.config.tuning.cumulative_credits {
                shared.transmit.extend(run.numbers().map(|first| TxItem { first, count: 1, ..run }));
            } else {
                shared.transmit.push(run);
            }
        }
        session.waiting &= !(1 << position);
    }

    /// Gives the available credits to calls that wait for them, in turn: a long call must not keep the others waiting
    /// until it is over.
    pub(super) fn send_waiting(&mut self, shared: &mut Shared, index: usize) {
        loop {
            let session = &mut self.table.entries[index];
            if session.waiting == 0 || session.credits_usable() == 0 {
                return;
            }
            let turn = u32::from(session.turn);
            let position = (session.waiting.rotate_right(turn).trailing_zeros() + turn) % 64;
            session.turn = (position as u8 + 1) % 64;
            let id = self.table.slot(index, position as usize);
            self.send_allowed(shared, index, id);
        }
    }

    /// Continues a call that may have packets to send, after those that wait already.
    pub(super) fn send_in_turn(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let position = self.table.position_of(id);
        let session = &mut self.table.entries[index];
        if session.waiting == 0 {
            return self.send_allowed(shared, index, id);
        }
        session.waiting |= 1 << position;
        self.send_waiting(shared, index);
    }

    /// Sends a run of request packets.
    #[inline(always)]
    pub fn send_requests(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        if let Some(SlotRef { entry: session, slot }) = self.table.slot_ref(item.slot)
            && slot.form != Form::Long
            && slot.number as u32 == item.number_low
            && let Some(Outgoing::Whole(request)) = &mut slot.request
        {
            slot.progress_ns = shared.now_ns;
            let head = match (slot.form, self.long_calls.get(item.slot.index())) {
                (Form::ShortTimed, Some(travel)) => {
                    request.front_mut()[HEADER_LEN..].copy_from_slice(&travel.options(shared.now_ns));
                    request.front_and_data()
                }
                _ => request.first_packet(),
            };
            tx.push(TxPacket { to: session.peer, head, data: TxData::None });
            return;
        }
        self.send_long(shared, item, tx);
    }

    #[inline(never)]
    fn send_long(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let end = u32::from(item.first) + u32::from(item.count);
        let mut view = self.view(item.slot);
        if view.slot.number as u32 != item.number_low {
            return;
        }
        // Packets held back by pacing may have been taken back since, to be sent again later.
        if view.slot.form != Form::Long || end > view.long.sent {
            return;
        }
        view.note_sent(shared.now_ns);
        if shared.times_calls {
            view.long.begin_round_trip(end, shared.now_ns);
        }
        if let Some(Outgoing::Shared(buffer)) = &view.slot.request {
            push_parts(&view, buffer, item, shared.now_ns, tx);
        } else {
            push_whole(&mut view, shared.now_ns, item.is_copy, tx);
        }
    }

    pub fn send_request_for_response(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let mut view = self.view(item.slot);
        let end = (view.long.request_packets + u32::from(item.first) + u32::from(item.count)).saturating_sub(1);
        let is_over = view.slot.number as u32 != item.number_low || view.slot.request.is_none();
        if is_over || view.slot.form == Form::Short || end > view.long.sent {
            return;
        }
        view.note_sent(shared.now_ns);
        if shared.times_calls {
            view.long.begin_round_trip(end, shared.now_ns);
        }
        let meaning = Meaning::RequestForResponse {
            request_type: view.slot.request_type,
            first: item.first,
            count: item.count.into(),
        };
        let call = CallName { session: view.session.remote_key, number: view.slot.number, is_copy: item.is_copy };
        tx.push(TxPacket { to: view.session.peer, head: &meaning.header(call).to_bytes(), data: TxData::None });
    }
}

/// Sends a request that is one packet, which the port copies; nothing if the call is over.
#[inline(always)]
fn push_whole(view: &mut CallView<'_>, now_ns: u64, is_copy: bool, tx: &mut impl PacketTx) {
    let Some(Outgoing::Whole(request)) = &view.slot.request else { return };
    let header = view.request_header(0, request.len(), is_copy).to_bytes();
    let (to, has_options, options) = (view.session.peer, view.long.has_options, view.long.options(now_ns));
    let Some(Outgoing::Whole(request)) = &mut view.slot.request else { return };
    let head = if has_options {
        let front = request.front_mut();
        front[..HEADER_LEN].copy_from_slice(&header);
        front[HEADER_LEN..].copy_from_slice(&options);
        request.front_and_data()
    } else {
        *request.header_mut(0) = header;
        request.first_packet()
    };
    tx.push(TxPacket { to, head, data: TxData::None });
}

/// Sends some of the packets of a request whose buffer the port takes shares of.
fn push_parts(view: &CallView<'_>, buffer: &Frozen, item: TxItem, now_ns: u64, tx: &mut impl PacketTx) {
    let (lead, data_per_packet) = (view.long.lead(), view.session.data_per_packet as usize);
    let to = view.session.peer;
    for packet in item.numbers() {
        let range = packet_range(buffer.len() + lead, data_per_packet, packet.into());
        let start = range.start.saturating_sub(lead);
        let data = TxData::Frozen { buffer, start, len: range.end - lead - start };
        let header = view.request_header(packet, buffer.len(), item.is_copy).to_bytes();
        if packet == 0 && lead > 0 {
            // The options are the first bytes of the message.
            let mut head = [0; HEADER_LEN + OPTIONS_LEN];
            head[..HEADER_LEN].copy_from_slice(&header);
            head[HEADER_LEN..].copy_from_slice(&view.long.options(now_ns));
            tx.push(TxPacket { to, head: &head, data });
        } else {
            tx.push(TxPacket { to, head: &header, data });
        }
    }
}
