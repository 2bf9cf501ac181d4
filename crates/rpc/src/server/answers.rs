//! Answers to calls: from their handlers at once, or from other threads later.

use sinew_mem::{Arena, MessageBuffer};
use sinew_wire::{HEADER_LEN, PACKETS_MAX};

use super::Servers;
use super::state::{Phase, Response, ServerSlot};
use crate::answer::{Answer, ErrorCode, RunningCall, ServerCallId, SlotLocation};
use crate::message::packets_of;
use crate::names::RequestType;
use crate::shared::Shared;
use crate::table::SlotId;
use crate::transmit::{TxItem, TxKind};

/// Lengths, in bytes, that are copied without a function call.
const SMALL: std::ops::RangeInclusive<usize> = 16..=64;

/// The transmit item of a response.
#[inline(always)]
fn response_item(slot: SlotId, number: u64, is_copy: bool) -> TxItem {
    TxItem { slot, number_low: number as u32, first: 0, count: 1, kind: TxKind::Response, is_copy }
}

impl Servers {
    /// The slot of an unanswered call; `None` if its client has left or given up.
    pub(super) fn find_unanswered(&self, call: ServerCallId) -> Option<(usize, SlotId)> {
        let index = self.table.find(call.key)?;
        let id = self.table.slot_of(index, call.number);
        let slot = &self.table.slots[id.index()];
        (slot.number == call.number && slot.phase == Phase::Running).then_some((index, id))
    }

    /// Whether somebody waits for the answer to a call.
    pub fn is_unanswered(&self, call: ServerCallId) -> bool {
        self.find_unanswered(call).is_some()
    }

    /// As [`Self::find_unanswered`], when there is an answer: one that nobody waits for is counted.
    fn take_unanswered(&mut self, shared: &mut Shared, call: ServerCallId) -> Option<(usize, SlotId)> {
        let found = self.find_unanswered(call);
        match found {
            Some((_, id)) => self.end_keeping(id),
            None => shared.stats.answers_discarded += 1,
        }
        found
    }

    /// Answers a call with these bytes. Its handler must be running, and have been running since the call came.
    #[inline(always)]
    pub fn reply(&mut self, shared: &mut Shared, call: RunningCall, response: &[u8]) {
        // As in `answer_with`, but for lengths that are copied without a function call: so a handler that does little
        // else needs no stack. The slot is still the call's, since nothing else was received meanwhile.
        let len = response.len();
        if SMALL.contains(&len)
            && len <= usize::from(call.location.own_len_max)
            && shared.transmit.len() < shared.transmit.capacity()
            && let Some(slot) = self.table.slots.get_mut(call.location.slot.index())
            && let Response::Short(buffer) = &mut slot.response
            && len <= buffer.capacity()
        {
            // Queued first, while there is known to be room.
            shared.transmit.push(response_item(call.location.slot, call.id.number, slot.is_copy));
            if buffer.fill(response).is_ok() {
                (slot.phase, slot.progress_ns) = (Phase::Answered, shared.now_ns);
            }
            return;
        }
        self.reply_slow(shared, call.id, call.location, response);
    }

    #[inline(never)]
    fn reply_slow(&mut self, shared: &mut Shared, call: ServerCallId, location: SlotLocation, response: &[u8]) {
        let call = RunningCall { id: call, location };
        self.answer_with(shared, call, response.len(), |target| target.copy_from_slice(response));
    }

    /// The slot of a running call, if a response of this length goes into the slot's own buffer: by far the most common
    /// case. In a burst, other packets may have ended the call or its session. A session that was opened in its place
    /// has no calls yet, since its client does not know its key. So the slot alone tells.
    #[inline(always)]
    fn own_buffer(&mut self, call: RunningCall, len: usize) -> Option<&mut ServerSlot> {
        let slot = self.table.slots.get_mut(call.location.slot.index())?;
        let is_it = slot.number == call.id.number
            && slot.phase == Phase::Running
            && slot.request_packets == 1
            && len <= usize::from(call.location.own_len_max);
        is_it.then_some(slot)
    }

    /// Answers a running call with `len` bytes, which `write` fills in.
    #[inline(always)]
    pub fn answer_with(&mut self, shared: &mut Shared, call: RunningCall, len: usize, write: impl FnOnce(&mut [u8])) {
        if let Some(slot) = self.own_buffer(call, len)
            && let Response::Short(buffer) = &mut slot.response
            && let Ok(response) = buffer.resized(len)
        {
            write(response);
            (slot.phase, slot.progress_ns) = (Phase::Answered, shared.now_ns);
            shared.transmit.push(response_item(call.location.slot, call.id.number, slot.is_copy));
            return;
        }
        self.answer_from_buffer(shared, call.id, len, write);
    }

