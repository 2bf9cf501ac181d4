//! Arrival of requests of several packets.

use std::num::NonZeroU64;
use std::ops::Range;

use sinew_fabric::RxPacket;
use sinew_mem::{Arena, MessageBuffer};
use sinew_wire::{CallName, HEADER_LEN, Options, Part};

use super::Servers;
use super::state::Arrival;
use crate::answer::ErrorCode;
use crate::message::{copy_data, options_of, packet_range, packets_of};
use crate::recovery::Window;
use crate::shared::Shared;
use crate::stats::PacketDrop;
use crate::table::SlotId;

impl Servers {
    /// Handles the packet of a long request that arrives first. It must be the request's first packet, unless we keep
    /// packets out of order.
    pub(super) fn begin_long_request(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        (request_type, lead, part): (u16, usize, Part),
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
        let body_len = message_len - lead;
        self.free_last_call(shared, index, id);
        let message = match self.fits_share(shared, index, body_len) {
            true => self.alloc(shared, body_len, data_per_packet),
            false => None,
        };
        let Some(mut message) = message else {
            let is_within_share = Arena::block_len(body_len, data_per_packet) <= shared.memory_share();
            let code = if is_within_share { ErrorCode::Busy } else { ErrorCode::RequestTooLarge };
            return Err(self.refuse(shared, (index, id), call, (request_type, packets), code));
        };
        let options = copy_part(packet, &mut message, lead, range)?;
        self.begin(shared, (index, id), call, request_type, packets);
        let mut ahead = Window::default();
        ahead.mark(number);
        let received = ahead.advance();
        let mut arrival = Arrival {
            message: Some(message),
            slot: id,
            lead,
            ahead,
            begun_ns: shared.now_ns,
            deadline_ns: None,
            received,
        };
        if let Some(options) = options {
            arrival.apply_options(shared, options);
        }
        let slot = &mut self.table.slots[id.index()];
        slot.progress_ns = shared.now_ns;
        slot.set_arrival(self.arrivals.begin(arrival));
        self.charge(shared, index, id);
        self.queue_credit_return(shared, id, true, call.is_copy);
        Ok(())
    }

    /// Handles a further packet of a long request; returns the request if that completes it.
    pub(super) fn take_further_packet(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        call: CallName,
        part: Part,
        packet: &RxPacket<'_>,
    ) -> Result<Option<MessageBuffer>, PacketDrop> {
        let data_per_packet = self.table.entries[index].data_per_packet as usize;
        let slot = &mut self.table.slots[id.index()];
        let Some(arrival) = slot.arrival() else { return Err(PacketDrop::Stale) };
        let arrival = self.arrivals.get_mut(arrival);
        let Some(message) = &mut arrival.message else { return Err(PacketDrop::Stale) };
        let number = u32::from(part.packet);
        let offset = match number.checked_sub(arrival.received) {
            Some(place) if !arrival.ahead.has(place) => place,
            // We have this packet already: the client lost our answer to it, and gets that again.
            _ => {
                self.repeat_credit_return(shared, index, id, call.is_copy)?;
                return Err(PacketDrop::Stale);
            }
        };
        if offset > 0 && (!shared.config.recovery.keeps_ahead() || offset >= Window::PLACES) {
            return Err(PacketDrop::OutOfOrder);
        }
        let message_len = arrival.lead + message.len();
        let range = packet_range(message_len, data_per_packet, number as usize);
        if part.message_len as usize != message_len || packet.len() - HEADER_LEN != range.len() {
            return Err(PacketDrop::WrongLength);
        }
        let options = copy_part(packet, message, arrival.lead, range)?;
        arrival.ahead.mark(offset);
        arrival.received += arrival.ahead.advance();
        slot.is_copy |= call.is_copy;
        slot.progress_ns = shared.now_ns;
        let is_complete = arrival.received == slot.request_packets;
        if let Some(options) = options {
            arrival.apply_options(shared, options);
        }
        if !is_complete {
            self.queue_credit_return(shared, id, true, call.is_copy);
            return Ok(None);
        }
        self.table.slots[id.index()].note_complete(shared.now_ns);
        // The peer is charged for it until it is answered.
        Ok(self.end_complete_arrival(id, call))
    }
}

impl Servers {
    /// Ends the arrival of a complete request, and returns it.
    #[inline(never)]
    fn end_complete_arrival(&mut self, id: SlotId, call: CallName) -> Option<MessageBuffer> {
        let arrival = self.table.slots[id.index()].arrival()?;
        if let Some(deadline_ns) = self.arrivals.get(arrival).deadline_ns {
            self.note_deadline(call, deadline_ns);
        }
        self.end_arrival(id)
    }
}

impl Arrival {
    /// Applies the options of a call. Its deadline may pass while the request is still arriving.
    #[cold]
    #[inline(never)]
    fn apply_options(&mut self, shared: &mut Shared, options: Options) {
        self.deadline_ns = options.deadline_ns(shared.now_ns);
        shared.note_deadline(self.deadline_ns.and_then(NonZeroU64::new));
    }
}

/// Copies a packet's part of a message. If it is the first part and options lead it, returns these.
#[inline(always)]
fn copy_part(
    packet: &RxPacket<'_>,
    message: &mut MessageBuffer,
    lead: usize,
    range: Range<usize>,
) -> Result<Option<Options>, PacketDrop> {
    let has_options = range.start == 0 && lead > 0;
    let options = if has_options { Some(options_of(packet)?) } else { None };
    let skipped = if has_options { lead } else { 0 };
    copy_data(packet, skipped, &mut message[range.start + skipped - lead..range.end - lead])?;
    Ok(options)
}
