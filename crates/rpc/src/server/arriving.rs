//! Requests of several packets on their way in.

use sinew_fabric::RxPacket;
use sinew_mem::{Arena, MessageBuffer};
use sinew_wire::{CallName, HEADER_LEN, Part};

use super::Servers;
use super::state::Arrival;
use crate::answer::ErrorCode;
use crate::message::{copy_data, packet_range, packets_of};
use crate::recovery::Window;
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::SlotId;

impl Servers {
    /// The first packet of a long request that comes: its first, unless we keep what comes out of order.
    pub(super) fn begin_long(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        (request_type, part): (u16, Part),
        packet: &RxPacket<'_>,
    ) -> Result<(), PacketDrop> {
        let data_per_packet = self.table.entries[index].data_per_packet as usize;
        let (message_len, number) = (part.message_len as usize, u32::from(part.packet));
        let range = packet_range(message_len, data_per_packet, number as usize);
        if packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        if number >= Window::PLACES {
            return Err(PacketDrop::OutOfOrder);
        }
        let packets = packets_of(message_len, data_per_packet) as u32;
        self.let_go(shared, index, id);
        let message = match self.may_hold(shared, index, message_len) {
            true => self.alloc(shared, message_len, data_per_packet),
            false => None,
        };
        let Some(mut message) = message else {
            let is_ever = Arena::block_len(message_len, data_per_packet) <= shared.memory_share();
            let code = if is_ever { ErrorCode::Busy } else { ErrorCode::RequestTooLarge };
            return Err(self.refuse(shared, (index, id), call, (request_type, packets), code));
        };
        copy_data(packet, &mut message[range])?;
        self.begin(shared, (index, id), call, request_type, packets);
        let mut ahead = Window::default();
        ahead.mark(number);
        let received = ahead.advance();
        let arrival = Arrival { message: Some(message), ahead, begun_ns: shared.now_ns, received };
        let slot = &mut self.table.slots[id.at()];
        slot.progress_ns = shared.now_ns;
        slot.arrival = Some(self.arrivals.begin(arrival));
        self.charge(shared, index, id);
        self.queue_credit_return(shared, id, true, call.is_copy);
        Ok(())
    }

    /// A further packet of a long request; returns the request when it is whole.
    pub(super) fn take_packet(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        part: Part,
        packet: &RxPacket<'_>,
    ) -> Result<Option<MessageBuffer>, PacketDrop> {
        let data_per_packet = self.table.entries[index].data_per_packet as usize;
        let slot = &mut self.table.slots[id.at()];
        let Some(arrival) = slot.arrival else { return Err(PacketDrop::Stale) };
        let arrival = self.arrivals.get_mut(arrival);
        let Some(message) = &mut arrival.message else { return Err(PacketDrop::Stale) };
        let number = u32::from(part.packet);
        let place = match number.checked_sub(arrival.received) {
            Some(place) if !arrival.ahead.has(place) => place,
            // A packet that we have: the client lost our answer to it, so it gets that again.
            _ => {
                self.repeat_credit_return(shared, index, id, call.is_copy)?;
                return Err(PacketDrop::Stale);
            }
        };
        if place > 0 && (!shared.config.recovery.keeps_ahead() || place >= Window::PLACES) {
            return Err(PacketDrop::OutOfOrder);
        }
        let range = packet_range(message.len(), data_per_packet, number as usize);
        if part.message_len as usize != message.len() || packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        copy_data(packet, &mut message[range])?;
        arrival.ahead.mark(place);
        arrival.received += arrival.ahead.advance();
        slot.is_copy |= call.is_copy;
        slot.progress_ns = shared.now_ns;
        if arrival.received < slot.request_packets {
            self.queue_credit_return(shared, id, true, call.is_copy);
            return Ok(None);
        }
        slot.run(shared.now_ns);
        // The peer is charged for it until it is answered.
        Ok(self.end_arrival(id))
    }
}
