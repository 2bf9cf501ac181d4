//! How a call's packets leave: as far as its session's credits allow, each call in its turn.

use sinew_fabric::{PacketTx, TxData, TxPacket};
use sinew_wire::{CallName, Header, Meaning};

use super::state::{Form, NOT_LEFT, Outgoing};
use super::{Clients, recovery};
use crate::shared::Shared;
use crate::table::{Place, SlotId};
use crate::transmit::{TxItem, TxKind};

impl Clients {
    /// Queues the packets of a call that its session's credits allow.
    #[inline]
    fn pump(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        self.pump_up_to(shared, index, id, u32::MAX);
    }

    /// Queues so many packets of a call, as far as its session's credits allow.
    pub(super) fn pump_up_to(&mut self, shared: &mut Shared, index: usize, id: SlotId, mut most: u32) {
        let place = self.table.place_of(id);
        let view = self.view(id);
        let (session, travel) = (view.session, view.travel);
        let number_low = view.slot.number as u32;
        loop {
            let (kind, first, left) = if travel.sent < travel.request_packets {
                (TxKind::Request, travel.sent, travel.request_packets - travel.sent)
            } else if travel.response_packets > 0 {
                let all = travel.request_packets + travel.response_packets - 1;
                (TxKind::RequestForResponse, travel.sent - travel.request_packets + 1, all - travel.sent)
            } else {
                break;
            };
            if left == 0 || most == 0 {
                break;
            }
            // Copies in runs of their own.
            let is_copy = travel.sent < travel.sent_max;
            let alike = if is_copy { travel.sent_max - travel.sent } else { left };
            let count = left.min(alike).min(most).min(u32::from(session.allowed()));
            if count == 0 {
                session.waiting |= 1 << place;
                return;
            }
            most -= count;
            session.credits -= count as u16;
            if travel.sent == travel.received {
                // The time-out runs from when they leave: the call may have waited for credits, or for the loop to turn.
                view.slot.progress_ns = NOT_LEFT;
            }
            travel.sent += count;
            travel.sent_max = travel.sent_max.max(travel.sent);
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
        session.waiting &= !(1 << place);
    }

    /// Lets calls that wait for credits have what there is, each in its turn: a long call must not keep the others waiting for
    /// as long as it lasts.
    pub(super) fn pump_waiting(&mut self, shared: &mut Shared, index: usize) {
        loop {
            let session = &mut self.table.entries[index];
            if session.waiting == 0 || session.allowed() == 0 {
                return;
            }
            let turn = u32::from(session.turn);
            let place = (session.waiting.rotate_right(turn).trailing_zeros() + turn) % 64;
            session.turn = (place as u8 + 1) % 64;
            let id = self.table.slot(index, place as usize);
            self.pump(shared, index, id);
        }
    }

    /// Lets a call go on that may have packets to send, behind those that wait already.
    pub(super) fn pump_in_turn(&mut self, shared: &mut Shared, index: usize, id: SlotId) {
        let place = self.table.place_of(id);
        let session = &mut self.table.entries[index];
        if session.waiting == 0 {
            return self.pump(shared, index, id);
        }
        session.waiting |= 1 << place;
        self.pump_waiting(shared, index);
    }

    /// Sends a run of request packets.
    #[inline(always)]
    pub fn send_requests(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        if let Some(Place { entry: session, slot }) = self.table.at(item.slot)
            && slot.form == Form::Short
            && slot.number as u32 == item.number_low
            && let Some(Outgoing::Whole(request)) = &slot.request
        {
            slot.progress_ns = shared.now_ns;
            tx.push(TxPacket { to: session.peer, head: request.first_packet(), data: TxData::None });
            return;
        }
        self.send_long(shared, item, tx);
    }

    #[inline(never)]
    fn send_long(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let upto = u32::from(item.first) + u32::from(item.count);
        let mut view = self.view(item.slot);
        // What waited for its time may have been taken back, to be sent anew.
        if view.slot.form == Form::Short || view.slot.number as u32 != item.number_low || upto > view.travel.sent {
            return;
        }
        view.left(shared.now_ns);
        if shared.times_calls {
            view.travel.time(upto, shared.now_ns);
        }
        let to = view.session.peer;
        match &mut view.slot.request {
            // The call is over already.
            None => {}
            Some(Outgoing::Whole(request)) => {
                if item.is_copy {
                    Header::mark_copy(request.header_mut(0));
                }
                tx.push(TxPacket { to, head: request.first_packet(), data: TxData::None });
            }
            Some(Outgoing::Shared(buffer)) => {
                for number in item.numbers() {
                    let range = buffer.packet_range(number.into());
                    let mut head = *buffer.header(number.into());
                    if item.is_copy {
                        Header::mark_copy(&mut head);
                    }
                    tx.push(TxPacket {
                        to,
                        head: &head,
                        data: TxData::Frozen { buffer, start: range.start, len: range.len() },
                    });
                }
            }
        }
    }

    pub fn send_request_for_response(&mut self, shared: &Shared, item: TxItem, tx: &mut impl PacketTx) {
        let mut view = self.view(item.slot);
        let upto = (view.travel.request_packets + u32::from(item.first) + u32::from(item.count)).saturating_sub(1);
        let is_over = view.slot.number as u32 != item.number_low || view.slot.request.is_none();
        if is_over || view.slot.form == Form::Short || upto > view.travel.sent {
            return;
        }
        view.left(shared.now_ns);
        if shared.times_calls {
            view.travel.time(upto, shared.now_ns);
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