    /// Answers a running call in the slot's own buffer, which may hold an earlier answer: `write` fills in the buffer
    /// and returns the answer's length. Returns whether it did: there may be no such buffer, and `write` returns `None`
    /// if the buffer is too short. A length beyond the buffer counts as `None`.
    #[inline(always)]
    pub fn answer_in_place(
        &mut self,
        shared: &mut Shared,
        call: RunningCall,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let medium_len_max = self.table.entries[self.table.entry_of(call.location.slot)].medium_len_max;
        if let Some(slot) = self.own_buffer(call, 0)
            && let Some(buffer) = slot.response.own_buffer()
            && let room = buffer.capacity().min(medium_len_max.into())
            && let Some(len) = buffer.resized(room).ok().and_then(write).filter(|len| *len <= room)
        {
            buffer.truncate(len);
            slot.response.set_medium(len > call.location.own_len_max.into());
            (slot.phase, slot.progress_ns) = (Phase::Answered, shared.now_ns);
            shared.transmit.push(response_item(call.location.slot, call.id.number, slot.is_copy));
            return true;
        }
        false
    }

    /// Answers a call that the endpoint's program kept.
    pub fn answer_kept_call(
        &mut self,
        shared: &mut Shared,
        call: ServerCallId,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some((index, slot)) = self.take_unanswered(shared, call) else { return };
        let request_type = RequestType::new(self.table.slots[slot.index()].request_type);
        let location = SlotLocation { slot, request_type, own_len_max: self.table.entries[index].own_len_max };
        self.answer_with(shared, RunningCall { id: call, location }, len, write);
    }

    /// As [`Self::answer_with`], for any call and any length.
    #[inline(never)]
    fn answer_from_buffer(
        &mut self,
        shared: &mut Shared,
        call: ServerCallId,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some((index, id)) = self.take_unanswered(shared, call) else { return };
        match self.response_buffer(shared, (index, id), len) {
            Ok(mut buffer) => {
                write(&mut buffer);
                self.store_response(shared, (index, id), buffer);
            }
            Err(code) => self.answer_error(shared, call, code),
        }
    }

    /// As [`Self::answer_with`], but `write` gets `max` bytes and returns how many of them are the answer.
    #[inline(never)]
    pub fn answer_up_to(
        &mut self,
        shared: &mut Shared,
        call: ServerCallId,
        max: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let Some(place) = self.find_unanswered(call) else {
            shared.stats.answers_discarded += 1;
            return;
        };
        match self.response_buffer(shared, place, max) {
            Ok(mut buffer) => {
                let len = write(&mut buffer).min(max);
                // Shortening always succeeds.
                match buffer.resize(len) {
                    Ok(()) => self.answer_buffer(shared, call, buffer),
                    Err(_) => self.answer_error(shared, call, ErrorCode::NoMemory),
                }
            }
            Err(code) => self.answer_error(shared, call, code),
        }
    }

    /// Makes a buffer for a response, of `len` bytes.
    #[inline(never)]
    fn response_buffer(
        &mut self,
        shared: &mut Shared,
        (index, id): (usize, SlotId),
        len: usize,
    ) -> Result<MessageBuffer, ErrorCode> {
        let session = &self.table.entries[index];
        let data_per_packet = session.data_per_packet as usize;
        let slot = &mut self.table.slots[id.index()];
        // A long request may have a short answer.
        if let Response::Short(mut buffer) | Response::Medium(mut buffer) = std::mem::take(&mut slot.response)
            && len <= usize::from(session.medium_len_max)
            && buffer.resize(len).is_ok()
        {
            return Ok(buffer);
        }
        self.charge(shared, index, id);
        let session = &self.table.entries[index];
        if len > session.message_len_max as usize || packets_of(len, data_per_packet) > PACKETS_MAX {
            return Err(ErrorCode::ResponseTooLarge);
        }
        let limits = [session.own_len_max, session.medium_len_max].map(usize::from);
        let usual = limits.into_iter().find(|limit| len <= *limit).unwrap_or(0);
        let capacity = len.max(shared.config.preallocated_response_len.min(usual));
        if !self.fits_share(shared, index, capacity) {
            return Err(ErrorCode::NoMemory);
        }
        let mut buffer = self.alloc(shared, capacity, data_per_packet).ok_or(ErrorCode::NoMemory)?;
        buffer.resize(len).map_err(|_| ErrorCode::NoMemory)?;
        Ok(buffer)
    }

    /// Answers with a buffer that the handler filled.
    pub fn answer_buffer(&mut self, shared: &mut Shared, call: ServerCallId, mut buffer: MessageBuffer) {
        let Some((index, id)) = self.take_unanswered(shared, call) else { return };
        let session = &self.table.entries[index];
        let data_per_packet = session.data_per_packet as usize;
        if buffer.len() > session.message_len_max as usize || packets_of(buffer.len(), data_per_packet) > PACKETS_MAX {
            return self.answer_error(shared, call, ErrorCode::ResponseTooLarge);
        }
        let laid_out = buffer.is_from(&shared.arena)
            && (buffer.data_per_packet() == data_per_packet || buffer.set_data_per_packet(data_per_packet).is_ok());
        if !laid_out {
            let len = buffer.len();
            return self.answer_from_buffer(shared, call, len, |target| target.copy_from_slice(&buffer));
        }
        let (len, short_max) = (buffer.len(), session.short_len_max(shared));
        let usual = len.max(shared.config.preallocated_response_len.min(short_max));
        // A slot keeps its answer until it is used again. So a short answer in the large buffer of its request is moved
        // to a smaller buffer.
        if len <= short_max
            && buffer.block_len() > 2 * Arena::block_len(usual, data_per_packet)
            && let Ok(mut small) = self.response_buffer(shared, (index, id), len)
        {
            small.copy_from_slice(&buffer);
            return self.store_response(shared, (index, id), small);
        }
        // The slot no longer holds its request.
        self.charge(shared, index, id);
        if !self.block_fits_share(shared, index, buffer.block_len()) {
            return self.answer_error(shared, call, ErrorCode::NoMemory);
        }
        self.store_response(shared, (index, id), buffer);
    }

    fn store_response(&mut self, shared: &mut Shared, (index, id): (usize, SlotId), buffer: MessageBuffer) {
        let session = &self.table.entries[index];
        let data_per_packet = session.data_per_packet as usize;
        let is_short = buffer.len() <= data_per_packet && buffer.len() + HEADER_LEN <= shared.link.copy_len_max;
        let is_medium = buffer.capacity() <= session.medium_len_max.into();
        let slot = &mut self.table.slots[id.index()];
        slot.response = match (is_short, is_medium) {
            (true, _) => Response::Short(buffer),
            (_, true) => Response::Medium(buffer),
            _ => Response::Long(buffer.freeze()),
        };
        slot.phase = Phase::Answered;
        slot.progress_ns = shared.now_ns;
        let is_copy = slot.is_copy;
        self.charge(shared, index, id);
        self.queue(shared, TxKind::Response, id, 0, 1, is_copy);
    }

    /// Answers a call with an error: there will be no response.
    #[cold]
    pub fn answer_error(&mut self, shared: &mut Shared, call: ServerCallId, code: ErrorCode) {
        let Some((index, id)) = self.take_unanswered(shared, call) else { return };
        let slot = &mut self.table.slots[id.index()];
        slot.response = Response::Error(code);
        slot.phase = Phase::Answered;
        slot.progress_ns = shared.now_ns;
        let is_copy = slot.is_copy;
        self.charge(shared, index, id);
        self.queue(shared, TxKind::CallError, id, 0, 1, is_copy);
    }

    /// Sends the answers of workers and deferred calls.
    #[inline]
    pub fn take_queued_answers(&mut self, shared: &mut Shared) -> bool {
        let waiting = self.answer_queue.is_filled();
        if waiting {
            self.drain_answer_queue(shared);
        }
        waiting
    }

    #[inline(never)]
    fn drain_answer_queue(&mut self, shared: &mut Shared) {
        let mut answers = self.answer_queue.take();
        for Answer { call, answer, share } in answers.drain(..) {
            // From here on the memory is charged to its slot.
            drop(share);
            match answer {
                Ok(buffer) => self.answer_buffer(shared, call, buffer),
                Err(code) => self.answer_error(shared, call, code),
            }
        }
        self.answer_queue.recycle(answers);
    }
}
